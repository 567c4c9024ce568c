"""Carry everything over to another database, and leave the first one at rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onceflow.core.errors import OnceflowError
from onceflow.core.item import Violation
from onceflow.engine.flow import Flow
from onceflow.engine.neighbours import living
from onceflow.store.move import carry_over, take_back


@dataclass(frozen=True, slots=True)
class Moved:
    """What was carried over."""

    rows: dict[str, int]
    """By table."""
    violations: list[Violation]
    """What the audit finds in the target and did not find in the source: nothing."""


async def move(source: Flow, target: Flow, told: Callable[[str, int], None]) -> Moved:
    """Both flows are open and do not work. Refused while a worker lives on either side. Afterwards
    the source accepts nothing and is not worked on, so that nothing is done twice."""
    for flow in (source, target):
        await _refuse_alive(flow)
    before = await source.audit(grace_seconds=0)
    rows = await carry_over(source.store, target.store, told)
    after = await target.audit(grace_seconds=0)
    return Moved(rows, [one for one in after if one not in before])


async def undo(source: Flow) -> str:
    """Use a database again that was moved; where it had been moved to."""
    found = await source.store.read("moved")
    if not found:
        raise OnceflowError(f"{source.store.url} was not moved")
    await take_back(source.store)
    return str(found[0]["place"])


async def _refuse_alive(flow: Flow) -> None:
    read = flow.store.read
    now = (await read("now"))[0]["now"]
    patience = max((row["lease_ms"] for row in await read("stages")), default=300_000)
    alive = living(await read("workers"), now, patience)
    if alive:
        who = ", ".join(f"{row['host']} pid {row['pid']}" for row in alive[:5])
        raise OnceflowError(
            f"{flow.store.url} is being worked on by {who}; stop every worker and server first"
        )
