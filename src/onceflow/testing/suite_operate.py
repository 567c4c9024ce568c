"""What every store does for operators and readers: commands, history, pages, forgetting, waking."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from onceflow.core.errors import StoreUnavailable
from onceflow.core.item import Seed
from onceflow.core.pipeline import Stage
from onceflow.core.transition import Done, Failed
from onceflow.store.base import Target, Worker
from onceflow.testing.rig import DIGEST, NEWS, MakeStore, Rig, handler, pipeline, refused

HELD = pipeline("scrape", Stage("summarize", handler, held=True))
GONE = Failed("gone", "gone", permanent=True)
WAKE_SECONDS_MAX = 30


class OperateSuite:
    # --- commands ---

    async def test_a_retry_opens_a_new_generation(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), GONE)

            assert await rig.act("retry", "a", why="the page is back") == [1]

            row = await rig.item("a")
            assert (row["phase"], row["generation"], row["attempt"]) == ("ready", 2, 0)
            assert (row["error"], row["error_code"], row["fence"]) == (None, None, 2)
            last = (await rig.history("a"))[-1]
            assert last["kind"] == "reopened"
            assert json.loads(last["data"]) == {"why": "the page is back"}
            assert (await rig.lease("scrape")).attempt == 1

    async def test_a_retry_from_an_earlier_stage_keeps_the_older_results(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.work_off("scrape", "summarize")

            await rig.act("retry", "a", stage="scrape")
            assert await rig.place("a") == ("scrape", "ready")
            await rig.work_off("scrape", "summarize")

            results = await rig.store.read("results", item=1)
            places = sorted((row["stage"], row["generation"]) for row in results)
            assert places == [("scrape", 1), ("scrape", 2), ("summarize", 1), ("summarize", 2)]

    async def test_a_retry_puts_the_item_into_the_lane_it_is_told(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), GONE)
            row = await rig.item("a")

            await rig.store.act("retry", [Target(row["id"], row["version"], "host")])

            assert (await rig.item("a"))["lane"] == "host"

    async def test_a_retry_of_what_backs_off_makes_it_ready_now(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Failed("busy", "busy"))
            assert await rig.act("retry", "a", stage="summarize") == []

            assert await rig.act("retry", "a") == [1]

            row = await rig.item("a")
            assert (row["phase"], row["generation"], row["due_at"]) == ("ready", 1, None)

    async def test_what_is_under_way_cannot_be_retried(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            await rig.lease("scrape")

            assert await rig.act("retry", "a", "b") == []

    async def test_a_cancelled_item_takes_its_lease_along(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c"])
            lease = await rig.lease("scrape")
            await rig.store.renew(lease, "half")

            assert await rig.act("cancel", "a", "b", why="not wanted") == [1, 2]

            row = await rig.item("a")
            assert (row["phase"], row["worker"], row["error"]) == ("cancelled", None, "not wanted")
            assert await rig.finish(lease) == [False]
            assert await rig.act("cancel", "a") == []
            assert await rig.store.read("partial", item=lease.item) == []
            assert [each.key for each in (await rig.claim("scrape")).leases] == ["c"]
            assert await rig.kinds("b") == ["added", "cancelled"]

    async def test_a_cancelled_item_can_be_retried(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.act("cancel", "a")
            assert (await rig.item("a"))["error"] == "cancelled by an operator"

            await rig.act("retry", "a")

            assert await rig.place("a") == ("scrape", "ready")

    async def test_what_backs_off_can_be_cancelled(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Failed("busy", "busy"))

            assert await rig.act("cancel", "a") == [1]
            assert (await rig.item("a"))["due_at"] is None

    async def test_an_operators_release_costs_no_attempt(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")

            assert await rig.act("release", "a") == [lease.item]

            row = await rig.item("a")
            assert (row["phase"], row["attempt"], row["fence"]) == ("ready", 0, 2)
            assert await rig.finish(lease) == [False]
            assert await rig.act("release", "a") == []

    async def test_a_trigger_makes_a_held_stage_ready(self, make_store: MakeStore) -> None:
        async with Rig(make_store, HELD) as rig:
            await rig.add(["a", "b"])
            await rig.work_off("scrape")

            assert await rig.act("trigger", "a") == [1]
            assert await rig.act("trigger", "a") == []

            assert [lease.key for lease in (await rig.claim("summarize")).leases] == ["a"]
            assert (await rig.kinds("a"))[-2:] == ["triggered", "claimed"]

    async def test_what_backs_off_is_not_triggered(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Failed("busy", "busy"))

            assert await rig.act("trigger", "a") == []

    async def test_a_command_fits_only_what_the_operator_saw(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            seen = [Target(row["id"], row["version"]) for row in await rig.items()]
            await rig.lease("scrape")

            assert await rig.store.act("cancel", seen) == [2]
            assert await rig.place("a") == ("scrape", "active")

    async def test_an_empty_command_does_nothing(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            for command in ("retry", "cancel", "release", "trigger"):
                assert await rig.store.act(command, []) == []

    # --- history ---

    async def test_the_events_of_an_item_have_no_gap(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.finish(await rig.lease("scrape"), Done({}, events=["scrape_finished"] * 3))
            await rig.act("cancel", "a")
            await rig.act("retry", "a")

            history = await rig.history("a")

            assert [row["n"] for row in history] == list(range(1, len(history) + 1))
            assert (await rig.item("a"))["version"] == len(history)
            later = await rig.store.read("history", item=1, after=4, most=2)
            assert [row["n"] for row in later] == [5, 6]

    async def test_the_history_is_read_in_order_page_by_page(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            for number in range(10):
                await rig.add([f"k{number}"], f"r{number}")
            await rig.work_off("scrape")

            whole = await rig.store.read(
                "events", after=0, item=None, run=None, pipeline=None, kinds=None, most=1000
            )

            assert [row["seq"] for row in await rig.events()] == [row["seq"] for row in whole]
            assert len(whole) == 30
            assert [row["kind"] for row in whole[:10]] == ["added"] * 10
            [last] = await rig.store.read("last_event")
            assert last["seq"] == whole[-1]["seq"]

    async def test_the_history_can_be_narrowed(self, make_store: MakeStore) -> None:
        other = pipeline("scrape", name="other")
        async with Rig(make_store, NEWS, other) as rig:
            await rig.add(["a", "b"], "r1")
            await rig.add(["c"], "r2", of=other)
            await rig.finish(await rig.lease("scrape"))
            await rig.store.tune("other", "scrape", paused=True)

            async def kinds(**wanted: object) -> list[str]:
                return [row["kind"] for row in await rig.events(**wanted)]

            assert await kinds(item=1) == ["added", "claimed", "stage_finished"]
            assert await kinds(run="r2") == ["added"]
            assert await kinds(pipeline="other") == ["added", "paused"]
            assert await kinds(kinds=" claimed paused ") == ["claimed", "paused"]
            assert await kinds(pipeline="news", kinds=" added ") == ["added", "added"]
            assert await kinds(run="nowhere") == []

    async def test_an_event_says_where_the_item_was_and_went(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("a")])
            await rig.finish(await rig.lease("scrape"))

            added, claimed, finished = await rig.events()

            assert (added["pipeline"], added["key"], added["run"]) == ("news", "a", "run-1")
            assert (added["stage"], added["phase"], added["n"]) == ("scrape", "ready", 1)
            assert (claimed["worker"], claimed["fence"], claimed["phase"]) == ("w", 1, "active")
            assert (finished["next_stage"], finished["phase"]) == ("summarize", "ready")
            assert added["at"] == rig.clock()

    async def test_a_limited_claim_records_the_limit(self, make_store: MakeStore) -> None:
        async with Rig(make_store, pipeline(Stage("scrape", handler, limit=2))) as rig:
            await rig.add(["a"])
            await rig.lease("scrape")

            assert json.loads((await rig.history("a"))[-1]["data"]) == {"limit": 2}

    # --- listings ---

    async def test_items_are_listed_page_by_page_and_narrowed(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add([f"k{number:02}" for number in range(20)], "r1")
            await rig.add(["k00", "x"], "r2")
            leases = (await rig.claim("scrape", 4)).leases
            await rig.finish(leases[:2])
            await rig.finish(leases[2], GONE)

            async def keys(**wanted: Any) -> list[str]:
                return [row["key"] for row in await rig.items(**wanted)]

            assert len(await keys()) == 21
            assert await keys(stage="summarize") == ["k00", "k01"]
            assert await keys(phases=" active failed ") == ["k02", "x"]
            assert await keys(places=" scrape/failed summarize/ready ") == ["k00", "k01", "k02"]
            assert await keys(error_code="gone") == ["k02"]
            assert await keys(pipeline="nowhere") == []
            of_run = [row["key"] for row in await rig.items("items_of_run", run="r2")]
            assert of_run == ["k00", "x"]
            ready = await rig.items("items_of_run", run="r2", phases=" ready ")
            assert [row["key"] for row in ready] == ["k00"]

    async def test_runs_are_listed_the_newest_first(self, make_store: MakeStore) -> None:
        async with Rig(make_store, NEWS, DIGEST) as rig:
            for number in range(5):
                await rig.add(["a"], f"r{number}")
            await rig.add([], "r9", of=DIGEST)

            page = await rig.store.read("runs", pipeline=None, before=None, most=2)
            assert [row["id"] for row in page] == ["r9", "r4"]
            page = await rig.store.read("runs", pipeline="news", before="r4", most=2)
            assert [row["id"] for row in page] == ["r3", "r2"]

    async def test_counts_add_up(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add("abcdef", "r1")
            await rig.add("ab", "r2")
            leases = (await rig.claim("scrape", 3)).leases
            await rig.finish(leases[0])

            counts = await rig.store.read("counts", pipeline="news")
            places = {(row["stage"], row["phase"]): row["items"] for row in counts}
            assert places == {
                ("scrape", "active"): 2, ("scrape", "ready"): 3, ("summarize", "ready"): 1,
            }  # fmt: skip
            of_run = await rig.store.read("counts_of_run", run="r2")
            assert sum(row["items"] for row in of_run) == 2

    async def test_activity_says_what_is_left_to_do(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:

            async def activity() -> list[tuple[int, int, int]]:
                rows = await rig.store.read("activity")
                order = sorted(rows, key=lambda row: str(row["stage"]))
                return [(row["ready"], row["active"], row["backing_off"]) for row in order]

            assert await activity() == [(0, 0, 0), (0, 0, 0)]
            await rig.add(["a", "b", "c"])
            await rig.finish(await rig.lease("scrape"), Failed("busy", "busy"))
            await rig.lease("scrape")
            assert await activity() == [(1, 1, 1), (0, 0, 0)]
            await rig.store.tune("news", "scrape", paused=True)
            assert await activity() == [(0, 1, 0), (0, 0, 0)]

    async def test_what_a_run_finished_is_read_with_its_results(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            await rig.work_off("scrape", "summarize")

            page = await rig.store.read(
                "run_items", run="run-1", after=0, phase="done", result_stage="scrape", most=1
            )

            assert [(row["key"], row["body"]) for row in page] == [("a", b'{"of":"a"}')]

    async def test_pipelines_and_stages_are_known_to_readers_without_the_program(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            [row] = await rig.store.read("pipelines")
            assert json.loads(row["states"])["scrape"]["done"] == "completed"
            stages = await rig.store.read("stages")
            assert [(each["stage"], each["is_gate"]) for each in stages] == [
                ("scrape", 0), ("digest", 1),
            ]  # fmt: skip
            assert stages[0]["lease_ms"] == 300_000
            assert (await rig.store.read("now"))[0]["now"] == rig.clock()

    # --- forgetting ---

    async def test_pruning_forgets_the_history_of_what_was_settled_long_ago(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["old", "open"])
            lease = await rig.lease("scrape")
            await rig.finish(lease, GONE)
            rig.clock.advance(seconds=100)
            await rig.beat("w")
            await rig.add(["new"], "run-2")
            await rig.finish(await rig.lease("scrape"), GONE)

            assert await rig.store.prune(rig.clock()) == 2
            assert await rig.store.prune(rig.clock()) == 0

            assert await rig.kinds("old") == ["failed"]
            assert await rig.kinds("open") == ["added", "claimed", "failed"]
            assert await rig.kinds("new") == ["added"]

    async def test_pruning_forgets_results_that_a_later_generation_replaced(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("a", {"kept": True})])
            await rig.work_off("scrape", "summarize")
            await rig.act("retry", "a", stage="summarize")
            rig.clock.advance(seconds=100)
            await rig.beat("w")
            await rig.work_off("summarize")

            await rig.store.prune(rig.clock())

            results = await rig.store.read("results", item=1)
            places = [(row["stage"], row["generation"]) for row in results]
            assert places == [("", 1), ("scrape", 1), ("summarize", 2)]

    # --- the store itself ---

    async def test_another_stores_commit_wakes_a_watcher(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            other = await rig.another()
            woken = asyncio.Event()
            rig.store.watch(woken.set)
            rig.store.watch(woken.set)  # watching twice is watching once
            for number in range(100):
                await rig.add([f"k{number}"], f"r{number}", store=other)
                try:
                    await asyncio.wait_for(woken.wait(), WAKE_SECONDS_MAX / 100)
                except TimeoutError:
                    continue  # it did not listen yet
                break
            assert woken.is_set()

    async def test_a_heartbeat_comes_from_a_thread_of_its_own(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:

            async def beat() -> None:
                store = rig.store.for_thread()
                try:
                    await store.beat(Worker("thread", "host.test", 9), "fine")
                finally:
                    if store is not rig.store:
                        await store.close()

            thread = threading.Thread(target=lambda: asyncio.run(beat()))
            thread.start()
            await asyncio.to_thread(thread.join)

            workers = [row["id"] for row in await rig.store.read("workers")]
            assert workers == ["thread", "w"]

    async def test_what_was_stored_is_there_when_it_is_opened_again(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            await rig.lease("scrape")
            await rig.store.close()
            await rig.store.open([rig.pipeline])

            assert await rig.place("a") == ("scrape", "active")

    async def test_a_closed_store_says_so(self, make_store: MakeStore) -> None:
        async with Rig(make_store, audit=False) as rig:
            await rig.store.close()
            await rig.store.close()

            with refused(StoreUnavailable, "closed"):
                await rig.store.sweep()
            with refused(StoreUnavailable, "closed"):
                await rig.store.read("workers")
