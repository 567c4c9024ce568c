"""What every store does when it is asked for leases: order, turns, limits, pauses, lanes."""

from __future__ import annotations

from collections import Counter

from onceflow.core.errors import StoreError
from onceflow.core.item import Seed
from onceflow.core.pipeline import Lane, Stage
from onceflow.core.transition import KEY_CHARS_MAX, Done, Failed, Released, Usage, decode
from onceflow.store.base import LANES_WALKED_MAX, RUNS_IN_TURN_MAX, Add, Claim
from onceflow.testing.rig import NEWS, MakeStore, Rig, handler, pipeline, refused

LIMITED = pipeline(Stage("scrape", handler, limit=3), "summarize")
HELD = pipeline("scrape", Stage("summarize", handler, held=True))


def hosts(limit: int = 1, spacing_seconds: float = 0.0, most: int | None = None) -> Stage:
    """A stage whose lanes are the first letters of the keys."""
    lane = Lane(lambda key: key[0], limit, spacing_seconds)
    return Stage("fetch", handler, lane=lane, limit=most)


class ClaimSuite:
    # --- order ---

    async def test_items_are_claimed_by_priority_and_then_by_age(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(
                [Seed("z"), Seed("late", priority=5), Seed("a"), Seed("soon", priority=-1)]
            )

            claimed = await rig.claim("scrape")

            assert [lease.key for lease in claimed.leases] == ["soon", "z", "a", "late"]

    async def test_a_claim_counts_the_attempt_raises_the_fence_and_moves_the_item(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("a", {"note": "é"}, depth=2)])

            lease = await rig.lease("scrape")

            row = await rig.item("a")
            assert (lease.item, lease.pipeline, lease.key, lease.stage) == (
                row["id"], "news", "a", "scrape",
            )  # fmt: skip
            assert (lease.fence, lease.attempt, lease.generation) == (1, 1, 1)
            assert (lease.run, lease.depth, lease.claimed_at) == ("run-1", 2, rig.clock())
            assert decode(lease.data) == {"note": "é"}
            assert (row["phase"], row["worker"]) == ("active", "w")
            assert (row["fence"], row["attempt"], row["version"]) == (1, 1, 2)

    async def test_an_item_is_claimed_once(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])

            first = await rig.claim("scrape")
            second = await rig.claim("scrape", worker="v")

            assert len(first.leases) == 2
            assert not second.leases

    async def test_an_item_without_data_has_no_input(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])

            assert (await rig.lease("scrape")).data is None

    async def test_the_input_is_the_newest_result_of_the_stage_before(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            long = {"text": "word " * 1000}
            for result in ({"text": "short"}, long):
                await rig.finish(await rig.lease("scrape"), Done(result))
                lease = await rig.lease("summarize")
                assert decode(lease.data) == result
                await rig.finish(lease)
                await rig.act("retry", "a", stage="scrape")

    async def test_a_claim_says_whether_there_is_more(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c"])

            assert (await rig.claim("scrape", 2)).more
            assert not (await rig.claim("scrape", 1)).more

    async def test_a_stage_that_was_never_registered_is_refused(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            with refused(StoreError, "news/nowhere"):
                await rig.claim("nowhere")

    async def test_several_stages_are_claimed_at_once(self, make_store: MakeStore) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.add(["a", "b"])
            await rig.finish(await rig.lease("scrape"))

            reply = await rig.exchange(
                [], [rig.wish("summarize"), rig.wish("scrape"), rig.wish("summarize")]
            )

            keys = [[lease.key for lease in claimed.leases] for claimed in reply.claimed]
            assert keys == [["a"], ["b"], []]

    async def test_items_are_claimed_in_the_transaction_that_adds_them(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            request = Add(rig.pipeline, "run-1", [Seed("a"), Seed("b")])

            added, claimed = await rig.add_and_claim(request, rig.wish("scrape", 1))

            assert added.new == 2
            assert [lease.key for lease in claimed.leases] == ["a"]
            assert claimed.more

    async def test_everything_that_was_added_may_be_claimed_with_it(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            seeds = [Seed("b", {"n": 1}, depth=2), Seed("a"), Seed("b", {"n": 2})]
            request = Add(rig.pipeline, "run-1", seeds)

            added, claimed = await rig.add_and_claim(request, rig.wish("scrape", 5))

            assert (added.new, added.known) == (2, 0)
            assert sorted(lease.key for lease in claimed.leases) == ["a", "b"]
            assert not claimed.more
            for lease in claimed.leases:
                assert (lease.fence, lease.attempt, lease.claimed_at) == (1, 1, rig.clock())
                assert await rig.kinds(lease.key) == ["added", "claimed"]
            data = {lease.key: decode(lease.data) for lease in claimed.leases}
            assert data == {"a": None, "b": {"n": 2}}
            assert (await rig.item("b"))["depth"] == 0
            assert all(await rig.finish(claimed.leases))

    async def test_adding_again_after_a_lost_reply_claims_nothing_twice(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            request = Add(rig.pipeline, "run-1", [Seed("a"), Seed("b", priority=-1)])
            _, first = await rig.add_and_claim(request, rig.wish("scrape", 5))
            assert sorted(lease.key for lease in first.leases) == ["a", "b"]

            added, again = await rig.add_and_claim(request, rig.wish("scrape", 5))

            assert (added.new, added.known, list(again.leases)) == (0, 2, [])
            assert (await rig.run())["accepted"] == 2
            assert await rig.kinds("a") == ["added", "claimed"]
            assert all(await rig.finish(first.leases))

    async def test_what_a_halted_run_adds_does_not_begin(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"], max_tokens=5, seal=False)
            await rig.finish(await rig.lease("scrape"), Done({}, usage=Usage(tokens=9)))

            request = Add(rig.pipeline, "run-1", [Seed("b")])
            added, claimed = await rig.add_and_claim(request, rig.wish("scrape", 5))

            assert (added.new, list(claimed.leases)) == (1, [])
            assert await rig.place("b") == ("scrape", "ready")

    async def test_known_and_paused_and_held_items_are_not_claimed_when_they_are_added(
        self, make_store: MakeStore
    ) -> None:
        held = pipeline(Stage("scrape", handler, held=True), name="held")
        async with Rig(make_store, NEWS, held) as rig:
            await rig.add(["known"], "r0")
            await rig.work_off("scrape", "summarize")
            request = Add(NEWS, "r1", [Seed("known"), Seed("new")])
            added, claimed = await rig.add_and_claim(request, rig.wish("scrape", 5))
            assert (added.new, added.known) == (1, 1)
            assert [lease.key for lease in claimed.leases] == ["new"]

            await rig.store.tune("news", "scrape", paused=True)
            request = Add(NEWS, "r2", [Seed("later")])
            _, claimed = await rig.add_and_claim(request, rig.wish("scrape", 5))
            assert not claimed.leases
            request = Add(held, "r3", [Seed("a")])
            _, claimed = await rig.add_and_claim(request, rig.wish("scrape", 5, of=held))
            assert not claimed.leases
            assert await rig.place("a", held) == ("scrape", "waiting")

    # --- turns of runs ---

    async def test_F32_a_small_run_behind_hundreds_has_its_turn_in_the_next_round(
        self, make_store: MakeStore
    ) -> None:
        await self._served_in_turn(make_store, Stage("scrape", handler))

    async def test_F32_a_small_run_behind_hundreds_in_one_lane_has_its_turn_too(
        self, make_store: MakeStore
    ) -> None:
        lane = Lane(lambda key: "one", limit=5000)
        await self._served_in_turn(make_store, Stage("scrape", handler, lane=lane))

    async def _served_in_turn(self, make_store: MakeStore, stage: Stage) -> None:
        async with Rig(make_store, pipeline(stage), audit=False) as rig:
            runs = [f"run{number:03}" for number in range(2 * RUNS_IN_TURN_MAX + 20)]
            for run in runs:
                await rig.add([f"{run} {number}" for number in range(3)], run)
            await rig.add(["small"], "zzz")
            served: list[str] = []
            after = ""
            while len(served) < 2 * len(runs):
                claimed = await rig.claim("scrape", 7, turn=len(served), run=after)
                after = claimed.run
                served += [lease.run for lease in claimed.leases]

            first = served[: len(runs) + 7]  # a claim's leases are in the order of their items
            assert set(first) == {*runs, "zzz"}, "nobody has two turns before all had one"
            counts = Counter(served)
            assert {counts[run] for run in runs} <= {1, 2, 3}

    async def test_runs_have_equal_shares_and_take_turns(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            for run in ("r1", "r2", "r3"):
                await rig.add([f"{run}-{number}" for number in range(20)], run)

            claimed = await rig.claim("scrape", 6)
            assert sorted(lease.run for lease in claimed.leases) == [
                "r1",
                "r1",
                "r2",
                "r2",
                "r3",
                "r3",
            ]

            order = [(await rig.claim("scrape", 1, turn=turn)).leases[0].run for turn in range(6)]
            assert order == ["r1", "r2", "r3", "r1", "r2", "r3"]

    async def test_a_large_run_does_not_starve_a_small_one(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add([f"big-{number}" for number in range(100)], "a-big")
            await rig.add(["small"], "b-small")

            claimed = await rig.claim("scrape", 2)

            assert {lease.run for lease in claimed.leases} == {"a-big", "b-small"}

    async def test_what_one_run_leaves_over_goes_to_the_others(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add([f"a{number}" for number in range(20)], "r1")
            await rig.add(["b"], "r2")
            await rig.add([f"c{number}" for number in range(5)], "r3")

            claimed = await rig.claim("scrape", 16)

            assert len(claimed.leases) == 16
            assert len({lease.item for lease in claimed.leases}) == 16
            assert sum(lease.run == "r3" for lease in claimed.leases) == 5
            assert claimed.more
            items = [lease.item for lease in claimed.leases]
            assert items == sorted(items)

    async def test_more_runs_than_room_are_served_one_after_the_other(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            for run in ("r1", "r2", "r3"):
                await rig.add([f"{run}-1", f"{run}-2"], run)

            first = await rig.claim("scrape", 2, turn=0)
            then = await rig.claim("scrape", 2, turn=2)

            assert [lease.run for lease in first.leases] == ["r1", "r2"]
            assert [lease.run for lease in then.leases] == ["r1", "r3"]

    async def test_nothing_of_a_run_at_its_ceiling_is_claimed(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"], "r1", max_tokens=100)
            await rig.add(["c"], "r2")
            await rig.finish(await rig.lease("scrape"), Done({}, usage=Usage(tokens=100)))

            claimed = await rig.claim("scrape")

            assert [lease.key for lease in claimed.leases] == ["c"]
            assert not (await rig.claim("summarize")).leases
            assert "token" in (await rig.run("r1"))["halted"]

    async def test_a_run_goes_on_when_it_is_given_a_higher_ceiling(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"], max_tokens=100, max_cost=5.0)
            await rig.finish(await rig.lease("scrape"), Done({}, usage=Usage(tokens=100)))
            await rig.add([], max_tokens=100)
            assert not (await rig.claim("scrape")).leases, "that is no higher"

            await rig.add([], max_tokens=101)

            assert (await rig.run())["halted"] is None
            lease = await rig.lease("scrape")
            await rig.finish(lease, Done({}, usage=Usage(tokens=0, cost=5.0)))
            assert "cost" in (await rig.run())["halted"]
            await rig.add(["a"])
            assert "cost" in (await rig.run())["halted"], "adding alone opens nothing"

    # --- limits and pauses ---

    async def test_a_limit_counts_the_live_leases_of_all_workers(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.add("abcdef")
            await rig.beat("v")
            await rig.beat("u")

            first = await rig.claim("scrape", 2)
            second = await rig.claim("scrape", 10, worker="v")
            third = await rig.claim("scrape", 10, worker="u")
            assert [len(each.leases) for each in (first, second, third)] == [2, 1, 0]
            assert not third.more

            await rig.finish(first.leases)
            assert len((await rig.claim("scrape")).leases) == 2

    async def test_a_finish_frees_its_place_in_the_same_transaction(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.add("abcdef")
            leases = (await rig.claim("scrape")).leases
            assert len(leases) == 3

            reply = await rig.exchange(
                [rig.finishing(lease) for lease in leases[:2]], [rig.wish("scrape")]
            )

            assert len(reply.claimed[0].leases) == 2

    async def test_what_a_finish_leaves_ready_is_claimed_along_with_it(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add("a")
            lease = await rig.lease("scrape")

            reply = await rig.exchange([rig.finishing(lease, Released())], [rig.wish("scrape")])

            [again] = reply.claimed[0].leases
            assert (again.item, again.fence) == (lease.item, lease.fence + 1)

    async def test_an_operators_limit_wins_until_it_is_taken_back(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.add("abcdefgh")

            await rig.store.tune("news", "scrape", limit=5, why="a quiet night")
            assert len((await rig.claim("scrape")).leases) == 5
            await rig.store.tune("news", "scrape", limit=1)
            assert not (await rig.claim("scrape")).leases
            await rig.store.tune("news", "scrape", limit=0)
            assert not (await rig.claim("scrape")).leases
            assert len(await rig.store.held("w")) == 5

            await rig.work_off_held()
            assert len((await rig.claim("scrape")).leases) == 3
            limited = [row for row in await rig.events() if row["kind"] == "limited"]
            assert len(limited) == 3

    async def test_an_unlimited_stage_can_be_limited(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add("abcd")
            assert len((await rig.claim("scrape", 1)).leases) == 1

            await rig.store.tune("news", "scrape", limit=2)
            assert len((await rig.claim("scrape")).leases) == 1
            await rig.store.tune("news", "scrape", limit=0)
            assert len((await rig.claim("scrape")).leases) == 2

    async def test_nothing_of_a_paused_stage_is_claimed(self, make_store: MakeStore) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.add(["a", "b"])
            await rig.finish(await rig.lease("scrape"))

            await rig.store.tune("news", "scrape", paused=True, why="the site is down")
            await rig.store.tune("news", "summarize", paused=True)
            for stage in ("scrape", "summarize"):
                assert not (await rig.claim(stage)).leases
            assert not (await rig.claim("scrape", item=(await rig.item("b"))["id"])).leases
            stages = await rig.store.read("stages")
            assert stages[0]["paused_at"] == rig.clock()
            assert stages[0]["paused_why"] == "the site is down"

            rig.clock.advance(seconds=5)
            await rig.store.tune("news", "scrape", paused=True, why="still")
            assert (await rig.store.read("stages"))[0]["paused_at"] == rig.clock() - 5000
            await rig.store.tune("news", "scrape", paused=False)
            assert len((await rig.claim("scrape")).leases) == 1
            assert not (await rig.claim("summarize")).leases

    async def test_a_stage_that_is_not_there_cannot_be_tuned(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            for change in ({"limit": 3}, {"paused": True}, {"paused": False}):
                with refused(StoreError, "nowhere", "news"):
                    await rig.store.tune("news", "nowhere", **change)
            assert await rig.events() == []

    async def test_registering_again_keeps_the_operators_limit_and_pause(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.store.tune("news", "scrape", limit=7, paused=True)

            await rig.store.open([pipeline(Stage("scrape", handler, limit=2), "summarize")])

            row = (await rig.store.read("stages"))[0]
            assert (row["declared_limit"], row["chosen_limit"]) == (2, 7)
            assert row["paused_at"] is not None

    # --- one item by name ---

    async def test_one_item_is_claimed_by_name(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c"])
            item = (await rig.item("b"))["id"]

            [lease] = (await rig.claim("scrape", 1, item=item)).leases

            assert lease.key == "b"
            assert not (await rig.claim("scrape", 1, item=item)).leases
            assert not (await rig.claim("summarize", 1, item=item)).leases

    async def test_a_held_item_is_claimed_only_by_name(self, make_store: MakeStore) -> None:
        async with Rig(make_store, HELD) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Done({"text": "t"}))
            assert await rig.place("a") == ("summarize", "waiting")
            assert not (await rig.claim("summarize")).leases

            item = (await rig.item("a"))["id"]
            [lease] = (await rig.claim("summarize", 1, item=item)).leases

            assert decode(lease.data) == {"text": "t"}

    async def test_an_item_that_backs_off_is_not_claimed_even_by_name(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Failed("busy", "busy"))

            assert not (await rig.claim("scrape", item=(await rig.item("a"))["id"])).leases

    async def test_a_claim_by_name_stays_within_the_limit(self, make_store: MakeStore) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.add("abcd")
            await rig.claim("scrape")

            assert not (await rig.claim("scrape", item=(await rig.item("d"))["id"])).leases

    # --- lanes ---

    async def test_a_claim_takes_one_item_of_each_lane(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(hosts())) as rig:
            await rig.add(["a1", "a2", "b1", "b2", "c1"])

            claimed = await rig.claim("fetch")

            assert [lease.key for lease in claimed.leases] == ["a1", "b1", "c1"]
            assert not claimed.more
            assert claimed.opens_in_ms is None
            assert not (await rig.claim("fetch")).leases

    async def test_a_claim_in_lanes_says_whether_asking_again_gives_more(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(limit=5, most=3))) as rig:
            await rig.add(["a1", "a2", "a3", "a4", "b1"])

            assert (await rig.claim("fetch", 1)).more
            rest = await rig.claim("fetch", 5)
            assert [lease.key for lease in rest.leases] == ["a2", "b1"]
            assert not rest.more  # not until a place under the stage's limit is free

    async def test_rounds_through_the_lanes_go_by_their_runs_in_turn(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(limit=9))) as rig:
            await rig.add(["a1", "a2", "a3"], "r1")
            await rig.add(["a4"], "r2")
            await rig.add(["b1"], "r3")

            claimed = await rig.claim("fetch", 4)

            assert sorted(lease.key for lease in claimed.leases) == ["a1", "a2", "a4", "b1"]
            assert claimed.more
            assert [lease.key for lease in (await rig.claim("fetch")).leases] == ["a3"]

    async def test_a_lane_never_has_more_leases_than_its_limit(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(hosts(limit=2))) as rig:
            await rig.add(["a1", "a2", "a3", "b1"])

            first = await rig.claim("fetch")
            assert [lease.key for lease in first.leases] == ["a1", "b1", "a2"]
            assert not first.more
            assert not (await rig.claim("fetch")).leases

            await rig.finish(first.leases[0])
            assert [lease.key for lease in (await rig.claim("fetch")).leases] == ["a3"]

    async def test_a_claim_goes_round_the_lanes_until_there_is_no_room(
        self, make_store: MakeStore
    ) -> None:
        """Within the limits of the lanes and of the stage, and the runs take turns."""
        async with Rig(make_store, pipeline(hosts(limit=4, most=9))) as rig:
            await rig.add([f"{lane}{number}" for lane in "ab" for number in range(6)], "r1")
            await rig.add(["a7", "a8"], "r2")
            await rig.claim("fetch", 1)

            second = await rig.claim("fetch", 6, lane="a", turn=1)
            rounds = [second.leases[at : at + 2] for at in (0, 2, 4)]
            assert [{lease.key[0] for lease in each} for each in rounds] == [{"a", "b"}] * 3
            assert {lease.run for lease in second.leases} == {"r1", "r2"}
            assert len({lease.key for lease in second.leases}) == 6
            assert second.more
            third = await rig.claim("fetch", 6, lane=second.lane, turn=2)
            assert [lease.key[0] for lease in third.leases] == ["b"], "lane a is full"
            assert not (await rig.claim("fetch")).leases

    async def test_lanes_take_turns_from_where_the_last_claim_stopped(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(limit=9))) as rig:
            await rig.add([f"{lane}{number}" for lane in "abcde" for number in range(3)])

            first = await rig.claim("fetch", 2)
            second = await rig.claim("fetch", 2, lane=first.lane)
            third = await rig.claim("fetch", 2, lane=second.lane)

            lanes = [[lease.key[0] for lease in each.leases] for each in (first, second, third)]
            assert [sorted(each) for each in lanes] == [["a", "b"], ["c", "d"], ["a", "e"]]
            assert first.more

    async def test_a_lane_that_was_told_to_wait_gives_nothing_for_so_long(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(limit=2), "summarize")) as rig:
            await rig.add(["a1", "a2", "a3", "b1"])
            first, b1 = (await rig.claim("fetch", 2)).leases
            assert (first.key, b1.key) == ("a1", "b1")

            await rig.finish(first, Done(1, hold_lane_seconds=5))
            await rig.finish(b1, Done(1, hold_lane_seconds=0))

            claimed = await rig.claim("fetch")
            assert (list(claimed.leases), claimed.opens_in_ms) == ([], 5000)
            rig.clock.advance(seconds=5)
            assert [lease.key for lease in (await rig.claim("fetch", 1)).leases] == ["a2"]

    async def test_a_failure_can_hold_its_lane_and_a_shorter_hold_does_not_open_it(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(limit=3))) as rig:
            await rig.add(["a1", "a2", "a3", "a4"])
            leases = [lease for _ in range(3) for lease in (await rig.claim("fetch")).leases]

            await rig.finish(leases[0], Failed("busy", "busy", hold_lane_seconds=60))
            await rig.finish(leases[1], Done(1, hold_lane_seconds=2))
            await rig.finish(leases[2], Failed("gone", "gone", True, hold_lane_seconds=1))

            assert (await rig.claim("fetch")).opens_in_ms == 60_000

    async def test_who_has_lost_a_lease_holds_no_lane(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(hosts())) as rig:
            await rig.add(["a1", "a2"])
            lease = await rig.lease("fetch")
            older = lease._replace(fence=lease.fence - 1)

            assert await rig.finish(older, Done(1, hold_lane_seconds=60)) == [False]

            await rig.finish(lease)
            assert [lease.key for lease in (await rig.claim("fetch")).leases] == ["a2"]

    async def test_a_stage_without_lanes_holds_nothing(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])

            await rig.finish(await rig.lease("scrape"), Done(1, hold_lane_seconds=60))

            assert (await rig.lease("scrape")).key == "b"

    async def test_starts_in_a_lane_keep_their_spacing(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(hosts(limit=5, spacing_seconds=2))) as rig:
            await rig.add(["a1", "a2", "b1"])
            first = await rig.claim("fetch")
            assert [lease.key for lease in first.leases] == ["a1", "b1"]
            assert (first.more, first.opens_in_ms) == (False, 2000)

            rig.clock.advance(ms=1999)
            early = await rig.claim("fetch")
            assert list(early.leases) == []
            assert (early.more, early.opens_in_ms) == (False, 1)

            rig.clock.advance(ms=1)
            assert [lease.key for lease in (await rig.claim("fetch")).leases] == ["a2"]

    async def test_a_claim_by_name_keeps_to_its_lane(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(hosts(spacing_seconds=2))) as rig:
            await rig.add(["a1", "a2", "a3"])
            one, two, three = [row["id"] for row in await rig.items()]

            [lease] = (await rig.claim("fetch", 1, item=two)).leases
            assert not (await rig.claim("fetch", 1, item=one)).leases
            await rig.finish(lease)
            assert not (await rig.claim("fetch", 1, item=one)).leases
            assert not (await rig.claim("fetch")).leases
            rig.clock.advance(seconds=2)
            assert len((await rig.claim("fetch", 1, item=three)).leases) == 1

    async def test_a_stage_with_lanes_keeps_to_its_own_limit_too(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(limit=2, most=3))) as rig:
            await rig.add(["a1", "a2", "b1", "c1", "d1"])

            assert len((await rig.claim("fetch")).leases) == 3
            assert not (await rig.claim("fetch")).leases

    async def test_runs_take_turns_within_a_lane(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(hosts(limit=9))) as rig:
            await rig.add(["a1", "a2", "a3"], "r1")
            await rig.add(["a4"], "r2")

            keys = [(await rig.claim("fetch", 1, turn=turn)).leases[0].key for turn in range(3)]

            assert keys == ["a1", "a4", "a2"]

    async def test_a_run_at_its_ceiling_does_not_use_a_lanes_turn(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(limit=9), "next")) as rig:
            await rig.add(["a1", "a2", "b1"], "r1", max_cost=1.0)
            await rig.add(["b2"], "r2")
            [lease] = (await rig.claim("fetch", 1)).leases
            await rig.finish(lease, Done({}, usage=Usage(cost=1.5)))

            claimed = await rig.claim("fetch")

            assert [lease.key for lease in claimed.leases] == ["b2"]
            assert "cost" in (await rig.run("r1"))["halted"]

    async def test_one_claim_looks_at_a_bounded_number_of_lanes(
        self, make_store: MakeStore
    ) -> None:
        lane = Lane(lambda key: key, 1, 60.0)
        async with Rig(make_store, pipeline(Stage("fetch", handler, lane=lane))) as rig:
            await rig.add([f"{number:05}" for number in range(LANES_WALKED_MAX + 3)])

            first = await rig.claim("fetch", 5000)
            assert len(first.leases) == LANES_WALKED_MAX
            assert first.more
            second = await rig.claim("fetch", 5000, lane=first.lane)
            assert len(second.leases) == 3
            assert not second.more

    async def test_lane_names_are_ordered_by_their_bytes_everywhere(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts())) as rig:
            await rig.add(["é", "B", "a", "Z", "ß", "_", "漢", "-"])
            lane, seen = "", []
            for _ in range(8):
                claimed = await rig.claim("fetch", 1, lane=lane)
                seen += [lease.key for lease in claimed.leases]
                lane = claimed.lane

            assert seen == sorted(["é", "B", "a", "Z", "ß", "_", "漢", "-"])

    async def test_a_lane_may_be_named_after_the_longest_key(self, make_store: MakeStore) -> None:
        lane = Lane(lambda key: key)
        keys = [f"{letter * (KEY_CHARS_MAX - 1)}{number}" for letter in "漢é" for number in (1, 2)]
        async with Rig(make_store, pipeline(Stage("fetch", handler, lane=lane))) as rig:
            await rig.add(keys)

            claimed = await rig.claim("fetch")

            assert sorted(lease.key[0] for lease in claimed.leases) == ["é", "漢"]

    async def test_items_follow_when_a_stage_gets_lanes_or_loses_them(
        self, make_store: MakeStore
    ) -> None:
        plain, laned = pipeline("fetch"), pipeline(hosts())
        async with Rig(make_store, plain) as rig:
            await rig.add(["a1", "a2", "b1"])
            await rig.store.open([laned])
            assert not (await rig.claim("fetch")).leases
            assert (await rig.store.sweep()).promoted == 3
            assert not (await rig.store.sweep()).moved
            leases = (await rig.claim("fetch")).leases
            assert [lease.key for lease in leases] == ["a1", "b1"]

            await rig.store.open([plain])
            assert not (await rig.claim("fetch")).leases
            assert (await rig.store.sweep()).promoted == 1
            assert [lease.key for lease in (await rig.claim("fetch")).leases] == ["a2"]
            await rig.finish(leases)

    async def test_a_program_that_knows_no_lanes_leaves_the_items_as_they_are(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline("fetch", "next")) as rig:
            await rig.add(["a1"])
            newer = await rig.another()
            await newer.open([pipeline(hosts())])  # and the stage "next" is gone

            assert not (await rig.store.sweep()).moved, "the older one can do nothing"
            assert (await newer.sweep()).promoted == 1
            assert not (await rig.store.sweep()).moved
            assert [lease.key for lease in (await rig.claim("fetch")).leases] == ["a1"]

    async def test_what_a_gate_adds_gets_its_stages_lane(self, make_store: MakeStore) -> None:
        gate = Stage("collect", handler, lane=Lane(lambda key: key[0]))
        async with Rig(make_store, pipeline("scrape", after_all=gate)) as rig:
            await rig.add([], "r1")
            await rig.store.sweep()
            await rig.store.sweep()

            assert [lease.run for lease in (await rig.claim("collect")).leases] == ["r1"]

    async def test_an_empty_wish_of_a_paused_or_full_stage_keeps_its_lane(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline(hosts(most=1))) as rig:
            await rig.add(["a1", "b1"])
            await rig.claim("fetch", 1)

            wish = Claim("news", "fetch", "", 5, 0, "a")
            reply = await rig.exchange([], [wish])

            assert list(reply.claimed[0].leases) == []
            assert reply.claimed[0].lane == "a"
