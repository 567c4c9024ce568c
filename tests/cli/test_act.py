"""An operator's command says how many it matched, how many it fitted and how many it changed."""

import onceflow
from onceflow import Permanent, Pipeline, Stage, Transient, Work
from onceflow.engine.flow import Acted


async def refuse(work: Work) -> None:
    if work.key == "gone":
        raise Permanent("it is gone")
    if work.key == "down":
        raise Transient("it is down")


def pipeline() -> Pipeline:
    return Pipeline("news", Stage("fetch", refuse), attempts=1)


async def test_what_failed_for_good_is_left_alone_when_asked_so(database: str) -> None:
    async with onceflow.open(database, pipeline()) as flow:
        await flow.add("news", ["gone", "down", "fine"])
        await flow.drain()

        dry = await flow.act("retry", "news", permanent=False, dry_run=True)
        acted = await flow.act("retry", "news", permanent=False)

        assert dry == Acted(matched=2, fitting=1, changed=0, for_good=1)
        assert acted == Acted(matched=2, fitting=1, changed=1, for_good=1)
        assert (await flow.item("news", "down")).phase == "ready"
        assert (await flow.item("news", "gone")).phase == "failed"


async def test_an_item_named_in_a_phase_the_command_is_not_for_does_not_fit(database: str) -> None:
    async with onceflow.open(database, pipeline()) as flow:
        await flow.add("news", ["a", "b"])

        assert await flow.act("retry", "news", keys=["a"]) == Acted(matched=1)
        assert await flow.act("release", "news", keys=["a"]) == Acted(matched=1)
        assert await flow.cancel("news", keys=["a", "b"], dry_run=True) == 2
        assert await flow.act("cancel", "news", stage="fetch") == Acted(2, 2, 2)


async def test_an_item_whose_state_changed_meanwhile_is_counted_as_unchanged(database: str) -> None:
    async with onceflow.open(database, pipeline()) as flow, onceflow.open(database) as other:
        await flow.add("news", ["a", "b"])
        act = flow.store.act

        async def late(*arguments: object) -> list[int]:
            await other.cancel("news", keys=["b"])
            return await act(*arguments)  # type: ignore[arg-type]  # handed through as it came

        flow.store.act = late  # type: ignore[method-assign,assignment]  # somebody is quicker
        acted = await flow.act("cancel", "news")

        assert acted == Acted(matched=2, fitting=2, changed=1)


async def test_the_last_report_is_there_after_the_work_has_ended(database: str) -> None:
    async with onceflow.open(database, pipeline()) as flow:
        assert flow.last_health is None
        await flow.add("news", ["fine"])
        await flow.drain()

        assert flow.health() is None
        assert flow.last_health is not None
        assert flow.last_health.tally["finished"] == 1
