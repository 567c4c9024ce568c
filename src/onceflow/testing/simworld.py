"""One simulated world: its processes, what befalls them, how it is healed and judged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random

import apsw

from onceflow.core.errors import OnceflowError, StoreUnavailable
from onceflow.core.item import Added
from onceflow.engine.audit import audit
from onceflow.engine.flow import Flow
from onceflow.engine.heart import LoopHeart
from onceflow.engine.settings import Settings
from onceflow.store.base import Worker
from onceflow.store.sqlite import _migrate
from onceflow.testing.simcheck import EXCHANGE_SECONDS_MAX, Journal, Oracle, beliefs
from onceflow.testing.simload import (
    LEASE_SECONDS,
    Load,
    Submission,
    draw_settings,
    draw_submissions,
)
from onceflow.testing.simloop import SimLoop
from onceflow.testing.simstore import (
    CALM,
    LATE_SECONDS_MAX,
    Net,
    OneConnection,
    Process,
    Weather,
)

REST_SECONDS_MAX = 400.0
"""How long, in virtual time, everything may take to come to rest once all is healed."""
STOP_SECONDS_MAX = 40.0
SAMPLE_SECONDS = 0.5
BELIEF_SECONDS = 30.0
"""So long after the last fault, not even a health check is needed to know what one holds."""
SLACK_SECONDS = 1.5
"""I9 allows a second beyond its timers; the rest is the way of a few calls."""


def draw_weather(random: Random) -> Weather:
    kind = random.choice(["fair", "fair", "rain", "storm"])
    much = {"fair": 0.2, "rain": 1.0, "storm": 2.5}[kind]
    return Weather(
        failed=0.03 * much * random.random(),
        full=0.02 * much * random.random(),
        lost=0.05 * much * random.random(),
        late=0.03 * much * random.random(),
        hangs=0.01 * much * random.random(),
        crash=0.004 * much * random.random(),
        dropped=random.choice([0.0, 0.2, 0.9]),
        slow=random.choice([0.0, 0.02, 0.2]),
        overtaken=random.choice([0.0, 0.1, 0.5]),
    )


class World:
    """One simulation."""

    def __init__(self, seed: int, show: Callable[[str], object] | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.loop = SimLoop(f"turns {seed}")
        self.journal = Journal(self.loop.time, show)
        self.load = Load(self.random)
        self.settings: Settings = draw_settings(self.random)
        self.storm_seconds = self.random.choice([4.0, 10.0, 20.0])
        self.weather = draw_weather(self.random)
        self.submissions = draw_submissions(self.random, self.storm_seconds)
        self.count = self.random.choice([2, 2, 3, 4])
        self.held_for_ever = self.random.random() < 0.3
        """Whether what waits for a trigger is left waiting at the end."""
        self.db = apsw.Connection(":memory:", statementcachesize=300)
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        _migrate(self.db, "simulated")
        self.oracle = Oracle(self.db, self.journal, self.load.pipeline)
        self.net = Net(self.loop, self.random, self.journal, self.oracle, self.db, LEASE_SECONDS)
        self.load.net = self.net
        self._looking = OneConnection(self.db, "boot-1")
        self.current: dict[int, Process] = {}
        self.commands: list[tuple[Process, asyncio.Task[None]]] = []
        self.agreed = False
        """Whether every process held what it believed it held when we last looked."""
        self.closing = False

    # --- processes ---

    def new_worker(self, process: Process) -> Worker:
        """A fresh id for every start, as in the real thing, but by name and number."""
        return Worker(f"w-{process.name}", "simulated", len(self.net.processes))

    async def _keep(self, number: int) -> None:
        """Start a process again whenever it ended."""
        start = 0
        while not self.closing:
            start += 1
            process = Process(self.net, f"p{number}.{start}")
            self.current[number] = process
            task = self.loop.spawn(process.owner, self._live(process))
            task.add_done_callback(process.ended)
            await process.gone
            del self.current[number]
            if process.alive and task.exception() is not None:
                error = task.exception()
                if isinstance(error, StoreUnavailable):
                    self.journal.note(f"{process.name} ended: {error}")
                else:
                    self.journal.violate(f"{process.name} ended with {error!r}")
            process.alive = False
            self.loop.stop_owner(process.owner)  # whatever else it was at ends with it
            self._count(process)
            if not self.closing:
                await asyncio.sleep(0.1 + self.random.random() * 3)

    async def _live(self, process: Process) -> None:
        """What the program of a process does."""
        flow = Flow(
            process.store, [self.load.pipeline], self.settings, LoopHeart,
            lambda: self.new_worker(process),
        )  # fmt: skip
        async with flow:
            process.flow = flow
            if not process.stopping:
                await flow.work()

    def _count(self, process: Process) -> None:
        """What an ended process can tell of rare ways."""
        manager = process.manager
        if manager is None:
            return
        tally, reach = manager.tally, self.journal.reach
        for count, branch in (
            (tally.adopted, "a claim whose reply was lost was adopted"),
            (tally.fenced, "a worker fenced itself"),
            (tally.expired, "an attempt was cut off at its deadline"),
            (tally.replaced, "a processor in error was replaced"),
            (sum(manager._book.refused.values()), "the local queue refused a lease"),
            (
                tally.lost - len(process.denied),
                "a lost lease's attempt was ended by the health check or a refused partial",
            ),
            (
                len(manager._book) if process.stopping and manager.over else 0,
                "a stop gave up on a database out of reach",
            ),
        ):
            if count > 0:
                reach(branch)

    # --- what happens to them ---

    async def _storm(self) -> None:
        """Every now and then something happens to one process."""
        random = self.random
        pace = random.choice([0.5, 2.0, 6.0])
        while True:
            await asyncio.sleep(random.expovariate(1 / pace))
            if not self.current:
                continue
            process = random.choice(list(self.current.values()))
            if not process.alive or process.stopped_at is not None:
                continue
            match random.randrange(9):
                case 0 | 1:
                    process.pause()
                    self.loop.call_later(
                        random.random() * LEASE_SECONDS * random.choice([0.3, 1, 2]), process.go_on
                    )
                case 2 | 3:
                    process.cut_off(random.random() * LEASE_SECONDS * random.choice([0.3, 1, 2]))
                case 4 | 5:
                    process.owner.wall_step += random.choice([-3600.0, -5.0, 5.0, 86400.0])
                    self.journal.note(f"{process.name}'s clock is {process.owner.wall_step}")
                    self.journal.reach("a wall clock was stepped")
                case 6:
                    self._stop(process, self.settings.grace_seconds)
                case 7:
                    process.cut_off(self.settings.grace_seconds + 12.0)
                    self._stop(process, self.settings.grace_seconds)
                case _:
                    process.crash("killed")

    async def _operate(self) -> None:
        """Every now and then somebody in some process gives a command."""
        pace = self.random.choice([0.3, 1.0, 5.0])
        while True:
            await asyncio.sleep(self.random.expovariate(1 / pace))
            flows = [one for one in self.current.values() if one.flow is not None and one.alive]
            if flows:
                process = self.random.choice(flows)
                assert process.flow is not None
                task = self.loop.spawn(process.owner, self.load.operate(process.flow))
                self.commands.append((process, task))

    def _stop(self, process: Process, grace_seconds: float) -> None:
        self.journal.note(f"{process.name} is asked to stop within {grace_seconds} s")
        process.stopping = True
        if process.flow is not None:
            process.flow.stop_soon(grace_seconds)

    async def _submit(self, submission: Submission, client: Flow) -> None:
        """Add a run until somebody has confirmed it, through whichever process answers."""
        await asyncio.sleep(submission.at)
        parts = [(submission.keys, not submission.later)]
        if submission.later:
            parts.append((submission.later, True))
        for keys, seal in parts:
            added: Added | None = None
            while True:
                places: list[tuple[Process | None, Flow]] = [(None, client)]
                places += [(one, one.flow) for one in self.current.values() if one.flow is not None]
                process, flow = self.random.choice(places)
                adding = flow.add(
                    self.load.pipeline, keys, run=submission.run, seal=seal, **submission.options
                )
                owner = self.net.processes[0].owner if process is None else process.owner
                task = self.loop.spawn(owner, adding)
                await asyncio.wait([task], timeout=3)
                if task.done() and task.exception() is None:
                    added = task.result()
                    break
                if task.done() and not isinstance(task.exception(), StoreUnavailable):
                    self.journal.violate(f"adding to {submission.run}: {task.exception()!r}")
                    break
                await asyncio.sleep(0.2)
            known = self.oracle.ask("known_keys", keys=json.dumps(keys))
            if added is not None and known < len(keys) - added.over_budget:
                self.journal.violate(f"I4: {submission.run}: {keys} were confirmed, {known} exist")

    # --- from the beginning to the end ---

    async def run(self) -> None:
        client = Process(self.net, "client", immortal=True)
        client.flow = Flow(client.store, [self.load.pipeline], self.settings, LoopHeart)
        await client.flow.__aenter__()
        self.net.weather = self.weather
        kept = [asyncio.create_task(self._keep(number)) for number in range(self.count)]
        submitting = [
            asyncio.create_task(self._submit(one, client.flow)) for one in self.submissions
        ]
        troubles = [asyncio.create_task(self._storm()), asyncio.create_task(self._operate())]
        await asyncio.sleep(self.storm_seconds)
        self.journal.note("all is healed")
        self.load.calm = True
        # All but the notifications: those are hints, whose loss must never matter.
        self.net.weather = Weather(dropped=self.weather.dropped)
        for process in self.net.processes:
            process.go_on()
            process.cut_until = min(process.cut_until, self.loop.time())
        for task in troubles:
            task.cancel()
        comparing = asyncio.create_task(self._compare_beliefs())
        await asyncio.wait(submitting, timeout=60)
        if not all(task.done() for task in submitting):
            self.journal.violate("items could not be added although all is healed")
        for task in submitting:
            if task.done() and task.exception() is not None:
                self.journal.violate(f"adding failed: {task.exception()!r}")
        for process, command in self.commands:  # what was asked for before may come late
            await asyncio.wait([command, process.gone], return_when=asyncio.FIRST_COMPLETED)
        if self.net.lates:  # one may pause a stage
            await asyncio.sleep(LATE_SECONDS_MAX)
        await self._heal(client.flow)
        await self._rest(client.flow)
        self.closing = True
        await comparing
        for process in list(self.current.values()):
            self._stop(process, 1.0)
        await asyncio.wait(kept, timeout=STOP_SECONDS_MAX)
        if not all(task.done() for task in kept):
            self.journal.violate(f"{list(self.current)} did not stop")
        await self._judge()

    async def _heal(self, flow: Flow) -> None:
        """Take back what operators did."""
        for stage in self.load.pipeline.every_stage:
            await flow.resume(self.load.pipeline, stage.name)
            await flow.limit(self.load.pipeline, stage.name, None)

    async def _rest(self, flow: Flow) -> None:
        """Until nothing moves any more; nothing due may wait for longer than I9 allows."""
        began = self.loop.time()
        idle_since: dict[tuple[str, str], float] = {}
        dead_since: dict[str, float] = {}
        while self.loop.time() < began + REST_SECONDS_MAX:
            await asyncio.sleep(SAMPLE_SECONDS)
            if not self.held_for_ever:
                await self._trigger_held(flow)
            if self.oracle.is_idle():
                if self.agreed:
                    return
            else:
                self._sample(began, idle_since, dead_since)
            if self.journal.violations:
                return
        self.journal.violate(
            f"I9: stuck: {self.oracle.rows('unsettled')} {self.oracle.rows('unfinished_runs')}"
        )

    async def _compare_beliefs(self) -> None:
        """Every living process finds out what it holds, and believes nothing else, with its next
        health check after a fault. Long after the last one nothing may differ at all."""
        healed_at = self.loop.time()
        while not self.closing:
            now = self.loop.time()
            most = self.settings.health_seconds + SLACK_SECONDS
            if now > max(healed_at, self.net.fault_at) + BELIEF_SECONDS:
                most = EXCHANGE_SECONDS_MAX
            self.agreed = True
            for process in self.current.values():
                if process.manager is None or process.stopping:
                    continue
                if process.hanging:
                    self.oracle.check_beliefs(process.name, set(), set(), now, most)
                    continue
                held = await self._looking.held(process.manager.worker.id)
                believed = beliefs(process.manager)
                self.agreed &= believed == held
                self.oracle.check_beliefs(process.name, believed, held, now, most)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _trigger_held(self, flow: Flow) -> None:
        for item, key, stage, phase, _, _, _ in self.oracle.rows("all_items"):
            if phase == "waiting" and self.oracle.ask("is_held", item=item):
                await flow.trigger(self.load.pipeline, key, stage, wait_seconds=0)

    def _sample(
        self, began: float, idle_since: dict[tuple[str, str], float], dead_since: dict[str, float]
    ) -> None:
        """I9: a dead worker's items come back, and what is ready is claimed by who is idle."""
        now = self.loop.time()
        store_now = self.net.processes[0].store.now()
        current = {process.name for process in self.current.values()}
        for known in [key for key in idle_since if key[0] not in current]:
            del idle_since[known]  # it was idle when it was killed
        for process in self.current.values():
            manager = process.manager
            if manager is None:
                continue
            for plan in manager._scheduler.plans.values():
                idle = plan.pool.idle and not manager._book.size(plan.key)
                if not idle or process.stopping or process.hanging:
                    idle_since.pop((process.name, plan.stage.name), None)
                else:
                    idle_since.setdefault((process.name, plan.stage.name), now)
        patience = self.settings.scan_seconds + SLACK_SECONDS
        lively = {stage for (_, stage), since in idle_since.items() if now - since > patience}
        for _, key, stage, phase, worker, updated_at, _ in self.oracle.rows("unsettled"):
            age = min((store_now - updated_at) / 1000, now - began)
            if phase == "ready" and stage in lively and not self._bounded(stage) and age > patience:
                self.journal.violate(f"I9: {key} is ready in {stage} for {age:.1f} s")
            if phase == "active":
                holder = self.net.by_worker.get(worker)
                if holder is None or holder.alive:
                    continue
                since = max(began, dead_since.setdefault(worker, now))
                most = LEASE_SECONDS + self.settings.cleanup_seconds + SLACK_SECONDS
                if now - since > most:
                    self.journal.violate(f"I9: {key} is held by {worker}, dead for {most} s")

    def _bounded(self, stage: str) -> bool:
        return self.load.pipeline.stage(stage).bounded

    def end(self) -> None:
        """Let everything go."""
        for process in self.net.processes:
            process.buried = True
        self.net.weather = CALM
        self.loop.bury()
        for task in self.loop.tasks:
            if not task.cancelled():
                task.exception()  # looked at, so that nobody complains
        self.loop.close()
        self.db.set_commit_hook(None)
        self.db.close()

    async def _judge(self) -> None:
        """The whole history, by the oracle that users have."""
        for error in self.loop.errors:
            self.journal.violate(f"unhandled: {error}")
        for task in self.loop.tasks:
            if task.done() and not task.cancelled():
                raised = task.exception()
                if raised is not None and not isinstance(raised, OnceflowError):
                    self.journal.violate(f"a task ended with {raised!r}")
        store = OneConnection(self.db, "boot-1")
        await store.open()
        await store.sweep()  # once more, as any worker would
        self.oracle.check_end()
        for broken in await audit(store, 0.0):
            self.journal.violate(f"audit: {broken.invariant} {broken.key}: {broken.detail}")
        for *_, halted, _, _ in self.oracle.rows("all_runs"):
            if halted:
                self.journal.reach("a run was halted at its ceiling")
