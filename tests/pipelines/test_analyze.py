"""The analyze pipeline: what is read, asked and paid for once, and what stops it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow import Permanent, Pipeline, PipelineError, Transient
from onceflow.clients import Extractor, Llm, Price
from onceflow.pipelines.analyze import Analyze
from onceflow.pipelines.analyze.profile import profile
from onceflow.pipelines.analyze.read import ReadPage, Site
from onceflow.testing.llm import ScriptedLlm, ScriptedModel
from onceflow.testing.site import FakeHttp
from tests.pipelines.test_analyze_shapes import SHAPES, misfits

SITE = "https://alderbikes.test/"
SAID = "Urban Arrow is often named. Alder Bikes of Ghent is an excellent choice too."


def page(title: str, *paragraphs: str, links: tuple[str, ...] = (), head: str = "") -> str:
    body = "".join(f"<p>{text}</p>" for text in paragraphs)
    menu = "".join(f'<a href="{link}">{link.strip("/") or "home"}</a> ' for link in links)
    return (
        f'<html lang="en"><head><title>{title}</title>{head}</head><body><nav>{menu}</nav>'
        f"<article><h1>{title.partition(' |')[0]}</h1>{body}</article></body></html>"
    )


LINKS = ("/cargo-bikes", "/city-bikes", "/pricing", "/service", "/blog/winter", "/contact")
PAGES: Mapping[str, object] = {
    SITE: page(
        "Alder Bikes | Bicycles made in Ghent",
        "Alder Bikes builds cargo bikes and city bikes in a workshop at the old docks of Ghent. "
        "Each cargo bike is welded and painted by the people who ride them.",
        "The cargo bikes carry children and shopping, and the city bikes have a belt drive. "
        "Families and commuters have relied on the workshop for ten years.",
        links=LINKS,
        head='<meta name="description" content="City and cargo bikes made in Ghent">'
        '<meta property="og:site_name" content="Alder Bikes">'
        '<script type="application/ld+json">{"@type": "Organization", "name": "Alder Bikes", '
        '"email": "hello@alderbikes.test", "sameAs": ["https://www.instagram.com/alderbikes"]}'
        "</script>",
    ),
    f"{SITE}cargo-bikes": page(
        "Cargo bikes | Alder Bikes",
        "A cargo bike carries up to four children or one hundred kilograms in a low box. The cargo "
        "bike stays steady at traffic lights because the weight is near the ground.",
        "Our cargo bikes for families have a belt drive and strong brakes, and the cargo bikes are "
        "tested in the rain.",
    ),
    f"{SITE}city-bikes": page(
        "City bikes | Alder Bikes",
        "The city bikes have a belt drive and hub gears. There is nothing to oil on the belt "
        "drive, and the city bikes need service once a year only.",
    ),
    f"{SITE}pricing": page(
        "Prices and leasing | Alder Bikes",
        "A cargo bike costs from 3,900 euros. Bicycle leasing for companies takes 36 months, and "
        "the bicycle leasing includes insurance and the yearly service.",
    ),
    f"{SITE}service": page(
        "Service and repair | Alder Bikes",
        "Bring the bike to the workshop for its yearly service. Repairs of the belt drive take "
        "two working days, and the repair of a flat tyre is done while you wait.",
    ),
    f"{SITE}blog/winter": page(
        "Riding through winter | Alder Bikes",
        "In winter, lower the tyre pressure by half a bar and keep the battery indoors. The tyre "
        "pressure matters on snow, and the battery likes it warm.",
    ),
    f"{SITE}contact": page(
        "Contact | Alder Bikes", "Write to hello@alderbikes.test, or call +32 9 000 00 00."
    ),
}  # fmt: skip


@pytest.fixture
def extractor(inline_extractor: Extractor) -> Extractor:
    return inline_extractor


def job(llm: Llm | None, extractor: Extractor, **more: Any) -> Analyze:
    wishes: dict[str, Any] = {"prompts": 10, "host_spacing_seconds": 0, "backoff_seconds": 0}
    wishes["refine"] = False
    models = () if llm is None else (llm,)
    return Analyze(FakeHttp(PAGES), extractor, models, **(wishes | more))


def named(name: str, *answers: Any, price: Price | None = None) -> Llm:
    return Llm(ScriptedModel(*answers, name=name), price=price)


async def bodies(flow: onceflow.Flow, key: str = SITE) -> dict[str, Any]:
    item = await flow.item("analyze", key)
    assert item.state == "completed", (item.state, item.error)
    return {row["stage"]: row["body"] for row in await flow.results(item.id)}


async def test_a_site_goes_through_all_three_stages(database: str, extractor: Extractor) -> None:
    analyze = job(ScriptedLlm(SAID, price=Price(1.0, 2.0)), extractor)
    async with onceflow.open(database, analyze.pipeline()) as flow:
        await flow.add("analyze", ["alderbikes.test"])
        await flow.drain()
        found = await bodies(flow)
        assert await flow.audit() == []
        run = (await flow.runs("analyze"))[0]
    for stage, shape in SHAPES.items():
        assert misfits(found[stage], shape, stage) == []
    info = found["website-analysis"]["extractedInfo"]
    assert info["name"] == "Alder Bikes"
    assert info["tagline"] == "City and cargo bikes made in Ghent"
    assert {"cargo bikes", "belt drive"} <= {one["topic"] for one in info["topics"]}
    assert "families" in info["audience"]
    assert info["contacts"]["emails"] == ["hello@alderbikes.test"]
    assert info["countries"] == ["BE"]
    assert info["social"] == [
        {"network": "instagram", "url": "https://www.instagram.com/alderbikes"}
    ]
    kinds = {one["url"].removeprefix(SITE): one["kind"] for one in info["pages"]}
    assert kinds["pricing"] == "pricing"
    assert kinds["blog/winter"] == "article"
    prompts = found["prompt-forming"]["prompts"]
    assert [one["n"] for one in prompts] == list(range(1, 11))
    assert {one["intent"] for one in prompts} == {"learn", "compare", "choose", "buy", "help"}
    assert any("cargo bike" in one["text"] for one in prompts)
    assert all(("Alder Bikes" in one["text"]) == one["branded"] for one in prompts)
    result = found["model-analysis"]
    assert result["asked"]
    assert len(result["answers"]) == 10
    one = result["answers"][0]
    assert (one["text"], one["how"], one["rank"], one["tone"]) == (SAID, "brand", 2, "positive")
    assert [other["name"] for other in one["others"]] == ["Urban Arrow"]
    assert result["scores"]["visibility"] > 70
    assert 0 < result["scores"]["coverage"] <= 100
    assert run.tokens == result["tokens"]
    assert run.cost == pytest.approx(result["cost"])


async def test_without_an_assistant_it_says_so_and_gives_the_coverage(
    database: str, extractor: Extractor
) -> None:
    analyze = job(Llm(), extractor)
    async with onceflow.open(database, analyze.pipeline()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        result = (await bodies(flow))["model-analysis"]
    assert (result["asked"], result["models"], result["answers"]) == (False, [], [])
    assert result["notes"][0].startswith("no assistant was asked")
    assert result["scores"]["visibility"] is None
    assert len(result["coverage"]) == 10
    assert result["scores"]["coverage"] > 0


async def test_every_prompt_goes_to_every_model(extractor: Extractor, tmp_path: Path) -> None:
    models = (named("one", SAID), named("two", "No idea."), named("one", "never asked"))
    analyze = Analyze(
        FakeHttp(PAGES), extractor, models, prompts=10, host_spacing_seconds=0, refine=False
    )
    async with onceflow.open(str(tmp_path / "x.db"), analyze.pipeline()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        result = (await bodies(flow))["model-analysis"]
    assert result["models"] == ["one", "two"]
    assert len(result["answers"]) == 20
    by_model = {one["model"]: one["mentioned"] for one in result["scores"]["byModel"]}
    assert by_model == {"one": 10, "two": 0}


async def test_an_answer_that_was_paid_for_is_not_asked_for_again(
    database: str, extractor: Extractor
) -> None:
    away = Transient("the provider is away", code="http_503")
    llm = ScriptedLlm("one", "two", "three", away, "five", "six", away, SAID)
    analyze = job(llm, extractor, at_once=1)
    async with onceflow.open(database, analyze.pipeline()) as flow:
        run = (await flow.add("analyze", [SITE])).run
        await flow.drain()
        result = (await bodies(flow))["model-analysis"]
        spent = await flow.run(run)
        item = await flow.item("analyze", SITE)
    assert item.attempt == 3
    assert len(llm.scripted.requests) == 12  # ten answers, and the two calls that failed
    texts = [one["text"] for one in result["answers"]]
    assert texts == ["one", "two", "three", "five", "six", *[SAID] * 5]
    assert spent.tokens == result["tokens"]


async def test_a_retry_by_hand_goes_on_with_what_was_answered(
    extractor: Extractor, tmp_path: Path
) -> None:
    away = Transient("the provider is away", code="http_503")
    llm = ScriptedLlm("one", "two", away, away, away, SAID)
    analyze = job(llm, extractor, at_once=1)
    async with onceflow.open(str(tmp_path / "x.db"), analyze.pipeline()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        assert (await flow.item("analyze", SITE)).state == "failed"
        await flow.retry("analyze")
        await flow.drain()
        result = (await bodies(flow))["model-analysis"]
    assert [one["text"] for one in result["answers"]][:3] == ["one", "two", SAID]
    assert len(llm.scripted.requests) == 13


async def test_a_ceiling_stops_the_asking_and_a_higher_one_lets_it_go_on(
    database: str, extractor: Extractor
) -> None:
    llm = ScriptedLlm(SAID)
    analyze = job(llm, extractor, at_once=1)
    async with onceflow.open(database, analyze.pipeline()) as flow:
        run = (await flow.add("analyze", [SITE], max_tokens=100)).run
        await flow.drain()
        item = await flow.item("analyze", SITE)
        assert (item.state, item.phase, item.attempt) == ("model-analysis", "ready", 0)
        asked = len(llm.scripted.requests)
        assert 0 < asked < 10
        assert "ceiling" in str((await flow.run(run)).halted)
        await flow.add("analyze", [], run=run, max_tokens=100_000)
        await flow.drain()
        await bodies(flow)
    assert len(llm.scripted.requests) == 10


async def test_a_wrong_key_pauses_the_stage(database: str, extractor: Extractor) -> None:
    wrong = Permanent("openai:m answered 401: wrong key", code="wrong_key")
    llm = ScriptedLlm(wrong, SAID)
    analyze = job(llm, extractor, at_once=1)
    async with onceflow.open(database, analyze.pipeline()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        why = await flow.why("analyze", SITE)
        assert "wrong key; set OPENAI_API_KEY" in why
        assert (await flow.item("analyze", SITE)).attempt == 0
        await flow.resume("analyze", "model-analysis")
        await flow.drain()
        await bodies(flow)


async def test_a_question_that_a_model_refuses_is_noted_and_not_asked_again(
    extractor: Extractor, tmp_path: Path
) -> None:
    refused = Permanent("it is against the rules", code="refused")
    llm = ScriptedLlm(refused, SAID)
    analyze = job(llm, extractor, at_once=1)
    async with onceflow.open(str(tmp_path / "x.db"), analyze.pipeline()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        result = (await bodies(flow))["model-analysis"]
    assert len(result["answers"]) == 9
    assert result["notes"] == ["scripted did not answer question 1: it is against the rules"]


REFINED = (
    '{"name": "Alder", "tagline": "Bikes from Ghent", "offers": ["cargo bikes"], "audience": '
    '["families"], "topics": [{"topic": "bike leasing", "weight": 0.4}, {"topic": "cargo bikes", '
    '"weight": 1}]}'
)


def test_a_manual_has_its_name_in_brackets_behind_each_title() -> None:
    """Whose colon parts nothing."""
    manual = "libffi: the portable interface"
    titles = [f"{one} ({manual})" for one in ("Top", "Closures", "Types", "Memory: its use")]
    site = Site("http://127.0.0.1/", [ReadPage(f"http://127.0.0.1/{t}", t) for t in titles])
    found = profile(site)
    assert found["name"] == manual
    assert [one["title"] for one in found["pages"]][1:] == [
        "Closures",
        "Types",
        "Memory: its use",
    ]


async def test_a_model_refines_the_profile(extractor: Extractor, tmp_path: Path) -> None:
    llm = ScriptedLlm(f"Here it is:\n```json\n{REFINED}\n```", SAID)
    async with onceflow.open(
        str(tmp_path / "x.db"), job(llm, extractor, refine=True).pipeline()
    ) as flow:
        run = (await flow.add("analyze", [SITE])).run
        await flow.drain()
        found = await bodies(flow)
        spent = (await flow.run(run)).tokens
    body = found["website-analysis"]
    assert misfits(body, SHAPES["website-analysis"]) == []
    assert body["method"] == "rules+scripted"
    assert body["extractedInfo"]["name"] == "Alder"
    assert [one["topic"] for one in body["extractedInfo"]["topics"]] == [
        "cargo bikes",
        "bike leasing",
    ]
    assert body["extractedInfo"]["countries"] == ["BE"]  # the rules' own
    assert spent == body["tokens"] + found["model-analysis"]["tokens"]


@pytest.mark.parametrize(
    "answer",
    [
        "I would rather not.",
        '{"name": "Alder"}',
        REFINED.replace("0.4", "4"),
        REFINED.replace('"Bikes from Ghent"', f'"{"x" * 400}"'),
        Permanent("it is against the rules", code="refused"),
    ],
)
async def test_a_refinement_that_does_not_fit_leaves_the_rules_with_a_note(
    extractor: Extractor, tmp_path: Path, answer: Any
) -> None:
    llm = ScriptedLlm(answer, answer, SAID)
    async with onceflow.open(
        str(tmp_path / "x.db"), job(llm, extractor, refine=True).pipeline()
    ) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        body = (await bodies(flow))["website-analysis"]
    assert body["method"] == "rules"
    assert body["extractedInfo"]["name"] == "Alder Bikes"
    assert body["notes"][-1].startswith("the profile is by rules alone: ")


async def test_an_attempt_asks_for_no_more_pages_than_it_may_and_a_second_one_for_no_more_in_all(
    database: str, extractor: Extractor
) -> None:
    busy = Transient("busy", code="http_429")
    pages = {**PAGES, f"{SITE}pricing": [busy, PAGES[f"{SITE}pricing"]]}
    http = FakeHttp(pages)
    analyze = Analyze(
        http, extractor, pages=4, prompts=10, host_spacing_seconds=0, backoff_seconds=0
    )
    async with onceflow.open(database, analyze.pipeline()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        body = (await bodies(flow))["website-analysis"]
    assert body["limits"] == {"pages": 4, "read": 4, "refused": 0}
    asked = [url for url in http.asked if not url.endswith("sitemap.xml")]
    assert len(asked) == 5  # four pages, and the one that was busy once more
    assert len(set(asked)) == 4


async def test_a_preview_says_what_it_will_cost_and_asks_no_model(extractor: Extractor) -> None:
    llm = ScriptedLlm(SAID, price=Price(1.0, 2.0))
    analyze = job(llm, extractor, refine=True)
    site, prompts, estimate = await analyze.preview("alderbikes.test")
    assert site["extractedInfo"]["name"] == "Alder Bikes"
    assert estimate.calls == len(prompts["prompts"]) == 10
    assert estimate.tokens > 4000
    assert estimate.cost is not None
    assert estimate.cost > 0
    assert llm.scripted.requests == []


def test_the_table_is_the_one_that_is_written_down(extractor: Extractor) -> None:
    pipeline: Pipeline = Analyze().pipeline()
    states = {(stage.name, stage.ready, stage.active) for stage in pipeline.stages}
    assert states == {
        ("website-analysis", "not-started", "not-started"),
        ("prompt-forming", "prompt-forming", "prompt-forming"),
        ("model-analysis", "model-analysis", "model-analysis"),
    }
    assert (pipeline.done, pipeline.failed, pipeline.attempts) == ("completed", "failed", 3)
    assert (pipeline.backoff_seconds, pipeline.lease_seconds) == (30, 300)
    assert {(stage.processors, stage.assign_max) for stage in pipeline.stages} == {(10, 3)}


@pytest.mark.parametrize("wrong", [{"pages": 0}, {"prompts": 9}, {"prompts": 51}])
def test_a_setting_out_of_range_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(PipelineError, match="must be between"):
        Analyze(**wrong)  # type: ignore[arg-type]  # that is the point
