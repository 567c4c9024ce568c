"""Every transition of the expansion state machine, by a loop of one's own, on both stores."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow import OnceflowError, Pipeline, PipelineError, Stage, WorkQueueManager
from onceflow.pipelines.expand import Expand
from onceflow.store.base import Store
from onceflow.store.postgres import PostgresStore
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.clock import FakeClock

Make = Callable[[], WorkQueueManager]
PIPELINE = Expand(backoff_seconds=0).pipeline()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgres"])
def make_store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> Callable[[], Store]:
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "x.db", clock=clock)
    url: str = request.getfixturevalue("postgres_url")
    return lambda: PostgresStore(url, clock=clock)


@pytest.fixture
def make(make_store: Callable[[], Store]) -> Iterator[Make]:
    made: list[WorkQueueManager] = []

    def one() -> WorkQueueManager:
        made.append(WorkQueueManager(make_store(), PIPELINE))
        return made[-1]

    yield one
    for queue in made:
        queue.close()


def states(queue: WorkQueueManager) -> dict[str, int]:
    return {row["state"]: row["count"] for row in queue.state_distribution()}


def titles(batch: list[dict[str, Any]]) -> list[str]:
    return [article["title"] for article in batch]


def test_seeds_are_discovered_at_depth_0(make: Make) -> None:
    queue = make()
    assert queue.initialize_seeds(["Graph_theory", "Topology", "Graph theory"]) == 2
    assert queue.initialize_seeds(["Topology"]) == 0
    assert queue.state_distribution() == [{"state": "discovered", "count": 2, "avg_depth": 0.0}]
    assert queue.queue_size() == 2


def test_a_claim_a_load_and_its_links(make: Make) -> None:
    queue = make()
    queue.initialize_seeds(["A"])
    [article] = queue.claim_work(batch_size=10, timeout_seconds=300)
    assert (article["title"], article["expansion_depth"], article["retry_count"]) == ("A", 0, 0)
    assert states(queue) == {"claimed": 1}
    assert queue.claim_work() == []

    assert queue.update_heartbeat("A")
    assert queue.advance_state("A", "loaded")
    assert states(queue) == {"loaded": 1}
    assert queue.discover_links("A", ["B", "C", "A", "b_c"], depth=0)

    assert states(queue) == {"processed": 1, "discovered": 3}
    assert queue.progress() == {"loaded_count": 1, "total": 4, "percent_complete": 25.0}
    claimed = queue.claim_work(2)
    assert [(one["title"], one["expansion_depth"]) for one in claimed] == [("B", 1), ("C", 1)]
    assert not queue.discover_links("A", ["D"]), "it is done"


def test_links_that_cannot_be_articles_are_passed_over(make: Make) -> None:
    queue = make()
    queue.initialize_seeds(["A"])
    queue.claim_work()
    queue.advance_state("A", "loaded")
    assert queue.discover_links("A", ["gate:x", "x" * 9000, "#only", "", "B"])
    assert states(queue) == {"processed": 1, "discovered": 1}


def test_claims_go_by_depth_then_age(make: Make) -> None:
    queue = make()
    queue.initialize_seeds(["A", "B"])
    queue.claim_work(1)
    queue.advance_state("A", "loaded")
    queue.discover_links("A", ["C"])
    queue.initialize_seeds(["D"])
    assert titles(queue.claim_work(1)) + titles(queue.claim_work(1)) == ["B", "D"]
    assert titles(queue.claim_work(9)) == ["C"]


def test_a_shorter_way_counts_for_what_is_done(make: Make) -> None:
    queue = make()
    queue.initialize_seeds(["A"])
    way = {"A": ["B"], "B": ["C"], "C": ["D"], "D": []}
    while batch := queue.claim_work():
        for article in batch:
            queue.advance_state(article["title"], "loaded", {"links": way[article["title"]]})
            queue.discover_links(article["title"], way[article["title"]])
    queue.initialize_seeds(["C"])
    for title in ("C", "D"):
        assert queue.discover_links(title, way[title])
    assert {row["state"]: row["avg_depth"] for row in queue.state_distribution()} == {
        "processed": (0 + 1 + 0 + 1) / 4
    }


def test_a_failure_is_tried_again_three_times(make: Make, clock: FakeClock) -> None:
    queue = make()
    queue.initialize_seeds(["A"])
    for retries in range(3):
        [article] = queue.claim_work()
        assert article["retry_count"] == retries
        assert queue.mark_failed("A", "HTTP 500")
        clock.advance(seconds=1)
        assert states(queue) == {"discovered" if retries < 2 else "failed": 1}
    assert queue.claim_work() == []
    assert not queue.mark_failed("A", "again")


def test_a_permanent_failure_is_final(make: Make) -> None:
    queue = make()
    queue.initialize_seeds(["A", "B"])
    queue.claim_work()
    assert queue.mark_failed("A", KeyError("no such article"), permanent=True)
    assert queue.advance_state("B", "failed")
    assert states(queue) == {"failed": 2}


def test_a_silent_claim_is_taken_over_and_its_holder_skips(make: Make, clock: FakeClock) -> None:
    first, second = make(), make()
    first.initialize_seeds(["A", "B"])
    assert titles(first.claim_work(1)) == ["A"]
    clock.advance(seconds=299)
    assert second.reclaim_stale(timeout_seconds=300) == 0
    assert second.stale_claims() == []
    clock.advance(seconds=2)
    assert [row["title"] for row in second.stale_claims()] == ["A"]
    assert second.reclaim_stale(timeout_seconds=300) == 1
    assert states(second) == {"discovered": 2}
    assert titles(second.claim_work()) == ["A", "B"]

    assert not first.update_heartbeat("A")
    assert not first.advance_state("A", "loaded")
    assert not first.mark_failed("A", "late")
    assert not first.discover_links("A", ["C"])

    assert second.advance_state("A", "loaded")
    assert second.discover_links("A", [])


def test_a_heartbeat_keeps_a_whole_batch(make: Make, clock: FakeClock) -> None:
    first, second = make(), make()
    first.initialize_seeds(["A", "B"])
    first.claim_work()
    for _ in range(10):
        clock.advance(seconds=200)
        assert first.update_heartbeat("A")
        assert second.reclaim_stale() == 0
        assert second.claim_work() == []
    assert first.advance_state("B", "loaded")


def test_a_shorter_timeout_takes_back_sooner(make: Make, clock: FakeClock) -> None:
    first, second = make(), make()
    first.initialize_seeds(["A"])
    first.claim_work()
    clock.advance(seconds=61)
    assert second.reclaim_stale(timeout_seconds=60) == 1
    assert titles(second.claim_work(timeout_seconds=60)) == ["A"]
    assert not first.advance_state("A", "loaded")


def test_what_is_not_finished_is_given_back(make: Make) -> None:
    first, second = make(), make()
    first.initialize_seeds(["A", "B"])
    assert titles(first.claim_work()) == ["A", "B"]
    first.advance_state("B", "loaded")
    first.close()
    with pytest.raises(OnceflowError, match="closed"):
        first.queue_size()
    [again] = second.claim_work()
    assert (again["title"], again["retry_count"]) == ("A", 0)
    assert second.advance_state("A", "discovered")
    assert second.discover_links("B", []), "who comes next may link it"
    assert states(second) == {"discovered": 1, "processed": 1}


def test_what_a_loop_only_loads_the_next_one_links(make: Make) -> None:
    """The loop of the document: it never asks for the links."""
    queue = make()
    queue.initialize_seeds(["A", "B"])
    while batch := queue.claim_work(1):
        for article in batch:
            queue.update_heartbeat(article["title"])
            assert queue.advance_state(article["title"], "loaded")
    assert states(queue) == {"loaded": 2}
    assert queue.progress()["percent_complete"] == 100.0


async def test_it_runs_beside_the_engine(make: Make, make_store: Callable[[], Store]) -> None:
    """A loop of one's own claims some, the engine's worker the others; links are followed by
    whoever comes first, and nothing is done twice."""
    way = {f"T{n}": [f"T{2 * n}", f"T{2 * n + 1}"] for n in range(1, 40)}
    loaded: list[str] = []

    async def load(work: onceflow.Work) -> dict[str, Any]:
        loaded.append(work.key)
        await asyncio.sleep(0.001)
        return {"title": work.key, "links": way.get(work.key, [])}

    job = Expand()
    stages = [
        Stage("load", load, ready="discovered", active="claimed", processors=2, batch=1),
        Stage("link", job.link, ready="loaded", active="loaded", spreads=True),
    ]
    pipeline = Pipeline("expand", *stages, done="processed", lease_seconds=300)
    queue = make()
    queue.initialize_seeds(["T1"], max_depth=5)

    def own() -> None:
        while batch := queue.claim_work(3, wait_seconds=30):
            for article in batch:
                title = article["title"]
                loaded.append(title)
                assert queue.advance_state(
                    title, "loaded", {"title": title, "links": way.get(title, [])}
                )

    async with onceflow.open(make_store(), pipeline) as flow:
        await asyncio.gather(asyncio.to_thread(own), flow.drain())
        await flow.drain()
        assert await flow.counts("expand") == {"processed": 63}
        assert {item.key: item.depth for item in await flow.items("expand")} == {
            f"T{n}": n.bit_length() - 1 for n in range(1, 64)
        }
        assert await flow.audit() == []
    assert sorted(loaded) == sorted(f"T{n}" for n in range(1, 64)), "each once"


def test_a_state_that_is_none_and_a_pipeline_that_does_not_fit_are_refused(make: Make) -> None:
    with pytest.raises(OnceflowError, match="discovered, loaded, processed, failed"):
        make().advance_state("A", "lost")
    with pytest.raises(PipelineError, match="spreads"):
        WorkQueueManager("x.db", Pipeline("p", Stage("one", print)))
