"""What the pipelines' tests share: databases on both stores, and pages to read."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from onceflow.clients import Extracted, Extractor, Page
from onceflow.clients._extract_child import extract
from onceflow.pipelines.summarize import Summarize
from onceflow.testing.llm import ScriptedLlm
from onceflow.testing.site import FakeHttp


def article(subject: str, *, canonical: str = "", sentences: int = 8) -> str:
    """A page with enough text of its own to be found by the extractor."""
    text = " ".join(
        f"Sentence number {n} says that {subject} matters for reason {n} and for no other reason."
        for n in range(1, sentences + 1)
    )
    link = f'<link rel="canonical" href="{canonical}">' if canonical else ""
    return (
        f"<html><head><title>All about {subject}</title>{link}</head><body><nav>Home</nav>"
        f"<article><h1>All about {subject}</h1><p>{text}</p><p>{text} The end.</p>"
        "</article></body></html>"
    )


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not exist yet, or is empty."""
    if request.param == "sqlite":
        return str(tmp_path / "onceflow.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def extractor() -> AsyncIterator[Extractor]:
    async with Extractor() as shared:
        yield shared


class InlineExtractor(Extractor):
    """Finds the text here and now, without a child that takes a second to start."""

    async def extract(
        self,
        page: Page | str,
        *,
        url: str | None = None,
        markdown: bool = False,
        about: bool = False,
    ) -> Extracted:
        assert isinstance(page, Page)
        html = page.decoded.text
        answer = extract({"html": html, "url": page.url, "about": about, "seconds": 10})
        return self._result(answer, page.url)


@pytest.fixture
def inline_extractor() -> Extractor:
    return InlineExtractor()


def summarize(pages: Mapping[str, object], llm: ScriptedLlm, extractor: Extractor) -> Summarize:
    return Summarize(FakeHttp(pages), extractor, llm, host_limit=8, host_spacing_seconds=0)
