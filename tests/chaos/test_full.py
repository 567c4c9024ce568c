"""All of every fault: `make chaos`. Minutes, many processes; each prints one line of figures.

CHAOS_KILLS, CHAOS_SECONDS and CHAOS_ROUNDS say how much, CHAOS_SEED repeats what was random.
"""

import os
from pathlib import Path

import pytest

from tests.chaos import scenarios
from tests.chaos.failover import failovers
from tests.support import postgres

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("CHAOS_KILLS", "200"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1000"))
IDLE_SHARE_MAX = 0.01


async def test_F01_workers_killed_under_load(database: str, tmp_path: Path) -> None:
    await scenarios.kills_under_load(database, tmp_path, kills=KILLS)


async def test_F04_everything_killed_at_once_on_sqlite(tmp_path: Path) -> None:
    await scenarios.all_killed_at_once(
        str(tmp_path / "chaos.db"), tmp_path, rounds=5, seeds=300, workers=3
    )


async def test_F04_everything_killed_at_once_on_postgres(
    own_server: postgres.Server, tmp_path: Path
) -> None:
    await scenarios.all_killed_at_once(
        own_server.url, tmp_path, rounds=5, seeds=300, workers=3, crash_server=own_server.restart
    )


async def test_F05_workers_stopped_for_two_leases(database: str, tmp_path: Path) -> None:
    await scenarios.pauses_under_load(database, tmp_path, pauses=5)


async def test_F08_a_server_that_crashes(own_server: postgres.Server, tmp_path: Path) -> None:
    await scenarios.server_restarts(own_server, tmp_path, SECONDS, every=(5, 10), workers=4)


async def test_F17_stops_under_load(database: str, tmp_path: Path) -> None:
    await scenarios.stopped_under_load(database, tmp_path, rounds=6)


async def test_F30_one_process_killed_over_pages(database: str, tmp_path: Path) -> None:
    await scenarios.one_process_killed(database, tmp_path, kills=20)


@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
async def test_F27_failovers_under_load(synchronous: bool) -> None:
    await failovers(20, synchronous)


async def test_F19_the_last_two_items_at_once(database: str) -> None:
    await scenarios.gate_opens_once(database, ROUNDS)


async def test_F19_the_last_two_items_at_once_from_two_processes(database: str) -> None:
    await scenarios.gate_opens_once_between_processes(database, ROUNDS // 5)


async def test_F21_a_limit_over_all_processes(database: str, tmp_path: Path) -> None:
    await scenarios.limit_holds(database, tmp_path, workers=16, seconds=SECONDS)


async def test_lanes_over_all_processes(database: str, tmp_path: Path) -> None:
    await scenarios.lanes_hold(database, tmp_path, lanes=50, each=60, workers=8, kills=20)


async def test_a_lane_with_a_million_items_is_passed_by(database: str) -> None:
    await scenarios.full_lane_costs_nothing(
        database, few=10, many=1_000_000, claims=300, ratio_max=3
    )


async def test_an_idle_worker_does_nothing(database: str, tmp_path: Path) -> None:
    await scenarios.idle_worker(database, tmp_path, 20, IDLE_SHARE_MAX)
