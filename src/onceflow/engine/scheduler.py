"""The scheduler: what to claim, and when.

A stage is hungry when there may be something to claim: at the start, after a wake-up, after a
claim that gave all it was asked for, and at the safety scan. A stage with a limit or lanes is
claimed only into free processors, so that a lease never waits here while it uses up the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onceflow.core.pipeline import Pipeline, Stage
from onceflow.engine.attempt import Way
from onceflow.engine.pool import Pool
from onceflow.engine.queue import Queues, StageKey
from onceflow.store.base import Claim, Claimed


@dataclass(slots=True, eq=False)
class Plan:
    """One stage as this process works on it."""

    pipeline: Pipeline
    stage: Stage
    before: str
    pool: Pool
    key: StageKey
    way: Way
    hungry: bool = True
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
        if key is not None:
            self.plans[key].hungry = True
            return
        for plan in self.plans.values():
            plan.hungry = True

    def room(self, plan: Plan) -> int:
        """How many more leases of a stage can be taken in here, once what ended is committed."""
        queued = self._queues.size(plan.key) + plan.reserved
        free = plan.pool.idle + plan.pool.ended - queued
        wanted = free if plan.stage.bounded else free + plan.stage.batch
        return min(wanted, self._queues.most - queued)

    def wishes(self, now: float) -> list[tuple[Plan, Claim]]:
        """What to ask for now; the room is reserved until `took` or `gave_up`."""
        wishes: list[tuple[Plan, Claim]] = []
        for plan in self.plans.values():
            if plan.opens_at is not None and plan.opens_at <= now:
                plan.opens_at = None
                plan.hungry = True
            if plan.hungry and (count := self.room(plan)) > 0:
                plan.reserved += count
                plan.hungry = False
                wishes.append((plan, plan.wish(count)))
        return wishes

    def took(self, plan: Plan, wish: Claim, claimed: Claimed, now: float) -> None:
        """A claim was answered."""
        plan.reserved -= wish.count
        plan.lane = claimed.lane
        plan.hungry |= claimed.more
        if claimed.opens_in_ms is not None:
            opens_at = now + claimed.opens_in_ms / 1000
            plan.opens_at = min(opens_at, plan.opens_at or opens_at)

    def gave_up(self, plan: Plan, wish: Claim) -> None:
        """A claim got no answer: ask again."""
        plan.reserved -= wish.count
        plan.hungry = True

    def opens_at(self) -> float | None:
        """When the next shut lane opens."""
        times = [plan.opens_at for plan in self.plans.values() if plan.opens_at is not None]
        return min(times, default=None)

    def any_room(self) -> bool:
        """Whether a hungry stage could take something in."""
        return any(plan.hungry and self.room(plan) > 0 for plan in self.plans.values())
