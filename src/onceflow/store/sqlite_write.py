"""The writes of the SQLite store, each inside the writer's transaction.

SQLite has one writer at a time, so what a function reads here stays true until it commits. Rows go
in and out as one JSON value each: the interpreter lock is given up at every step of a statement,
and a busy event loop makes each of those steps expensive.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw

from onceflow.core.errors import StoreError
from onceflow.core.item import Added, Kind, Lease, Mark, Phase, Seed, mark_of
from onceflow.core.packing import is_packed
from onceflow.core.pipeline import GATE_KEY, Pipeline
from onceflow.core.transition import (
    NOTHING_SPENT,
    PLAINLY_FINISHED,
    NewEvent,
    Part,
    Usage,
    deeper,
    encode,
)
from onceflow.store.base import (
    APART_MS,
    DEATHS_MAX,
    LANES_WALKED_MAX,
    RUNS_IN_TURN_MAX,
    SWEEP_MAX,
    WORKER_FORGOTTEN_MS,
    Add,
    Claim,
    Claimed,
    Command,
    Exchanged,
    Finish,
    Kept,
    Swept,
    Target,
    Worker,
)
from onceflow.store.queries import sql
from onceflow.store.rules import (
    KIND_OF_COMMAND,
    Known,
    Nearer,
    again_why,
    at_limit,
    holds,
    lanes_now,
    names_of,
    nearer,
    next_lease,
    shallowest,
    spent_by_run,
    stage_rows,
    state_table,
    within_budget,
)


def run(db: apsw.Connection, name: str, /, **parameters: Any) -> apsw.Cursor:
    """Execute one .sql file."""
    return db.execute(sql("sqlite", name), parameters)


def _rows(db: apsw.Connection, name: str, /, **parameters: Any) -> list[Any]:
    """The rows of a statement that gives a few."""
    return run(db, name, **parameters).fetchall()


def _list(db: apsw.Connection, name: str, /, **parameters: Any) -> list[Any]:
    """The list that a statement gives as one JSON value."""
    value: list[Any] = json.loads(run(db, name, **parameters).get)
    return value


# --- claim -------------------------------------------------------------------------------------


def claim(db: apsw.Connection, wish: Claim, worker: str, number: int, now: int) -> Claimed:
    """Give leases of one stage, within its limit, to whose turn it is."""
    bounds = run(db, "stage_bounds", pipeline=wish.pipeline, stage=wish.stage).fetchone()
    if bounds is None:
        raise StoreError(f"stage {wish.pipeline}/{wish.stage} is not registered in this database")
    most, lane_limit, spacing_ms, deadline_ms, paused, active = bounds
    room = wish.count if most is None else min(wish.count, most - active)
    if paused or room <= 0:
        return Claimed((), wish.lane, full=not paused)
    lane, opens_in_ms, cut, last = wish.lane, None, False, ""
    if wish.item is not None:
        ids = _pick_one(db, wish, lane_limit, spacing_ms, now)
    elif lane_limit is None:
        ids, last = _pick(db, wish, room)
        cut = len(ids) == room
    else:
        ids, lane, opens_in_ms, cut, last = _pick_in_lanes(
            db, wish, room, lane_limit, spacing_ms, now
        )
    if not ids:
        return Claimed((), lane, cut, opens_in_ms, run=last)
    picked = json.dumps(ids)
    run(
        db, "claim", ids=picked, worker=worker, ticket=number, prefetch=int(wish.prefetch),
        deaths_max=DEATHS_MAX, now=now, deadline_ms=deadline_ms,
    )  # fmt: skip
    data = None if most is None else json.dumps({"limit": most})
    run(db, "claim_events", ids=picked, now=now, data=data)
    leases = _leases(db, wish, picked, number, now)
    full = at_limit(wish, room, len(ids))
    more = cut and not full
    if lane_limit is None:
        more = more and _any_ready(db, wish)
    else:
        places = {item: place for place, item in enumerate(ids)}
        leases.sort(key=lambda lease: places[lease.item])
    return Claimed(leases, lane, more, opens_in_ms, full, run=last)


def _any_ready(db: apsw.Connection, wish: Claim) -> bool:
    return bool(run(db, "any_ready", pipeline=wish.pipeline, stage=wish.stage).get)


def _pick(db: apsw.Connection, wish: Claim, room: int) -> tuple[list[int], str]:
    """Ids of a stage without lanes: the runs in turn, an equal share each; what some of them leave
    over goes to the others. Where there are too many, which one was served last."""
    where = {"pipeline": wish.pipeline, "stage": wish.stage, "lane": ""}
    runs, many = _in_turn(db, wish, where)
    taken = dict.fromkeys(runs, 0)
    open_runs = list(taken)
    ids: list[int] = []
    last = ""
    while open_runs and (left := room - len(ids)) > 0:
        share = max(1, left // len(open_runs))
        for run_id in open_runs[:left]:
            count = taken[run_id] + share
            more = _list(db, "claim_pick", **where, run=run_id, count=count)[taken[run_id] :]
            taken[run_id] += len(more)
            ids += more
            if more and many:
                last = run_id
            if len(more) < share:
                open_runs.remove(run_id)
    return ids, last


def _in_turn(db: apsw.Connection, wish: Claim, where: dict[str, str]) -> tuple[list[str], bool]:
    """The runs that have something ready there, whose turn it is first; whether they are too many
    for one look. Mostly it is one: then no walk is needed."""
    first, last, any_halted = run(db, "turn_ends", **where).get
    if first == last and not any_halted:
        return [] if first is None else [first], False
    runs: list[str] = _list(db, "turns", **where, after=wish.run, most=RUNS_IN_TURN_MAX)
    if len(runs) == RUNS_IN_TURN_MAX:
        return runs, True
    at = wish.turn % len(runs) if runs else 0
    return runs[at:] + runs[:at], False


def _pick_one(
    db: apsw.Connection, wish: Claim, lane_limit: int | None, spacing_ms: int, now: int
) -> list[int]:
    """The one item that is named, if its lane is open."""
    where = {"pipeline": wish.pipeline, "stage": wish.stage}
    ids = _list(db, "claim_pick_one", **where, item=wish.item)
    if ids and lane_limit is not None:
        lane = run(db, "item_lane", item=wish.item).get
        if not _lane_opens(db, wish, lane, lane_limit, now)[0]:
            return []
        if spacing_ms:
            run(db, "lane_started", **where, lane=lane, next_at=now + spacing_ms)
    return ids


def _pick_in_lanes(
    db: apsw.Connection, wish: Claim, room: int, lane_limit: int, spacing_ms: int, now: int
) -> tuple[list[int], str, int | None, bool, str]:
    """Ids of open lanes, one of each a round, the lanes in turn from where the last claim stopped;
    where this one stopped, when a shut lane opens, whether there may be more to take, and which run
    was served last where there are too many."""
    where = {"pipeline": wish.pipeline, "stage": wish.stage}
    ids: list[int] = []
    opens: list[int] = []
    lanes: deque[OpenLane] = deque()
    at = served = wish.lane
    wrapped = at == ""
    last = ""
    for _ in range(LANES_WALKED_MAX):
        lane = run(db, "next_lane", **where, lane=at).get
        if lane is None or (wrapped and wish.lane and lane > wish.lane):
            if wrapped:
                break
            at, wrapped = "", True
            continue
        at = lane
        free, opens_at = _lane_opens(db, wish, lane, lane_limit, now)
        if not free:
            if opens_at > now:
                opens.append(opens_at - now)
            continue
        runs, many = _in_turn(db, wish, {**where, "lane": lane})
        if not runs:
            continue
        open_lane = OpenLane(lane, free, deque(runs), many)
        ids += open_lane.take(db, where)
        last = open_lane.last or last
        served = lane
        if spacing_ms:
            run(db, "lane_started", **where, lane=lane, next_at=now + spacing_ms)
            opens.append(spacing_ms)
        else:
            lanes.append(open_lane)
        if len(ids) == room:
            return ids, served, min(opens, default=None), True, last
    else:
        return ids, at, min(opens, default=None), True, last
    while lanes and len(ids) < room:
        open_lane = lanes.popleft()
        if taken := open_lane.take(db, where, 1 if lanes else room - len(ids)):
            ids += taken
            served = open_lane.name
            last = open_lane.last or last
            lanes.append(open_lane)
    return ids, served, min(opens, default=None), len(ids) == room, last


@dataclass(slots=True)
class OpenLane:
    """A lane during one claim: what it can still give, and to which runs in turn."""

    name: str
    free: int
    runs: deque[str]
    many: bool
    last: str = ""
    """The run that was served last, if there are too many for one look."""
    taken: Counter[str] = field(default_factory=Counter)

    def take(self, db: apsw.Connection, where: dict[str, str], most: int = 1) -> list[int]:
        """The next id, if there is one; where only one run has any, up to so many."""
        while self.free and self.runs:
            run_id = self.runs[0]
            before = self.taken[run_id]
            count = min(most, self.free) if len(self.runs) == 1 else 1
            ids = _list(
                db, "claim_pick", **where, lane=self.name, run=run_id, count=before + count
            )[before:]
            self.runs.rotate(-1)
            if len(ids) < count:
                self.runs.pop()
            if ids:
                self.last = run_id if self.many else ""
                self.taken[run_id] += len(ids)
                self.free -= len(ids)
                return ids
        return []


def _lane_opens(
    db: apsw.Connection, wish: Claim, lane: str, lane_limit: int, now: int
) -> tuple[int, int]:
    """How many leases an open lane can still give, and until when its spacing keeps it shut."""
    active, next_at = run(db, "lane_state", pipeline=wish.pipeline, stage=wish.stage, lane=lane).get
    return max(0, lane_limit - active) if next_at <= now else 0, next_at


def _leases(db: apsw.Connection, wish: Claim, picked: str, number: int, now: int) -> list[Lease]:
    bodies: dict[int, tuple[int, bytes]] = {}
    (_, _, short), *inputs = _rows(db, "claim_inputs", ids=picked, before=wish.before)
    inputs += [(*one, text.encode()) for *one, text in json.loads(short)]
    for item, generation, body in inputs:
        if item not in bodies or bodies[item][0] < generation:
            bodies[item] = generation, body
    nothing = (0, None)
    return [
        Lease(
            item, wish.pipeline, key, wish.stage, fence, attempt, generation, run_id, depth, now,
            bodies.get(item, nothing)[1], number, bool(alone),
        )
        for item, key, fence, attempt, generation, run_id, depth, alone in _list(
            db, "claim_leases", ids=picked, deaths_max=DEATHS_MAX
        )
    ]  # fmt: skip


# --- finish ------------------------------------------------------------------------------------


def exchange(
    db: apsw.Connection,
    worker: str,
    number: int,
    finishes: Sequence[Finish],
    claims: Sequence[Claim],
    begins: Sequence[Lease],
    pipelines: dict[str, Pipeline],
    now: int,
) -> Exchanged:
    """Finish attempts, begin prefetched ones, then claim: what was freed can be claimed at once."""
    kept: list[Kept] = []
    continued: list[Lease] = []
    if finishes:
        kept, continued = finish(db, worker, number, finishes, pipelines, now)
        for (pipeline, stage), lanes in holds(finishes, kept).items():
            for lane, ms in lanes.items():
                run(
                    db, "lane_hold", pipeline=pipeline, stage=stage, lane=lane, next_at=now + ms
                )  # fmt: skip
    begun = begin(db, begins, now) if begins else []
    claimed = [claim(db, wish, worker, number, now) for wish in claims]
    return Exchanged(kept, claimed, continued, begun)


def begin(db: apsw.Connection, leases: Sequence[Lease], now: int) -> list[bool]:
    """Say that the handlers of prefetched leases begin; for each whether the lease still holds."""
    marks = [mark_of(lease) for lease in leases]
    held: set[Mark] = set(_rows(db, "begin", leases=json.dumps(marks), now=now))
    return [mark in held for mark in marks]


def finish(
    db: apsw.Connection,
    worker: str,
    number: int,
    finishes: Sequence[Finish],
    pipelines: dict[str, Pipeline],
    now: int,
) -> tuple[list[Kept], list[Lease]]:
    """Make the transitions whose leases still hold; say for each what became of it, and give the
    leases of those that went on at once."""
    finishes = _by_key(db, finishes)
    shapes: dict[Shape, list[int]] = {}
    seen: Counter[int] = Counter()
    for at, one in enumerate(finishes):
        # An item may be here twice, with an old fence and a new one: never in one statement.
        shapes.setdefault((seen[one.lease.item], *_shape(one)), []).append(at)
        seen[one.lease.item] += 1
    answers = [Kept.LOST] * len(finishes)
    continued: list[Lease] = []
    spent = spent_by_run(finishes)
    for (_, *shape), places in shapes.items():
        alike = [finishes[at] for at in places]
        kept = _finish_alike(db, worker, number, shape, alike, now, spent, continued)
        for at in places:
            if finishes[at].lease.item in kept:
                answers[at] = Kept.KEPT
    extras = [
        one
        for one, answer in zip(finishes, answers, strict=True)
        if answer and one.change.has_extras
    ]
    if extras:
        _admit_extras(db, extras, pipelines, now)
    for at, one in enumerate(finishes):
        if not answers[at] and _kept_before(db, worker, one.lease):
            answers[at] = Kept.BEFORE
    return answers, continued


def _by_key(db: apsw.Connection, finishes: Sequence[Finish]) -> Sequence[Finish]:
    """Of transitions that give their items keys of their own: those that can be made."""
    if all(one.change.key is None for one in finishes):
        return finishes
    given: set[tuple[str, str]] = set()
    answers: list[Finish] = []
    for one in finishes:
        pipeline, key, item = one.lease.pipeline, one.change.key, one.lease.item
        if key is not None:
            taken = run(db, "key_taken", pipeline=pipeline, key=key, item=item).get
            if taken or (pipeline, key) in given:
                one = one._replace(change=one.change.if_taken)
            given.add((pipeline, key))
        answers.append(one)
    return answers


Shape = tuple[Any, ...]


def _shape(one: Finish) -> Shape:
    """What many transitions of a batch have in common: they are made by one statement each."""
    lease, change, claim_next = one
    return (
        (lease.pipeline, lease.run) if claim_next and change.goes_on else None,
        lease.stage, lease.generation, change.stage, change.phase, change.attempt, change.lane,
        change.delay_ms, change.error, change.error_code,
        tuple((event.kind, _data(event)) for event in change.events)
        if change.events is not PLAINLY_FINISHED
        else PLAIN_EVENTS,
    )  # fmt: skip


def _data(event: NewEvent) -> str | None:
    return None if event.data is None else json.dumps(event.data)


PLAIN_EVENTS = tuple((event.kind, None) for event in PLAINLY_FINISHED)


def _finish_alike(
    db: apsw.Connection,
    worker: str,
    number: int,
    shape: Sequence[Any],
    alike: Sequence[Finish],
    now: int,
    spent: Mapping[str, Usage],
    continued: list[Lease],
) -> set[int]:
    """Transitions of one shape; the items of those that were made. First the history, while the
    items still say who held them."""
    asking, stage, generation, to_stage, phase, attempt, lane, delay_ms, error, code, events = shape
    held = [mark_of(one.lease) for one in alike]
    where = {"held": json.dumps(held), "from_stage": stage}
    following = to_stage if to_stage != stage else None
    for at, (kind, data) in enumerate(events, start=1):
        run(
            db, "finish_events", **where, now=now, kind=kind, at=at, next_stage=following,
            phase=phase, worker=worker, data=data,
        )  # fmt: skip
    ids = {item for item, _, _ in held}
    if not events or db.changes() < len(held):  # as many events as leases: all of them hold
        ids = set(_list(db, "finish_kept", **where))
    if not ids:
        return set()
    due_at = None if delay_ms is None else now + delay_ms
    lease_ms = None
    if asking is not None:
        pipeline, run_id = asking
        lease_ms = _open_for(db, pipeline, to_stage, run_id, spent.get(run_id, NOTHING_SPENT))
    again = lease_ms is not None
    run(
        db, "finish", **where, stage=to_stage, phase=Phase.ACTIVE if again else phase,
        attempt=attempt + again, lane=lane, due_at=due_at, error=error, error_code=code,
        events=len(events), now=now, again=int(again), worker=worker, ticket=number,
        lease_ms=lease_ms,
    )  # fmt: skip
    if again:
        run(db, "claim_events", ids=json.dumps(sorted(ids)), now=now, data=None)
        continued += [next_lease(one, number, now) for one in alike if one.lease.item in ids]
    bodies: dict[int, str] = {}
    for one in alike:
        body = one.change.result
        if body is None or one.lease.item not in ids:
            continue
        if is_packed(body):
            run(
                db, "finish_result", item=one.lease.item, stage=stage, generation=generation,
                now=now, body=body,
            )  # fmt: skip
        else:
            bodies[one.lease.item] = body.decode()
    if bodies:
        run(
            db, "finish_results", bodies=json.dumps(bodies), stage=stage, generation=generation,
            now=now,
        )  # fmt: skip
    return ids


def _open_for(
    db: apsw.Connection,
    pipeline: str,
    stage: str,
    run_id: str,
    spent: Usage,
) -> int | None:
    """How long a lease of a stage would be, if nothing bounds it for items of that run, which now
    spends so much."""
    found: int | None = run(
        db, "stage_open", pipeline=pipeline, stage=stage, run=run_id, tokens=spent.tokens,
        cost=spent.cost,
    ).get  # fmt: skip
    return found


def _kept_before(db: apsw.Connection, worker: str, lease: Lease) -> bool:
    """Of a lease that does not hold any more: whether its finish was kept, only the reply lost."""
    return bool(
        run(
            db, "finish_known", item=lease.item, fence=lease.fence, worker=worker,
            pipeline=lease.pipeline, key=lease.key,
        ).get
    )  # fmt: skip


def _admit_extras(
    db: apsw.Connection, kept: Sequence[Finish], pipelines: dict[str, Pipeline], now: int
) -> None:
    """Names, aliases, parts, children (once for each run), and what was spent."""
    renamed: list[tuple[str, str, int]] = []
    aliases: list[tuple[str, str, int]] = []
    spent: list[tuple[int, int, float]] = []
    children: dict[tuple[str, str], list[Seed]] = {}
    for lease, change, _ in kept:
        if change.key is not None and change.key != lease.key:
            run(db, "drop_alias", pipeline=lease.pipeline, key=change.key, item=lease.item)
            run(db, "rename", key=change.key, item=lease.item)
            renamed.append((lease.pipeline, lease.key, lease.item))
        aliases += [(lease.pipeline, key, lease.item) for key in change.aliases]
        if any(change.usage):
            spent.append((lease.item, *change.usage))
        if change.had_parts:
            run(db, "forget_parts", item=lease.item, stage=lease.stage)
        if change.children:
            for run_id, depth in _rows(db, "runs_of", item=lease.item):
                found = children.setdefault((run_id, lease.pipeline), [])
                found += deeper(change.children, depth)
    if renamed or aliases:  # an item's old key is its own before it can be another one's
        run(db, "add_aliases", rows=json.dumps(renamed + aliases))
    if spent:
        run(db, "run_spend", rows=json.dumps(spent))
    for (run_id, pipeline), seeds in children.items():
        budget = Budget(*run(db, "run_budget", id=run_id).get)
        admit(db, pipelines[pipeline], run_id, budget, seeds, now)


# --- add ---------------------------------------------------------------------------------------


def add(
    db: apsw.Connection,
    request: Add,
    worker: str,
    number: int,
    claims: Sequence[Claim],
    now: int,
) -> tuple[Added, list[Claimed]]:
    """Accept items into a run, the known ones as they are, and claim."""
    pipeline = request.pipeline
    created = run(
        db, "run_create", id=request.run, pipeline=pipeline.name, now=now,
        max_items=request.max_items, max_depth=request.max_depth, max_tokens=request.max_tokens,
        max_cost=request.max_cost,
        gate=None if pipeline.gate_stage is None else pipeline.gate,
        gate_stage=None if pipeline.gate_stage is None else pipeline.gate_stage.name,
    )  # fmt: skip
    budget = Budget(*created.get)
    added = admit(
        db, pipeline, request.run, budget, request.seeds, now, seal=request.seal, by_caller=True
    )
    return added, [claim(db, wish, worker, number, now) for wish in claims]


class Budget(NamedTuple):
    """What a run still accepts."""

    pipeline: str
    sealed: int
    accepted: int
    max_items: int | None
    max_depth: int | None


def admit(
    db: apsw.Connection,
    pipeline: Pipeline,
    run_id: str,
    budget: Budget,
    seeds: Sequence[Seed],
    now: int,
    *,
    seal: bool = False,
    by_caller: bool = False,
) -> Added:
    """Put seeds into a run, exactly as many as its budget allows."""
    if budget.pipeline != pipeline.name:
        raise StoreError(
            f"run {run_id} belongs to pipeline {budget.pipeline!r}, not {pipeline.name!r}"
        )
    wanted = shallowest(seeds, budget.max_depth)
    keys = list(wanted)
    rows = _list(db, "add_known", keys=json.dumps(keys), pipeline=pipeline.name, run=run_id)
    found = [Known(keys[at], *more) for at, *more in rows]
    known = {one.key: one.item for one in found}
    members = {one.item for one in found if one.in_run is not None}
    left = len(keys) if budget.max_items is None else budget.max_items - budget.accepted
    fresh, joined, over = within_budget(wanted, known, members, left)
    if budget.sealed and by_caller and (fresh or joined):
        raise StoreError(f"run {run_id} is sealed; add to a new run")
    if found:
        ways = nearer(wanted, found, joined)
        _draw_nearer(db, pipeline, run_id, ways, members, now)
        if joined:
            depths = [(item, ways.of_run[item]) for item in joined]
            run(db, "add_members", run=run_id, now=now, rows=json.dumps(depths))
    if fresh:
        _insert_items(db, pipeline, run_id, fresh, now)
    run(db, "run_accept", id=run_id, count=len(fresh) + len(joined), seal=int(seal))
    return Added(run_id, len(fresh), len(known), over)


def _draw_nearer(
    db: apsw.Connection,
    pipeline: Pipeline,
    run_id: str,
    ways: Nearer,
    members: Container[int],
    now: int,
) -> None:
    """Known items get the shortest depths; what depends on those is done again."""
    if ways.of_item:
        run(db, "add_shallower", nearer=json.dumps(list(ways.of_item.items())))
    if not ways.of_run:
        return
    run(db, "add_nearer", run=run_id, nearer=json.dumps(list(ways.of_run.items())))
    if pipeline.spreads is None:
        return
    stage = pipeline.spreads
    targets: dict[bool, list[Target]] = {}
    for item, version, key in _rows(db, "add_finished", ids=json.dumps(list(ways.of_run))):
        target = Target(item, version, pipeline.lane_of(stage, key))
        targets.setdefault(item not in members, []).append(target)
    for joined, some in targets.items():
        act(db, "retry", some, stage.name, again_why(run_id, joined), now)


def _insert_items(
    db: apsw.Connection, pipeline: Pipeline, run_id: str, seeds: Sequence[Seed], now: int
) -> None:
    """Make items of keys that are not there yet, members of the run they are made for."""
    first = pipeline.first
    rows = [
        [seed.key, seed.priority, seed.depth, pipeline.lane_of(first, seed.key)] for seed in seeds
    ]
    run(
        db, "add_items", rows=json.dumps(rows), pipeline=pipeline.name, stage=first.name,
        phase=Phase.WAITING if first.held else Phase.READY, run=run_id, now=now,
    )  # fmt: skip
    # One statement numbers its rows on from the largest number there is, in their order.
    last = db.last_insert_rowid()
    ids = range(last - len(seeds) + 1, last + 1)
    new = {"first": ids[0], "last": last, "now": now}
    run(db, "add_events", **new, kind=Kind.ADDED)
    run(db, "add_members_new", **new)
    for item, seed in zip(ids, seeds, strict=True):
        if seed.data is not None:
            run(
                db, "finish_result", item=item, stage="", generation=1, now=now,
                body=encode(seed.data, seed.key, ""),
            )  # fmt: skip


# --- renew, beat -------------------------------------------------------------------------------


def renew(db: apsw.Connection, lease: Lease, text: str | None, part: Part | None, now: int) -> bool:
    mine = {"item": lease.item, "fence": lease.fence, "ticket": lease.ticket}
    run(db, "renew", **mine, now=now)
    held = bool(db.changes())
    if held and text is not None:
        run(db, "save_partial", **mine, text=text)
    if held and part is not None:
        run(db, "save_part", **mine, name=part.name, body=part.body, now=now)
        if db.changes() and any(part.usage):  # kept before, its reply was lost: it was counted then
            run(db, "run_spend", rows=json.dumps([(lease.item, *part.usage)]))
    return held


def beat(db: apsw.Connection, worker: Worker, boot: str, report: str | None, now: int) -> bool:
    [[fresh]] = run(
        db, "beat", id=worker.id, host=worker.host, pid=worker.pid, boot=boot, report=report,
        now=now,
    )  # fmt: skip
    return bool(fresh)


def leave(db: apsw.Connection, worker: str, release: bool, now: int) -> bool:
    """Sign off, with `release` after giving back what is held; whether that was anything."""
    released = _rows(db, "leave_release", worker=worker, now=now) if release else []
    if released:
        data = json.dumps({"reason": "the worker stopped"})
        events = [_event(Kind.RELEASED, row, data) for row in released]
        run(db, "insert_events", rows=json.dumps(events), now=now)
    run(db, "leave", worker=worker)
    return bool(released)


def _event(kind: Kind, row: Sequence[Any], data: str | None) -> list[Any]:
    """The event of an item that somebody else than its holder moved."""
    item, version, run_id, stage, phase, generation, fence, attempt = row
    return [
        kind, item, version, run_id, stage, None, phase, generation, fence, attempt, None, None,
        data,
    ]  # fmt: skip


# --- sweep -------------------------------------------------------------------------------------


def reclaim(db: apsw.Connection, boot: str, now: int) -> int:
    """Take back what dead or hung workers hold; their fences are worth nothing from now on."""
    run(db, "reclaim_company", boot=boot, now=now)
    taken = _rows(db, "reclaim", boot=boot, now=now, most=SWEEP_MAX, apart_ms=APART_MS)
    events = []
    for *row, error in taken:
        if row[4] == Phase.FAILED:
            data = json.dumps({"error": error, "code": "poison"})
            events.append(_event(Kind.FAILED, row, data))
        else:
            events.append(_event(Kind.RECLAIMED, row, None))
    if events:
        run(db, "insert_events", rows=json.dumps(events), now=now)
    run(db, "forget_partials")
    run(db, "forget_workers", boot=boot, now=now, silent_ms=WORKER_FORGOTTEN_MS)
    return len(taken)


def promote(db: apsw.Connection, now: int) -> tuple[int, int | None]:
    """Make ready what is due; when the next one is due, in ms."""
    run(db, "promote", now=now, most=SWEEP_MAX)
    promoted = db.changes()
    due_at = run(db, "next_due").get
    return promoted, None if due_at is None else max(0, due_at - now)


def relane(db: apsw.Connection, pipelines: Mapping[str, Pipeline]) -> int:
    """Put ready items that no claim would find into the lanes that their stages have now."""
    found = _rows(db, "mislaid", pipelines=names_of(pipelines), most=SWEEP_MAX)
    lanes = lanes_now(found, pipelines)
    if lanes:
        run(db, "relane", rows=json.dumps(lanes))
    return len(lanes)


def settle_runs(
    db: apsw.Connection, runs: Sequence[str], after: str, now: int
) -> tuple[Swept, str]:
    """Open the gates that are due and end the runs that are over; where to go on next time."""
    page = _rows(db, "unfinished_runs", ids=json.dumps(list(runs)), after=after, most=SWEEP_MAX)
    settled = finished = 0
    for run_id, pipeline, sealed, gate, gate_stage, witness, settled_at, _ in page:
        if settled_at is None:
            if not sealed or not _settle(db, run_id, gate, witness, now):
                continue
            settled += 1
            if gate_stage is not None:
                _add_gate_item(db, run_id, now)
        run(db, "run_finish", run=run_id, now=now)
        if db.changes():
            finished += 1
            run(
                db, "insert_event", now=now, kind=Kind.RUN_FINISHED, pipeline=pipeline, run=run_id,
                stage=None, data=None,
            )  # fmt: skip
    paged = [row[0] for row in page if row[7]]
    return Swept(settled=settled, finished=finished), paged[-1] if len(paged) >= SWEEP_MAX else ""


def _settle(db: apsw.Connection, run_id: str, gate: str | None, witness: int, now: int) -> bool:
    """Open the gate if nothing keeps it shut. The witness saves looking at every item each time:
    members before it were seen settled, so the look begins there; but only a look at all opens."""
    shut_by = run(db, "open_member", run=run_id, witness=witness, gate=gate).get
    if shut_by is None:
        run(db, "run_settle", run=run_id, now=now)
        if db.changes():
            return True
    # None: one that was seen settled is open again, and the next look begins at the start.
    seen = 0 if shut_by is None else shut_by - 1
    if seen != witness:
        run(db, "run_witness", run=run_id, witness=seen)
    return False


def _add_gate_item(db: apsw.Connection, run_id: str, now: int) -> None:
    item = run(db, "gate_item", run=run_id, key=GATE_KEY + run_id, now=now).get
    run(db, "add_events", first=item, last=item, kind=Kind.GATE_OPENED, now=now)
    run(db, "run_gate_item", run=run_id, item=item)


# --- operators ---------------------------------------------------------------------------------


def act(
    db: apsw.Connection, command: Command, targets: Sequence[Target], stage: str, why: str, now: int
) -> list[int]:
    parameters: dict[str, Any] = {"now": now}
    parameters["targets"] = json.dumps([[t.item, t.version, t.lane] for t in targets])
    if command == "retry":
        parameters["stage"] = stage
    if command == "cancel":
        parameters["why"] = why or "cancelled by an operator"
    changed = _rows(db, f"act_{command}", **parameters)
    kind = KIND_OF_COMMAND[command]
    data = json.dumps({"why": why}) if why else None
    events = [_event(kind, row, data) for row in changed]
    if events:
        run(db, "insert_events", rows=json.dumps(events), now=now)
    return [row[0] for row in changed]


def tune(
    db: apsw.Connection,
    pipeline: str,
    stage: str,
    limit: int | None,
    paused: bool | None,
    why: str,
    now: int,
) -> None:
    where = {"pipeline": pipeline, "stage": stage}
    done: list[tuple[Kind, dict[str, Any]]] = []
    if limit is not None:
        run(db, "tune_limit", **where, most=limit or None)
        done.append((Kind.LIMITED, {"limit": limit or None, "why": why}))
    if paused is not None:
        if paused:
            run(db, "tune_pause", **where, now=now, why=why)
        else:
            run(db, "tune_resume", **where)
        done.append((Kind.PAUSED if paused else Kind.RESUMED, {"why": why}))
    if done and not db.changes():
        raise StoreError(f"there is no stage {stage!r} of a pipeline {pipeline!r} here")
    for kind, data in done:
        run(
            db, "insert_event", now=now, kind=kind, pipeline=pipeline, run=None, stage=stage,
            data=json.dumps(data),
        )  # fmt: skip


def register(db: apsw.Connection, pipeline: Pipeline) -> None:
    """Make a pipeline known: its state names, and the bounds of its stages."""
    run(db, "register_pipeline", name=pipeline.name, states=state_table(pipeline))
    for parameters in stage_rows(pipeline):
        run(db, "register_stage", **parameters)


def prune(db: apsw.Connection, before: int) -> int:
    run(db, "prune_events", before=before, most=SWEEP_MAX * 10)
    events = db.changes()
    run(db, "prune_parts", before=before)
    run(db, "prune_results", before=before, most=SWEEP_MAX * 10)
    return events + db.changes()
