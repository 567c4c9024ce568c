"""The commands that check: audit, doctor, config."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cyclopts import App

from onceflow import Flow, OnceflowError, StoreUnavailable, __version__
from onceflow.commands.common import Common
from onceflow.commands.config import TABLES, Config
from onceflow.commands.next import where, worker_for
from onceflow.commands.output import OK, SOME_FAILED, UNREACHABLE, Out, UsageError
from onceflow.commands.text import many, masked, plain, span
from onceflow.engine.audit import INVARIANTS
from onceflow.engine.figures import HELD_MS_MAX
from onceflow.engine.neighbours import ended_here, living

CLOCK_SECONDS_MAX = 60.0
DISK_BYTES_MIN = 256 * 1024 * 1024
PROVIDER_KEY, PROVIDER_URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"


# --- audit ---


def audit(*, grace_seconds: float = 10.0, common: Common | None = None) -> int:
    """Check the invariants on the stored history; exit code 1 if one is broken.

    Parameters
    ----------
    grace_seconds
        A run that was settled so short a time ago may still wait for its gate.
    """
    common = common or Common()
    if not 0 <= grace_seconds < float("inf"):
        raise UsageError(f"--grace-seconds is {grace_seconds}; it must be 0 or more")
    return asyncio.run(_audit(common.existing(), grace_seconds, common.out))


async def _audit(flow: Flow, grace_seconds: float, out: Out) -> int:
    async with flow:
        found = await flow.audit(grace_seconds=grace_seconds)
        items = sum(row["items"] for row in await flow.store.read("counts", pipeline=None))
    if out.as_json:
        out.emit(
            {"ok": not found, "items": items, "invariants": list(INVARIANTS),
             "violations": [asdict(one) for one in found]}
        )  # fmt: skip
        return SOME_FAILED if found else OK
    for one in found:
        whose = f"item {one.item} " if one.item is not None else ""
        out.line(f"{one.invariant} {whose}{plain(one.key or '', 200)}: {plain(one.detail, 500)}")
    names = " ".join(INVARIANTS)
    if found:
        for name in dict.fromkeys(one.invariant for one in found):
            out.line(f"{name} means: {INVARIANTS[name]}")
        out.line(f"{many(len(found), 'violation')} in {many(items, 'item')} ({names} checked)")
    else:
        out.line(f"{many(items, 'item')}: no violation ({names} checked)")
    return SOME_FAILED if found else OK


# --- doctor ---

Verdict = Literal["ok", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    detail: str
    do: str = ""


def doctor(*, common: Common | None = None) -> int:
    """Is everything well: database, workers, stuck items, clock; and what to do if not."""
    common = common or Common()
    out = common.out
    findings = [
        Finding("program", "ok", f"Onceflow {__version__}, Python {platform.python_version()}")
    ]
    code = OK
    looking_at = "settings"
    try:
        common.settings()
        changed = [(name, origin) for name, _, origin in _all_settings(common)]
        text = ", ".join(f"{name} from {origin}" for name, origin in changed if origin != "default")
        findings.append(Finding("settings", "ok", text or "all defaults"))
        looking_at = "model"
        findings.append(_model(common))
        looking_at = "database"
        findings += asyncio.run(_examine(common.existing(), where(common)))
    except (OnceflowError, UsageError) as error:
        findings.append(Finding(looking_at, "bad", masked(str(error))))
        code = UNREACHABLE if isinstance(error, StoreUnavailable) else OK
    if code == OK and any(one.verdict == "bad" for one in findings):
        code = SOME_FAILED
    if out.as_json:
        out.emit({"ok": code == OK, "findings": [asdict(one) for one in findings]})
        return code
    for one in findings:
        out.hanging(f"{one.verdict:<4}  {one.what:<9}  ", plain(one.detail, 1000))
        if one.do:
            out.line(f"                 do: {one.do}")
    return code


def _model(common: Common) -> Finding:
    """Whether the model that is chosen can be used. Nothing is asked over the network."""
    from onceflow.commands.models import listed

    for one in listed(common):
        if one.chosen:
            state = "is ready" if one.ready else "is not ready"
            return Finding("model", "ok" if one.ready else "note", f"{one.model} {state}", one.do)
    name = Config(common.config).place("model")[0]
    return Finding("model", "note", f"there is no model {name!r}", "`onceflow models` lists them")


async def _examine(flow: Flow, at: str) -> list[Finding]:
    findings: list[Finding] = []
    async with flow:
        read = flow.store.read
        began = time.monotonic()
        now = (await read("now"))[0]["now"]
        took = time.monotonic() - began
        findings.append(Finding("database", "ok", f"{flow.store.url} answers in {span(took)}"))
        findings += [_moved(row["place"]) for row in await read("moved")]
        findings += _disk(flow, at)
        findings.append(_clock(now))
        stages = await read("stages")
        workers = await read("workers")
        lease_ms = min((row["lease_ms"] for row in stages), default=300_000)
        findings += _workers(workers, await read("activity"), now, lease_ms, at)
        findings += _stages(stages, now, at)
        findings += [_holder(row) for row in await read("holders", ms=HELD_MS_MAX)]
        findings += await _runs(flow, at)
        found = await flow.audit()
        findings.append(
            Finding("audit", "bad", many(len(found), "violation"), f"onceflow audit{at}")
            if found
            else Finding("audit", "ok", "no violation")
        )
    return findings


def _disk(flow: Flow, at: str) -> Iterator[Finding]:
    path: Path | None = getattr(flow.store, "path", None)
    if path is None:
        return
    free = shutil.disk_usage(path.resolve().parent).free
    size = f"{free / 2**30:.1f} GiB free beside the database"
    if free < DISK_BYTES_MIN:
        do = f"free some space, or: onceflow prune --older-than 30d{at}"
        yield Finding("disk", "bad", size, do)
    else:
        yield Finding("disk", "ok", size)


def _clock(now: int) -> Finding:
    off = abs(time.time() - now / 1000)
    if off > CLOCK_SECONDS_MAX:
        return Finding(
            "clock", "note",
            f"the database's clock and this machine's differ by {span(off)}; leases go by the "
            "database's, so nothing breaks", "set the clocks, so that shown times are right",
        )  # fmt: skip
    return Finding("clock", "ok", f"within {span(max(off, 0.001))} of the database's")


def _workers(
    workers: list[Any], activity: list[Any], now: int, lease_ms: int, at: str
) -> Iterator[Finding]:
    alive = living(workers, now, lease_ms)
    gone = ended_here(workers)
    silent = [row for row in workers if row not in alive and row["leases"]]
    ready = {row["pipeline"] for row in activity if row["ready"]}
    if ready and not alive:
        do = f"start one: {worker_for(ready)}{at}"
        yield Finding("workers", "bad", "items are ready, but no worker lives", do)
    else:
        leases = sum(row["leases"] for row in alive)
        yield Finding("workers", "ok", f"{many(len(alive), 'worker')} with {many(leases, 'lease')}")
    for row in silent:
        yield Finding(
            "workers", "bad" if not alive else "note",
            f"{plain(row['host'], 60)} pid {row['pid']} "
            f"{'has ended' if row['id'] in gone else 'is silent'} for "
            f"{span((now - row['beat_at']) / 1000)} and holds {many(row['leases'], 'lease')}",
            "nothing, if a worker lives: it takes them back at its next health check or sweep",
        )  # fmt: skip


def _stages(stages: list[Any], now: int, at: str) -> Iterator[Finding]:
    for row in stages:
        if row["paused_at"] is not None:
            since = span((now - row["paused_at"]) / 1000)
            why = f" ({plain(row['paused_why'], 80)})" if row["paused_why"] else ""
            yield Finding(
                "stages", "note", f"{row['pipeline']}/{row['stage']} is paused for {since}{why}",
                f"onceflow resume {row['stage']} --pipeline {row['pipeline']}{at}",
            )  # fmt: skip


def _moved(place: str) -> Finding:
    what = f"it was moved to {plain(place)}; nothing is accepted or worked on here"
    return Finding("database", "bad", what, f"onceflow doctor --db {shlex.quote(place)}")


def _holder(row: Any) -> Finding:
    """Events after it are not shown before it is over: they might come in between."""
    who = f"{plain(row['program'], 60)} (process {row['pid']} of the server, {row['state']})"
    what = f"nothing newer is shown than what {who} began {span(row['ms'] / 1000)} ago"
    do = f"wait for it, or end it: SELECT pg_terminate_backend({row['pid']})"
    return Finding("events", "note", what, do)


async def _runs(flow: Flow, at: str) -> list[Finding]:
    found: list[Finding] = []
    for run in await flow.runs(limit=20):
        if run.halted and run.open:
            what, do = f"is halted: {run.halted}", "add its keys again with a higher ceiling"
            found.append(Finding("runs", "note", f"{run.id} {what}", do))
        if not run.sealed and run.open == 0:
            what = "was never sealed: adding to it was cut off"
            do = "run the same command again; it goes on with that run"
            found.append(Finding("runs", "note", f"{run.id} {what}", do))
    if failures := await flow.store.read("failures"):
        text = f"{many(sum(row['items'] for row in failures), 'item')} failed"
        do = f"onceflow status{at} says why, by error code"
        found.append(Finding("items", "note", text, do))
    return found


# --- config ---

config = App(
    name="config", help="The settings in force and where each comes from.", help_format="plaintext"
)


@config.command(name="show")
def config_show(*, common: Common | None = None) -> int:
    """Every setting, its value, and where that comes from: default, file, variable or flag."""
    common = common or Common()
    out = common.out
    common.settings()
    rows: list[tuple[str, Any, str]] = list(_all_settings(common))
    if out.as_json:
        for name, value, origin in rows:
            out.emit({"name": name, "value": value, "from": origin})
    else:
        out.table(("SETTING", "VALUE", "FROM"), [(row[0], _shown(row[1]), row[2]) for row in rows])
    return OK


def _all_settings(common: Common) -> Iterator[tuple[str, Any, str]]:
    config = Config(common.config)
    address, source = common.database()
    yield "db", masked(address), source
    for name in ("model", "out", "contact"):
        yield name, *config.place(name)
    for table in TABLES:
        made, origins = config.made(table)
        for name, origin in origins.items():
            value: Any = getattr(made, name)
            if (table, name, value) == ("llm", "base_url", None) and PROVIDER_URL in os.environ:
                value, origin = os.environ[PROVIDER_URL].strip(), PROVIDER_URL
            value = list(value) if isinstance(value, tuple) else value
            value = masked(value) if isinstance(value, str) else value
            yield name if table == "engine" else f"{table}.{name}", value, origin
    # Whether it is there, never what it is.
    there = bool(os.environ.get(PROVIDER_KEY, "").strip())
    yield PROVIDER_KEY, "set" if there else None, PROVIDER_KEY if there else "default"


def _shown(value: Any) -> str:
    """A value for people; one that is not set is a dash."""
    if value is None or value == []:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
