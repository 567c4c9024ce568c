"""A pipeline's table is checked when it is built; what is wrong is named."""

from typing import Any

import pytest

from onceflow import Lane, Pipeline, PipelineError, Stage
from onceflow.core.item import Phase


def handler(work: object) -> None:
    return None


def stage(name: str, **rules: Any) -> Stage:
    return Stage(name, handler, **rules)


def summarize(**rules: Any) -> Pipeline:
    return Pipeline(
        "summarize",
        stage("scrape", ready="idle", active="scraping", limit=8),
        stage("summarize", ready="scraped", active="summarizing"),
        done="completed",
        **rules,
    )


@pytest.mark.parametrize(
    ("place", "state"),
    [
        (("scrape", "waiting"), "idle"),
        (("scrape", "ready"), "idle"),
        (("scrape", "active"), "scraping"),
        (("summarize", "ready"), "scraped"),
        (("summarize", "active"), "summarizing"),
        (("summarize", "done"), "completed"),
        (("scrape", "failed"), "failed"),
        (("summarize", "cancelled"), "cancelled"),
    ],
)
def test_each_place_has_its_public_state(place: tuple[str, str], state: str) -> None:
    assert summarize().state(*place) == state


def test_every_stage_has_a_state_for_every_phase() -> None:
    pipeline = summarize(after_all=handler)

    assert set(pipeline.states) == {
        (name, phase) for name in ("scrape", "summarize", "digest") for phase in Phase
    }


def test_two_places_may_share_a_state() -> None:
    ingest = Pipeline(
        "ingest",
        stage("fetch", ready="QUEUED", active="FETCHING"),
        stage("extract", ready="FETCHING", active="EXTRACTING"),
        done="SAVED",
        failed="FAILED",
    )

    assert ingest.state("fetch", "active") == ingest.state("extract", "ready") == "FETCHING"


def test_states_that_are_not_given_come_from_the_stages_name() -> None:
    pipeline = Pipeline("plain", stage("fetch"), stage("read", waiting="held"))

    assert pipeline.state("fetch", "ready") == pipeline.state("fetch", "waiting") == "fetch-ready"
    assert pipeline.state("fetch", "active") == "fetch-active"
    assert pipeline.state("read", "waiting") == "held"
    assert pipeline.state("read", "ready") == "read-ready"


def test_states_that_are_given_are_taken_as_they_are() -> None:
    given = stage("fetch", ready="todo", active="doing", waiting="held")

    assert Pipeline("plain", given).first is given


def test_the_defaults_are_those_of_the_design() -> None:
    pipeline = Pipeline("plain", stage("fetch"))

    assert pipeline.attempts == 3
    assert pipeline.lease_seconds == 300
    assert pipeline.heartbeat_seconds == 30
    assert pipeline.backoff_seconds == 5
    assert pipeline.backoff_max_seconds == 15 * 60
    assert pipeline.gate == "settled"
    assert pipeline.first.deadline_seconds == 300
    assert pipeline.first.processors == 10
    assert pipeline.first.batch == 10
    assert pipeline.first.assign_max is None


@pytest.mark.parametrize(("lease", "beat"), [(300, 30), (90, 30), (60, 20), (3, 1)])
def test_a_lease_lasts_at_least_three_heartbeats_unless_told_otherwise(
    lease: float, beat: float
) -> None:
    pipeline = Pipeline("plain", stage("fetch"), lease_seconds=lease)

    assert pipeline.heartbeat_seconds == beat


def test_the_way_goes_down_the_table_unless_next_says_otherwise() -> None:
    pipeline = Pipeline("way", stage("a", next="c"), stage("b", next="d"), stage("c", next="b"),
                        stage("d"))  # fmt: skip

    way = [pipeline.first.name]
    while (after := pipeline.after(way[-1])) is not None:
        way.append(after.name)

    assert way == ["a", "c", "b", "d"]
    assert [pipeline.order(name) for name in way] == [0, 1, 2, 3]
    assert pipeline.last.name == "d"


def test_the_gates_stage_comes_after_all_others() -> None:
    pipeline = summarize(after_all=handler)

    assert [each.name for each in pipeline.every_stage] == ["scrape", "summarize", "digest"]
    assert pipeline.gate_stage is not None
    assert pipeline.gate_stage.ready == "gathered"
    assert pipeline.order("digest") == 2
    assert pipeline.after("digest") is None
    assert pipeline.last.name == "summarize"
    assert summarize().gate_stage is None
    assert [each.name for each in summarize().every_stage] == ["scrape", "summarize"]


def test_the_gate_may_have_a_stage_of_its_own() -> None:
    pipeline = summarize(after_all=stage("wrap", ready="waits", active="wraps", attempts=7))

    assert pipeline.gate_stage is not None
    assert pipeline.attempts_of(pipeline.gate_stage) == 7
    assert pipeline.state("wrap", "active") == "wraps"


def test_a_stage_may_have_its_own_attempts() -> None:
    pipeline = Pipeline("plain", stage("a", attempts=1), stage("b"), attempts=5)

    assert [pipeline.attempts_of(each) for each in pipeline.stages] == [1, 5]


def test_a_stage_with_a_limit_or_lanes_is_bounded() -> None:
    assert stage("a", limit=8).bounded
    assert stage("a", lane=Lane(str)).bounded
    assert not stage("a").bounded


def test_an_item_has_a_lane_only_where_the_stage_has_lanes() -> None:
    by_host = Lane(lambda key: key.split("/")[0])
    pipeline = Pipeline("lanes", stage("a", lane=by_host), stage("b"))
    fetch, read = pipeline.stages

    assert pipeline.lane_of(fetch, "a.test/1") == "a.test"
    assert pipeline.lane_of(read, "a.test/1") == ""
    assert pipeline.lane_of(fetch, "/1") == "-", "an empty lane would mean that there is none"


def test_a_stage_is_found_by_its_name_and_the_refusal_lists_the_names() -> None:
    assert summarize().stage("scrape").limit == 8
    with pytest.raises(PipelineError, match=r"'summarize' has no stage 'scrap'; it has scrape, su"):
        summarize().stage("scrap")


def test_a_pipeline_knows_the_closed_set_of_events_and_its_own() -> None:
    pipeline = summarize(events=("page_read",))

    assert {"page_read", "added", "summary_finished"} <= pipeline.events


A = stage("a")
B = stage("b")


@pytest.mark.parametrize(
    ("stages", "rules", "words"),
    [
        pytest.param([], {}, "it has no stages", id="no stages"),
        pytest.param([A, stage("a")], {}, "stage 'a' is named twice; rename one", id="twice"),
        pytest.param(
            [stage("digest")], {"after_all": handler}, "stage 'digest' is named twice", id="gate"
        ),
        pytest.param(
            [stage("a", next="a")], {}, "stages go in a circle: a -> a", id="circle of one"
        ),
        pytest.param(
            [A, stage("b", next="a")], {}, "stages go in a circle: a -> b -> a", id="circle"
        ),
        pytest.param(
            [stage("a", next="c"), B, stage("c")], {}, "'b' is never reached", id="unreachable"
        ),
        pytest.param([stage("a", next="z"), B], {}, "goes on to 'z', which is not a", id="nowhere"),
        pytest.param([stage("select")], {}, "stage name 'select' is a word of SQL", id="sql"),
        pytest.param([stage('a"b')], {}, "stage name 'a\"b' is not allowed", id="quote"),
        pytest.param([stage("a\n")], {}, r"stage name 'a\\n' is not allowed", id="newline"),
        pytest.param([stage("")], {}, "stage name '' is not allowed", id="empty"),
        pytest.param([stage("Ä")], {}, "stage name 'Ä' is not allowed", id="letters"),
        pytest.param([stage("a" * 64)], {}, "at most 63 characters", id="long"),
        pytest.param([stage("a", ready="to do")], {}, "state name 'to do' is not allowed", id="st"),
        pytest.param(
            [stage("a", active="completed")], {}, "'completed' is also the name of an end", id="end"
        ),
        pytest.param([A], {"done": "a b"}, "state name 'a b' for done", id="done"),
        pytest.param([A], {"done": "failed"}, "need three names", id="ends"),
        pytest.param([stage("a", limit=0)], {}, "stage 'a': limit is 0; it must be", id="limit 0"),
        pytest.param([stage("a", limit=-1)], {}, "stage 'a': limit is -1", id="limit -1"),
        pytest.param([stage("a", limit=1.5)], {}, "limit is 1.5; .*whole number", id="limit 1.5"),
        pytest.param([stage("a", limit=True)], {}, "limit is True; .*whole number", id="limit yes"),
        pytest.param([stage("a", processors=0)], {}, "processors is 0", id="processors"),
        pytest.param([stage("a", batch=0)], {}, "batch is 0", id="batch"),
        pytest.param([stage("a", assign_max=0)], {}, "assign_max is 0", id="assign_max"),
        pytest.param([stage("a", attempts=0)], {}, "stage 'a': attempts is 0", id="own attempts"),
        pytest.param([stage("a", lane=Lane(str, limit=0))], {}, "lane limit is 0", id="lane"),
        pytest.param(
            [stage("a", lane=Lane(str, spacing_seconds=-1))], {}, "spacing_seconds is -1", id="gap"
        ),
        pytest.param([stage("a", deadline_seconds=0)], {}, "deadline_seconds is 0", id="deadline"),
        pytest.param([Stage("a", None)], {}, "its handler None cannot be called", id="handler"),  # type: ignore[arg-type]  # what is refused
        pytest.param([A], {"attempts": 0}, "attempts is 0; it must be above 0", id="attempts"),
        pytest.param([A], {"lease_seconds": 0}, "lease_seconds is 0", id="lease 0"),
        pytest.param([A], {"heartbeat_seconds": -1}, "heartbeat_seconds is -1", id="beat"),
        pytest.param(
            [A],
            {"lease_seconds": 59, "heartbeat_seconds": 30},
            "lease_seconds is 59 but heartbeat_seconds is 30; a lease must last at least two",
            id="lease shorter than two heartbeats",
        ),
        pytest.param([A], {"backoff_seconds": -1}, "backoff_seconds is -1", id="backoff"),
        pytest.param(
            [A], {"backoff_seconds": 20, "backoff_max_seconds": 10}, "0 <= backoff <= max", id="max"
        ),
        pytest.param([A], {"gate": "opened"}, "gate is 'opened'; it must be 'settled' or", id="g"),
        pytest.param([A], {"events": ("Page Read",)}, "event kind 'Page Read' is not", id="event"),
        pytest.param([A], {"lease_seconds": float("nan")}, "lease_seconds is nan", id="lease nan"),
        pytest.param([A], {"lease_seconds": float("inf")}, "lease_seconds is inf", id="lease inf"),
        pytest.param([A], {"lease_seconds": "300"}, "lease_seconds is '300'", id="lease text"),
        pytest.param([A], {"attempts": 2.5}, "attempts is 2.5; .*whole number", id="attempts 2.5"),
        pytest.param(
            [stage("a", deadline_seconds=float("nan"))], {}, "deadline_seconds is nan", id="nan"
        ),
        pytest.param(["fetch"], {}, "'fetch' is not a Stage", id="not a stage"),
        pytest.param([A], {"done": None}, "state name None for done", id="no done"),
    ],
)
def test_a_wrong_table_is_refused_by_name(
    stages: list[Stage], rules: dict[str, Any], words: str
) -> None:
    with pytest.raises(PipelineError, match=words) as refused:
        Pipeline("news", *stages, **rules)

    assert str(refused.value).startswith("pipeline 'news': ")


@pytest.mark.parametrize("name", ["News", "", "from", "a b", "x" * 64, None, 5])
def test_a_pipelines_own_name_is_checked_too(name: Any) -> None:
    with pytest.raises(PipelineError, match="pipeline name"):
        Pipeline(name, A)


def test_a_lease_of_exactly_two_heartbeats_is_enough() -> None:
    assert Pipeline("news", A, lease_seconds=60, heartbeat_seconds=30).lease_seconds == 60
