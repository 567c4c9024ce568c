"""The plans of PostgreSQL's writes do not depend on what the statistics say at the moment: every
table is reached by an index, and no join compares each row of one list with each of another."""

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import asyncpg
import pytest

from onceflow.store.postgres import PostgresStore
from onceflow.store.postgres_connect import WRITE
from onceflow.store.queries import numbered
from tests.support import postgres

# Once per opening, or long work that has its own settings.
NOT_HOT = {"schema_lock", "schema_found", "share_stage", "own_stage", "meta_get", "meta_set",
           "history_now", "history_jump", "hold_history", "settled", "functions", "prune_events",
           "prune_parts", "prune_results", "forget_workers"}  # fmt: skip
WRITES = sorted(
    name
    for folder in ("postgres", "common")
    for file in (files("onceflow.store") / "sql" / folder).iterdir()
    if not re.match(r"\d{4}_|read_|move_", name := file.name.removesuffix(".sql"))
    and name not in NOT_HOT
)


FUNCTIONS = ["claim", "begin_leases", "finish", "add_new"]


@pytest.fixture
async def plan_of(postgres_url: str) -> Any:
    store = PostgresStore(postgres_url)
    await store.open([])
    connection: Any = await asyncpg.connect(postgres_url)

    async def plan(name: str) -> str:
        if name not in FUNCTIONS:
            text, names = numbered("postgres", name)
            return await explain(text, len(names))
        source, names, types = await connection.fetchrow(
            "SELECT prosrc, proargnames[1:pronargs], array(SELECT format_type(t, NULL) FROM "
            "unnest(proargtypes::oid[]) AS t) FROM pg_proc WHERE proname = $1", name
        )  # fmt: skip
        known = dict(zip(names, types, strict=True)) | declared(source)
        plans = []
        for text in statements(source):
            used = [each for each in known if re.search(word(each), text)]
            for at, each in enumerate(used, start=1):
                text = re.sub(word(each), f"${at}", text)
            plans.append(await explain(text, len(used), [known[each] for each in used]))
        return "\n".join(plans)

    async def explain(text: str, count: int, types: Sequence[str] = ()) -> str:
        await connection.execute(WRITE.text(pooled=True))
        given = f"({', '.join(types)})" if types else ""
        await connection.execute(f"PREPARE it{given} AS {text}")
        nothing = f"({', '.join(['NULL'] * count)})" if count else ""
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE it{nothing}")
        await connection.execute("ROLLBACK; DEALLOCATE it")
        return "\n".join(row[0] for row in rows)

    yield plan
    await connection.close()
    await store.close()


def declared(source: str) -> dict[str, str]:
    """The variables of a function, with their types; those of a row by its columns, all bigint."""
    text = source[: source.index("\nBEGIN")]
    found = dict(re.findall(r"^  (\w+) (?:CONSTANT )?(\w+(?:\[\])?)", text, re.M))
    row = next((name for name, kind in found.items() if kind == "stage"), "-")
    columns = set(re.findall(rf"\b{row}\.\w+", source))
    return {
        **{name: kind for name, kind in found.items() if kind not in ("stage", "record")},
        **dict.fromkeys(columns, "bigint"),
    }


def word(name: str) -> str:
    return rf"(?<![.\w]){re.escape(name)}\b"


def statements(source: str) -> list[str]:
    """The queries of a function: each begins a line, and its answer goes into a variable or out."""
    source = re.sub(r"--.*", "", source[source.index("\nBEGIN") :])
    asked = re.findall(r"IF (EXISTS \(.*?\)) THEN", source, re.DOTALL)
    begun = [re.search(r"^ *(?:SELECT|WITH|INSERT|UPDATE)\b.*", each, re.M | re.DOTALL)
             for each in source.split(";\n")]  # fmt: skip
    into = r"(?<!INSERT) INTO (?:look|place|room|is_more|made|places)\b"
    return [*(f"SELECT {each}" for each in asked),
            *(re.sub(into, "", each[0]) for each in begun if each)]  # fmt: skip


# Read from end to end on purpose: they hold only what is under way, or a few rows for ever.
SMALL_INDEXES = {"item_active", "run_unfinished", "partial_pkey", "stage_pkey", "worker_pkey"}

FULL = """
INSERT INTO worker (id, host, pid, boot, started_at, beat_at)
SELECT 'worker-' || n, 'host', n, '', 0, 0 FROM generate_series(1, 200) n;
INSERT INTO run (id, pipeline, created_at)
SELECT 'run-' || n, 'news', 0 FROM generate_series(1, 2000) n;
INSERT INTO item (pipeline, key, stage, phase, run, created_at, updated_at)
SELECT 'news', 'key-' || n, 'scrape', CASE WHEN n % 50 = 0 THEN 'ready' ELSE 'done' END,
       'run-' || n % 2000, 0, 0 FROM generate_series(1, 20000) n;
INSERT INTO event (at, kind, item, n) SELECT 0, 'added', id, 1 FROM item;
INSERT INTO member (run, item, since) SELECT run, id, 0 FROM item;
INSERT INTO result (item, stage, generation, at, body) SELECT id, 'scrape', 1, 0, 'x' FROM item;
INSERT INTO alias (pipeline, item, short_key) SELECT pipeline, id, key FROM item;
INSERT INTO alias (pipeline, key, item, short_key)
SELECT 'news', 'other-' || id, id, 'other-' || id FROM item WHERE id % 10 = 0;
"""


def faults(plan: str) -> list[str]:
    """The lines of a plan that would cost more the more the tables hold."""
    lines = plan.splitlines()
    found = [line for line in lines if re.search(r"Seq Scan on (?!pg_)|Bitmap Heap Scan", line)]
    found += [line for line in lines if re.search(r"Join Filter: \([^()]* = [^()]*\)$", line)]
    # A table of what NOT IN leaves out is laid out for as many rows as a LIMIT is taken to give: a
    # tenth of the table.
    found += [line for line in lines if re.search(r"NOT \(.*SubPlan", line)]
    # An order that is not the index's: all that is ready would be read for the first few.
    found += [line for line in lines if "Incremental Sort" in line]
    for before, line, following in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        scan = re.search(r"Index.* Scan.* using (\w+) on", line)
        if not scan or "Index Cond" in following or scan[1] in SMALL_INDEXES:
            continue
        if not before.endswith("->  Limit") or "Filter" in following:  # else: only the first few
            found.append(line)
    return found


@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
async def test_no_write_reads_a_whole_table_or_joins_without_an_index(
    plan_of: Any, postgres_url: str, full: bool
) -> None:
    if full:
        postgres.execute(postgres_url, f"SET search_path TO onceflow; {FULL}; ANALYZE")

    bad = {name: found for name in [*WRITES, *FUNCTIONS] if (found := faults(await plan_of(name)))}

    assert bad == {}


@pytest.mark.parametrize(
    "line",
    [
        "  ->  Seq Scan on item i",
        "  Join Filter: (m.id = s.id)",
        "  Filter: (NOT (hashed SubPlan 12))",
        "  ->  Incremental Sort",
        "  Filter: (NOT (ANY (i.id = (hashed SubPlan 12).col1)))",
        "  ->  Index Scan using item_pkey on item\n        Filter: (phase = 'done'::text)",
        "  ->  Index Only Scan using item_ready on item",
    ],
)
def test_a_bad_plan_would_be_seen(line: str) -> None:
    assert faults(line) == [line.splitlines()[0]]


def test_the_first_few_of_an_index_may_be_read() -> None:
    assert faults("  ->  Limit\n    ->  Index Only Scan using item_ready on item") == []
    assert faults("  ->  Limit\n    ->  Index Scan using item_ready on item\n  Filter: (x)") != []


async def test_what_functions_do_is_looked_at(plan_of: Any) -> None:
    claim = await plan_of("claim")
    assert claim.count("Update on item") == 1
    assert claim.count("LockRows") == 4, "by name, in lanes, by runs; and the stage"
    for name in ("begin_leases", "finish"):
        assert "using item_pkey on item" in await plan_of(name)
    assert (await plan_of("add_new")).count("Insert on") == 6


def test_every_write_is_looked_at() -> None:
    assert len(WRITES) > 35
    assert {"exchange", "add", "reclaim", "run_settle"} <= {*WRITES}
