"""Onceflow itself, through its public names only."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import onceflow
from bench import pipeline_file
from bench.contestant import Contestant, Send, Started, settled, vacuum
from bench.measures import Rate, Stopwatch
from onceflow import Pipeline, Stage, Work


async def noop(work: Work) -> None:
    pass


class Onceflow(Contestant):
    def __init__(self, url: str, processors: int = 10, batch: int = 10) -> None:
        super().__init__(url)
        self.processors = processors
        self.batch = batch
        self._working: onceflow.Flow | None = None
        # The package has no `python -m onceflow`; its command lies beside the interpreter.
        command = Path(sys.executable).with_name("onceflow")
        self.program = (str(command), "worker", pipeline_file.__file__, "--db", url)

    async def rate(self, n: int) -> Rate:
        return await self._work_off(n, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        return await self._work_off(n, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        async def ping(work: Work) -> None:
            started()

        pipeline = Pipeline("pings", Stage("ping", ping))
        async with onceflow.open(self.url, pipeline) as flow:
            self._working = flow
            flow.start()
            yield

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        pipeline = Pipeline("pings", Stage("ping", noop))
        keys = count()
        async with onceflow.open(self.url, pipeline) as own:

            async def send() -> None:
                # In the worker's process an item is added to the flow that works.
                flow = own if self._working is None else self._working
                await flow.add(pipeline, [f"ping {next(keys)}"])

            yield send

    async def _work_off(self, n: int, stages: int) -> Rate:
        pipeline = Pipeline(
            "bench",
            *(
                Stage(f"stage-{i}", noop, processors=self.processors, batch=self.batch)
                for i in range(stages)
            ),
        )
        async with onceflow.open(self.url, pipeline) as flow:
            await flow.add(pipeline, [f"item {i}" for i in range(n)])
            await vacuum(self.url)
            with Stopwatch() as watch:
                await flow.drain()
            counts = await flow.counts(pipeline)
        settled(counts.get(pipeline.done, 0), n)
        return watch.rate(n, stages)


CONTESTANT = Onceflow
