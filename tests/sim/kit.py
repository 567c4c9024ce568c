"""One process on a loop with virtual time, for what a simulation found and a small test keeps."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import apsw

from onceflow import Flow, Pipeline, Settings
from onceflow.engine.heart import LoopHeart
from onceflow.store.sqlite import _migrate
from onceflow.testing.simloop import SimLoop
from onceflow.testing.simstore import OneConnection

T = TypeVar("T")


def alone(
    pipeline: Pipeline, body: Callable[[Flow], Awaitable[T]], settings: Settings | None = None
) -> T:
    """Run a test's body with an open flow, in virtual time; whoever spins is found out."""

    async def run() -> T:
        async with Flow(store, [pipeline], settings or Settings(), LoopHeart) as flow:
            return await body(flow)

    loop = SimLoop(0)
    with loop.as_the_time():
        connection = apsw.Connection(":memory:")
        _migrate(connection, "a test")
        store: Any = OneConnection(connection, "boot")
        try:
            return loop.run_until_complete(run())
        finally:
            loop.bury()
            loop.close()
