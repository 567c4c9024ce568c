"""The commands that change something: retry, cancel, release, pause, resume, limit, prune."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from onceflow import Flow, Pipeline
from onceflow.commands.common import WORKED_BY, Common, Flag, check_pipeline, find_item, find_run
from onceflow.commands.next import anybody_works, go_on, where
from onceflow.commands.output import OK, SOME_FAILED, Out, UsageError
from onceflow.commands.program import pipelines_of
from onceflow.commands.ready import ready_pipelines
from onceflow.commands.text import many, plain, seconds_of
from onceflow.core.errors import UnknownItem
from onceflow.engine.flow import Acted

Command = Literal["retry", "cancel", "release"]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Which:
    """Which items a command means."""

    state: str | None = None
    """Those in this state, by the pipeline's own name for it, such as failed."""
    stage: str | None = None
    """Those at this stage."""
    run: str | None = None
    """Those of this run; `last` is the newest."""
    error: str | None = None
    """Those with this error code, such as timeout."""
    pipeline: str | None = None
    """Those of this pipeline."""
    all: Annotated[bool, Flag] = False
    """Every one that the command is for."""

    @property
    def is_empty(self) -> bool:
        return not (self.state or self.stage or self.run or self.error or self.pipeline or self.all)


DryRun = Annotated[bool, Flag]


def retry(
    *keys: str,
    which: Which | None = None,
    from_stage: str | None = None,
    permanent: Annotated[bool, Flag] = False,
    dry_run: DryRun = False,
    common: Common | None = None,
) -> int:
    """Open failed items again, as a new generation; what backs off is ready at once.

    Results of earlier stages are kept and used. What failed for good is opened
    again only with --permanent, or if it is named. What was completed or cancelled
    is left alone, unless it is named or --state means it: then its last stage is
    done again, or all from --from-stage on, and the newer result counts.

    Parameters
    ----------
    keys
        Keys or ids of the items, instead of a filter.
    from_stage
        Begin again at this stage instead of the one where it ended.
    permanent
        Also those that failed for good.
    dry_run
        Only say how many it would be.
    """
    given, file = _program(keys)
    return _act(
        "retry", given, which, common, file=file, from_stage=from_stage or "", dry_run=dry_run,
        permanent=permanent or bool(given),
    )  # fmt: skip


def cancel(
    *keys: str,
    which: Which | None = None,
    why: str | None = None,
    dry_run: DryRun = False,
    common: Common | None = None,
) -> int:
    """Take items out of their pipeline. A worker that has one loses its lease.

    Parameters
    ----------
    keys
        Keys or ids of the items, instead of a filter.
    why
        The reason, for the history.
    dry_run
        Only say how many it would be.
    """
    return _act("cancel", keys, which, common, why=why or "", dry_run=dry_run)


def release(
    *keys: str,
    which: Which | None = None,
    why: str | None = None,
    dry_run: DryRun = False,
    common: Common | None = None,
) -> int:
    """Take leases away from whoever has them; it costs the items no attempt.

    Parameters
    ----------
    keys
        Keys or ids of the items, instead of a filter.
    why
        The reason, for the history.
    dry_run
        Only say how many it would be.
    """
    return _act("release", keys, which, common, why=why or "", dry_run=dry_run)


def _program(keys: Sequence[str]) -> tuple[Sequence[str], Path | None]:
    """A FILE.py before the keys, as in `onceflow retry news.py --state failed`."""
    if keys and keys[0].endswith(".py") and Path(keys[0]).is_file():
        return keys[1:], Path(keys[0])
    return keys, None


def _act(
    command: Command,
    keys: Sequence[str],
    which: Which | None,
    common: Common | None,
    *,
    file: Path | None = None,
    **options: Any,
) -> int:
    common, which = common or Common(), which or Which()
    if not keys and which.is_empty:
        raise UsageError(
            f"say which items to {command}: keys, --state, --stage, --run, --error, --pipeline or "
            "--all; --dry-run counts them first"
        )
    if keys and not _only_pipeline(which):
        missing = f"; there is no file {keys[0]}" if keys[0].endswith(".py") else ""
        raise UsageError(f"give keys or a filter to {command}, not both{missing}")
    programs = [] if file is None else pipelines_of(file)
    if command == "retry":
        named = {pipeline.name for pipeline in programs}
        ready = asyncio.run(_ready_here(common))
        programs += [pipeline for pipeline in ready if pipeline.name not in named]
    flow = common.existing(*programs)
    at = where(common)
    return asyncio.run(_perform(flow, command, keys, which, common.out, options, at))


async def _ready_here(common: Common) -> list[Pipeline]:
    """The ready pipelines that this database has: their lanes are known without a file."""
    async with common.existing() as flow:
        names = {row["name"] for row in await flow.store.read("pipelines")}
    return ready_pipelines(common, names)


def _only_pipeline(which: Which) -> bool:
    return not (which.state or which.stage or which.run or which.error or which.all)


async def _perform(
    flow: Flow,
    command: Command,
    keys: Sequence[str],
    which: Which,
    out: Out,
    options: dict[str, Any],
    at: str,
) -> int:
    async with flow:
        await check_pipeline(flow, which.pipeline)
        await _check_stage(flow, which.stage, which.pipeline)
        if options.get("from_stage"):
            await _check_stage(flow, options["from_stage"], which.pipeline)
        ids = [(await find_item(flow, which.pipeline, key)).id for key in keys]
        run = None if which.run is None else (await find_run(flow, which.run)).id
        acted = await flow.act(
            command, which.pipeline, state=which.state, stage=which.stage, run=run,
            error_code=which.error, keys=ids if keys else None, **options,
        )  # fmt: skip
        code = _tell(
            out, command, acted, dry_run=options["dry_run"], named=bool(keys),
            from_stage=options.get("from_stage", ""),
        )  # fmt: skip
        if acted.changed and command in ("retry", "release"):
            await _tell_who_works(flow, at, out)
    return code


async def _tell_who_works(flow: Flow, at: str, out: Out) -> None:
    """Items are ready: name the commands that work on them, unless somebody does already."""
    ready = {row["pipeline"] for row in await flow.store.read("activity") if row["ready"]}
    for name in sorted(ready):
        if not await anybody_works(flow, name):
            again = "" if name in WORKED_BY else ", or the command that added them once more"
            out.say(f"  next: {go_on(name, at)}{again}")


async def _check_stage(flow: Flow, stage: str | None, pipeline: str | None) -> None:
    known = [
        row["stage"] for row in await flow.store.read("stages")
        if pipeline in (None, row["pipeline"])
    ]  # fmt: skip
    if stage is not None and stage not in known:
        names = ", ".join(dict.fromkeys(known)) or "none yet"
        raise UnknownItem(f"there is no stage {stage!r} here; there is {names}")


PAST = {"retry": "retried", "cancel": "cancelled", "release": "released"}


def _tell(
    out: Out, command: Command, acted: Acted, *, dry_run: bool, named: bool, from_stage: str
) -> int:
    unfit = acted.matched - acted.fitting - acted.for_good
    meanwhile = 0 if dry_run else acted.fitting - acted.changed
    if out.as_json:
        out.emit(
            {"command": command, "dry_run": dry_run, **asdict(acted), "not_fitting": unfit,
             "changed_meanwhile": meanwhile}
        )  # fmt: skip
    else:
        if dry_run:
            out.line(f"would {command} {many(acted.fitting, 'item')}")
        else:
            out.line(f"{PAST[command]} {many(acted.changed, 'item')}")
        if acted.for_good:
            out.line(
                f"  {acted.for_good:,} failed for good and left alone (--permanent includes them)"
            )
        if unfit:
            where = ", or never at that stage" if from_stage else ""
            out.line(f"  {unfit:,} left alone: not in a phase to {command} from{where}")
        if meanwhile:
            out.line(f"  {meanwhile:,} left alone: their state changed meanwhile, try again")
    return SOME_FAILED if named and not dry_run and acted.changed < acted.matched else OK


# --- stages ---


def pause(
    *stages: str,
    pipeline: str | None = None,
    why: str | None = None,
    common: Common | None = None,
) -> int:
    """Claim nothing of these stages, anywhere, until they are resumed. What is under way goes on.

    Parameters
    ----------
    stages
        The stages; none means all of --pipeline.
    pipeline
        Their pipeline, if several have a stage of that name.
    why
        The reason, which `status` and `why` show.
    """
    return _tune(stages, pipeline, common, "paused", why=why or "")


def resume(
    *stages: str,
    pipeline: str | None = None,
    why: str | None = None,
    common: Common | None = None,
) -> int:
    """Claim again what was paused.

    Parameters
    ----------
    stages
        The stages; none means all of --pipeline.
    pipeline
        Their pipeline, if several have a stage of that name.
    why
        The reason, for the history.
    """
    return _tune(stages, pipeline, common, "resumed", why=why or "")


def limit(
    stage: str,
    most: int | None = None,
    /,
    *,
    declared: Annotated[bool, Flag] = False,
    pipeline: str | None = None,
    common: Common | None = None,
) -> int:
    """How many items of a stage are worked on at once, over all workers and machines.

    Parameters
    ----------
    stage
        The stage.
    most
        The new limit, at least 1.
    declared
        Go back to the limit that the program declares.
    pipeline
        Its pipeline, if several have a stage of that name.
    """
    if (most is None) != declared:
        raise UsageError("give a number, or --declared to go back to the limit of the program")
    return _tune([stage], pipeline, common, "limited", most=most)


def _tune(
    stages: Sequence[str], pipeline: str | None, common: Common | None, what: str, **options: Any
) -> int:
    common = common or Common()
    if not stages and pipeline is None:
        raise UsageError("name a stage, or --pipeline for all of its stages")
    code = asyncio.run(_tuned(common.existing(), stages, pipeline, what, options, common.out))
    if what == "paused":
        names = "".join(f" {name}" for name in stages)
        named = f" --pipeline {pipeline}" if pipeline else ""
        common.out.say(f"  next: onceflow resume{names}{named}{where(common)}, to claim them again")
    return code


async def _tuned(
    flow: Flow,
    stages: Sequence[str],
    pipeline: str | None,
    what: str,
    options: dict[str, Any],
    out: Out,
) -> int:
    async with flow:
        await check_pipeline(flow, pipeline)
        chosen = await _stages(flow, stages, pipeline)
        for row in chosen:
            where = row["pipeline"], row["stage"]
            if what == "limited":
                await flow.limit(*where, options["most"])
            elif what == "paused":
                await flow.pause(*where, options["why"])
            else:
                await flow.resume(*where, options["why"])
        changed = {(row["pipeline"], row["stage"]) for row in chosen}
        stages_now = await flow.store.read("stages")
        after = [row for row in stages_now if (row["pipeline"], row["stage"]) in changed]
    for row in after:
        most = row["chosen_limit"] or row["declared_limit"]
        if out.as_json:
            out.emit(
                {"pipeline": row["pipeline"], "stage": row["stage"], "limit": most,
                 "paused": row["paused_at"] is not None, "paused_why": row["paused_why"] or None}
            )  # fmt: skip
        elif what == "limited":
            out.line(f"{row['pipeline']}/{row['stage']}: {f'limit {most}' if most else 'no limit'}")
        else:
            out.line(f"{row['pipeline']}/{row['stage']}: {what}")
    return OK


async def _stages(flow: Flow, names: Sequence[str], pipeline: str | None) -> list[Any]:
    rows = [row for row in await flow.store.read("stages") if pipeline in (None, row["pipeline"])]
    if not names:
        return rows
    found: list[Any] = []
    for name in names:
        await _check_stage(flow, name, pipeline)
        mine = [row for row in rows if row["stage"] == name]
        if len(mine) > 1:
            owners = ", ".join(row["pipeline"] for row in mine)
            raise UnknownItem(f"several pipelines have a stage {name!r} ({owners}); say --pipeline")
        found += mine
    return found


# --- prune ---


def prune(*, older_than: str, common: Common | None = None) -> int:
    """Forget the history of items settled long ago, and results that were replaced since.

    The items, their newest results and their last events stay: nothing is done
    twice for it.

    Parameters
    ----------
    older_than
        How long ago, such as 12h, 30d or 8w.
    """
    common = common or Common()
    try:
        seconds = seconds_of(older_than)
    except ValueError:
        raise UsageError(
            f"--older-than is {plain(older_than, 40)!r}; give a number with s, min, h, d or w, "
            "such as 30d"
        ) from None
    return asyncio.run(_prune(common.existing(), seconds, common.out))


async def _prune(flow: Flow, seconds: float, out: Out) -> int:
    async with flow:
        count = await flow.prune(older_than_seconds=seconds)
    if out.as_json:
        out.emit({"pruned": count})
    else:
        out.line(f"forgot {many(count, 'row')} of history")
    return OK
