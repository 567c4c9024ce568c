"""What both back ends work out before they write, so that they cannot differ in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onceflow.core.item import Added, Kind, Lease, Phase, Seed
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import NOTHING_SPENT, Usage
from onceflow.store.base import Add, Claim, Claimed, Command, Finish, Kept

KIND_OF_COMMAND: dict[Command, Kind] = {
    "retry": Kind.REOPENED,
    "cancel": Kind.CANCELLED,
    "release": Kind.RELEASED,
    "trigger": Kind.TRIGGERED,
}


def shallowest(seeds: Sequence[Seed], max_depth: int | None) -> dict[str, Seed]:
    """Each key once, in order, with the smallest depth it came with; none deeper than allowed."""
    wanted: dict[str, Seed] = {}
    for seed in seeds:
        if seed.key not in wanted or seed.depth < wanted[seed.key].depth:
            wanted[seed.key] = seed
    if max_depth is None:
        return wanted
    return {key: seed for key, seed in wanted.items() if seed.depth <= max_depth}


def within_budget(
    wanted: Mapping[str, Seed], known: Mapping[str, int], members: set[int], left: int
) -> tuple[list[Seed], list[int], int]:
    """Of the wanted keys, in order: the seeds to make, the known items to join, and how many of
    them were over the run's budget."""
    fresh: list[Seed] = []
    joined: dict[int, None] = {}
    over = 0
    for key, seed in wanted.items():
        item = known.get(key)
        if item is not None and (item in members or item in joined):
            continue
        if len(fresh) + len(joined) >= left:
            over += 1
        elif item is None:
            fresh.append(seed)
        else:
            joined[item] = None
    return fresh, list(joined), over


class Known(NamedTuple):
    """An item that a wanted key stands for."""

    key: str
    item: int
    depth: int
    """The shortest one of all its runs."""
    in_run: int | None
    """How deep it is in the run it is wanted for; None if it does not belong to it."""


class Nearer(NamedTuple):
    """What is new about known items after some were wanted again: their depths."""

    of_run: dict[int, int]
    """How deep members and those who join are in the run now, where that is new."""
    of_item: dict[int, int]
    """How deep items are now, where that is less than before."""


def nearer(wanted: Mapping[str, Seed], found: Sequence[Known], joined: Iterable[int]) -> Nearer:
    """The shortest ways to the known items of a run and to those that join it."""
    joining = frozenset(joined)
    of_run: dict[int, int] = {}
    of_item: dict[int, int] = {}
    for one in found:
        depth = wanted[one.key].depth
        if one.in_run is None and one.item not in joining:
            continue  # over the budget
        if one.in_run is None or depth < one.in_run:
            of_run[one.item] = min(depth, of_run.get(one.item, depth))
        if depth < one.depth:
            of_item[one.item] = min(depth, of_item.get(one.item, depth))
    return Nearer(of_run, of_item)


def again_why(run: str, joined: bool) -> str:
    """Why an item does its last stage once more."""
    return f"it joined run {run}" if joined else "a shorter way to it was found"


def lanes_now(
    found: Iterable[tuple[int, str, str, str, str]], pipelines: Mapping[str, Pipeline]
) -> list[tuple[int, str, str]]:
    """For items (id, pipeline, stage, key, lane) that no claim would find: their (id, lane, stage)
    by the tables of this program, if those say otherwise than the items."""
    lanes: list[tuple[int, str, str]] = []
    for item, name, stage, key, old in found:
        table = pipelines[name]
        if stage in {each.name for each in table.every_stage}:
            new = table.lane_of(table.stage(stage), key)
            if bool(new) != bool(old):
                lanes.append((item, new, stage))
    return lanes


def names_of(pipelines: Mapping[str, Pipeline]) -> str:
    """The names of pipelines as a statement takes a list of words: each between spaces."""
    return f" {' '.join(pipelines)} "


def state_table(pipeline: Pipeline) -> str:
    """The names of a pipeline's states, for readers without the program."""
    states: dict[str, dict[str, str]] = {}
    for (stage, phase), state in pipeline.states.items():
        states.setdefault(stage, {})[phase] = state
    return json.dumps(states)


def stage_rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The rows of the stage table."""
    return [
        {
            "pipeline": pipeline.name,
            "stage": stage.name,
            "position": position,
            "is_gate": int(stage is pipeline.gate_stage),
            "declared_limit": stage.limit,
            "lane_limit": None if stage.lane is None else stage.lane.limit,
            "lane_spacing_ms": 0 if stage.lane is None else int(stage.lane.spacing_seconds * 1000),
            "attempts": pipeline.attempts_of(stage),
            "lease_ms": int(pipeline.lease_seconds * 1000),
            "deadline_ms": int(stage.deadline_seconds * 1000),
        }
        for position, stage in enumerate(pipeline.every_stage)
    ]


def befores(pipelines: Mapping[str, Pipeline]) -> list[tuple[str, str, str]]:
    """Of every stage that this program has: (pipeline, stage, the stage whose result is its input,
    empty for what came with the item)."""
    found: list[tuple[str, str, str]] = []
    for pipeline in pipelines.values():
        before = {
            following.name: stage.name
            for stage in pipeline.stages
            if (following := pipeline.after(stage.name)) is not None
        }
        found += [
            (pipeline.name, stage.name, before.get(stage.name, ""))
            for stage in pipeline.every_stage
        ]
    return found


def at_limit(wish: Claim, room: int, given: int) -> bool:
    """Whether a claim gave less than it was asked for because the stage's limit is reached. Asking
    again gives nothing until a place is free, and that is told."""
    return given == room < wish.count


def others_may_claim(add: Add, added: Added, claimed: Sequence[Claimed]) -> bool:
    """Whether other workers may find something to do after an addition: what nobody claimed along
    with it, a run that may spend more, a known item that is done again, a run settled as it is."""
    begun = sum(len(one.leases) for one in claimed)
    return add.has_ceiling or added.known > 0 or not added.new or added.new > begun


def others_may_act(
    finishes: Sequence[Finish], continued: Sequence[Lease], pipelines: Mapping[str, Pipeline]
) -> bool:
    """Whether other workers may find something to do after these: something became ready and did
    not go on at once, or there is room or a child that was not there before."""
    return made_ready(finishes) > len(continued) or make_room(finishes, pipelines)


def made_ready(finishes: Iterable[Finish]) -> int:
    """How many of these leave something to be claimed, now or later."""
    return sum(one.change.phase in (Phase.READY, Phase.WAITING) for one in finishes)


def make_room(finishes: Iterable[Finish], pipelines: Mapping[str, Pipeline]) -> bool:
    """Whether these free a place under a limit, or children come into being by them."""
    return any(
        one.change.children or pipelines[one.lease.pipeline].stage(one.lease.stage).bounded
        for one in finishes
    )


def spent_by_run(finishes: Iterable[Finish]) -> dict[str, Usage]:
    """What runs spend by these finishes, if all of them hold."""
    spent: dict[str, Usage] = {}
    for one in finishes:
        usage = one.change.usage
        if usage.tokens or usage.cost:
            so_far = spent.get(one.lease.run, NOTHING_SPENT)
            spent[one.lease.run] = Usage(so_far.tokens + usage.tokens, so_far.cost + usage.cost)
    return spent


Holds = dict[tuple[str, str], dict[str, int]]
"""By (pipeline, stage) and lane: for how many ms it gives nothing."""


def holds(finishes: Iterable[Finish], kept: Iterable[Kept]) -> Holds:
    """The lanes that are held after these finishes."""
    found: Holds = {}
    for one, was_kept in zip(finishes, kept, strict=True):
        if was_kept and one.change.hold is not None:
            lanes = found.setdefault((one.lease.pipeline, one.lease.stage), {})
            lane, ms = one.change.hold
            lanes[lane] = max(ms, lanes.get(lane, 0))
    return found


def next_lease(finish: Finish, number: int, now: int) -> Lease:
    """The lease of an item whose next stage was claimed along with the finish of the last."""
    lease, change, _ = finish
    return lease._replace(
        stage=change.stage, fence=lease.fence + 1, attempt=1, claimed_at=now, data=change.result,
        ticket=number,
    )  # fmt: skip


MOVED = "onceflow: moved"
"""What the triggers of a database say that was carried over (`move_shut.sql`)."""


def moved(where: str, place: str) -> str:
    """What those are told who add to it, or would work on it."""
    return (
        f"{where} was moved to {place}: nothing is accepted or worked on here, use that one "
        f"(to use this one again all the same: onceflow move --undo {where})"
    )
