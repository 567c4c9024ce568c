"""The results that a report is made from: the example fits the shapes that are written down."""

import json
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from onceflow.pipelines.analyze import shapes

BODIES = json.loads(Path(__file__).with_name("analyze_bodies.json").read_text())
SHAPES = {
    "website-analysis": shapes.SiteAnalysis,
    "prompt-forming": shapes.Prompts,
    "model-analysis": shapes.ModelAnalysis,
}


def misfits(value: Any, shape: Any, where: str = "") -> list[str]:
    """Where a value is not of the shape that a type describes."""
    origin = get_origin(shape)
    if shape is Any:
        return []
    if origin is Literal:
        return [] if value in get_args(shape) else [f"{where}: {value!r}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{where} is not a list"]
        inner = get_args(shape)[0]
        return [
            wrong for at, one in enumerate(value) for wrong in misfits(one, inner, f"{where}[{at}]")
        ]
    if origin is dict:
        return [
            wrong
            for key, one in value.items()
            for wrong in misfits(one, get_args(shape)[1], f"{where}.{key}")
        ]
    if origin in (UnionType, Union):
        tried = [misfits(value, each, where) for each in get_args(shape)]
        return [] if [] in tried else tried[0]
    if hasattr(shape, "__required_keys__"):
        if not isinstance(value, dict):
            return [f"{where} is not an object"]
        hints = get_type_hints(shape)
        wrong = [f"{where}.{key} is missing" for key in shape.__required_keys__ if key not in value]
        wrong += [f"{where}.{key} is unknown" for key in value if key not in hints]
        for key in value.keys() & hints.keys():
            wrong += misfits(value[key], hints[key], f"{where}.{key}")
        return wrong
    if shape is float:
        return (
            []
            if isinstance(value, int | float) and not isinstance(value, bool)
            else [f"{where}: {value!r}"]
        )
    if shape is type(None):
        return [] if value is None else [f"{where}: {value!r}"]
    fits = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    return [] if fits else [f"{where}: {value!r}"]


@pytest.mark.parametrize("stage", SHAPES)
def test_the_example_has_the_shape_that_is_written_down(stage: str) -> None:
    assert misfits(BODIES[stage], SHAPES[stage], stage) == []
