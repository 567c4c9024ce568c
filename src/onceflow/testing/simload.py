"""What simulated processes work on: a pipeline, handlers of every kind, and operators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from onceflow.core.errors import Permanent, StoreUnavailable, Transient, UnknownItem
from onceflow.core.pipeline import Lane, Pipeline, Stage
from onceflow.core.transition import Done, Usage
from onceflow.engine.flow import Flow
from onceflow.engine.settings import Settings
from onceflow.engine.work import Work
from onceflow.testing.simcheck import attempt_of
from onceflow.testing.simloop import OWNER
from onceflow.testing.simstore import Net

LEASE_SECONDS = 6.0
KEYS = [f"{lane}{number}" for number in range(8) for lane in "abc"]


@dataclass(frozen=True, slots=True)
class Submission:
    """One run as its submitter means it."""

    run: str
    keys: list[str]
    at: float
    later: list[str] = field(default_factory=list)
    """Added in a second call, which seals the run."""
    options: dict[str, Any] = field(default_factory=dict)


def draw_settings(random: Random) -> Settings:
    return Settings(
        partial_seconds=0.01,  # renewals are to be met by everything else
        scan_seconds=random.choice([3.0, 6.0, 12.0]),
        queue_max=random.choice([1, 2, 4, 1000]),
        cycle_seconds=0.1,
        health_seconds=random.choice([1.5, 3.0, 6.0]),
        cleanup_seconds=random.choice([1.0, 3.0]),
        grace_seconds=random.choice([0.0, 0.5, 2.0]),
        poll_seconds=0.5,
        patience_seconds=1.0,
    )


def draw_submissions(random: Random, seconds: float) -> list[Submission]:
    submissions = []
    for number in range(random.choice([1, 1, 2, 3])):
        count = random.choice([0, 1, 2, 2, 3, 5, 8, 12])
        keys = random.sample(KEYS, count)
        options: dict[str, Any] = {"max_items": random.choice([25, count + 1, max(count - 1, 1)])}
        if random.random() < 0.3:
            options["max_depth"] = random.choice([0, 1, 2])
        if random.random() < 0.15:
            options["max_tokens"] = random.choice([3, 12])
        later = random.sample(KEYS, 3) if random.random() < 0.3 else []
        at = random.random() * seconds / 2 if number else 0.0
        submissions.append(Submission(f"run-{number}", keys, at, later, options))
    return submissions


class Load:
    """One pipeline, and what its handlers do."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.calm = False
        self.troubled = random.choice([0.0, 0.1, 0.3, 0.6])
        self.hanging = random.choice([0.0, 0.0, 0.05, 0.2])
        self.killer = random.choice(KEYS) if random.random() < 0.2 else ""
        self.quick = random.choice([0.01, 0.1, 0.6])
        self.talkative = random.choice([[0], [0, 0, 1, 4], [4, 12]])
        self.net: Net | None = None
        count = random.choice([1, 2, 2, 3])
        names = ["one", "two", "three"][:count]
        gate: Stage | None = None
        if random.random() < 0.7:
            gate = Stage("gather", self.gather, deadline_seconds=4.0, processors=2)
        self.pipeline = Pipeline(
            "sim",
            *[
                self._stage(name, first=at == 0, last=at == count - 1)
                for at, name in enumerate(names)
            ],
            after_all=gate,
            gate=random.choice(["settled", "settled", "completed"]),
            lease_seconds=LEASE_SECONDS,
            heartbeat_seconds=2.0,
            attempts=random.choice([1, 2, 3]),
            backoff_seconds=random.choice([0.0, 0.5, 2.0]),
            backoff_max_seconds=4.0,
            events=("told", "noted"),
        )

    def _stage(self, name: str, *, first: bool, last: bool) -> Stage:
        random = self.random
        lane = None
        if random.random() < 0.3:
            spacing = random.choice([0.0, 0.5, 1.5])
            lane = Lane(lambda key: key[0], random.choice([1, 2]), spacing)
        return Stage(
            name,
            self.work,
            limit=random.choice([None, None, 1, 2, 3]),
            lane=lane,
            held=random.random() < (0.1 if first else 0.3),
            # With a long one, a lease that nobody knows of is not found by its deadline.
            deadline_seconds=random.choice([3.0, 5.0, 20.0]),
            processors=random.choice([1, 2, 4]),
            spreads=last and self.quick == 0.1,
            batch=random.choice([1, 3]),
            prefetch=random.choice([0, 0, 3]),
            assign_max=random.choice([None, None, 1]),
        )

    # --- handlers ---

    async def work(self, work: Work) -> Any:
        """A handler that does whatever handlers do."""
        net, random = self.net, self.random
        lease = work._lease
        assert net is not None
        assert lease is not None
        net.oracle.began(lease)
        process = net.by_owner[OWNER.get()]
        net.journal.note(f"{process.name} attempts {lease.key} {lease.stage} f={lease.fence}")
        if work.key == self.killer and random.random() < 0.9:
            net.journal.reach("a handler killed its worker")
            process.crash(f"the handler of {work.key}")
            await net.loop.create_future()
        text = ""
        for _ in range(random.choice(self.talkative)):
            await asyncio.sleep(random.random() * self.quick)
            text += random.choice("xyz")
            net.oracle.told[attempt_of(lease)] = text
            work.emit("told", text=text[-1])
        if random.random() < 0.2:
            await work.keep("piece", text)
        await asyncio.sleep(random.random() * self.quick)
        if not self.calm:
            await self._trouble(work)
        return self._result(work, text)

    async def _trouble(self, work: Work) -> None:
        net, random = self.net, self.random
        assert net is not None
        if random.random() < self.hanging:
            try:
                await asyncio.sleep(random.choice([2.0, 8.0, 100.0]))
            except asyncio.CancelledError:
                if random.random() < 0.7:
                    raise
                net.journal.reach("a handler ignored its cancellation")
                await asyncio.sleep(random.random() * 3)
        if random.random() < self.troubled:
            match random.randrange(8):
                case 0 | 1 | 2:
                    raise Transient("not now", retry_after=random.choice([None, 1.0]))
                case 3:
                    raise Permanent("never")
                case 4:
                    raise asyncio.CancelledError
                case 5:
                    raise SystemExit(3)
                case _:
                    raise RuntimeError("a slip")

    def _result(self, work: Work, text: str) -> Any:
        net, random, lease = self.net, self.random, work._lease
        assert net is not None
        assert lease is not None
        value: Any = {"key": work.key, "stage": work.stage, "fence": lease.fence, "text": text}
        if random.random() < 0.05:
            value["large"] = "wide " * 200
        if not self.calm and random.random() < 0.02:
            return {"not", "json"}
        net.oracle.returned[attempt_of(lease)] = value
        drawn = random.random()
        if drawn < 0.6:
            return value
        children = []
        if drawn < 0.75:
            children = [f"{work.key}.{random.randrange(3)}", random.choice(KEYS)]
        events = ["told", "noted"][: random.randrange(3)]
        aliases = [f"c-{work.key}"] if drawn > 0.95 else []
        return Done(value, events, children, aliases, Usage(random.randrange(3), 0.0))

    async def gather(self, work: Work) -> Any:
        """The gate's handler: it reads what the run has come to."""
        net, lease = self.net, work._lease
        assert net is not None
        assert lease is not None
        net.oracle.began(lease)
        keys = [item.key async for item in work.finished_items()]
        if not self.calm:
            await self._trouble(work)
        value = {"keys": keys, "fence": lease.fence}
        net.oracle.returned[attempt_of(lease)] = value
        return value

    # --- operators ---

    async def operate(self, flow: Flow) -> None:
        """One command at random, as somebody in that process would give it."""
        assert self.net is not None
        random, pipeline = self.random, self.pipeline
        known = self.net.oracle.known()
        key = random.choice(known) if known else "a0"
        some = random.sample(known, min(len(known), random.choice([1, 4])))
        stage = random.choice(pipeline.every_stage).name
        try:
            match random.randrange(14):
                case 0 | 1:
                    await flow.retry(pipeline)
                case 2 | 12 | 13:
                    await flow.retry(pipeline, keys=some)
                case 3:
                    await flow.retry(pipeline, keys=[key], from_stage=pipeline.first.name)
                case 4:
                    await flow.cancel(pipeline, keys=some, why="enough")
                case 5:
                    await flow.release(pipeline)
                case 6:
                    await flow.pause(pipeline, stage, "a look")
                case 7:
                    await flow.resume(pipeline, stage)
                case 8:
                    await flow.limit(pipeline, stage, random.choice([None, 1, 2]))
                case _:
                    await self.trigger(flow, key, random.choice(pipeline.stages).name)
        except (StoreUnavailable, UnknownItem) as error:
            self.net.journal.note(f"an operator was refused: {error}")
        except Exception as error:
            self.net.journal.violate(f"an operator's command failed: {error!r}")

    async def trigger(self, flow: Flow, key: str, stage: str) -> None:
        assert self.net is not None
        answer = await flow.trigger(
            self.pipeline, key, stage, wait_seconds=self.random.choice([0.0, 3.0])
        )
        self.net.journal.note(f"trigger {key} {stage}: {answer.how} {answer.reason}")
        branch = {
            "performed": "a trigger performed its stage",
            "joined": "a trigger joined",
            "skipped": "a trigger was skipped",
            "not_yet": "a trigger came before its stage",
        }
        self.net.journal.reach(branch[answer.how])
