"""What every store does with leases: finish, lose, ask again, retry, release, renew, reclaim."""

from __future__ import annotations

import json
from typing import Any

from onceflow.core.item import Lease
from onceflow.core.pipeline import Stage
from onceflow.core.transition import Done, Failed, Part, Released, Usage, decode
from onceflow.store.base import APART_MS, SWEEP_MAX, WORKER_FORGOTTEN_MS, Finish, Kept, Worker
from onceflow.testing.rig import NEWS, MakeStore, Rig, handler, pipeline

SHORT = pipeline("scrape", "summarize", lease_seconds=60, backoff_seconds=10)
PATIENT = pipeline(Stage("scrape", handler, deadline_seconds=1000), lease_seconds=60)


def stale(lease: Lease) -> Lease:
    """The lease of somebody who had the item before."""
    return lease._replace(fence=lease.fence - 1)


class FinishSuite:
    # --- finish ---

    async def test_a_finished_stage_has_one_result_and_the_item_goes_on(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            rig.clock.advance(seconds=3)

            assert await rig.finish(lease, Done({"text": "hello"})) == [True]

            row = await rig.item("a")
            assert (row["stage"], row["phase"], row["attempt"]) == ("summarize", "ready", 0)
            assert (row["worker"], row["fence"], row["version"]) == (None, 1, 3)
            assert row["updated_at"] == rig.clock()
            [result] = await rig.store.read("result", item=row["id"], stage="scrape")
            assert decode(result["body"]) == {"text": "hello"}
            last = (await rig.history("a"))[-1]
            assert (last["kind"], last["stage"], last["next_stage"], last["phase"]) == (
                "stage_finished", "scrape", "summarize", "ready",
            )  # fmt: skip
            assert (last["ms"], last["worker"], last["fence"], last["attempt"]) == (3000, "w", 1, 1)

    async def test_an_item_goes_on_to_its_next_stage_at_once_if_that_is_asked_for(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            both = (await rig.claim("scrape", 2)).leases
            rig.clock.advance(seconds=3)

            reply = await rig.go_on(both, Done({"text": "x" * 1000}))

            assert list(reply.kept) == [Kept.KEPT, Kept.KEPT]
            first, second = sorted(reply.continued)
            assert (first.key, first.stage, first.fence, first.attempt) == ("a", "summarize", 2, 1)
            assert (first.claimed_at, first.run) == (rig.clock(), both[0].run)
            assert decode(first.data) == {"text": "x" * 1000}
            row = await rig.item("a")
            assert (row["stage"], row["phase"], row["attempt"]) == ("summarize", "active", 1)
            assert (row["worker"], row["fence"], row["version"]) == ("w", 2, 4)
            history = await rig.history("a")
            assert [(event["kind"], event["stage"], event["phase"], event["fence"], event["n"])
                    for event in history] == [
                ("added", "scrape", "ready", 0, 1), ("claimed", "scrape", "active", 1, 2),
                ("stage_finished", "scrape", "ready", 1, 3),
                ("claimed", "summarize", "active", 2, 4),
            ]  # fmt: skip
            assert await rig.finish(both) == [True, True], "asked again after a lost reply"
            assert await rig.place("a") == ("summarize", "active")
            assert await rig.finish([first, second]) == [True, True]
            assert await rig.place("a") == ("summarize", "done")

    async def test_who_has_lost_a_lease_does_not_go_on_with_it(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")

            reply = await rig.go_on([stale(lease)])

            assert (list(reply.kept), list(reply.continued)) == ([Kept.LOST], [])
            assert await rig.place("a") == ("scrape", "active")

    async def test_going_on_asked_again_after_a_lost_reply_claims_nothing_twice(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            await rig.go_on([lease])

            reply = await rig.go_on([lease])

            assert (list(reply.kept), list(reply.continued)) == ([Kept.BEFORE], [])
            assert (await rig.item("a"))["fence"] == 2

    async def test_nobody_goes_on_into_a_paused_stage_or_one_with_bounds(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c"])
            a, b, c = (await rig.claim("scrape", 3)).leases
            await rig.store.tune("news", "summarize", paused=True, why="not now")
            assert not (await rig.go_on([a])).continued
            await rig.store.tune("news", "summarize", paused=False)
            await rig.store.tune("news", "summarize", limit=100)
            assert not (await rig.go_on([b])).continued
            await rig.store.tune("news", "summarize", limit=0)

            assert (await rig.go_on([c])).continued
            assert await rig.place("a") == await rig.place("b") == ("summarize", "ready")

    async def test_what_spends_or_says_much_or_fails_does_not_go_on_at_once(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline("scrape", "summarize", events=("one", "two"))) as rig:
            await rig.add(["a", "b", "c", "d"])
            a, b, c, d = (await rig.claim("scrape", 4)).leases

            assert not (await rig.go_on([a], Done(1, usage=Usage(5)))).continued
            assert not (await rig.go_on([b], Done(1, events=["one", "two"]))).continued
            assert not (await rig.go_on([c], Failed("no", "no"))).continued
            assert (await rig.go_on([d], Done(1, events=["one"]))).continued

            assert await rig.place("c") == ("scrape", "waiting")
            assert [event["n"] for event in await rig.history("b")] == [1, 2, 3, 4]

    async def test_nothing_of_a_run_at_its_ceiling_goes_on(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"], max_tokens=10)
            a, b = (await rig.claim("scrape", 2)).leases
            await rig.finish(a, Done(1, usage=Usage(10)))

            assert not (await rig.go_on([b])).continued
            assert await rig.place("b") == ("summarize", "ready")

    async def test_what_others_spend_at_the_same_moment_counts_for_who_goes_on(
        self, make_store: MakeStore
    ) -> None:
        """One exchange: an item of a run spends, another one of it would go on."""
        async with Rig(make_store) as rig:
            for run, ceiling in (("free", None), ("enough", 11), ("spent", 10)):
                await rig.add([f"{run} a", f"{run} b"], run, max_tokens=ceiling)
                a, b = (await rig.claim("scrape", 2)).leases
                [spender] = (await rig.go_on([a])).continued
                spending = rig.finishing(spender, Done(1, usage=Usage(10)))
                going_on = rig.finishing(b)._replace(claim_next=True)

                reply = await rig.exchange([spending, going_on], [])

                assert list(reply.kept) == [Kept.KEPT, Kept.KEPT]
                phase = "ready" if run == "spent" else "active"
                assert await rig.place(f"{run} b") == ("summarize", phase)
                assert len(reply.continued) == (phase == "active")

    async def test_the_last_stage_makes_the_item_done(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])

            await rig.work_off("scrape", "summarize")

            assert await rig.place("a") == ("summarize", "done")
            assert await rig.kinds("a") == [
                "added", "claimed", "stage_finished", "claimed", "stage_finished",
            ]  # fmt: skip
            assert (await rig.history("a"))[-1]["next_stage"] is None
            stages = [row["stage"] for row in await rig.store.read(
                "results", item=(await rig.item("a"))["id"])]  # fmt: skip
            assert stages == ["scrape", "summarize"]

    async def test_results_of_every_shape_come_back_as_they_were(
        self, make_store: MakeStore
    ) -> None:
        values: list[Any] = [None, "", 0, [], {"a": [1, 2.5, True, None]}, "x" * 100_000,
                  {"é漢": "\U0001f600"}, "\ud800", "quote ' \" \\ and \n line", 2**60]  # fmt: skip
        async with Rig(make_store) as rig:
            await rig.add([f"k{at:02}" for at in range(len(values))])
            leases = (await rig.claim("scrape", 100)).leases
            finishes = [
                rig.finishing(lease, Done(value))
                for lease, value in zip(leases, values, strict=True)
            ]

            reply = await rig.exchange(finishes, [rig.wish("summarize", 100)])

            assert all(reply.kept)
            assert [decode(lease.data) for lease in reply.claimed[0].leases] == values

    async def test_an_attempt_may_store_several_events(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            first, second = (await rig.claim("scrape")).leases
            done = Done({}, events=["scrape_finished", "stage_finished", "scrape_finished"])

            await rig.exchange([rig.finishing(second, done), rig.finishing(first)], [])

            assert await rig.kinds("b") == [
                "added", "claimed", "scrape_finished", "stage_finished", "scrape_finished",
            ]  # fmt: skip
            assert [row["n"] for row in await rig.history("b")] == [1, 2, 3, 4, 5]
            assert await rig.kinds("a") == ["added", "claimed", "stage_finished"]

    async def test_a_stale_lease_cannot_finish_an_item(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            first, second = (await rig.claim("scrape")).leases

            kept = await rig.finish([stale(first), second])

            assert kept == [False, True]
            assert await rig.place("a") == ("scrape", "active")
            assert await rig.kinds("a") == ["added", "claimed"]
            assert await rig.store.read("result", item=first.item, stage="scrape") == []

    async def test_a_lease_of_another_stage_cannot_finish_an_item(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")

            assert await rig.finish(lease._replace(stage="summarize")) == [False]
            assert await rig.finish(lease) == [True]

    async def test_finishing_again_after_a_lost_reply_is_the_same_answer(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c"])
            first, second, third = (await rig.claim("scrape")).leases
            assert await rig.finish([first, second]) == [True, True]
            await rig.finish(await rig.lease("summarize"))

            assert await rig.finish([third, first, second]) == [True, True, True]

            assert await rig.kinds("b") == ["added", "claimed", "stage_finished"]
            assert len(await rig.store.read("results", item=second.item)) == 1

    async def test_only_the_holder_is_told_that_it_was_kept(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            await rig.finish(lease)

            assert await rig.finish(lease, worker="v") == [False]

    async def test_a_finish_that_comes_twice_in_one_exchange_is_made_once(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")

            assert await rig.finish([lease, lease]) == [True, True]

            assert await rig.kinds("a") == ["added", "claimed", "stage_finished"]
            assert len(await rig.store.read("results", item=lease.item)) == 1

    async def test_children_of_a_finish_asked_again_are_added_once(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            done = Done({}, children=["b", "c"])

            assert await rig.finish(lease, done) == [True]
            assert await rig.finish(lease, done) == [True]

            assert (await rig.run())["accepted"] == 3

    async def test_a_stage_that_is_held_keeps_the_item_waiting(self, make_store: MakeStore) -> None:
        held = pipeline("scrape", Stage("summarize", handler, held=True))
        async with Rig(make_store, held) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"))

            assert await rig.place("a") == ("summarize", "waiting")
            swept = await rig.store.sweep()
            assert (swept.promoted, swept.due_in_ms) == (0, None)
            assert not (await rig.claim("summarize")).leases

    async def test_a_first_stage_can_be_held(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(Stage("scrape", handler, held=True))) as rig:
            await rig.add(["a"])

            assert await rig.place("a") == ("scrape", "waiting")

    # --- retry, fail, release ---

    async def test_a_transient_failure_waits_and_is_ready_when_it_is_due(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, SHORT) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            finish = rig.finishing(lease, Failed("the site answered 503", "http_503"))
            delay_ms = finish.change.delay_ms
            assert delay_ms is not None

            await rig.exchange([finish], [])

            row = await rig.item("a")
            assert (row["phase"], row["attempt"], row["due_at"]) == (
                "waiting", 1, rig.clock() + delay_ms,
            )  # fmt: skip
            assert (row["error"], row["error_code"]) == ("the site answered 503", "http_503")
            assert (await rig.store.sweep()).due_in_ms == delay_ms
            rig.clock.advance(ms=delay_ms - 1)
            assert (await rig.store.sweep()).promoted == 0
            rig.clock.advance(ms=1)
            swept = await rig.store.sweep()
            assert (swept.promoted, swept.due_in_ms, swept.moved) == (1, None, True)
            assert (await rig.lease("scrape")).attempt == 2
            retried = (await rig.history("a"))[2]
            assert retried["kind"] == "retried"
            assert json.loads(retried["data"])["code"] == "http_503"

    async def test_the_last_attempt_fails_the_item(self, make_store: MakeStore) -> None:
        async with Rig(make_store, SHORT) as rig:
            await rig.add(["a"])
            for _ in range(3):
                await rig.finish(await rig.lease("scrape"), Failed("no luck", "no_luck"))
                rig.clock.advance(seconds=1000)
                await rig.beat("w")
                await rig.store.sweep()

            row = await rig.item("a")
            assert (row["phase"], row["attempt"], row["error_code"]) == ("failed", 3, "no_luck")
            [group] = await rig.store.read("failures")
            assert (group["error_code"], group["items"], group["sample"]) == (
                "no_luck",
                1,
                "no luck",
            )

    async def test_a_permanent_failure_fails_at_once(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Failed("gone", "gone", permanent=True))

            assert await rig.place("a") == ("scrape", "failed")
            assert await rig.kinds("a") == ["added", "claimed", "failed"]

    async def test_a_stage_finished_at_last_forgets_its_error(self, make_store: MakeStore) -> None:
        async with Rig(make_store, SHORT) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Failed("busy", "busy"))
            rig.clock.advance(seconds=20)
            await rig.store.sweep()
            await rig.finish(await rig.lease("scrape"))

            row = await rig.item("a")
            assert (row["error"], row["error_code"], row["attempt"]) == (None, None, 0)

    async def test_a_release_costs_no_attempt(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            for _ in range(5):
                lease = await rig.lease("scrape")
                assert lease.attempt == 1
                assert await rig.finish(lease, Released("the worker stopped")) == [True]

            row = await rig.item("a")
            assert (row["phase"], row["attempt"], row["fence"]) == ("ready", 0, 5)
            assert (await rig.history("a"))[-1]["kind"] == "released"

    async def test_what_is_due_is_woken_in_bounded_numbers(self, make_store: MakeStore) -> None:
        async with Rig(make_store, SHORT) as rig:
            count = SWEEP_MAX + 20
            await rig.add([f"{number:04}" for number in range(count)])
            leases = (await rig.claim("scrape", count)).leases
            await rig.finish(leases, Failed("busy", "busy"))
            rig.clock.advance(seconds=20)

            first = await rig.store.sweep()
            second = await rig.store.sweep()

            assert (first.promoted, first.due_in_ms) == (SWEEP_MAX, 0)
            assert (second.promoted, second.due_in_ms) == (20, None)

    # --- renew and partials ---

    async def test_a_renewed_lease_keeps_its_text(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")

            assert await rig.store.renew(lease, "Once")
            assert await rig.store.renew(lease, "Once upon")
            assert await rig.store.renew(lease)

            [partial] = await rig.store.read("partial", item=lease.item)
            assert (partial["fence"], partial["text"]) == (lease.fence, "Once upon")
            await rig.finish(lease)
            assert await rig.store.read("partial", item=lease.item) == []
            assert not await rig.store.renew(lease, "too late")
            assert await rig.store.read("partial", item=lease.item) == []

    async def test_a_lost_lease_cannot_write_a_partial(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lost = await rig.lease("scrape")
            await rig.store.renew(lost, "the first epoch")
            await rig.act("release", "a")
            assert await rig.store.read("partial", item=lost.item) == []

            await rig.beat("v")
            held = await rig.lease("scrape", worker="v")
            assert await rig.store.renew(held, "the second epoch")
            assert not await rig.store.renew(lost, "the first epoch goes on")

            [partial] = await rig.store.read("partial", item=held.item)
            assert (partial["fence"], partial["text"]) == (held.fence, "the second epoch")
            assert held.fence > lost.fence

    # --- parts ---

    async def test_a_part_is_found_by_the_next_attempt_until_the_stage_has_a_result(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"], "r1", max_tokens=100)
            first = await rig.lease("scrape")
            where = {"item": first.item, "stage": "scrape"}
            assert await rig.store.renew(first, part=Part("one", b"1", Usage(10, 0.5)))
            assert await rig.store.renew(first, part=Part("two", b"2"))
            await rig.finish(first, Failed("away", "timeout", permanent=True))
            [row] = await rig.store.read("left", run="r1")
            assert (row["tokens"], row["cost"]) == (90, None)

            await rig.act("retry", "a", stage="scrape")
            second = await rig.lease("scrape")
            found = await rig.store.read("parts", **where)
            assert {row["name"]: bytes(row["body"]) for row in found} == {"one": b"1", "two": b"2"}
            assert await rig.store.renew(second, part=Part("one", b"anew", Usage(1, 0.0)))
            await rig.finish(second, Done({}))
            assert await rig.store.read("parts", **where) == []

            third = await rig.lease("summarize")
            assert not await rig.store.renew(second, part=Part("three", b"3", Usage(50, 0.0)))
            assert await rig.store.renew(third)
            [row] = await rig.store.read("left", run="r1")
            assert row["tokens"] == 89

    async def test_a_part_that_is_kept_again_after_a_lost_reply_is_counted_once(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"], "r1", max_tokens=15)
            lease = await rig.lease("scrape")
            for body in (b"1", b"2"):
                assert await rig.store.renew(lease, part=Part("one", body, Usage(10, 0.5)))
            assert (await rig.run("r1"))["tokens"] == 10
            [row] = await rig.store.read("parts", item=lease.item, stage="scrape")
            assert bytes(row["body"]) == b"1"
            assert (await rig.run("r1"))["halted"] is None
            assert await rig.store.renew(lease, part=Part("two", b"2", Usage(5, 0.0)))
            assert "token" in (await rig.run("r1"))["halted"]

    async def test_parts_of_what_was_given_up_long_ago_are_forgotten(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            assert await rig.store.renew(lease, part=Part("one", b"1"))
            await rig.finish(lease, Failed("gone", "http_404", permanent=True))
            await rig.store.prune(0)
            assert len(await rig.store.read("parts", item=lease.item, stage="scrape")) == 1
            rig.clock.advance(10)
            [now] = await rig.store.read("now")
            await rig.store.prune(now["now"])
            assert await rig.store.read("parts", item=lease.item, stage="scrape") == []

    async def test_a_renewed_lease_outlives_its_deadline(self, make_store: MakeStore) -> None:
        async with Rig(make_store, SHORT) as rig:
            await rig.add(["a", "b"])
            first, _ = (await rig.claim("scrape")).leases
            rig.clock.advance(seconds=359)
            await rig.beat("w")
            await rig.store.renew(first)
            rig.clock.advance(seconds=2)

            assert (await rig.store.sweep()).reclaimed == 1
            assert await rig.place("a") == ("scrape", "active")
            assert await rig.place("b") == ("scrape", "ready")

    # --- reclaim ---

    async def test_a_silent_workers_leases_are_reclaimed(self, make_store: MakeStore) -> None:
        async with Rig(make_store, SHORT) as rig:
            await rig.add(["a", "b"])
            await rig.beat("v")
            dead = await rig.lease("scrape")
            alive = await rig.lease("scrape", worker="v")
            await rig.store.renew(dead, "half a page")
            rig.clock.advance(seconds=60)
            await rig.beat("v")
            assert (await rig.store.sweep()).reclaimed == 0
            rig.clock.advance(ms=1)

            assert (await rig.store.sweep()).reclaimed == 1

            row = await rig.item("a")
            assert (row["phase"], row["attempt"], row["fence"]) == ("ready", 1, 2)
            assert (await rig.item("b"))["phase"] == "active"
            assert await rig.kinds("a") == ["added", "claimed", "reclaimed"]
            assert await rig.store.read("partial", item=dead.item) == []
            assert await rig.finish(dead) == [False]
            assert await rig.finish(alive, worker="v") == [True]
            assert (await rig.lease("scrape", worker="v")).attempt == 2

    async def test_a_worker_that_left_gives_its_leases_back_at_once(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.lease("scrape")

            await rig.store.leave("w")

            assert (await rig.store.sweep()).reclaimed == 1
            assert await rig.store.read("workers") == []

    async def test_a_lease_past_its_deadline_is_reclaimed_though_its_worker_lives(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, PATIENT) as rig:
            await rig.add(["a"])
            await rig.lease("scrape")
            rig.clock.advance(seconds=1060)
            await rig.beat("w")
            assert (await rig.store.sweep()).reclaimed == 0

            rig.clock.advance(ms=1)
            assert (await rig.store.sweep()).reclaimed == 1

    async def test_an_item_that_kills_its_workers_fails_as_poison(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            for _ in range(3):
                await rig.beat("w")
                await rig.lease("scrape")
                await rig.store.leave("w")
                assert (await rig.store.sweep()).reclaimed == 1
                rig.clock.advance(seconds=APART_MS / 1000)
                await rig.store.sweep()

            row = await rig.item("a")
            assert (row["phase"], row["attempt"], row["error_code"]) == ("failed", 3, "poison")
            assert "3 attempts" in row["error"]
            last = (await rig.history("a"))[-1]
            assert last["kind"] == "failed"
            assert json.loads(last["data"])["code"] == "poison"

    async def test_reclaiming_again_changes_nothing(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.lease("scrape")
            await rig.store.leave("w")
            await rig.store.sweep()

            swept = await rig.store.sweep()

            assert not swept.moved
            assert (await rig.item("a"))["fence"] == 2

    async def test_what_is_reclaimed_is_bounded(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add([f"{number:04}" for number in range(SWEEP_MAX + 5)])
            await rig.claim("scrape", SWEEP_MAX + 5)
            await rig.store.leave("w")

            assert (await rig.store.sweep()).reclaimed == SWEEP_MAX
            assert (await rig.store.sweep()).reclaimed == 5

    async def test_a_worker_long_silent_is_forgotten_when_it_holds_nothing(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.beat("v")
            rig.clock.advance(ms=WORKER_FORGOTTEN_MS)
            await rig.beat("w")
            await rig.store.sweep()
            assert [row["id"] for row in await rig.store.read("workers")] == ["v", "w"]

            rig.clock.advance(ms=1)
            await rig.store.sweep()
            assert [row["id"] for row in await rig.store.read("workers")] == ["w"]

    async def test_a_beat_keeps_the_last_report(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            worker = Worker("v", "host.test", 8)
            await rig.store.beat(worker, '{"queued": 3}')
            rig.clock.advance(seconds=5)
            await rig.store.beat(worker)

            row = next(row for row in await rig.store.read("workers") if row["id"] == "v")
            assert (row["host"], row["pid"], row["report"]) == ("host.test", 8, '{"queued": 3}')
            assert (row["started_at"], row["beat_at"]) == (rig.clock() - 5000, rig.clock())
            assert row["leases"] == 0

    async def test_a_beat_says_whether_nobody_knew_the_worker(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            worker = Worker("v", "host.test", 8)
            told = []
            for forgotten in (False, False, True, False):
                if forgotten:
                    await rig.store.leave("v")
                told.append(await rig.store.beat(worker))
                rig.clock.advance(seconds=1)
            assert told == [True, False, True, False]

    async def test_nothing_asked_is_nothing_done(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            reply = await rig.exchange([], [])

            assert (list(reply.kept), list(reply.claimed)) == ([], [])
            assert await rig.events() == []

    async def test_a_finish_without_events_is_still_fenced(self, make_store: MakeStore) -> None:
        """A transition that tells nothing is legal, if odd: it moves the item and nothing else."""
        async with Rig(make_store, audit=False) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            silent = rig.finishing(lease).change._replace(events=())

            reply = await rig.exchange([Finish(lease, silent)], [])

            assert list(reply.kept) == [Kept.KEPT]
            assert (await rig.item("a"))["version"] == 2

    async def test_two_pipelines_share_a_store(self, make_store: MakeStore) -> None:
        other = pipeline("scrape", name="other")
        async with Rig(make_store, NEWS, other) as rig:
            await rig.add(["a"])
            await rig.add(["a"], "run-2", of=other)

            await rig.work_off("scrape", of=other)

            assert await rig.place("a") == ("scrape", "ready")
            assert await rig.place("a", other) == ("scrape", "done")
