"""What `onceflow worker` is given when its idle CPU is measured."""

from onceflow import Pipeline, Stage, Work


async def noop(work: Work) -> None:
    pass


pipeline = Pipeline("idle", Stage("only", noop))
