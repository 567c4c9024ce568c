"""A worker process for the tests that kill, stop and end real processes.

python -m tests.engine.worker DATABASE HANDLER [LEASE_SECONDS]: works until it is told to stop. What
happens is said on stdout, one line each; a handler that waits goes on when stdin has a line.
"""

import asyncio
import os
import signal
import sys
from typing import Any

import onceflow
from onceflow import Pipeline, Settings, Stage, Work


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def wait(work: Work) -> str:
    """Stream, say so, and wait for a line."""
    work.emit("summary_partial", text="begun ")
    say(f"began {work.key}")
    await asyncio.to_thread(sys.stdin.readline)
    work.emit("summary_partial", text="ended")
    say(f"ended {work.key}")
    return f"pid {os.getpid()}"


async def deadly(work: Work) -> str:
    """One item ends the whole process."""
    if work.key == "deadly":
        os._exit(137)
    return "fine"


async def hang(work: Work) -> None:
    say(f"began {work.key}")
    await asyncio.Event().wait()


async def short(work: Work) -> str:
    say(f"began {work.key}")
    await asyncio.sleep(0.3)
    return "done"


HANDLERS = {"wait": wait, "deadly": deadly, "hang": hang, "short": short}


def pipeline(handler: str, lease_seconds: float = 5) -> Pipeline:
    stage = Stage("work", HANDLERS[handler], limit=20, processors=3)
    return Pipeline("killed", stage, lease_seconds=lease_seconds, backoff_seconds=0)


async def main(database: str, handler: str, lease_seconds: float) -> None:
    # Others take over what is stopped; who ends its own process is taken over by the next one.
    cleanup_seconds = 0.05 if handler == "deadly" else 3600
    settings = Settings(poll_seconds=0.05, cleanup_seconds=cleanup_seconds, health_seconds=3600)
    loop = asyncio.get_running_loop()
    async with onceflow.open(database, pipeline(handler, lease_seconds), settings=settings) as flow:
        stops = 0

        def stop() -> None:
            nonlocal stops
            stops += 1
            flow.stop_soon(None if stops == 1 else 0)
            say(f"stopping {stops}")

        loop.add_signal_handler(signal.SIGTERM, stop)
        working = flow.start()
        say("working")
        manager: Any = flow._manager
        await working
        say(f"tally lost={manager.tally.lost} fenced={manager.tally.fenced}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
