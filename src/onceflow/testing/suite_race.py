"""What every store holds when many ask at once: several store objects, many tasks, no order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from onceflow.core.errors import StoreError
from onceflow.core.item import Lease, Seed
from onceflow.core.pipeline import Lane, Stage
from onceflow.core.transition import Done
from onceflow.store.base import Store
from onceflow.testing.clock import FakeClock
from onceflow.testing.rig import DIGEST, MakeStore, Rig, handler, pipeline

STORES = 4
TASKS = 12
GATE_ROUNDS = 50
LIMIT = 3
ALL_ACTIVE = {
    "after": 0, "most": 1000, "phases": " active ", "pipeline": None, "stage": None,
    "places": None, "error_code": None,
}  # fmt: skip


async def several(rig: Rig) -> list[Store]:
    return [rig.store, *[await rig.another() for _ in range(STORES - 1)]]


class RaceSuite:
    async def test_a_new_database_is_opened_by_many_at_once(self, make_store: MakeStore) -> None:
        stores = [make_store(FakeClock()) for _ in range(STORES)]
        try:
            await asyncio.gather(*[store.open([DIGEST]) for store in stores])
            for store in stores:
                assert len(await store.read("stages")) == 2
        finally:
            for store in stores:
                await store.close()

    async def test_nothing_is_claimed_twice_and_nothing_is_left(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            stores = await several(rig)
            await rig.add([f"k{number:03}" for number in range(300)])
            taken: list[Lease] = []

            async def work(number: int) -> None:
                store, worker = stores[number % STORES], f"w{number}"
                await rig.beat(worker, store)
                for turn in range(200):
                    count = 1 + (number + turn) % 7
                    claimed = await rig.claim("scrape", count, worker=worker, store=store)
                    if not claimed.leases:
                        return
                    taken.extend(claimed.leases)
                    assert all(await rig.finish(claimed.leases, worker=worker, store=store))

            async with asyncio.TaskGroup() as tasks:
                for number in range(TASKS):
                    tasks.create_task(work(number))
            await rig.work_off("scrape")  # what a claim skipped because somebody had it locked

            assert len({lease.item for lease in taken}) == len(taken)
            assert len(taken) >= 290
            assert await rig.phases() == {"ready": 300}

    async def test_a_limit_holds_over_all_stores(self, make_store: MakeStore) -> None:
        limited = pipeline(Stage("scrape", handler, limit=LIMIT))
        async with Rig(make_store, limited) as rig:
            stores = await several(rig)
            await rig.add([f"k{number:03}" for number in range(120)])
            live: Counter[str] = Counter()
            most = 0

            async def work(number: int) -> None:
                nonlocal most
                store, worker = stores[number % STORES], f"w{number}"
                await rig.beat(worker, store)
                while (await rig.store.read("activity"))[0]["ready"]:
                    claimed = await rig.claim("scrape", 2, worker=worker, store=store)
                    live[worker] += len(claimed.leases)
                    most = max(most, live.total())
                    live[worker] -= len(claimed.leases)
                    if claimed.leases:
                        await rig.finish(claimed.leases, worker=worker, store=store)

            async with asyncio.TaskGroup() as tasks:
                for number in range(TASKS):
                    tasks.create_task(work(number))

            assert 0 < most <= LIMIT
            assert await rig.phases() == {"done": 120}
            assert await rig.audit() == [], "the history counts every committed instant"

    async def test_lanes_hold_over_all_stores(self, make_store: MakeStore) -> None:
        lane = Lane(lambda key: key[0], limit=2)
        async with Rig(make_store, pipeline(Stage("fetch", handler, lane=lane, limit=5))) as rig:
            stores = await several(rig)
            await rig.add([f"{name}{number}" for name in "abcd" for number in range(20)])

            async def work(number: int) -> None:
                store, worker = stores[number % STORES], f"w{number}"
                await rig.beat(worker, store)
                at = ""
                while (await rig.store.read("activity"))[0]["ready"]:
                    claimed = await rig.claim("fetch", 3, worker=worker, store=store, lane=at)
                    at = claimed.lane
                    rows = await rig.store.read("items", **ALL_ACTIVE)  # at one instant
                    active = Counter(row["lane"] for row in rows)
                    assert max(active.values(), default=0) <= 2
                    if claimed.leases:
                        await rig.finish(claimed.leases, worker=worker, store=store)

            async with asyncio.TaskGroup() as tasks:
                for number in range(TASKS // 2):
                    tasks.create_task(work(number))

            assert await rig.phases() == {"done": 80}

    async def test_the_gate_opens_once_when_the_last_two_items_are_committed_together(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            stores = await several(rig)

            async def finish(store: Store, lease: Lease, run: str) -> None:
                assert await rig.finish(lease, store=store) == [True]
                await store.sweep([run])

            for number in range(GATE_ROUNDS):
                run = f"run-{number:03}"
                await rig.add([f"{run}-a", f"{run}-b"], run)
                first, second = (await rig.claim("scrape")).leases
                one, two = random.Random(number).sample(stores, 2)
                await asyncio.gather(finish(one, first, run), finish(two, second, run))
                await rig.store.sweep([run])  # whatever must happen is asked for again

                opened = await rig.events(run=run, kinds=" gate_opened ")
                assert len(opened) == 1, run
                await rig.work_off("digest")

    async def test_two_adders_of_the_same_keys_make_each_item_once(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            stores = await several(rig)
            keys = [f"k{number:03}" for number in range(200)]
            for attempt in range(5):
                batch = [f"{attempt}-{key}" for key in keys]
                orders = [batch, batch[::-1], batch[50:] + batch[:50], batch[::3] + batch[1::2]]

                added = await asyncio.gather(*[
                    rig.add(order, f"run-{attempt}-{at}", store=stores[at])
                    for at, order in enumerate(orders)
                ])  # fmt: skip

                made = sum(each.new for each in added)
                assert made == len(set(batch))
                for at, order in enumerate(orders):
                    run = await rig.run(f"run-{attempt}-{at}")
                    assert run["accepted"] == len(set(order))
                    assert added[at].new + added[at].known == len(set(order))

    async def test_the_same_request_sent_twice_at_once_is_one(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            stores = await several(rig)
            keys = [f"k{number}" for number in range(20)]

            added = await asyncio.gather(*[rig.add(keys, store=store) for store in stores])

            assert sorted(each.new for each in added) == [0, 0, 0, 20]
            assert (await rig.run())["accepted"] == 20

    async def test_nothing_gets_into_a_run_that_is_sealed_at_the_same_moment(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            stores = await several(rig)

            async def add_late(store: Store, run: str) -> bool:
                try:
                    await rig.add([f"{run}-late"], run, seal=False, store=store)
                except StoreError:
                    return False
                return True

            async def seal(store: Store, run: str) -> None:
                await rig.add([], run, store=store)
                await store.sweep([run])

            for number in range(30):
                run = f"run-{number}"
                await rig.add([f"{run}-first"], run, seal=False)
                await rig.work_off("scrape")

                one, two = random.Random(number).sample(stores, 2)
                accepted, _ = await asyncio.gather(add_late(one, run), seal(two, run))
                await rig.store.sweep([run])  # the first may have found the run locked

                row = await rig.run(run)
                assert row["accepted"] == 1 + accepted
                assert (row["settled_at"] is None) == accepted, "open with the late one, else shut"

    async def test_a_budget_is_exact_when_children_come_from_everywhere(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            stores = await several(rig)
            parents = [f"p{number:02}" for number in range(16)]
            await rig.add(parents, max_items=60)
            leases = (await rig.claim("scrape", 16)).leases

            async def finish(at: int, lease: Lease) -> None:
                # Overlapping families in different orders, the parents themselves among them.
                family = [f"c{(at * 5 + step) % 80:02}" for step in range(20)] + parents[
                    at - 3 : at
                ]
                random.Random(at).shuffle(family)
                done = Done({}, children=[Seed(key) for key in family])
                assert await rig.finish(lease, done, store=stores[at % STORES]) == [True]

            await asyncio.gather(*[finish(at, lease) for at, lease in enumerate(leases)])

            assert (await rig.run())["accepted"] == 60
            assert len(await rig.items("items_of_run", run="run-1")) == 60

    async def test_shorter_ways_are_found_while_the_items_move(self, make_store: MakeStore) -> None:
        """Children that are known, being finished at this moment by others, and too deep: each
        transaction wants the other's items, and all of them want the same run."""
        async with Rig(make_store) as rig:
            stores = await several(rig)
            keys = [f"k{number:02}" for number in range(16)]
            for attempt in range(5):
                run = f"run-{attempt}"
                family = [f"{attempt}-{key}" for key in keys]
                await rig.add([Seed(key, depth=at % 5) for at, key in enumerate(family)], run)
                leases = (await rig.claim("scrape", 16)).leases
                done = Done({}, children=family[::-1])

                await asyncio.gather(*[
                    rig.finish(leases[at : at + 2], done, store=stores[at % STORES])
                    for at in range(0, 16, 2)
                ])  # fmt: skip

                depths = [row["depth"] for row in await rig.items("items_of_run", run=run)]
                assert depths == [min(at % 5, 1) for at in range(16)]
                await rig.work_off("summarize")

    async def test_a_known_item_that_joins_while_it_finishes_belongs_to_both_runs(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, DIGEST) as rig:
            stores = await several(rig)
            for number in range(20):
                key, first, second = f"k{number}", f"a-{number}", f"b-{number}"
                await rig.add([key], first)
                lease = await rig.lease("scrape", item=(await rig.item(key))["id"])

                await asyncio.gather(
                    rig.finish(lease, Done({}, children=[f"{key}-child"]), store=stores[1]),
                    rig.add([key], second, store=stores[2]),
                )

                runs = await rig.store.read("runs_of", item=lease.item)
                assert [row["run"] for row in runs] == [first, second]
            await rig.work_off("scrape")
            swept = await rig.store.sweep()
            assert swept.settled == 40

    async def test_workers_sweep_while_others_finish(self, make_store: MakeStore) -> None:
        async with Rig(make_store, DIGEST) as rig:
            stores = await several(rig)
            await rig.add([f"k{number:03}" for number in range(100)])
            await rig.beat("gone")
            leases = (await rig.claim("scrape", 100, worker="gone")).leases
            await rig.store.leave("gone")
            # Nobody knows it any more: everything may be reclaimed while it still finishes.
            kept: dict[int, bool] = {}

            async def finish(at: int) -> None:
                part = leases[at * 10 : at * 10 + 10]
                answers = await rig.finish(part, worker="gone", store=stores[at % STORES])
                kept.update(zip([lease.item for lease in part], answers, strict=True))

            sweeps = [stores[at % STORES].sweep() for at in range(5)]
            results = await asyncio.gather(*[finish(at) for at in range(10)], *sweeps)

            taken = sum(each.reclaimed for each in results if each is not None)
            assert taken + sum(kept.values()) >= 100 - 10 * len(sweeps)
            done = {row["id"] for row in await rig.items(phases=" done ")}
            assert done == {item for item, was_kept in kept.items() if was_kept}
