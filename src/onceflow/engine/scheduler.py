"""The scheduler: what to claim, and when.

A stage is hungry when there may be something to claim: at the start, after a wake-up, after a
claim that says there is more, and at the safety scan. It is asked for while it is hungry, has room,
and no claim of it is under way, unless the last one said that there is more. Only an answer ends
the hunger, and only if nobody woke the stage since it was asked.

No more is claimed than can begin at once, but for a stage that asks for `prefetch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from onceflow.core.item import Phase
from onceflow.core.pipeline import Pipeline, Stage
from onceflow.core.transition import Transition
from onceflow.engine.attempt import Way
from onceflow.engine.book import Book, StageKey
from onceflow.engine.pool import Pool
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
    woken: int = 0
    """How often it was woken: an answer ends the hunger only if that is what it was when asked."""
    more: bool = False
    """The last claim said that there is more."""
    full: bool = False
    """The last claim met the stage's limit: who frees a place wakes it."""
    reserved: int = 0
    """Room that claims under way may fill."""
    paused: str = ""
    """Why a handler has it paused, until the database and all that is under way know it."""
    turn: int = 0
    lane: str = ""
    run: str = ""
    opens_at: float | None = None
    """When a lane that was shut opens, on the loop's clock."""
    assigned_at: float = float("-inf")
    queues: bool = field(init=False)
    """Whether its leases may wait here: then each is begun by a word of its own."""
    bounded: bool = field(init=False)
    """Whether a limit or lanes are declared for it."""

    def __post_init__(self) -> None:
        self.queues = self.stage.prefetch > 0 or self.stage.assign_max is not None
        self.bounded = self.stage.bounded

    @property
    def claim_most(self) -> int:
        """How much one claim takes at the most: while it is worked on, the other half is asked
        for."""
        return max(self.stage.batch, (len(self.pool.processors) + 1) // 2)


@dataclass(slots=True, eq=False)
class Wish:
    """One claim that is asked for."""

    plan: Plan
    claim: Claim
    woken: int
    """How often the stage had been woken when it was asked for."""
    answer: asyncio.Future[bool] | None = None
    """Who asked for this item by name hears whether it was claimed here."""

    def tell(self, claimed: bool) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(claimed)


@dataclass(slots=True)
class Named:
    """An item that is asked for by name."""

    plan: Plan
    item: int
    answer: asyncio.Future[bool]


class Scheduler:
    """Knows the stages of this process and which of them are hungry."""

    def __init__(self, plans: Iterable[Plan], book: Book) -> None:
        self.plans = {plan.key: plan for plan in plans}
        self._book = book
        self._named: list[Named] = []
        self._unanswered: list[Wish] = []

    # --- hunger ---

    def wake(self, key: StageKey | None = None) -> None:
        """There may be something to claim, in one stage or in any."""
        for plan in self.plans.values() if key is None else (self.plans[key],):
            plan.hungry = True
            plan.woken += 1

    def wake_after(
        self, changes: Iterable[tuple[Plan, Transition, bool]], but: Set[StageKey] = frozenset()
    ) -> None:
        """What transitions make claimable, each with whether its item goes on at once; `but` of
        stages that a claim in the same transaction looks at."""
        keys: set[StageKey] = set()
        for plan, change, goes_on in changes:
            name = plan.pipeline.name
            if change.phase is Phase.READY and not goes_on:
                keys.add((name, change.stage))
            if plan.bounded or plan.full:
                keys.add(plan.key)
            if change.children:
                keys.add((name, plan.pipeline.first.name))
                if plan.pipeline.spreads is not None:
                    keys.add((name, plan.pipeline.spreads.name))
        for key in keys - but:
            if key in self.plans:
                self.wake(key)

    # --- room ---

    def room(self, plan: Plan) -> int:
        """How many more leases of a stage can be taken in here."""
        if self._book.wants_quiet:
            return 0
        taken = self._book.size(plan.key) + plan.reserved
        free = plan.pool.idle - taken
        wanted = free if plan.bounded else free + plan.stage.prefetch
        return min(wanted, self._book.most - taken)

    def reserve_next(self, plan: Plan, change: Transition) -> bool:
        """Whether the stage that an item goes on to is claimed along with its finish: there is room
        for it here, nothing bounds it, and nobody waits there, as far as its last claim said."""
        if change.stage == plan.stage.name or not change.goes_on:
            return False
        following = self.plans.get((plan.pipeline.name, change.stage))
        if (
            following is None
            or following.hungry
            or following.bounded
            or following.queues
            or following.full
            or following.paused
            or self.room(following) <= 0
        ):
            return False
        following.reserved += 1
        return True

    # --- claims ---

    def wishes(self, now: float) -> list[Wish]:
        """What to ask for now; the room is reserved until `answered` or `gave_up`."""
        wishes: list[Wish] = []
        named, self._named = self._named, []
        for one in named:
            if one.answer.done():
                continue
            if self.room(one.plan) > 0 and not one.plan.paused:
                wishes.append(self.wish(one.plan, 1, one.item, one.answer))
            elif one.plan.reserved and not one.plan.paused:
                self._named.append(one)  # a claim under way may leave room for it
            else:
                one.answer.set_result(False)
        for plan in self.plans.values():
            if plan.opens_at is not None and plan.opens_at <= now:
                plan.opens_at = None
                self.wake(plan.key)
            if plan.hungry and not plan.paused and (plan.more or not plan.reserved):
                room = min(self.room(plan), plan.claim_most)
                if room > 0:
                    wishes.append(self.wish(plan, room))
        return wishes

    def wish(
        self,
        plan: Plan,
        count: int,
        item: int | None = None,
        answer: asyncio.Future[bool] | None = None,
    ) -> Wish:
        """A claim of a stage, or of one item by name; its room is reserved."""
        plan.turn += 1
        plan.reserved += count
        claim = Claim(
            plan.pipeline.name, plan.stage.name, plan.before, count, plan.turn, plan.lane, item,
            plan.queues, plan.run,
        )  # fmt: skip
        return Wish(plan, claim, plan.woken, answer)

    def named(self, plan: Plan, item: int) -> asyncio.Future[bool]:
        """Ask for one item by name with the next exchange; whether it is claimed here then."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._named.append(Named(plan, item, answer))
        return answer

    def answered(self, wish: Wish, claimed: Claimed, now: float) -> None:
        """A claim was answered."""
        plan = wish.plan
        plan.reserved -= wish.claim.count
        plan.lane, plan.run = claimed.lane, claimed.run
        if claimed.opens_in_ms is not None:
            opens_at = now + claimed.opens_in_ms / 1000
            plan.opens_at = min(opens_at, plan.opens_at or opens_at)
        if wish.claim.item is not None:
            wish.tell(bool(claimed.leases))
            return
        plan.more, plan.full = claimed.more, claimed.full
        if claimed.more:
            plan.hungry = True
        elif plan.woken == wish.woken:
            plan.hungry = False

    def gave_up(self, wish: Wish) -> None:
        """A claim got no answer. What it may have given is found by reading; who asked by name
        hears then."""
        wish.plan.reserved -= wish.claim.count
        self.wake(wish.plan.key)
        if wish.answer is not None:
            self._unanswered.append(wish)

    def answer_named(self) -> None:
        """What we hold was read: tell those whose claims by name got no answer."""
        for wish in self._unanswered:
            assert wish.claim.item is not None
            wish.tell(self._book.of(wish.claim.item) is not None)
        self._unanswered.clear()

    def end(self) -> None:
        """Nothing is claimed any more: nobody waits for it."""
        for one in self._named:
            if not one.answer.done():
                one.answer.set_result(False)
        self._named.clear()
        self.answer_named()

    # --- questions ---

    def opening_times(self) -> list[float]:
        """When shut lanes open."""
        return [plan.opens_at for plan in self.plans.values() if plan.opens_at is not None]

    @property
    def awaits_nothing(self) -> bool:
        """Whether no claim is under way."""
        return not any(plan.reserved for plan in self.plans.values())

    def any_room(self) -> bool:
        """Whether a hungry stage could take something in, or something is still to be asked."""
        return bool(self._named) or any(
            plan.paused or (plan.hungry and self.room(plan) > 0) for plan in self.plans.values()
        )
