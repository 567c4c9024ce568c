"""The output files: a projection of the database that is rebuilt to the same bytes."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow import Flow, Permanent
from onceflow.clients import Extractor
from onceflow.core.errors import SettingsError
from onceflow.pipelines.files import Files, as_bytes
from onceflow.pipelines.markdown import plain_text
from onceflow.pipelines.summaries import markdown, summary_files
from onceflow.pipelines.summarize import Summarize
from onceflow.testing.llm import ScriptedLlm
from tests.pipelines.conftest import article, summarize

PAGES = {
    "https://a.test/1": article("bread"),
    "https://a.test/2": article("cheese"),
    "https://a.test/empty": "<html><body><script>1</script></body></html>",
}
ALL = [*PAGES, "https://a.test/gone"]


async def finished(flow: Flow, path: Path, keys: list[str] | None = None) -> str:
    """Add, work to the end, and write the files; the run's id."""
    added = await flow.add("summarize", keys or ALL)
    await flow.drain()
    await caught_up(flow, path, added.run)
    return added.run


async def caught_up(flow: Flow, path: Path, run: str | None = None) -> Files:
    """One pass over everything, as a later run makes it."""
    over = asyncio.Event()
    over.set()
    async with summary_files(flow, path, run=run) as files:
        await files.follow(over)
    return files


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if not one.name.startswith(".")}


def of_url(path: Path, url: str) -> dict[str, Any]:
    found = [json.loads(body) for name, body in contents(path).items() if name[0].isdigit()]
    [one] = [one for one in found if one["url"] == url]
    return dict(one)


@pytest.fixture
def job(extractor: Extractor) -> Summarize:
    return summarize(PAGES, ScriptedLlm(["A summary ", "in parts."]), extractor)


async def test_each_item_has_its_file_equal_to_the_committed_result(
    database: str, tmp_path: Path, job: Summarize
) -> None:
    out = tmp_path / "out"
    async with onceflow.open(database, job.pipeline()) as flow:
        await finished(flow, out)
        for item in await flow.items("summarize", phase="done", stage="summarize"):
            found = json.loads((out / f"{item.id}.json").read_text())
            result = await flow.result(item.id, "summarize")
            assert found["summary"] == result["summary"]
            assert (found["model"], found["tokens"]) == (result["model"], result["tokens"])
            assert (found["url"], found["state"]) == (item.key, "completed")
            assert found["summary_in_progress"] is None
        bread = of_url(out, "https://a.test/1")
        assert bread["summary"] == "A summary in parts."
        assert bread["title"] == "All about bread"
        assert "bread matters" in bread["text"]
        assert bread["times"]["added"] <= bread["times"]["scraped"] <= bread["times"]["summarized"]
        assert of_url(out, "https://a.test/empty")["note"].startswith("nothing to summarize")
        gone = of_url(out, "https://a.test/gone")
        assert (gone["state"], gone["error"]["code"]) == ("failed", "http_404")
        assert await flow.audit() == []


async def test_the_digest_lists_what_was_summarized_and_what_failed_and_why(
    database: str, tmp_path: Path, job: Summarize
) -> None:
    out = tmp_path / "out"
    async with onceflow.open(database, job.pipeline()) as flow:
        run = await finished(flow, out)
        gate = (await flow.run(run)).gate_item
        assert gate is not None
        result = await flow.result(gate, "digest")
    found = json.loads((out / "digest.json").read_text())
    assert found["run"] == run
    assert {name: found[name] for name in result} == result
    assert found["counts"] == {"completed": 3, "same": 0, "failed": 1, "unlisted": 0}
    assert [(one["url"], one["code"]) for one in found["failed"]] == [
        ("https://a.test/gone", "http_404")
    ]
    text = (out / "digest.md").read_text()
    assert "# Digest of 4 pages" in text
    assert "### [All about bread](<https://a.test/1>)" in text
    assert "https://a.test/gone" in text.partition("## Failed")[2]
    assert "answered 404" in text


async def test_c08_a_missing_damaged_or_foreign_file_is_written_again_to_the_same_bytes(
    database: str, tmp_path: Path, job: Summarize
) -> None:
    out = tmp_path / "out"
    async with onceflow.open(database, job.pipeline()) as flow:
        run = await finished(flow, out)
        before = contents(out)
        (out / "1.json").unlink()
        (out / "2.json").write_bytes(before["2.json"][:40])
        (out / "3.json").write_bytes(before["4.json"])
        (out / "4.json").write_bytes(b"")
        (out / "digest.json").write_bytes(b"{}")
        (out / "digest.md").unlink()
        (out / ".onceflow.json").write_bytes(b"{")

        await caught_up(flow, out, run)

        assert contents(out) == before
        for name in before:
            (out / name).unlink()
        await caught_up(flow, out)  # without a run: of every item, and of the newest digest
        assert contents(out) == before


async def test_a_file_that_is_right_is_not_touched(tmp_path: Path, job: Summarize) -> None:
    out = tmp_path / "out"
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        run = await finished(flow, out)
        before = {one.name: one.stat().st_ino for one in out.iterdir()}
        await caught_up(flow, out, run)
    assert {one.name: one.stat().st_ino for one in out.iterdir()} == before


async def test_c07_a_planted_link_is_replaced_and_its_target_left_alone(
    tmp_path: Path, job: Summarize
) -> None:
    out, secret = tmp_path / "out", tmp_path / "secret"
    secret.write_text("mine")
    out.mkdir()
    for name in ("1.json", ".1.json.new", ".2.json.new", "digest.json"):
        (out / name).symlink_to(secret)
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        await finished(flow, out)
    assert secret.read_text() == "mine"
    assert not (out / "1.json").is_symlink()
    assert json.loads((out / "1.json").read_text())["id"] == 1
    assert [one for one in out.iterdir() if one.name.endswith(".new")] == []


async def test_c06_a_folder_that_cannot_be_used_is_named(tmp_path: Path, job: Summarize) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        with pytest.raises(SettingsError, match=r"taken cannot be used: it is not a folder.*--out"):
            await caught_up(flow, taken)


async def test_another_databases_folder_is_refused_and_left_as_it_was(
    tmp_path: Path, job: Summarize
) -> None:
    out = tmp_path / "out"
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        await finished(flow, out)
    before = contents(out)
    async with onceflow.open(tmp_path / "b.db", job.pipeline()) as flow:
        await flow.add("summarize", ["https://b.test/other"])
        with pytest.raises(SettingsError, match="another database"):
            await caught_up(flow, out)
    assert contents(out) == before


async def test_a_run_has_only_the_files_of_its_own_items(tmp_path: Path, job: Summarize) -> None:
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        await finished(flow, tmp_path / "one", ["https://a.test/1"])
        second = await finished(flow, tmp_path / "two", ["https://a.test/1", "https://a.test/2"])
    assert set(contents(tmp_path / "one")) == {"1.json", "digest.json", "digest.md"}
    ids = {json.loads(body).get("url") for body in contents(tmp_path / "two").values()
           if body.startswith(b"{\n")}  # fmt: skip
    assert ids == {"https://a.test/1", "https://a.test/2", None}
    assert json.loads((tmp_path / "two" / "digest.json").read_text())["run"] == second


async def test_the_text_in_progress_is_in_the_file_while_it_streams(
    database: str, tmp_path: Path, extractor: Extractor
) -> None:
    """The model stops in the middle until the test has seen the file."""
    out, go_on = tmp_path / "out", asyncio.Event()
    llm = ScriptedLlm()

    async def stream(request: object) -> Any:
        yield "The first half, "
        await go_on.wait()
        yield "and the second."
        yield onceflow.clients.llm.Finish("stop")

    llm.scripted.stream = stream  # type: ignore[method-assign]
    pipeline = summarize(PAGES, llm, extractor).pipeline()
    settings = onceflow.Settings(partial_seconds=0.01)
    over = asyncio.Event()
    async with onceflow.open(database, pipeline, settings=settings) as flow:
        added = await flow.add("summarize", ["https://a.test/1"])
        async with summary_files(flow, out, run=added.run) as files:
            following = asyncio.create_task(files.follow(over))
            working = asyncio.create_task(flow.drain())
            seen: dict[str, Any] = {}
            while not seen.get("summary_in_progress"):
                await asyncio.sleep(0)
                if (out / "1.json").exists():
                    seen = json.loads((out / "1.json").read_text())
            go_on.set()
            await working
            over.set()
            await following
    assert seen["summary_in_progress"] == "The first half, "
    assert (seen["state"], seen["summary"]) == ("summarizing", None)
    final = json.loads((out / "1.json").read_text())
    assert final["summary"] == "The first half, and the second."
    assert final["summary_in_progress"] is None


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
async def test_f03_a_file_operation_that_fails_leaves_the_file_whole_or_absent(
    tmp_path: Path, job: Summarize, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Every n-th operation fails once; the work goes on and the files end up right."""
    clean, out = tmp_path / "clean", tmp_path / "out"
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        run = await finished(flow, clean)
        for nth in range(1, 8):
            warned: list[str] = []
            over = asyncio.Event()
            async with summary_files(flow, out, run=run, warn=warned.append) as files:
                fail_at(monkeypatch, step, nth)
                try:
                    await files.check()
                finally:
                    monkeypatch.undo()
                for name, body in contents(out).items():
                    assert body == contents(clean)[name]
                assert files.owing is None or "No space left" in files.owing
                over.set()
                await files.follow(over)
            assert contents(out) == contents(clean)
            if nth <= 6:  # four items and the digest's two files
                assert [text for text in warned if "No space left" in text]
            for name in contents(out):
                (out / name).unlink()


def fail_at(monkeypatch: pytest.MonkeyPatch, step: str, nth: int) -> None:
    calls = 0

    def failing(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        return call

    if step == "replace":
        monkeypatch.setattr(Path, "replace", failing(Path.replace))
    elif step == "fsync":
        monkeypatch.setattr(os, "fsync", failing(os.fsync))
    else:
        real = os.open

        def opening(path: Any, flags: int, *rest: Any) -> int:
            if flags & os.O_WRONLY:
                return int(failing_open(path, flags, *rest))
            return real(path, flags, *rest)

        failing_open = failing(real)
        monkeypatch.setattr(os, "open", opening)


async def test_a_file_that_another_process_holds_is_written_when_it_lets_go(
    tmp_path: Path, job: Summarize
) -> None:
    out = tmp_path / "out"
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        run = await finished(flow, out, ["https://a.test/1"])
        before = contents(out)
        (out / "1.json").unlink()
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLDER, str(out), stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        try:
            assert await holder.stdout.readline() == b"held [1]\n"
            async with summary_files(flow, out, run=run) as files:
                await files.check()
                assert not (out / "1.json").exists()
                assert "another process holds" in (files.owing or "")
                holder.kill()
                await holder.wait()
                await files.catch_up()
                assert files.owing is None
        finally:
            if holder.returncode is None:
                holder.kill()
            await holder.wait()
    assert contents(out) == before


HOLDER = """
import signal, sys
from pathlib import Path
from onceflow.pipelines.folder import Folder
folder = Folder(Path(sys.argv[1]))
folder.open()
with folder.holding([1]) as got:
    print("held", got, flush=True)
    signal.pause()
"""


def test_d12_text_of_others_stays_text_in_markdown() -> None:
    found = {
        "run": "r", "times": {"finished": "now"}, "model": "m", "digest": "# no heading\n\n- none",
        "counts": {"completed": 1, "same": 1, "failed": 1, "unlisted": 2},
        "articles": [{"id": 1, "url": "https://a.test/<x> y", "title": "<script>alert(1)</script>",
                      "summary": "![x](https://evil.test/p.png) `code` *bold* 1. one"}],
        "failed": [{"id": 2, "url": "https://a.test/2", "reason": "[a](b)", "code": "http_404"}],
        "same": [{"id": 3, "url": "https://a.test/3", "same_as": "https://a.test/1"}],
    }  # fmt: skip
    text = markdown(found)
    assert "\\# no heading" in text
    assert "\\<script\\>alert(1)\\</script\\>" in text
    assert "<https://a.test/%3Cx%3E%20y>" in text
    assert "!\\[x\\](https://evil.test/p.png) \\`code\\` \\*bold\\*" in text
    assert "\\[a\\](b)" in text
    assert "And 2 more" in text
    assert plain_text("1. one") == "1\\. one"


def test_lone_surrogates_do_not_stop_a_file() -> None:
    assert json.loads(as_bytes({"a": "\ud800"})) == {"a": "\ud800"}


async def test_a_file_is_readable_by_others_and_never_executable(
    tmp_path: Path, job: Summarize
) -> None:
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        await finished(flow, tmp_path / "out", ["https://a.test/1"])
    mode = stat.S_IMODE((tmp_path / "out" / "1.json").stat().st_mode)
    assert mode & 0o111 == 0


async def test_a_cancelled_item_has_a_file_that_says_so(tmp_path: Path, job: Summarize) -> None:
    async with onceflow.open(tmp_path / "a.db", job.pipeline()) as flow:
        added = await flow.add("summarize", ["https://a.test/1"])
        await flow.cancel("summarize", keys=["https://a.test/1"], why="not wanted")
        await caught_up(flow, tmp_path / "out", added.run)
    assert json.loads((tmp_path / "out" / "1.json").read_text())["state"] == "cancelled"


async def test_the_work_goes_on_when_a_page_is_refused(tmp_path: Path, job: Summarize) -> None:
    bad = summarize({"https://a.test/1": Permanent("no", code="blocked_address"), **{
        key: page for key, page in PAGES.items() if key != "https://a.test/1"}},
        ScriptedLlm("Fine."), job.extractor)  # fmt: skip
    async with onceflow.open(tmp_path / "a.db", bad.pipeline()) as flow:
        await finished(flow, tmp_path / "out")
    assert of_url(tmp_path / "out", "https://a.test/1")["error"]["code"] == "blocked_address"
    assert of_url(tmp_path / "out", "https://a.test/2")["summary"] == "Fine."
