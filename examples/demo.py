"""A small pipeline from start to end, with a worker killed in the middle on purpose.

Run it with `make demo` or `python examples/demo.py`. It needs no network and leaves nothing behind.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import onceflow
from onceflow import Flow, Json, Permanent, Pipeline, Settings, Stage, Transient, Work

SAYINGS = {
    "apple": "an apple a day keeps the doctor away",
    "bird": "a bird in the hand is worth two in the bush",
    "book": "do not judge a book by its cover",
    "bridge": "cross that bridge when you come to it",
    "cat": "curiosity killed the cat",
    "cloud": "every cloud has a silver lining",
    "dog": "you cannot teach an old dog new tricks",
    "fire": "there is no smoke without fire",
    "grass": "the grass is always greener on the other side",
    "iron": "strike while the iron is hot",
    "penny": "a penny saved is a penny earned",
    "rome": "rome was not built in a day",
    "stitch": "a stitch in time saves nine",
    "stone": "a rolling stone gathers no moss",
    "time": "time and tide wait for no man",
    "water": "still waters run deep",
}


async def read(work: Work) -> Json:
    """Stage 1: find the text. An unknown word will never work; a busy shelf may work later."""
    await asyncio.sleep(0.1)
    if work.key == "unicorn":
        raise Permanent("there is no saying about it", code="unknown_word")
    if work.key == "busy-shelf":
        raise Transient("the shelf is busy", code="busy")
    return {"text": SAYINGS[work.key]}


async def count(work: Work) -> Json:
    """Stage 2: count the words of what stage 1 returned."""
    await asyncio.sleep(0.15)
    return {"text": work.input["text"], "words": len(work.input["text"].split())}


async def write(work: Work) -> Json:
    """Stage 3: write a line."""
    await asyncio.sleep(0.1)
    return {"line": f"{work.input['text']} ({work.input['words']} words)", **work.input}


async def digest(work: Work) -> Json:
    """The gate: runs once, when every item of the run is settled."""
    lines = [item.result["line"] async for item in work.finished_items()]
    failed = [item.key async for item in work.failed_items()]
    return {"lines": sorted(lines), "failed": sorted(failed)}


sayings = Pipeline(
    "sayings",
    Stage("read", read, ready="named", active="reading", limit=2),
    Stage("count", count, ready="read", active="counting"),
    Stage("write", write, ready="counted", active="writing", limit=2),
    done="written",
    after_all=digest,
    lease_seconds=3,
    attempts=3,
    backoff_seconds=0.2,
)


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


async def kill_a_worker(flow: Flow, database: Path) -> int:
    """Start a worker process, wait until it is in the middle of things, and kill it."""
    command = [sys.executable, "-m", "onceflow", "worker", __file__, "--db", str(database)]
    worker = await asyncio.create_subprocess_exec(*command, "--quiet")
    finished = 0
    async for event in flow.events(follow=True):
        finished += event.kind == "stage_finished"
        if finished >= 8 and event.kind == "claimed":
            break
    os.kill(worker.pid, signal.SIGKILL)
    await worker.wait()
    return worker.pid


async def main() -> int:
    began = time.monotonic()
    settings = Settings(cleanup_seconds=0.5, poll_seconds=0.1)
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "demo.db"
        async with onceflow.open(database, sayings, settings=settings) as flow:
            words = [*SAYINGS, "unicorn", "busy-shelf"]
            added = await flow.add(sayings, words)
            again = await flow.add(sayings, words, run=added.run)
            say(
                f"Added {added.new} words; adding them again is harmless: {again.new} new, "
                f"{again.known} known already.\nEach goes through three stages: read, count, write."
            )

            pid = await kill_a_worker(flow, database)
            held = await flow.items(sayings, phase="active")
            say(
                f"A worker process (pid {pid}) was killed with -9 in the middle of its work.\n"
                f"It died holding {len(held)} items: "
                f"{', '.join(f'{item.key} ({item.state})' for item in held)}.\n"
                f"So far: {await flow.counts(sayings)}"
            )

            say(
                "This process goes on. What the dead worker held comes back when its lease of "
                f"{sayings.lease_seconds:g} s is over:"
            )
            async for event in flow.run_until_idle():
                if event.kind in ("reclaimed", "retried", "failed", "gate_opened"):
                    print(f"  {event.kind:<12} {event.key}  {event.data.get('error', '')}")

            history = [event async for event in flow.events()]
            results = sum(event.kind == "stage_finished" for event in history)
            reclaimed = sum(event.kind == "reclaimed" for event in history)
            say(
                f"Done: {await flow.counts(sayings)}.\n"
                f"{reclaimed} leases of the dead worker were taken back, and still each stage of "
                f"each item has exactly one result:\n"
                f"{results} results = {len(SAYINGS)} items x 3 stages + 1 digest."
            )

            for item in await flow.items(sayings, state="failed"):
                print(f"  {item.key} failed after {item.attempt} attempt(s): {item.error}")

            gate = (await flow.run(added.run)).gate_item
            assert gate is not None
            summary = await flow.result(gate, "digest")
            lines = summary["lines"]
            say(f"The gate opened once and wrote a digest of {len(lines)} lines, such as:")
            for line in lines[:3]:
                print(f"  {line}")

            violations = await flow.audit(grace_seconds=0)
            say(
                f"Audit of all {len(history)} events: {len(violations)} violations. "
                f"It took {time.monotonic() - began:.0f} s."
            )
            expected = results == len(SAYINGS) * 3 + 1
            return 0 if expected and not violations else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
