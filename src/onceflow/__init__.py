"""Onceflow: web items through staged pipelines, every item through every stage once.

async with onceflow.open("news.db", news) as flow:
    await flow.add(news, ["https://a.test/"])
    async for event in flow.run_until_idle():
        print(event.key, event.state)
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from onceflow.core.errors import (
    OnceflowError,
    Pause,
    Permanent,
    PipelineError,
    StoreUnavailable,
    Transient,
)
from onceflow.core.item import Event, Item, Json, Run, Seed
from onceflow.core.pipeline import Lane, Pipeline, Stage
from onceflow.core.transition import Done, Usage

if _TYPE_CHECKING:
    from onceflow.client import AsyncClient as AsyncClient
    from onceflow.client import Client as Client
    from onceflow.core.errors import Halt as Halt
    from onceflow.engine.flow import Flow, open
    from onceflow.engine.settings import Settings
    from onceflow.engine.work import Work
    from onceflow.work_queue import WorkQueueManager as WorkQueueManager

__version__ = "0.1.0"

__all__ = [
    "Done",
    "Event",
    "Flow",
    "Item",
    "Json",
    "Lane",
    "OnceflowError",
    "Pause",
    "Permanent",
    "Pipeline",
    "PipelineError",
    "Run",
    "Seed",
    "Settings",
    "Stage",
    "StoreUnavailable",
    "Transient",
    "Usage",
    "Work",
    "open",
]

_LATER = {
    "AsyncClient": "onceflow.client",
    "Client": "onceflow.client",
    "Flow": "onceflow.engine.flow",
    "Halt": "onceflow.core.errors",
    "Settings": "onceflow.engine.settings",
    "Work": "onceflow.engine.work",
    "WorkQueueManager": "onceflow.work_queue",
    "open": "onceflow.engine.flow",
}
"""Where names are that are imported when first asked for: `onceflow --help` needs no engine. Those
that few programs need are found here too, beyond the list."""


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_importlib.import_module(_LATER[name]), name)
    if name in __all__:  # what belongs to an extra or a pipeline is found here, but not listed
        globals()[name] = value
    return value
