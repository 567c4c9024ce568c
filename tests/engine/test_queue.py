"""The local queues: bounded, and each of the four refusals has its reason."""

from typing import Any

import pytest

from onceflow.core.item import Lease
from onceflow.engine.queue import Queues, Refusal

FIRST, SECOND = ("news", "scrape"), ("news", "summarize")


def lease(item: int, stage: tuple[str, str] = FIRST, **other: Any) -> Lease:
    values: dict[str, Any] = {"fence": 1, "attempt": 1, "generation": 1, "run": "r", "depth": 0}
    values |= other
    return Lease(
        item=item, pipeline=stage[0], key=f"k{item}", stage=stage[1], claimed_at=0, data=None,
        **values,
    )  # fmt: skip


@pytest.fixture
def queues() -> Queues:
    return Queues([FIRST, SECOND], 3)


def test_a_queue_gives_out_what_it_took_in_the_same_order(queues: Queues) -> None:
    for item in (1, 2, 3):
        assert queues.enqueue(lease(item)) is None

    taken = [queues.take(FIRST) for _ in range(4)]

    assert [each and each.item for each in taken] == [1, 2, 3, None]


def test_what_was_asked_for_by_name_goes_first(queues: Queues) -> None:
    queues.enqueue(lease(1))
    queues.enqueue(lease(2), first=True)

    assert queues.take(FIRST) == lease(2)


def test_an_item_that_is_queued_already_is_refused(queues: Queues) -> None:
    queues.enqueue(lease(1))

    assert queues.enqueue(lease(1, fence=2)) is Refusal.QUEUED
    assert queues.size(FIRST) == 1


def test_an_item_that_is_being_processed_is_refused(queues: Queues) -> None:
    queues.enqueue(lease(1))
    queues.take(FIRST)

    assert queues.enqueue(lease(1)) is Refusal.PROCESSING
    assert queues.enqueue(lease(1, SECOND)) is Refusal.PROCESSING

    queues.finished(1)
    assert queues.enqueue(lease(1, SECOND)) is None


def test_an_item_that_is_queued_in_another_stage_is_refused(queues: Queues) -> None:
    queues.enqueue(lease(1))

    assert queues.enqueue(lease(1, SECOND)) is Refusal.ELSEWHERE
    assert (queues.size(FIRST), queues.size(SECOND)) == (1, 0)


def test_a_full_queue_refuses_and_the_others_do_not(queues: Queues) -> None:
    for item in (1, 2, 3):
        queues.enqueue(lease(item))

    assert queues.enqueue(lease(4)) is Refusal.FULL
    assert queues.enqueue(lease(4, SECOND)) is None


def test_every_refusal_is_counted_with_its_reason(queues: Queues) -> None:
    for item in (1, 2, 3, 3, 4):
        queues.enqueue(lease(item))
    queues.enqueue(lease(2, SECOND))
    queues.take(FIRST)
    queues.enqueue(lease(1))

    assert {reason.value: count for reason, count in queues.refused.items()} == {
        "already queued": 1,
        "queue full": 1,
        "queued in another stage": 1,
        "being processed": 1,
    }


def test_a_queue_knows_what_it_holds(queues: Queues) -> None:
    queues.enqueue(lease(1))
    queues.enqueue(lease(2))
    queues.take(FIRST)

    assert [queues.holds(item) for item in (1, 2, 3)] == [True, True, False]
    assert len(queues) == 1


def test_a_lost_lease_is_dropped_from_its_queue_alone(queues: Queues) -> None:
    for item in (1, 2):
        queues.enqueue(lease(item))

    assert queues.drop(1)
    assert not queues.drop(1)
    assert queues.take(FIRST) == lease(2)
    assert queues.enqueue(lease(1)) is None


def test_at_a_stop_everything_queued_is_taken_out(queues: Queues) -> None:
    queues.enqueue(lease(1))
    queues.enqueue(lease(2, SECOND))

    assert {each.item for each in queues.empty()} == {1, 2}
    assert len(queues) == 0
    assert queues.take(FIRST) is None
    assert queues.enqueue(lease(1)) is None
