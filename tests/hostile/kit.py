"""A hostile item in the real pipeline, with ten ordinary ones beside it, on SQLite.

What every case has to show besides its own result is looked at here: the ten complete with their
own text, the process grows by at most 64 MiB, the canary got no connection, nobody is shown a
traceback, and the audit finds nothing.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onceflow
from onceflow import Flow, Item, Permanent, Pipeline
from onceflow.clients import Extractor, Http, Llm
from onceflow.pipelines.summarize import Summarize
from onceflow.testing.site import Site

MIB = 1024 * 1024
MEMORY_BYTES_MAX = 64 * MIB
ORDINARY = 10

Hook = Callable[[Flow], Awaitable[None]]


class LoopClock:
    """The event loop's time, which a test moves on: thirty seconds pass in an instant."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ahead = 0.0
        real = loop.time
        loop.time = lambda: real() + self._ahead  # type: ignore[method-assign]  # what it is for

    async def passes(self, seconds: float) -> None:
        """Second by second, and whoever waits for it gets its turn."""
        while seconds > 0:
            step = min(seconds, 1.0)
            seconds -= step
            self._ahead += step
            await turns()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Memory:
    """By how much this process has grown at its highest since `begin`, as the kernel counts."""

    def begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
        self._before = _resident("VmRSS")

    def grown(self) -> int:
        return _resident("VmHWM") - self._before


def _resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def article(number: int | str, more: str = "") -> str:
    """An ordinary page, known by its number."""
    text = (
        f"The reading room number {number} of the city library opens on Monday after two years of"
        f" work. Visitors of room {number} find four hundred seats and a garden behind the glass."
        f" The architect of room {number} says that the light was the hardest part of the plan."
    )
    return (
        f"<html><head><title>Reading room {number}</title></head><body><article>"
        f"<p>{text}</p>{more}<p>{text.replace('Monday', 'Tuesday')}</p></article></body></html>"
    )


@dataclass
class Ended:
    """What became of the items."""

    items: dict[str, Item] = field(default_factory=dict)
    pages: dict[str, dict[str, Any]] = field(default_factory=dict)
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    digest: dict[str, Any] = field(default_factory=dict)
    events: list[onceflow.Event] = field(default_factory=list)

    def outcome(self, url: str) -> str:
        """`completed`; `failed blocked_address`; `refused bad_url` at submission."""
        if url in self.refused:
            return f"refused {self.refused[url]}"
        item = self.items[url]
        return item.state if item.error_code is None else f"{item.state} {item.error_code}"

    def kinds(self, url: str) -> list[str]:
        item = self.items[url].id
        return [event.kind for event in self.events if event.item == item]

    @property
    def text(self) -> str:
        """Everything that is stored, as one text: what must not be anywhere is not in it."""
        return repr([self.items, self.pages, self.summaries, self.digest, self.events])


def pipeline(
    http: Http,
    extractor: Extractor,
    llm: Llm,
    *,
    attempts: int = 3,
    backoff_seconds: float = 0.0,
    host_limit: int = 8,
    lanes: bool = True,
) -> Pipeline:
    """The real one; only how long it waits between attempts and pages is a test's. Without lanes
    a host that asks for patience is not waited for."""
    made = Summarize(
        http=http,
        extractor=extractor,
        llm=llm,
        host_limit=host_limit,
        host_spacing_seconds=0,
    ).pipeline()
    return Pipeline(
        made.name,
        *(made.stages if lanes else [replace(stage, lane=None) for stage in made.stages]),
        done=made.done,
        failed=made.failed,
        after_all=made.gate_stage,
        canonical=made.canonical,
        attempts=attempts,
        backoff_seconds=backoff_seconds,
        backoff_max_seconds=backoff_seconds and 900.0,
    )


@dataclass
class Bench:
    """Runs hostile items beside ordinary ones; made by the fixture `run`."""

    folder: Path
    http: Http
    extractor: Extractor
    llm: Llm
    plain: Site  # where the ordinary pages are, if not on the hostile site itself
    runs: int = 0

    async def __call__(
        self,
        *urls: str,
        beside: Site | None = None,
        http: Http | None = None,
        extractor: Extractor | None = None,
        llm: Llm | None = None,
        attempts: int = 3,
        host_limit: int = 8,
        then: Hook | None = None,
    ) -> Ended:
        """`then` is called once the ordinary items are done, while a hostile one may still run."""
        self.runs += 1
        site = beside or self.plain
        ordinary = [site.url(f"/ordinary/{number}") for number in range(ORDINARY)]
        for number in range(ORDINARY):
            site.answer(f"/ordinary/{number}", article(number))
        table = pipeline(
            http or self.http,
            extractor or self.extractor,
            llm or self.llm,
            attempts=attempts,
            host_limit=host_limit,
        )
        memory = Memory()
        memory.begin()
        ended = Ended()
        async with onceflow.open(self.folder / f"hostile{self.runs}.db", table) as flow:
            accepted = await _submit(flow, table, [*ordinary[:5], *urls, *ordinary[5:]], ended)
            left = set(ordinary)
            async for event in flow.run_until_idle():
                ended.events.append(event)
                if event.kind == "summary_finished" and event.key in left:
                    left.discard(event.key)
                    if not left and then is not None:
                        await then(flow)
            for key, given in accepted.items():
                await _look(flow, key, given, ended)
            await _look_at_digest(flow, ended)
            violations = await flow.audit()
        assert memory.grown() <= MEMORY_BYTES_MAX, f"grown by {memory.grown() // MIB} MiB"
        assert violations == []
        for number, url in enumerate(ordinary):
            assert ended.outcome(url) == "completed", url
            assert f"room number {number} " in ended.pages[url]["text"]
            assert ended.summaries[url]["summary"]
        for item in ended.items.values():
            if item.error is not None:
                assert "Traceback" not in item.error
                assert "\n" not in item.error
                assert item.error_code not in (None, "unexpected"), item.error
        return ended


async def _submit(
    flow: Flow, table: Pipeline, urls: Iterable[str], ended: Ended
) -> dict[str, list[str]]:
    """Canonical key -> the forms it was given in. A refusal is at once, and costs no other."""
    run = None
    accepted: dict[str, list[str]] = {}
    for url in urls:
        try:
            added = await flow.add(table, [url], run=run, seal=False)
        except Permanent as error:
            ended.refused[url] = error.code
            continue
        run = added.run
        assert table.canonical is not None
        accepted.setdefault(table.canonical(url), []).append(url)
    assert run is not None
    await flow.seal(table, run)
    return accepted


async def _look(flow: Flow, key: str, given: list[str], ended: Ended) -> None:
    item = await flow.item("summarize", key)
    page = await flow.result(item.id, "scrape")
    summary = await flow.result(item.id, "summarize")
    for url in given:
        ended.items[url] = item
        if isinstance(page, dict):
            ended.pages[url] = page
        if isinstance(summary, dict):
            ended.summaries[url] = summary


async def _look_at_digest(flow: Flow, ended: Ended) -> None:
    (run,) = await flow.runs("summarize")
    assert run.finished_at is not None
    assert run.gate_item is not None
    digest = await flow.result(run.gate_item, "digest")
    assert isinstance(digest, dict)
    ended.digest = digest
