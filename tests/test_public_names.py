"""What the package offers: a short, sorted list, all of it there."""

import subprocess
import sys

import onceflow


def test_the_public_names_are_sorted_and_few() -> None:
    assert onceflow.__all__ == sorted(onceflow.__all__)
    assert len(set(onceflow.__all__)) == len(onceflow.__all__) <= 20


def test_every_public_name_can_be_imported() -> None:
    missing = [name for name in onceflow.__all__ if not hasattr(onceflow, name)]

    assert missing == []


def test_completion_offers_the_public_names() -> None:
    assert set(onceflow.__all__) <= set(dir(onceflow))


def test_nothing_else_is_public() -> None:
    """What a reader finds in the module is listed, is a module of ours, or begins with a line."""
    unlisted = [
        name
        for name, value in vars(onceflow).items()
        if not name.startswith("_")
        and name not in onceflow.__all__
        and getattr(value, "__name__", "") != f"onceflow.{name}"
    ]

    assert unlisted == []


def test_a_name_that_is_not_there_is_missed_as_usual() -> None:
    assert not hasattr(onceflow, "Flows")


def test_the_help_of_the_command_line_needs_no_engine() -> None:
    program = "import sys, onceflow.cli; print('onceflow.engine' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert answer.stdout == "False\n"
