"""Items that lead to items: depths that are the shortest, in every run, whatever comes first."""

from __future__ import annotations

import asyncio
import random

from onceflow.core.item import Added, Lease, Seed
from onceflow.core.pipeline import Stage
from onceflow.core.transition import Done, decode
from onceflow.store.base import Store
from onceflow.testing.rig import MakeStore, Rig, handler, pipeline

GRAPH = pipeline("load", Stage("link", handler, spreads=True), name="graph")
Links = dict[str, list[str]]


class SpreadSuite:
    """Stages that spread, peers, and claims by depth."""

    async def test_claims_go_by_depth_then_age(self, make_store: MakeStore) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add([Seed("deep", depth=2), Seed("a", depth=1), Seed("b", depth=1)])
            await rig.add([Seed("deep", depth=0), Seed("late", depth=1)], "run-2")

            claimed = [lease.key for lease in (await rig.claim("load", 3)).leases]

            assert claimed[:2] == ["deep", "a"]

    async def test_a_peer_is_as_deep_as_the_item_itself(self, make_store: MakeStore) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add([Seed("a", depth=1)], max_depth=1)
            lease = await rig.lease("load")

            await rig.finish(lease, Done({}, children=["too deep"], peers=["b"]))

            assert (await rig.item("b"))["depth"] == 1
            assert [row["key"] for row in await rig.items()] == ["a", "b"]

    async def test_a_shorter_way_is_told_to_all_descendants(self, make_store: MakeStore) -> None:
        links = {"far": ["x"], "x": ["y"], "y": ["z"], "near": ["x"]}
        async with Rig(make_store, GRAPH) as rig:
            await rig.add([Seed("far", depth=5), Seed("near", depth=0)])
            near = await rig.lease("load")
            assert near.key == "near"
            await expand(rig, links)
            assert await depths(rig) == {"far": 5, "near": 0, "x": 6, "y": 7, "z": 8}

            await rig.finish(near)
            await expand(rig, links)

            assert await depths(rig) == {"far": 5, "near": 0, "x": 1, "y": 2, "z": 3}
            assert await rig.place("x") == ("link", "done")
            assert (await rig.kinds("x")).count("reopened") == 1
            assert (await rig.kinds("near")).count("reopened") == 0

    async def test_an_item_at_the_depth_limit_spreads_when_it_turns_out_to_be_nearer(
        self, make_store: MakeStore
    ) -> None:
        links = {"a": ["b"], "b": ["x"], "x": ["beyond"], "slow": ["x"]}
        async with Rig(make_store, GRAPH) as rig:
            await rig.add(["slow", "a"], max_depth=2)
            slow = await rig.lease("load")
            await expand(rig, links)
            assert await depths(rig) == {"slow": 0, "a": 0, "b": 1, "x": 2}
            assert await rig.place("x") == ("link", "done")

            await rig.finish(slow)
            await expand(rig, links)

            assert await depths(rig) == {"slow": 0, "a": 0, "b": 1, "x": 1, "beyond": 2}

    async def test_a_shorter_way_counts_while_the_item_is_being_finished(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add([Seed("x", depth=5)])
            await rig.work_off("load")
            held = await rig.lease("link")
            await rig.add([Seed("x", depth=1)], "run-2")

            await rig.finish(held, Done({}, children=["y"]))

            assert (await rig.item("y"))["depth"] == 2
            assert await rig.place("x") == ("link", "done"), "it knew in time"

    async def test_each_run_has_depths_of_its_own(self, make_store: MakeStore) -> None:
        """What is near in one run is not thereby near in another."""
        links = {"a": ["b"], "b": ["c"], "c": ["d"], "d": ["e"]}
        async with Rig(make_store, GRAPH) as rig:
            await rig.add(["a"], "one", max_depth=2)
            await expand(rig, links)
            assert await members(rig, "one") == {"a", "b", "c"}

            await rig.add(["b"], "two", max_depth=2)
            await expand(rig, links)

            assert await members(rig, "two") == {"b", "c", "d"}
            assert await members(rig, "one") == {"a", "b", "c"}
            assert await depths(rig) == {"a": 0, "b": 0, "c": 1, "d": 2}

    async def test_a_run_with_more_room_goes_on_where_an_earlier_one_had_to_stop(
        self, make_store: MakeStore
    ) -> None:
        links = {"a": ["b", "c", "d"], "b": ["e"]}
        async with Rig(make_store, GRAPH) as rig:
            await rig.add(["a"], "small", max_items=2)
            await expand(rig, links)
            assert await members(rig, "small") == {"a", "b"}

            await rig.add(["a"], "large", max_items=5)
            await expand(rig, links)

            assert await members(rig, "large") == {"a", "b", "c", "d", "e"}
            assert await members(rig, "small") == {"a", "b"}

    async def test_a_known_item_that_is_over_the_budget_keeps_its_depth(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add([Seed("far", depth=4)], "one")
            await rig.add(["a", "far"], "two", max_items=1)

            assert (await rig.item("far"))["depth"] == 4

    async def test_a_failed_item_is_not_opened_by_a_shorter_way(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add([Seed("x", depth=3)])
            await rig.act("cancel", "x")
            await rig.add(["x"], "run-2")

            row = await rig.item("x")
            assert (row["phase"], row["depth"]) == ("cancelled", 0)

    # --- an item's own key ---

    async def test_an_old_key_stays_its_items_whoever_else_asks_for_it_at_the_same_moment(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, GRAPH) as rig:
            for run, order in (("run-1", 1), ("run-2", -1)):
                await rig.add([f"{run} a", f"{run} b"], run)
                a, b = (await rig.claim("load", 2)).leases
                finishes = [
                    rig.finishing(b, Done({}, aliases=[f"{run} a"])),
                    rig.finishing(a, Done({}, key=f"{run} own")),
                ]

                await rig.exchange(finishes[::order], [])

                assert (await rig.item(f"{run} a"))["id"] == a.item
                assert (await rig.item(f"{run} own"))["id"] == a.item

    async def test_an_item_gets_its_own_key_and_keeps_the_old_one(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add(["uk"])

            await rig.finish(await rig.lease("load"), Done({"x": 1}, key="UK", aliases=["GB"]))

            assert (await rig.item("UK"))["key"] == "UK"
            assert (await rig.item("uk"))["key"] == "UK"
            assert (await rig.item("GB"))["key"] == "UK"
            assert await rig.add(["UK", "uk", "GB"], "run-2") == Added("run-2", 0, 3)
            assert (await rig.lease("link")).key == "UK"
            assert len(await rig.items()) == 1

    async def test_an_alias_becomes_the_key(self, make_store: MakeStore) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add(["uk"])
            await rig.finish(await rig.lease("load"), Done({}, aliases=["UK"]))
            await rig.work_off("link")
            await rig.act("retry", "uk", stage="load")

            await rig.finish(await rig.lease("load"), Done({}, key="UK"))

            assert [(await rig.item(key))["key"] for key in ("uk", "UK")] == ["UK", "UK"]

    async def test_a_key_that_another_item_has_is_taken(self, make_store: MakeStore) -> None:
        async with Rig(make_store, GRAPH) as rig:
            await rig.add(["uk", "gb", "UK", "no"])
            uk, gb, own, no = (await rig.claim("load")).leases
            await rig.finish(own, Done({}, aliases=["Gb"]))
            other = Done({"same": True}, peers=["UK"])

            await rig.finish(uk, Done({"same": False}, key="UK", taken=other))
            await rig.finish(gb, Done({"same": False}, key="Gb", taken=other))
            await rig.finish(no, Done({"same": False}, key="UK"))

            for key, same in (("uk", True), ("gb", True), ("no", False)):
                row = await rig.item(key)
                assert (row["key"], row["stage"]) == (key, "link")
                [result] = await rig.store.read("result", item=row["id"], stage="load")
                assert decode(bytes(result["body"])) == {"same": same}

    async def test_of_two_that_want_a_key_at_once_one_gets_it(self, make_store: MakeStore) -> None:
        async with Rig(make_store, GRAPH) as rig:
            stores = [rig.store, await rig.another(), await rig.another()]
            for number in range(12):
                mine = [f"{number}-{at}" for at in range(3)]
                await rig.add(mine, f"run-{number}")
                leases = (await rig.claim("load", 3)).leases
                done = Done({"own": True}, key=f"own {number}", taken=Done({"own": False}))
                jobs = [
                    rig.finish(lease, done, store=store)
                    for lease, store in zip(leases[number % 2 :], stores, strict=False)
                ]
                if number % 2:
                    jobs.append(_adding(rig, stores[2], f"own {number}", f"late-{number}"))

                await asyncio.gather(*jobs)

                rows = [row for row in await rig.items() if row["key"] == f"own {number}"]
                assert len(rows) == 1
            await rig.work_off("load", "link")

    async def test_depths_are_the_shortest_whatever_the_order(self, make_store: MakeStore) -> None:
        """Several workers on several stores, claims in any order and finishes together."""
        async with Rig(make_store, GRAPH) as rig:
            stores = [rig.store, await rig.another(), await rig.another()]
            for seed in range(3):
                chance = random.Random(seed)
                keys = [f"{seed}-{number}" for number in range(24)]
                links = {key: chance.sample(keys, 3) for key in keys}
                run = f"run-{seed}"
                await rig.add([keys[0]], run, max_depth=4)

                await asyncio.gather(*[_walk(rig, store, links, chance) for store in stores])
                await expand(rig, links)

                true = breadth_first(keys[0], links, 4)
                found = {
                    row["key"]: row["depth"] for row in await rig.items("items_of_run", run=run)
                }
                assert found == true


async def expand(rig: Rig, links: Links) -> None:
    """Work off everything; each item's children are its links."""
    while True:
        leases = [*(await rig.claim("load")).leases, *(await rig.claim("link")).leases]
        if not leases:
            return
        for lease in leases:
            await rig.finish(lease, _done(lease, links))


def _done(lease: Lease, links: Links) -> Done:
    return Done({}, children=links.get(lease.key, [])) if lease.stage == "link" else Done({})


async def _walk(rig: Rig, store: Store, links: Links, chance: random.Random) -> None:
    for _ in range(60):
        stage = chance.choice(["load", "link", "link"])
        leases = list((await rig.claim(stage, 3, store=store)).leases)
        chance.shuffle(leases)
        finishes = [rig.finishing(lease, _done(lease, links)) for lease in leases]
        await rig.exchange(finishes, store=store)


async def _adding(rig: Rig, store: Store, key: str, run: str) -> list[bool]:
    await rig.add([key], run, store=store)
    return []


async def depths(rig: Rig) -> dict[str, int]:
    return {row["key"]: row["depth"] for row in await rig.items()}


async def members(rig: Rig, run: str) -> set[str]:
    return {row["key"] for row in await rig.items("items_of_run", run=run)}


def breadth_first(start: str, links: Links, most: int) -> dict[str, int]:
    """The true depths, up to a limit."""
    depth = {start: 0}
    row = [start]
    for at in range(1, most + 1):
        row = [key for each in row for key in links.get(each, ()) if key not in depth]
        depth |= dict.fromkeys(row, at)
        row = list(dict.fromkeys(row))
    return depth
