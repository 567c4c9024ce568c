"""Without its library a client says which extra to install, as a failure that stops the stage."""

import sys
from collections.abc import Awaitable, Callable

import pytest

from onceflow.clients import Embedder, Http, Llm, embed
from onceflow.clients.llm import STAGE_CODES
from onceflow.clients.urls import canonical
from onceflow.clients.wikitext import _parser, sections
from onceflow.core.errors import Permanent


async def url() -> object:
    return canonical("http://a.test/%7e-only-the-parser-knows")


async def wikitext() -> object:
    parts, _ = sections("{{lang|de|Wort}}")
    return parts


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("aiohttp", "clients", lambda: Http().get("http://a.test/")),
        ("ada_url", "clients", url),
        ("wordllama", "embedded", lambda: Embedder().embed(["a"])),
        ("wordllama", "embedded", lambda: Llm().stream("Summarize:\nOne. Two.").read()),
        ("openai", "openai", lambda: Llm("openai:m", api_key="k" * 9).stream("go").read()),
        ("mwparserfromhell", "expand", wikitext),
        ("xllamacpp", "local", lambda: Llm("local:smollm2").stream("go").read()),
    ],
)
async def test_a_missing_library(
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    extra: str,
    use: Callable[[], Awaitable[object]],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not there
    monkeypatch.delitem(sys.modules, "onceflow.clients._wire", raising=False)
    embed._load.cache_clear()
    _parser.cache_clear()
    with pytest.raises(Permanent, match=rf"pip install '.*\[{extra}\]'") as caught:
        await use()
    assert caught.value.code == "not_installed"
    assert caught.value.code in STAGE_CODES
