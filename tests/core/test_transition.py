"""decide(): what an outcome makes of an item, by table. Every rule of retrying is here."""

import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow import (
    Done,
    Halt,
    Lane,
    Pause,
    Permanent,
    Pipeline,
    PipelineError,
    Seed,
    Stage,
    StoreUnavailable,
    Transient,
    Usage,
)
from onceflow.core import transition
from onceflow.core.item import Lease, Phase
from onceflow.core.transition import (
    ERROR_CHARS_MAX,
    Failed,
    Hold,
    NewEvent,
    Outcome,
    Released,
    Transition,
    backoff_ms,
    canonical_key,
    clean,
    decide,
    decode,
    encode,
    failure,
    outcome_of,
)


def handler(work: object) -> None:
    return None


BY_HOST = Lane(lambda key: key.split("/")[0])
PIPELINE = Pipeline(
    "news",
    Stage("fetch", handler, lane=BY_HOST),
    Stage("read", handler),
    Stage("sum", handler, held=True, attempts=1),
    after_all=handler,
    events=("page_read",),
)


def lease(stage: str = "fetch", attempt: int = 1, **other: Any) -> Lease:
    values: dict[str, Any] = {
        "item": 7, "pipeline": "news", "key": "a.test/1", "stage": stage, "fence": 4,
        "attempt": attempt, "generation": 1, "run": "r", "depth": 2, "claimed_at": 0, "data": None,
        "ticket": 9,
    }  # fmt: skip
    return Lease(**values | other)


def failed(**how: Any) -> Failed:
    return Failed("it broke", "broken", **how)


@pytest.mark.parametrize(
    ("where", "place"),
    [
        (lease("fetch", 2), ("read", Phase.READY, 0, "")),
        (lease("read", 3), ("sum", Phase.WAITING, 0, "")),
        (lease("sum", 1), ("sum", Phase.DONE, 1, "")),
        (lease("digest", 2), ("digest", Phase.DONE, 2, "")),
    ],
    ids=["to the next stage", "held until triggered", "the last one", "the gate's"],
)
def test_a_finished_stage_leads_on(where: Lease, place: tuple[Any, ...]) -> None:
    change = decide(PIPELINE, where, Done({"a": 1}))

    assert (change.stage, change.phase, change.attempt, change.lane) == place
    assert change.result == b'{"a":1}'
    assert change.events == (NewEvent("stage_finished"),)
    assert change.delay_ms is None
    assert change.error is None


def test_an_item_gets_the_lane_of_the_stage_it_goes_on_to() -> None:
    pipeline = Pipeline("lanes", Stage("a", handler), Stage("b", handler, lane=BY_HOST))
    change = decide(pipeline, lease("a", key="b.test/x"), Done(1))

    assert (change.stage, change.lane) == ("b", "b.test")


def test_what_a_handler_wants_stored_is_in_the_one_transition() -> None:
    done = Done(
        None,
        events=["page_read", "summary_finished"],
        children=["a.test/2", Seed("a.test/3", {"x": 1}, priority=5, depth=99)],
        aliases=[" a.test/one "],
        usage=Usage(10, 0.5),
    )
    change = decide(PIPELINE, lease("sum"), done)

    assert change.result == b"null"
    assert [event.kind for event in change.events] == ["page_read", "summary_finished"]
    assert change.children == (Seed("a.test/2", depth=1), Seed("a.test/3", {"x": 1}, 5, 1))
    assert change.aliases == ("a.test/one",)
    assert change.usage == (10, 0.5)


@pytest.mark.parametrize(
    ("done", "code"),
    [
        (Done(1, events=["page_lost"]), "unknown_event"),
        (Done(1, children=[""]), "bad_key"),
        (Done(1, children=[Seed("gate:r")]), "bad_key"),
        (Done(1, aliases=["  "]), "bad_key"),
        (Done({1, 2}), "not_json"),
        (Done(b"bytes"), "not_json"),
        (Done({"a": math.nan}), "not_json"),
        (Done({(1, 2): 3}), "not_json"),
        (Done("x" * (transition.RESULT_BYTES_MAX + 1)), "result_too_large"),
        (Done(1, usage=Usage(-1)), "bad_usage"),
        (Done(1, usage=Usage(2**53 + 1)), "bad_usage"),
        (Done(1, usage=Usage(0, math.nan)), "bad_usage"),
        (Done(1, usage=Usage(0, math.inf)), "bad_usage"),
        (Done(1, usage=Usage(0, 1e308)), "bad_usage"),  # twice that is no number
        (Done(1, usage=Usage(0, -0.5)), "bad_usage"),
        (Done(1, usage=Usage("5")), "bad_usage"),  # type: ignore[arg-type]  # as a handler may
        (Done(1, usage=Usage(0.5)), "bad_usage"),  # type: ignore[arg-type]  # the same
    ],
)
def test_what_cannot_be_stored_fails_the_item_for_good(done: Done, code: str) -> None:
    change = decide(PIPELINE, lease(attempt=1), done)

    assert (change.stage, change.phase) == ("fetch", Phase.FAILED)
    assert change.error_code == code
    assert change.result is None
    assert change.error


def test_a_result_that_is_not_json_is_named_with_its_item_and_what_to_do() -> None:
    change = decide(PIPELINE, lease(), Done({1, 2}))

    assert change.error is not None
    assert change.error.startswith("a.test/1: stage 'fetch' returned something that is not JSON")
    assert "return dicts, lists, text, numbers" in change.error


@pytest.mark.parametrize(
    ("where", "outcome", "phase", "kind"),
    [
        (lease(attempt=1), failed(), Phase.WAITING, "retried"),
        (lease(attempt=2), failed(), Phase.WAITING, "retried"),
        (lease(attempt=3), failed(), Phase.FAILED, "failed"),
        (lease(attempt=4), failed(), Phase.FAILED, "failed"),
        (lease(attempt=1), failed(permanent=True), Phase.FAILED, "failed"),
        (lease("sum", attempt=1), failed(), Phase.FAILED, "failed"),
        (lease(attempt=1), failed(unexpected=True), Phase.WAITING, "retried"),
        (lease(attempt=3), failed(retry_after=5.0), Phase.FAILED, "failed"),
    ],
)
def test_a_failure_is_tried_again_while_attempts_remain(
    where: Lease, outcome: Failed, phase: Phase, kind: str
) -> None:
    change = decide(PIPELINE, where, outcome)
    [event] = change.events
    assert event.data is not None

    assert (change.stage, change.phase, change.attempt) == (where.stage, phase, where.attempt)
    assert event.kind == kind
    assert (change.error, change.error_code) == ("it broke", "broken")
    assert event.data["error"] == "it broke"
    assert event.data["permanent"] is outcome.permanent
    assert event.data.get("unexpected", False) is outcome.unexpected
    assert (change.delay_ms is not None) is (phase is Phase.WAITING)
    assert event.data.get("delay_ms") == change.delay_ms


def test_an_item_that_waits_keeps_its_lane() -> None:
    assert decide(PIPELINE, lease(), failed()).lane == "a.test"


def test_a_released_attempt_does_not_count() -> None:
    change = decide(PIPELINE, lease(attempt=3), Released())

    assert change == Transition(
        "fetch", Phase.READY, attempt=2, lane="a.test",
        events=(NewEvent("released", {"reason": "the worker stopped"}),),
    )  # fmt: skip


@pytest.mark.parametrize("attempt", [1, 3])
def test_what_was_not_tried_waits_and_costs_no_attempt(attempt: int) -> None:
    outcome = failure(Transient("left alone", code="down", retry_after=60, counts=False))
    assert isinstance(outcome, Failed)

    change = decide(PIPELINE, lease(attempt=attempt), outcome)

    [event] = change.events
    assert (change.stage, change.phase, change.attempt) == ("fetch", Phase.WAITING, attempt - 1)
    assert (event.kind, change.error, change.error_code) == ("released", "left alone", "down")
    assert change.delay_ms is not None
    assert change.delay_ms >= 60_000
    assert change.lane == "a.test"


def test_a_long_or_dirty_error_is_kept_short_and_clean() -> None:
    change = decide(PIPELINE, lease(), Failed("a\x00b\ud800" + "x" * 10_000, "broken"))

    assert change.error is not None
    assert change.error.startswith("abxxx")
    assert len(change.error) == ERROR_CHARS_MAX


# --- backoff ---


def waits(attempt: int, item: int, retry_after: float | None = None, **rules: Any) -> float:
    pipeline = Pipeline("p", Stage("fetch", handler), **rules)
    return backoff_ms(pipeline, lease(attempt=attempt, item=item), retry_after) / 1000


@pytest.mark.parametrize(
    ("base", "attempt", "most"),
    [(5, 1, 5), (5, 2, 10), (5, 3, 20), (30, 1, 30), (30, 2, 60), (5, 9, 900), (5, 1000, 900)],
)
def test_the_backoff_doubles_up_to_its_cap_with_up_to_half_of_it_taken_away(
    base: float, attempt: int, most: float
) -> None:
    crowd = [waits(attempt, item, backoff_seconds=base) for item in range(1, 200)]

    assert max(crowd) <= most
    assert min(crowd) >= most / 2
    assert len(set(crowd)) > 150, "a crowd that failed together comes back one by one"


@pytest.mark.parametrize(
    ("outcome", "hold"),
    [
        (Done(1), None),
        (Done(1, hold_lane_seconds=2.5), Hold("a.test", 2500)),
        (failed(hold_lane_seconds=3), Hold("a.test", 3000)),
        (failed(permanent=True, hold_lane_seconds=3), Hold("a.test", 3000)),
        (failed(hold_lane_seconds=1e9), Hold("a.test", 3_600_000)),
        (failed(hold_lane_seconds=-1), None),
        (failure(Transient("slow", hold_lane_seconds=4)), Hold("a.test", 4000)),
    ],
)
def test_an_attempt_may_hold_its_lane(outcome: Outcome, hold: Hold | None) -> None:
    assert decide(PIPELINE, lease("fetch"), outcome).hold == hold
    assert decide(PIPELINE, lease("read"), outcome).hold is None, "it has no lanes"


@pytest.mark.parametrize(
    ("floor", "least"),
    [(60.0, 60), (900.0, 900), (10_000.0, 900), (math.inf, 900), (0.001, 2.5), (None, 2.5),
     (-5.0, 2.5), (0.0, 2.5), (math.nan, 2.5)],
)  # fmt: skip
def test_retry_after_is_a_floor_up_to_the_cap(floor: float | None, least: float) -> None:
    crowd = [waits(1, item, floor) for item in range(1, 200)]

    assert min(crowd) >= least
    assert max(crowd) <= max(least, 5) * 1.1


def test_a_floor_is_spread_upwards() -> None:
    assert len({waits(1, item, 60.0) for item in range(1, 200)}) > 150


@given(st.integers(1, 10**12), st.integers(1, 10**6), st.floats(allow_nan=True) | st.none())
def test_no_backoff_is_negative_or_endless(item: int, attempt: int, floor: float | None) -> None:
    assert 0 <= waits(attempt, item, floor) <= 900 * 1.1


# --- what a handler's end means ---


class Wordless(Exception):
    """Cannot even say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Transient("slow", code="timeout", retry_after=3), Failed("slow", "timeout", False, 3)),
        (Transient("slow"), Failed("slow", "transient")),
        (Permanent("gone"), Failed("gone", "permanent", True)),
        (ValueError("bad"), Failed("ValueError: bad", "unexpected", unexpected=True)),
        (Wordless(), Failed("Wordless", "unexpected", unexpected=True)),
        (KeyError(), Failed("KeyError", "unexpected", unexpected=True)),
        (SystemExit(3), Failed("SystemExit: 3", "unexpected", unexpected=True)),
        (StoreUnavailable("away"), Failed("away", "unavailable", counts=False)),
        (Halt("spent" + "\x00" + "x" * 9000), Released("spent" + "x" * (ERROR_CHARS_MAX - 5))),
        (Pause("k" * 9000), Released("k" * ERROR_CHARS_MAX, pause=True)),
    ],
)
def test_what_a_handler_raises_says_how_the_attempt_ended(
    error: BaseException, outcome: Failed | Released
) -> None:
    assert failure(error) == outcome


def test_what_a_handler_returns_is_its_result() -> None:
    done = Done(1, usage=Usage(5))

    assert outcome_of(done) is done
    assert outcome_of({"a": 1}) == Done({"a": 1})
    assert outcome_of(None) == Done(None)


@pytest.mark.parametrize("code", ["a\x00b", "a\ud800b", "ab" + "x" * 500, 5])
def test_an_errors_code_is_clean_and_short_whatever_a_handler_gives(code: Any) -> None:
    change = decide(PIPELINE, lease(attempt=3), failure(Permanent("no", code=code)))

    assert change.phase is Phase.FAILED
    assert change.error_code is not None
    assert change.error_code.startswith("ab" if code != 5 else "5")
    assert len(change.error_code) <= 100
    assert change.events[0].data is not None
    assert change.events[0].data["code"] == change.error_code


# --- results as they are stored ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(JSON)
def test_a_result_is_read_back_as_it_was_returned(value: Any) -> None:
    assert decode(encode(value, "k", "s")) == value


def test_a_lone_surrogate_is_kept_as_an_escape() -> None:
    assert decode(encode({"a": "\ud800"}, "k", "s")) == {"a": "\ud800"}


def test_nothing_stored_is_read_as_none() -> None:
    assert decode(None) is None


def test_a_large_result_is_compressed_and_a_small_one_is_not() -> None:
    large = encode("x" * 10_000, "k", "s")

    assert len(large) < 200
    assert decode(large) == "x" * 10_000
    assert large[:4] == bytes.fromhex("28b52ffd"), "Zstandard's magic number"
    assert encode("x", "k", "s") == b'"x"'


def test_what_an_earlier_version_compressed_is_still_read() -> None:
    assert decode(zlib.compress(b'{"a":"b"}', 1)) == {"a": "b"}


def test_every_thread_may_compress() -> None:
    values = [f"{at} " * 1000 for at in range(50)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda value: decode(encode(value, "k", "s")), values)) == values


def test_a_result_that_contains_itself_or_is_too_deep_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    for value in (circle, deep):
        with pytest.raises(Permanent, match="is not JSON") as refused:
            encode(value, "k", "s")
        assert refused.value.code == "not_json"


# --- keys ---


def refuse_all(key: str) -> str:
    raise PipelineError(f"{key}: no such thing")


@pytest.mark.parametrize(
    "key", ["", "   ", None, 5, "x" * 8193, "a\x00b", "a\ud800", "gate:1", "  gate:1"]
)
def test_what_cannot_be_a_key_is_refused_with_a_reason(key: Any) -> None:
    with pytest.raises(Permanent) as refused:
        canonical_key(PIPELINE, key)

    assert refused.value.code == "bad_key"
    assert str(refused.value)


def test_a_key_of_the_greatest_length_is_a_key() -> None:
    assert len(canonical_key(PIPELINE, "x" * 8192)) == 8192


def test_a_pipelines_own_spelling_makes_one_key_of_several() -> None:
    pipeline = Pipeline("p", Stage("fetch", handler), canonical=lambda key: key.strip().lower())

    assert canonical_key(pipeline, " A ") == canonical_key(pipeline, "a") == "a"


def test_a_key_of_which_no_spelling_is_left_is_none() -> None:
    pipeline = Pipeline("p", Stage("s", handler), canonical=lambda key: key.partition("#")[0])
    with pytest.raises(Permanent, match="nothing of it is left"):
        canonical_key(pipeline, "#only")


def test_a_key_that_the_pipeline_refuses_is_refused_in_its_words() -> None:
    pipeline = Pipeline("p", Stage("fetch", handler), canonical=refuse_all)

    with pytest.raises(Permanent, match="x: no such thing"):
        canonical_key(pipeline, "x")


@given(st.text(st.characters()))
def test_clean_text_has_no_nul_and_no_lone_surrogate_and_stays_clean(text: str) -> None:
    cleaned = clean(text)

    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert clean(cleaned) == cleaned
