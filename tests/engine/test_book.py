"""The book of leases: what is queued, under way, over; and each of the four refusals."""

from typing import Any

import pytest

from onceflow import Done, Pipeline, Stage
from onceflow.core.item import Lease
from onceflow.core.transition import Released
from onceflow.engine.attempt import Way
from onceflow.engine.book import Book, Entry, Refusal, State
from onceflow.engine.pool import Pool
from onceflow.engine.scheduler import Plan

FIRST, SECOND = ("news", "scrape"), ("news", "summarize")


async def ok(work: Any) -> None:
    return None


PIPELINE = Pipeline("news", *[Stage(stage, ok) for _, stage in (FIRST, SECOND)])
PLANS = {
    (PIPELINE.name, stage.name): Plan(
        PIPELINE, stage, "", Pool(stage.name, 1), (PIPELINE.name, stage.name), Way.LOOP
    )
    for stage in PIPELINE.stages
}


def lease(item: int, stage: tuple[str, str] = FIRST, **other: Any) -> Lease:
    values: dict[str, Any] = {"fence": 1, "attempt": 1, "generation": 1, "run": "r", "depth": 0}
    values |= other
    values.setdefault("ticket", 7)
    return Lease(
        item=item, pipeline=stage[0], key=f"k{item}", stage=stage[1], claimed_at=0, data=None,
        **values,
    )  # fmt: skip


def entry(item: int, stage: tuple[str, str] = FIRST, **other: Any) -> Entry:
    return Entry(lease(item, stage, **other), PLANS[stage])


@pytest.fixture
def book() -> Book:
    return Book([FIRST, SECOND], 3)


def taken(book: Book, *entries: Entry) -> list[Entry]:
    for one in entries:
        assert book.take_in(one) is None
    return list(entries)


def begun(book: Book, *entries: Entry) -> list[Entry]:
    taken(book, *entries)
    for one in entries:
        assert book.next(one.plan.key) is one
        one.state = State.RUNNING
    return list(entries)


# --- the queues ---


def test_a_queue_gives_out_what_it_took_in_the_same_order(book: Book) -> None:
    entries = taken(book, entry(1), entry(2), entry(3))

    assert [book.next(FIRST) for _ in range(4)] == [*entries, None]


def test_an_item_that_is_queued_already_is_refused(book: Book) -> None:
    taken(book, entry(1))

    assert book.take_in(entry(1, fence=2)) is Refusal.QUEUED
    assert book.size(FIRST) == 1


def test_an_item_that_is_being_processed_is_refused(book: Book) -> None:
    [one] = begun(book, entry(1))

    assert book.take_in(entry(1, fence=2)) is Refusal.PROCESSING
    assert book.take_in(entry(1, SECOND, fence=2)) is Refusal.PROCESSING

    book.ended(one, Done())
    assert book.take_in(entry(1, SECOND, fence=2)) is None, "a new lease says the old one is over"


def test_an_item_that_is_queued_in_another_stage_is_refused(book: Book) -> None:
    taken(book, entry(1))

    assert book.take_in(entry(1, SECOND, fence=2)) is Refusal.ELSEWHERE
    assert (book.size(FIRST), book.size(SECOND)) == (1, 0)


def test_a_full_queue_refuses_and_the_others_do_not(book: Book) -> None:
    taken(book, entry(1), entry(2), entry(3))

    assert book.take_in(entry(4)) is Refusal.FULL
    assert book.take_in(entry(4, SECOND)) is None


def test_every_refusal_is_counted_with_its_reason(book: Book) -> None:
    for item in (1, 2, 3, 3, 4):
        book.take_in(entry(item))
    book.take_in(entry(2, SECOND))
    running = book.next(FIRST)
    assert running is not None
    running.state = State.RUNNING
    book.take_in(entry(1))

    assert {reason.value: count for reason, count in book.refused.items()} == {
        "already queued": 1,
        "queue full": 1,
        "queued in another stage": 1,
        "being processed": 1,
    }


# --- from the beginning to the end ---


def test_what_was_refused_is_remembered_only_to_be_given_back(book: Book) -> None:
    refused = entry(1, fence=2)
    book.give_back(refused, Released("no room"))

    assert book.of(1) is None
    assert book.take_ended() == [refused]
    assert refused.outcome == Released("no room")


def test_what_ended_is_sent_at_once_and_in_its_order(book: Book) -> None:
    first, second = begun(book, entry(1), entry(2))
    book.ended(second, Done(2), 0.5)
    book.ended(first, Done(1))

    assert book.has_ended
    assert book.take_ended() == [second, first]
    assert [one.state for one in (first, second)] == [State.SENT, State.SENT]
    assert (second.seconds, second.outcome) == (0.5, Done(2))
    assert not book.has_ended
    assert book.take_ended() == []


def test_what_got_no_answer_is_asked_for_before_what_ended_meanwhile(book: Book) -> None:
    first, second, third = begun(book, entry(1), entry(2), entry(3))
    book.ended(first, Done())
    book.ended(second, Done())
    sent = book.take_ended()
    book.ended(third, Done())
    book.back(sent)

    assert book.take_ended() == [first, second, third]


def test_what_the_store_refused_with_others_is_sent_alone(book: Book) -> None:
    first, second, third = begun(book, entry(1), entry(2), entry(3))
    for one in (first, second, third):
        book.ended(one, Done())
    second.alone = third.alone = True

    assert [book.take_ended() for _ in range(4)] == [[second], [third], [first], []]


def test_a_lease_that_ended_in_the_queue_leaves_it(book: Book) -> None:
    first, second = taken(book, entry(1), entry(2))
    book.ended(first, Released("the worker stopped"))

    assert book.waiting(FIRST) == [second]
    assert book.of(1) is None


@pytest.mark.parametrize("queued", [True, False])
def test_a_lost_lease_is_forgotten_alone(book: Book, queued: bool) -> None:
    first, second = taken(book, entry(1), entry(2)) if queued else begun(book, entry(1), entry(2))
    book.forget(first)

    assert first.state is State.GONE
    assert book.marks() == {second.mark}
    assert book.alive() == [second]
    assert book.waiting() == ([second] if queued else [])
    assert book.take_in(entry(1)) is None


def test_leases_of_one_item_are_told_apart_by_fence_and_ticket(book: Book) -> None:
    """A database that lost its last commits gives ids and fences again; a ticket is not."""
    [old] = begun(book, entry(1, fence=5, ticket=100))
    book.ended(old, Done("of the old lease"))
    again = entry(1, fence=5, ticket=200)

    assert book.take_in(again) is None
    assert book.marks() == {(1, 5, 100), (1, 5, 200)}
    assert book.get(again.lease) is again
    assert book.get(old.lease) is old
    book.forget(old)
    assert book.of(1) is again


def test_it_is_known_whether_anything_of_a_run_is_under_way(book: Book) -> None:
    [first] = begun(book, entry(1))
    [second] = begun(book, entry(2))
    book.ended(first, Done())
    book.take_ended()
    book.forget(first)
    assert book.has_run("r")

    book.forget(second)
    assert not book.has_run("r")
    assert len(book) == 0
