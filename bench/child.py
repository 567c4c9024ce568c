"""One measurement in a process of its own: `python -m bench.child TASK`, with TASK as JSON.

So no contestant's imports, signal handlers or patches are there when another is measured. The
answer is the last line of the output, as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import logging
import sys
import warnings
from typing import Any

from bench import pickup
from bench.contestant import Contestant

NOT_INSTALLED = 3


async def measure(task: dict[str, Any]) -> object:
    name: str = task["measure"]
    n: int = task.get("n", 0)
    if task["contestant"] == "onceflow_only":
        # Imported here: the other contestants' processes have no business with Onceflow.
        from bench import onceflow_only

        return await onceflow_only.MEASURES[name](task)
    contestant = _contestant(task)
    if name == "send":
        await pickup.send_on_request(contestant)
        return None
    await contestant.prepare()
    match name:
        case "rate":
            return await contestant.rate(n)
        case "pipeline3":
            return await contestant.pipeline3(n)
        case "pickup":
            return await pickup.in_one_process(contestant, n)
        case "pickup_other":
            return await pickup.from_another_process(contestant, n, task)
        case "idle":
            return await pickup.idle(contestant, seconds=n)
    raise ValueError(f"no measure is called {name!r}")


def _contestant(task: dict[str, Any]) -> Contestant:
    module = importlib.import_module(f"bench.contestants.{task['contestant']}")
    made: Contestant = module.CONTESTANT(task["url"], **task["setting"])
    return made


def main() -> int:
    # Peers talk on stderr at will; only their failures are of interest here.
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    task = json.loads(sys.argv[1])
    try:
        answer = asyncio.run(measure(task))
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    if answer is not None:
        print(json.dumps(answer, default=dataclasses.asdict), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
