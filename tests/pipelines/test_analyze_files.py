"""The reports as files: whole or not there, rebuilt when they are missing or damaged."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow import Flow, Permanent, Pipeline, Stage, Work
from onceflow.pipelines.analyze.files import STAGES, report_files

BODIES = json.loads(Path(__file__).with_name("analyze_bodies.json").read_text())
SITE, GONE = "https://alderbikes.test/", "https://gone.test/"


def scripted() -> Pipeline:
    """The stages of `analyze` with results that are known beforehand."""

    async def answer(work: Work) -> Any:
        if work.key == GONE:
            raise Permanent("the site answered 403 to everything")
        return BODIES[work.stage]

    return Pipeline("analyze", *(Stage(name, answer) for name in STAGES))


async def written(flow: Flow, path: Path) -> dict[str, bytes]:
    over = asyncio.Event()
    over.set()
    async with report_files(flow, path) as files:
        await files.follow(over)
        assert files.owing is None
    return contents(path)


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if not one.name.startswith(".")}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "reports"


async def test_a_site_has_three_files_and_one_that_failed_says_why(out: Path) -> None:
    async with onceflow.open(out.with_name("a.db"), scripted()) as flow:
        await flow.add("analyze", [SITE, GONE])
        await flow.drain()
        done, gone = [(await flow.item("analyze", key)).id for key in (SITE, GONE)]

        found = await written(flow, out)

    assert set(found) == {f"{done}.json", f"{done}.md", f"{done}.html", f"{gone}.json"}
    body = json.loads(found[f"{done}.json"])
    assert (body["site"], body["state"]) == (SITE, "completed")
    assert body["results"] == BODIES
    assert body["times"]["model-analysis"].endswith("Z")
    assert b"Alder Bikes is named in 8 of 20 answers" in found[f"{done}.md"]
    assert found[f"{done}.html"].startswith(b"<!doctype html>")
    failed = json.loads(found[f"{gone}.json"])
    assert failed["error"]["message"] == "the site answered 403 to everything"
    assert failed["results"] == dict.fromkeys(STAGES)


async def test_a_file_that_is_missing_or_damaged_is_written_again_to_the_same_bytes(
    out: Path,
) -> None:
    async with onceflow.open(out.with_name("a.db"), scripted()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        before = await written(flow, out)
        names = sorted(before)
        (out / names[0]).unlink()
        (out / names[1]).write_bytes(before[names[1]][:100])
        (out / f".{names[2]}.new").write_bytes(b"cut off")

        assert await written(flow, out) == before
        assert not (out / f".{names[2]}.new").exists()


async def test_while_a_site_is_analyzed_anew_its_file_shows_no_older_result(out: Path) -> None:
    async with onceflow.open(out.with_name("a.db"), scripted()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        item = (await flow.item("analyze", SITE)).id
        await flow.retry("analyze", keys=[SITE], from_stage="prompt-forming")

        found = json.loads((await written(flow, out))[f"{item}.json"])

    assert (found["state"], found["generation"]) == ("prompt-forming-ready", 2)
    assert found["results"]["website-analysis"] is not None
    assert found["results"]["prompt-forming"] is None


async def test_where_to_look_first_is_the_report_if_there_is_one(out: Path) -> None:
    async with onceflow.open(out.with_name("a.db"), scripted()) as flow:
        await flow.add("analyze", [SITE])
        await flow.drain()
        item = (await flow.item("analyze", SITE)).id
        async with report_files(flow, out) as files:
            assert files.report() == (str(out), None)
            await files.check()
            assert files.report() == (str(out / f"{item}.html"), None)
