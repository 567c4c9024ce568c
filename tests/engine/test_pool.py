"""Processors: idle, busy, error; named after their stage; replaced after an error."""

import pytest

from onceflow.core.item import mark_of
from onceflow.engine.pool import Pool, Processor, ProcessorState
from tests.engine.test_book import lease


@pytest.fixture
def changes() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def pool(changes: list[tuple[str, str]]) -> Pool:
    def changed(processor: Processor) -> None:
        changes.append((processor.name, processor.state.value))

    return Pool("website-analysis", 3, changed)


def test_processors_are_named_after_their_stage_and_numbered_from_one(pool: Pool) -> None:
    assert [processor.name for processor in pool.processors] == [
        "website-analysis-processor-1",
        "website-analysis-processor-2",
        "website-analysis-processor-3",
    ]


def test_a_processor_is_idle_then_busy_then_idle(pool: Pool) -> None:
    processor = pool.assign(lease(1), 10.0)

    assert processor.name == "website-analysis-processor-1"
    assert (processor.state, processor.lease, processor.since) == ("busy", lease(1), 10.0)
    assert (pool.idle, pool.busy) == (2, 1)
    assert list(pool.begun_before(10.0)) == [processor]

    pool.release(processor)

    assert (processor.state, processor.lease) == ("idle", None)
    assert (pool.idle, pool.busy) == (3, 0)


def test_a_processor_that_waited_for_the_database_begins_when_its_handler_does(
    pool: Pool,
) -> None:
    waited, other = pool.assign(lease(1), 10.0), pool.assign(lease(2), 11.0)

    pool.begin(waited, 12.0)

    assert waited.since == 12.0
    assert pool.oldest() == 11.0, "the longest one is first again"
    assert list(pool.begun_before(11.5)) == [other]


def test_two_leases_of_one_item_have_processors_of_their_own(pool: Pool) -> None:
    """The outcome of the first waits for the database while the next stage is under way."""
    first = pool.assign(lease(1), 10.0)
    second = pool.assign(lease(1, fence=2), 11.0)

    pool.release(first)

    assert second.lease is not None
    assert mark_of(second.lease) == (1, 2, 7)
    assert (pool.idle, pool.busy) == (2, 1)


def test_a_failed_processor_is_out_of_service_until_it_is_replaced(pool: Pool) -> None:
    processor = pool.assign(lease(1), 10.0)

    pool.fail(processor, "too slow")
    assert (processor.state, processor.error) == (ProcessorState.ERROR, "too slow")
    assert (pool.idle, pool.busy) == (2, 0)

    assert pool.replace_failed() == 1
    assert (processor.state, processor.error) == (ProcessorState.IDLE, None)
    assert pool.idle == 3
    assert pool.replace_failed() == 0


def test_every_change_of_a_processors_state_is_told(
    pool: Pool, changes: list[tuple[str, str]]
) -> None:
    processor = pool.assign(lease(1), 10.0)
    pool.release(processor)
    pool.fail(pool.assign(lease(2), 11.0), "too slow")
    pool.replace_failed()

    assert changes == [
        (processor.name, state) for state in ("busy", "idle", "busy", "error", "idle")
    ]


def test_the_longest_attempts_are_known(pool: Pool) -> None:
    assert pool.oldest() is None
    first, second = pool.assign(lease(1), 10.0), pool.assign(lease(2), 20.0)

    assert pool.oldest() == 10.0
    assert list(pool.begun_before(9.9)) == []
    assert list(pool.begun_before(10.0)) == [first]
    assert list(pool.begun_before(25.0)) == [first, second]


def test_a_pool_works_without_anybody_watching() -> None:
    pool = Pool("a", 1)
    pool.release(pool.assign(lease(1), 0.0))
    pool.fail(pool.assign(lease(1), 0.0), "x")

    assert pool.replace_failed() == 1
