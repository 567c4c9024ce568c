"""What every store does with runs: adding, joining, budgets, depths, and the gate."""

from __future__ import annotations

import random

from onceflow.core.errors import StoreError
from onceflow.core.item import Added, Seed
from onceflow.core.pipeline import GATE_KEY, Stage
from onceflow.core.transition import KEY_CHARS_MAX, Done, Failed, Released, Usage, decode
from onceflow.store.base import SWEEP_MAX
from onceflow.testing.rig import DIGEST, NEWS, MakeStore, Rig, handler, pipeline, refused

COMPLETED = pipeline("scrape", after_all=handler, gate="completed")
GONE = Failed("gone", "gone", permanent=True)


async def gate_keys(rig: Rig) -> list[str]:
    """The keys of the items that gates added."""
    return [row["key"] for row in await rig.items() if row["key"].startswith(GATE_KEY)]


class RunSuite:
    # --- add ---

    async def test_a_key_that_is_added_again_joins_with_what_it_has(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            assert await rig.add(["a", "b"], "r1") == Added("r1", 2, 0)
            await rig.work_off("scrape", "summarize")

            assert await rig.add(["b", "c"], "r2") == Added("r2", 1, 1)

            assert await rig.place("b") == ("summarize", "done")
            assert (await rig.item("b"))["run"] == "r1"
            runs = await rig.store.read("runs_of", item=(await rig.item("b"))["id"])
            assert [row["run"] for row in runs] == ["r1", "r2"]
            run = await rig.run("r2")
            assert (run["accepted"], run["open_items"], run["failed_items"]) == (2, 1, 0)

    async def test_adding_again_after_a_lost_reply_is_harmless(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])

            assert await rig.add(["a", "b"]) == Added("run-1", 0, 2)
            assert (await rig.run())["accepted"] == 2
            assert len(await rig.events()) == 2

    async def test_a_key_that_comes_twice_is_one_item(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            added = await rig.add([Seed("a", depth=3), Seed("b"), Seed("a", depth=1)])

            assert (added.new, added.known) == (2, 0)
            assert (await rig.item("a"))["depth"] == 1

    async def test_a_sealed_run_takes_nothing_more(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"], seal=True)
            await rig.add(["b"], "other")

            for keys in (["c"], ["b"], ["a", "c"]):
                with refused(StoreError, "run-1", "sealed"):
                    await rig.add(keys)
            assert (await rig.run())["accepted"] == 1

    async def test_a_run_can_be_filled_in_several_calls(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"], seal=False)
            await rig.add(["b", "a"], seal=False)
            assert (await rig.run())["sealed"] == 0
            await rig.add([], seal=True)

            run = await rig.run()
            assert (run["sealed"], run["accepted"]) == (1, 2)

    async def test_a_run_of_another_pipeline_is_refused(self, make_store: MakeStore) -> None:
        other = pipeline("scrape", name="other")
        async with Rig(make_store, NEWS, other) as rig:
            await rig.add(["a"], seal=False)

            with refused(StoreError, "run-1", "news", "other"):
                await rig.add(["a"], of=other)

    async def test_items_keep_the_order_they_came_in(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            keys = ["m", "b", "z", "a", "k"]
            await rig.add(keys)

            assert [row["key"] for row in await rig.items()] == keys

    async def test_what_comes_with_an_item_is_its_first_input(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("a", {"n": 1}), Seed("b"), Seed("c", "x" * 5000)])

            leases = (await rig.claim("scrape")).leases

            assert [decode(lease.data) for lease in leases] == [{"n": 1}, None, "x" * 5000]

    async def test_keys_of_every_script_stay_apart(self, make_store: MakeStore) -> None:
        keys = ["a", "A", "á", "a\u0301", "漢", "\U0001f600", "a b", "a'b", 'a"b', "a\\b", "%", "_"]
        async with Rig(make_store) as rig:
            assert (await rig.add(keys)).new == len(keys)
            for key in keys:
                assert (await rig.item(key))["key"] == key

    async def test_the_longest_keys_are_as_good_as_any(self, make_store: MakeStore) -> None:
        noise = random.Random(7)
        text = "".join(chr(noise.randrange(0x4E00, 0x9FFF)) for _ in range(KEY_CHARS_MAX - 1))
        keys = [text + "a", text + "b", "x" * KEY_CHARS_MAX, text[:1000], "short"]
        async with Rig(make_store) as rig:
            assert (await rig.add(keys)).new == 5
            assert await rig.add(keys, "r2") == Added("r2", 0, 5)
            assert [row["key"] for row in await rig.items()] == keys
            for key in keys:
                assert (await rig.item(key))["key"] == key
                assert len(await rig.store.read("items_by_key", key=key)) == 1

            lease = await rig.lease("scrape")
            done = Done({}, children=[text + "b", text + "c"], aliases=[text + "d"])
            assert await rig.finish(lease, done) == [True]
            assert (await rig.item(text + "d"))["key"] == text + "a"
            assert (await rig.run())["accepted"] == 6

    # --- children, aliases, depth ---

    async def test_children_join_every_run_of_their_parent_one_deeper(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("a", depth=1)], "r1")
            await rig.add(["a"], "r2")
            lease = await rig.lease("scrape")
            assert lease.depth == 0

            await rig.finish(lease, Done({}, children=["b", Seed("c", {"from": "a"}, priority=3)]))

            child = await rig.item("c")
            assert (child["depth"], child["priority"], child["run"]) == (1, 3, "r1")
            for run in ("r1", "r2"):
                assert (await rig.run(run))["accepted"] == 3
            leases = (await rig.claim("scrape")).leases
            assert [decode(each.data) for each in leases] == [None, {"from": "a"}]

    async def test_a_child_that_is_known_joins_as_it_is(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["b"], "r1")
            await rig.work_off("scrape", "summarize")
            await rig.add(["a"], "r2")

            await rig.finish(await rig.lease("scrape"), Done({}, children=["b", "a", "c"]))

            assert await rig.place("b") == ("summarize", "done")
            assert (await rig.run("r2"))["accepted"] == 3
            assert (await rig.run("r1"))["accepted"] == 1

    async def test_an_alias_is_the_item_itself(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "taken"])
            await rig.finish(await rig.lease("scrape"), Done({}, aliases=["b", "taken", "b"]))

            assert (await rig.item("b"))["key"] == "a"
            assert (await rig.item("taken"))["key"] == "taken"
            assert await rig.add(["b", "a"], "r2") == Added("r2", 0, 2)
            assert (await rig.run("r2"))["accepted"] == 1

    async def test_an_alias_stays_with_its_first_item(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            first, second = (await rig.claim("scrape")).leases
            await rig.finish(first, Done({}, aliases=["c"]))
            await rig.finish(second, Done({}, aliases=["c"]))

            assert (await rig.item("c"))["key"] == "a"

    async def test_a_shorter_way_makes_an_item_shallower(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("deep", depth=5), Seed("parent", depth=1)], "r1")
            await rig.add([Seed("deep", depth=7)], "r2")
            assert (await rig.item("deep"))["depth"] == 5

            leases = (await rig.claim("scrape")).leases
            parent = next(lease for lease in leases if lease.key == "parent")
            await rig.finish(parent, Done({}, children=["deep"]))
            assert (await rig.item("deep"))["depth"] == 2

            await rig.add([Seed("deep")], "r3")
            assert (await rig.item("deep"))["depth"] == 0

    # --- budgets ---

    async def test_a_run_never_accepts_more_items_than_it_may(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            added = await rig.add("abcde", max_items=3)

            assert added == Added("run-1", 3, 0, 2)
            assert [row["key"] for row in await rig.items()] == ["a", "b", "c"]

    async def test_known_items_and_children_count_against_the_budget(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["known"], "r0")
            await rig.add(["a", "known"], "r1", max_items=4)
            leases = (await rig.claim("scrape")).leases
            parent = next(lease for lease in leases if lease.key == "a")

            await rig.finish(parent, Done({}, children=["a", "known", "b", "c", "d"]))

            assert (await rig.run("r1"))["accepted"] == 4
            keys = [row["key"] for row in await rig.items("items_of_run", run="r1")]
            assert keys == ["known", "a", "b", "c"]
            assert await rig.store.read("items_by_key", key="d") == []

    async def test_an_alias_costs_nothing_of_the_budget(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"], max_items=2, seal=False)
            await rig.finish(await rig.lease("scrape"), Done({}, aliases=["b"]))

            added = await rig.add(["b", "c", "d"])

            assert (added.new, added.over_budget) == (1, 1)
            assert (await rig.run())["accepted"] == 2

    async def test_nothing_deeper_than_the_run_allows_is_added(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"], max_depth=1)
            await rig.finish(await rig.lease("scrape"), Done({}, children=["b"]))
            await rig.finish(await rig.lease("scrape"), Done({}, children=["c"]))

            assert [row["key"] for row in await rig.items()] == ["a", "b"]
            assert (await rig.run())["accepted"] == 2

    async def test_children_of_one_exchange_share_the_budget(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"], max_items=5)
            first, second = (await rig.claim("scrape")).leases

            await rig.exchange(
                [
                    rig.finishing(second, Done({}, children=["x", "y", "z"])),
                    rig.finishing(first, Done({}, children=["x", "u", "v"])),
                ],
                [],
            )

            assert (await rig.run())["accepted"] == 5

    async def test_what_attempts_spend_is_counted_in_every_run(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"], "r1", max_cost=2.0)
            await rig.add(["a"], "r2")
            first, second = (await rig.claim("scrape")).leases
            await rig.exchange(
                [
                    rig.finishing(first, Done({}, usage=Usage(10, 0.5))),
                    rig.finishing(second, Done({}, usage=Usage(5, 0.25))),
                ],
                [],
            )

            one, two = await rig.run("r1"), await rig.run("r2")
            assert (one["tokens"], one["cost"], one["halted"]) == (15, 0.75, None)
            assert (two["tokens"], two["cost"]) == (10, 0.5)
            await rig.finish(await rig.lease("summarize"), Done({}, usage=Usage(0, 1.25)))
            assert "cost" in (await rig.run("r1"))["halted"]

    # --- the gate ---

    async def test_the_gate_opens_once_when_every_item_is_settled(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a", "b"])
            first, second = (await rig.claim("scrape")).leases
            await rig.finish(first)
            assert (await rig.store.sweep()).settled == 0
            assert (await rig.store.sweep(["run-1"])).settled == 0
            await rig.finish(second)

            assert (await rig.store.sweep(["run-1"])).settled == 1
            for _ in range(3):
                assert not (await rig.store.sweep(["run-1"])).moved

            assert await gate_keys(rig) == ["gate:run-1"]
            item = await rig.item("gate:run-1")
            assert (item["stage"], item["phase"], item["run"]) == ("digest", "ready", "run-1")
            run = await rig.run()
            assert (run["gate_item"], run["settled_at"]) == (item["id"], rig.clock())
            assert (run["finished_at"], run["accepted"]) == (None, 2)
            assert await rig.kinds("gate:run-1") == ["gate_opened"]

    async def test_the_run_is_finished_after_what_its_gate_added(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a"])
            await rig.work_off("scrape")
            await rig.store.sweep()
            lease = await rig.lease("digest")
            assert lease.run == "run-1"
            assert (await rig.store.sweep()).finished == 0
            await rig.finish(lease)

            assert (await rig.store.sweep()).finished == 1
            assert (await rig.store.sweep()).finished == 0

            assert (await rig.run())["finished_at"] == rig.clock()
            assert [row["kind"] for row in await rig.events(run="run-1")].count("run_finished") == 1

    async def test_a_run_whose_first_item_is_left_over_is_not_said_to_be_missed(
        self, make_store: MakeStore
    ) -> None:
        """Nobody had it locked: whoever waits for that would wait for ever."""
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            left, done = (await rig.claim("scrape", 2)).leases
            await rig.finish(left, Released())
            [going_on] = (await rig.go_on([done])).continued
            await rig.finish(going_on)

            for _ in range(2):
                swept = await rig.store.sweep(["run-1"])

                assert (swept.missed, swept.moved) == (0, False)

    async def test_what_the_gates_stage_spends_is_counted_in_its_run(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Done(1, usage=Usage(5, 0.5)))
            await rig.store.sweep()

            await rig.finish(await rig.lease("digest"), Done(1, usage=Usage(7, 0.25)))

            run = await rig.run()
            assert (run["tokens"], run["cost"]) == (12, 0.75)

    async def test_the_gate_of_an_empty_run_opens(self, make_store: MakeStore) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add([])

            assert (await rig.store.sweep()).settled == 1
            assert await gate_keys(rig) == ["gate:run-1"]

    async def test_the_gate_of_a_run_that_is_still_filled_stays_shut(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a"], seal=False)
            await rig.work_off("scrape")
            assert (await rig.store.sweep(["run-1"])).settled == 0
            await rig.add([], seal=True)

            assert (await rig.store.sweep(["run-1"])).settled == 1

    async def test_items_added_by_the_last_item_keep_the_gate_shut(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Done({}, children=["b"]))
            assert (await rig.store.sweep()).settled == 0
            await rig.finish(await rig.lease("scrape"), Done({}, children=["a"]))

            assert (await rig.store.sweep()).settled == 1

    async def test_failed_and_cancelled_items_are_settled(self, make_store: MakeStore) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a", "b", "c"])
            first, second, _ = (await rig.claim("scrape")).leases
            await rig.finish(first, GONE)
            await rig.finish(second)
            assert (await rig.store.sweep()).settled == 0
            await rig.act("cancel", "c")

            assert (await rig.store.sweep()).settled == 1
            assert (await rig.run())["failed_items"] == 1

    async def test_a_gate_for_completed_items_waits_for_the_failed_ones(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, COMPLETED) as rig:
            await rig.add(["a", "b"])
            first, second = (await rig.claim("scrape")).leases
            await rig.finish(first, GONE)
            await rig.finish(second)
            for _ in range(3):
                assert (await rig.store.sweep(["run-1"])).settled == 0

            await rig.act("retry", "a")
            assert (await rig.store.sweep(["run-1"])).settled == 0
            await rig.work_off("scrape")
            assert (await rig.store.sweep(["run-1"])).settled == 1

    async def test_a_known_item_that_is_done_already_settles_the_run(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a"], "r1")
            await rig.work_off("scrape")
            await rig.add(["a"], "r2")

            assert (await rig.store.sweep(["r2"])).settled == 2
            assert await gate_keys(rig) == ["gate:r1", "gate:r2"]

    async def test_an_item_reopened_after_the_gate_does_not_open_it_again(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a"])
            await rig.work_off("scrape")
            await rig.store.sweep()
            await rig.act("retry", "a", stage="scrape")
            await rig.work_off("scrape")

            assert (await rig.store.sweep(["run-1"])).settled == 0
            assert await gate_keys(rig) == ["gate:run-1"]

    async def test_an_item_reopened_before_the_gate_keeps_it_shut(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            await rig.add(["a", "b"])
            first, second = (await rig.claim("scrape")).leases
            await rig.finish(first)
            assert (await rig.store.sweep()).settled == 0, "the look stops at b"
            await rig.act("retry", "a")
            await rig.finish(second)

            assert (await rig.store.sweep()).settled == 0, "a is before b, and not settled any more"
            await rig.work_off("scrape")
            assert (await rig.store.sweep()).settled == 1

    async def test_a_run_without_a_gate_is_finished_when_it_is_settled(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.work_off("scrape", "summarize")

            swept = await rig.store.sweep()

            assert (swept.settled, swept.finished) == (1, 1)
            assert (await rig.run())["gate_item"] is None

    async def test_the_gate_stage_can_be_a_stage_of_its_own(self, make_store: MakeStore) -> None:
        gate = Stage("collect", handler, ready="gathered", active="collecting", limit=1)
        async with Rig(make_store, pipeline("scrape", after_all=gate)) as rig:
            await rig.add([], "r1")
            await rig.add([], "r2")
            await rig.store.sweep()

            assert len((await rig.claim("collect")).leases) == 1

    async def test_more_runs_than_one_sweep_looks_at_take_turns(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            for number in range(SWEEP_MAX):
                await rig.add([], f"open-{number:03}", seal=False)
            await rig.add([], "z-last")

            first = await rig.store.sweep()
            assert (first.settled, first.more) == (0, True)
            second = await rig.store.sweep()
            assert (second.settled, second.more) == (1, False)

    async def test_runs_that_are_asked_about_are_looked_at_first(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            ids = [f"open-{number:03}" for number in range(SWEEP_MAX)]
            for run in ids:
                await rig.add([], run, seal=False)
            await rig.add([], "z-last")

            swept = await rig.store.sweep([*ids, "z-last", "nobody"])

            assert (swept.settled, swept.more) == (1, True)
