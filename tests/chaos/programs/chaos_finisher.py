"""One of two processes that finish the last two items of a run at the same moment."""

import asyncio
import itertools
import os
import secrets
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import chaos_load

from onceflow import Pipeline
from onceflow.core.transition import Done, decide
from onceflow.store import open_store
from onceflow.store.base import Claim, Finish, Worker

ROUNDS_PER_BEAT = 20


async def main(database: str) -> None:
    pipeline = Pipeline("load", *chaos_load.load.stages[2:], after_all=chaos_load.digest)
    store = open_store(database)
    await store.open([pipeline])
    worker = Worker(secrets.token_hex(8), "host.test", os.getpid())
    await store.beat(worker)
    numbers = itertools.count(secrets.randbits(40))
    tell("begun")
    finish: Finish | None = None
    run = ""
    rounds = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, _, argument = line.strip().partition(" ")
        if command == "claim":
            run = argument
            rounds += 1
            if rounds % ROUNDS_PER_BEAT == 0:
                await store.beat(worker)
            wish = Claim("load", "weigh", "", 1)
            reply = await store.exchange(worker.id, next(numbers), [], [wish])
            [lease] = reply.claimed[0].leases
            finish = Finish(lease, decide(pipeline, lease, Done(run)))
            tell("claimed")
        else:
            assert finish is not None
            while time.monotonic_ns() < int(argument):
                pass
            kept = (await store.exchange(worker.id, next(numbers), [finish], [])).kept
            await store.sweep([run])
            tell("kept" if all(kept) else "lost")
    await store.close()


def tell(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


asyncio.run(main(sys.argv[1]))
