"""The commands that only look: status, runs, items, show, why, events, watch."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from onceflow import Event, Flow, Item, Run
from onceflow.commands.common import Common, Flag, check_pipeline, find_item, find_run
from onceflow.commands.knowledge import folder
from onceflow.commands.next import go_on, next_step, where
from onceflow.commands.output import OK, SOME_FAILED, Out, UsageError, is_fancy, terminal_width
from onceflow.commands.text import ago, clock, cut, cut_middle, many, plain, span
from onceflow.core.item import Phase
from onceflow.engine.figures import HELD_MS_MAX, stage_figures, totals, workers
from onceflow.engine.listing import known_states, state_name

if TYPE_CHECKING:
    from onceflow.commands.follow import Watcher

PAGE = 500
EXPAND = "expand"
SHOWN_IN_TERMINAL = 100
"""How many lines a listing has in a terminal, unless --limit says more."""
BODY_CHARS_SHOWN = 2000
READER_SECONDS = 0.5
"""How soon a reader that is gone is missed."""
PLAIN_SECONDS = 10.0
NARROW = 90
"""Below so many columns a line of the history has no room for its date."""
KEY_CHARS_MIN = 12


# --- status ---


def status(*, pipeline: str | None = None, common: Common | None = None) -> int:
    """Counts by pipeline, stage and state; the workers; the failures by their codes.

    Parameters
    ----------
    pipeline
        Only this pipeline.
    """
    common = common or Common()
    return asyncio.run(_status(common.existing(), pipeline, common))


async def _status(flow: Flow, pipeline: str | None, common: Common) -> int:
    out, at = common.out, where(common)
    async with flow:
        await check_pipeline(flow, pipeline)
        found = await _overview(flow, pipeline)
        if EXPAND in found["pipelines"]:
            found["knowledge"] = await _knowledge(flow, folder(common))
    if out.as_json:
        out.emit(found)
        return OK
    for line in _status_lines(found):
        lead = len(line) - len(line.lstrip())
        out.hanging(line[:lead], line[lead:])
    for line in _status_next(found, at):
        out.say(line)
    return OK


def _status_next(found: Mapping[str, Any], at: str) -> Iterator[str]:
    """What to do about what the status shows."""
    if found["moved_to"]:
        yield f"next: onceflow status --db {shlex.quote(found['moved_to'])}"
        return
    alive = any(not row["ended"] for row in found["workers"])
    for name, one in found["pipelines"].items():
        for stage, row in one["stages"].items():
            if row.get("paused"):
                yield f"next: onceflow resume {stage} --pipeline {name}{at}"
        for row in found["halted"]:
            if row["pipeline"] == name:
                yield f"run {row['id']} is halted: {row['halted']}"
                yield "next: the command that added it, with a larger --max-tokens or --max-cost"
        to_do = (
            row["claimable"] or (row.get("paused") and row["phases"].get("ready"))
            for row in one["stages"].values()
        )  # fmt: skip
        if not alive and any(to_do):
            yield f"next: {go_on(name, at)}"
        if any(row["pipeline"] == name for row in found["failures"]):
            yield f"next: onceflow items --phase failed --pipeline {name}{at}"


async def _overview(flow: Flow, pipeline: str | None) -> dict[str, Any]:
    read = flow.store.read
    states = await known_states(flow.store)
    now = (await read("now"))[0]["now"]
    pipelines: dict[str, Any] = {}
    for name in [pipeline] if pipeline else states:
        pipelines[name] = {"total": 0, "states": {}, "stages": {}}
    for row in await read("stages"):
        if row["pipeline"] in pipelines:
            pipelines[row["pipeline"]]["stages"][row["stage"]] = {
                "phases": {},
                "limit": row["chosen_limit"] or row["declared_limit"],
                "paused": row["paused_at"] is not None,
                "paused_why": row["paused_why"] or None,
                "gate": bool(row["is_gate"]),
                "oldest_at": None,
            }
    for row in await read("counts", pipeline=pipeline):
        one = pipelines[row["pipeline"]]
        state = state_name(states, row["pipeline"], row["stage"], row["phase"])
        one["total"] += row["items"]
        one["states"][state] = one["states"].get(state, 0) + row["items"]
        stage = one["stages"].setdefault(row["stage"], {"phases": {}})
        stage["phases"][row["phase"]] = row["items"]
        if row["phase"] in (Phase.WAITING, Phase.READY, Phase.ACTIVE):
            stage["oldest_at"] = min(row["oldest_at"], stage.get("oldest_at") or row["oldest_at"])
    failures = [dict(row) for row in await read("failures") if pipeline in (None, row["pipeline"])]
    found = await workers(flow)
    total = totals(found)
    figures = await stage_figures(flow.store)
    halted = [dict(row) for row in await read("halted") if row["pipeline"] in pipelines]
    claimable = {
        f"{row['pipeline']}/{row['stage']}" for row in await read("activity") if row["ready"]
    }
    for name, one in pipelines.items():
        for stage, row in one["stages"].items():
            place = f"{name}/{stage}"
            row["recent"] = figures.get(place)
            row["queued"] = total["queues"].get(place)
            row["processors"] = total["processors"].get(place)
            row["claimable"] = place in claimable
    return {
        "database": flow.store.url,
        "moved_to": next((row["place"] for row in await read("moved")), None),
        "now": now,
        "pipelines": pipelines,
        "workers": [{**one, "report": None} for one in found],
        "refused": total["refused"],
        "tally": total["tally"],
        "failures": failures,
        "halted": halted,
        "holders": [dict(row) for row in await read("holders", ms=HELD_MS_MAX)],
    }


async def _knowledge(flow: Flow, given: Path | None) -> dict[str, Any]:
    """What there is of the search index and the graph, and how far they are behind."""
    from onceflow.knowledge.graph import graph_status
    from onceflow.knowledge.search import Search

    index = await Search(flow, given).status()
    graph = await graph_status(flow, given)
    return {
        "search": None if index is None else asdict(index),
        "graph": None if graph is None else asdict(graph),
    }


def _lag(lag: Mapping[str, Any]) -> str:
    if not lag["events"]:
        return "up to date"
    more = "more than " if lag["more"] else ""
    return f"{more}{many(lag['events'], 'event')} behind, the oldest {span(lag['seconds'])} old"


def _knowledge_lines(found: Mapping[str, Any]) -> Iterator[str]:
    if index := found["search"]:
        size = f"{many(index['sections'], 'section')} of {many(index['articles'], 'article')}"
        yield f"  search index  {size}, {_lag(index['lag'])}"
    if graph := found["graph"]:
        yield f"  graph         {_lag(graph['lag'])}"


def _status_lines(found: Mapping[str, Any]) -> Iterator[str]:
    now = found["now"]
    yield plain(found["database"])
    if found["moved_to"]:
        yield f"moved to {plain(found['moved_to'])}: nothing is accepted or worked on here"
    if not found["pipelines"]:
        yield "no pipeline yet: `onceflow summarize URL…` or `onceflow run FILE.py KEY…` brings one"
    for name, one in found["pipelines"].items():
        yield ""
        states = ", ".join(f"{count:,} {state}" for state, count in one["states"].items())
        yield f"{name}: {many(one['total'], 'item')}" + (f" ({states})" if states else "")
        wide = max((len(stage) for stage in one["stages"]), default=0)
        for stage, row in one["stages"].items():
            counts = ", ".join(f"{count:,} {phase}" for phase, count in row["phases"].items())
            words = [counts or ("its gate is shut" if row.get("gate") else "none")]
            if row.get("limit"):
                words.append(f"limit {row['limit']}")
            if row.get("oldest_at"):
                words.append(f"oldest {ago(now, row['oldest_at'])}")
            if row.get("paused"):
                why = f" ({plain(row['paused_why'], 60)})" if row["paused_why"] else ""
                words.append(f"PAUSED{why}")
            yield f"  {stage:<{wide}}  {'; '.join(words)}"
            if more := _figures_line(row):
                yield f"  {'':<{wide}}  {more}"
        if name == EXPAND and "knowledge" in found:
            yield from _knowledge_lines(found["knowledge"])
    yield ""
    if not found["workers"]:
        yield "workers: none"
    for row in found["workers"]:
        beat = f"heartbeat {ago(now, row['beat_at'])}, started {ago(now, row['started_at'])}"
        if row["ended"]:
            beat = f"ended without a word; last heartbeat {ago(now, row['beat_at'])}"
        yield (
            f"worker {plain(row['host'], 60)} pid {row['pid']}: {many(row['leases'], 'lease')}, "
            f"{beat}"
        )
    for row in found["holders"]:
        who = f"{plain(row['program'], 60)} (process {row['pid']} of the server)"
        yield f"events: nothing newer is shown than what {who} began {span(row['ms'] / 1000)} ago"
    for row in found["failures"]:
        yield (
            f"failed {row['pipeline']}/{row['stage']} {plain(row['error_code'], 40)}: "
            f"{many(row['items'], 'item')}, such as: {plain(row['sample'], 100)}"
        )


def _figures_line(row: Mapping[str, Any]) -> str:
    """How the newest attempts of a stage went, and who is there to work on it."""
    words: list[str] = []
    if recent := row.get("recent"):
        if recent["p50_seconds"] is not None:
            p50, p95 = (span(recent[name]) for name in ("p50_seconds", "p95_seconds"))
            words.append(f"p50 {p50}, p95 {p95}")
        if recent["success_rate"] is not None:
            words.append(f"{recent['success_rate']:.0%} succeed")
        if recent["retries_per_item"]:
            words.append(f"{recent['retries_per_item']:g} retries an item")
    if row.get("processors"):
        there = [f"{count} {state}" for state, count in row["processors"].items() if count]
        words.append(f"processors {', '.join(there)}")
    if row.get("queued"):
        words.append(f"{row['queued']:,} queued")
    return "; ".join(words)


# --- runs ---


def runs(
    *,
    pipeline: str | None = None,
    limit: int | None = None,
    common: Common | None = None,
) -> int:
    """The runs, the newest first.

    Parameters
    ----------
    pipeline
        Only this pipeline's.
    limit
        At most so many; 0 is all. In a terminal 100 unless said otherwise.
    """
    common = common or Common()
    return asyncio.run(_runs(common.existing(), pipeline, _most(limit, common.out), common.out))


async def _runs(flow: Flow, pipeline: str | None, most: int | None, out: Out) -> int:
    async with flow:
        await check_pipeline(flow, pipeline)
        now = (await flow.store.read("now"))[0]["now"]
        listed: list[Run] = []
        before: str | None = None
        while page := await flow.runs(
            pipeline, before=before, limit=min(PAGE, most - len(listed)) if most else PAGE
        ):
            before = page[-1].id
            listed += page
            if most and len(listed) >= most:
                break
    if out.as_json:
        for run in listed:
            out.emit({**asdict(run), "state": _run_state(run)})
        return OK
    columns = ("RUN", "PIPELINE", "STATE", "ITEMS", "OPEN", "FAILED", "TOKENS", "BEGAN")
    alike = len({one.pipeline for one in listed}) <= 1
    out.table(
        columns,
        [
            (one.id, one.pipeline, _run_state(one), one.accepted, one.open, one.failed, one.tokens,
             ago(now, one.created_at))
            for one in listed
        ],
        spare=("TOKENS", *(("PIPELINE",) if alike else ()), "OPEN", "BEGAN", "ITEMS"),
    )  # fmt: skip
    return OK


def _run_state(run: Run) -> str:
    """A run in one word."""
    if run.halted:
        return "halted"
    if run.finished_at is not None:
        return "finished" if run.open == 0 else "reopened"
    if not run.sealed:
        return "adding"
    return "digesting" if run.gate_opened_at is not None else "working"


# --- items ---


def items(
    *,
    pipeline: str | None = None,
    state: str | None = None,
    stage: str | None = None,
    phase: str | None = None,
    run: str | None = None,
    error: str | None = None,
    limit: int | None = None,
    common: Common | None = None,
) -> int:
    """The items, by state, stage, run or error.

    Parameters
    ----------
    pipeline
        Only this pipeline's.
    state
        In this state, by the pipeline's own name for it, such as failed or completed.
    stage
        At this stage.
    phase
        In this phase: waiting, ready, active, done, failed or cancelled.
    run
        Of this run; `last` is the newest.
    error
        With this error code, such as timeout.
    limit
        At most so many; 0 is all. In a terminal 100 unless said otherwise.
    """
    common = common or Common()
    if phase is not None and phase not in set(Phase):
        raise UsageError(f"there is no phase {phase!r}; there are {', '.join(Phase)}")
    wanted = {"state": state, "stage": stage, "phase": phase, "error_code": error}
    return asyncio.run(
        _items(common.existing(), pipeline, run, wanted, _most(limit, common.out), common.out)
    )


async def _items(
    flow: Flow,
    pipeline: str | None,
    run: str | None,
    wanted: Mapping[str, str | None],
    most: int | None,
    out: Out,
) -> int:
    async with flow:
        await check_pipeline(flow, pipeline)
        whose = None if run is None else (await find_run(flow, run)).id
        shown = 0
        widths: Sequence[int] | None = None
        async for page in _item_pages(flow, pipeline, whose, wanted, most):
            shown += len(page)
            if out.as_json:
                for item in page:
                    out.emit(item_json(item))
            else:
                widths = _item_rows(out, page, widths)
            out.flush()
        if most and shown == most and not out.as_json:
            out.say(f"the first {most:,}; --limit 0 lists all")
        if not shown:
            out.say("no item is like that")
    return OK


async def _item_pages(
    flow: Flow,
    pipeline: str | None,
    run: str | None,
    wanted: Mapping[str, str | None],
    most: int | None,
) -> AsyncIterator[list[Item]]:
    after = shown = 0
    while page := await flow.items(
        pipeline, run=run, after=after, limit=min(PAGE, most - shown) if most else PAGE, **wanted
    ):
        yield page
        after = page[-1].id
        shown += len(page)
        if most and shown >= most:
            return


ITEM_COLUMNS = ("ID", "PIPELINE", "STATE", "STAGE", "TRY", "KEY", "ERROR")


def _item_rows(out: Out, page: Sequence[Item], widths: Sequence[int] | None) -> Sequence[int]:
    rows = [
        (str(item.id), item.pipeline, item.state, item.stage, str(item.attempt),
         plain(item.key, 80), plain(item.error or "", 160))
        for item in page
    ]  # fmt: skip
    head = widths is None
    if widths is None:
        widths = [
            max(len(row[at]) for row in chain([ITEM_COLUMNS], rows))
            for at in range(len(ITEM_COLUMNS))
        ]
    room = terminal_width(sys.stdout)
    if room is not None and sum(widths) + 2 * (len(widths) - 1) > room:
        _narrow_items(out, page, room, head=head)
    else:
        out.rows(chain([ITEM_COLUMNS] if head else [], rows), widths)
    return widths


def _narrow_items(out: Out, page: Sequence[Item], room: int, *, head: bool) -> None:
    """What is known of each item under its key, where there is no room for columns."""
    alike = len({item.pipeline for item in page}) == 1
    states = [item.state if alike else f"{item.pipeline} {item.state}" for item in page]
    ids = max(len(str(page[-1].id)), 2)
    widest = max(5, *map(len, states))
    if head:
        out.line(f"{'ID':<{ids}}  {'STATE':<{widest}}  KEY")
    left = max(room - ids - widest - 4, KEY_CHARS_MIN)
    for item, state in zip(page, states, strict=True):
        key = cut_middle(plain(item.key, 1000), left)
        out.line(f"{item.id:<{ids}}  {state:<{widest}}  {key}")
        if item.error:
            out.hanging("    ", plain(item.error, 300))


def item_json(item: Item) -> dict[str, Any]:
    """An item as a listing gives it: without its result."""
    values = asdict(item)
    del values["result"]
    return values


# --- show and why ---


def show(item: str, /, *, pipeline: str | None = None, common: Common | None = None) -> int:
    """One item: where it is, its results, its attempts and its whole history.

    Parameters
    ----------
    item
        Its key, another key of it, or its id.
    pipeline
        Its pipeline, if several have an item with that key.
    """
    common = common or Common()
    return asyncio.run(_show(common.existing(), pipeline, item, common.out, where(common)))


async def _show(flow: Flow, pipeline: str | None, name: str, out: Out, at: str) -> int:
    async with flow:
        item = await find_item(flow, pipeline, name)
        results = await flow.results(item.id)
        events = [event async for event in flow.events(item=item.id)]
        partial = await flow.partial(item.id)
        of_runs = [row["run"] for row in await flow.store.read("runs_of", item=item.id)]
        why = await flow.why(item.pipeline, item.id)
        step = None if item.phase is Phase.DONE else await next_step(flow, item, at)
    if out.as_json:
        text = None if partial is None else {"epoch": partial[0], "text": partial[1]}
        out.emit(
            {**item_json(item), "why": why, "next": step, "runs": of_runs, "partial": text,
             "results": results, "events": [asdict(event) for event in events]}
        )  # fmt: skip
        return OK
    out.hanging("", plain(item.key, 8192))
    for label, value in (
        ("item", f"{item.id} of {item.pipeline}"),
        ("state", f"{item.state} (stage {item.stage}, {item.phase.value})"),
        ("why", plain(why, 1000)),
        *([("next", step)] if step else []),
        ("attempt", f"{item.attempt}, generation {item.generation}, fence {item.fence}"),
        *([("depth", str(item.depth))] if item.depth else []),
        ("runs", ", ".join(of_runs) or item.run),
        ("added", clock(item.created_at)),
        ("changed", clock(item.updated_at)),
    ):
        out.hanging(f"  {label:<8} ", value)
    if partial is not None:
        out.line()
        out.hanging("in progress: ", plain(partial[1], BODY_CHARS_SHOWN))
    for row in results:
        stage = row["stage"] or "given"
        body = plain(json.dumps(row["body"], ensure_ascii=False), BODY_CHARS_SHOWN)
        out.line()
        out.hanging("", f"result of {stage}, generation {row['generation']}, {clock(row['at'])}")
        out.hanging("  ", body)
    out.line("\nhistory")
    for event in events:
        put_event(out, event, indent="  ", with_key=False)
    return OK


def why(item: str, /, *, pipeline: str | None = None, common: Common | None = None) -> int:
    """Why an item does not move, in one line, and when it will.

    Parameters
    ----------
    item
        Its key, another key of it, or its id.
    pipeline
        Its pipeline, if several have an item with that key.
    """
    common = common or Common()
    return asyncio.run(_why(common.existing(), pipeline, item, common.out, where(common)))


async def _why(flow: Flow, pipeline: str | None, name: str, out: Out, at: str) -> int:
    async with flow:
        item = await find_item(flow, pipeline, name)
        text = await flow.why(item.pipeline, item.id)
        step = await next_step(flow, item, at)
    if out.as_json:
        out.emit({**item_json(item), "why": text, "next": step})
        return OK
    out.hanging("", plain(text, 1000))
    if step:
        out.line(f"  next: {step}")
    return OK


# --- events ---


def events(
    *,
    follow: Annotated[bool, Parameter(alias="-f", negative=(), show_default=False)] = False,
    after: int = 0,
    last: int | None = None,
    pipeline: str | None = None,
    item: str | None = None,
    run: str | None = None,
    kind: Annotated[list[str] | None, Parameter(negative=())] = None,
    common: Common | None = None,
) -> int:
    """The history in the order of the commits, and with --follow what is added to it.

    Parameters
    ----------
    follow
        Go on for ever.
    after
        Only what came after this seq.
    last
        Of what there is, only the last so many.
    pipeline
        Only this pipeline's.
    item
        Only this item's, by its key or id.
    run
        Only of this run; `last` is the newest.
    kind
        Only this kind, such as failed; repeatable.
    """
    common = common or Common()
    wanted = {"pipeline": pipeline, "item": item, "run": run}
    return asyncio.run(
        _events(common.existing(), wanted, kind, after, last, follow=follow, out=common.out)
    )


async def _events(
    flow: Flow,
    wanted: Mapping[str, str | None],
    kinds: list[str] | None,
    after: int,
    last: int | None,
    *,
    follow: bool,
    out: Out,
) -> int:
    if last is not None and last < 0:
        raise UsageError(f"--last is {last}; it must be 0 or more")
    async with flow:
        pipeline, item, run = wanted["pipeline"], wanted["item"], wanted["run"]
        await check_pipeline(flow, pipeline)
        chosen: dict[str, Any] = {
            "pipeline": pipeline,
            "item": None if item is None else (await find_item(flow, pipeline, item)).id,
            "run": None if run is None else (await find_run(flow, run)).id,
            "kinds": kinds,
        }
        if last is not None:
            for event in await _last_events(flow, chosen, after, last):
                _put_event(out, event)
                after = event.seq
        if last is None or follow:
            out.flush()
            async with _reader_watched(out, follow=follow):
                async for event in flow.events(after=after, follow=follow, **chosen):
                    _put_event(out, event)
                    if follow:
                        out.flush()
    return OK


@asynccontextmanager
async def _reader_watched(out: Out, *, follow: bool) -> AsyncIterator[None]:
    """What goes on for ever ends when nobody reads it any more, also if nothing happens."""

    async def watch() -> None:
        while follow:
            await asyncio.sleep(READER_SECONDS)
            out.check_reader()

    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


async def _last_events(
    flow: Flow, chosen: Mapping[str, Any], after: int, most: int
) -> Sequence[Event]:
    """The newest events, read from near the end; from further back only if they were too few."""
    end = (await flow.store.read("last_event"))[0]["seq"]
    back = most * 2 + 100
    while True:
        start = max(after, end - back)
        kept: deque[Event] = deque(maxlen=most)
        async for event in flow.events(after=start, **chosen):
            kept.append(event)
        if len(kept) == most or start == after:
            return kept
        back *= 16


def _put_event(out: Out, event: Event) -> None:
    if out.as_json:
        out.emit(event)
    else:
        put_event(out, event)


def put_event(out: Out, event: Event, *, indent: str = "", with_key: bool = True) -> None:
    """An event for people; its reason on lines of its own where the terminal is too narrow."""
    width = terminal_width(sys.stdout)
    narrow = width is not None and width < NARROW
    at = clock(event.at).split()[-1] if narrow else clock(event.at)
    words = [f"{event.seq:>4}", at, event.kind if narrow else f"{event.kind:<16}"]
    more: list[str] = []
    if event.stage:
        more.append(f"{event.stage} -> {event.state}" if event.state else event.stage)
    if event.attempt:
        more.append(f"attempt {event.attempt}")
    if event.seconds is not None:
        more.append(span(event.seconds))
    if event.kind == "claimed" and event.worker:
        more.append(f"by {event.worker}")
    key = [plain(event.key or event.pipeline, 100)] if with_key else []
    reason = plain(_reason(event), 200)
    text = indent + "  ".join([*words, *key, *more, *([reason] if reason else [])])
    if width is None or len(text) <= width:
        out.line(text)
        return
    taken = len(indent) + sum(len(word) + 2 for word in (*words, *more))
    key = [cut_middle(word, max(width - taken, KEY_CHARS_MIN)) for word in key]
    out.line(cut(indent + "  ".join([*words, *key, *more]), width))
    if reason:
        out.hanging(f"{indent}      ", reason)


def _reason(event: Event) -> str:
    """What an event says besides: why, or what it was told."""
    more = {name: value for name, value in event.data.items() if name != "limit"}
    return str(more.get("error") or (json.dumps(more) if more else ""))


# --- watch ---


def watch(
    run: str | None = None,
    /,
    *,
    pipeline: str | None = None,
    once: Annotated[bool, Flag] = False,
    common: Common | None = None,
) -> int:
    """Live progress of a run until it is over, or of everything until Ctrl-C.

    Parameters
    ----------
    run
        The run; `last` is the newest. Without one it is everything.
    pipeline
        Everything of this pipeline.
    once
        Show it once and end.
    """
    common = common or Common()
    return asyncio.run(
        _watch(common.existing(), run, pipeline, once=once, out=common.out, at=where(common))
    )


async def _watch(
    flow: Flow, name: str | None, pipeline: str | None, *, once: bool, out: Out, at: str
) -> int:
    from onceflow.commands.follow import Follower, Scope, Watcher

    async with flow:
        await check_pipeline(flow, pipeline)
        run = None if name is None else await find_run(flow, name)
        whose = pipeline if run is None else run.pipeline
        scope = Scope(pipeline=whose, run=None if run is None else run.id)
        watcher = Watcher(flow, scope, whose or flow.store.url, at)
        await watcher.begin(run)
        if once or out.as_json:
            return await _snapshots(watcher, out, once=once)
        if not is_fancy(sys.stderr) and not out.quiet:
            return await _lines(watcher, out)
        follower = Follower(flow, watcher, quiet=out.quiet)
        async with _reader_watched(out, follow=True):
            await follower.run(watcher.finished)
    out.line(watcher.board.line())
    return SOME_FAILED if watcher.board.totals.failed else OK


async def _lines(watcher: Watcher, out: Out) -> int:
    """Where there is no terminal, progress is the data: a line every 10 % or 10 s, and failures."""
    spoken = (-1, float("-inf"))
    while True:
        board = await watcher.look()
        for line in await watcher.failures():
            out.line(line)
        over = watcher.finished.is_set()
        tenth, at = int(board.totals.part * 10), time.monotonic()
        if over or tenth > spoken[0] or at - spoken[1] >= PLAIN_SECONDS:
            spoken = (tenth, at)
            out.line(board.line())
        out.flush()
        if over:
            return SOME_FAILED if board.totals.failed else OK
        await asyncio.sleep(READER_SECONDS)
        out.check_reader()


async def _snapshots(watcher: Watcher, out: Out, *, once: bool) -> int:
    """What a board shows, as data: now, or again whenever it has changed."""
    told: dict[str, Any] = {}
    while True:
        board = await watcher.look()
        found = {
            "pipeline": watcher.scope.pipeline,
            "run": watcher.scope.run,
            "finished": watcher.finished.is_set(),
            "items": board.totals.items,
            **{phase.value: getattr(board.totals, phase.value) for phase in Phase},
            "stages": [
                {"pipeline": view.pipeline, "stage": view.name, "passed": view.passed,
                 "total": view.total, "paused": view.paused, **view.phases}
                for view in board.stages
            ],
        }  # fmt: skip
        if found != told:
            told = found
            if out.as_json:
                out.emit(found)
            else:
                out.line(board.line())
            out.flush()
        if once or watcher.finished.is_set():
            return SOME_FAILED if board.totals.failed else OK
        await asyncio.sleep(0.5)
        out.check_reader()


def _most(limit: int | None, out: Out) -> int | None:
    """How many lines to list; None is all."""
    if limit is not None and limit < 0:
        raise UsageError(f"--limit is {limit}; it must be 0 (all) or more")
    if limit is None:
        in_terminal = terminal_width(sys.stdout) is not None and not out.as_json
        return SHOWN_IN_TERMINAL if in_terminal else None
    return limit or None
