"""The writes of the PostgreSQL store, each inside one transaction.

Others write at the same moment. So that nobody waits in a circle, every transaction takes its locks
in one order: items that are there (by id), runs (by id), new keys (in their order), and the rows of
bounded stages at the very end. What is read after a lock is read by a statement of its own, whose
snapshot has the last commit in it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpg.exceptions import UniqueViolationError

from onceflow.core.errors import StoreError
from onceflow.core.item import Added, Kind, Lease, Mark, Phase, Seed
from onceflow.core.pipeline import GATE_KEY, Pipeline
from onceflow.core.transition import NOTHING_SPENT, NULL, Part, Released, Usage, deeper, encode
from onceflow.store.base import (
    APART_MS,
    DEATHS_MAX,
    LANES_WALKED_MAX,
    RUNS_IN_TURN_MAX,
    SWEEP_MAX,
    WORKER_FORGOTTEN_MS,
    Accepted,
    Add,
    Claim,
    Claimed,
    Command,
    Finish,
    Kept,
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
    befores,
    lanes_now,
    made_ready,
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
TAKEN = "onceflow: known"
"""What `add_new` says when somebody else made a key at the same moment."""


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


# --- exchange ----------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What one statement did: the places of the finishes that were kept and of the leases that
    began, the leases of those that went on, and what each claim gave."""

    kept: set[int]
    continued: list[Lease]
    begun: set[int]
    claimed: list[Claimed]


def is_simple(finishes: Sequence[Finish]) -> bool:
    """Whether one statement does it: there is nothing but to finish, to begin and to claim, and not
    more than one can carry."""
    if len(finishes) > STATEMENT_ROWS_MAX:
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
    number: int,
    finishes: Sequence[Finish] = (),
    claims: Sequence[Claim] = (),
    begins: Sequence[Lease] = (),
    *,
    places: Sequence[int] | None = None,
    spent: Mapping[str, Usage] | None = None,
    tell: bool = False,
) -> Answer:
    """One statement: the finishes (or those at some places), the begins, and the claims."""
    if places is None:
        places = _by_item(finishes)
    named = [wish.item for wish in claims if wish.item is not None]
    first = sorted({*named, *(finishes[at].lease.item for at in places)} if named else ())
    order = _by_stage(claims)
    rows = await db.rows(
        "exchange", worker=worker, ticket=number, sender=db.sender, tell=tell,
        ready=made_ready(finishes[at] for at in places),
        locks=_array(_stages_claimed(claims, finishes)), **{"class": LOCK_CLASS},
        first=_array(first), **_columns(places, finishes, spent or {}),
        begin_items=_array(lease.item for lease in begins),
        begin_fences=_array(lease.fence for lease in begins),
        begin_tickets=_array(lease.ticket for lease in begins),
        **_wishes([claims[at] for at in order]),
        named=_array(claims[at].item or "NULL" for at in order),
    )  # fmt: skip
    done, rows = rows[0], rows[1:]
    kept, continued = _kept(done, places, finishes, number)
    begun = {at - 1 for at in done["begun"] or ()}
    return Answer(kept, continued, begun, _claimed(claims, order, rows, number))


def _by_item(finishes: Sequence[Finish]) -> list[int]:
    return sorted(range(len(finishes)), key=lambda at: finishes[at].lease.item)


def _by_stage(claims: Sequence[Claim]) -> list[int]:
    """Stages with bounds are locked in the order of their names."""
    return sorted(range(len(claims)), key=lambda at: (claims[at].pipeline, claims[at].stage, at))


def _wishes(claims: Sequence[Claim]) -> dict[str, Any]:
    """The parameters of `claim`, but for the names of items."""
    return {
        "of_pipelines": [wish.pipeline for wish in claims],
        "of_stages": [wish.stage for wish in claims],
        "befores": [wish.before for wish in claims],
        "counts": _array(wish.count for wish in claims),
        "turns": _array(wish.turn for wish in claims),
        "afters": [wish.lane for wish in claims],
        "after_runs": [wish.run for wish in claims],
        "prefetched": _array(wish.prefetch for wish in claims),
        "runs_max": RUNS_IN_TURN_MAX,
        "deaths_max": DEATHS_MAX,
        "lanes_max": LANES_WALKED_MAX,
    }


def _claimed(
    claims: Sequence[Claim], order: Sequence[int], rows: Sequence[asyncpg.Record], number: int
) -> list[Claimed]:
    """What each claim gave: its rows, of which the last one says how it went."""
    given: dict[int, list[asyncpg.Record]] = {at: [] for at in order}
    for row in rows:
        given[order[row["wish"] - 1]].append(row)
    answers = []
    for at, wish in enumerate(claims):
        if not given[at]:
            raise StoreError(
                f"stage {wish.pipeline}/{wish.stage} is not registered in this database"
            )
        end = given[at].pop()
        found = sorted(given[at], key=_in_order)
        leases = [
            Lease(
                row["id"], wish.pipeline, row["key"], wish.stage, row["fence"], row["attempt"],
                row["generation"], row["run"], row["depth"], row["now"], row["body"], number,
                row["alone"],
            )
            for row in found
        ]  # fmt: skip
        answers.append(
            Claimed(
                leases, end["goes_on_at"], end["more"], end["opens_in_ms"], end["is_full"],
                end["contested"], end["run"],
            )
        )  # fmt: skip
    return answers


_in_order = itemgetter("round", "priority", "depth", "id")


# --- finish ------------------------------------------------------------------------------------


async def finish(
    db: Transaction,
    worker: str,
    number: int,
    finishes: Sequence[Finish],
    pipelines: Mapping[str, Pipeline],
    first: set[int],
) -> tuple[list[Kept], list[Lease]]:
    """Make the transitions whose leases still hold, with all that belongs to them; say what became
    of each, and give the leases of those that went on at once."""
    if first:
        ids = sorted(first.union(one.lease.item for one in finishes))
        await db.rows("lock_items", ids=ids)
    finishes = await _by_key(db, finishes)
    kept: set[int] = set()
    continued: list[Lease] = []
    spent = spent_by_run(finishes)
    sizes = [len(one.change.result or b"") for one in finishes]
    for places in _in_bites(_by_item(finishes), sizes):
        answer = await exchange(db, worker, number, finishes, places=places, spent=spent)
        kept |= answer.kept
        continued += answer.continued
    talkative = [finishes[at] for at in kept if len(finishes[at].change.events) > 1]
    if talkative:
        await db.rows("finish_more", worker=worker, **_more_columns(talkative))
    if kept:
        await _admit_extras(db, [finishes[at] for at in sorted(kept)], pipelines, first)
    before = await kept_before(db, worker, finishes, kept)
    return said(len(finishes), kept, before), continued


def said(count: int, kept: Container[int], before: Container[int]) -> list[Kept]:
    """What became of each finish."""
    return [
        Kept.KEPT if at in kept else Kept.BEFORE if at in before else Kept.LOST
        for at in range(count)
    ]


async def hold_lanes(db: Transaction, shut: Holds, claims: Sequence[Claim]) -> None:
    """Shut lanes that were told to wait. All stages that will be locked are locked now, in the
    order of their names."""
    if not shut:
        return
    for pipeline, stage in sorted({*shut, *((wish.pipeline, wish.stage) for wish in claims)}):
        await db.row("stage_lock", pipeline=pipeline, stage=stage)
    for (pipeline, stage), lanes in shut.items():
        await db.rows(
            "lane_hold", pipeline=pipeline, stage=stage, lanes=list(lanes), ms=list(lanes.values())
        )


def _kept(
    row: asyncpg.Record, places: Sequence[int], finishes: Sequence[Finish], number: int
) -> tuple[set[int], list[Lease]]:
    """Which finishes a statement says were kept, and the leases of those that went on."""
    continued = [
        next_lease(finishes[places[at - 1]], number, row["ended_at"])
        for at in row["continued"] or ()
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
        pipelines=[finishes[at].lease.pipeline for at in lost],
        keys=[finishes[at].lease.key for at in lost],
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
    tickets: list[int] = []
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
        tickets.append(lease.ticket)
        bodies.append(None if is_nothing else change.result)
        which.append(shapes.setdefault(shape, len(shapes) + 1))
    common = (
        dict(zip(SHAPE, map(list, zip(*shapes, strict=True)), strict=True)) if shapes else NO_SHAPE
    )
    return {
        **common, "costs": _array(common["costs"]), "items": _array(items),
        "fences": _array(fences), "tickets": _array(tickets),
        "bodies": bodies if any(bodies) else [],
        "shapes": _array(which if len(shapes) > 1 else ()),
    }  # fmt: skip


SHAPE = (
    "stages", "used", "claimed", "next_stages", "phases", "attempts", "lanes", "delays", "errors",
    "codes", "events", "kinds", "datas", "pipelines", "runs", "nothings", "tokens", "costs",
)  # fmt: skip


NO_SHAPE: Mapping[str, list[Any]] = {name: [] for name in SHAPE}


def _array(numbers: Iterable[float | str]) -> str:
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


def is_plain(request: Add) -> bool:
    """Whether one statement may do: new keys, and not more than it can carry."""
    seeds = request.seeds
    return (
        0 < len(seeds) <= STATEMENT_ROWS_MAX
        and request.max_items is None
        and sum(len(seed.key) for seed in seeds) <= STATEMENT_BYTES_MAX
    )


async def add_new(
    db: Transaction, request: Add, worker: str, number: int, claims: Sequence[Claim]
) -> Accepted | None:
    """Add and claim in one statement: keys that nobody has yet, into a run that nobody began. None
    where it is otherwise: nothing was done, and the caller goes the longer way."""
    pipeline, stage = request.pipeline, request.pipeline.first
    wanted = shallowest(request.seeds, request.max_depth)
    seeds = list(wanted.values())
    order = _by_stage(claims)
    bodies = [None if seed.data is None else encode(seed.data, seed.key, "") for seed in seeds]
    try:
        done, *rows = await db.rows(
            "add", worker=worker, ticket=number, sender=db.sender, **{"class": LOCK_CLASS},
            locks=_array(_stages_claimed(claims, ())), run=request.run, pipeline=pipeline.name,
            seal=int(request.seal), max_items=request.max_items, max_depth=request.max_depth,
            max_tokens=request.max_tokens, max_cost=request.max_cost, **_gate_of(pipeline),
            stage=stage.name, phase=Phase.WAITING if stage.held else Phase.READY,
            keys=[seed.key for seed in seeds],
            priorities=_array(seed.priority for seed in seeds),
            depths=_array(seed.depth for seed in seeds),
            bodies=bodies if any(bodies) else [],
            lanes=[pipeline.lane_of(stage, seed.key) for seed in seeds],
            **_wishes([claims[at] for at in order]),
        )  # fmt: skip
    except UniqueViolationError as taken:
        if TAKEN not in str(taken):
            raise
        return None
    if not done["done"]:
        return None
    added = Added(request.run, len(seeds), 0)
    return Accepted(added, _claimed(claims, order, rows, number))


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
    which = {"item": lease.item, "fence": lease.fence, "ticket": lease.ticket}
    held = bool(await db.rows("renew", text=text, **which))
    if held and part is not None:
        runs: list[asyncpg.Record] = []
        if any(part.usage):
            pairs = await db.rows("runs_of", items=[lease.item])
            ids = {row["run"] for row in pairs} | {lease.run}
            runs = await db.rows("run_lock", ids=sorted(ids))
        fresh = await db.rows("save_part", name=part.name, body=part.body, **which)
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


async def leave(db: Transaction, worker: str, *, release: bool) -> int:
    """How many leases were released."""
    data = json.dumps({"reason": Released().reason})
    [row] = await db.rows("leave", worker=worker, release=release, data=data)
    released: int = row["released"]
    return released


# --- what is held ------------------------------------------------------------------------------


async def held(db: Transaction, worker: str) -> set[Mark]:
    rows = await db.rows("held", worker=worker)
    return {(row["id"], row["fence"], row["ticket"]) for row in rows}


async def leases(
    db: Transaction, worker: str, items: Iterable[int], pipelines: Mapping[str, Pipeline]
) -> list[Lease]:
    stages = befores(pipelines)
    rows = await db.rows(
        "leases", worker=worker, items=_array(items), deaths_max=DEATHS_MAX,
        of_pipelines=[row[0] for row in stages], of_stages=[row[1] for row in stages],
        befores=[row[2] for row in stages],
    )  # fmt: skip
    return [
        Lease(
            row["id"], row["pipeline"], row["key"], row["stage"], row["fence"], row["attempt"],
            row["generation"], row["run"], row["depth"], row["claimed_at"], row["body"],
            row["ticket"], row["alone"],
        )
        for row in rows
    ]  # fmt: skip


# --- sweep -------------------------------------------------------------------------------------


async def sweep(
    db: Transaction, runs: Sequence[str], after: str, pipelines: Mapping[str, Pipeline]
) -> tuple[Swept, str]:
    """Take back what dead or hung workers hold, wake what is due, open gates and end runs. Nothing
    here waits for anybody: what is locked is somebody else's to do, or is done next time."""
    taken = await db.row("reclaim", most=SWEEP_MAX, apart_ms=APART_MS)
    assert taken is not None
    if taken["workers"]:
        await db.rows("reclaim_rest", workers=taken["workers"])
    await db.rows("forget_partials")
    await db.rows("forget_workers", silent_ms=WORKER_FORGOTTEN_MS)
    woken = await db.row("promote", most=SWEEP_MAX)
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
