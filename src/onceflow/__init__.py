"""Onceflow: web items through staged pipelines, every item through every stage once.

async with onceflow.open("news.db", news) as flow:
    await flow.add(news, ["https://a.test/"])
    async for event in flow.run_until_idle():
        print(event.key, event.state)
"""

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
from onceflow.engine.flow import Flow, open
from onceflow.engine.settings import Settings
from onceflow.engine.work import Work

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
