"""What docs/analyze.md shows works as it stands, and says what the program does."""

import os
import re
import subprocess
import sys
from pathlib import Path

from onceflow.commands.config import TABLES, Config
from onceflow.pipelines.analyze import Analyze, scores
from onceflow.pipelines.analyze.languages import codes

PAGE = (Path(__file__).parents[2] / "docs" / "analyze.md").read_text(encoding="utf-8")
NAMES = {
    "en": "English", "de": "German", "fr": "French", "es": "Spanish", "it": "Italian",
    "nl": "Dutch", "pt": "Portuguese", "ru": "Russian", "ar": "Arabic", "ja": "Japanese",
    "zh": "Chinese",
}  # fmt: skip


def test_the_configuration_that_is_shown_is_accepted(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "shown.toml"
    file.write_text(text, encoding="utf-8")
    config = Config(file, {})
    assert [config.made(table)[1] for table in TABLES]
    assert config.made("analyze")[0].models == ("openai:gpt-5-mini", "openai:gpt-5")


def test_the_program_that_is_shown_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    script = tmp_path / "shown.py"
    script.write_text(code + "\n\nasyncio.run(main([]))\n", encoding="utf-8")
    subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=True, timeout=60, env=dict(os.environ)
    )
    assert (tmp_path / "analyze.db").exists()


def test_every_state_and_language_is_there() -> None:
    pipeline = Analyze().pipeline()
    names = {
        pipeline.state(stage.name, phase)
        for stage in pipeline.stages
        for phase in ("ready", "active", "done", "failed", "cancelled")
    }
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
    assert set(codes()) == set(NAMES)
    assert [name for name in NAMES.values() if name not in PAGE] == []


def test_the_formula_is_the_one_that_is_used() -> None:
    assert f"v = how × (1 − {scores.POSITION_WEIGHT:g} × position) × tone" in PAGE
    assert scores.HOW_WEIGHT == {"brand": 1.0, "domain": 1.0, "link": 0.4, "none": 0.0}
    assert scores.TONE_WEIGHT == {"positive": 1.0, "neutral": 0.9, "negative": 0.4, None: 0.9}
    assert (scores.BRANDED_WEIGHT, scores.WEAK, scores.FAIR) == (0.5, 0.35, 0.6)
    assert f"from {scores.FAR:g} to {scores.NEAR:g}" in PAGE
    assert (scores.MEANING_SHARE, scores.WORDS_SHARE, scores.KIND_SHARE) == (0.6, 0.3, 0.1)
