"""Who is named in an answer, against forty answers that were judged by hand."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow.clients import Extractor, Llm
from onceflow.pipelines.analyze import Analyze
from onceflow.pipelines.analyze.mentions import mention
from onceflow.pipelines.analyze.pipeline import answer_of
from onceflow.pipelines.analyze.scores import visibility_of
from onceflow.pipelines.analyze.shapes import Brand, Prompt
from onceflow.testing.llm import ScriptedModel
from onceflow.testing.site import FakeHttp

TRUTH: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("mentions.toml").read_text(encoding="utf-8")
)["answer"]
PROMPT: Prompt = {
    "n": 1, "text": "Which one would you choose?", "intent": "choose", "topic": "x",
    "branded": False, "language": "en", "reason": "", "pages": [],
}  # fmt: skip


def brand(one: dict[str, Any]) -> Brand:
    return {"names": one["names"], "domains": one["domains"]}


def test_there_are_forty() -> None:
    assert len(TRUTH) == 40
    assert len({one["about"] for one in TRUTH}) == 40


@pytest.mark.parametrize("one", TRUTH, ids=lambda one: one["about"])
def test_an_answer_is_read_as_a_person_reads_it(one: dict[str, Any]) -> None:
    seen = mention(one["text"], brand(one), prompt=PROMPT["text"])
    assert seen.how == one["how"]
    assert seen.rank == one.get("rank")
    assert seen.tone == one.get("tone")
    found = [other["name"] for other in seen.others]
    for other in one.get("others", []):
        assert other in found
    if "at" in one:
        plain = (
            one["text"].replace("(https://alderbikes.test/)", "").replace("[", "").replace("]", "")
        )
        assert seen.position == pytest.approx(plain.index(one["at"]) / len(plain), abs=0.05)
    elif one["how"] == "none":
        assert seen.position is None


@pytest.mark.parametrize("one", TRUTH[:5], ids=lambda one: one["about"])
def test_what_is_seen_is_what_is_scored(one: dict[str, Any]) -> None:
    found = {"text": one["text"], "tokens": 1, "cost": None}
    answer = answer_of(PROMPT, "m", found, brand(one))
    weight = {"positive": 1.0, "neutral": 0.9, "negative": 0.4, None: 0.0}[one.get("tone")]
    position = 1 - 0.5 * (answer["position"] or 0)
    assert visibility_of(answer) == pytest.approx(weight * position)
    assert answer["mentioned"] == (one["how"] != "none")


async def test_a_scripted_assistant_is_judged_the_same_in_the_pipeline(
    inline_extractor: Extractor, tmp_path: Path
) -> None:
    mine = [one for one in TRUTH if one["names"] == ["Alder Bikes"]
            and one["domains"] == ["alderbikes.test"]]  # fmt: skip
    html = (
        '<html lang="en"><head><title>Alder Bikes</title><meta property="og:site_name" '
        'content="Alder Bikes"></head><body><article><p>The cargo bikes and the city bikes of the '
        "workshop carry children, and the belt drive of a cargo bike needs no oil. The belt drive "
        "and the hub gears are made for rain, and the hub gears last.</p></article></body></html>"
    )
    model = Llm(ScriptedModel(*[one["text"] for one in mine], name="scripted"))
    job = Analyze(
        FakeHttp({"https://alderbikes.test/": html}), inline_extractor, [model], prompts=10,
        at_once=1, refine=False, host_spacing_seconds=0,
    )  # fmt: skip
    async with onceflow.open(str(tmp_path / "x.db"), job.pipeline()) as flow:
        await flow.add("analyze", ["https://alderbikes.test/"])
        await flow.drain()
        item = await flow.item("analyze", "https://alderbikes.test/")
        result = await flow.result(item.id, "model-analysis")
    truth = {one["text"]: one for one in mine}
    assert len(result["answers"]) == 10
    for answer in result["answers"]:
        one = truth[answer["text"]]
        assert (answer["how"], answer["rank"], answer["tone"]) == (
            one["how"], one.get("rank"), one.get("tone"),
        )  # fmt: skip
