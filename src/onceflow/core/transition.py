"""What one finished attempt changes, and the one place that decides it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from onceflow.core.errors import (
    Halt,
    Pause,
    Permanent,
    PipelineError,
    StoreUnavailable,
    Transient,
)
from onceflow.core.item import Json, Kind, Lease, Phase, Seed
from onceflow.core.packing import pack, unpack
from onceflow.core.pipeline import GATE_KEY, Pipeline, Stage

KEY_CHARS_MAX = 8192
RESULT_BYTES_MAX = 16 * 1024 * 1024
ERROR_CHARS_MAX = 2000
HOLD_SECONDS_MAX = 3600.0
"""What a site may ask for at the most before it is asked again."""
CODE_CHARS_MAX = 100
TOKENS_MAX = 2**53
COST_MAX = 1e15
"""Of one attempt: what many of them spend can still be added up."""
COMPRESS_FROM_BYTES = 512
NULL = b"null"
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Usage(NamedTuple):
    """What an attempt spent, counted against its runs' ceilings."""

    tokens: int = 0
    cost: float = 0.0


NOTHING_SPENT = Usage()


class Left(NamedTuple):
    """What a run may still spend; None where it has no such ceiling."""

    tokens: int | None = None
    cost: float | None = None

    @property
    def nothing(self) -> bool:
        """Whether a ceiling is reached."""
        return (self.tokens is not None and self.tokens <= 0) or (
            self.cost is not None and self.cost <= 0
        )


class Part(NamedTuple):
    """A piece of a stage's work that a later attempt need not do again, and what it cost."""

    name: str
    body: bytes
    usage: Usage = NOTHING_SPENT


@dataclass(frozen=True, slots=True)
class Done:
    """What a handler returns when it wants more stored than a result.

    Everything in it is stored in the transaction that finishes the stage. `events` names what is
    recorded instead of the plain `stage_finished`; `children` become items of the same runs, one
    deeper, and `peers` as deep as this one; `aliases` are other keys of this same item.
    `hold_lane_seconds`: no other item of this one's lane starts for so long, anywhere.

    `key` is the item's own key, if it turned out to be another than the one it came with: the old
    one stays as an alias. Where another item has that key, `taken` is stored instead of this.
    """

    result: Json = None
    events: Sequence[str] = ()
    children: Sequence[str | Seed] = ()
    aliases: Sequence[str] = ()
    usage: Usage = NOTHING_SPENT
    hold_lane_seconds: float = 0.0
    peers: Sequence[str | Seed] = ()
    key: str | None = None
    taken: Done | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt raised. `unexpected` is anything but Transient and Permanent; what does not
    `count` is given back with its attempt, and waits."""

    message: str
    code: str
    permanent: bool = False
    retry_after: float | None = None
    unexpected: bool = False
    hold_lane_seconds: float = 0.0
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt was given back unfinished, at a graceful stop: it does not count. With `pause`
    the whole stage is paused, for this reason."""

    reason: str = "the worker stopped"
    pause: bool = False


Outcome: TypeAlias = Done | Failed | Released


class NewEvent(NamedTuple):
    """One event of a transition, before the store numbers it."""

    kind: str
    data: dict[str, Any] | None = None


class Hold(NamedTuple):
    """A lane that gives no lease for a while."""

    lane: str
    ms: int


class Transition(NamedTuple):
    """All that one finished attempt changes, in one transaction, guarded by the lease's fence.

    Times are delays, not instants: only the store knows what time it is.
    """

    stage: str
    phase: Phase
    attempt: int
    lane: str = ""
    delay_ms: int | None = None
    result: bytes | None = None
    error: str | None = None
    error_code: str | None = None
    events: tuple[NewEvent, ...] = ()
    children: tuple[Seed, ...] = ()
    """Their depths are steps from the item, whose own depth only the store knows."""
    aliases: tuple[str, ...] = ()
    usage: Usage = NOTHING_SPENT
    hold: Hold | None = None
    had_parts: bool = False
    """Attempts have kept parts of this stage's work, which its result makes superfluous."""
    key: str | None = None
    """The item's key from now on."""
    taken: Transition | None = None
    """What is made instead if another item has that key."""

    @property
    def has_extras(self) -> bool:
        """Whether there is more to store than most transitions have."""
        return bool(self.children or self.aliases or self.had_parts or self.key or any(self.usage))

    @property
    def if_taken(self) -> Transition:
        """What is made where another item has the key."""
        instead = self.taken or self._replace(key=None)
        return instead._replace(had_parts=self.had_parts)

    @property
    def goes_on(self) -> bool:
        """Whether the next stage could be claimed along with it: the item is ready for that, and
        nothing was spent by which a run may have reached its ceiling."""
        return (
            self.phase is Phase.READY
            and len(self.events) == 1
            and not self.usage.tokens
            and not self.usage.cost
        )


PLAINLY_FINISHED = (NewEvent(Kind.STAGE_FINISHED),)


def decide(pipeline: Pipeline, lease: Lease, outcome: Outcome) -> Transition:
    """The transition that an attempt's outcome asks for. Every rule of retrying is here."""
    stage = pipeline.stage(lease.stage)
    if isinstance(outcome, Done):
        try:
            return _finish(pipeline, stage, lease, outcome)
        except Permanent as refused:
            outcome = Failed(str(refused), refused.code, permanent=True)
    if isinstance(outcome, Released):
        return Transition(
            stage.name,
            Phase.READY,
            attempt=lease.attempt - 1,
            lane=pipeline.lane_of(stage, lease.key),
            events=(NewEvent(Kind.RELEASED, {"reason": outcome.reason}),),
        )
    return _fail(pipeline, stage, lease, outcome)


def _finish(pipeline: Pipeline, stage: Stage, lease: Lease, done: Done) -> Transition:
    body = encode(done.result, lease.key, stage.name)
    for kind in done.events:
        if kind not in pipeline.events:
            raise Permanent(
                f"{lease.key}: stage {stage.name!r} stored the unknown event kind {kind!r}; "
                f"declare it with Pipeline(events=...)",
                code="unknown_event",
            )
    events: tuple[NewEvent, ...] = PLAINLY_FINISHED
    children: tuple[Seed, ...] = ()
    aliases: tuple[str, ...] = ()
    if done.events:
        events = tuple(NewEvent(kind) for kind in done.events)
    if done.children or done.peers:
        children = (
            *(_child(pipeline, child, 1) for child in done.children),
            *(_child(pipeline, peer, 0) for peer in done.peers),
        )
    if done.aliases:
        aliases = tuple(canonical_key(pipeline, alias) for alias in done.aliases)
    following = pipeline.after(stage.name)
    if following is None:
        place = stage.name, Phase.DONE, lease.attempt, ""
    else:
        phase = Phase.WAITING if following.held else Phase.READY
        place = following.name, phase, 0, pipeline.lane_of(following, lease.key)
    usage = countable(done.usage, lease.key, stage.name) if any(done.usage) else NOTHING_SPENT
    hold = _hold(pipeline, stage, lease, done.hold_lane_seconds)
    change = Transition(
        *place, None, body, None, None, events, children, aliases, usage, hold
    )  # fmt: skip
    if done.key is None:
        return change
    taken = None if done.taken is None else _finish(pipeline, stage, lease, done.taken)
    return change._replace(key=canonical_key(pipeline, done.key), taken=taken)


def _fail(pipeline: Pipeline, stage: Stage, lease: Lease, failed: Failed) -> Transition:
    message = _shortened(failed.message)
    code = clean(str(failed.code))[:CODE_CHARS_MAX]
    data: dict[str, Any] = {"error": message, "code": code}
    if failed.unexpected:
        data["unexpected"] = True
    final = failed.permanent or lease.attempt >= pipeline.attempts_of(stage)
    data["permanent"] = failed.permanent
    if final and failed.counts:
        return Transition(
            stage.name,
            Phase.FAILED,
            attempt=lease.attempt,
            error=message,
            error_code=code,
            events=(NewEvent(Kind.FAILED, data),),
            hold=_hold(pipeline, stage, lease, failed.hold_lane_seconds),
        )
    delay_ms = backoff_ms(pipeline, lease, failed.retry_after)
    data["delay_ms"] = delay_ms
    return Transition(
        stage.name,
        Phase.WAITING,
        attempt=lease.attempt - int(not failed.counts),
        lane=pipeline.lane_of(stage, lease.key),
        delay_ms=delay_ms,
        error=message,
        error_code=code,
        events=(NewEvent(Kind.RETRIED if failed.counts else Kind.RELEASED, data),),
        hold=_hold(pipeline, stage, lease, failed.hold_lane_seconds),
    )


def _hold(pipeline: Pipeline, stage: Stage, lease: Lease, seconds: float) -> Hold | None:
    if seconds <= 0 or not (lane := pipeline.lane_of(stage, lease.key)):
        return None
    return Hold(lane, int(min(seconds, HOLD_SECONDS_MAX) * 1000))


def backoff_ms(pipeline: Pipeline, lease: Lease, retry_after: float | None) -> int:
    """How long until the next attempt: base x 2^(n-1), capped, spread out, never below the floor.

    The jitter takes up to half of it away. It comes from the item and the attempt, so the rule
    stays pure and a crowd that failed together comes back one by one. A floor is spread upwards
    for the same reason, and a site that asks for more than the cap gets the cap.
    """
    spread = (lease.item * 7919 + lease.attempt * 104729) % 1000 / 1000
    cap = pipeline.backoff_max_seconds
    exponent = min(lease.attempt - 1, 30)
    wait = min(cap, pipeline.backoff_seconds * 2**exponent) * (1 - spread / 2)
    if retry_after is not None and retry_after > 0:
        floor = min(retry_after, max(cap, pipeline.backoff_seconds))
        wait = max(wait, floor * (1 + spread / 10))
    return int(wait * 1000)


def failure(error: BaseException) -> Failed | Released:
    """What an exception out of a handler means."""
    if isinstance(error, Pause):
        return Released(_shortened(str(error)), pause=True)
    if isinstance(error, Halt):
        return Released(_shortened(str(error)))
    if isinstance(error, StoreUnavailable):  # what it asked for was not there: nobody's fault
        return Failed(str(error), "unavailable", counts=False)
    if isinstance(error, Permanent):
        return Failed(str(error), error.code, permanent=True)
    if isinstance(error, Transient):
        return Failed(
            str(error), error.code, retry_after=error.retry_after,
            hold_lane_seconds=error.hold_lane_seconds, counts=error.counts,
        )  # fmt: skip
    name, words = type(error).__name__, words_of(error)
    return Failed(f"{name}: {words}" if words else name, "unexpected", unexpected=True)


def words_of(error: BaseException) -> str:
    """What an exception says of itself."""
    try:
        return str(error)
    except Exception:  # a handler's own exception may fail even at this
        return ""


def outcome_of(value: Any) -> Done:
    """What a handler's return value means."""
    return value if isinstance(value, Done) else Done(value)


def countable(usage: Usage, key: str, stage: str) -> Usage:
    """What was spent, if it can be added up: what is not a number would never be under a ceiling
    again, and nothing is earned back."""
    given: tuple[Any, Any] = usage  # a handler may have put anything in
    tokens, cost = given
    numbers = isinstance(tokens, int) and isinstance(cost, int | float)
    if not (numbers and 0 <= tokens <= TOKENS_MAX and 0 <= cost <= COST_MAX):  # NaN is not
        raise Permanent(
            f"{key}: stage {stage!r} says it spent {tokens!r} tokens and a cost of {cost!r}; "
            f"tokens are a whole number up to {TOKENS_MAX}, the cost a number up to {COST_MAX:g}",
            code="bad_usage",
        )
    return usage


def encode(result: Json, key: str, stage: str) -> bytes:
    """A result as it is stored: UTF-8 JSON, compressed when that is worth it."""
    if result is None:
        return NULL
    try:
        raw = ENCODER.encode(result).encode()
    except UnicodeEncodeError:  # lone surrogates: as escapes they are kept
        raw = json.dumps(result, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Permanent(
            f"{key}: stage {stage!r} returned something that is not JSON ({error}); "
            "return dicts, lists, text, numbers, booleans or None",
            code="not_json",
        ) from None
    if len(raw) > RESULT_BYTES_MAX:
        raise Permanent(
            f"{key}: stage {stage!r} returned {len(raw):,} bytes; "
            f"at most {RESULT_BYTES_MAX:,} are stored, keep large bodies outside",
            code="result_too_large",
        )
    return pack(raw) if len(raw) >= COMPRESS_FROM_BYTES else raw


def decode(body: bytes | None) -> Json:
    """What `encode` was given."""
    if body is None or body == NULL:
        return None
    return json.loads(unpack(body).decode())


def _child(pipeline: Pipeline, child: str | Seed, step: int) -> Seed:
    if isinstance(child, str):  # an article has hundreds of them
        return Seed(canonical_key(pipeline, child), depth=step)
    return Seed(canonical_key(pipeline, child.key), child.data, child.priority, step)


def deeper(children: Sequence[Seed], depth: int) -> list[Seed]:
    """The children of an item that is so deep in a run."""
    return [Seed(each.key, each.data, each.priority, depth + each.depth) for each in children]


def canonical_key(pipeline: Pipeline, key: Any) -> str:
    """The one spelling of a key; a Permanent that says why if it cannot be one."""
    if not isinstance(key, str) or not key.strip():
        raise Permanent(f"{key!r} is not a key; give a non-empty text", code="bad_key")
    try:
        spelled = key.strip() if pipeline.canonical is None else pipeline.canonical(key)
    except PipelineError as error:
        raise Permanent(str(error), code="bad_key") from None
    if not spelled:
        raise Permanent(f"{key!r} is not a key; nothing of it is left", code="bad_key")
    if len(spelled) > KEY_CHARS_MAX:
        raise Permanent(
            f"{spelled[:60]}…: a key of {len(spelled):,} characters; at most {KEY_CHARS_MAX:,}",
            code="bad_key",
        )
    if clean(spelled) != spelled:
        raise Permanent(f"{spelled!r}: a key must be clean text", code="bad_key")
    if spelled.startswith(GATE_KEY):
        raise Permanent(f"{spelled!r}: keys that begin with {GATE_KEY!r} are ours", code="bad_key")
    return spelled


def _shortened(message: str) -> str:
    return clean(message)[:ERROR_CHARS_MAX]


def is_name(given: Any) -> bool:
    """Whether something names a run or a part: clean, non-empty text."""
    return isinstance(given, str) and bool(given) and clean(given) == given


def clean(text: str) -> str:
    """Text that both databases take: no NUL, no lone surrogates."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "").encode("utf-8", "ignore").decode()
