"""The oracle: the invariants, checked on the stored history of any database."""

from __future__ import annotations

from onceflow.core.item import Violation
from onceflow.store.base import Store

INVARIANTS = {
    "I1": "fencing: only the holder of the newest lease finishes an attempt",
    "I2": "at most one result per item, stage and generation",
    "I5": "every accepted key exists exactly once and counts add up",
    "I6": "each history is a path of the declared machine",
    "I7": "live leases never exceed the limit",
    "I8": "the gate opens exactly once, never early, never missing",
    "I10": "attempts are bounded and counted at the claim",
    "I12": "events of an item are numbered without a gap",
}


async def audit(store: Store, grace_seconds: float = 10.0) -> list[Violation]:
    """Every violation found. A run that was settled within the grace time, or while no worker
    lives, may still be waiting for its gate. That is no violation, unless no grace is given."""
    found: list[Violation] = []
    for invariant in INVARIANTS:
        parameters = {"grace_ms": int(grace_seconds * 1000)} if invariant == "I8" else {}
        rows = await store.read(f"audit_{invariant.lower()}", **parameters)
        found += [Violation(invariant, row["item"], row["key"], row["detail"]) for row in rows]
    return found
