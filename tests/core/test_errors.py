"""The tree of errors is the one its docstring draws."""

import pytest

from onceflow.core import errors
from onceflow.core.errors import HandlerError, OnceflowError, Permanent, Transient


def drawn_tree() -> dict[str, str]:
    """Each error of the drawing with the one above it."""
    above: dict[int, str] = {}
    tree: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        name = line.strip(" │├└─").split(" ")[0]
        if not isinstance(getattr(errors, name, None), type) or name == "annotations":
            continue
        depth = line.index(name)
        parent = [above[at] for at in sorted(above) if at < depth]
        tree[name] = parent[-1] if parent else "Exception"
        above = {at: known for at, known in above.items() if at < depth} | {depth: name}
    return tree


def test_every_error_is_drawn_and_hangs_where_it_is_drawn() -> None:
    real = {
        name: value.__mro__[1].__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }

    assert drawn_tree() == real


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HandlerError("x"), "failed"),
        (Transient("x"), "transient"),
        (Permanent("x"), "permanent"),
        (Transient("x", code="timeout"), "timeout"),
        (Permanent("x", code="blocked_address"), "blocked_address"),
    ],
)
def test_a_handlers_error_has_a_code_to_group_by(error: HandlerError, code: str) -> None:
    assert error.code == code
    assert str(error) == "x"
    assert isinstance(error, OnceflowError)


def test_a_transient_error_carries_the_floor_a_site_asked_for() -> None:
    assert Transient("x").retry_after is None
    assert Transient("x", retry_after=12.5).retry_after == 12.5
