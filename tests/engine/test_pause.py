"""A handler can say that no item of its stage can succeed."""

from __future__ import annotations

from pathlib import Path

import onceflow
from onceflow import Json, Pause, Pipeline, Stage, Work


async def test_a_handler_that_says_pause_stops_its_stage_and_costs_no_attempt(
    tmp_path: Path,
) -> None:
    key = {"right": False}
    calls: list[str] = []

    async def ask(work: Work) -> Json:
        calls.append(work.key)
        if not key["right"]:
            raise Pause("the key is wrong; set OPENAI_API_KEY and resume", code="wrong_key")
        return {"answer": work.key}

    asking = Pipeline("asking", Stage("ask", ask, processors=2, batch=50))
    async with onceflow.open(tmp_path / "x.db", asking) as flow:
        await flow.add(asking, [f"q{number}" for number in range(100)])
        await flow.drain()

        assert len(calls) <= 2, "as many as were at work; what was claimed already went back"
        items = await flow.items(asking)
        assert {item.phase for item in items} == {"ready"}
        assert {item.attempt for item in items} == {0}
        assert "the key is wrong" in await flow.why(asking, "q50")

        key["right"] = True
        await flow.resume(asking, "ask")
        await flow.drain()
        assert await flow.counts(asking) == {"completed": 100}
        assert await flow.audit(grace_seconds=0) == []
