"""`demo`: a bundled site summarized by two workers, one of which is killed on purpose."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onceflow import OnceflowError
from onceflow.commands.common import COMMON, Flag
from onceflow.commands.output import OK, SOME_FAILED, Out, UsageError, remark
from onceflow.commands.text import span
from onceflow.core.errors import pip_install

FOLDER = "onceflow-demo"
NEEDED = ("aiohttp", "ada_url", "protego", "trafilatura", "lxml", "numpy", "wordllama")
LIMIT_SECONDS = 300.0


def demo(
    *,
    out: Path = Path(FOLDER),
    speed: float = 1.0,
    json: Annotated[bool, Flag, Parameter(group=COMMON)] = False,
    quiet: Annotated[bool, Flag, Parameter(group=COMMON)] = False,
) -> int:
    """Watch a small bundled site being summarized, offline, with a worker killed on the way.

    Two worker processes read 18 addresses of a web site that is served on this
    machine, and one of them is killed with -9 in the middle. Then come the digest,
    what the server saw, an audit, and where to look next. It takes half a minute.

    Parameters
    ----------
    out
        A folder for the database, the summaries and the logs.
    speed
        So many times as fast as one can read along.
    json
        Print one JSON object with what came out; the story goes to stderr.
    quiet
        No live view.
    """
    if not 0.1 <= speed <= 100:
        raise UsageError(f"--speed is {speed:g}; it must be between 0.1 and 100")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {', '.join(missing)}: {pip_install('clients,embedded')}")
    from onceflow.demo.show import Show, own_folder
    from onceflow.demo.tell import Teller

    show = Show(out, speed, Teller(as_json=json, quiet=quiet))
    try:
        with own_folder(out):
            report = asyncio.run(show.play(LIMIT_SECONDS))
    except KeyboardInterrupt:
        remark("stopped; the workers are gone, and the next demo begins afresh")
        raise
    except TimeoutError:
        raise OnceflowError(
            f"the demo did not end within {span(LIMIT_SECONDS)}; the workers' logs are in {out}"
        ) from None
    if json:
        Out(as_json=True).emit(report.as_dict())
    return OK if report.ok else SOME_FAILED
