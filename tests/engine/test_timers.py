"""The engine's clockwork, with its default settings, in virtual time: every interval of the design
and what a wake-up makes sooner."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onceflow import Lane, Pipeline, Settings, Stage, StoreUnavailable, Transient, Work
from onceflow.engine.flow import Flow
from onceflow.store.base import APART_MS
from tests.engine.kit import (
    DEAD,
    VirtualLoop,
    audited,
    claim_as,
    kinds,
    now,
    only,
    rounded,
    virtual_flow,
    virtually,
)


class Starts:
    """A handler that notes when each attempt began, then takes its time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.began = now()
        self.at: list[float] = []

    async def __call__(self, work: Work) -> str:
        self.at.append(round(now() - self.began, 3))
        await asyncio.sleep(self.seconds)
        return work.key


def solo(handler: Any, **rules: Any) -> Pipeline:
    return Pipeline("solo", Stage("work", handler, **rules))


def checks(flow: Flow) -> int:
    health = flow.health()
    assert health is not None
    return health.tally["checks"]


# --- the scheduler ---


def test_the_safety_scan_finds_every_60_seconds_what_nobody_told_of(tmp_path: Path) -> None:
    """F11: all notifications are lost, the results are the same."""

    async def main() -> None:
        starts = Starts()
        mine, theirs = (
            virtual_flow(tmp_path / "a.db", solo(starts)),
            virtual_flow(tmp_path / "a.db", solo(starts)),
        )
        async with mine, theirs:
            mine.start()
            for key, wait in (("a", 10), ("b", 60), ("c", 60)):
                await asyncio.sleep(wait)
                await theirs.add("solo", [key])
            await asyncio.sleep(60)
            assert starts.at == [60, 120, 180]
            assert await mine.counts() == {"completed": 3}
            await audited(mine)

    virtually(main)


def test_a_submit_wakes_the_scheduler_at_once() -> None:
    async def main() -> None:
        starts = Starts()
        async with virtual_flow(":memory:", solo(starts)) as flow:
            flow.start()
            await asyncio.sleep(10)
            await flow.add("solo", ["a"])
            await asyncio.sleep(1)
            assert starts.at == [10]

    virtually(main)


def test_a_completion_wakes_the_next_stage_at_once() -> None:
    async def main() -> None:
        first, second = Starts(7), Starts(0)
        pipeline = Pipeline("two", Stage("a", first), Stage("b", second))
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add(pipeline, ["x"])
            await flow.drain()
            assert (first.at, second.at) == ([0], [7])

    virtually(main)


def test_no_more_is_claimed_than_begins_at_once() -> None:
    """An item that is `active` is worked on: what a kill costs is what had begun."""

    async def main() -> None:
        hold = Starts(100)
        async with virtual_flow(":memory:", solo(hold)) as flow:
            await flow.add("solo", [f"k{at}" for at in range(50)])
            flow.start()
            await asyncio.sleep(1)
            health = flow.health()
            assert health is not None
            assert health.tally["claimed"] == 10
            assert health.queues == {"solo/work": 0}
            assert len(hold.at) == 10
            assert await flow.counts() == {"work-active": 10, "work-ready": 40}
            await flow.stop(0)
            assert await flow.counts() == {"work-ready": 50}
            await audited(flow)

    virtually(main)


def test_a_stage_that_prefetches_queues_so_many_beyond_its_processors() -> None:
    async def main() -> None:
        hold = Starts(100)
        async with virtual_flow(":memory:", solo(hold, prefetch=10)) as flow:
            await flow.add("solo", [f"k{at}" for at in range(50)])
            flow.start()
            await asyncio.sleep(1)
            health = flow.health()
            assert health is not None
            assert health.tally["claimed"] == 20
            assert health.queues == {"solo/work": 10}
            assert len(hold.at) == 10
            await flow.stop(0)
            assert await flow.counts() == {"work-ready": 50}
            await audited(flow)

    virtually(main)


def test_a_lane_that_was_shut_is_claimed_when_its_spacing_is_over() -> None:
    async def main() -> None:
        starts = Starts()
        lane = Lane(lambda key: key.split("/")[0], limit=2, spacing_seconds=2.5)
        async with virtual_flow(":memory:", solo(starts, lane=lane)) as flow:
            await flow.add("solo", [f"a.test/{at}" for at in range(4)])
            await flow.drain()
            assert starts.at == [0, 2.5, 5, 7.5]
            await audited(flow)

    virtually(main)


# --- the coordinator ---


def test_a_throttled_stage_gets_three_per_cycle_and_cycles_are_100_ms_apart() -> None:
    async def main() -> None:
        starts = Starts(0.01)
        async with virtual_flow(":memory:", solo(starts, assign_max=3)) as flow:
            await flow.add("solo", [f"k{at}" for at in range(10)])
            await flow.drain()
            assert starts.at == [0] * 3 + [0.1] * 3 + [0.2] * 3 + [0.3]

    virtually(main)


def test_earlier_stages_go_first_when_all_are_waiting() -> None:
    async def main() -> None:
        order: list[str] = []

        async def note(work: Work) -> None:
            order.append(work.stage)
            await asyncio.sleep(1)

        stages = [Stage(name, note, processors=1) for name in ("a", "b", "c")]
        pipeline = Pipeline("three", *stages)
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add(pipeline, ["x", "y", "z"])
            await flow.drain()

        assert order == ["a", "a", "b", "a", "b", "c", "b", "c", "c"]

    virtually(main)


# --- health ---


def test_health_is_checked_every_30_seconds() -> None:
    async def main() -> None:
        async with virtual_flow(":memory:", solo(Starts())) as flow:
            flow.start()
            seen = []
            for wait in (29, 2, 28, 2, 30):
                await asyncio.sleep(wait)
                seen.append(checks(flow))
            assert seen == [0, 1, 1, 2, 3]

    virtually(main)


def test_a_processor_busy_past_300_s_is_in_error_its_item_tried_again_and_it_replaced() -> None:
    async def main() -> None:
        attempts: list[float] = []

        async def hang_once(work: Work) -> str:
            attempts.append(now())
            if work.attempt == 1:
                await asyncio.sleep(10_000)
            return "done"

        pipeline = solo(hang_once, processors=1)
        async with virtual_flow(":memory:", pipeline) as flow:
            flow.start()
            await asyncio.sleep(7)
            began = now()
            await flow.add("solo", ["slow"])
            await asyncio.sleep(299)
            assert [one["state"] for one in report(flow)] == ["busy"]
            await asyncio.sleep(2)
            [processor] = report(flow)
            assert processor["name"] == "work-processor-1"
            assert processor["state"] == "error"
            assert "longer than its 300 s" in processor["error"]
            item = await only(flow, pipeline)
            assert (item.phase, item.error_code, item.attempt) == ("waiting", "deadline", 1)
            health = flow.health()
            assert health is not None
            assert not health.healthy
            assert health.problems == ["solo/work: 1 processors in error"]
            await asyncio.sleep(30)
            assert report(flow) == []
            health = flow.health()
            assert health is not None
            assert (health.healthy, health.tally["replaced"]) == (True, 1)
            await asyncio.sleep(10)
            assert (await only(flow, pipeline)).state == "completed"
            assert 300 < attempts[1] - began <= 340
            await audited(flow)

    virtually(main)


def test_what_was_queued_behind_a_processor_in_error_begins_as_soon_as_it_is_replaced() -> None:
    async def main() -> None:
        began = now()
        starts: dict[str, float] = {}

        async def hang(work: Work) -> str:
            starts[work.key] = round(now() - began)
            if work.key == "slow":
                await asyncio.sleep(10_000)
            return "done"

        pipeline = solo(hang, processors=1, attempts=1, deadline_seconds=100)
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add("solo", ["slow", "next"])
            await flow.drain()
            assert starts == {"slow": 0, "next": 120}, "the check after 100 s is at 120 s"

    virtually(main)


def test_an_attempt_whose_lease_was_taken_away_is_ended_at_the_next_check_if_nobody_told(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        ended: list[float] = []

        async def hang(work: Work) -> None:
            try:
                await asyncio.sleep(250)
            finally:
                ended.append(round(now()))

        pipeline = solo(hang)
        mine = virtual_flow(tmp_path / "a.db", pipeline)
        operator = virtual_flow(tmp_path / "a.db", pipeline)
        async with mine, operator:
            began = round(now())
            await mine.add("solo", ["a"])
            mine.start()
            await asyncio.sleep(5)
            assert await operator.cancel("solo", keys=["a"]) == 1
            await asyncio.sleep(30)
            health = mine.health()
            assert health is not None
            assert ended == [began + 30]
            assert health.tally["lost"] == 1
            assert report(mine) == []
            assert await mine.counts() == {"cancelled": 1}
            await audited(mine)

    virtually(main)


def test_a_queued_lease_that_was_taken_away_is_dropped_before_it_begins(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[str] = []

        async def note(work: Work) -> None:
            seen.append(work.key)
            await asyncio.sleep(100)

        pipeline = solo(note, processors=1, prefetch=2)
        mine = virtual_flow(tmp_path / "a.db", pipeline)
        operator = virtual_flow(tmp_path / "a.db", pipeline)
        async with mine, operator:
            await mine.add("solo", ["a", "b", "c"])
            mine.start()
            await asyncio.sleep(5)
            assert await operator.cancel("solo", keys=["b"]) == 1
            await asyncio.sleep(295)
            assert seen == ["a", "c"]
            await mine.stop()
            await audited(mine)

    virtually(main)


def test_a_lease_that_waits_long_in_the_local_queue_is_not_mistaken_for_a_hung_one() -> None:
    """With one processor and handlers of four minutes, the tenth item waits for 36 minutes."""

    async def main() -> None:
        slow = Starts(240)
        pipeline = solo(slow, processors=1, prefetch=10)
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add("solo", [f"k{at}" for at in range(10)])
            await flow.drain()
            assert slow.at == [240 * at for at in range(10)]
            assert "reclaimed" not in await kinds(flow)
            assert {item.attempt for item in await flow.items()} == {1}
            await audited(flow)

    virtually(main)


# --- cleanup ---


def test_a_lease_without_a_heartbeat_for_300_seconds_is_reclaimed_and_one_more_try_counted(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        starts = Starts()
        pipeline = solo(starts)
        async with virtual_flow(tmp_path / "a.db", pipeline) as flow:
            await flow.add("solo", ["a"])
            await claim_as(flow.store, pipeline)
            flow.start()
            await asyncio.sleep(299)
            assert starts.at == []
            await asyncio.sleep(601 - 299)
            assert len(starts.at) == 1, "claimable within lease + sweep + 1 s"
            item = await only(flow, pipeline)
            assert (item.state, item.attempt, item.fence) == ("completed", 2, 3)
            assert await kinds(flow, item.id) == [
                "added", "claimed", "reclaimed", "claimed", "stage_finished",
            ]  # fmt: skip
            await audited(flow)

    virtually(main)


def test_an_item_that_kills_its_worker_each_time_is_failed_as_poison(tmp_path: Path) -> None:
    async def main() -> None:
        pipeline = solo(Starts())
        async with virtual_flow(tmp_path / "a.db", pipeline) as flow:
            await flow.add("solo", ["a"])
            for _ in range(3):
                assert len(await claim_as(flow.store, pipeline)) == 1
                await flow.store.leave(DEAD.id)
                await flow.store.sweep()
                await asyncio.sleep(APART_MS / 1000)
                await flow.store.sweep()
            item = await only(flow, pipeline)
            assert (item.phase, item.error_code, item.attempt) == ("failed", "poison", 3)
            assert "worker died or hung in each of 3 attempts" in (item.error or "")
            await audited(flow)

    virtually(main)


# --- the heartbeat and self-fencing ---


def failing_beats(flow: Flow, beats: list[float], broken: list[bool]) -> None:
    """Note the heartbeats of a flow's store, and refuse them while `broken` is not empty."""
    real = flow.store.beat

    async def beat(*args: Any) -> None:
        if broken:
            raise StoreUnavailable("the heartbeat's way is cut")
        beats.append(now())
        await real(*args)

    flow.store.beat = beat  # type: ignore[method-assign,assignment]  # cuts one way of the store


def test_a_heartbeat_goes_out_every_30_seconds() -> None:
    async def main() -> None:
        async with virtual_flow(":memory:", solo(Starts())) as flow:
            beats: list[float] = []
            failing_beats(flow, beats, [])
            began = now()
            flow.start()
            await asyncio.sleep(100)
            assert rounded(at - began for at in beats) == [0, 30, 60, 90]

    virtually(main)


def test_F07_a_worker_without_a_heartbeat_stops_its_own_work_at_two_thirds_of_its_lease() -> None:
    async def main() -> None:
        ended: list[float] = []

        async def long(work: Work) -> str:
            try:
                await asyncio.sleep(280)
            except asyncio.CancelledError:
                ended.append(now())
                raise
            return "done"

        pipeline = solo(long)
        async with virtual_flow(":memory:", pipeline) as flow:
            beats: list[float] = []
            broken: list[bool] = []
            failing_beats(flow, beats, broken)
            await flow.add("solo", ["a"])
            flow.start()
            await asyncio.sleep(10)
            broken.append(True)
            await asyncio.sleep(250)
            last_beat = beats[-1]
            assert [200 <= at - last_beat < 201 for at in ended] == [True], "before the lease ends"
            item = await only(flow, pipeline)
            assert (item.phase, item.attempt) == ("ready", 0), "released, it costs no attempt"
            health = flow.health()
            assert health is not None
            assert health.tally["fenced"] == 1, "it does not claim what it would lose again"
            assert await kinds(flow, item.id) == ["added", "claimed", "released"]
            broken.clear()
            await asyncio.sleep(400)
            assert (await only(flow, pipeline)).state == "completed"
            await audited(flow)

    virtually(main)


def test_F07_what_was_queued_goes_back_too_and_nothing_is_begun_by_name_or_by_adding() -> None:
    async def main() -> None:
        hold = Starts(250)
        pipeline = solo(hold, processors=1)
        async with virtual_flow(":memory:", pipeline) as flow:
            broken: list[bool] = []
            failing_beats(flow, [], broken)
            await flow.add("solo", ["a", "b", "c"])
            flow.start()
            await asyncio.sleep(1)
            broken.append(True)
            await asyncio.sleep(220)
            assert await flow.counts() == {"work-ready": 3}
            await flow.add("solo", ["d"])
            answer = await flow.trigger("solo", "a", "work", wait_seconds=5)
            assert answer.how == "joined"
            assert await flow.counts() == {"work-ready": 4}
            assert len(hold.at) == 1

    virtually(main)


# --- waiting ---


def test_an_idle_process_does_not_spin() -> None:
    async def main() -> None:
        async with virtual_flow(":memory:", solo(Starts())) as flow:
            flow.start()
            await asyncio.sleep(5)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            before = len(loop.jumps)
            await asyncio.sleep(600)
            # 10 scans, 20 health checks, 20 heartbeats, 2 cleanups, and this sleep itself.
            assert len(loop.jumps) - before <= 10 + 20 + 20 + 2 + 1

    virtually(main)


def test_while_something_is_in_flight_the_wait_ends_after_half_a_second_at_most() -> None:
    async def main() -> None:
        async with virtual_flow(":memory:", solo(Starts(100))) as flow:
            await flow.add("solo", ["a"])
            flow.start()
            await asyncio.sleep(5)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            before = len(loop.jumps)
            await asyncio.sleep(10)
            assert max(loop.jumps[before:]) <= 0.5
            assert len(loop.jumps) - before <= 10 / 0.1, "not sooner than every 100 ms either"

    virtually(main)


def test_a_backoff_ends_when_it_is_due_not_at_the_next_scan() -> None:
    async def main() -> None:
        times: list[float] = []

        async def flaky(work: Work) -> str:
            times.append(now())
            if work.attempt < 3:
                raise Transient("not now", retry_after=20 if work.attempt == 2 else None)
            return "done"

        pipeline = solo(flaky)
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add("solo", ["a"])
            await flow.drain()
            events = [e async for e in flow.events(kinds=["retried"])]
            delays = [e.data["delay_ms"] / 1000 for e in events]
            assert 2.5 <= delays[0] <= 5
            assert 20 <= delays[1] <= 22, "Retry-After is a floor"
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert gaps == pytest.approx(delays, abs=0.6), "up to a poll later"
            assert (await only(flow, pipeline)).attempt == 3

    virtually(main)


def test_the_text_in_progress_is_written_every_250_ms_at_the_most() -> None:
    async def main() -> None:
        async def stream(work: Work) -> str:
            for at in range(100):
                work.emit("summary_partial", text=f"{at} ")
                await asyncio.sleep(0.02)
            return "done"

        async with virtual_flow(":memory:", solo(stream)) as flow:
            writes: list[float] = []
            real = flow.store.renew

            async def renew(lease: Any, text: str | None = None) -> bool:
                writes.append(now())
                return await real(lease, text)

            flow.store.renew = renew  # type: ignore[method-assign]  # notes the writes
            await flow.add("solo", ["a"])
            await flow.drain()
            gaps = [later - earlier for earlier, later in itertools.pairwise(writes)]
            assert 7 <= len(writes) <= 9, "two seconds of text"
            assert min(gaps) >= 0.249

    virtually(main)


# --- stopping ---


def test_a_stop_lets_attempts_end_within_30_seconds_and_claims_nothing_meanwhile() -> None:
    async def main() -> None:
        slow = Starts(20)
        pipeline = solo(slow, processors=1)
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add("solo", ["a", "b"])
            flow.start()
            await asyncio.sleep(5)
            await flow.stop()
            assert round(now() - slow.began) == 20
            assert await flow.counts() == {"completed": 1, "work-ready": 1}
            assert [item.attempt for item in await flow.items(state="work-ready")] == [0]
            await audited(flow)

    virtually(main)


def test_what_outlasts_the_grace_of_30_seconds_is_released_uncounted() -> None:
    async def main() -> None:
        slow = Starts(200)
        pipeline = solo(slow)
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add("solo", ["a"])
            flow.start()
            await asyncio.sleep(5)
            await flow.stop()
            assert round(now() - slow.began) == 35
            item = await only(flow, pipeline)
            assert (item.phase, item.attempt) == ("ready", 0)
            assert await kinds(flow, item.id) == ["added", "claimed", "released"]
            assert await flow.store.read("workers") == [], "it signed off"
            await audited(flow)

    virtually(main)


def test_a_second_stop_ends_the_grace_at_once_and_a_longer_one_does_not_extend_it() -> None:
    async def main() -> None:
        slow = Starts(200)
        async with virtual_flow(":memory:", solo(slow)) as flow:
            await flow.add("solo", ["a"])
            working = flow.start()
            await asyncio.sleep(5)
            flow.stop_soon()
            await asyncio.sleep(2)
            flow.stop_soon(1000)
            flow.stop_soon(0)
            await working
            assert round(now() - slow.began) == 7
            assert await flow.counts() == {"work-ready": 1}

    virtually(main)


# --- a store in trouble ---


def test_a_store_that_cannot_be_reached_is_asked_again_with_growing_pauses_up_to_5_seconds() -> (
    None
):
    async def main() -> None:
        starts = Starts()
        pipeline = solo(starts)
        async with virtual_flow(":memory:", pipeline) as flow:
            asked: list[float] = []
            real = flow.store.exchange
            end = now() + 60

            async def exchange(*args: Any) -> Any:
                if now() < end:
                    asked.append(now())
                    raise StoreUnavailable("away")
                return await real(*args)

            flow.store.exchange = exchange  # type: ignore[method-assign,assignment]  # the way is cut
            await flow.add("solo", ["a"])
            await flow.drain()
            gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
            assert rounded(gaps)[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
            assert set(rounded(gaps[6:])) == {5.0}
            item = await only(flow, pipeline)
            assert (item.state, item.attempt) == ("completed", 1)

    virtually(main)


def test_a_stop_without_a_store_gives_up_after_its_last_words() -> None:
    """What could not be released will be reclaimed: a stop never hangs."""

    async def main() -> None:
        starts = Starts(100)
        pipeline = solo(starts)
        async with virtual_flow(":memory:", pipeline) as flow:
            await flow.add("solo", ["a"])
            flow.start()
            await asyncio.sleep(1)

            async def exchange(*_: Any) -> Any:
                raise StoreUnavailable("away")

            real, flow.store.exchange = flow.store.exchange, exchange  # type: ignore[method-assign,assignment]
            await flow.stop(5)
            assert 15 <= now() - starts.began <= 25
            flow.store.exchange = real  # type: ignore[method-assign]
            assert await flow.counts() == {"work-ready": 1}, "its worker has signed off"
            assert [item.attempt for item in await flow.items()] == [0], "and it costs nothing"
            await audited(flow)

    virtually(main)


def report(flow: Flow) -> list[dict[str, Any]]:
    """The processors that are not idle."""
    health = flow.health()
    assert health is not None
    return [one for one in health.processors if one["state"] != "idle"]


def test_a_sweep_that_takes_its_time_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        starts = Starts()
        pipeline = solo(starts)
        async with virtual_flow(":memory:", pipeline) as flow:
            real, sweeps = flow.store.sweep, []

            async def slow(*args: Any) -> Any:
                sweeps.append(now())
                await asyncio.sleep(40)
                return await real(*args)

            monkeypatch.setattr(flow.store, "sweep", slow)
            flow.start()
            await asyncio.sleep(1)
            await flow.add(pipeline, ["a"])
            await asyncio.sleep(1)
            assert (await only(flow, pipeline)).state == "completed"
            assert len(sweeps) == 1, "one at a time"
            await asyncio.sleep(100)
            [run] = await flow.runs()
            assert run.finished_at is not None

    virtually(main)


def test_one_sweep_that_had_to_wait_does_not_hold_up_the_gates_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        pipeline = solo(Starts())
        async with virtual_flow(":memory:", pipeline) as flow:
            flow.start()
            await asyncio.sleep(1)
            real = flow.store.sweep

            async def slow(*args: Any) -> Any:
                monkeypatch.setattr(flow.store, "sweep", real)
                await asyncio.sleep(2)  # another program has the lock
                return await real(*args)

            monkeypatch.setattr(flow.store, "sweep", slow)
            await flow.add(pipeline, ["a"])
            await asyncio.sleep(3)
            await flow.add(pipeline, ["b"])
            await asyncio.sleep(1)
            assert [run.finished_at is not None for run in await flow.runs()] == [True, True]

    virtually(main)


def test_a_run_with_work_under_way_here_is_seldom_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async def handler(work: Work) -> None:
            await asyncio.sleep(int(work.key) / 10)

        pipeline = solo(handler, processors=100)
        async with virtual_flow(":memory:", pipeline) as flow:
            real, asked = flow.store.sweep, []

            async def noted(runs: Sequence[str] = ()) -> Any:
                asked.append((now(), list(runs)))
                return await real(runs)

            monkeypatch.setattr(flow.store, "sweep", noted)
            began = now()
            added = await flow.add(pipeline, [str(at) for at in range(1, 101)])
            await flow.drain()
            about = [at - began for at, runs in asked if added.run in runs]
            assert len([at for at in about if at < 9.9]) <= 20, "ten seconds, ten items in each"
            assert about[-1] < 10.2
            [run] = await flow.runs()
            assert run.finished_at is not None

    virtually(main)


def test_settings_in_force_are_those_that_were_given() -> None:
    async def main() -> None:
        settings = Settings(health_seconds=2, scan_seconds=3)
        async with virtual_flow(":memory:", solo(Starts()), settings=settings) as flow:
            flow.start()
            await asyncio.sleep(9)
            assert checks(flow) == 4

    virtually(main)


# --- texts in progress ---


@pytest.mark.parametrize(
    ("seconds", "stored"), [(0.2, []), (0.3, [0.25]), (0.7, [0.25, 0.5])], ids=str
)
def test_a_text_is_stored_only_when_it_goes_on_for_a_while(
    monkeypatch: pytest.MonkeyPatch, seconds: float, stored: list[float]
) -> None:
    async def main() -> list[float]:
        async def handler(work: Work) -> str:
            end = now() + seconds - 0.001
            while now() < end:
                work.emit("summary_partial", text="word ")
                await asyncio.sleep(0.01)
            return "x"

        at: list[float] = []
        pipeline = Pipeline("solo", Stage("work", handler), events=("summary_partial",))
        async with virtual_flow(":memory:", pipeline) as flow:
            began, renew = now(), flow.store.renew

            async def noted(lease: Any, text: str | None = None) -> bool:
                at.append(round(now() - began, 2))
                return await renew(lease, text)

            monkeypatch.setattr(flow.store, "renew", noted)
            await flow.add(pipeline, ["a"])
            await flow.drain()
            return at

    assert virtually(main) == stored
