"""What every command shares: its flags, the database, the settings, how an item is named."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

import onceflow
from onceflow import Flow, Item, Permanent, Pipeline, Run, Settings, StoreUnavailable
from onceflow.commands.config import Config
from onceflow.commands.output import Out, UsageError
from onceflow.commands.text import masked, plain
from onceflow.core.errors import UnknownItem

READY_NAMES = ("summarize", "analyze", "ingest", "expand")
"""The pipelines that `onceflow worker` knows without a FILE.py."""
WORKED_BY = {
    "summarize": "onceflow worker summarize", "ingest": "onceflow worker ingest",
    "expand": "onceflow worker expand", "analyze": "onceflow worker analyze",
}  # fmt: skip
"""The command that works on each of the ready pipelines."""
LAST_GATE = "gate:last"
"""Names what came out after all items of the newest run."""
COMMON = Group("Common", sort_key=90)
ENGINE = Group(
    "Settings", sort_key=95, help="Also in onceflow.toml and as ONCEFLOW_… in the environment."
)
Flag = Parameter(negative=(), show_default=False)


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True, slots=True)
class Common:
    """The flags of every command."""

    db: str | None = None
    """A file or postgresql:// address; else ONCEFLOW_DB, onceflow.toml, onceflow.db."""
    config: Path | None = None
    """A configuration file instead of onceflow.toml in this folder."""
    json: Annotated[bool, Flag] = False
    """Print JSON: one object, or one a line for listings and streams."""
    quiet: Annotated[bool, Flag] = False
    """No progress and no remarks on stderr."""

    @property
    def out(self) -> Out:
        return Out(as_json=self.json, quiet=self.quiet)

    def database(self) -> tuple[str, str]:
        """The address of the database, and where it was given."""
        text, source = Config(self.config).place("db", self.db)
        return _address(text or "", "--db" if source == "flag" else source), source

    def settings(self, **given: Any) -> Settings:
        """The engine's settings. A variable that looks like one and is none is remarked on."""
        config = Config(self.config)
        chosen: Settings = config.made("engine", **given)[0]
        for name, near in config.unknown_variables():
            meant = f"did you mean {near}?" if near else "`onceflow config show` lists all"
            self.out.say(f"onceflow: {plain(name, 80)} is no setting and has no effect; {meant}")
        return chosen

    def flow(self, *pipelines: Pipeline, settings: Settings | None = None) -> Flow:
        """A flow that makes the database if need be."""
        address, source = self.database()
        chosen = settings or self.settings()
        try:
            return onceflow.open(address, *pipelines, settings=chosen)
        except ValueError as error:
            where = masked(address)
            raise UsageError(f"{source}: {where} is not a database address: {error}") from None

    def existing(self, *pipelines: Pipeline) -> Flow:
        """A flow on a database that is there already: looking must not make one."""
        flow, source = self.flow(*pipelines), self.database()[1]
        path = getattr(flow.store, "path", None)
        if path is not None and not path.exists():
            raise StoreUnavailable(
                f"there is no database {path} ({source}); `onceflow summarize` and `onceflow run` "
                "make one, or name another with --db"
            )
        return flow


def _address(text: str, source: str) -> str:
    address = text.strip()
    if not address or any(ord(char) < 32 for char in address):
        raise UsageError(f"{source} is not a database; give a file name or a postgresql:// address")
    return address


Number = Annotated[float | None, Parameter(show_default=False)]
Whole = Annotated[int | None, Parameter(show_default=False)]


@Parameter(name="*", group=ENGINE)
@dataclass(frozen=True, slots=True)
class Engine:
    """The engine's settings as flags, for commands that work."""

    scan_seconds: Number = None
    """Look for work at least so often."""
    queue_max: Whole = None
    """Leases that wait in one stage's local queue."""
    assign_seconds: Number = None
    """Assign queued items at least so often."""
    cycle_seconds: Number = None
    """Least time between two assignments of a throttled stage."""
    health_seconds: Number = None
    """How often processors and leases are checked."""
    cleanup_seconds: Number = None
    """How often leases without a heartbeat are reclaimed."""
    grace_seconds: Number = None
    """How long a stop waits for attempts under way."""
    poll_seconds: Number = None
    """How often to look again while something is in flight elsewhere."""
    partial_seconds: Number = None
    """Least time between two writes of one item's text in progress."""
    patience_seconds: Number = None
    """Longest pause between two tries while the database cannot be reached."""
    cpu_processes: Whole = None
    """Processes for cpu=True handlers; 0 is one per core."""
    durability: Annotated[str | None, Parameter(show_default=False)] = None
    """SQLite: full survives a power cut, normal a crash of the process only."""

    def settings(self, common: Common) -> Settings:
        return common.settings(**asdict(self))


async def find_item(flow: Flow, pipeline: str | None, name: str) -> Item:
    """The item that a user means by a key (or another key of it) or an id."""
    known = [row["name"] for row in await flow.store.read("pipelines")]
    if pipeline is not None and pipeline not in known:
        raise UnknownItem(no_pipeline(pipeline, known))
    if name == LAST_GATE:
        return await _last_gate(flow, pipeline)
    found: list[Item] = []
    for each in known if pipeline is None else [pipeline]:
        try:
            found.append(await flow.item(each, _spelled(each, name)))
        except UnknownItem:
            continue
    if len(found) > 1:
        names = ", ".join(item.pipeline for item in found)
        raise UnknownItem(f"{name!r} is an item of several pipelines ({names}); choose --pipeline")
    if found:
        return found[0]
    if name.isdecimal() and len(name) < 19:
        try:
            item = await flow.item(None, int(name))
        except UnknownItem:
            pass
        else:
            if pipeline in (None, item.pipeline):
                return item
    raise UnknownItem(
        f"there is no item {name!r} in {pipeline or flow.store.url}; `onceflow items` lists them"
    )


async def _last_gate(flow: Flow, pipeline: str | None) -> Item:
    """The item that the gate of the newest run added."""
    gates = {row["pipeline"] for row in await flow.store.read("stages") if row["is_gate"]}
    for run in await flow.runs(pipeline):
        if run.gate_item is not None:
            return await flow.item(None, run.gate_item)
        if run.pipeline in gates:
            break
    else:
        raise UnknownItem(f"there is no run with a gate in {flow.store.url} yet")
    raise UnknownItem(f"run {run.id} has no gate's item (yet); `onceflow runs` lists the runs")


def _spelled(pipeline: str, name: str) -> str:
    """The ready pipelines know a page by one spelling of its address, an article by one of its
    title."""
    if pipeline == "expand":
        from onceflow.pipelines.expand import titled

        return titled(name) or name
    if pipeline not in WORKED_BY or "://" not in name:
        return name
    from onceflow.clients.urls import canonical

    try:
        return canonical(name)
    except Permanent:
        return name


async def find_run(flow: Flow, name: str) -> Run:
    """A run by its id, or the `last` one."""
    if name == "last":
        runs = await flow.runs(limit=1)
        if not runs:
            raise UnknownItem(f"there is no run in {flow.store.url} yet")
        return runs[0]
    try:
        return await flow.run(name)
    except UnknownItem as error:
        raise UnknownItem(f"{error}; `onceflow runs` lists them") from None


def no_pipeline(name: str, known: list[Any]) -> str:
    names = ", ".join(known) or "none yet"
    return f"there is no pipeline {name!r} in this database; there is {names}"


async def check_pipeline(flow: Flow, name: str | None) -> None:
    """Refuse a pipeline that the database does not know: a filter on it would match nothing."""
    known = [row["name"] for row in await flow.store.read("pipelines")]
    if name is not None and name not in known:
        raise UnknownItem(no_pipeline(name, known))
