"""`summarize`: from a list of URLs to summaries, one JSON file each, and a digest."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onceflow import Flow
from onceflow.commands.common import Common, Engine, Flag
from onceflow.commands.output import UsageError
from onceflow.commands.ready import Options, flags_of, helper_command, out_folder, ready_flow
from onceflow.commands.seeds import source_of
from onceflow.commands.work import Beside, Ceilings, Wishes, check_urls, submit

WORKERS_MAX = 64
LOOKED_AT_MAX = 20
OTHERWISE = (
    "they were summarized with other options, and stay as they are: "
    "--refresh does it again with these"
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use up at the most."""

    max_items: int | None = None
    """Accept at most so many pages."""
    max_tokens: int | None = None
    """Ask no model any more when so many tokens are used."""
    max_cost: float | None = None
    """Ask no model any more when so much is spent; the price is in onceflow.toml."""


def summarize(
    *urls: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: Path | None = None,
    workers: int = 1,
    follow: Annotated[bool, Flag] = False,
    add_only: Annotated[bool, Flag] = False,
    refresh: Annotated[bool, Flag] = False,
    new_run: Annotated[bool, Flag] = False,
    verbose: Annotated[bool, Flag] = False,
    limits: Limits | None = None,
    options: Options | None = None,
    engine: Engine | None = None,
    common: Common | None = None,
) -> int:
    """Read pages, summarize each one, and write a digest over them all.

    Each page becomes a JSON file in the output folder, with its summary as it is
    written; then come digest.json and digest.md. Run it again to go on where it was
    stopped, to mend missing files, or to be told that all is done; run it several
    times at once and they share the work. Ctrl-C once finishes what is under way,
    twice stops at once; nothing is lost either way.

    Parameters
    ----------
    urls
        URLs, or one file with a URL a line (# begins a comment), or - for stdin.
        Without any, whatever is open is worked on.
    out
        The folder for the files; else ONCEFLOW_OUT, onceflow.toml, summaries.
    workers
        How many processes work, this one included.
    follow
        Do not work: watch what other workers do, and write the files.
    add_only
        Only add; workers do the rest.
    refresh
        Read known pages again; what has changed is summarized again.
    new_run
        Begin a new run even if these URLs were added before; it has a digest of its own.
    verbose
        Log every transition, and the tracebacks of handlers.
    """
    common = common or Common()
    limits = limits or Limits()
    check_urls("summarize", urls, needed=refresh or new_run or add_only)
    if not 1 <= workers <= WORKERS_MAX:
        raise UsageError(f"--workers is {workers}; it must be between 1 and {WORKERS_MAX}")
    if follow and add_only:
        raise UsageError("--follow watches and --add-only does not; choose one")
    options, engine = options or Options(), engine or Engine()
    settings = engine.settings(common)
    folder = out_folder(common, out)
    job, flow = ready_flow(common, options, settings, works=not (follow or add_only))
    path = getattr(flow.store, "path", None)
    if not urls and path is not None and not path.exists():
        raise UsageError(
            "name URLs, a file with one a line, or - for stdin; without any, what is open in the "
            f"database is worked on, and there is no database {path} yet"
        )
    from onceflow.pipelines.folder import alone

    wishes = Wishes(
        Ceilings(limits.max_items, None, limits.max_tokens, limits.max_cost),
        refresh, new_run, add_only, verbose, follow,
        lambda flow, run, warn: _files(flow, folder, run, warn),
        None if add_only else lambda: alone(folder),
        None if add_only else lambda flow: _check_folder(flow, folder),
        "".join(f" {shlex.quote(word)}" for word in flags_of(common, options, engine)),
        [helper_command(common, options, engine)] * (workers - 1),
        {"ONCEFLOW_DB": common.database()[0]},
        differs=lambda flow, run: _differs(flow, run, job.asked),
    )  # fmt: skip
    with source_of(urls, urls=True) as source:
        return submit(flow.pipeline("summarize"), flow, source, wishes, common)


async def _differs(flow: Flow, run: str, asked: str) -> str | None:
    """Whether the summaries of a run are what would be asked for now."""
    done = await flow.items("summarize", run=run, stage="summarize", phase="done",
                            limit=LOOKED_AT_MAX)  # fmt: skip
    for item in done:
        result = await flow.result(item.id, item.stage)
        if isinstance(result, dict) and result.get("model") is not None:
            return None if result.get("asked") == asked else OTHERWISE
    return None


async def _check_folder(flow: Flow, folder: Path) -> None:
    """Refuse a folder that cannot be used, or is another database's."""
    from onceflow.pipelines.summaries import summary_files

    async with summary_files(flow, folder):
        pass


def _files(flow: Flow, folder: Path, run: str | None, warn: Callable[[str], None]) -> Beside:
    from onceflow.pipelines.summaries import summary_files

    return summary_files(flow, folder, run=run, warn=warn)
