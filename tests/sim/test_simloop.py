"""The loop of simulations: virtual time, owners that stop, go on and die, turns by a seed."""

import asyncio
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from onceflow.testing.simloop import LOOP_BEGIN, SimLoop, Stuck


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.bury()
    loop.close()


async def ticking(heard: list[Any], name: str, loop: SimLoop, ticks: int = 3) -> None:
    for _ in range(ticks):
        await asyncio.sleep(1)
        heard.append((name, round(loop.time() - LOOP_BEGIN)))


def test_an_hour_takes_no_time(loop: SimLoop) -> None:
    loop.run_until_complete(asyncio.sleep(3600))

    assert loop.time() - LOOP_BEGIN == pytest.approx(3600)


def test_the_time_module_tells_the_loops_time_and_each_owners_wall(loop: SimLoop) -> None:
    async def wall() -> float:
        return time.time()

    real = time.time
    stepped = loop.owner("stepped")
    stepped.wall_step = 3600
    with loop.as_the_time():
        begin = time.monotonic()
        loop.run_until_complete(asyncio.sleep(5))
        assert time.monotonic() - begin == pytest.approx(5)
        assert time.clock_gettime_ns(0) / 1e9 == pytest.approx(time.monotonic())
        ahead = loop.run_until_complete(loop.spawn(stepped, wall())) - time.time()
    assert ahead == pytest.approx(3600, abs=0.1)
    assert time.time is real


def test_a_stopped_owner_runs_nothing_and_its_timers_come_late(loop: SimLoop) -> None:
    heard: list[Any] = []
    owner = loop.owner("stopped")
    task = loop.spawn(owner, ticking(heard, "late", loop, 1))
    loop.run_until_complete(asyncio.sleep(0.25))
    loop.stop_owner(owner)
    loop.run_until_complete(asyncio.sleep(10))
    assert heard == []

    loop.go_on(owner)
    loop.run_until_complete(task)
    assert heard == [("late", 10)]


def test_an_owner_that_never_goes_on_is_dead_and_others_do_not_wait_for_it(loop: SimLoop) -> None:
    heard: list[Any] = []
    dead, alive = loop.owner("dead"), loop.owner("alive")
    loop.spawn(dead, ticking(heard, "dead", loop))
    task = loop.spawn(alive, ticking(heard, "alive", loop))
    loop.run_until_complete(asyncio.sleep(1.5))
    loop.stop_owner(dead)
    loop.run_until_complete(task)

    assert [name for name, _ in heard].count("dead") == 1
    assert [at for name, at in heard if name == "alive"] == [1, 2, 3]


def turns(seed: int) -> str:
    """Who ran when, of three owners with something to do at the same moment."""
    loop = SimLoop(seed)
    heard: list[str] = []

    async def steps(name: str) -> None:
        for number in range(4):
            heard.append(f"{name}{number}")
            await asyncio.sleep(0)

    tasks = [loop.spawn(loop.owner(name), steps(name)) for name in "abc"]
    loop.run_until_complete(asyncio.wait(tasks))
    loop.close()
    return " ".join(heard)


def test_the_seed_decides_between_owners_and_the_order_within_each_is_kept() -> None:
    assert turns(1) == turns(1)
    assert len({turns(seed) for seed in range(20)}) > 10
    for seed in range(20):
        heard = turns(seed).split()
        for name in "abc":
            assert [one for one in heard if one[0] == name] == [f"{name}{n}" for n in range(4)]


def test_who_spins_instead_of_waiting_is_found_out(loop: SimLoop) -> None:
    async def spin() -> None:
        for _ in count():
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="busy spins"):
        loop.run_until_complete(loop.spawn(loop.owner("busy"), spin()))


def test_waiting_for_what_can_never_happen_is_found_out(loop: SimLoop) -> None:
    async def forever() -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing can happen"):
        loop.run_until_complete(forever())
