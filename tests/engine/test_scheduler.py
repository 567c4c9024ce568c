"""The scheduler and the coordinator: what is asked for, and who gets it, in which order."""

import asyncio
from typing import Any

import pytest

from onceflow import Lane, Pipeline, Stage
from onceflow.core.item import Phase
from onceflow.core.transition import PLAINLY_FINISHED, Done, Transition
from onceflow.engine.attempt import Way
from onceflow.engine.book import Book, Entry
from onceflow.engine.coordinator import Coordinator
from onceflow.engine.pool import Pool
from onceflow.engine.scheduler import Plan, Scheduler, Wish
from onceflow.store.base import Claimed
from tests.engine.kit import ok
from tests.engine.test_book import lease


def scheduler_of(*stages: Stage, queue_max: int = 1000) -> tuple[Scheduler, Book]:
    pipeline = Pipeline("news", *stages)
    plans = [
        Plan(
            pipeline, stage, "", Pool(stage.name, stage.processors), ("news", stage.name), Way.LOOP
        )
        for stage in pipeline.stages
    ]
    book = Book([plan.key for plan in plans], queue_max)
    return Scheduler(plans, book), book


def plan_of(scheduler: Scheduler, stage: str) -> Plan:
    return scheduler.plans["news", stage]


def counts(wishes: list[Wish]) -> dict[str, int]:
    return {wish.claim.stage: wish.claim.count for wish in wishes}


def settle(scheduler: Scheduler, **answer: Any) -> None:
    """Ask for everything and answer that nothing is there."""
    for wish in scheduler.wishes(0):
        scheduler.answered(wish, Claimed([], **answer), 0)


# --- what to claim ---


def test_no_more_is_claimed_than_can_begin_at_once() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok, processors=3))

    assert counts(scheduler.wishes(0)) == {"a": 10, "b": 3}


def test_a_stage_that_asks_for_it_is_claimed_beyond_its_processors_too() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=4, batch=50, prefetch=6))

    [wish] = scheduler.wishes(0)
    assert wish.claim.count == 10
    assert wish.claim.prefetch, "each is begun by a word of its own"


@pytest.mark.parametrize("rules", [{"limit": 8}, {"lane": Lane(str)}])
def test_a_bounded_stage_is_claimed_only_into_free_processors(rules: dict[str, Any]) -> None:
    stage = Stage("a", ok, processors=4, prefetch=10, **rules)
    scheduler, book = scheduler_of(stage)
    plan = plan_of(scheduler, "a")

    [wish] = scheduler.wishes(0)
    assert wish.claim.count == 4
    scheduler.answered(wish, Claimed([]), 0)
    busy = [plan.pool.assign(lease(item, plan.key), 0.0) for item in (1, 2, 3)]
    book.take_in(Entry(lease(4, plan.key), plan))
    plan.hungry = True

    assert counts(scheduler.wishes(0)) == {}, "the queued one will use the last processor"
    for processor in busy[:2]:
        plan.pool.release(processor)
    assert counts(scheduler.wishes(0)) == {"a": 2}


def test_a_large_pool_is_claimed_for_in_halves_beside_each_other_if_there_is_more() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=500))

    [first] = scheduler.wishes(0)
    assert first.claim.count == 250
    assert counts(scheduler.wishes(0)) == {}, "its answer will say whether there is more"
    scheduler.answered(first, Claimed([], more=True), 0)
    [second] = scheduler.wishes(0)
    [third] = scheduler.wishes(0)
    assert (second.claim.count, third.claim.count) == (250, 250)
    assert counts(scheduler.wishes(0)) == {}, "there is no more room"
    scheduler.answered(second, Claimed([], more=False), 0)
    assert counts(scheduler.wishes(0)) == {}, "nothing is left to claim"
    scheduler.answered(third, Claimed([], more=False), 0)
    assert counts(scheduler.wishes(0)) == {}


def test_an_answer_that_nothing_is_left_does_not_undo_a_wake_up_that_came_meanwhile() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))
    plan = plan_of(scheduler, "a")

    [first] = scheduler.wishes(0)
    scheduler.wake(plan.key)
    scheduler.answered(first, Claimed([], more=False), 0)

    assert counts(scheduler.wishes(0)) == {"a": 10}, "something came in meanwhile"


def finished(stage: str) -> Transition:
    return Transition(stage, Phase.READY, 0, events=PLAINLY_FINISHED)


def test_items_go_on_only_into_an_unbounded_stage_that_nobody_waits_for() -> None:
    scheduler, _ = scheduler_of(
        Stage("a", ok), Stage("b", ok, processors=2), Stage("c", ok, limit=4),
        Stage("d", ok, prefetch=5), Stage("e", ok),
    )  # fmt: skip
    a, b, c, d, e = scheduler.plans.values()

    assert not scheduler.reserve_next(a, finished("b")), "it may be hungry"
    settle(scheduler)
    assert scheduler.reserve_next(a, finished("b"))
    assert scheduler.reserve_next(a, finished("b"))
    assert not scheduler.reserve_next(a, finished("b")), "there is no more room"
    assert not scheduler.reserve_next(b, finished("c")), "it is bounded"
    assert not scheduler.reserve_next(c, finished("d")), "it would wait in the queue"
    assert scheduler.reserve_next(d, finished("e"))
    e.paused = "its handler says so"
    assert not scheduler.reserve_next(d, finished("e"))
    assert not scheduler.reserve_next(a, finished("a")), "it stays where it is"


def test_who_frees_a_place_under_a_limit_wakes_the_stage_declared_or_not() -> None:
    """An operator's limit is known by the claim that met it."""
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok, limit=3))
    settle(scheduler)
    a, b = scheduler.plans.values()
    done = Transition("a", Phase.DONE, 1)
    scheduler.wake_after([(a, done, False)])
    assert not a.hungry

    scheduler.wake(a.key)
    settle(scheduler, full=True)
    scheduler.wake_after([(a, done, False), (b, done, False)])

    assert (a.hungry, b.hungry) == (True, True)


def test_what_becomes_ready_wakes_its_stage_but_not_where_it_goes_on_or_is_looked_at() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok))
    settle(scheduler)
    a, b = scheduler.plans.values()

    scheduler.wake_after([(a, finished("b"), True)])
    assert not b.hungry, "it went on by itself"
    scheduler.wake_after([(a, finished("b"), False)], but={b.key})
    assert not b.hungry, "the claim of the same transaction has seen it"
    scheduler.wake_after([(a, finished("b"), False)])
    assert b.hungry


def test_no_claim_goes_beyond_the_local_queue() -> None:
    stage = Stage("a", ok, processors=2, batch=50, prefetch=50)
    scheduler, _ = scheduler_of(stage, queue_max=5)

    assert counts(scheduler.wishes(0)) == {"a": 5}


def test_a_stage_is_asked_for_once_until_it_is_hungry_again() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok))

    wish, other = scheduler.wishes(0)
    assert counts(scheduler.wishes(0)) == {}
    scheduler.answered(wish, Claimed([], more=False), 0)
    scheduler.answered(other, Claimed([], more=False), 0)
    assert counts(scheduler.wishes(0)) == {}
    assert not scheduler.any_room()

    scheduler.wake(("news", "a"))
    assert scheduler.any_room()
    assert counts(scheduler.wishes(0)) == {"a": 10}


def test_a_claim_without_an_answer_is_asked_for_again() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))
    [wish] = scheduler.wishes(0)

    assert scheduler.room(wish.plan) <= 0
    scheduler.gave_up(wish)
    assert counts(scheduler.wishes(0)) == {"a": 10}


def test_a_wake_up_makes_every_stage_hungry() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok))
    settle(scheduler)
    scheduler.wake()

    assert counts(scheduler.wishes(0)) == {"a": 10, "b": 10}


def test_a_stage_that_its_handler_paused_is_not_asked_for() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok))
    plan_of(scheduler, "a").paused = "no key"

    assert counts(scheduler.wishes(0)) == {"b": 10}
    assert scheduler.any_room(), "it is not over while the database does not know"


def test_a_shut_lane_is_asked_again_when_it_opens() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, lane=Lane(str)))
    assert scheduler.opening_times() == []
    [wish] = scheduler.wishes(0)
    scheduler.answered(wish, Claimed([], "z.test", opens_in_ms=1500), 10)

    assert scheduler.opening_times() == [11.5]
    assert counts(scheduler.wishes(11.4)) == {}
    [again] = scheduler.wishes(11.5)
    assert again.claim.lane == "z.test", "the lanes after the last one have their turn"
    assert scheduler.opening_times() == []


def test_the_lane_that_opens_first_counts() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, lane=Lane(str)))
    plan = plan_of(scheduler, "a")
    for ms in (1500, 500, 900):
        scheduler.answered(scheduler.wish(plan, 0), Claimed([], opens_in_ms=ms), 0)

    assert scheduler.opening_times() == [0.5]


def test_each_claim_is_another_runs_turn() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))
    plan = plan_of(scheduler, "a")

    assert [scheduler.wish(plan, 1).claim.turn for _ in range(3)] == [1, 2, 3]


# --- items asked for by name ---


async def test_who_asks_by_name_hears_whether_it_is_worked_on_here() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=2))
    settle(scheduler)
    plan = plan_of(scheduler, "a")

    got, missed = scheduler.named(plan, 77), scheduler.named(plan, 78)
    first, second = scheduler.wishes(0)
    assert (first.claim.item, second.claim.item) == (77, 78)
    later = scheduler.named(plan, 79)
    assert scheduler.wishes(0) == []
    assert not later.done(), "the claims under way may leave room for it"
    scheduler.answered(first, Claimed([lease(77, plan.key)]), 0)
    scheduler.answered(second, Claimed([]), 0)
    [third] = scheduler.wishes(0)
    scheduler.answered(third, Claimed([lease(79, plan.key)]), 0)

    assert await asyncio.gather(got, missed, later) == [True, False, True]
    assert not plan.hungry, "one item says nothing about the others"


async def test_who_asks_by_name_hears_at_once_that_no_processor_is_free() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=1))
    settle(scheduler)
    plan = plan_of(scheduler, "a")
    plan.pool.assign(lease(76, plan.key), 0)

    answer = scheduler.named(plan, 77)

    assert scheduler.wishes(0) == []
    assert await answer is False


async def test_who_got_no_answer_hears_when_what_is_held_was_read() -> None:
    scheduler, book = scheduler_of(Stage("a", ok))
    plan = plan_of(scheduler, "a")
    asked = [scheduler.named(plan, item) for item in (1, 2)]
    for wish in scheduler.wishes(0):
        scheduler.gave_up(wish)
    assert not any(one.done() for one in asked)

    book.take_in(Entry(lease(2, plan.key), plan))
    scheduler.answer_named()

    assert [one.result() for one in asked] == [False, True]


async def test_at_the_end_nobody_is_left_waiting() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))
    asked = scheduler.named(plan_of(scheduler, "a"), 1)

    scheduler.end()

    assert not asked.result()


# --- who gets it ---


def queue_up(scheduler: Scheduler, book: Book, count: int) -> None:
    for position, plan in enumerate(scheduler.plans.values()):
        for item in range(count):
            book.take_in(Entry(lease(position * 1000 + item, plan.key), plan))


def assigned(coordinator: Coordinator, now: float) -> list[str]:
    return [given.lease.stage for given in coordinator.assign(now)]


def test_stages_are_served_in_the_order_of_the_table() -> None:
    stages = [Stage(name, ok, processors=2) for name in ("website", "prompt", "model")]
    scheduler, book = scheduler_of(*stages)
    queue_up(scheduler, book, 3)

    given = assigned(Coordinator(scheduler, book, 0.1), 0.0)

    assert given == ["website"] * 2 + ["prompt"] * 2 + ["model"] * 2


def test_what_must_run_alone_waits_for_all_else_and_nothing_is_claimed_meanwhile() -> None:
    scheduler, book = scheduler_of(Stage("a", ok), Stage("b", ok))
    coordinator = Coordinator(scheduler, book, 0.1)
    a, b = plan_of(scheduler, "a"), plan_of(scheduler, "b")
    other = Entry(lease(1, b.key), b)
    lonely = [Entry(lease(item, a.key)._replace(alone=True), a) for item in (2, 3)]
    asked, beside = scheduler.wishes(0)
    for one in (*lonely, other):
        assert book.take_in(one) is None

    assert list(coordinator.assign(0)) == [other], "what was begun with its claim goes first"
    assert scheduler.wishes(0) == []
    book.ended(other, Done())
    assert list(coordinator.assign(0)) == [], "a claim under way may bring more"
    scheduler.answered(asked, Claimed([]), 0)
    scheduler.answered(beside, Claimed([]), 0)
    for one in lonely:
        assert list(coordinator.assign(0)) == [one]
        assert list(coordinator.assign(0)) == []
        assert scheduler.wishes(0) == []
        book.ended(one, Done())
    scheduler.wake()
    assert len(scheduler.wishes(0)) == 2, "all is as before"


def test_a_throttled_stage_is_given_three_a_cycle_and_cycles_are_apart() -> None:
    scheduler, book = scheduler_of(Stage("a", ok, assign_max=3), Stage("b", ok))
    queue_up(scheduler, book, 5)
    coordinator = Coordinator(scheduler, book, 0.1)

    assert assigned(coordinator, 10.0) == ["a"] * 3 + ["b"] * 5
    assert coordinator.next_at(10.0) == 10.1
    assert assigned(coordinator, 10.09) == []
    assert assigned(coordinator, 10.1) == ["a"] * 2
    assert coordinator.next_at(10.1) is None, "nothing is queued any more"


def test_without_an_idle_processor_nothing_is_assigned_and_no_cycle_begins() -> None:
    scheduler, book = scheduler_of(Stage("a", ok, assign_max=3, processors=1))
    queue_up(scheduler, book, 2)
    coordinator = Coordinator(scheduler, book, 0.1)
    [given] = list(coordinator.assign(0.0))

    assert assigned(coordinator, 5.0) == []
    assert coordinator.next_at(5.0) is None
    assert given.processor is not None
    given.plan.pool.release(given.processor)
    assert coordinator.next_at(5.0) == 5.0
    assert assigned(coordinator, 5.0) == ["a"]
