"""The names of states, as they are read and kept."""

from typing import Any

import pytest

import onceflow
from onceflow import Pipeline, Stage
from onceflow.engine.listing import known_states
from onceflow.store.base import Store
from tests.engine.kit import Database


def named(state: str, *more: str) -> Pipeline:
    stages = [Stage("first", lambda work: None, ready=state, held=True)]
    stages += [Stage(name, lambda work: None, held=True) for name in more]
    return Pipeline("news", *stages)


async def test_names_are_read_once_for_items_of_known_stages(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = named("arrived")
    async with onceflow.open(database.url, table) as flow:
        await flow.add(table, ["a", "b"])
        asked: list[str] = []
        read = flow.store.read

        async def counted(query: str, **parameters: Any) -> Any:
            asked.append(query)
            return await read(query, **parameters)

        monkeypatch.setattr(flow.store, "read", counted)
        states = {(await flow.item(table, key)).state for key in ("a", "b", "a")}
        assert states == {"arrived"}
        assert asked.count("pipelines") == 1


async def test_a_stage_that_is_new_is_looked_up(database: Database) -> None:
    async with onceflow.open(database.url, named("arrived")) as old:
        assert await _names(old.store, "first") == "arrived"
        newer = named("arrived", "second")
        async with onceflow.open(database.url, newer) as flow:
            await flow.add(newer, ["a"])
        assert await _names(old.store, "second") == "second-ready"


async def test_without_rows_the_names_are_read_anew(database: Database) -> None:
    async with onceflow.open(database.url, named("arrived")) as old:
        await known_states(old.store)
        async with onceflow.open(database.url, named("landed")):
            pass
        assert (await known_states(old.store))["news"]["first"]["ready"] == "landed"


async def _names(store: Store, stage: str) -> str:
    states = await known_states(store, {"pipeline": "news", "stage": stage})
    return states["news"][stage]["ready"]
