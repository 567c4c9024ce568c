"""Figures for monitors."""

import pytest

from onceflow.web.stats import digits


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567, "1234567"), (1234568.0, "1234568"), (0.1 + 0.2, "0.30000000000000004"),
     (2**53, "9007199254740992"), (1e-9, "1e-09")],
)  # fmt: skip
def test_a_number_has_all_its_digits(value: float, text: str) -> None:
    assert digits(value) == text
    assert float(digits(value)) == value
