"""The simulation: the engine holds for some hundred seeds here, for thousands with `make sim`."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from onceflow.testing import simulate
from onceflow.testing.simcheck import BRANCHES
from onceflow.testing.simulate import main, play

SEEDS = 140
CHUNK = 20


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_nothing_is_lost_doubled_or_stuck_whatever_happens(start: int) -> None:
    violations = [
        f"{violation}; replay: python -m onceflow.testing.simulate --seed {seed} --trace"
        for seed in range(start, start + CHUNK)
        for violation in play(seed).violations
    ]

    assert violations == []


@pytest.mark.parametrize("seed", [0, 3, 17, 90])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert play(seed).trace == play(seed).trace


def test_the_trace_does_not_depend_on_the_process_that_plays_it() -> None:
    """Sets of texts come in another order in another process: nothing may hang on that."""
    program = [sys.executable, "-m", "onceflow.testing.simulate", "--seed", "5"]
    printed = {
        subprocess.run(
            program, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }

    assert len(printed) == 1
    assert play(5).trace in printed.pop()


def test_different_seeds_are_different_stories() -> None:
    assert len({play(seed).trace for seed in range(10)}) == 10


def test_the_rare_branches_have_names_and_most_are_taken_by_a_few_seeds() -> None:
    assert len(BRANCHES) == len(set(BRANCHES)) >= 25
    branches: Counter[str] = Counter()
    for seed in range(SEEDS, SEEDS + 40):
        branches += play(seed).branches

    assert branches.keys() <= set(BRANCHES)
    assert len(branches) >= 35, sorted(set(BRANCHES) - branches.keys())


def test_a_violation_is_printed_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = play(7)
    broken.violations.append("I99: a planted complaint")
    monkeypatch.setattr(simulate, "play", lambda seed, **options: broken)

    assert main(["--seeds", "1", "--start", "7", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    assert "seed 7: I99: a planted complaint" in printed
    assert "python -m onceflow.testing.simulate --seed 7 --trace" in printed
    assert "1 seeds, 1 with violations" in printed


def test_branches_that_were_not_reached_can_be_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "1", "--jobs", "1"]) == 0
    assert main(["--seeds", "1", "--jobs", "1", "--require-all-branches"]) == 1
    assert f" of {len(BRANCHES)} rare branches reached" in capsys.readouterr().out


def test_one_seed_can_be_read_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "2", "--trace"]) == 0
    printed = capsys.readouterr().out
    assert "all is healed" in printed
    assert f"seed 2: trace {play(2).trace}" in printed
