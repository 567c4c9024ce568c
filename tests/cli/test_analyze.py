"""`onceflow analyze`, against a site and an assistant on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Answer, Call
from tests.cli.loopback import ALLOW, MODEL_PATH, Loopback

SHOP = {
    "/": "Tern Tea | Loose leaf tea from small gardens",
    "/green-tea": "Green tea | Tern Tea",
    "/black-tea": "Black tea | Tern Tea",
    "/pricing": "Prices | Tern Tea",
}


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("ONCEFLOW_ANALYZE_HOST_SPACING_SECONDS", "0")
    with Loopback().served() as found:
        menu = "".join(f'<a href="{path}">{title}</a> ' for path, title in SHOP.items())
        for path, title in SHOP.items():
            subject = title.partition(" |")[0].lower()
            text = (
                f"The green tea and the black tea of Tern Tea come from small tea gardens. The "
                f"page about {subject} says how the tea gardens are kept. A tea garden is small. "
            )
            found.site.answer(
                path,
                f"<html lang=en><head><title>{title}</title></head><body><nav>{menu}</nav>"
                f"<article><h1>{title}</h1><p>{text * 3}</p></article></body></html>",
            )
        yield found


@pytest.fixture
def on(call: Call, tmp_path: Path) -> Call:
    def run(command: str, *arguments: object) -> Answer:
        flags = (*ALLOW, "--out", tmp_path / "out") if command == "analyze" else ()
        return call(command, *arguments, *flags, "--db", tmp_path / "x.db")

    return run


def test_a_dry_run_shows_the_questions_and_asks_nobody(
    on: Call, shop: Loopback, tmp_path: Path
) -> None:
    shop.model_answers()
    said = on("analyze", shop.site.url(), "--dry-run", "--prompts", 10, *shop.model)
    assert said.code == 0
    assert "Tern Tea: " in said.out
    assert " 1 learn   What should I know about " in said.out
    assert "1 site, openai:m: about " in said.out
    assert "its price is not known" in said.out
    assert shop.site.paths().count(MODEL_PATH) == 0
    assert not (tmp_path / "x.db").exists()
    assert not (tmp_path / "out").exists()

    found = on("analyze", shop.site.url(), "--dry-run", "--prompts", 10, "--json").object
    assert len(found["prompts"]) == 10
    assert found["expected"] == {"calls": 0, "tokens": 0, "cost": 0.0}


def test_a_site_is_analyzed_and_the_same_command_goes_on(
    on: Call, shop: Loopback, tmp_path: Path
) -> None:
    shop.model_answers()
    words = ("analyze", shop.site.url(), "--prompts", 10, *shop.model)
    said = on(*words)
    assert said.code == 0, said.err
    assert "1 done" in said.out
    assert "1.html" in said.out
    found = json.loads((tmp_path / "out" / "1.json").read_text())
    result = found["results"]["model-analysis"]
    assert (found["state"], result["asked"], len(result["answers"])) == ("completed", True, 10)
    asked = shop.site.paths().count(MODEL_PATH)

    again = on(*words)
    assert "all done already" in again.out
    assert shop.site.paths().count(MODEL_PATH) == asked
    assert on("audit").code == 0


def test_without_an_assistant_it_is_said_in_the_report(
    on: Call, shop: Loopback, tmp_path: Path
) -> None:
    list_of = tmp_path / "sites.txt"
    list_of.write_text(f"{shop.site.url()} # ours\n{shop.site.url('/nothing/')}\n")
    report = on("analyze", list_of, "--prompts", 10, "--pages", 2, "--json").object
    assert (report["done"], report["failed"]) == (1, 1)
    assert "no assistant was asked" in (tmp_path / "out" / "1.md").read_text()
    why = on("why", "2").out
    assert "answered 404: it has no home page there" in why


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--prompts", "9"), "prompts is 9; it must be between 10 and 50"),
        (("--pages", "0"), "pages is 0; it must be between 1 and 500"),
        (("--model", "gpt"), "--model gpt: unknown model 'gpt'"),
        (("--refesh",), "there is no option --refesh"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    on: Call, words: tuple[str, ...], why: str
) -> None:
    said = on("analyze", "https://a.test/", *words)
    assert said.code == 2
    assert why in said.err


def test_a_summary_has_one_model(on: Call) -> None:
    said = on("summarize", "https://a.test/", "--model", "embedded", "--model", "openai:m")
    assert said.code == 2
    assert "summaries are written by one model" in said.err


def test_a_worker_of_another_pipeline_is_told_that_a_flag_has_no_effect(on: Call) -> None:
    said = on("worker", "summarize", "--prompts", 20)
    assert said.code == 2
    assert "--prompts has no effect on summarize" in said.err
    said = on("worker", "analyze", "--words", 20)
    assert "--words has no effect on analyze" in said.err
