"""The scheduler and the coordinator: what is asked for, and who gets it, in which order."""

from typing import Any

import pytest

from onceflow import Lane, Pipeline, Stage
from onceflow.engine.attempt import Way
from onceflow.engine.coordinator import Coordinator
from onceflow.engine.pool import Pool
from onceflow.engine.queue import Queues
from onceflow.engine.scheduler import Plan, Scheduler
from onceflow.store.base import Claim, Claimed
from tests.engine.kit import ok
from tests.engine.test_queue import lease


def scheduler_of(*stages: Stage, queue_max: int = 1000) -> tuple[Scheduler, Queues]:
    pipeline = Pipeline("news", *stages)
    plans = [
        Plan(
            pipeline, stage, "", Pool(stage.name, stage.processors), ("news", stage.name), Way.LOOP
        )
        for stage in pipeline.stages
    ]
    queues = Queues([plan.key for plan in plans], queue_max)
    return Scheduler(plans, queues), queues


def plan_of(scheduler: Scheduler, stage: str) -> Plan:
    return scheduler.plans["news", stage]


def counts(wishes: list[tuple[Plan, Claim]]) -> dict[str, int]:
    return {wish.stage: wish.count for _, wish in wishes}


# --- what to claim ---


def test_a_stage_is_claimed_into_its_processors_and_a_batch_of_ten_more() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))

    assert counts(scheduler.wishes(0)) == {"a": 20}


@pytest.mark.parametrize("rules", [{"limit": 8}, {"lane": Lane(str)}])
def test_a_bounded_stage_is_claimed_only_into_free_processors(rules: dict[str, Any]) -> None:
    scheduler, queues = scheduler_of(Stage("a", ok, processors=4, **rules))
    plan = plan_of(scheduler, "a")

    assert counts(scheduler.wishes(0)) == {"a": 4}
    scheduler.took(plan, plan.wish(4), Claimed([]), 0)
    busy = [plan.pool.assign(lease(item, plan.key), 0.0) for item in (1, 2, 3)]
    queues.enqueue(lease(4, plan.key))
    plan.hungry = True

    assert counts(scheduler.wishes(0)) == {}, "the queued one will use the last processor"
    for processor in busy[:2]:
        plan.pool.release(processor)
    assert counts(scheduler.wishes(0)) == {"a": 2}


def test_a_large_claim_is_made_in_batches_beside_each_other() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=500, batch=500))
    plan = plan_of(scheduler, "a")

    [(_, first)] = scheduler.wishes(0)
    [(_, second)] = scheduler.wishes(0)

    assert (first.count, second.count) == (500, 500)
    assert counts(scheduler.wishes(0)) == {}, "there is no more room"
    scheduler.took(plan, first, Claimed([], more=False), 0)
    assert counts(scheduler.wishes(0)) == {}, "nothing is left to claim"
    scheduler.took(plan, second, Claimed([], more=True), 0)
    assert counts(scheduler.wishes(0)) == {"a": 500}


def test_room_for_a_small_batch_is_not_asked_for_while_a_claim_is_under_way() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=500, batch=500))
    plan = plan_of(scheduler, "a")
    busy = [plan.pool.assign(lease(item, plan.key), 0.0) for item in range(1, 501)]
    [(_, first)] = scheduler.wishes(0)
    assert first.count == 500, "a batch ahead"

    for processor in busy[:499]:
        plan.pool.release(processor)
    assert counts(scheduler.wishes(0)) == {}
    plan.pool.release(busy[499])
    assert counts(scheduler.wishes(0)) == {"a": 500}, "a whole batch more"


def test_the_answer_that_nothing_is_left_ends_a_guess_but_not_a_wake_up() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=500, batch=500))
    plan = plan_of(scheduler, "a")

    [(_, first)] = scheduler.wishes(0)
    scheduler.took(plan, first, Claimed([], more=False), 0)
    assert counts(scheduler.wishes(0)) == {}

    scheduler.wake(plan.key)
    [(_, second)] = scheduler.wishes(0)
    scheduler.wake(plan.key)
    scheduler.took(plan, second, Claimed([], more=False), 0)
    assert counts(scheduler.wishes(0)) == {"a": 500}, "something came in meanwhile"


def test_items_go_on_unasked_only_into_an_unbounded_stage_that_nobody_waits_for() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, limit=4), Stage("b", ok), queue_max=15)
    a, b = plan_of(scheduler, "a").key, plan_of(scheduler, "b").key

    assert scheduler.room_unasked(b) == 0, "it may be hungry"
    [(_, _), (plan, wish)] = scheduler.wishes(0)
    scheduler.took(plan, wish, Claimed([]), 0)

    assert scheduler.room_unasked(b) == 15
    assert scheduler.room_unasked(a) == 0
    assert scheduler.room_unasked(("news", "elsewhere")) == 0


def test_no_claim_goes_beyond_the_local_queue() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, processors=2, batch=50), queue_max=5)

    assert counts(scheduler.wishes(0)) == {"a": 5}


def test_a_stage_is_asked_for_once_until_it_is_hungry_again() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok))

    [(plan, wish), _] = scheduler.wishes(0)
    assert counts(scheduler.wishes(0)) == {}
    scheduler.took(plan, wish, Claimed([], more=False), 0)
    assert counts(scheduler.wishes(0)) == {}
    assert not scheduler.any_room()

    scheduler.wake(("news", "a"))
    assert scheduler.any_room()
    assert counts(scheduler.wishes(0)) == {"a": 20}


def test_a_claim_that_left_something_behind_is_followed_by_another() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))
    [(plan, wish)] = scheduler.wishes(0)
    scheduler.took(plan, wish, Claimed([], more=True), 0)

    assert counts(scheduler.wishes(0)) == {"a": 20}


def test_room_is_reserved_while_a_claim_is_under_way_and_free_again_when_it_is_given_up() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))
    [(plan, wish)] = scheduler.wishes(0)

    assert scheduler.room(plan) <= 0
    scheduler.gave_up(plan, wish)
    assert counts(scheduler.wishes(0)) == {"a": 20}


def test_a_wake_up_makes_every_stage_hungry() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok), Stage("b", ok))
    for plan, wish in scheduler.wishes(0):
        scheduler.took(plan, wish, Claimed([]), 0)
    scheduler.wake()

    assert counts(scheduler.wishes(0)) == {"a": 20, "b": 20}


def test_a_shut_lane_is_asked_again_when_it_opens() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, lane=Lane(str)))
    assert scheduler.opens_at() is None
    [(plan, wish)] = scheduler.wishes(0)
    scheduler.took(plan, wish, Claimed([], "z.test", opens_in_ms=1500), 10)

    assert scheduler.opens_at() == 11.5
    assert counts(scheduler.wishes(11.4)) == {}
    [(_, again)] = scheduler.wishes(11.5)
    assert again.lane == "z.test", "the lanes after the last one have their turn"
    assert scheduler.opens_at() is None


def test_the_lane_that_opens_first_counts() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok, lane=Lane(str)))
    plan = plan_of(scheduler, "a")
    for ms in (1500, 500, 900):
        scheduler.took(plan, plan.wish(0), Claimed([], opens_in_ms=ms), 0)

    assert scheduler.opens_at() == 0.5


def test_each_claim_is_another_runs_turn() -> None:
    scheduler, _ = scheduler_of(Stage("a", ok))
    plan = plan_of(scheduler, "a")

    assert [plan.wish(1).turn for _ in range(3)] == [1, 2, 3]
    assert plan.wish(1, 77).item == 77


# --- who gets it ---


def queue_up(scheduler: Scheduler, queues: Queues, count: int) -> None:
    for position, plan in enumerate(scheduler.plans.values()):
        for item in range(count):
            queues.enqueue(lease(position * 1000 + item, plan.key))


def assigned(coordinator: Coordinator, now: float) -> list[str]:
    return [given.stage for _, _, given in coordinator.assign(now)]


def test_stages_are_served_in_the_order_of_the_table() -> None:
    stages = [Stage(name, ok, processors=2) for name in ("website", "prompt", "model")]
    scheduler, queues = scheduler_of(*stages)
    queue_up(scheduler, queues, 3)

    given = assigned(Coordinator(scheduler, queues, 0.1), 0.0)

    assert given == ["website"] * 2 + ["prompt"] * 2 + ["model"] * 2


def test_a_throttled_stage_is_given_three_a_cycle_and_cycles_are_apart() -> None:
    scheduler, queues = scheduler_of(Stage("a", ok, assign_max=3), Stage("b", ok))
    queue_up(scheduler, queues, 5)
    coordinator = Coordinator(scheduler, queues, 0.1)

    assert assigned(coordinator, 10.0) == ["a"] * 3 + ["b"] * 5
    assert coordinator.next_at(10.0) == 10.1
    assert assigned(coordinator, 10.09) == []
    assert assigned(coordinator, 10.1) == ["a"] * 2
    assert coordinator.next_at(10.1) is None, "nothing is queued any more"


def test_without_an_idle_processor_nothing_is_assigned_and_no_cycle_begins() -> None:
    scheduler, queues = scheduler_of(Stage("a", ok, assign_max=3, processors=1))
    queue_up(scheduler, queues, 2)
    coordinator = Coordinator(scheduler, queues, 0.1)
    [(plan, processor, _)] = list(coordinator.assign(0.0))

    assert assigned(coordinator, 5.0) == []
    assert coordinator.next_at(5.0) is None
    plan.pool.release(processor)
    assert coordinator.next_at(5.0) == 5.0
    assert assigned(coordinator, 5.0) == ["a"]
