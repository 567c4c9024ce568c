"""Count words in texts, then write one total when every text is settled: the gate opens once."""

import asyncio
import sys

import onceflow
from onceflow import Json, Permanent, Pipeline, Seed, Stage, Work

TEXTS = {
    "spring": "the ice is gone and the river runs",
    "summer": "long light and warm stones",
    "autumn": "",
    "winter": "snow on the roof and smoke above it",
}


async def count(work: Work) -> Json:
    words = work.input["text"].split()
    if not words:
        raise Permanent("the text is empty")
    return {"words": len(words)}


async def total(work: Work) -> Json:
    """Runs once for the run, with everything that was completed and everything that failed."""
    words = [item.result["words"] async for item in work.finished_items()]
    failed = [f"{item.key}: {item.error}" async for item in work.failed_items()]
    return {"texts": len(words), "words": sum(words), "failed": failed}


seasons = Pipeline("seasons", Stage("count", count), after_all=total, gate="settled")


async def main(database: str) -> None:
    async with onceflow.open(database, seasons) as flow:
        added = await flow.add(seasons, [Seed(key, {"text": text}) for key, text in TEXTS.items()])
        await flow.drain()
        run = await flow.run(added.run)
        assert run.gate_item is not None
        print(await flow.result(run.gate_item, "digest"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "seasons.db"))
