"""The state queries of an expansion, by name: from the graph, and the same from the database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from onceflow import Flow
from onceflow.knowledge.articles import LOAD, NAME, state_of, states_of
from onceflow.knowledge.graph import Graph, Rows

STALE_SECONDS = 300.0
STALE_MAX = 1000
QUERIES = {
    "distribution": (
        "MATCH (a:Article) RETURN a.expansion_state AS state, COUNT(a) AS count,"
        " AVG(a.expansion_depth) AS avg_depth ORDER BY count DESC, state"
    ),
    "queue": (
        "MATCH (a:Article) WHERE a.expansion_state = 'discovered' RETURN COUNT(a) AS queue_size"
    ),
    "progress": (
        "MATCH (a:Article) WITH COUNT(a) AS total,"
        " SUM(CASE WHEN a.expansion_state IN ['loaded', 'processed'] THEN 1 ELSE 0 END) AS loaded"
        " RETURN CAST(loaded AS INT64) AS loaded_count, total,"
        " CASE WHEN total = 0 THEN 0.0 ELSE 100.0 * loaded / total END AS percent_complete"
    ),
    "stale": (
        "MATCH (a:Article) WHERE a.expansion_state = 'claimed'"
        " AND a.claimed_at < epoch_ms($cutoff) RETURN a.title AS title,"
        " a.claimed_at AS claimed_at, a.expansion_depth AS depth ORDER BY a.claimed_at, a.title"
    ),
}


async def from_graph(graph: Graph, flow: Flow, name: str, seconds: float = STALE_SECONDS) -> Rows:
    """One of the queries, asked of the graph."""
    given: dict[str, Any] = {}
    if name == "stale":
        given["cutoff"] = await _cutoff(flow, seconds)
    return await graph.ask(QUERIES[name], given, rows_max=STALE_MAX)


async def from_store(flow: Flow, name: str, seconds: float = STALE_SECONDS) -> Rows:
    """The same, asked of the database."""
    if name == "stale":
        return await _stale(flow, seconds)
    counts: dict[str, int] = {}
    depths: dict[str, int] = {}
    states = await states_of(flow)
    for row in await flow.store.read("counts_by_depth", pipeline=NAME):
        state = state_of(states, row)
        if state is not None:
            counts[state] = counts.get(state, 0) + row["items"]
            depths[state] = depths.get(state, 0) + row["items"] * row["depth"]
    if name == "queue":
        return Rows(("queue_size",), ((counts.get("discovered", 0),),))
    if name == "progress":
        total = sum(counts.values())
        loaded = counts.get("loaded", 0) + counts.get("processed", 0)
        percent = 100.0 * loaded / total if total else 0.0
        return Rows(("loaded_count", "total", "percent_complete"), ((loaded, total, percent),))
    ordered = sorted(counts, key=lambda state: (-counts[state], state))
    rows = tuple((state, counts[state], depths[state] / counts[state]) for state in ordered)
    return Rows(("state", "count", "avg_depth"), rows)


async def _stale(flow: Flow, seconds: float) -> Rows:
    before = await _cutoff(flow, seconds)
    found = await flow.store.read(
        "claims", pipeline=NAME, stage=LOAD, before=before, most=STALE_MAX
    )
    rows = sorted((row["claimed_at"], row["key"], row["depth"]) for row in found)
    return Rows(
        ("title", "claimed_at", "depth"),
        tuple((key, moment(at), depth) for at, key, depth in rows),
    )


async def _cutoff(flow: Flow, seconds: float) -> int:
    now: int = (await flow.store.read("now"))[0]["now"]
    return now - int(seconds * 1000)


def moment(ms: int) -> str:
    """A time of the database, as the graph tells it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
