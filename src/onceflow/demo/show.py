"""The demo from start to end: the site, two workers, one killed, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onceflow import Flow, OnceflowError
from onceflow.commands.follow import Scope, Watcher
from onceflow.commands.output import UsageError
from onceflow.commands.text import plain, span
from onceflow.demo.articles import articles
from onceflow.demo.flow import Pace, open_flow
from onceflow.demo.site import CLOSED_PATH, MOVED, OLD_PATH, SLOW_PATH, Site
from onceflow.demo.tell import Teller
from onceflow.pipelines.summaries import summary_files
from onceflow.pipelines.summarize import Summarize

DATABASE, SUMMARIES, ADDRESSES = "demo.db", "summaries", "addresses.txt"
MARK = ".onceflow-demo"
MADE = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", SUMMARIES, ADDRESSES, "worker-1.log",
        "worker-2.log", ".gitignore", MARK)  # fmt: skip
FAILED = {"http_404", "robots_disallowed"}
START_SECONDS_MAX = 60.0
KILL_AFTER_SECONDS = 1.2
"""How long the slow page is under way before its worker dies: long enough to be seen."""


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """A folder for one demo at a time."""
    _check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another demo is being played in {folder}; wait for its end, or name another "
                "folder with --out"
            ) from None
        except OSError:
            pass  # a file system without locks
        make_folder(folder)
        yield
    finally:
        os.close(held)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name another with --out")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise UsageError(f"{folder} has other things in it; name another folder with --out")


def make_folder(folder: Path) -> None:
    """A folder for the demo. What an earlier demo left there is replaced, and nothing else."""
    _check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in MADE:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (folder / MARK).write_text("made by `onceflow demo`, which replaces what it made\n")
    (folder / ".gitignore").write_text("*\n")


@dataclass(slots=True)
class Report:
    """What came out, and what of it is not as it should be. Pages are named by their paths."""

    out: str
    site: str = ""
    items: int = 0
    summaries: int = 0
    same: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    killed: str = ""
    killed_pid: int = 0
    held: dict[str, str] = field(default_factory=dict)
    """What the killed worker held, and in which state."""
    taken_over: dict[str, str] = field(default_factory=dict)
    """What another went on with, and which worker that was."""
    requests: dict[str, list[str]] = field(default_factory=dict)
    """How the server answered each request for a page."""
    added_again: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    audit: str = ""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class _Worker:
    name: str
    process: asyncio.subprocess.Process
    log: Path
    id: str = ""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.process.pid})"


class Show:
    """One demo."""

    def __init__(self, out: Path, speed: float, tell: Teller) -> None:
        self._out = out
        self._database = out / DATABASE
        self._speed = speed
        self._pace = Pace.at(speed)
        self._tell = tell
        self._workers: list[_Worker] = []
        self._report = Report(str(out))
        self._slow = 0
        """The item of the slow page."""
        self._extra: Counter[str] = Counter()
        """By how many attempts each page was tried more than once, as the history has it."""

    async def play(self, seconds_max: float) -> Report:
        began = time.monotonic()
        async with (
            asyncio.timeout(seconds_max),
            Site(slow_seconds=self._pace.slow_seconds) as site,
            open_flow(self._database, self._pace) as flow,
        ):
            addresses = site.addresses()
            (self._out / ADDRESSES).write_text("\n".join(addresses) + "\n")
            self._report.site = site.url("/")
            async with self._two_workers(flow):
                self._introduce(site, addresses)
                [pipeline] = flow.pipelines.values()
                run = (await flow.add(pipeline, addresses)).run
                self._slow = (await flow.item(pipeline, site.url(SLOW_PATH))).id
                await self._watch(flow, site, run)
            await self._results(flow, run)
            self._server(site)
            await self._again(flow, site, addresses, run)
        await self._audit()
        self._report.seconds = round(time.monotonic() - began, 1)
        self._end()
        return self._report

    def _expect(self, true: bool, otherwise: str) -> None:
        if not true:
            self._report.wrong.append(otherwise)

    # --- the workers ---

    @contextlib.asynccontextmanager
    async def _two_workers(self, flow: Flow) -> AsyncIterator[None]:
        try:
            self._workers = [await self._start(number) for number in (1, 2)]
            async with asyncio.timeout(START_SECONDS_MAX):
                while not all(worker.id for worker in self._workers):
                    await asyncio.sleep(0.05)
                    await self._meet(flow)
            yield
        finally:
            for worker in self._workers:
                if worker.process.returncode is None:
                    worker.process.terminate()
            for worker in self._workers:
                await worker.process.wait()

    async def _start(self, number: int) -> _Worker:
        path = self._out / f"worker-{number}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "onceflow.demo.worker", str(self._database),
                self._pace.as_text(), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL, stderr=log, start_new_session=True,
            )  # fmt: skip
        return _Worker(f"worker {number}", process, path)

    async def _meet(self, flow: Flow) -> None:
        """Learn the workers' ids: each enters itself into the database when it is ready."""
        ids = {row["pid"]: row["id"] for row in await flow.store.read("workers")}
        for worker in self._workers:
            if worker.process.returncode is not None:
                raise OnceflowError(f"{worker} ended at its start; {worker.log} says why")
            worker.id = ids.get(worker.process.pid, "")

    async def _held(self, flow: Flow, worker: _Worker) -> dict[str, str]:
        """What a worker has leases for, by path, and the states."""
        rows = await flow.store.read("held", worker=worker.id)
        [pipeline] = flow.pipelines.values()
        return {_path(row["key"]): pipeline.state(row["stage"], "active") for row in rows}

    async def _holder(self, flow: Flow, path: str) -> _Worker:
        while True:
            for worker in self._workers:
                if path in await self._held(flow, worker):
                    return worker
            await asyncio.sleep(0.02)

    # --- the run ---

    def _introduce(self, site: Site, addresses: Sequence[str]) -> None:
        tell = self._tell
        tell.head(f"{len(addresses)} addresses of a small web site become summaries and a digest.")
        tell.say("All of it on this machine: no network, no key, no download.")
        tell.line()
        tell.pairs(
            [
                ("site", f"{site.url('/')} is bundled, and as odd as real ones: a page has moved, "
                 "one is gone, one fails twice before it works, one is slow, one has two "
                 "addresses, one is closed by robots.txt."),
                ("workers", f"{' and '.join(map(str, self._workers))}: two processes that share a "
                 "database file and nothing else."),
                ("model", "embedded: it picks the sentences that say most, in milliseconds. Here "
                 "it is slowed down, so that you can read along."),
                ("watch", "The worker that gets the slow page is going to be killed with -9. Its "
                 f"leases last {self._pace.lease_seconds:g} s here, not "
                 f"{Summarize.lease_seconds:g} s as usual."),
            ]
        )  # fmt: skip
        tell.line()

    async def _watch(self, flow: Flow, site: Site, run: str) -> None:
        """The live view, the files, the kill and the story, until the run is over."""
        watcher = Watcher(flow, Scope(pipeline="summarize", run=run), "summarize")
        over = asyncio.Event()
        try:
            async with (
                summary_files(flow, self._out / SUMMARIES, run=run) as files,
                asyncio.TaskGroup() as tasks,
            ):
                tasks.create_task(self._tell.follow(watcher, over))
                tasks.create_task(files.follow(over))
                tasks.create_task(self._kill(flow, site))
                guards = [tasks.create_task(self._guard(worker)) for worker in self._workers]
                await self._story(flow)
                for guard in guards:
                    guard.cancel()
                over.set()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    async def _guard(self, worker: _Worker) -> None:
        """A worker that ends by itself would leave us waiting for ever."""
        if await worker.process.wait() != -signal.SIGKILL:
            raise OnceflowError(f"{worker} ended by itself; {worker.log} says why")

    async def _kill(self, flow: Flow, site: Site) -> None:
        """Wait until a worker is in the middle of the slow page, and kill it."""
        await site.slow_begun.wait()
        await asyncio.sleep(KILL_AFTER_SECONDS / self._speed)
        victim = await self._holder(flow, SLOW_PATH)
        victim.process.kill()
        await victim.process.wait()
        held = await self._held(flow, victim)
        site.release()
        report = self._report
        report.killed, report.killed_pid, report.held = victim.name, victim.process.pid, held
        what = ", ".join(f"{path} ({state})" for path, state in held.items())
        tell = self._tell
        tell.happened(f"KILLED {victim} with kill -9, in the middle of its work.", "bold red")
        tell.happened(f"It held {what}.", "red")
        tell.happened(
            "The other goes on; it may take these over when the lease of "
            f"{self._pace.lease_seconds:g} s is over.",
            "red",
        )

    async def _story(self, flow: Flow) -> None:
        """What a watcher should not miss, until the run is over."""
        lost: set[str] = set()
        tell = self._tell
        async for event in flow.events(follow=True):
            path = "the digest" if event.key is None else _path(event.key)
            match event.kind:
                case "retried":
                    self._extra[path] += 1
                    tell.happened(f"{self._error(event.data)}; again after a pause", "yellow")
                case "failed":
                    tell.happened(f"{self._error(event.data)}; failed for good", "yellow")
                case "reclaimed":
                    self._extra[path] += 1
                    lost.add(path)
                    tell.happened(f"lease over: {path} can be claimed again", "magenta")
                case "claimed" if path in lost:
                    lost.discard(path)
                    name = next(one.name for one in self._workers if one.id == event.worker)
                    self._report.taken_over[path] = name
                    tell.happened(f"{name} takes over {path} (attempt {event.attempt})", "green")
                case "gate_opened":
                    tell.happened("all are settled: the gate opens, once, for the digest")
                case "run_finished":
                    tell.happened("the digest is written, the run is over")
                    return

    def _error(self, data: Any) -> str:
        """An error with paths for addresses: there is only one site here."""
        return plain(data.get("error", ""), 200).replace(self._report.site, "/")

    # --- what came of it ---

    async def _results(self, flow: Flow, run: str) -> None:
        gate = (await flow.run(run)).gate_item
        assert gate is not None
        found: dict[str, Any] = await flow.result(gate, "digest")
        report, counts = self._report, found["counts"]
        report.summaries, report.same = counts["completed"], counts["same"]
        report.items = counts["completed"] + counts["same"] + counts["failed"]
        report.failed = {_path(one["url"]): one["code"] for one in found["failed"]}
        report.digest = found["digest"]
        self._expect(report.summaries == len(articles()), "not every article has one summary")
        self._expect(report.same == 1, "the page with two addresses was not recognized")
        self._expect(set(report.failed.values()) == FAILED, "other pages failed than should have")
        left = [path for path in report.held if path not in report.taken_over]
        self._expect(bool(report.held), "no worker was killed")
        self._expect(not left, f"nobody took over {', '.join(left)}")
        files = len(list((self._out / SUMMARIES).glob("[0-9]*.json")))
        self._expect(files == report.items, f"{files} files for {report.items} addresses")
        tell = self._tell
        tell.head("The digest")
        tell.say(report.digest)
        tell.line()
        tell.titles([(one["title"], one["summary"]) for one in found["articles"]])
        tell.line()
        same = ", ".join(_path(one["url"]) for one in found["same"])
        failed = ", ".join(f"{path} ({code})" for path, code in report.failed.items())
        tell.say(
            f"{report.items} addresses: {report.summaries} summaries; {report.same} second address "
            f"of a page, not summarized again ({same}); {len(report.failed)} failed: {failed}."
        )

    def _server(self, site: Site) -> None:
        """Count on the other side, from the site's own log."""
        report = self._report
        for visit in site.visits:
            if visit.path != "/robots.txt":
                cut_off = "cut off by the kill" if visit.path in report.held else "cut off"
                answer = str(visit.status) if visit.whole else cut_off
                report.requests.setdefault(visit.path, []).append(answer)
        self._extra[f"/articles/{MOVED}"] = self._extra[OLD_PATH]
        several = {path: how for path, how in report.requests.items() if len(how) > 1}
        for path, how in several.items():
            self._expect(
                len(how) <= 1 + self._extra[path],
                f"{path} was asked for {len(how)} times, but tried {1 + self._extra[path]} times",
            )
        once = len(report.requests) - len(several)
        self._expect(CLOSED_PATH not in report.requests, f"{CLOSED_PATH} was asked for")
        tell = self._tell
        tell.head("What the server itself saw")
        tell.pairs(
            [
                (f"{once} addresses", "asked for exactly once"),
                *((path, f"{len(how)} times: {', '.join(how)}") for path, how in several.items()),
                (CLOSED_PATH, "never: its robots.txt says no"),
            ]
        )

    async def _again(self, flow: Flow, site: Site, addresses: Sequence[str], run: str) -> None:
        """Adding what is known, also under a page's other address, changes nothing."""
        before = len(site.visits)
        [pipeline] = flow.pipelines.values()
        everything = [*addresses, site.url(f"/articles/{MOVED}")]
        added = await flow.add(pipeline, everything, run=run)
        self._report.added_again = {"new": added.new, "known": added.known}
        self._expect(added.new == 0, f"{added.new} known addresses were taken for new ones")
        self._expect(len(site.visits) == before, "a known page was asked for again")
        self._tell.head("The same addresses once more")
        self._tell.say(
            f"{added.new} new, {added.known} known already (also the new address of the page that "
            "has moved). Nothing is fetched, nothing is summarized again."
        )

    async def _audit(self) -> None:
        """What the user can run as well."""
        command = ("onceflow", "audit", "--db", str(self._database))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        self._report.audit = output.decode().strip()
        self._expect(process.returncode == 0, "the audit found a violation")
        tell = self._tell
        tell.head(f"$ {shlex.join(command)}")
        for line in self._report.audit.splitlines():
            tell.say(line)
        if process.returncode == 0:
            tell.say(
                "It read the whole history: one result for each item and stage, nothing written "
                "under a lost lease, no limit exceeded, one digest.",
                "green",
            )

    def _end(self) -> None:
        report, tell = self._report, self._tell
        database = shlex.quote(str(self._database))
        onceflow = _command()
        summaries = self._out / SUMMARIES
        tell.head("Where to look next")
        tell.pairs(
            [
                (f"{summaries / 'digest.md'}", "the digest; beside it one JSON file for each page"),
                (f"{onceflow} show {self._slow} --db {database}",
                 f"the history of {SLOW_PATH}, which was taken over"),
                (f"{onceflow} status --db {database}", "the counts, the workers, the failures"),
                (f"{self._out / 'worker-1.log'}, {self._out / 'worker-2.log'}",
                 "every transition, as each worker saw it"),
                (f"{onceflow} summarize URL...", "the same with pages of your own"),
            ]
        )  # fmt: skip
        tell.line()
        if report.ok:
            tell.line(f"All as it should be, after {span(report.seconds)}.", "bold green")
        for text in report.wrong:
            tell.line(f"Not as it should be: {text}", "bold red")


def _command() -> str:
    """How this program is called from here: it may lie in an environment that is not active."""
    if shutil.which("onceflow"):
        return "onceflow"
    beside = Path(sys.executable).with_name("onceflow")
    inside = beside.exists() and beside.is_relative_to(Path.cwd())
    return shlex.quote(str(beside.relative_to(Path.cwd()))) if inside else "onceflow"


def _path(url: str) -> str:
    return urlsplit(url).path
