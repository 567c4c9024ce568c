"""A user's FILE.py: imported by its name, so that its handlers can be sent to other processes."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from onceflow import OnceflowError, Pipeline
from onceflow.commands.output import UsageError


def pipelines_of(file: Path, names: Sequence[str] = ()) -> list[Pipeline]:
    """The pipelines that a file defines at its top level, or those of them that are named."""
    module = _import(file)
    found: dict[str, Pipeline] = {}
    for value in vars(module).values():
        if isinstance(value, Pipeline) and found.setdefault(value.name, value) is not value:
            raise UsageError(f"{file} defines two pipelines named {value.name!r}; rename one")
    if not found:
        raise UsageError(
            f"{file} defines no Pipeline; give it one at its top level, such as "
            'news = Pipeline("news", Stage("read", read))'
        )
    for name in names:
        if name not in found:
            raise UsageError(f"{file} has no pipeline {name!r}; it has {', '.join(found)}")
    return [found[name] for name in dict.fromkeys(names)] if names else list(found.values())


def one_pipeline(file: Path, name: str | None) -> Pipeline:
    """The pipeline of a file; which one must be said if it has several."""
    found = pipelines_of(file, [name] if name else ())
    if len(found) > 1:
        names = ", ".join(pipeline.name for pipeline in found)
        raise UsageError(f"{file} has several pipelines: {names}; choose one with --pipeline NAME")
    return found[0]


def _import(file: Path) -> ModuleType:
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name the Python file with your Pipeline")
    if not file.exists():
        raise UsageError(f"there is no file {file}; name the Python file with your Pipeline")
    if file.suffix != ".py" or "." in file.stem:
        raise UsageError(f"{file} is not the name of a Python module; call it NAME.py")
    path = file.resolve()
    loaded = sys.modules.get(file.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        raise UsageError(
            f"{file}: a module {file.stem!r} is loaded already, not from this file; rename the file"
        )
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(file.stem)
    except (Exception, SystemExit) as error:
        sys.modules.pop(file.stem, None)
        raise UsageError(_what_it_raised(file, path, error)) from None
    if Path(getattr(module, "__file__", "") or "").resolve() != path:
        raise UsageError(f"{file}: Python has a module {file.stem!r} of its own; rename the file")
    return module


def _what_it_raised(file: Path, path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        where = f" line {error.lineno}" if error.lineno else ""
        whose = file if error.filename in (None, str(path)) else error.filename
        return f"{whose}{where}: {type(error).__name__}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"{file} is not UTF-8 text (byte {error.start})"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    where = f" line {lines[-1]}" if lines else ""
    if isinstance(error, OnceflowError):
        return f"{file}{where}: {error}"
    if isinstance(error, SystemExit):
        return (
            f"{file}{where}: it ended the program when it was imported; put what a script does "
            'under: if __name__ == "__main__":'
        )
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{file}{where}: {text}"
