"""The bundled site: its articles, and the oddities that it promises."""

import zipfile
from pathlib import Path

import pytest

from onceflow import Permanent
from onceflow.clients import Extractor, FetchSettings, Http
from onceflow.commands.output import UsageError
from onceflow.demo.articles import articles
from onceflow.demo.show import make_folder, own_folder
from onceflow.demo.site import (
    CLOSED_PATH,
    FAILING_PATH,
    GONE_PATH,
    MOVED,
    NETWORK,
    OLD_PATH,
    PRINT_PATH,
    SLOW_PATH,
    Site,
)


def http() -> Http:
    return Http(settings=FetchSettings(allow_networks=(NETWORK,)))


def test_there_are_at_least_twelve_articles_of_real_length() -> None:
    lengths = {one.name: len(one.body.split()) for one in articles().values()}
    assert len(lengths) >= 12
    assert {name: words for name, words in lengths.items() if not 500 <= words <= 900} == {}


def test_a_wheel_has_every_article(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert {f"onceflow/demo/articles/{name}.md" for name in articles()} <= names


async def test_the_site_is_as_odd_as_it_says() -> None:
    async with Site(slow_seconds=0) as site, http() as client:
        site.release()
        answers = [(await client.get(site.url(FAILING_PATH))).status for _ in range(3)]
        assert answers == [503, 503, 200]
        moved = await client.get(site.url(OLD_PATH))
        assert moved.url == site.url(f"/articles/{MOVED}")
        assert (await client.get(site.url(GONE_PATH))).status == 404
        slow = await client.get(site.url(SLOW_PATH))
        assert slow.body.endswith(b"</html>\n")
        with pytest.raises(Permanent, match=r"robots\.txt"):
            await client.get(site.url(CLOSED_PATH))
        assert CLOSED_PATH not in [visit.path for visit in site.visits]


async def test_the_text_of_a_page_is_its_article_without_the_menu() -> None:
    async with Site() as site, http() as client, Extractor() as extractor:
        page = await client.get(site.url("/articles/tides"))
        found = await extractor.extract(page.text, url=page.url)
        assert found.title == articles()["tides"].title
        assert found.text.endswith("about as fast as a fingernail grows.")
        assert "Also in the Almanac" not in found.text
        printed = await client.get(site.url(PRINT_PATH))
        other = await extractor.extract(printed.text, url=printed.url)
        assert other.canonical == site.url("/articles/tides")


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="has other things in it"):
        make_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_two_demos_at_once_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with own_folder(folder):
        (folder / "demo.db").write_text("being played")
        with pytest.raises(UsageError, match="another demo is being played"), own_folder(folder):
            pass
        assert (folder / "demo.db").read_text() == "being played"
    with own_folder(folder):
        assert not (folder / "demo.db").exists()


def test_a_second_demo_replaces_what_the_first_made_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    make_folder(folder)
    (folder / "summaries").mkdir()
    (folder / "summaries" / "1.json").write_text("{}")
    (folder / "demo.db").write_text("old")
    (folder / "mine.txt").write_text("mine")
    make_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".gitignore", ".onceflow-demo", "mine.txt",
    ]  # fmt: skip
