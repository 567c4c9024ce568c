"""What docs/testing.md shows works as shown, and it tells of every planted bug."""

import re
from pathlib import Path

from tests.planted import bugs

TEXT = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_examples_are_tests_that_pass() -> None:
    played = 0
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        names: dict[str, object] = {}
        exec(compile(code, "docs/testing.md", "exec"), names)
        for name, test in names.items():
            if name.startswith("test_") and callable(test):
                test()
                played += 1

    assert played == 2


def test_the_table_of_planted_bugs_is_complete() -> None:
    ends = ("| simulation |", "| behaviour suite |", "one file |")
    rows = [line for line in TEXT.splitlines() if line.endswith(ends)]
    planted = len(bugs.FOUND_BY_SIMULATION) + len(bugs.FOUND_BY_SUITE) + 1
    # Four kinds of missing fences share a row, and so do two kinds of gates.
    assert len(rows) + 3 + 1 == planted
