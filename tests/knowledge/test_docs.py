"""Every command that the page shows runs as it stands there."""

import asyncio
import re
import shlex
from pathlib import Path

from onceflow import Flow
from onceflow.knowledge.states import QUERIES
from tests.cli.conftest import Call
from tests.knowledge.kit import bread, grown

PAGE = (Path(__file__).parents[2] / "docs" / "knowledge.md").read_text(encoding="utf-8")


async def test_the_commands_of_the_page_run(call: Call) -> None:
    flow: Flow = await grown("onceflow.db", bread())
    await flow.__aexit__(None, None, None)
    lines = re.findall(r"^\$ onceflow (.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    said = [await asyncio.to_thread(call, *shlex.split(line)) for line in lines]
    assert [answer.code for answer in said] == [0, 0, 0]
    found, answer, asked = (one.out for one in said)
    assert "Bread › History" in found
    assert "carbon dioxide gas. [1]" in answer
    assert "[1] Yeast › Fermentation" in answer
    assert set(asked.split()) == {"B.TITLE", "Yeast", "Oven", "Flour"}
    named = re.findall(r"`onceflow graph (\w+)` \|", PAGE)
    assert set(named) == set(QUERIES)
