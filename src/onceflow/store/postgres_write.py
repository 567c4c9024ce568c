"""The writes of the PostgreSQL store, each inside one transaction.

Others write at the same moment. So that nobody waits in a circle, every transaction takes its locks
in one order: items that are there (by id), runs (by id), new keys (in their order), and the rows of
bounded stages at the very end. What is read after a lock is read by a statement of its own, whose
snapshot has the last commit in it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncpg.exceptions import UniqueViolationError

from onceflow.core.errors import StoreError
from onceflow.core.item import Added, Kind, Lease, Phase, Seed
from onceflow.core.pipeline import GATE_KEY, Pipeline
from onceflow.core.transition import NOTHING_SPENT, NULL, Part, Usage, deeper, encode
from onceflow.store.base import (
    APART_MS,
    LANES_WALKED_MAX,
    RUNS_IN_TURN_MAX,
    SWEEP_MAX,
    WORKER_FORGOTTEN_MS,
    Add,
    Claim,
    Claimed,
    Command,
    Finish,
    Swept,
    Target,
    Worker,
)
from onceflow.store.postgres_connect import Restart, Transaction, inlined
from onceflow.store.queries import sql
from onceflow.store.rules import (
    KIND_OF_COMMAND,
    Holds,
    Known,
    Nearer,
    again_why,
    at_limit,
    lanes_now,
    made_ready,
    make_room,
    names_of,
    nearer,
    next_lease,
    shallowest,
    spent_by_run,
    stage_rows,
    state_table,
    within_budget,
)

if TYPE_CHECKING:
    import asyncpg

LOCK_CLASS = 0x4F4E4345  # "ONCE": our advisory locks; number 0 of them is the schema's
STATEMENT_ROWS_MAX = 5000
STATEMENT_BYTES_MAX = 64 * 1024 * 1024
"""How much one statement carries; the server takes a gigabyte at the most."""
OPEN_MAX = 1000
"""So many open items are asked which runs they keep shut; if there are more, the runs are asked."""
PASSES_MAX = 10
"""How often a claim goes round the runs to use up its room."""

StageName: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class Remembered:
    """What the last claims found of stages: it only says how to ask next, and may be wrong."""

    bounded: set[StageName] = field(default_factory=set)
    crowded: set[StageName] = field(default_factory=set)
    """Several runs take turns there."""

    def keep(self, stage: StageName, *, bounded: bool, runs: int) -> None:
        (self.bounded.add if bounded else self.bounded.discard)(stage)
        (self.crowded.add if runs > 1 else self.crowded.discard)(stage)


def share_stages(claims: Iterable[Claim], finishes: Iterable[Finish] = ()) -> str:
    """What goes along with BEGIN when stages are claimed: nobody changes their bounds meanwhile."""
    keys = _stages_claimed(claims, finishes)
    text = sql("postgres", "share_stage")
    return "".join("; " + inlined(text, **{"class": LOCK_CLASS, "key": key}) for key in keys)


def _stages_claimed(claims: Iterable[Claim], finishes: Iterable[Finish]) -> list[int]:
    stages = {(wish.pipeline, wish.stage) for wish in claims}
    stages.update((one.lease.pipeline, one.change.stage) for one in finishes if one.claim_next)
    return sorted({_stage_key(*stage) for stage in stages})


def own_stages(stages: Iterable[tuple[str, str]]) -> str:
    """What goes along with BEGIN when the bounds of stages change: no claim is under way."""
    keys = sorted({_stage_key(*stage) for stage in stages})
    text = sql("postgres", "own_stage")
    return "".join("; " + inlined(text, **{"class": LOCK_CLASS, "key": key}) for key in keys)


def _stage_key(pipeline: str, stage: str) -> int:
    """Two stages that share a number only wait for each other a little."""
    return zlib.crc32(f"{pipeline}/{stage}".encode()) >> 1 or 1


# --- claim -------------------------------------------------------------------------------------


async def claim_all(
    db: Transaction,
    claims: Sequence[Claim],
    worker: str,
    seen: Remembered,
    shut: Holds | None = None,
) -> list[Claimed]:
    """Shut lanes that were told to wait, then claim for every wish; stages in the order of their
    names, since some will be locked: at once those that had bounds last time."""
    answers: dict[int, Claimed] = {}
    wishes = {(wish.pipeline, wish.stage, at): wish for at, wish in enumerate(claims)}
    places = [*wishes, *((*stage, -1) for stage in shut or ())]
    for pipeline, stage, at in sorted(places):  # a stage's lanes are shut before it is claimed
        if at < 0:
            assert shut is not None
            await db.row("stage_lock", pipeline=pipeline, stage=stage)
            lanes = shut[pipeline, stage]
            await db.rows(
                "lane_hold", pipeline=pipeline, stage=stage, lanes=list(lanes),
                ms=list(lanes.values()),
            )  # fmt: skip
        else:
            answers[at] = await claim(db, claims[at], worker, seen)
    return [answers[at] for at in range(len(claims))]


async def claim(db: Transaction, wish: Claim, worker: str, seen: Remembered) -> Claimed:
    """Give leases of one stage, within its limit, to whose turn it is."""
    stage = wish.pipeline, wish.stage
    if stage not in seen.bounded:
        answer = await _claim(db, wish, worker, seen, locked=False)
        if answer is not None:
            return answer
    lock = await db.row("stage_lock", pipeline=wish.pipeline, stage=wish.stage)
    if lock is None:
        raise _unknown_stage(wish)
    if lock["laned"] and wish.item is None:
        return await _claim_lanes(db, wish, worker)
    answer = await _claim(db, wish, worker, seen, locked=True)
    assert answer is not None
    return answer


async def _claim(
    db: Transaction, wish: Claim, worker: str, seen: Remembered, *, locked: bool
) -> Claimed | None:
    """Claim of a stage without lanes, or of the one item named; None if the stage must be locked.

    The runs have equal shares; what some of them leave over is given to the others.
    """
    name = "claim" if wish.item is None else "claim_one"
    found: list[asyncpg.Record] = []
    rows: list[asyncpg.Record] = []
    room, more, contested = wish.count, False, 0
    for passes in range(PASSES_MAX):
        rows = await db.rows(
            name, pipeline=wish.pipeline, stage=wish.stage, before=wish.before,
            count=room - len(found), turn=wish.turn + passes, item=wish.item, worker=worker,
            locked=locked, runs_max=RUNS_IN_TURN_MAX,
        )  # fmt: skip
        if not rows:
            raise _unknown_stage(wish)
        first = rows[0]
        if passes == 0:
            stage = wish.pipeline, wish.stage
            seen.keep(stage, bounded=first["bounded"], runs=first["runs"])
            room = first["room"]
        if first["bounded"] and not locked:
            return None
        contested += int(first["contested"])
        if first["id"] is None:
            break
        found += rows
        more = first["more"]
        if len(found) >= room or first["runs"] == 1:
            break
    if len(found) > len(rows):
        found.sort(key=lambda row: (row["priority"], row["id"]))
    more = more and len(found) == wish.count
    return Claimed(_leases(wish, found), wish.lane, more, contested=contested)


async def _claim_lanes(db: Transaction, wish: Claim, worker: str) -> Claimed:
    """Leases of open lanes, one of each a round, until there is no room left."""
    claimed, spare = await _claim_round(db, wish, worker)
    while spare and (next_wish := _next_round(wish, claimed)) is not None:
        more, spare = await _claim_round(db, next_wish, worker)
        claimed = _together(claimed, more)
    return claimed


def _next_round(wish: Claim, claimed: Claimed) -> Claim | None:
    """A round through the lanes took one item of each: what to ask for in the next one, if there is
    room left. What is claimed in one transaction need not be asked for by another."""
    left = wish.count - len(claimed.leases)
    if left <= 0:
        return None
    return replace(wish, count=left, lane=claimed.lane, turn=wish.turn + len(claimed.leases))


def _together(claimed: Claimed, more: Claimed) -> Claimed:
    """What two rounds gave."""
    opens = [ms for ms in (claimed.opens_in_ms, more.opens_in_ms) if ms is not None]
    return more._replace(
        leases=[*claimed.leases, *more.leases],
        opens_in_ms=min(opens, default=None),
        contested=claimed.contested + more.contested,
    )


async def _claim_round(db: Transaction, wish: Claim, worker: str) -> tuple[Claimed, bool]:
    """One lease of each open lane, the lanes in turn from where the last claim stopped, and whether
    they have more to give."""
    rows = await db.rows(
        "claim_lanes", pipeline=wish.pipeline, stage=wish.stage, before=wish.before,
        count=wish.count, turn=wish.turn, lane=wish.lane, worker=worker,
        runs_max=RUNS_IN_TURN_MAX, walked=LANES_WALKED_MAX,
    )  # fmt: skip
    first = rows[0]
    leases = _leases(wish, rows) if first["id"] is not None else []
    if first["room"] <= 0:
        return Claimed((), wish.lane), False
    if first["ended"]:
        lane = first["served"] or wish.lane
        spare = bool(leases) and first["spare"]
        return Claimed(leases, lane, first["spare"], first["opens_in_ms"]), spare
    more = not at_limit(wish, first["room"], len(leases))
    return Claimed(leases, first["at"], more, first["opens_in_ms"]), False


def _leases(wish: Claim, rows: Iterable[asyncpg.Record]) -> list[Lease]:
    pipeline, stage = wish.pipeline, wish.stage
    return [
        Lease(
            row["id"], pipeline, row["key"], stage, row["fence"], row["attempt"],
            row["generation"], row["run"], row["depth"], row["now"], row["body"],
        )
        for row in rows
    ]  # fmt: skip


def _unknown_stage(wish: Claim) -> StoreError:
    return StoreError(f"stage {wish.pipeline}/{wish.stage} is not registered in this database")


# --- exchange ----------------------------------------------------------------------------------


def is_simple(finishes: Sequence[Finish], claims: Sequence[Claim], seen: Remembered) -> bool:
    """Whether one statement may do: nothing but to finish, and to claim of stages without bounds
    where one run alone is at work, as far as is known, and not more than one can carry."""
    if len(finishes) > STATEMENT_ROWS_MAX:
        return False
    for wish in claims:
        stage = wish.pipeline, wish.stage
        if wish.item is not None or stage in seen.bounded or stage in seen.crowded:
            return False
    weight = 0
    for _, change, _ in finishes:
        if change.has_extras or change.hold is not None or len(change.events) > 1:
            return False
        weight += len(change.result or b"")
    return weight <= STATEMENT_BYTES_MAX


async def exchange(
    db: Transaction,
    worker: str,
    finishes: Sequence[Finish],
    claims: Sequence[Claim],
    pipelines: Mapping[str, Pipeline],
) -> tuple[set[int], list[Lease], list[Claimed | None]]:
    """Finish and claim by one statement, where that is simple: which finishes were kept, the leases
    of those that went on, and what each claim gave; None where it takes more than one look."""
    order = sorted(range(len(finishes)), key=lambda at: finishes[at].lease.item)
    rows = await db.rows(
        "exchange", worker=worker, sender=db.sender, ended=bool(finishes),
        ready=made_ready(finishes), tell=make_room(finishes, pipelines),
        locks=_array(_stages_claimed(claims, finishes)), **{"class": LOCK_CLASS},
        of_pipelines=[wish.pipeline for wish in claims],
        of_stages=[wish.stage for wish in claims], befores=[wish.before for wish in claims],
        counts=_array(wish.count for wish in claims), turns=_array(wish.turn for wish in claims),
        runs_max=RUNS_IN_TURN_MAX, **_columns(order, finishes, {}),
    )  # fmt: skip
    kept: set[int] = set()
    continued: list[Lease] = []
    if finishes:
        kept, continued = _kept(rows.pop(0), order, finishes)
    looks: dict[int, list[asyncpg.Record]] = {at: [] for at in range(1, len(claims) + 1)}
    for row in rows:
        looks[row["wish"]].append(row)
    claimed = [_at_once(wish, look) for wish, look in zip(claims, looks.values(), strict=True)]
    return kept, continued, claimed


def _at_once(wish: Claim, rows: Sequence[asyncpg.Record]) -> Claimed | None:
    if not rows:
        raise _unknown_stage(wish)
    first = rows[0]
    if first["bounded"] or first["runs"] > 1:
        return None
    leases = [] if first["id"] is None else _leases(wish, rows)
    return Claimed(leases, wish.lane, first["more"], contested=first["contested"])


# --- finish ------------------------------------------------------------------------------------


async def finish(
    db: Transaction,
    worker: str,
    finishes: Sequence[Finish],
    pipelines: Mapping[str, Pipeline],
    first: set[int],
) -> tuple[list[bool], list[Lease]]:
    """Make the transitions whose leases still hold; say for each whether it was kept, and give the
    leases of those that went on at once."""
    if first:
        ids = sorted(first.union(one.lease.item for one in finishes))
        await db.rows("lock_items", ids=ids)
    finishes = await _by_key(db, finishes)
    kept: set[int] = set()
    continued: list[Lease] = []
    order = sorted(range(len(finishes)), key=lambda at: finishes[at].lease.item)
    spent = spent_by_run(finishes)
    for places in _in_bites(order, [len(one.change.result or b"") for one in finishes]):
        row = await db.row("finish", worker=worker, **_columns(places, finishes, spent))
        assert row is not None
        some, going_on = _kept(row, places, finishes)
        kept |= some
        continued += going_on
    talkative = [finishes[at] for at in kept if len(finishes[at].change.events) > 1]
    if talkative:
        await db.rows("finish_more", worker=worker, **_more_columns(talkative))
    if kept:
        await _admit_extras(db, [finishes[at] for at in sorted(kept)], pipelines, first)
    kept |= await kept_before(db, worker, finishes, kept)
    return [at in kept for at in range(len(finishes))], continued


def _kept(
    row: asyncpg.Record, places: Sequence[int], finishes: Sequence[Finish]
) -> tuple[set[int], list[Lease]]:
    """Which finishes a statement says were kept, and the leases of those that went on."""
    continued = [
        next_lease(finishes[places[at - 1]], row["ended_at"]) for at in row["continued"] or ()
    ]
    return {places[at - 1] for at in row["kept"] or ()}, continued


async def kept_before(
    db: Transaction, worker: str, finishes: Sequence[Finish], kept: Container[int]
) -> set[int]:
    """Of the others: those that were kept when they were asked for before, without an answer."""
    lost = [at for at in range(len(finishes)) if at not in kept]
    if not lost:
        return set()
    known = await db.rows(
        "finish_known", worker=worker, places=lost,
        items=[finishes[at].lease.item for at in lost],
        fences=[finishes[at].lease.fence for at in lost],
    )  # fmt: skip
    return {row["place"] for row in known}


async def _by_key(db: Transaction, finishes: Sequence[Finish]) -> Sequence[Finish]:
    """Of transitions that give their items keys of their own: those that can be made."""
    named = [at for at, one in enumerate(finishes) if one.change.key is not None]
    if not named:
        return finishes
    rows = await db.rows(
        "key_taken", places=named, pipelines=[finishes[at].lease.pipeline for at in named],
        keys=[finishes[at].change.key for at in named],
        items=[finishes[at].lease.item for at in named],
    )  # fmt: skip
    taken = {row["place"] for row in rows}
    given: set[tuple[str, str | None]] = set()
    answers = list(finishes)
    for at in named:
        one = finishes[at]
        if at in taken or (one.lease.pipeline, one.change.key) in given:
            answers[at] = one._replace(change=one.change.if_taken)
        given.add((one.lease.pipeline, one.change.key))
    return answers


async def _rename(db: Transaction, kept: Sequence[Finish]) -> None:
    """Give items the keys that are their own; their old keys are aliases then."""
    named = [
        (one.lease.pipeline, one.change.key, one.lease.item)
        for one in kept
        if one.change.key is not None and one.change.key != one.lease.key
    ]
    if named:
        renamed = await db.rows(
            "rename", pipelines=[row[0] for row in named], keys=[row[1] for row in named],
            items=[row[2] for row in named],
        )  # fmt: skip
        if len(renamed) < len(named):  # somebody was quicker: seen at the next try
            raise Restart


def _columns(
    places: Sequence[int], finishes: Sequence[Finish], spent: Mapping[str, Usage]
) -> dict[str, Any]:
    """The parameters of `finish`. Most transitions of a batch are alike, so what they have in
    common is sent once, as a shape, and each item only says which is its own; not even that where
    there is only one. Numbers go as text: the driver looks at each element of a list."""
    shapes: dict[tuple[Any, ...], int] = {}
    items: list[int] = []
    fences: list[int] = []
    bodies: list[bytes | None] = []
    which: list[int] = []
    for at in places:
        lease, change, claim_next = finishes[at]
        claim_next = claim_next and change.goes_on
        first = change.events[0] if change.events else None
        is_nothing = change.result == NULL
        shape = (
            lease.stage, lease.attempt, lease.claimed_at, change.stage, change.phase,
            change.attempt, change.lane, change.delay_ms, change.error, change.error_code,
            len(change.events), None if first is None else first.kind,
            None if first is None else _json(first.data),
            lease.pipeline if claim_next else None, lease.run if claim_next else None,
            NULL if is_nothing else None,
            *(spent.get(lease.run, NOTHING_SPENT) if claim_next else NOTHING_SPENT),
        )  # fmt: skip
        items.append(lease.item)
        fences.append(lease.fence)
        bodies.append(None if is_nothing else change.result)
        which.append(shapes.setdefault(shape, len(shapes) + 1))
    common = (
        dict(zip(SHAPE, map(list, zip(*shapes, strict=True)), strict=True)) if shapes else NO_SHAPE
    )
    return {
        **common, "costs": _array(common["costs"]), "items": _array(items),
        "fences": _array(fences), "bodies": bodies if any(bodies) else [],
        "shapes": _array(which if len(shapes) > 1 else ()),
    }  # fmt: skip


SHAPE = (
    "stages", "used", "claimed", "next_stages", "phases", "attempts", "lanes", "delays", "errors",
    "codes", "events", "kinds", "datas", "pipelines", "runs", "nothings", "tokens", "costs",
)  # fmt: skip


NO_SHAPE: Mapping[str, list[Any]] = {name: [] for name in SHAPE}


def _array(numbers: Iterable[float]) -> str:
    """An array as the server reads it."""
    return f"{{{','.join(map(str, numbers))}}}"


def _more_columns(finishes: Sequence[Finish]) -> dict[str, list[Any]]:
    """The events after the first ones."""
    more = [
        (lease, len(change.events), number, event)
        for lease, change, _ in finishes
        for number, event in enumerate(change.events[1:], start=2)
    ]
    return {
        "items": [lease.item for lease, _, _, _ in more],
        "stages": [lease.stage for lease, _, _, _ in more],
        "used": [lease.attempt for lease, _, _, _ in more],
        "claimed": [lease.claimed_at for lease, _, _, _ in more],
        "events": [count for _, count, _, _ in more],
        "numbers": [number for _, _, number, _ in more],
        "kinds": [event.kind for _, _, _, event in more],
        "datas": [_json(event.data) for _, _, _, event in more],
    }


def _json(data: dict[str, Any] | None) -> str | None:
    return None if data is None else json.dumps(data)


def _in_bites(order: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """The places in pieces that one statement can carry."""
    bite: list[int] = []
    weight = 0
    for at in order:
        if bite and (len(bite) >= STATEMENT_ROWS_MAX or weight + sizes[at] > STATEMENT_BYTES_MAX):
            yield bite
            bite, weight = [], 0
        bite.append(at)
        weight += sizes[at]
    if bite:
        yield bite


async def _admit_extras(
    db: Transaction, kept: Sequence[Finish], pipelines: Mapping[str, Pipeline], first: set[int]
) -> None:
    """Aliases, what was spent, and children: rare. All runs that change are locked before."""
    costly = [one for one in kept if one.change.usage.tokens or one.change.usage.cost]
    parents = [one for one in kept if one.change.children]
    pairs: list[asyncpg.Record] = []
    runs: list[asyncpg.Record] = []
    if costly or parents:
        items = {one.lease.item for one in (*costly, *parents)}
        pairs = await db.rows("runs_of", items=sorted(items))
        ids = {row["run"] for row in pairs} | {one.lease.run for one in costly}
        runs = await db.rows("run_lock", ids=sorted(ids))
        # Again: before it was locked, a run may have found a shorter way.
        pairs = await db.rows("runs_of", items=sorted(items)) if parents else []
    await _rename(db, kept)
    aliases = sorted(
        (one.lease.pipeline, key, one.lease.item) for one in kept for key in one.change.aliases
    )
    if aliases:
        await db.rows(
            "add_aliases", pipelines=[row[0] for row in aliases],
            keys=[row[1] for row in aliases], items=[row[2] for row in aliases],
        )  # fmt: skip
    if costly:
        await db.rows(
            "run_spend", items=[one.lease.item for one in costly],
            tokens=[one.change.usage.tokens for one in costly],
            costs=[one.change.usage.cost for one in costly],
            runs=[row["id"] for row in runs],
        )  # fmt: skip
    for one in sorted(kept, key=lambda one: one.lease.item):
        if one.change.had_parts:
            await db.rows("forget_parts", item=one.lease.item, stage=one.lease.stage)
    if parents:
        children: dict[str, list[Seed]] = {}
        depths = {(row["run"], row["item"]): row["depth"] for row in pairs}
        for row in runs:
            for one in parents:
                depth = depths.get((row["id"], one.lease.item))
                if depth is not None:
                    children.setdefault(row["id"], []).extend(deeper(one.change.children, depth))
        for row in runs:
            if row["id"] in children:
                pipeline = pipelines[row["pipeline"]]
                await admit(db, pipeline, row, children[row["id"]], first)


# --- add ---------------------------------------------------------------------------------------


async def add(db: Transaction, request: Add, first: set[int]) -> Added:
    """Accept items into a run: the new ones are ready, the known ones join as they are."""
    pipeline = request.pipeline
    if first:
        await db.rows("lock_items", ids=sorted(first))
    run = await _begin_run(db, request)
    return await admit(db, pipeline, run, request.seeds, first, seal=request.seal, by_caller=True)


async def _begin_run(db: Transaction, request: Add) -> asyncpg.Record:
    """The run's row, locked; made if it is not there yet."""
    pipeline = request.pipeline
    run = await db.row(
        "run_create", id=request.run, pipeline=pipeline.name, max_items=request.max_items,
        max_depth=request.max_depth, max_tokens=request.max_tokens, max_cost=request.max_cost,
        **_gate_of(pipeline),
    )  # fmt: skip
    assert run is not None
    return run


def is_plain(request: Add, claims: Sequence[Claim]) -> bool:
    """Whether one statement may do: no budget, no bounds, and not more than one can carry."""
    seeds = request.seeds
    if claims and (
        len(claims) > 1 or claims[0].count < len(seeds) or request.pipeline.first.bounded
    ):
        return False
    few = 0 < len(seeds) <= STATEMENT_ROWS_MAX
    return few and request.max_items is None and sum(map(_size, seeds)) <= STATEMENT_BYTES_MAX


def _size(seed: Seed) -> int:
    return len(seed.key)


def is_one(request: Add, claims: Sequence[Claim]) -> bool:
    """Whether it is the simplest case: a key and nothing else, to be begun at once."""
    if not len(claims) == len(request.seeds) == 1:
        return False
    stage, [seed] = request.pipeline.first, request.seeds
    return (
        request.seal
        and request.max_items is request.max_depth is request.max_tokens is request.max_cost is None
        and seed.data is None
        and seed.priority == seed.depth == 0
        and not (stage.bounded or stage.held)
    )


class RunBegunMeanwhile(StoreError):
    """Somebody else began the same run at the same moment: nothing was added, ask again."""


async def add_fresh(
    db: Transaction, request: Add, worker: str, claims: Sequence[Claim]
) -> tuple[Added, list[Claimed]] | None:
    """Add in one statement, which also claims where nothing bounds the stage. It does not reach
    keys that are there already: the caller goes the longer way for those. None if the run is there
    already: nothing was done."""
    pipeline, stage = request.pipeline, request.pipeline.first
    wanted = shallowest(request.seeds, request.max_depth)
    seeds = list(wanted.values())
    bodies = [None if seed.data is None else encode(seed.data, seed.key, "") for seed in seeds]
    try:
        row = await db.row(
            "add_fresh", run=request.run, pipeline=pipeline.name, seal=int(request.seal),
            count=len(seeds), max_items=request.max_items, max_depth=request.max_depth,
            max_tokens=request.max_tokens, max_cost=request.max_cost,
            **_gate_of(pipeline), stage=stage.name,
            phase=Phase.WAITING if stage.held else Phase.READY,
            claim=bool(claims) and not stage.held, worker=worker, sender=db.sender,
            keys=[seed.key for seed in seeds], priorities=[seed.priority for seed in seeds],
            depths=[seed.depth for seed in seeds], bodies=bodies,
            lanes=[pipeline.lane_of(stage, seed.key) for seed in seeds],
        )  # fmt: skip
    except UniqueViolationError as error:
        raise RunBegunMeanwhile(f"run {request.run} was begun by somebody else") from error
    assert row is not None
    if not row["begun"]:
        return None
    made = dict(zip(row["keys"] or (), row["ids"] or (), strict=True))
    leases: list[Lease] = []
    if row["claimed"]:
        leases = [
            Lease(
                made[seed.key], pipeline.name, seed.key, stage.name, 1, 1, 1, request.run,
                seed.depth, row["now"], body,
            )
            for seed, body in zip(seeds, bodies, strict=True)
            if seed.key in made
        ]  # fmt: skip
    claimed = [Claimed(leases, claims[0].lane)] if leases else []
    return Added(request.run, len(made), len(seeds) - len(made)), claimed


async def add_one(
    db: Transaction, request: Add, worker: str, early: Callable[[Lease], None]
) -> Lease | None:
    """Add and claim one item: the general statement takes longer, and tells nobody early. None if
    that cannot be, for whatever reason: nothing was done."""
    pipeline, stage, [seed] = request.pipeline, request.pipeline.first, request.seeds

    def lease(number: int, now: int) -> Lease:
        return Lease(
            number, pipeline.name, seed.key, stage.name, 1, 1, 1, request.run, 0, now, None
        )

    try:
        found = await db.numbers_early(
            "add_one", lambda number, now: early(lease(number, now)), run=request.run,
            pipeline=pipeline.name, stage=stage.name, worker=worker, key=seed.key,
            **_gate_of(pipeline), lock_class=LOCK_CLASS,
            lock_key=_stage_key(pipeline.name, stage.name),
        )  # fmt: skip
    except UniqueViolationError as error:
        raise RunBegunMeanwhile(f"run {request.run} was begun by somebody else") from error
    return None if found is None else lease(*found)


def _gate_of(pipeline: Pipeline) -> dict[str, str | None]:
    stage = pipeline.gate_stage
    return {
        "gate": None if stage is None else pipeline.gate,
        "gate_stage": None if stage is None else stage.name,
    }


async def admit(
    db: Transaction,
    pipeline: Pipeline,
    run: asyncpg.Record,
    seeds: Sequence[Seed],
    first: set[int],
    *,
    seal: bool = False,
    by_caller: bool = False,
) -> Added:
    """Put seeds into a run whose row is locked, exactly as many as its budget allows."""
    run_id = run["id"]
    if run["pipeline"] != pipeline.name:
        raise StoreError(
            f"run {run_id} belongs to pipeline {run['pipeline']!r}, not {pipeline.name!r}"
        )
    wanted = shallowest(seeds, run["max_depth"])
    keys = list(wanted)
    found = await _known(db, keys, pipeline, run_id)
    known = {one.key: one.item for one in found}
    members = {one.item for one in found if one.in_run is not None}
    left = len(keys) if run["max_items"] is None else run["max_items"] - run["accepted"]
    fresh, joined, over = within_budget(wanted, known, members, left)
    if run["sealed"] and by_caller and (fresh or joined):
        raise StoreError(f"run {run_id} is sealed; add to a new run")
    ways = nearer(wanted, found, joined)
    await _draw_nearer(db, pipeline, run_id, ways, members, first)
    made = await _insert_items(db, pipeline, run_id, fresh)
    depths = {item: ways.of_run[item] for item in joined}
    if made < len(fresh):  # others were quicker with some of them: those are known now
        again = await _known(db, [seed.key for seed in fresh], pipeline, run_id)
        late = [one for one in again if one.in_run is None]
        ways = nearer(wanted, late, [one.item for one in late])
        await _draw_nearer(db, pipeline, run_id, ways, members, first)
        depths |= ways.of_run
    joins = []
    if depths:
        joins = await db.rows(
            "add_members", run=run_id, ids=list(depths), depths=list(depths.values())
        )
    if made or joins or seal:
        await db.rows("run_accept", id=run_id, count=made + len(joins), seal=int(seal))
    return Added(run_id, made, len(wanted) - made - over, over)


async def _known(
    db: Transaction, keys: Sequence[str], pipeline: Pipeline, run_id: str
) -> list[Known]:
    rows = await db.rows("add_known", keys=keys, pipeline=pipeline.name, run=run_id)
    return [Known(keys[row["place"] - 1], row["id"], row["depth"], row["in_run"]) for row in rows]


async def _draw_nearer(
    db: Transaction,
    pipeline: Pipeline,
    run_id: str,
    ways: Nearer,
    members: Container[int],
    first: set[int],
) -> None:
    """Known items get the shortest depths; what depends on those is done again. An item that
    somebody else has locked is not waited for here, with a run locked: the transaction begins again
    and locks it first."""
    if ways.of_run:
        ids, nearest = list(ways.of_run), list(ways.of_run.values())
        await db.rows("add_nearer", run=run_id, ids=ids, depths=nearest)
    stage = pipeline.spreads
    # Where an item spreads, whoever finishes it must not miss that it joins the run.
    depths = ways.of_item if stage is None else {**ways.of_run, **ways.of_item}
    if not depths:
        return
    free = await db.rows("add_shallower", ids=list(depths), depths=list(depths.values()))
    if len(free) < len(depths):
        first.update(depths)
        raise Restart
    if stage is None:
        return
    targets: dict[bool, list[Target]] = {}
    for row in free:
        if row["phase"] == Phase.DONE and row["id"] in ways.of_run:
            target = Target(row["id"], row["version"], pipeline.lane_of(stage, row["key"]))
            targets.setdefault(row["id"] not in members, []).append(target)
    for joined, some in targets.items():
        await act(db, "retry", some, stage.name, again_why(run_id, joined))


async def _insert_items(
    db: Transaction, pipeline: Pipeline, run_id: str, seeds: Sequence[Seed]
) -> int:
    """Make items, in the order of their keys but with ids in the order they came; how many were
    made, since some keys may have come into being meanwhile."""
    if not seeds:
        return 0
    stage = pipeline.first
    ids = [row["id"] for row in await db.rows("next_ids", count=len(seeds))]
    lanes = [pipeline.lane_of(stage, seed.key) for seed in seeds]
    order = sorted(range(len(seeds)), key=lambda at: seeds[at].key)
    made: set[int] = set()
    for bite in _in_bites(order, [len(seed.key) for seed in seeds]):
        rows = await db.rows(
            "add_items", pipeline=pipeline.name, stage=stage.name, run=run_id,
            phase=Phase.WAITING if stage.held else Phase.READY, ids=[ids[at] for at in bite],
            keys=[seeds[at].key for at in bite], priorities=[seeds[at].priority for at in bite],
            depths=[seeds[at].depth for at in bite], lanes=[lanes[at] for at in bite],
        )  # fmt: skip
        made.update(row["id"] for row in rows)
    await _store_seeds(db, {ids[at]: seed for at, seed in enumerate(seeds) if ids[at] in made})
    return len(made)


async def _store_seeds(db: Transaction, seeds: Mapping[int, Seed]) -> None:
    """What came with new items, by their ids, is their first stage's input."""
    bodies = [
        (item, encode(seed.data, seed.key, ""))
        for item, seed in seeds.items()
        if seed.data is not None
    ]
    for bite in _in_bites(range(len(bodies)), [len(body) for _, body in bodies]):
        ids, parts = [bodies[at][0] for at in bite], [bodies[at][1] for at in bite]
        await db.rows("add_results", ids=ids, bodies=parts)


# --- renew, beat -------------------------------------------------------------------------------


async def renew(db: Transaction, lease: Lease, text: str | None, part: Part | None) -> bool:
    held = bool(await db.rows("renew", item=lease.item, fence=lease.fence, text=text))
    if held and part is not None:
        runs: list[asyncpg.Record] = []
        if any(part.usage):
            pairs = await db.rows("runs_of", items=[lease.item])
            ids = {row["run"] for row in pairs} | {lease.run}
            runs = await db.rows("run_lock", ids=sorted(ids))
        fresh = await db.rows(
            "save_part", item=lease.item, fence=lease.fence, name=part.name, body=part.body
        )
        if fresh and runs:  # kept before, its reply was lost: it was counted then
            await db.rows(
                "run_spend", items=[lease.item], tokens=[part.usage.tokens],
                costs=[part.usage.cost], runs=[row["id"] for row in runs],
            )  # fmt: skip
    return held


async def beat(db: Transaction, worker: Worker, boot: str, report: str | None) -> bool:
    [row] = await db.rows(
        "beat", id=worker.id, host=worker.host, pid=worker.pid, boot=boot, report=report
    )
    return bool(row["fresh"])


# --- sweep -------------------------------------------------------------------------------------


async def sweep(
    db: Transaction, runs: Sequence[str], after: str, pipelines: Mapping[str, Pipeline]
) -> tuple[Swept, str]:
    """Take back what dead or hung workers hold, wake what is due, open gates and end runs. Nothing
    here waits for anybody: what is locked is somebody else's to do, or is done next time."""
    taken = await db.row("reclaim", most=SWEEP_MAX, apart_ms=APART_MS)
    await db.rows("forget_partials")
    await db.rows("forget_workers", silent_ms=WORKER_FORGOTTEN_MS)
    woken = await db.row("promote", most=SWEEP_MAX)
    assert taken is not None
    assert woken is not None
    relaned = await _relane(db, pipelines)
    settled, missed, finished, page = await _settle_runs(db, runs, after)
    due = woken["due_in_ms"]
    swept = Swept(
        taken["reclaimed"],
        woken["promoted"] + relaned,
        settled,
        finished,
        None if due is None else max(0, due),
        bool(page),
        missed,
    )
    return swept, page


async def _relane(db: Transaction, pipelines: Mapping[str, Pipeline]) -> int:
    """Put ready items that no claim would find into the lanes that their stages have now."""
    found = await db.rows("mislaid", pipelines=names_of(pipelines), most=SWEEP_MAX)
    places = [(row["id"], row["pipeline"], row["stage"], row["key"], row["lane"]) for row in found]
    lanes = lanes_now(places, pipelines)
    if not lanes:
        return 0
    ids, names, stages = zip(*lanes, strict=True)
    return len(await db.rows("relane", ids=ids, lanes=names, stages=stages))


async def _settle_runs(
    db: Transaction, runs: Sequence[str], after: str
) -> tuple[int, int, int, str]:
    """Open the gates that are due, count those that others had locked, and end the runs that are
    over; where to go on next time."""
    page = await db.rows("unfinished_runs", ids=list(runs), after=after, most=SWEEP_MAX)
    over = [row["id"] for row in page if row["settled_at"] is not None]
    looked_at = [
        row for row in page if row["sealed"] and row["settled_at"] is None and not row["shuts"]
    ]
    due = [row["id"] for row in looked_at if row["shut_by"] is None]
    seen = [
        (row["id"], row["shut_by"] - 1)
        for row in looked_at
        if row["shut_by"] is not None and row["shut_by"] - 1 != row["witness"]
    ]
    asked = {"runs": due, "gate_key": GATE_KEY, "few": OPEN_MAX}
    opened = await db.rows("run_settle", **asked) if due else []
    shut = set(due).difference(row["id"] for row in opened)
    missed = 0
    if shut:  # one that was seen settled is open again, or somebody has the run locked
        found = await db.rows("run_look", runs=sorted(shut))
        seen += [(row["id"], (row["shut_by"] or 1) - 1) for row in found]
        missed = sum(row["shut_by"] is None for row in found)
    if seen:
        await db.rows(
            "run_witness", runs=[run for run, _ in seen], witnesses=[item for _, item in seen]
        )
    over += [row["id"] for row in opened if row["gate_stage"] is None]
    ended = await db.rows("run_finish", runs=over) if over else []
    paged = [row["id"] for row in page if row["paged"]]
    page_end = paged[-1] if len(paged) >= SWEEP_MAX else ""
    return len(opened), missed, len(ended), page_end


# --- operators ---------------------------------------------------------------------------------


async def act(
    db: Transaction, command: Command, targets: Sequence[Target], stage: str, why: str
) -> list[int]:
    rows = await db.rows(
        f"act_{command}",
        items=[target.item for target in targets],
        versions=[target.version for target in targets],
        lanes=[target.lane for target in targets],
        stage=stage,
        why=why or "cancelled by an operator",
        kind=KIND_OF_COMMAND[command],
        data=json.dumps({"why": why}) if why else None,
    )
    return [row["id"] for row in rows]


async def tune(
    db: Transaction, pipeline: str, stage: str, limit: int | None, paused: bool | None, why: str
) -> None:
    done: list[tuple[Kind, dict[str, Any]]] = []
    found = True
    if limit is not None:
        found = bool(
            await db.rows("tune_limit", pipeline=pipeline, stage=stage, most=limit or None)
        )
        done.append((Kind.LIMITED, {"limit": limit or None, "why": why}))
    if paused is not None:
        name = "tune_pause" if paused else "tune_resume"
        found = bool(await db.rows(name, pipeline=pipeline, stage=stage, why=why))
        done.append((Kind.PAUSED if paused else Kind.RESUMED, {"why": why}))
    if not found:
        raise StoreError(f"there is no stage {stage!r} of a pipeline {pipeline!r} here")
    for kind, data in done:
        await db.rows(
            "insert_event", kind=kind, pipeline=pipeline, run=None, stage=stage,
            data=json.dumps(data),
        )  # fmt: skip


async def register(db: Transaction, pipeline: Pipeline) -> None:
    """Make a pipeline known: its state names, and the bounds of its stages."""
    await db.rows("register_pipeline", name=pipeline.name, states=state_table(pipeline))
    for parameters in stage_rows(pipeline):
        await db.rows("register_stage", **parameters)


async def prune(db: Transaction, before: int) -> int:
    most = SWEEP_MAX * 10
    events = await db.rows("prune_events", before=before, most=most)
    await db.rows("prune_parts", before=before)
    return len(events) + len(await db.rows("prune_results", before=before, most=most))
