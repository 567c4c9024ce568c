"""The analyses as files: `{id}.json` for each site, `{id}.md` and `{id}.html` when it is done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onceflow import Flow, Item, Run
from onceflow.core.item import Phase
from onceflow.pipelines.analyze.report import Report, report_of
from onceflow.pipelines.analyze.report_html import html
from onceflow.pipelines.analyze.report_md import markdown
from onceflow.pipelines.files import Files, as_bytes, moment

NAME = "analyze"
STAGES = ("website-analysis", "prompt-forming", "model-analysis")


class Reports:
    """Which files a run of `analyze` has."""

    pipeline: str = NAME
    noun: str = "reports"
    kinds: tuple[str, ...] = ()
    streams: str | None = None

    def has_files(self, item: Item) -> bool:
        """A site has a file as soon as there is more to say than that it is known."""
        if item.key.startswith("gate:"):
            return False
        return item.stage != STAGES[0] or item.phase in (Phase.FAILED, Phase.CANCELLED)

    async def files(self, flow: Flow, item: Item) -> dict[str, bytes]:
        bodies, times = await results_of(flow, item)
        found = {f"{item.id}.json": as_bytes(document(item, bodies, times))}
        report = report_from(item, bodies, times)
        if report is not None:
            found[f"{item.id}.md"] = encoded(markdown(report))
            found[f"{item.id}.html"] = encoded(html(report))
        return found

    async def run_files(self, flow: Flow, run: Run, gate: Item) -> dict[str, bytes]:
        return {}

    def first(self, folder: Path) -> Path:
        """The report, if there is one only."""
        pages = sorted(folder.glob("*.html"))
        return pages[0] if len(pages) == 1 else folder


def report_files(
    flow: Flow,
    path: Path,
    *,
    run: str | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Files:
    """Keeps the files of one run, or of every site."""
    return Files(flow, path, Reports(), run=run, warn=warn)


async def results_of(flow: Flow, item: Item) -> tuple[dict[str, Any], dict[str, int]]:
    """What the stages left so far, and when. What an earlier generation left is not given while it
    is being made anew."""
    past = set(STAGES if item.phase is Phase.DONE else STAGES[: STAGES.index(item.stage)])
    bodies: dict[str, Any] = {}
    times: dict[str, int] = {}
    for row in await flow.results(item.id):
        if row["stage"] in past:
            bodies[row["stage"]], times[row["stage"]] = row["body"], row["at"]
    return bodies, times


def report_from(item: Item, bodies: dict[str, Any], times: dict[str, int]) -> Report | None:
    """The report of a site that is done; None before."""
    if item.phase is not Phase.DONE or any(stage not in bodies for stage in STAGES):
        return None
    site, prompts, analysis = (bodies[stage] for stage in STAGES)
    return report_of(site, prompts, analysis, day(times[STAGES[-1]]))


def document(item: Item, bodies: dict[str, Any], times: dict[str, int]) -> dict[str, Any]:
    """What a site's JSON file holds."""
    error = None if item.error is None else {"code": item.error_code, "message": item.error}
    return {
        "id": item.id,
        "site": item.key,
        "state": item.state,
        "stage": item.stage,
        "phase": item.phase.value,
        "attempt": item.attempt,
        "generation": item.generation,
        "error": error,
        "times": {
            "added": moment(item.created_at),
            **{stage: moment(times.get(stage)) for stage in STAGES},
            "changed": moment(item.updated_at),
        },
        "results": {stage: bodies.get(stage) for stage in STAGES},
    }


def day(ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{at.day} {at:%B %Y}"


def encoded(text: str) -> bytes:
    """Text from anywhere as UTF-8; half a character becomes a question mark."""
    return text.encode("utf-8", "replace")
