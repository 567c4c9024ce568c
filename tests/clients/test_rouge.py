"""The script that scores the embedded summarizer: its arithmetic, and what it reads."""

import json
from pathlib import Path

import pytest

from bench import rouge


def test_a_text_is_all_of_itself() -> None:
    found = rouge.scores("The cat sat on the mat.", "the cat sat on the mat")
    assert all(score == (1.0, 1.0) for score in found.values())


def test_scores_by_hand() -> None:
    found = rouge.scores("the cat on the mat", "the cat sat on the red mat")
    assert found["rouge-1"] == pytest.approx((2 * 1.0 * (5 / 7) / (1 + 5 / 7), 5 / 7))
    assert found["rouge-2"][1] == pytest.approx(2 / 6)  # "the cat", "on the"
    assert found["rouge-l"][1] == pytest.approx(5 / 7)
    assert rouge.scores("", "a")["rouge-l"] == (0.0, 0.0)
    assert rouge.scores("b a", "a b")["rouge-l"][1] == pytest.approx(0.5)


def test_pairs_of_a_folder_and_of_files(tmp_path: Path) -> None:
    wanted = [("An article.", "A summary."), ("Another.", "Short.")]
    for number, (article, summary) in enumerate(wanted):
        for name, text in (("article", article), ("summary", summary)):
            (tmp_path / "pairs" / name / "topic").mkdir(parents=True, exist_ok=True)
            (tmp_path / "pairs" / name / "topic" / f"{number}.txt").write_text(text)
    table = tmp_path / "pairs.csv"
    table.write_text('id,highlights,article\n1,A summary.,An article.\n2,Short.,"Another."\n')
    plain = tmp_path / "plain.tsv"
    plain.write_text("a\tb\nAn article.\tA summary.\nAnother.\tShort.\n")
    lines = tmp_path / "pairs.jsonl"
    lines.write_text("".join(json.dumps({"summary": s, "text": a}) + "\n" for a, s in wanted))
    for path in (tmp_path / "pairs", table, plain, lines):
        assert list(rouge.read(path)) == wanted, path


def test_the_baseline_is_the_first_sentences() -> None:
    text = "One is here. Two is here. Three is here. Four is here."
    assert rouge.lead(text, None) == "One is here. Two is here. Three is here."
    assert rouge.lead(text, 6) == "One is here. Two is here."
