"""One of the demo's two worker processes: claims and works until it is stopped or left alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from onceflow import Flow
from onceflow.demo.flow import Pace, open_flow


async def work(database: Path, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    async with open_flow(database, pace) as flow:
        working = flow.start()
        loop.add_signal_handler(signal.SIGTERM, flow.stop_soon)
        threading.Thread(target=_stop_when_alone, args=(loop, flow), daemon=True).start()
        await working


def _stop_when_alone(loop: asyncio.AbstractEventLoop, flow: Flow) -> None:
    """Our stdin is a pipe from the demo: when it ends, the demo is gone, however it ended."""
    while os.read(0, 1024):  # not sys.stdin, which would be locked while the interpreter ends
        pass
    with contextlib.suppress(RuntimeError):  # it is ending already
        loop.call_soon_threadsafe(flow.stop_soon)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    asyncio.run(work(Path(sys.argv[1]), Pace.from_text(sys.argv[2])))
