"""The scripted clients of the test kit, as a user's test would use them."""

import re
from pathlib import Path

import pytest

from onceflow.clients import Page
from onceflow.core.errors import Permanent, Transient
from onceflow.testing.llm import ScriptedLlm
from onceflow.testing.site import FakeHttp

from .hostile import failure

DOCS = Path(__file__).parents[2] / "docs" / "clients.md"


async def test_a_fake_fetcher_says_what_it_was_told() -> None:
    gone = Permanent("gone", code="http_410")
    http = FakeHttp(
        {
            "https://A.test": "<p>hello",
            "https://a.test/turns": [Page("https://a.test/turns", 500), "now it works"],
            "https://a.test/gone": gone,
        }
    )
    assert (await http.get("https://a.test/#x")).text == "<p>hello"
    assert await failure(http.page("https://a.test/turns")) == "transient http_500"
    assert (await http.page("https://a.test/turns")).text == "now it works"
    assert (await http.page("https://a.test/turns")).text == "now it works"
    assert await failure(http.get("https://a.test/gone")) == "permanent http_410"
    assert (await http.get("https://a.test/unknown")).status == 404
    assert http.asked[:2] == ["https://a.test/", "https://a.test/turns"]


async def test_a_scripted_model_says_what_it_was_told() -> None:
    llm = ScriptedLlm("first", ["in ", "parts"], Transient("busy", code="http_429", retry_after=5))
    assert await llm.stream("a").read() == "first"
    assert [part async for part in llm.stream("b")] == ["in ", "parts"]
    assert await failure(llm.stream("c").read()) == "transient http_429"
    assert [request.prompt for request in llm.scripted.requests] == ["a", "b", "c"]


def test_the_documents_examples_are_python() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        body = "".join(f"    {line}\n" for line in block.splitlines())
        compile(f"async def example():\n{body}", "docs/clients.md", "exec")


SOURCES = Path(__file__).parents[2] / "src" / "onceflow" / "clients"


def test_every_failure_code_is_documented() -> None:
    text = "".join(path.read_text() for path in SOURCES.glob("*.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', text))
    assert len(codes) > 25
    documented = DOCS.read_text()
    assert [code for code in sorted(codes) if f"`{code}`" not in documented] == []


@pytest.mark.parametrize("name", ["FetchSettings", "LlmLimits", "ExtractSettings"])
def test_settings_are_documented(name: str) -> None:
    assert name in DOCS.read_text()
