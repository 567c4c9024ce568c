"""One measurement of `bench.pages` in a process of its own; the answer is JSON on the last line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.child import NOT_INSTALLED
from bench.machine import cpu_seconds_of

AT_ONCE = 8
DIGEST_WORDS = 200
DIGEST_CHARS_MAX = 200_000

Task = dict[str, Any]
Get = Callable[[str], Awaitable[bytes]]


def cpu_seconds() -> float:
    """Of this process and its children: those that have ended, and those that live."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            for child in (thread / "children").read_text().split():
                used += cpu_seconds_of(int(child))
    return used


def answer(pages: int, seconds: float, cpu: float) -> dict[str, float]:
    return {"pages_per_second": pages / seconds, "cpu_ms": cpu / pages * 1000}


# --- fetching only ---


async def fetched(get: Get, task: Task) -> dict[str, float]:
    """`n` small pages, so many at once; the first few to open connections are not counted."""
    urls = [f"{task['base']}{n % task['pages']}.html" for n in range(task["n"])]
    await asyncio.gather(*(get(url) for url in urls[:AT_ONCE]))
    left = iter(urls)
    whole = 0

    async def work() -> None:
        nonlocal whole
        for url in left:
            body = await get(url)
            whole += body.endswith(b"</html>")

    began, cpu = time.perf_counter(), cpu_seconds()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    assert whole == len(urls), f"{whole} of {len(urls)} pages came whole"
    return answer(len(urls), seconds, cpu)


async def fetch_aiohttp(task: Task) -> dict[str, float]:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def get(url: str) -> bytes:
            async with session.get(url) as response:
                return await response.read()

        return await fetched(get, task)


async def fetch_onceflow(task: Task) -> dict[str, float]:
    from onceflow.clients import FetchSettings, Http

    settings = FetchSettings(allow_networks=("127.0.0.1/32",), connections_per_host_max=AT_ONCE)
    async with Http(contact="bench@example.com", settings=settings) as http:

        async def get(url: str) -> bytes:
            return (await http.page(url)).body

        return await fetched(get, task)


def fetch_scrapy(task: Task) -> dict[str, float]:
    import scrapy  # type: ignore[import-not-found]  # in .venv-bench only
    from scrapy.crawler import CrawlerProcess  # type: ignore[import-not-found]  # as above

    urls = [f"{task['base']}{n % task['pages']}.html" for n in range(task["n"] // 10)]
    whole = 0

    class Spider(scrapy.Spider):  # type: ignore[misc]  # not installed with the tools
        name = "bench"

        async def start(self) -> Any:
            for url in urls:
                yield scrapy.Request(url, dont_filter=True)

        def parse(self, response: Any) -> None:
            nonlocal whole
            whole += response.body.endswith(b"</html>")

    process = CrawlerProcess(
        {
            "LOG_LEVEL": "ERROR",
            "ROBOTSTXT_OBEY": True,
            "CONCURRENT_REQUESTS": AT_ONCE,
            "CONCURRENT_REQUESTS_PER_DOMAIN": AT_ONCE,
            "DOWNLOAD_DELAY": 0,
            "TELNETCONSOLE_ENABLED": False,
        }
    )
    crawler = process.create_crawler(Spider)
    cpu = cpu_seconds()
    process.crawl(crawler)
    process.start()
    cpu = cpu_seconds() - cpu
    assert whole == len(urls), f"{whole} of {len(urls)} pages came whole"
    seconds = crawler.stats.get_value("elapsed_time_seconds")  # without its start
    return answer(len(urls), seconds, cpu)


# --- fetch, extract, summarize ---


async def whole_loop(task: Task) -> dict[str, float]:
    """One process: aiohttp, trafilatura and the same summarizer, one page after another, and a
    digest as the pipeline makes one."""
    import aiohttp
    import trafilatura

    from onceflow.clients.embedded import summary

    summary("Warm up the model. It is loaded once. That is not counted.")
    trafilatura.extract("<html><body><p>Warm up.</p></body></html>", fast=True)
    summaries: list[str] = []
    began, cpu = time.perf_counter(), cpu_seconds()
    async with aiohttp.ClientSession() as session:
        for path in task["paths"]:
            async with session.get(f"{task['base']}{path}") as response:
                html = await response.text()
            text = trafilatura.extract(html, fast=True, include_comments=False)
            summaries.append(" ".join(summary(text)) if text else "")
    summary(all_of(summaries), DIGEST_WORDS)
    return answer(len(summaries), time.perf_counter() - began, cpu_seconds() - cpu)


def all_of(summaries: list[str]) -> str:
    """What the pipeline makes its digest of."""
    return "\n\n".join(filter(None, summaries))[:DIGEST_CHARS_MAX]


def parts() -> Any:
    """The pipeline's handlers with all limits on, at a pace for a site of our own."""
    from onceflow.clients import Extractor, FetchSettings, Http, Llm
    from onceflow.pipelines.summarize import Summarize

    settings = FetchSettings(allow_networks=("127.0.0.1/32",))
    return Summarize(
        http=Http(contact="bench@example.com", settings=settings),
        extractor=Extractor(),
        llm=Llm(),
        host_limit=AT_ONCE,
        host_spacing_seconds=0,
    )


async def warm(made: Any, task: Task) -> None:
    """Libraries, children and the model are loaded before the clock starts, as in the loop."""
    await made.http.get(f"{task['base']}{task['paths'][0]}")
    page = "<html><body><p>Warm up the model. It is loaded once.</p></body></html>"
    await asyncio.gather(*(made.extractor.extract(page) for _ in range(2)))
    await made.llm.summarize("Warm up the model. It is loaded once. Not counted.").read()


async def closed(made: Any) -> None:
    await made.extractor.close()
    await made.http.close()


async def whole_onceflow(task: Task) -> dict[str, float]:
    """The pipeline on SQLite, durable, with its history and its digest."""
    made = parts()
    await warm(made, task)
    table = made.pipeline()
    urls = [f"{task['base']}{one}" for one in task["paths"]]
    async with opened(task, table) as flow:
        began, cpu = time.perf_counter(), cpu_seconds()
        await worked_off(flow, table, urls)
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        await check(flow, table, urls)
    await closed(made)
    return answer(len(urls), seconds, cpu)


async def whole_share(task: Task) -> dict[str, float]:
    """The CPU of a page with the engine, and what it is beyond the same handlers without one, one
    way after the other. Only what may be the engine's is compared: extraction and the model, which
    are most of it, have processes and a thread of their own, where a change of the machine's pace
    would be taken for a share of the engine."""
    made = parts()
    await warm(made, task)
    table = made.pipeline()
    urls = [f"{task['base']}{one}" for one in task["paths"]]
    loops: dict[bool, float] = {}
    whole: dict[bool, float] = {}
    async with opened(task, table) as flow:
        began = time.perf_counter()
        for engine in (True, False) if task.get("turn", 0) % 2 == 0 else (False, True):
            loop, cpu = loop_seconds(), cpu_seconds()
            await (worked_off(flow, table, urls) if engine else handled(made, urls))
            loops[engine], whole[engine] = loop_seconds() - loop, cpu_seconds() - cpu
        seconds = time.perf_counter() - began
        await check(flow, table, urls)
    await closed(made)
    overhead = (loops[True] - loops[False]) / len(urls) * 1000
    return {**answer(len(urls) * 2, seconds, whole[True] * 2), "engine_ms": overhead}


def loop_seconds() -> float:
    """The CPU of this process without the model's thread: the loop, the store and the heart."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    model = 0.0
    for thread in threading.enumerate():
        if thread.name.startswith("embedded-model"):
            stat = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
            model += int(stat.split()[0]) / 1e9
    return own.ru_utime + own.ru_stime - model


def opened(task: Task, table: Any) -> Any:
    import onceflow

    return onceflow.open(Path(task["folder"]) / f"bench-{time.time_ns()}.db", table)


async def worked_off(flow: Any, table: Any, urls: list[str]) -> None:
    await flow.add(table, urls)
    await flow.drain()


async def check(flow: Any, table: Any, urls: list[str]) -> None:
    """A figure counts only if all the work was done."""
    failed = await flow.items(table, state="failed")
    assert not failed, failed[0]
    done = await flow.items(table, stage="summarize", state="completed", limit=10_000)
    assert len(done) == len(set(urls)), f"{len(done)} of {len(urls)}"


async def handled(made: Any, urls: list[str]) -> None:
    """The pipeline's own handlers, and a digest, with no engine and no database."""
    from onceflow import Work

    left = iter(urls)
    pages: asyncio.Queue[Work | None] = asyncio.Queue(maxsize=20)
    summaries: list[str] = []

    async def scrape() -> None:
        for url in left:
            done = await made.scrape(Work(url, None, "summarize", "scrape"))
            await pages.put(Work(url, done.result, "summarize", "summarize"))

    async def summarize() -> None:
        while (work := await pages.get()) is not None:
            summaries.append((await made.summarize(work)).result["summary"])

    async with asyncio.TaskGroup() as tasks:
        scrapes = [tasks.create_task(scrape()) for _ in range(AT_ONCE)]
        for _ in range(AT_ONCE):
            tasks.create_task(summarize())
        await asyncio.gather(*scrapes)
        for _ in range(AT_ONCE):
            await pages.put(None)
    await made.llm.summarize(all_of(summaries), words=DIGEST_WORDS).read()


MEASURES: dict[str, Callable[[Task], Any]] = {
    "fetch_aiohttp": fetch_aiohttp,
    "fetch_onceflow": fetch_onceflow,
    "fetch_scrapy": fetch_scrapy,
    "whole_loop": whole_loop,
    "whole_onceflow": whole_onceflow,
    "whole_share": whole_share,
}


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    task = json.loads(sys.argv[1])
    measure = MEASURES[task["name"]]
    try:
        found = (
            asyncio.run(measure(task)) if asyncio.iscoroutinefunction(measure) else measure(task)
        )
    except ModuleNotFoundError as error:
        print(f"{error}; `make bench-setup` installs it", file=sys.stderr)
        return NOT_INSTALLED
    print(json.dumps({**found, "cpu_seconds": cpu_seconds()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
