"""A real small model in the loop: as an OpenAI-compatible peer on loopback, and in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import onceflow
from onceflow import Pipeline
from onceflow.clients import Llm
from onceflow.clients.local import PACKAGED, load
from onceflow.pipelines.analyze import Analyze
from onceflow.pipelines.summarize import Summarize
from onceflow.testing.site import FakeHttp

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        find_spec("xllamacpp") is None or PACKAGED["smollm2"].path() is None,
        reason="no weights here; `make live` installs them",
    ),
]

PAGES = 20
CUTS = 5
TOKENS = 40
SUBJECTS = ["harbour", "library", "station", "museum", "market", "garden", "bridge", "theatre"]


def page(number: int) -> str:
    what = SUBJECTS[number % len(SUBJECTS)]
    return (
        f"<html><head><title>The {what}</title></head><body><article><p>The {what} number {number}"
        f" opens again in May. Workers have mended its roof for {number + 2} years, and the town"
        f" has paid {number + 1} million for it. Children may visit the {what} on Sundays for"
        " nothing.</p></article></body></html>"
    )


class CuttingProxy:
    """Passes bytes on between a client and a server, and cuts some answers in the middle."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self.calls = 0
        self.cut = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}/v1"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        asking = asyncio.create_task(self._pass_on(reader, back))
        events = 0
        try:
            while data := await there.read(65536):
                if b"HTTP/1.1 200" in data:
                    self.calls += 1
                    events = 0
                events += data.count(b"data: ")
                cutting = self.calls % 3 == 1 and self.cut < CUTS
                if cutting and events >= 5:
                    self.cut += 1
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one of the two went away
        finally:
            asking.cancel()
            for one in (writer, back):
                one.transport.abort()
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()


@pytest.fixture(scope="module")
def peer() -> Any:
    return load("smollm2", context_tokens=1024, api_key="peer-key", output_tokens_max=TOKENS)


def pipeline(llm: Llm) -> Pipeline:
    pages = FakeHttp({f"http://site.test/{number}": page(number) for number in range(PAGES)})
    made = Summarize(http=pages, llm=llm, words=25, host_limit=8, host_spacing_seconds=0).pipeline()
    return Pipeline(
        made.name, *made.stages, done=made.done, failed=made.failed, after_all=made.gate_stage,
        canonical=made.canonical, backoff_seconds=0, backoff_max_seconds=0,
    )  # fmt: skip


async def summarized(llm: Llm, folder: Path, count: int) -> AsyncIterator[dict[str, Any]]:
    """The results, and last the digest's, with how often something was tried again."""
    table = pipeline(llm)
    async with onceflow.open(folder / "model.db", table) as flow:
        keys = [f"http://site.test/{number}" for number in range(count)]
        added = await flow.add(table, keys)
        await flow.drain()
        for key in keys:
            item = await flow.item(table, key)
            assert item.state == "completed", item.error
            found = await flow.result(item.id, "summarize")
            assert isinstance(found, dict)
            yield found
        run = await flow.run(added.run)
        assert run.gate_item is not None
        digest = await flow.result(run.gate_item, "digest")
        assert isinstance(digest, dict)
        assert await flow.audit() == []
        retried = [event.data async for event in flow.events() if event.kind == "retried"]
        yield {**digest, "retried": [data["code"] for data in retried]}


async def test_twenty_pages_by_a_peer_whose_answers_are_cut(peer: Any, tmp_path: Path) -> None:
    address = urlsplit(peer.listening_address)
    proxy = CuttingProxy(address.hostname or "", address.port or 0)
    async with (
        proxy as base_url,
        Llm("openai:smollm2", base_url=base_url, api_key="peer-key", context_tokens=1024) as llm,
    ):
        results = [one async for one in summarized(llm, tmp_path, PAGES)]
    *summaries, digest = results
    assert proxy.cut == CUTS
    assert digest["retried"] == ["truncated"] * CUTS, "once more for each cut, and for nothing else"
    # Each page once, and the digest, which is more than fits the model: its parts, then the whole.
    assert PAGES < proxy.calls - CUTS <= PAGES + 10
    for one in summaries:
        assert one["summary"].strip()
        assert one["tokens_estimated"] is False
        assert TOKENS / 8 < one["tokens"] < 1024
    assert digest["digest"].strip()


async def test_a_peer_streams_with_usage(peer: Any) -> None:
    base_url = f"{peer.listening_address}/v1"
    async with Llm("openai:smollm2", base_url=base_url, api_key="peer-key") as llm:
        stream = llm.summarize(page(1), words=25)
        parts = [part async for part in stream]
    assert len(parts) > 5
    assert stream.usage.output_tokens <= TOKENS
    assert stream.usage.input_tokens > 100
    assert not stream.usage.estimated


async def test_three_pages_in_this_process(tmp_path: Path) -> None:
    async with Llm("local:smollm2", context_tokens=1024) as llm:
        *summaries, digest = [one async for one in summarized(llm, tmp_path, 3)]
    assert {one["model"] for one in summaries} == {"local:smollm2"}
    assert all(one["summary"].strip() for one in summaries)
    assert not any(one["tokens_estimated"] for one in summaries)
    assert digest["digest"].strip()


async def test_a_real_assistant_is_asked_about_a_site(peer: Any, tmp_path: Path) -> None:
    """Its answers are what a small model says; that they are asked for, kept and judged is ours."""
    site = "http://harbour.test/"
    pages = FakeHttp({site: page(0).replace("The harbour</title>", "Harbour Trust</title>")})
    base_url = f"{peer.listening_address}/v1"
    async with Llm("openai:smollm2", base_url=base_url, api_key="peer-key") as llm:
        table = Analyze(pages, models=[llm], prompts=10, host_spacing_seconds=0).pipeline()
        async with onceflow.open(tmp_path / "analyze.db", table) as flow:
            await flow.add(table, [site])
            await flow.drain()
            item = await flow.item(table, site)
            assert item.state == "completed", item.error
            found = {row["stage"]: row["body"] for row in await flow.results(item.id)}
    profile, result = found["website-analysis"], found["model-analysis"]
    # What it makes of the profile fits the schema, or the rules' own is kept with a note.
    assert profile["method"] == "rules+openai:smollm2" or "by rules alone" in profile["notes"][-1]
    assert len(result["answers"]) == len(found["prompt-forming"]["prompts"])
    assert all(one["text"].strip() and one["tokens"] > 0 for one in result["answers"])
    assert 0 <= result["scores"]["visibility"] <= 100
    branded = {one["n"] for one in found["prompt-forming"]["prompts"] if one["branded"]}
    assert branded
