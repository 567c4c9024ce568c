"""Every case of the list has a test that bears its id, and the history stays within bounds."""

import re
from pathlib import Path

import onceflow
from onceflow import Pipeline, Stage, Work

TESTS = Path(__file__).resolve().parents[1]
CASES = [
    f"{letter}{number:02d}"
    for letter, first, last in (
        *(("U", 1, 28), ("P", 1, 24), ("D", 1, 24)),
        *(("M", 1, 13), ("C", 6, 16)),
    )
    for number in range(first, last + 1)
]


async def test_every_case_has_a_test_that_is_named_after_it() -> None:
    text = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    names = re.findall(r"def test_((?:[A-Z]\d\d_)+)", text.replace("test_c", "test_C"))
    named = {case for name in names for case in name.strip("_").split("_")}
    assert [case for case in CASES if case not in named] == []


async def echo(work: Work) -> str:
    return work.key


async def test_C16_the_history_is_bounded_by_a_setting(tmp_path: Path) -> None:
    """However often items are done again: what is kept is set by what `prune` is told to keep."""
    table = Pipeline("echo", Stage("say", echo))
    keys = [f"key {number}" for number in range(200)]
    counts: list[int] = []
    async with onceflow.open(tmp_path / "grow.db", table) as flow:
        for _ in range(6):
            await flow.add(table, keys, refresh=True)
            await flow.drain()
            await flow.prune(older_than_seconds=-1)
            counts.append(len([event async for event in flow.events() if event.item is not None]))
        items = await flow.items(table, limit=1000)
        assert {item.phase.value for item in items} == {"done"}
        assert len(await flow.results(items[0].id)) == 1
        assert await flow.audit() == []
    assert counts == [len(keys)] * 6  # the last event of each
