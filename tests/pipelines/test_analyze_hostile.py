"""Sites that are empty, strange, endless, closed or somebody else's: a clear answer for each."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow import Item
from onceflow.clients import Extractor, FetchSettings, Http
from onceflow.pipelines.analyze import Analyze
from onceflow.pipelines.analyze.read import feed_entries
from onceflow.testing.site import ALLOWED, Site

JAPANESE = (
    "さくら書店は専門書を扱う書店です。古書の買取も行っています。専門書の在庫は一万冊あり、古書の買取は"
    "郵送でも受け付けています。専門書を探している学生の方は、ぜひご来店ください。"
)
ARABIC = (
    "مكتبة النور تبيع الكتب العلمية للطلاب. الكتب العلمية متوفرة في المدينة، ويمكن طلب الكتب "
    "العلمية من الموقع. تقدم المكتبة خدمة التوصيل إلى المنزل، "
    "وخدمة التوصيل مجانية للطلاب في المدينة."
)
ENGLISH = (
    "The harbour museum shows wooden boats. The wooden boats were built on the coast, and the "
    "museum keeps the tools of the boat builders. A guided tour of the museum takes an hour. "
)


def html(title: str, text: str, *, language: str = "en", head: str = "", more: str = "") -> str:
    return (
        f'<html lang="{language}"><head><title>{title}</title>{head}</head>'
        f"<body><article><h1>{title}</h1><p>{text}</p><p>{text}</p></article>{more}</body></html>"
    )


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as running:
        yield running


class Analysis:
    """What became of a site."""

    def __init__(self, item: Item, bodies: dict[str, Any]) -> None:
        self.item = item
        self.site: dict[str, Any] = bodies.get("website-analysis") or {}
        self.info: dict[str, Any] = self.site.get("extractedInfo") or {}
        self.prompts: list[dict[str, Any]] = (bodies.get("prompt-forming") or {}).get("prompts", [])
        self.notes = " ".join(self.site.get("notes", []))


async def analyzed(
    site: Site, extractor: Extractor, folder: Path, path: str = "/", **more: Any
) -> Analysis:
    http = Http(settings=FetchSettings(allow_networks=ALLOWED))
    wishes: dict[str, Any] = {"prompts": 10, "host_spacing_seconds": 0, "backoff_seconds": 0}
    job = Analyze(http, extractor, **(wishes | more))
    async with http, onceflow.open(str(folder / "x.db"), job.pipeline()) as flow:
        await flow.add("analyze", [site.url(path)])
        await flow.drain()
        [item] = await flow.items("analyze")
        bodies = {row["stage"]: row["body"] for row in await flow.results(item.id)}
        assert await flow.audit() == []
    return Analysis(item, bodies)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "its home page is empty"),
        ("<html><body></body></html>", "its home page is empty"),
        ('<html><body><img src="a.png"></body></html>', "its home page is an image without words"),
    ],
    ids=["nothing", "an empty page", "a single image"],
)
async def test_a_site_without_text(
    site: Site, inline_extractor: Extractor, tmp_path: Path, body: str, why: str
) -> None:
    site.answer("/", body)
    found = await analyzed(site, inline_extractor, tmp_path)
    assert (found.item.state, found.item.error_code) == ("failed", "no_text")
    assert why in str(found.item.error)


async def test_an_image_instead_of_a_page(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    site.answer("/", b"\x89PNG\r\n\x1a\n" + bytes(100), content_type="image/png")
    found = await analyzed(site, inline_extractor, tmp_path)
    assert (found.item.state, found.item.error_code) == ("failed", "not_text")
    assert "is not a web page but image/png" in str(found.item.error)


async def test_a_japanese_site(site: Site, inline_extractor: Extractor, tmp_path: Path) -> None:
    site.answer("/", html("さくら書店", JAPANESE, language="ja"))
    found = await analyzed(site, inline_extractor, tmp_path)
    assert found.item.state == "completed"
    assert found.info["name"] == "さくら書店"
    assert found.info["languages"][0]["code"] == "ja"
    assert "専門書" in {one["topic"] for one in found.info["topics"]}
    assert "学生" in found.info["audience"]
    assert any("専門書" in one["text"] for one in found.prompts)
    assert {one["language"] for one in found.prompts} == {"ja"}


async def test_an_arabic_site(site: Site, inline_extractor: Extractor, tmp_path: Path) -> None:
    site.answer("/", html("مكتبة النور", ARABIC, language="ar"))
    found = await analyzed(site, inline_extractor, tmp_path)
    assert found.item.state == "completed"
    assert found.info["languages"][0]["code"] == "ar"
    assert any("الكتب العلمية" in one["topic"] for one in found.info["topics"])
    assert any(one["text"].startswith("ما الذي ينبغي أن أعرفه عن «") for one in found.prompts)


async def test_a_language_without_questions_falls_back_to_english_and_says_so(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    text = "Muzeum portowe pokazuje drewniane łodzie. Drewniane łodzie zbudowano na wybrzeżu. " * 3
    site.answer("/", html("Muzeum portowe", text, language="pl"))
    found = await analyzed(site, inline_extractor, tmp_path)
    assert found.item.state == "completed"
    assert found.info["languages"][0]["code"] == "pl"
    assert {one["language"] for one in found.prompts} == {"en"}


async def test_a_hundred_thousand_links_are_not_followed(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    links = "".join(f'<a href="/p/{n}">{n}</a> ' for n in range(100_000))
    site.answer("/", html("Harbour museum", ENGLISH * 3, more=links))
    for n in range(1_000):
        site.answer(f"/p/{n}", html(f"Boat {n}", f"{ENGLISH} This is boat number {n}."))
    found = await analyzed(site, inline_extractor, tmp_path, pages=5)
    assert found.item.state == "completed"
    assert len([path for path in site.paths() if path.startswith("/p/") or path == "/"]) == 5
    assert found.site["limits"]["pages"] == 5


async def test_a_sitemap_that_is_a_bomb_is_passed_over(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    bomb = (
        '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
        + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
        + "]><urlset><url><loc>&j;</loc></url></urlset>"
    )
    endless = "".join(
        f"<sitemap><loc>{site.url(f'/s{n}.xml')}</loc></sitemap>" for n in range(5_000)
    )
    site.answer("/robots.txt", f"Sitemap: {site.url('/bomb.xml')}\nSitemap: {site.url('/s.xml')}\n",
                content_type="text/plain")  # fmt: skip
    site.answer("/bomb.xml", bomb, content_type="application/xml")
    site.answer("/s.xml", f"<sitemapindex>{endless}</sitemapindex>", content_type="text/xml")
    site.answer("/", html("Harbour museum", ENGLISH))
    found = await analyzed(site, inline_extractor, tmp_path)
    assert found.item.state == "completed"
    assert len([path for path in site.paths() if path.endswith(".xml")]) <= 20


async def test_a_site_that_lets_nobody_in(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    site.answer("/", "no", status=403)
    found = await analyzed(site, inline_extractor, tmp_path)
    assert (found.item.state, found.item.error_code) == ("failed", "http_403")
    assert "answered 403: the site lets no program read it" in str(found.item.error)


async def test_robots_that_allow_nothing_are_heeded(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    site.answer("/robots.txt", "User-agent: *\nDisallow: /\n", content_type="text/plain")
    site.answer("/", html("Harbour museum", ENGLISH))
    found = await analyzed(site, inline_extractor, tmp_path)
    assert (found.item.state, found.item.error_code) == ("failed", "robots_disallowed")
    assert site.paths() == []


async def test_a_site_that_redirects_to_another_is_not_taken_for_it(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    async with Site() as other:
        other.answer("/", html("Somebody else", ENGLISH))
        site.answer("/", status=301, headers={"Location": other.url()})
        found = await analyzed(site, inline_extractor, tmp_path)
    assert (found.item.state, found.item.error_code) == ("failed", "other_site")
    assert f"redirects to another site, {other.url()}" in str(found.item.error)


async def test_a_mirror_is_told_whose_it_is(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    head = '<link rel="canonical" href="https://museum.example/">'
    site.answer("/", html("Harbour museum", ENGLISH, head=head))
    found = await analyzed(site, inline_extractor, tmp_path)
    assert found.item.state == "completed"
    assert "they name museum.example as the original" in found.notes


async def test_pages_that_fail_are_counted_and_the_rest_is_read(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    links = "".join(f'<a href="/p{n}">{n}</a> ' for n in range(4))
    site.answer("/", html("Harbour museum", ENGLISH, more=links))
    site.answer("/p0", "gone", status=410)
    site.answer("/p1", "broken", status=500)
    site.answer("/p2", html("Boats", f"{ENGLISH} All about boats."))
    site.answer("/p3", "%PDF-1.4", content_type="application/pdf")
    found = await analyzed(site, inline_extractor, tmp_path)
    assert found.site["limits"] == {"pages": 20, "read": 2, "refused": 3}


async def test_a_feed_says_how_fresh_a_site_is(
    site: Site, inline_extractor: Extractor, tmp_path: Path
) -> None:
    head = '<link rel="alternate" type="application/rss+xml" href="/feed">'
    site.answer("/", html("Harbour museum", ENGLISH, head=head))
    item = "<item><link>{}</link><pubDate>Mon, 02 Mar 2026 10:00:00 GMT</pubDate></item>"
    site.answer("/feed", f"<rss><channel>{item.format(site.url('/news/tar'))}</channel></rss>",
                content_type="application/rss+xml")  # fmt: skip
    site.answer("/news/tar", html("Tar and rope", f"{ENGLISH} The tar smells."))
    found = await analyzed(site, inline_extractor, tmp_path)
    assert found.info["freshness"] == {"newest": "2026-03-02", "oldest": "2026-03-02", "dated": 0}
    assert [page["kind"] for page in found.info["pages"]] == ["home", "article"]


LONG_TO_READ = """
import resource

from onceflow.pipelines.analyze.mentions import mention
from onceflow.pipelines.analyze.read import feed_entries

resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for text in ("<item ", "<entry><link ", "<item><link>" + " " * 50_000 + "<", "<item><pubDate> "):
    feed_entries((text * (500_000 // len(text))).encode())
found = mention("a.b." * 50_000, {"names": ["Harbour Museum"], "domains": ["harbour.test"]})
assert found.how == "none"
"""


def test_texts_that_are_made_to_be_read_for_hours_are_read_once() -> None:
    """With 20 seconds of a processor, however busy the machine is; each would take minutes."""
    subprocess.run([sys.executable, "-c", LONG_TO_READ], check=True)


def test_the_entries_of_a_feed_are_found() -> None:
    feed = b"""<rss><channel><link>https://a.test/</link>
    <item><title>x</title><link> <![CDATA[ https://a.test/1 ]]></link>
    <pubDate> Mon, 16 Nov 2026 10:00:00 GMT</pubDate></item>
    <entry><link rel="alternate" href="https://a.test/2"/><updated>2026-11-15</updated></entry>
    </channel><link>https://a.test/3</link></rss>"""
    links, dates = feed_entries(feed)
    assert links == ["https://a.test/1", "https://a.test/2"]
    assert dates == ["Mon, 16 Nov 2026 10:00:00 GMT", "2026-11-15"]
