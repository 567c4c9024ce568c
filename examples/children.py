"""Grow a family tree: each item finds its children, and the run never accepts more than it may."""

import asyncio
import sys

import onceflow
from onceflow import Done, Json, Pipeline, Stage, Work


async def look(work: Work) -> Done:
    """Every number has two children, 2n and 2n + 1, one deeper than itself."""
    number = int(work.key)
    return Done({"number": number}, children=[str(2 * number), str(2 * number + 1)])


async def square(work: Work) -> Json:
    number: int = work.input["number"]
    return {"square": number * number}


tree = Pipeline("tree", Stage("look", look, limit=4), Stage("square", square))


async def main(database: str) -> None:
    async with onceflow.open(database, tree) as flow:
        added = await flow.add(tree, ["1"], max_items=20, max_depth=10)
        await flow.drain()
        run = await flow.run(added.run)
        print(f"{run.accepted} items, never more than {run.max_items}")
        for item in await flow.items(tree):
            print("  " * item.depth + item.key, item.state)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tree.db"))
