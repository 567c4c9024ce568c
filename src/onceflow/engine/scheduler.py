"""The scheduler: what to claim, and when.

A stage is hungry when there may be something to claim: at the start, after a wake-up, after a
claim that gave all it was asked for, and at the safety scan. A stage with a limit or lanes is
claimed only into free processors, so that a lease never waits here while it uses up the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceflow.core.pipeline import Pipeline, Stage
from onceflow.engine.attempt import Way
from onceflow.engine.pool import Pool
from onceflow.engine.queue import Queues, StageKey
from onceflow.store.base import Claim, Claimed

CLAIM_SPLIT = 100
"""A larger claim is made in batches, so that one is worked on while another is asked for."""


@dataclass(slots=True, eq=False)
class Plan:
    """One stage as this process works on it."""

    pipeline: Pipeline
    stage: Stage
    before: str
    pool: Pool
    key: StageKey
    way: Way
    ends: bool = False
    """Nobody waits for what ends here: nothing follows, and no place is freed."""
    hungry: bool = True
    guessing: bool = False
    """Hungry only because a claim under way may find more than it asks for; its answer will say."""
    reserved: int = 0
    """Room that a claim under way may fill."""
    turn: int = 0
    lane: str = ""
    opens_at: float | None = None
    """When a lane that was shut opens, on the loop's clock."""
    assigned_at: float = float("-inf")

    def wish(self, count: int, item: int | None = None) -> Claim:
        self.turn += 1
        return Claim(
            self.pipeline.name, self.stage.name, self.before, count, self.turn, self.lane, item
        )


class Scheduler:
    """Knows the stages of this process and which of them are hungry."""

    def __init__(self, plans: Iterable[Plan], queues: Queues) -> None:
        self.plans = {plan.key: plan for plan in plans}
        self._queues = queues

    def wake(self, key: StageKey | None = None) -> None:
        """There may be something to claim, in one stage or in any."""
        plans = self.plans.values() if key is None else (self.plans[key],)
        for plan in plans:
            plan.hungry, plan.guessing = True, False

    def room(self, plan: Plan) -> int:
        """How many more leases of a stage can be taken in here."""
        queued = self._queues.size(plan.key) + plan.reserved
        free = plan.pool.idle - queued
        wanted = free if plan.stage.bounded else free + plan.stage.batch
        return min(wanted, self._queues.most - queued)

    def room_unasked(self, key: StageKey) -> int:
        """How many items of a stage may be taken in here without a claim's look at whose turn it
        is: none while somebody may be waiting for that stage, or bounds are to be counted."""
        plan = self.plans.get(key)
        return 0 if plan is None or plan.hungry or plan.stage.bounded else self.room(plan)

    def wishes(self, now: float) -> list[tuple[Plan, Claim]]:
        """What to ask for now; the room is reserved until `took` or `gave_up`. Where there is room
        for another large batch meanwhile, it is asked for beside the first."""
        wishes: list[tuple[Plan, Claim]] = []
        for plan in self.plans.values():
            if plan.opens_at is not None and plan.opens_at <= now:
                plan.opens_at = None
                self.wake(plan.key)
            large = max(plan.stage.batch, CLAIM_SPLIT)
            if plan.hungry and (room := self.room(plan)) >= (large if plan.guessing else 1):
                count = min(room, large)
                plan.reserved += count
                plan.guessing = True
                wishes.append((plan, plan.wish(count)))
        return wishes

    def took(self, plan: Plan, wish: Claim, claimed: Claimed, now: float) -> None:
        """A claim was answered."""
        plan.reserved -= wish.count
        plan.lane = claimed.lane
        if claimed.more:
            self.wake(plan.key)
        elif plan.guessing:
            plan.hungry = plan.guessing = False
        if claimed.opens_in_ms is not None:
            opens_at = now + claimed.opens_in_ms / 1000
            plan.opens_at = min(opens_at, plan.opens_at or opens_at)

    def gave_up(self, plan: Plan, wish: Claim) -> None:
        """A claim got no answer: ask again."""
        plan.reserved -= wish.count
        self.wake(plan.key)

    def opens_at(self) -> float | None:
        """When the next shut lane opens."""
        times = [plan.opens_at for plan in self.plans.values() if plan.opens_at is not None]
        return min(times, default=None)

    def waits(self, now: float, freed: Mapping[StageKey, int]) -> bool:
        """Whether a claim should not wait: a stage may have something for processors that idle
        longer than those that were `freed` a moment ago, or a shut lane opens."""
        for plan in self.plans.values():
            if plan.opens_at is not None and plan.opens_at <= now:
                return True
            if plan.hungry and not plan.guessing:
                queued = self._queues.size(plan.key) + plan.reserved
                if plan.pool.idle - queued > freed.get(plan.key, 0):
                    return True
        return False

    def any_room(self) -> bool:
        """Whether a hungry stage could take something in."""
        return any(plan.hungry and self.room(plan) > 0 for plan in self.plans.values())
