"""The summaries as files: `{id}.json` for each item, `digest.json` and `digest.md` for the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceflow import Flow, Item, Run
from onceflow.core.item import Phase
from onceflow.pipelines.files import Files, as_bytes, moment
from onceflow.pipelines.markdown import link, plain_text
from onceflow.pipelines.summarize import NAME

DIGEST = ("digest.json", "digest.md")


class Summaries:
    """Which files a run of `summarize` has."""

    pipeline: str = NAME
    noun: str = "summaries"
    kinds: tuple[str, ...] = ("scrape_finished", "summary_finished")
    streams: str | None = "summarize"

    def has_files(self, item: Item) -> bool:
        """An item has a file as soon as there is more to say than that it is known."""
        if item.key.startswith("gate:"):
            return False
        return item.stage != "scrape" or item.phase in (Phase.FAILED, Phase.CANCELLED)

    async def files(self, flow: Flow, item: Item) -> dict[str, bytes]:
        return {f"{item.id}.json": as_bytes(await document(flow, item))}

    async def run_files(self, flow: Flow, run: Run, gate: Item) -> dict[str, bytes]:
        found = await digest_document(flow, run, gate)
        return dict(zip(DIGEST, (as_bytes(found), markdown(found).encode()), strict=True))

    def first(self, folder: Path) -> Path:
        return folder / "digest.md"


def summary_files(
    flow: Flow,
    path: Path,
    *,
    run: str | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Files:
    """Keeps the files of one run, or of every page."""
    return Files(flow, path, Summaries(), run=run, warn=warn)


async def document(flow: Flow, item: Item) -> dict[str, Any]:
    """What an item's file holds: a function of what is committed (and streamed) alone."""
    bodies: dict[str, Any] = {}
    times: dict[str, int] = {}
    for row in await flow.results(item.id):
        bodies[row["stage"]], times[row["stage"]] = row["body"], row["at"]
    page, result = bodies.get("scrape") or {}, bodies.get("summarize") or {}
    active = item.phase is Phase.ACTIVE and item.stage == "summarize"
    partial = await flow.partial(item.id) if active else None
    found: dict[str, Any] = {
        "id": item.id,
        "url": item.key,
        "state": item.state,
        "stage": item.stage,
        "phase": item.phase.value,
        "page_url": page.get("url"),
        "title": page.get("title"),
        "author": page.get("author"),
        "date": page.get("date"),
        "language": page.get("language"),
        "summary": result.get("summary"),
        "summary_in_progress": None if partial is None else partial[1],
        "note": result.get("note"),
        "same_as": result.get("same_as"),
        "model": result.get("model"),
        "tokens": result.get("tokens"),
        "tokens_estimated": result.get("tokens_estimated"),
        "cost": result.get("cost"),
        "error": None,
        "attempt": item.attempt,
        "generation": item.generation,
        "times": {
            "added": moment(item.created_at),
            "scraped": moment(times.get("scrape")),
            "summarized": moment(times.get("summarize")),
            "changed": moment(item.updated_at),
        },
        "text": page.get("text"),
    }
    if item.error is not None:
        found["error"] = {"code": item.error_code, "message": item.error}
    return found


async def digest_document(flow: Flow, run: Run, gate: Item) -> dict[str, Any]:
    """What `digest.json` holds: the gate's result, and whose it is."""
    result: dict[str, Any] = await flow.result(gate.id, gate.stage)
    times = {"began": moment(run.created_at), "finished": moment(gate.updated_at)}
    return {"run": run.id, "state": gate.state, "times": times, **result}


def markdown(found: dict[str, Any]) -> str:
    """A digest for people."""
    counts = found["counts"]
    words = [f"{counts['completed']:,} summarized"]
    if counts["same"]:
        words.append(f"{counts['same']:,} the same as another")
    if counts["failed"]:
        words.append(f"{counts['failed']:,} failed")
    total = counts["completed"] + counts["same"] + counts["failed"]
    lines = [f"# Digest of {total:,} {'page' if total == 1 else 'pages'}", ""]
    model = f", by {plain_text(found['model'])}" if found["model"] else ""
    lines += [f"{', '.join(words)}{model}. Run {found['run']}, {found['times']['finished']}.", ""]
    for paragraph in str(found["digest"]).split("\n\n"):
        if paragraph.strip():
            lines += [plain_text(paragraph), ""]
    if found["articles"]:
        lines += ["## Pages", ""]
    for one in found["articles"]:
        text = one.get("summary") or one.get("note") or f"see {one['id']}.json"
        lines += [f"### {link(one.get('title'), one['url'])}", "", plain_text(text), ""]
    if found["failed"]:
        lines += ["## Failed", ""]
        for one in found["failed"]:
            code = f" ({plain_text(one['code'])})" if one.get("code") else ""
            lines.append(f"- {link('', one['url'])}: {plain_text(one.get('reason'))}{code}")
        lines.append("")
    if found["same"]:
        lines += ["## The same page as another", ""]
        for one in found["same"]:
            other = one.get("same_as")
            lines.append(f"- {link('', one['url'])}" + (f": {link('', other)}" if other else ""))
        lines.append("")
    if counts["unlisted"]:
        lines += [f"And {counts['unlisted']:,} more, each in a file of its own.", ""]
    return "\n".join(lines)
