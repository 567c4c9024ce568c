"""What the documentation shows runs, and what there is to document is documented."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import onceflow
from onceflow import Pipeline, Stage
from onceflow.core.item import Kind
from onceflow.engine.book import Refusal
from onceflow.engine.pool import ProcessorState
from onceflow.engine.settings import RANGES, Settings
from onceflow.testing.llm import ScriptedLlm
from onceflow.testing.site import FakeHttp

ROOT = Path(__file__).parent.parent
SHOWS = {
    "children": "20 items, never more than 20",
    "gate": "'texts': 3, 'words': 21, 'failed': ['autumn: the text is empty']",
    "own_loop": "3 processed, depth 0.67 on average\n1 failed, depth 2.00 on average",
    "cpu": "360360 completed {'factors': [2, 2, 2, 3, 3, 5, 7, 11, 13]}",
}


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_prints_what_it_should(name: str, tmp_path: Path) -> None:
    output = _run(ROOT / "examples" / f"{name}.py", tmp_path)
    assert SHOWS[name] in output


async def test_the_style_example_runs_on_scripted_clients(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("news", ROOT / "examples" / "news.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["news"] = module
    spec.loader.exec_module(module)
    pages = {"https://a.test/": "A page about bread."}  # any other is not found
    news = module.News(FakeHttp(pages), ScriptedLlm(["Bread ", "is baked."])).pipeline()
    async with onceflow.open(tmp_path / "news.db", news) as flow:
        await flow.add(news, ["https://a.test/", "https://b.test/"])
        states = [(event.key, event.state) async for event in flow.run_until_idle()]
        assert ("https://a.test/", "completed") in states
        assert ("https://b.test/", "failed") in states
        run = (await flow.runs())[0]
        assert await flow.result(run.gate_item, "digest") == {"digest": "Bread is baked."}


def test_the_readme_example_runs_as_shown(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "texts.py"
    script.write_text(code)
    output = _run(script, tmp_path)
    assert "3 new, 0 known already" in output
    assert "missing failed failed" in output
    assert output.endswith("{'counted': 2, 'failed': 1}\n{'words': 8}\n")
    again = _run(script, tmp_path)
    assert "0 new, 3 known already" in again


def test_every_setting_is_documented_with_its_default_and_range() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    for field in fields(Settings):
        low, high = RANGES.get(field.name, (None, None))
        row = next(line for line in text.splitlines() if line.startswith(f"| `{field.name}` |"))
        assert repr(field.default) in row
        assert low is None or f"{low:g} to {high:g}" in row


def test_every_event_kind_is_documented() -> None:
    text = (ROOT / "docs" / "events.md").read_text()
    missing = [kind for kind in Kind if f"`{kind}`" not in text]
    assert missing == []


def test_every_link_in_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def _run(script: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_background_page_has_the_numbers_in_force_and_its_table_can_be_built() -> None:
    page = (ROOT / "docs/background.md").read_text()
    for name, value in Settings().as_dict().items():
        if f"`{name}` (" in page:
            assert f"`{name}` ({value:,g})" in page
    for name in ("batch", "processors", "deadline_seconds"):
        default = Stage.__dataclass_fields__[name].default
        assert f"`{name}` ({default:g})" in page
    for part in ("JobScheduler", "JobQueue", "JobCoordinator", "ProcessorPool"):
        assert f"\n## {part}\n" in page
    for refusal in Refusal:
        assert f"| `{refusal.value}` |" in page
    for state in ProcessorState:
        assert f"`{state.value}`" in page
    [example] = re.findall(r"```python\n(.*?)```", page, re.S)
    made: dict[str, object] = {}
    exec(example, made)
    assert isinstance(made["sites"], Pipeline)
