"""The crash-point kit: a pipeline of yours, killed at every call that it makes to its store.

    def test_my_pipeline_survives_a_crash_anywhere(tmp_path):
        survived = crash_everywhere(news, ["https://a.test/"], folder=tmp_path)
        assert survived.outputs["https://a.test/"]["summarize"] == {"summary": "..."}

Each round runs the pipeline on a real database file, with the real engine, in virtual time: neither
backoffs nor leases are waited for. A process dies before the n-th call reaches the store, or after
it was committed and before the reply came; another one takes over. When that one is done, `audit`
must find nothing, and the results must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from onceflow.core.errors import PipelineError, StoreUnavailable
from onceflow.core.item import Json, Seed
from onceflow.core.pipeline import Pipeline
from onceflow.engine.flow import Flow
from onceflow.engine.heart import LoopHeart
from onceflow.engine.settings import Settings
from onceflow.store.base import Store, Worker
from onceflow.store.sqlite import SqliteStore, create
from onceflow.testing.simloop import SimLoop

Outputs = Mapping[str, Mapping[str, Json]]
"""Key -> stage -> the stored result; the gate's item has the key `gate:crash`."""
When = Literal["before", "after"]
WHENS: tuple[When, ...] = ("before", "after")

CALLS = frozenset(
    ["open", "add", "exchange", "renew", "beat", "sweep", "act", "tune", "read", "leave", "prune"]
)
RUN = "crash"
SETTINGS = Settings(poll_seconds=30.0, cleanup_seconds=30.0, health_seconds=60.0)
"""Rare looks: a lease that is waited for in vain takes ten of them instead of six hundred."""
BOOT = "crash-kit"


class CrashFound(AssertionError):
    """A crash point after which something was lost, doubled or different."""


@dataclass(frozen=True, slots=True)
class Survived:
    """Every crash point was survived."""

    points: int
    """How many times a process was killed."""
    outputs: Outputs


def crash_everywhere(
    pipeline: Pipeline,
    items: Iterable[str | Seed],
    *,
    folder: Path,
    settings: Settings | None = None,
    points_max: int = 2000,
) -> Survived:
    """Kill the pipeline at its first store call, its second, and so on, until it ends unharmed.

    Handlers must give the same results for the same input, whatever the attempt. They run here: a
    `cpu=True` stage is refused, and so is waiting for the real world, whose time goes on meanwhile.
    """
    for stage in pipeline.every_stage:
        if stage.cpu:
            raise PipelineError(
                f"pipeline {pipeline.name!r}: stage {stage.name!r} has cpu=True, and crash points "
                "are tried in one process; give the kit the same stage without it"
            )
    seeds = list(items)
    kit = _Kit(pipeline, seeds, folder, settings or SETTINGS)
    expected = kit.play(0, "before").outputs
    for point in range(1, points_max + 1):
        for when in WHENS:
            played = kit.play(point, when)
            if not played.crashed:
                return Survived(kit.crashes, expected)
            where = f"after a crash {when} store call {point} ({played.crashed})"
            if played.broken:
                raise CrashFound(f"{where}: {'; '.join(played.broken)}")
            if played.outputs != expected:
                raise CrashFound(f"{where}: {_difference(expected, played.outputs)}")
    raise CrashFound(f"there was still something to kill after {points_max} store calls")


def _difference(expected: Outputs, found: Outputs) -> str:
    for key in [*expected, *found]:
        if expected.get(key) != found.get(key):
            return f"{key} has {found.get(key)!r}, undisturbed it has {expected.get(key)!r}"
    raise AssertionError("they are the same")


@dataclass(frozen=True, slots=True)
class _Played:
    outputs: Outputs
    broken: list[str]
    crashed: str
    """The call at which the first process died; empty if it did not."""


class _Kit:
    """One pipeline, and an empty database to begin with each time."""

    def __init__(
        self, pipeline: Pipeline, seeds: list[str | Seed], folder: Path, settings: Settings
    ) -> None:
        self._pipeline = pipeline
        self._seeds = seeds
        self._settings = settings
        self._path = folder / "crash.db"
        self._empty = folder / "crash-empty.db"
        self._empty.unlink(missing_ok=True)
        create(self._empty)
        self.crashes = 0

    def play(self, point: int, when: When) -> _Played:
        """One process that dies at that point, 0 for never, and one that goes on."""
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._path}{ending}").unlink(missing_ok=True)
        shutil.copyfile(self._empty, self._path)
        loop = SimLoop(point, threads=True)
        with loop.as_the_time():
            try:
                return loop.run_until_complete(self._play(loop, point, when))
            finally:
                loop.bury()
                loop.close()

    async def _play(self, loop: SimLoop, point: int, when: When) -> _Played:
        doomed = _Doomed(self._path, point, when)
        owner = loop.owner("doomed")
        first = loop.spawn(owner, self._process(doomed, "doomed"))
        ends: list[asyncio.Future[Any]] = [first, doomed.died]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if doomed.died.done():
            self.crashes += 1
            loop.stop_owner(owner)
            doomed.inner.abandon()
            heir = _Doomed(self._path, 0, when)
            outputs, broken = await self._process(heir, "heir")
            return _Played(outputs, broken, doomed.died.result())
        outputs, broken = first.result()
        return _Played(outputs, broken, "")

    async def _process(self, store: _Doomed, name: str) -> tuple[Outputs, list[str]]:
        """What the program of a process does. Adding the same again is harmless."""
        async with Flow(
            cast(Store, store), [self._pipeline], self._settings, LoopHeart,
            lambda: Worker(name, "crash-kit", 1),
        ) as flow:  # fmt: skip
            await flow.add(self._pipeline, self._seeds, run=RUN)
            await flow.drain()
            store.disarm()
            broken = [
                f"audit: {one.invariant} {one.key}: {one.detail}"
                for one in await flow.audit(grace_seconds=0)
            ]
            return await self._outputs(flow), broken

    async def _outputs(self, flow: Flow) -> Outputs:
        outputs: dict[str, dict[str, Json]] = {}
        after = 0
        while page := await flow.items(after=after):
            for item in page:
                results = await flow.results(item.id)
                outputs[item.key] = {"": item.state} | {
                    one["stage"]: one["body"] for one in results if one["stage"]
                }
            after = page[-1].id
        return outputs


class _File(SqliteStore):
    """A store on a file that works in its caller's thread and can be left behind."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, boot=BOOT, durability="normal", inline=True)

    def abandon(self) -> None:
        """What the operating system does when a process was killed: its files are closed."""
        if self._inline is not None:
            self._inline.close()


class _Doomed:
    """A store whose process dies at one of its calls."""

    def __init__(self, path: Path, point: int, when: When) -> None:
        self.inner = _File(path)
        self._left = point
        self._when = when
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        return partial(self._call, name, attribute) if name in CALLS else attribute

    def disarm(self) -> None:
        """The program has done its work: what it reads for us is no crash point."""
        self._left = 0

    async def _call(self, name: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        if self.died.done():
            raise StoreUnavailable("this process is dead")
        self._left -= 1
        dies = self._left == 0
        if dies and self._when == "before":
            await self._die(name)
        reply = await method(*args, **named)
        if dies:
            await self._die(name)
        return reply

    async def _die(self, name: str) -> None:
        self.died.set_result(name)
        await asyncio.get_running_loop().create_future()
