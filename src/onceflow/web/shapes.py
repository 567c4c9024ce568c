"""The shapes of what the API takes and gives. JSON stands at this edge only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from onceflow import Event, Item, Run
from onceflow.clients.urls import shown

URL_CHARS_MAX = 8192
KEYS_MAX = 10_000
PAGE_DEFAULT, PAGE_MAX = 100, 1000
ID_MAX = 2**63 - 1

ItemId = Annotated[int, Field(ge=1, le=ID_MAX)]
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Given(BaseModel):
    """What a caller sends: unknown names are refused, not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Asked(BaseModel):
    """What a caller asks for in the query."""

    model_config = ConfigDict(extra="forbid")


class ProblemOut(BaseModel):
    """RFC 9457."""

    model_config = ConfigDict(title="Problem")

    type: str
    title: str
    status: int
    detail: str


class NewJob(Given):
    url: Annotated[
        str,
        Field(min_length=1, max_length=URL_CHARS_MAX, examples=["https://a.test/article"]),
    ]


class NewRun(Given):
    pipeline: Annotated[Name, Field(examples=["ingest"])]
    keys: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=URL_CHARS_MAX)]],
        Field(min_length=1, max_length=KEYS_MAX, examples=[["https://a.test/article"]]),
    ]


class Wish(Given):
    """What may be said with an operator's command."""

    from_stage: Annotated[str, Field(pattern=r"^([a-z][a-z0-9_-]{0,62})?$")] = ""
    why: Annotated[str, Field(max_length=500)] = ""


class ItemsAsked(Asked):
    pipeline: Name | None = None
    state: Name | None = None
    stage: Name | None = None
    phase: Literal["waiting", "ready", "active", "done", "failed", "cancelled"] | None = None
    run: RunId | None = None
    error_code: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,100}$")] | None = None
    after: Annotated[int, Field(ge=0, le=ID_MAX)] = 0
    limit: Limit = PAGE_DEFAULT


class JobsAsked(Asked):
    state: Name | None = None
    after: Annotated[int, Field(ge=0, le=ID_MAX)] = 0
    limit: Limit = PAGE_DEFAULT


class RunsAsked(Asked):
    pipeline: Name | None = None
    after: RunId | None = None
    limit: Limit = PAGE_DEFAULT


class EventsAsked(Asked):
    pipeline: Name | None = None
    item: ItemId | None = None
    run: RunId | None = None
    kinds: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,62}(,[a-z0-9_-]{1,62}){0,30}$")] | None = (
        None
    )
    after: Annotated[int, Field(ge=0, le=ID_MAX)] | None = None
    follow: bool = True
    partials: bool = False


class Failure(BaseModel):
    """Why an item failed, or why its last attempt did."""

    stage: str
    reason: str
    code: str
    failure_class: Annotated[Literal["transient", "permanent"], Field(alias="class")]

    model_config = ConfigDict(populate_by_name=True)


class Story(BaseModel):
    headline: str
    summary: str
    body: str
    tags: list[str]
    model: str
    extractive: bool
    cut: bool = False


class JobBrief(BaseModel):
    """An article on its way."""

    id: int
    url: str
    state: str
    stage: str
    phase: str
    inProgress: bool
    attempt: int
    createdAt: datetime
    updatedAt: datetime
    error: Failure | None = None


class Job(JobBrief):
    fetchedAt: datetime | None = None
    extractedAt: datetime | None = None
    generatedAt: datetime | None = None
    savedAt: datetime | None = None
    title: str | None = None
    author: str | None = None
    date: str | None = None
    language: str | None = None
    extractedText: str | None = None
    story: Story | None = None


class JobsPage(BaseModel):
    jobs: list[JobBrief]
    next: str | None = None


class StageAnswer(BaseModel):
    success: bool
    skipped: bool
    job: Job


class ReportLinks(BaseModel):
    """Where the report is, once the job is completed."""

    html: str
    md: str
    json_: Annotated[str, Field(alias="json")]

    model_config = ConfigDict(populate_by_name=True)


class AnalysisBrief(BaseModel):
    """A website on its way to its report."""

    id: int
    url: str
    state: str
    stage: str
    phase: str
    inProgress: bool
    attempt: int
    retryCount: int
    createdAt: datetime
    updatedAt: datetime
    error: Failure | None = None


class Analysis(AnalysisBrief):
    websiteAnalyzedAt: datetime | None = None
    promptsFormedAt: datetime | None = None
    completedAt: datetime | None = None
    extractedInfo: dict[str, Any] | None = None
    prompts: list[dict[str, Any]] | None = None
    scores: dict[str, Any] | None = None
    todo: list[dict[str, Any]] | None = None
    asked: bool | None = None
    notes: list[str] = []
    report: ReportLinks | None = None


class AnalysesPage(BaseModel):
    jobs: list[AnalysisBrief]
    next: str | None = None


class ItemOut(BaseModel):
    """An item as `onceflow items --json` prints it; times are milliseconds since 1970."""

    id: int
    pipeline: str
    key: str
    stage: str
    phase: str
    state: str
    generation: int
    fence: int
    attempt: int
    priority: int
    depth: int
    lane: str
    run: str
    worker: str | None
    due_at: int | None
    created_at: int
    updated_at: int
    error: str | None
    error_code: str | None

    @classmethod
    def of(cls, item: Item) -> ItemOut:
        names = cls.model_fields.keys() - {"key", "phase", "error", "lane"}
        return cls(
            **{name: getattr(item, name) for name in names},
            key=masked(item.key),
            lane=masked(item.lane),
            phase=item.phase.value,
            error=None if item.error is None else masked(item.error),
        )


class ItemsPage(BaseModel):
    items: list[ItemOut]
    next: str | None = None


class ResultOut(BaseModel):
    stage: str
    generation: int
    at: int
    body: Any


class EventOut(BaseModel):
    """One line of the history, as `onceflow events --json` prints it."""

    seq: int
    at: int
    kind: str
    pipeline: str
    key: str | None
    item: int | None
    n: int | None
    run: str | None
    stage: str | None
    phase: str | None
    state: str | None
    generation: int | None
    fence: int | None
    attempt: int | None
    worker: str | None
    seconds: float | None
    data: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> EventOut:
        return cls.model_construct(**event_fields(event))


EVENT_FIELDS = tuple(EventOut.model_fields)


def event_fields(event: Event) -> dict[str, Any]:
    """An event as it is sent."""
    values = {name: getattr(event, name) for name in EVENT_FIELDS}
    if event.key is not None:
        values["key"] = masked(event.key)
    values["data"] = {
        name: masked(value) if isinstance(value, str) else value
        for name, value in event.data.items()
    }
    return values


class ItemWhole(BaseModel):
    item: ItemOut
    why: str
    results: list[ResultOut]
    events: list[EventOut]


class Changed(BaseModel):
    changed: bool
    item: ItemOut


class RunOut(BaseModel):
    id: str
    pipeline: str
    created_at: int
    sealed: bool
    accepted: int
    open: int
    failed: int
    max_items: int | None
    tokens: int
    cost: float
    halted: str | None
    gate_opened_at: int | None
    gate_item: int | None
    finished_at: int | None

    @classmethod
    def of(cls, run: Run) -> RunOut:
        return cls(**{name: getattr(run, name) for name in cls.model_fields})


class RunWhole(BaseModel):
    run: RunOut
    states: dict[str, int]


class RunsPage(BaseModel):
    runs: list[RunOut]
    next: str | None = None


class RunAdded(BaseModel):
    run: str
    new: int
    known: int


class Healthy(BaseModel):
    ok: bool
    worker: bool
    version: str


def masked(text: str) -> str:
    """Text from a page, a seed or an error, without passwords and key-like parameters."""
    if "@" not in text and "=" not in text and text.isprintable() and len(text) <= URL_CHARS_MAX:
        return text  # nothing to hide: most texts, and a stream has very many
    return shown(text, chars_max=URL_CHARS_MAX)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
