"""`run` and `worker`: the commands that work."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from cyclopts import Parameter

from onceflow import Flow, Pipeline, StoreUnavailable
from onceflow.commands.analyze import Asking, Assistants, analyze_job
from onceflow.commands.common import READY_NAMES, WORKED_BY, Common, Engine, Flag, find_run
from onceflow.commands.expand import Reach, Subject, expand_job
from onceflow.commands.next import where
from onceflow.commands.output import INTERRUPTED, OK, SOME_FAILED, Out, UsageError, remark
from onceflow.commands.program import one_pipeline, pipelines_of
from onceflow.commands.ready import (
    Options,
    refuse_others,
    refuse_unless_ready,
    worker_flow,
)
from onceflow.commands.seeds import Source, Survey, keys_of, source_of, survey
from onceflow.commands.text import many, plain, raised, span
from onceflow.core.item import Phase, Run
from onceflow.engine.flow import ADD_CHUNK, new_run_id

if TYPE_CHECKING:
    from onceflow.commands.follow import Watcher

TELL_SECONDS = 60.0
"""How often a worker says what it has done, if it has done anything."""
LOOKED_AT_MAX = 200
"""How many failed items are looked at to say what to do about them."""
AGAIN_SECONDS = 0.5
ALONE_SECONDS = 10.0
WHY_CHARS = 240
HELPER_SECONDS = 40.0
"""How long a helping worker has to stop; it has its own grace time."""


# --- run ---


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a run may use up at the most."""

    max_items: int | None = None
    """Accept at most so many items into the run, those that handlers add included."""
    max_depth: int | None = None
    """Accept no item that was found more than so many steps from a given one."""
    max_tokens: int | None = None
    """Stop the run when so many model tokens are used."""
    max_cost: float | None = None
    """Stop the run when so much is spent."""


@dataclass(slots=True)
class Report:
    """How a run went, as its last line and its JSON say it."""

    pipeline: str
    run: str | None = None
    new: int = 0
    known: int = 0
    duplicate: int = 0
    refused: int = 0
    over_budget: int = 0
    refusals: list[dict[str, Any]] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    items: int = 0
    done: int = 0
    failed: int = 0
    for_good: int | None = None
    """Those of the failed ones that another attempt would not help; None if nobody looked."""
    cancelled: int = 0
    open: int = 0
    held: dict[str, int] = field(default_factory=dict)
    """By state: those of the open ones that wait until somebody triggers their stage."""
    stuck: int = 0
    """Ready, but nobody may claim them: their stage is paused or their run halted."""
    gate: str | None = None
    """The phase of the gate's own item."""
    changed_since_gate: int = 0
    """Items that were done again after it was: what it says of them is what was before."""
    tokens: int = 0
    cost: float = 0.0
    out: str | None = None
    """The folder with the output files."""
    unwritten: str | None = None
    """Why some output files are not as they should be."""
    seconds: float = 0.0
    already: bool = False
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    full: bool = False
    """The run has taken in as many items as it may."""
    depths: dict[str, int] = field(default_factory=dict)
    """How many of its items are how deep, where items lead to items."""

    @property
    def code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        bad = self.failed or self.refused or self.stuck or self.gate == "failed"
        return SOME_FAILED if bad or self.unwritten else OK


def run(
    file: Path,
    /,
    *keys: Annotated[str, Parameter(allow_leading_hyphen=True)],
    pipeline: str | None = None,
    as_keys: Annotated[bool, Flag] = False,
    refresh: Annotated[bool, Flag] = False,
    new_run: Annotated[bool, Flag] = False,
    add_only: Annotated[bool, Flag] = False,
    verbose: Annotated[bool, Flag] = False,
    ceilings: Ceilings | None = None,
    engine: Engine | None = None,
    common: Common | None = None,
) -> int:
    """Add items to your own pipeline, work on them, and follow until they are settled.

    Run it again to go on where it was stopped: the same keys are the same run.
    Without keys it works on whatever is open. Ctrl-C once finishes what is under
    way, twice stops at once; nothing is lost either way.

    Parameters
    ----------
    file
        The Python file with your Pipeline at its top level.
    keys
        Keys, or one file with a key a line (# begins a comment), or - for stdin.
    pipeline
        Which Pipeline of the file, if it has several.
    as_keys
        Take every argument as a key, even one that names a file.
    refresh
        Do known items again, as a new generation.
    new_run
        Begin a new run even if these keys were added before; its gate opens again.
    add_only
        Only add; workers do the rest.
    verbose
        Log every transition, and the tracebacks of handlers.
    """
    common = common or Common()
    chosen = one_pipeline(file, pipeline)
    settings = (engine or Engine()).settings(common)
    check_keys(keys, as_keys=as_keys, needed=refresh or new_run or add_only)
    wishes = Wishes(ceilings or Ceilings(), refresh, new_run, add_only, verbose)
    with source_of(keys, as_keys=as_keys) as source:
        return submit(chosen, common.flow(chosen, settings=settings), source, wishes, common)


def check_keys(keys: tuple[str, ...], *, as_keys: bool, needed: bool) -> None:
    """Refuse a misspelt option, which would be taken for a key, and options that need keys."""
    for key in keys:
        if key.startswith("-") and key != "-" and not as_keys:
            raise UsageError(f"there is no option {plain(key)}; if it is a key, add --as-keys")
    _check_some(keys, "keys", needed=needed)


def check_urls(command: str, urls: tuple[str, ...], *, needed: bool) -> None:
    """The same where keys are URLs, of which none looks like an option."""
    for url in urls:
        if url.startswith("-") and url != "-":
            raise UsageError(
                f"there is no option {plain(url)}; `onceflow {command} --help` lists them"
            )
    _check_some(urls, "URLs", needed=needed)


def _check_some(keys: tuple[str, ...], words: str, *, needed: bool) -> None:
    if keys and not any(key.strip() for key in keys):
        raise UsageError(f"the argument is empty; name {words}, a file with them, or - for stdin")
    if not keys and needed:
        raise UsageError(f"name the {words} to add, a file with them, or - for stdin")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be done with the keys."""

    ceilings: Ceilings
    refresh: bool = False
    new_run: bool = False
    add_only: bool = False
    verbose: bool = False
    follow_only: bool = False
    """Add, then watch what others do, without working."""
    beside: Callable[[Flow, str | None, Callable[[str], None]], Beside] | None = None
    """Makes what goes along with the work, from the flow, the run and a way to warn."""
    alone: Callable[[], AbstractAsyncContextManager[None]] | None = None
    """Two that begin with the same keys at the same moment: the second finds the first's run."""
    check: Callable[[Flow], Awaitable[None]] | None = None
    """Refuses what cannot go along, before anything is added."""
    flags: str = ""
    """What a worker elsewhere must be given to do the same."""
    helpers: Sequence[Sequence[str]] = ()
    """Commands of worker processes that help, until their stdin ends."""
    environment: Mapping[str, str] | None = None
    """What those find in their environment besides."""
    budget: str = "--max-items"
    """The flag that says how many items a run takes in."""
    held: str = "they wait until somebody triggers their stage: flow.trigger"
    """What to do about items that are held."""
    look: Sequence[str] = ()
    """Commands that show what came out."""
    differs: Callable[[Flow, str], Awaitable[str | None]] | None = None
    """Says of a run where all is done already in what it is not what was asked for now."""


class Beside(Protocol):
    """What goes along with the work on a run, such as output files."""

    async def begin(self) -> None: ...

    async def follow(self, over: asyncio.Event, added: asyncio.Event | None = None) -> None: ...

    def close(self) -> None: ...

    def report(self) -> tuple[str | None, str | None]:
        """Where what came out is, and why some of it is not there."""


def submit(
    pipeline: Pipeline, flow: Flow, source: Source | None, wishes: Wishes, common: Common
) -> int:
    """Add, work, follow, and say how it went."""
    out = common.out
    found = Survey() if source is None else survey(pipeline, source)
    if source is not None and not found.accepted:
        return _nothing(source, found, pipeline, out)
    at = where(common)
    began = time.monotonic()
    report = asyncio.run(_run(flow, _Job(pipeline, source, found, wishes, out, at)))
    report.seconds = round(time.monotonic() - began, 3)
    _tell_refusals(source, found, out)
    if out.as_json:
        out.emit(_json(report))
    else:
        for line in _summary(report, pipeline, at, wishes):
            out.line(line)
    return report.code


def _nothing(source: Source, found: Survey, pipeline: Pipeline, out: Out) -> int:
    """A list without a single key."""
    if found.refused:
        first = found.refusals[0]
        why = f"{source.unit} {first.line}: {plain(first.why, WHY_CHARS)}"
        raise UsageError(f"{source.name} has no usable {source.word}; {why}")
    out.say(f"{source.name} has no {source.word}s in it: nothing to do")
    if out.as_json:
        out.emit(_json(Report(pipeline.name, already=True)))
    return OK


@dataclass(frozen=True, slots=True)
class _Job:
    pipeline: Pipeline
    source: Source | None
    found: Survey
    wishes: Wishes
    out: Out
    where: str
    """How a further command is told which database is meant."""


async def _run(flow: Flow, job: _Job) -> Report:
    from onceflow.commands.follow import Above, Follower, Scope, Watcher, Whole

    report = Report(job.pipeline.name, duplicate=job.found.duplicate, refused=job.found.refused)
    report.refusals = [{"line": one.line, "why": one.why} for one in job.found.refusals]
    async with flow:
        if job.wishes.check is not None:
            await job.wishes.check(flow)
        more = job.wishes.alone() if job.wishes.alone else nullcontext()
        async with _alone(getattr(flow.store, "path", None)), more:
            adding = await _begin(flow, job, report)
        if job.wishes.add_only:
            await adding.rest()
            await _settle(flow, report, job.where)
            report.stuck = 0  # nobody was asked to claim them
            return report
        scope = Scope(pipeline=job.pipeline.name, run=report.run)
        watcher = Watcher(flow, scope, job.pipeline.name, job.where)
        follower = Follower(flow, watcher, quiet=job.out.quiet)
        beside: Beside = Nothing()
        if job.wishes.beside is not None:
            beside = job.wishes.beside(flow, report.run, follower.warn)
        await beside.begin()
        if adding.done and await _is_over(flow, job, report):
            report.already = True
            await _catch_up(beside, report)
            await _settle(flow, report, job.where)
            report.for_good = await _failed_for_good(flow, report)
            if job.wishes.differs is not None and report.run is not None:
                report.notes += filter(None, [await job.wishes.differs(flow, report.run)])
            return report
        await watcher.begin()
        handler: logging.Handler = Above(follower)
        if job.wishes.verbose:
            handler = Whole(follower)
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        over = asyncio.Event()
        verbose = job.wishes.verbose
        with Stopper(flow, follower.say) as stopper, logging_to(handler, verbose=verbose):
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(follower.run(over))
                    adding_task = tasks.create_task(adding.rest(stopper.stopping))
                    ending = tasks.create_task(_stop_when_finished(flow, watcher))
                    tasks.create_task(beside.follow(over, adding.all))
                    try:
                        if job.wishes.follow_only:
                            await _either(stopper.stopping, watcher.finished)
                        else:
                            async with Helpers(job.wishes, follower.warn):
                                await _drain(flow, adding, adding_task, stopper)
                    finally:
                        ending.cancel()
                        over.set()
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None
            finally:
                beside.close()
            report.interrupted = stopper.stopping.is_set()
        report.out, report.unwritten = beside.report()
        return await _settle(flow, report, job.where)


@asynccontextmanager
async def _alone(database: Path | None) -> AsyncIterator[None]:
    """While a run is looked for and begun, nobody else does so beside this database file. Who waits
    for too long goes on: two runs of the same keys are no harm, only two digests."""
    if database is None:
        yield
        return
    folder = os.open(database.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(int(ALONE_SECONDS / 0.05)):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:  # held, or a file system that has no locks
                await asyncio.sleep(0.05)
        yield
    finally:
        os.close(folder)


async def _begin(flow: Flow, job: _Job, report: Report) -> _Adding:
    """Find the run again, or begin it with the first of its keys."""
    known: Run | None = None
    if job.source is not None:
        known = await _known_run(flow, job)
        report.run = _new_id(job) if known is None else known.id
        if known is not None:
            await _raise_ceilings(flow, job, known)
    elif job.wishes.follow_only:
        report.run = (await find_run(flow, "last")).id
    adding = _Adding(flow, job, report, sealed=known is not None and known.sealed)
    await adding.first()
    return adding


class Helpers:
    """Worker processes that share the work while this one does its own."""

    def __init__(self, wishes: Wishes, warn: Callable[[str], None]) -> None:
        self._wishes = wishes
        self._warn = warn
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> None:
        for command in self._wishes.helpers:
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={**os.environ, **(self._wishes.environment or {})},
                )
            )  # fmt: skip

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                async with asyncio.timeout(HELPER_SECONDS):
                    code = await process.wait()
            except TimeoutError:
                process.kill()
                code = await process.wait()
            if code not in (OK, INTERRUPTED):
                self._warn(f"worker pid {process.pid} ended with code {code}; others did its work")


class Nothing:
    """Nothing goes along."""

    async def begin(self) -> None: ...

    async def follow(self, over: asyncio.Event, added: asyncio.Event | None = None) -> None: ...

    def close(self) -> None: ...

    def report(self) -> tuple[str | None, str | None]:
        return None, None


async def _catch_up(beside: Beside, report: Report) -> None:
    """The run was over before: only what goes along with it may want mending."""
    over = asyncio.Event()
    over.set()
    try:
        await beside.follow(over)
    finally:
        beside.close()
    report.out, report.unwritten = beside.report()


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


class _Adding:
    """Puts a source's keys into its run, a chunk at a time; the last one seals it."""

    def __init__(self, flow: Flow, job: _Job, report: Report, *, sealed: bool) -> None:
        self._flow = flow
        self._job = job
        self._report = report
        self.news = asyncio.Event()
        self.all = asyncio.Event()
        """Every key is in the database."""
        self.done = job.source is None or sealed
        if sealed:  # all were added before
            report.known = job.found.accepted
        keys = iter(()) if job.source is None else keys_of(job.pipeline, job.source)
        self._chunks: Iterator[list[str]] = _chunks(keys)

    async def first(self) -> None:
        """The first chunk: if the database cannot be reached, it is said at once."""
        if not self.done:
            await self._one()

    async def rest(self, stopping: asyncio.Event | None = None) -> None:
        """The others, while work goes on. Adding again after a lost reply is harmless."""
        while not self.done and not (stopping is not None and stopping.is_set()):
            await self._one(patient=stopping is not None)
            self.news.set()
        self.news.set()
        if self.done:
            self.all.set()

    async def _one(self, *, patient: bool = False) -> None:
        job, report = self._job, self._report
        chunk: list[str] = await asyncio.to_thread(next, self._chunks)
        ceilings = job.wishes.ceilings
        while True:
            try:
                added = await self._flow.add(
                    job.pipeline, chunk, run=report.run, seal=len(chunk) < ADD_CHUNK,
                    max_items=ceilings.max_items, max_depth=ceilings.max_depth,
                    max_tokens=ceilings.max_tokens, max_cost=ceilings.max_cost,
                    refresh=job.wishes.refresh,
                )  # fmt: skip
            except StoreUnavailable:
                if not patient:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            break
        report.new += added.new
        report.known += added.known
        report.over_budget += added.over_budget
        self.done = len(chunk) < ADD_CHUNK


def _chunks(keys: Iterator[str]) -> Iterator[list[str]]:
    """Full chunks, and a shorter one (it may be empty) to end with."""
    while True:
        chunk = list(islice(keys, ADD_CHUNK))
        yield chunk
        if len(chunk) < ADD_CHUNK:
            return


async def _known_run(flow: Flow, job: _Job) -> Run | None:
    """The run that these same keys were added to before, to go on with it."""
    if job.wishes.new_run or job.wishes.refresh:
        return None
    mark = _mark(job)
    rows = await flow.store.read("item_by_key", pipeline=job.pipeline.name, key=job.found.first)
    if not rows:
        return None
    for row in reversed(await flow.store.read("runs_of", item=rows[0]["id"])):
        if row["run"].endswith(mark):
            return await flow.run(row["run"])
    return None


async def _raise_ceilings(flow: Flow, job: _Job, run: Run) -> None:
    """A known run may spend what is said now."""
    tokens, cost = job.wishes.ceilings.max_tokens, job.wishes.ceilings.max_cost
    if tokens is not None or cost is not None:
        await flow.add(
            job.pipeline, (), run=run.id, seal=run.sealed, max_tokens=tokens, max_cost=cost
        )


def _new_id(job: _Job) -> str:
    return new_run_id()[:11] + _mark(job)  # the newest run of these keys is known again


def _mark(job: _Job) -> str:
    """How a run is known again: by its keys and how many of them it takes. What it may spend can
    be raised afterwards."""
    ceilings = job.wishes.ceilings
    whole = f"{job.found.fingerprint} {ceilings.max_items} {ceilings.max_depth}"
    return blake2b(whole.encode(), digest_size=6).hexdigest()


async def _drain(
    flow: Flow, adding: _Adding, adding_task: asyncio.Task[None], stopper: Stopper
) -> None:
    """Work until all is added and nothing is left to do."""
    while not stopper.stopping.is_set():
        complete = adding.done
        adding.news.clear()
        await flow.drain()
        if complete or adding_task.done():
            return
        if not adding.done:
            await adding.news.wait()


async def _stop_when_finished(flow: Flow, watcher: Watcher) -> None:
    """This run is over: what other runs have left is other processes' work."""
    await watcher.finished.wait()
    flow.stop_soon()


async def _is_over(flow: Flow, job: _Job, report: Report) -> bool:
    """Whether there was nothing to do from the start."""
    if report.run is not None:
        run = await flow.run(report.run)
        return run.finished_at is not None and run.open == 0
    rows = await flow.store.read("activity")
    mine = [row for row in rows if row["pipeline"] == job.pipeline.name]
    open_runs = any(one.finished_at is None and one.sealed for one in await flow.runs(job.pipeline))
    return not open_runs and not any(
        row["ready"] or row["active"] or row["backing_off"] for row in mine
    )


async def depths(flow: Flow, pipeline: str, run: str | None) -> list[Any]:
    """How many items of a run, or of a whole pipeline, are how deep, by phase."""
    if run is None:
        return await flow.store.read("counts_by_depth", pipeline=pipeline)
    return await flow.store.read("depths_of_run", run=run)


async def _settle(flow: Flow, report: Report, where: str) -> Report:
    """Count what came out."""
    run = None if report.run is None else await flow.run(report.run)
    report.states = await flow.counts(report.pipeline, run=report.run)
    gates = {
        row["stage"] for row in await flow.store.read("stages")
        if row["pipeline"] == report.pipeline and row["is_gate"]
    }  # fmt: skip
    held = {stage.name for stage in flow.pipeline(report.pipeline).stages if stage.held}
    if report.run is None:
        counts = await flow.store.read("counts", pipeline=report.pipeline)
    else:
        counts = await flow.store.read("counts_of_run", run=report.run)
    for row in counts:
        if row["stage"] in gates:
            continue
        report.items += row["items"]
        if row["phase"] in ("done", "failed", "cancelled"):
            setattr(report, row["phase"], getattr(report, row["phase"]) + row["items"])
        else:
            report.open += row["items"]
            if row["phase"] == "waiting" and row["stage"] in held:
                state = flow.pipeline(report.pipeline).state(row["stage"], "waiting")
                report.held[state] = report.held.get(state, 0) + row["items"]
            report.stuck += row["items"] if row["phase"] == "ready" else 0
    if run is not None and run.gate_item is not None:
        gate = await flow.item(None, run.gate_item)
        report.gate = gate.phase.value
        if gate.phase is Phase.DONE and not report.open:
            since = await flow.store.read("changed_since", run=run.id, since=gate.updated_at)
            report.changed_since_gate = since[0]["items"]
    if run is not None:
        report.tokens, report.cost = run.tokens, run.cost
        report.full = run.max_items is not None and run.accepted >= run.max_items
    if flow.pipeline(report.pipeline).spreads is not None:
        for row in await depths(flow, report.pipeline, report.run):
            deep = str(row["depth"])
            report.depths[deep] = report.depths.get(deep, 0) + row["items"]
    if run is not None and run.halted and run.finished_at is None:
        report.stuck = report.stuck or 1  # the gate's own item may be all that waits
        report.notes.append(
            f"the run is halted: {run.halted}; this command with a larger one goes on"
        )
    waits = report.open or (run is not None and run.finished_at is None)
    for row in await flow.store.read("stages"):
        if row["pipeline"] == report.pipeline and row["paused_at"] is not None and waits:
            report.stuck = report.stuck or 1  # the gate's own item may be all that waits
            report.notes.append(_paused(row, where))
    return report


async def _failed_for_good(flow: Flow, report: Report) -> int | None:
    """How many of a run's failed items a plain retry would leave alone, if they are few enough to
    look at the history of each."""
    if not 0 < report.failed <= LOOKED_AT_MAX:
        return None
    failed = flow.pipeline(report.pipeline).failed
    retried = await flow.act(
        "retry", report.pipeline, state=failed, run=report.run, permanent=False, dry_run=True
    )
    return retried.for_good


def _paused(row: Any, where: str) -> str:
    """What to do about a paused stage."""
    command = f"`onceflow resume {row['stage']}{where}`"
    if not row["paused_why"]:
        return f"stage {row['stage']} is paused: {command}"
    why = f"stage {row['stage']} is paused: {row['paused_why']}"
    return f"{why}; then {command}, and the same command again goes on"


def _summary(report: Report, pipeline: Pipeline, where: str, wishes: Wishes) -> Iterator[str]:
    """The last lines: what came out, and what to do next."""
    whose = f"{report.pipeline}" if report.run is None else f"{report.pipeline} {report.run}"
    counts = [
        f"{count:,} {name}"
        for count, name in (
            (report.done, "done"),
            (report.failed, "failed"),
            (report.cancelled, "cancelled"),
            *((count, state) for state, count in report.held.items()),
            (report.open - sum(report.held.values()), "open"),
        )
        if count or name == "done"
    ]
    if wishes.add_only:
        yield f"{whose}: added {report.new:,}, already known {report.known:,}"
        command = WORKED_BY.get(report.pipeline, "onceflow worker FILE.py")
        yield f"  next: {command}{wishes.flags}{where}, and onceflow watch {report.run}{where}"
        if wishes.flags:
            yield "    (each worker goes by its own flags and settings: give all of them the same)"
        return
    if report.already and not report.items:
        yield f"{whose}: nothing to do: the database has none of its items, and none is named"
        return
    if report.already:
        already = "nothing is left to do" if report.failed else "all done already"
        yield f"{whose}: {already}: {', '.join(counts)}"
    else:
        stopped = "stopped, " if report.interrupted else ""
        tokens = f", {report.tokens:,} tokens" if report.tokens else ""
        cost = f" for {report.cost:,.4g}" if report.cost else ""
        yield f"{whose}: {stopped}{', '.join(counts)}{tokens}{cost} in {span(report.seconds)}"
    if report.out is not None:
        yield f"  written: {plain(report.out)}"
    if report.unwritten is not None:
        yield f"  {plain(report.unwritten)}; run the same command again to write them"
    if report.duplicate and not report.already:
        yield f"  {many(report.duplicate, 'line')} of the list said the same as another"
    if len(report.depths) > 1:
        deep = sorted(report.depths.items(), key=lambda pair: int(pair[0]))
        yield "  by depth: " + ", ".join(f"{depth}: {count:,}" for depth, count in deep)
    if report.over_budget:
        left_out = many(report.over_budget, "item")
        yield f"  {left_out} left out: the run's {wishes.budget} is reached"
    elif report.full and report.depths and not report.interrupted:
        yield f"  its {wishes.budget} is reached; with a larger one it goes on from here"
    if report.gate == "failed":
        yield f"  the gate's item failed: onceflow show gate:{report.run}{where}"
    elif report.gate == "done" and report.out is None:
        yield f"  after all of them: onceflow show gate:{report.run}{where}"
    if report.changed_since_gate:
        what = "the digest" if report.out is not None else "that"
        yield (
            f"  {what} is from before {many(report.changed_since_gate, 'item')} changed: "
            "this command with --new-run writes a new one"
        )
    for note in report.notes:
        yield f"  {plain(note, 800)}"
    if report.held and not report.interrupted:
        yield f"  {', '.join(report.held)}: {wishes.held}{where}"
    if report.done and wishes.look:
        yield "  look: " + ", ".join(f"{command}{where}" for command in wishes.look)
    if report.interrupted:
        yield "  nothing is lost: run the same command again to go on"
    elif report.failed:
        run = "" if report.run is None else f" --run {report.run}"
        which = f"--state {pipeline.failed}{run}{where}"
        yield f"  next: onceflow items {which}"
        if report.already:
            file = "FILE.py " if _needs_file(pipeline) else ""
            every = report.for_good == report.failed
            which = f"--permanent {which}" if every else which
            yield f"  to open them again: onceflow retry {file}{which}, and this command again"
            if not every and report.for_good != 0:
                yield "    (--permanent opens also what failed for good, such as a refused address)"


def _needs_file(pipeline: Pipeline) -> bool:
    """Whether only the program knows which lanes its items are in."""
    lanes = any(stage.lane is not None for stage in pipeline.stages)
    return lanes and pipeline.name not in WORKED_BY


def _tell_refusals(source: Source | None, found: Survey, out: Out) -> None:
    if source is None or not found.refused:
        return
    out.say(f"{source.name}: {many(found.refused, source.unit)} refused")
    for one in found.refusals:
        out.say(f"  {source.unit} {one.line}: {plain(one.why, WHY_CHARS)}")
    if found.refused > len(found.refusals):
        out.say(f"  … and {found.refused - len(found.refusals):,} more")


def _json(report: Report) -> dict[str, Any]:
    values = {name: getattr(report, name) for name in Report.__dataclass_fields__}
    return {**values, "code": report.code}


# --- worker ---


def worker(
    file: Path,
    /,
    *,
    pipeline: Annotated[list[str] | None, Parameter(negative=())] = None,
    auto_generate: Annotated[bool, Flag] = False,
    until_eof: Annotated[bool, Flag] = False,
    verbose: Annotated[bool, Flag] = False,
    options: Options | None = None,
    asking: Asking | None = None,
    subject: Subject | None = None,
    engine: Engine | None = None,
    common: Common | None = None,
) -> int:
    """Claim and work for a database until stopped.

    SIGTERM or Ctrl-C once: claim no more, finish what is under way within the
    grace time, give the rest back without costing an attempt. Twice: stop at once.
    Exit code 0 after SIGTERM, 130 after Ctrl-C.

    Parameters
    ----------
    file
        The Python file with your Pipelines at its top level, or `summarize`, `analyze`,
        `ingest`, `expand`.
    pipeline
        Only this Pipeline of the file; repeatable.
    auto_generate
        For `ingest`: write the story of an article as soon as its text is there.
    until_eof
        Stop when stdin ends: for a worker that must not outlive the program that started it.
    verbose
        Log every transition, and the tracebacks of handlers.
    """
    common = common or Common()
    settings = (engine or Engine()).settings(common)
    options, subject = options or Options(), subject or Subject()
    asking = asking or Asking()
    if str(file) in READY_NAMES and str(file) != "analyze" and not file.exists():
        refuse_others(str(file), asking)
    if auto_generate and str(file) in READY_NAMES and str(file) != "ingest":
        raise UsageError("--auto-generate is for `onceflow worker ingest`")
    if str(file) == "analyze" and not file.exists():
        refuse_others("analyze", options, ("model", "base_url", "contact", "allow_network"))
        refuse_others("analyze", subject)
        reached = Assistants(
            options.model, options.base_url, options.contact, options.allow_network
        )
        flow = common.flow(analyze_job(common, asking, reached).pipeline(), settings=settings)
    elif str(file) == "expand" and not file.exists():
        refuse_others("expand", options, ("contact", "allow_network"))
        reach = Reach(options.contact, options.allow_network)
        job = expand_job(common, subject, reach)
        flow = common.flow(job.pipeline(), settings=settings)
    elif str(file) in READY_NAMES and not file.exists():
        refuse_others(str(file), subject)
        flow = worker_flow(str(file), common, options, settings, auto_generate=auto_generate)
    else:
        refuse_unless_ready(options, auto_generate=auto_generate)
        refuse_unless_ready(subject)
        refuse_unless_ready(asking)
        flow = common.flow(*pipelines_of(file, pipeline or ()), settings=settings)
    return asyncio.run(_work(flow, common.out, verbose=verbose, until_eof=until_eof))


async def _work(flow: Flow, out: Out, *, verbose: bool, until_eof: bool) -> int:
    handler = LogLines(as_json=out.as_json, quiet=out.quiet, verbose=verbose)
    async with flow:
        with Stopper(flow, handler.say) as stopper, logging_to(handler, verbose=verbose):
            names = ", ".join(flow.pipelines)
            handler.say(f"pid {os.getpid()} works on {names} in {flow.store.url}; Ctrl-C stops it")
            working = flow.start()
            stopper.again()
            if until_eof:
                stopper.at_eof()
            telling = asyncio.create_task(_tell(flow, handler))
            try:
                await working
            finally:
                telling.cancel()
        health = flow.last_health
        tally = {} if health is None else health.tally
        handler.say(f"stopped: {_done(tally)}")
        if out.as_json:
            out.emit({"stopped": True, **tally})
    return stopper.code


async def _tell(flow: Flow, handler: LogLines) -> None:
    """Now and then, what this worker has done since it began."""
    told = _done({})
    while True:
        await asyncio.sleep(TELL_SECONDS)
        health = flow.health()
        if health is not None and (text := _done(health.tally)) != told:
            told = text
            handler.say(text)


def _done(tally: dict[str, int]) -> str:
    names = ("claimed", "finished", "failed", "retried", "released", "lost", "reclaimed")
    words = [f"{tally[name]:,} {name}" for name in names if tally.get(name)]
    return ", ".join(words) or "nothing to do"


class LogLines(logging.Handler):
    """A worker's log on stderr: plain lines, or one JSON object each."""

    def __init__(self, *, as_json: bool, quiet: bool, verbose: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._quiet = quiet
        self._verbose = verbose
        self._traces = logging.Formatter()

    def say(self, text: str) -> None:
        if not self._quiet:
            self._put("info", text, {})

    def emit(self, record: logging.LogRecord) -> None:
        if self._quiet and record.levelno < logging.WARNING:
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {raised(record.exc_info[1])}"
        fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if self._verbose and record.exc_info:
            fields["traceback"] = self._traces.formatException(record.exc_info)
        self._put(record.levelname.lower(), text, fields)

    def _put(self, level: str, text: str, fields: dict[str, Any]) -> None:
        now = datetime.now(UTC).astimezone()
        if self._as_json:
            at = now.isoformat(timespec="milliseconds")
            remark(json.dumps({"at": at, "level": level, "message": plain(text, 1000), **fields}))
            return
        mark = "" if level == "info" else f"{level}: "
        remark(f"{now:%H:%M:%S} {mark}{plain(text, 1000)}")
        if "traceback" in fields:
            for line in fields["traceback"].splitlines():
                remark(f"  {plain(line, 1000)}")


FIELDS = ("pipeline", "key", "item", "run", "stage", "phase", "state", "fence", "attempt", "kind")


# --- both ---


class Stopper:
    """What SIGINT, SIGTERM and SIGHUP (a closed terminal) do while there is work: first drain, then
    stop at once, then leave.

    Handlers of the interpreter, not of the event loop: they run even while a handler blocks it.
    """

    def __init__(self, flow: Flow, say: Any) -> None:
        self._flow = flow
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._before: dict[int, Any] = {}
        self.count = 0
        self.interrupted = False
        self.stopping = asyncio.Event()

    @property
    def code(self) -> int:
        return INTERRUPTED if self.interrupted or self.count > 1 else OK

    def __enter__(self) -> Stopper:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._signalled)  # not if nohup
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.interrupted |= number == signal.SIGINT
        if self.count > 2:
            os._exit(INTERRUPTED)  # what is left behind is reclaimed
        self._loop.call_soon_threadsafe(self._stop, self.count)

    def at_eof(self) -> None:
        """Stop when stdin ends."""

        def wait() -> None:
            with suppress(OSError, ValueError):
                while os.read(sys.stdin.fileno(), 65536):
                    pass
            with suppress(RuntimeError):  # the loop is closed: it has stopped already
                self._loop.call_soon_threadsafe(self._stop, max(1, self.count))

        threading.Thread(target=wait, name="onceflow-stdin", daemon=True).start()

    def again(self) -> None:
        """A signal came before there was anything to stop."""
        if self.count:
            self._flow.stop_soon(None if self.count == 1 else 0)

    def _stop(self, count: int) -> None:
        self.stopping.set()
        if count == 1:
            grace = self._flow.settings.grace_seconds
            self._say(
                f"stopping: what is under way has {span(grace)} to finish, the rest is given back; "
                "once more stops at once"
            )
            self._flow.stop_soon()
        else:
            self._say("stopping at once; what was under way is given back")
            self._flow.stop_soon(0)


@contextmanager
def logging_to(handler: logging.Handler, *, verbose: bool) -> Iterator[None]:
    """The engine's log, for as long as a command works."""
    log = logging.getLogger("onceflow")
    before = log.level, log.propagate
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
