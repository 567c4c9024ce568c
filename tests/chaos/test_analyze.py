"""Websites whose workers are killed: every site ends, each result once, pages within limits."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

import onceflow
from onceflow import Flow
from onceflow.pipelines.analyze import Analyze
from tests.chaos.kit import SEED, SHORT, Crew, all_have_begun, holders, say, until

LEASE_SECONDS = 4.0
PAGES, PROMPTS = 5, 10
STAGES = ("website-analysis", "prompt-forming", "model-analysis")


class Town:
    """Many small sites, each at an address of its own on loopback, and an assistant."""

    def __init__(self, sites: int) -> None:
        self.hosts = [f"127.0.{2 + n // 200}.{1 + n % 200}" for n in range(sites)]
        self.pages: Counter[str] = Counter()
        """How many pages of each site were asked for, as its server counts."""
        self.asked: Counter[str] = Counter()
        self.port = 0

    @property
    def urls(self) -> list[str]:
        return [f"http://{host}:{self.port}/" for host in self.hosts]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._assistant)
        app.router.add_get("/{path:.*}", self._page)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        for host in self.hosts:
            site = web.TCPSite(runner, host, self.port)
            await site.start()
            self.port = self.port or runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        path = request.path
        if path in ("/robots.txt", "/sitemap.xml"):
            return web.Response(status=404)
        host = request.host.partition(":")[0]
        self.pages[host] += 1
        number = self.hosts.index(host)
        if number % 10 == 9:
            return web.Response(status=403)
        await asyncio.sleep(0.05)
        links = "".join(f'<a href="/p{n}">page {n}</a> ' for n in range(12))
        text = (
            f"The harbour of town {number} has wooden boats. The wooden boats of the harbour are "
            f"mended in the boat yard, and the boat yard is open on {path.strip('/') or 'Sundays'}."
        )
        page = (
            f"<html lang=en><head><title>Town {number} | {path}</title></head><body><article>"
            f"<p>{text * 3}</p></article>{links}</body></html>"
        )
        return web.Response(text=page, content_type="text/html")

    async def _assistant(self, request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["messages"][-1]["content"]
        self.asked[asked] += 1
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await asyncio.sleep(0.02)
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": {"content": "Try the harbour."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        for more in ({"choices": [choice]}, {"choices": [], "usage": usage}):
            await answer.write(b"data: " + json.dumps(head | more).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer


def configure(folder: Path, town: Town) -> None:
    (folder / "onceflow.toml").write_text(
        f'[fetch]\nallow_networks = ["127.0.0.0/8"]\n[llm]\nbase_url = "{town.urls[0]}v1"\n'
        f"[analyze]\npages = {PAGES}\nprompts = {PROMPTS}\nrefine = false\n"
        f'models = ["openai:m"]\nhost_spacing_seconds = 0.0\nlease_seconds = {LEASE_SECONDS}\n',
        encoding="utf-8",
    )


async def claims(flow: Flow, stage: str) -> Counter[str]:
    found: Counter[str] = Counter()
    async for event in flow.events(pipeline="analyze", kinds=["claimed"]):
        if event.stage == stage:
            found[str(event.key)] += 1
    return found


async def analyze_under_kills(
    database: str, folder: Path, *, sites: int, workers: int, kills: int, seconds: float
) -> None:
    chance = random.Random(SEED)
    town = Town(sites)
    pipeline = Analyze(lease_seconds=LEASE_SECONDS).pipeline()
    async with town.open():
        configure(folder, town)
        with Crew("analyze", database, folder) as crew:
            async with onceflow.open(database, pipeline) as flow:
                added = await flow.add("analyze", town.urls)

                async def over() -> bool:
                    return (await flow.run(added.run)).open == 0

                for _ in range(workers):
                    crew.command("worker", "analyze", *SHORT)
                await all_have_begun(flow, crew, workers)
                killed = 0
                while killed < kills and not await over():
                    busy = [pid for pid, held in (await holders(flow, crew)).values() if held]
                    if busy:
                        crew.kill([chance.choice(busy)])
                        crew.command("worker", "analyze", *SHORT)
                        killed += 1
                    await asyncio.sleep(chance.uniform(0.2 * seconds, seconds))
                await until(over, "every site is settled", crew, seconds=600)
                crew.stop()
                states: Counter[str] = Counter()
                codes: Counter[str] = Counter()
                for item in await flow.items("analyze", limit=1000):
                    states[item.state] += 1
                    stages = [row["stage"] for row in await flow.results(item.id)]
                    if item.state == "completed":
                        assert stages == list(STAGES)
                        body = await flow.result(item.id, "model-analysis")
                        assert len(body["answers"]) == PROMPTS
                    else:
                        assert item.state == "failed"
                        assert item.error
                        codes[str(item.error_code)] += 1
                        assert len(stages) == len(set(stages))
                begun = await claims(flow, "website-analysis")
                assert await flow.audit() == []
        crew.check_logs()
    for url, host in zip(town.urls, town.hosts, strict=True):
        # Each attempt stays within the limit, and what an earlier one has kept is not read again:
        # all that a kill can cost is the page that was under way.
        assert town.pages[host] <= PAGES + begun[url] - 1, (url, town.pages[host], begun[url])
    assert states.total() == sites
    say(
        "analyze", database, kills=killed, completed=states["completed"],
        failed=dict(codes), pages=town.pages.total(), answers=town.asked.total(),
    )  # fmt: skip


async def test_a_few_sites_with_killed_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    database = str(tmp_path / "x.db")
    await analyze_under_kills(database, tmp_path, sites=6, workers=2, kills=1, seconds=1.0)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_a_hundred_sites_with_kills(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    await analyze_under_kills(database, tmp_path, sites=100, workers=4, kills=8, seconds=4.0)
