"""A little of every fault, in the ordinary run: real processes, but few of them and for seconds.

Nothing here depends on how long something takes; `make chaos` does all of it and measures.
"""

from pathlib import Path

import pytest

from tests.chaos import scenarios
from tests.chaos.failover import failovers
from tests.chaos.kit import most_at_once
from tests.support import postgres


async def test_F01_workers_killed_under_load(database: str, tmp_path: Path) -> None:
    await scenarios.kills_under_load(
        database, tmp_path, kills=3, workers=3, least_open=60, timed=False
    )


async def test_F04_everything_killed_at_once_on_sqlite(tmp_path: Path) -> None:
    database = str(tmp_path / "chaos.db")
    await scenarios.all_killed_at_once(database, tmp_path, rounds=1, seeds=40, workers=1)


async def test_F04_everything_killed_at_once_on_postgres(
    own_server: postgres.Server, tmp_path: Path
) -> None:
    await scenarios.all_killed_at_once(
        own_server.url, tmp_path, rounds=1, seeds=40, workers=1, crash_server=own_server.restart
    )


async def test_F05_a_worker_stopped_for_two_leases(database: str, tmp_path: Path) -> None:
    await scenarios.pauses_under_load(
        database, tmp_path, pauses=1, workers=2, least_open=60, timed=False
    )


async def test_F08_a_server_that_crashes(own_server: postgres.Server, tmp_path: Path) -> None:
    await scenarios.server_restarts(
        own_server, tmp_path, seconds=2, every=(0.5, 1), workers=2, least_open=60
    )


async def test_F17_a_stop_under_load(database: str, tmp_path: Path) -> None:
    await scenarios.stopped_under_load(database, tmp_path, rounds=2, workers=2, least_open=60)


async def test_F30_one_process_killed_over_pages(database: str, tmp_path: Path) -> None:
    await scenarios.one_process_killed(database, tmp_path, kills=3, pages=5, rests=(0.1, 0.5))


@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
async def test_F27_a_failover_under_load(synchronous: bool) -> None:
    await failovers(1, synchronous)


async def test_F19_the_last_two_items_at_once(database: str) -> None:
    await scenarios.gate_opens_once(database, rounds=20)


async def test_F19_the_last_two_items_at_once_from_two_processes(database: str) -> None:
    await scenarios.gate_opens_once_between_processes(database, rounds=5)


async def test_F21_a_limit_over_all_processes(database: str, tmp_path: Path) -> None:
    await scenarios.limit_holds(database, tmp_path, workers=4, seconds=2, seeds=60)


async def test_lanes_over_all_processes(database: str, tmp_path: Path) -> None:
    await scenarios.lanes_hold(database, tmp_path, lanes=5, each=12, workers=3, kills=1)


async def test_a_full_lane_is_passed_by(database: str) -> None:
    await scenarios.full_lane_costs_nothing(
        database, few=10, many=5000, claims=20, ratio_max=float("inf")
    )


async def test_an_idle_worker_ends_when_it_is_told_to(database: str, tmp_path: Path) -> None:
    await scenarios.idle_worker(database, tmp_path, seconds=0.5, share_max=None)


@pytest.mark.parametrize(
    ("spans", "most"),
    [([], 0), ([(0, 1), (1, 2)], 1), ([(0, 3), (1, 2)], 2), ([(0, 3), (1, 4), (2, 5)], 3)],
)
def test_overlaps_are_counted(spans: list[tuple[int, int]], most: int) -> None:
    assert most_at_once(spans) == most
