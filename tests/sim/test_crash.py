"""The crash-point kit: a pipeline is killed at every call it makes to its store (F02)."""

from pathlib import Path
from typing import Any

import pytest

from onceflow import Done, Pipeline, PipelineError, Stage, Transient, Work
from onceflow.testing.crash import CrashFound, crash_everywhere


class Library:
    """Three stages and a gate: one stage finds more items, one blocks, one fails at first."""

    async def read(self, work: Work) -> Done:
        children = ["c"] if work.key == "a" else []
        return Done({"text": f"text of {work.key}"}, children=children)

    def count(self, work: Work) -> dict[str, Any]:
        return {"letters": len(work.input["text"])}

    async def judge(self, work: Work) -> dict[str, Any]:
        if work.key == "b" and work.attempt == 1:
            raise Transient("not yet", retry_after=30)
        work.emit("summary_partial", text="good")
        return {"judgement": "good", **work.input}

    async def digest(self, work: Work) -> list[str]:
        return [item.key async for item in work.finished_items()]

    def pipeline(self) -> Pipeline:
        return Pipeline(
            "library",
            Stage("read", self.read, limit=2),
            Stage("count", self.count),
            Stage("judge", self.judge),
            after_all=self.digest,
            attempts=5,
        )


def test_a_pipeline_with_a_gate_survives_a_crash_at_every_store_call(tmp_path: Path) -> None:
    survived = crash_everywhere(Library().pipeline(), ["a", "b"], folder=tmp_path)

    assert survived.points >= 40
    assert survived.outputs == {
        key: {
            "": "completed",
            "read": {"text": f"text of {key}"},
            "count": {"letters": 9},
            "judge": {"judgement": "good", "letters": 9},
        }
        for key in ("a", "b", "c")
    } | {"gate:crash": {"": "completed", "digest": ["a", "b", "c"]}}


def test_a_result_that_depends_on_the_attempt_is_found(tmp_path: Path) -> None:
    async def forgetful(work: Work) -> int:
        return work.attempt

    pipeline = Pipeline("forgetful", Stage("work", forgetful))

    with pytest.raises(CrashFound, match=r"after a crash .* store call .*: a has .*2"):
        crash_everywhere(pipeline, ["a"], folder=tmp_path)


def test_too_few_attempts_for_a_crash_are_found(tmp_path: Path) -> None:
    async def once(work: Work) -> int:
        return 1

    pipeline = Pipeline("once", Stage("work", once), attempts=1)

    with pytest.raises(CrashFound, match="'failed'"):
        crash_everywhere(pipeline, ["a"], folder=tmp_path)


def test_a_stage_for_another_process_is_refused_by_name(tmp_path: Path) -> None:
    pipeline = Pipeline("far", Stage("crunch", len, cpu=True))

    with pytest.raises(PipelineError, match="'crunch' has cpu=True"):
        crash_everywhere(pipeline, ["a"], folder=tmp_path)
