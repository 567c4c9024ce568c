"""Every command through the entry point, on both stores, its JSON parsed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow.cli import COMMANDS
from onceflow.commands.text import masked
from tests.cli.conftest import Answer, Call


@pytest.fixture
def on(call: Call, database: str) -> Call:
    """A command on the test's database."""

    def run(*arguments: object) -> Answer:
        return call(*arguments, "--db", database)

    return run


@pytest.fixture
def filled(on: Call, program: Path) -> Call:
    """After a run with two that are done, one that is gone and one whose site is down."""
    answer = on("run", program, "a", "b", "gone", "down")
    assert answer.code == 1, answer.err
    return on


def in_database(database: str, do: Callable[[onceflow.Flow], Any]) -> Any:
    async def open_and_do() -> Any:
        async with onceflow.open(database) as flow:
            return await do(flow)

    return asyncio.run(open_and_do())


# --- run ---


def test_run_adds_works_and_says_what_came_out(on: Call, program: Path) -> None:
    answer = on("run", program, "a", "b", "gone", "--json")

    assert answer.code == 1
    report = answer.object
    assert {name: report[name] for name in ("new", "items", "done", "failed", "open", "gate")} == {
        "new": 3, "items": 3, "done": 2, "failed": 1, "open": 0, "gate": "done",
    }  # fmt: skip
    assert report["states"] == {"completed": 2, "failed": 1}
    assert "failed fetch gone: the page is gone" in answer.err


def test_run_again_says_all_done_already_and_opens_no_second_gate(
    filled: Call, program: Path
) -> None:
    again = filled("run", program, "down", "gone", "b", "a")
    without_keys = filled("run", program)

    assert again.code == 1
    assert "nothing is left to do: 2 done, 2 failed" in again.out
    assert "to open them again: onceflow retry --state failed --run " in again.out
    assert "onceflow items --state failed --run" in again.out
    assert "nothing is left to do" in without_keys.out
    assert len(filled("runs", "--json").lines) == 1
    gates = [item for item in filled("items", "--json").lines if item["stage"] == "digest"]
    assert len(gates) == 1


def test_a_new_run_of_known_keys_opens_a_gate_of_its_own(filled: Call, program: Path) -> None:
    report = filled("run", program, "a", "b", "--new-run", "--json").object

    assert (report["new"], report["known"], report["gate"]) == (0, 2, "done")
    assert len(filled("runs", "--json").lines) == 2


def test_the_newest_run_of_the_same_keys_is_gone_on_with(filled: Call, program: Path) -> None:
    newer = filled("run", program, "a", "b", "--new-run", "--json").object["run"]
    newest = filled("run", program, "a", "b", "--refresh", "--json").object["run"]

    assert newer != newest
    assert filled("run", program, "a", "b", "--json").object["run"] == newest


def test_refresh_does_known_items_again(filled: Call, program: Path) -> None:
    assert filled("run", program, "a", "--refresh", "--json").object["done"] == 1
    assert filled("show", "a", "--json").object["generation"] == 2


def test_run_goes_on_with_what_was_only_added(on: Call, program: Path) -> None:
    added = on("run", program, "a", "b", "--add-only")
    assert (added.code, "added 2, already known 0" in added.out) == (0, True)

    report = on("run", program, "b", "a", "--json").object

    assert (report["new"], report["known"], report["done"]) == (0, 2, 2)
    assert report["run"] == on("runs", "--json").lines[0]["id"]


def test_run_works_on_what_was_retried_in_a_finished_run(filled: Call, program: Path) -> None:
    filled("retry", "down")

    answer = filled("run", program, "a", "b", "gone", "down")

    assert "nothing is left to do" not in answer.out
    assert filled("show", "down", "--json").object["generation"] == 2


def test_c09_run_counts_new_known_duplicate_and_refused(
    on: Call, program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "seeds.txt"
    path.write_bytes(b"\xef\xbb\xbf# my list\r\na\r\n\r\nb\r\na\r\nb\x02\r\nc")
    on("run", program, "a")

    answer = on("run", program, path, "--json")

    names = ("new", "known", "duplicate", "refused", "done")
    assert [answer.object[name] for name in names] == [2, 1, 1, 1, 3]
    assert answer.code == 1
    assert "1 line refused\n  line 6: it has control characters" in answer.err


def test_c09_an_empty_list_is_nothing_to_do(on: Call, program: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.txt").write_bytes(b"\xff\n")

    answer = on("run", program, tmp_path / "empty.txt", "--json")

    assert (answer.code, answer.object["items"]) == (0, 0)
    bad = on("run", program, tmp_path / "bad.txt")
    assert (bad.code, "no usable key; line 1" in bad.err) == (2, True)


def test_c10_more_keys_than_one_transaction_takes_are_one_run(
    call: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.commands.work.ADD_CHUNK", 10)
    path = tmp_path / "seeds.txt"
    path.write_text("\n".join(f"key {number}" for number in range(40)))

    report = call("run", program, path, "--json").object

    assert (report["new"], report["done"], report["gate"]) == (40, 40, "done")
    assert len(call("runs", "--json").lines) == 1


def test_the_keys_of_an_import_that_was_cut_off_go_on_in_the_same_run(
    call: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.commands.work.ADD_CHUNK", 10)
    path = tmp_path / "seeds.txt"
    path.write_text("\n".join(f"key {number}" for number in range(25)))
    add = onceflow.Flow.add

    async def cut_off(flow: onceflow.Flow, pipeline: Any, keys: Any, **options: Any) -> Any:
        if "key 10" in keys:
            raise onceflow.StoreUnavailable("pulled the plug")
        return await add(flow, pipeline, keys, **options)

    with monkeypatch.context() as patched:
        patched.setattr(onceflow.Flow, "add", cut_off)
        assert call("run", program, path, "--add-only").code == 3
    assert [run["sealed"] for run in call("runs", "--json").lines] == [False]
    assert "was never sealed" not in call("doctor").out, "its items are still open"

    report = call("run", program, path, "--json").object

    assert (report["new"], report["known"], report["done"], report["gate"]) == (15, 10, 25, "done")
    assert len(call("runs", "--json").lines) == 1


def test_ceilings_hold_and_what_was_left_out_is_said(on: Call, program: Path) -> None:
    answer = on("run", program, "a", "b", "c", "--max-items", 2)

    assert "1 item left out" in answer.out
    assert on("runs", "--json").lines[0]["accepted"] == 2


def test_a_paused_stage_leaves_items_open_and_says_so(on: Call, program: Path) -> None:
    on("run", program, "a", "--add-only")
    on("pause", "count")

    answer = on("run", program, "a")

    assert answer.code == 1
    assert "1 open" in answer.out
    assert "stage count is paused: `onceflow resume count" in answer.out


def test_quiet_says_nothing_on_stderr(on: Call, program: Path) -> None:
    assert on("run", program, "a", "gone", "--quiet").err == ""


def test_a_handler_that_raises_shows_no_traceback_unless_asked_for(
    on: Call, write_program: Callable[[str], Path]
) -> None:
    path = write_program(
        "from onceflow import Pipeline, Stage\n\n"
        "def work(work): raise KeyError('\\x1b[31mred')\n\n"
        'odd = Pipeline("odd", Stage("a", work), attempts=1)\n'
    )

    plain = on("run", path, "a")
    verbose = on("run", path, "b", "--verbose")

    assert "stage 'a' raised KeyError" in plain.err
    assert "Traceback" not in plain.err
    assert "\x1b" not in plain.err
    assert "Traceback" in verbose.err


# --- looking ---


def test_status_counts_by_pipeline_and_state(filled: Call) -> None:
    found = filled("status", "--json").object
    text = filled("status").out

    assert found["pipelines"]["news"]["states"] == {"completed": 3, "failed": 2}
    assert found["pipelines"]["news"]["total"] == 5
    assert found["pipelines"]["news"]["stages"]["fetch"]["phases"] == {"failed": 2}
    assert {row["error_code"] for row in found["failures"]} == {"gone", "timeout"}
    assert "news: 5 items (3 completed, 2 failed)" in text or "2 failed, 3 completed" in text
    assert "the page is gone" in text
    recent = found["pipelines"]["news"]["stages"]["fetch"]["recent"]
    assert (recent["failed"], recent["p50_seconds"] >= 0) == (2, True)
    assert "% succeed" in text
    assert found["refused"] == dict.fromkeys(found["refused"], 0), "nobody works now"


def test_items_are_listed_by_every_filter(filled: Call) -> None:
    def keys(*flags: str) -> set[str]:
        found = {item["key"] for item in filled("items", "--json", *flags).lines}
        return {key for key in found if not key.startswith("gate:")}

    assert keys() == {"a", "b", "gone", "down"}
    assert keys("--state", "completed") == {"a", "b"}
    assert keys("--phase", "failed") == {"gone", "down"}
    assert keys("--stage", "count") == {"a", "b"}
    assert keys("--error", "gone") == {"gone"}
    assert keys("--run", "last") == {"a", "b", "gone", "down"}
    assert len(filled("items", "--json", "--limit", 2).lines) == 2
    assert "the page is gone" in filled("items", "--state", "failed").out
    assert "no item is like that" in filled("items", "--error", "nothing").err


def test_an_item_is_found_by_key_and_by_id_with_its_whole_story(filled: Call) -> None:
    by_key = filled("show", "a", "--json").object

    assert filled("show", by_key["id"], "--json").object["key"] == "a"
    assert [row["stage"] for row in by_key["results"]] == ["fetch", "count"]
    assert by_key["results"][0]["body"] == {"text": "the text of a"}
    assert [event["n"] for event in by_key["events"]] == [1, 2, 3, 4, 5]
    assert by_key["state"] == "completed"
    assert "the text of a" in filled("show", "a").out
    assert "the page is gone (code gone)" in filled("why", "gone").out
    assert filled("why", "a", "--json").object["why"].startswith("completed")


def test_what_came_out_after_all_is_shown_by_its_run_or_as_the_last(
    filled: Call, program: Path
) -> None:
    answer = filled("run", program, "a", "b", "gone", "down")

    [line] = [line for line in answer.out.splitlines() if "after all of them: " in line]
    key = line.split("onceflow show ")[1].split()[0]
    [result] = filled("show", key, "--json").object["results"]
    assert result["body"] == {"items": ["a", "b"]}
    assert filled("show", "gate:last", "--json").object["key"] == key
    filled("run", program, "c", "--add-only")
    assert "has no gate's item (yet)" in filled("show", "gate:last").err


def test_events_have_the_fields_of_the_history(filled: Call) -> None:
    found = filled("events", "--json").lines

    assert [event["seq"] for event in found] == sorted(event["seq"] for event in found)
    assert {"seq", "at", "pipeline", "key", "item", "run", "stage", "phase", "state", "fence",
            "attempt", "worker", "seconds", "kind"} <= set(found[0])  # fmt: skip
    failed = filled("events", "--kind", "failed", "--kind", "gate_opened", "--json").lines
    assert sorted(event["kind"] for event in failed) == ["failed", "failed", "gate_opened"]
    assert filled("events", "--last", 1, "--json").lines == found[-1:]
    after = found[3]["seq"]
    assert filled("events", "--after", after, "--json").lines == found[4:]
    assert {event["key"] for event in filled("events", "--item", "a", "--json").lines} == {"a"}
    assert "stage_finished" in filled("events").out


def test_watch_shows_a_finished_run_once(filled: Call) -> None:
    answer = filled("watch", "last")
    found = filled("watch", "last", "--json").object

    assert answer.code == 1
    assert "4 of 4 settled, 2 failed" in answer.out
    assert found["finished"] is True
    assert [stage["passed"] for stage in found["stages"]] == [2, 2, 1]


def test_watch_says_that_nobody_works(on: Call, program: Path) -> None:
    on("run", program, "a", "--add-only")

    assert "no worker lives; start one" in on("watch", "--once").out


def test_runs_are_listed(filled: Call) -> None:
    [run] = filled("runs", "--json").lines

    assert (run["accepted"], run["failed"], run["state"]) == (4, 2, "finished")
    assert "finished" in filled("runs").out


# --- operating ---


def test_retry_by_filter_leaves_alone_what_failed_for_good(filled: Call) -> None:
    dry = filled("retry", "--state", "failed", "--dry-run", "--json").object
    done = filled("retry", "--state", "failed")

    assert (dry["fitting"], dry["for_good"], dry["changed"]) == (1, 1, 0)
    assert "retried 1 item\n  1 failed for good and left alone (--permanent" in done.out
    assert filled("show", "down", "--json").object["phase"] == "ready"
    assert "retried 1 item" in filled("retry", "--error", "gone", "--permanent").out
    assert filled("items", "--phase", "failed", "--json").lines == []


def test_a_named_item_is_retried_even_if_it_failed_for_good(filled: Call) -> None:
    assert "retried 1 item" in filled("retry", "gone").out


def test_a_completed_item_is_retried_only_if_it_is_meant(filled: Call, program: Path) -> None:
    def generations() -> dict[str, int]:
        results = filled("show", "a", "--json").object["results"]
        return {one["stage"]: one["generation"] for one in results}

    assert filled("retry", "--all", "--permanent").out == "retried 2 items\n"
    before = generations()
    assert filled("retry", "a").out == "retried 1 item\n"
    filled("run", program, "a")

    after = generations()
    assert after["count"] > before["count"], "its last stage is done again"
    assert after["fetch"] == before["fetch"], "what came before is kept"
    assert "unless it is named or --state means it" in filled("retry", "--help").out


def test_a_finished_item_is_retried_from_a_stage(filled: Call) -> None:
    assert filled("retry", "a", "--from-stage", "count").code == 0
    found = filled("show", "a", "--json").object
    assert (found["stage"], found["phase"], found["generation"]) == ("count", "ready", 2)


def test_cancel_takes_out_what_a_filter_matches(on: Call, program: Path) -> None:
    on("run", program, "a", "b", "--add-only")

    assert "would cancel 2 items" in on("cancel", "--stage", "fetch", "--dry-run").out
    assert "cancelled 2 items" in on("cancel", "--run", "last", "--why", "a mistake").out
    listed = on("items", "--stage", "fetch", "--json").lines
    assert [item["phase"] for item in listed] == ["cancelled", "cancelled"]
    again = on("cancel", "a")
    assert (again.code, "1 left alone: not in a phase to cancel from" in again.out) == (1, True)


def test_release_takes_a_lease_away(on: Call, database: str, program: Path) -> None:
    on("run", program, "a", "b", "--add-only")

    async def claim(flow: onceflow.Flow) -> None:
        from onceflow.store.base import Claim, Worker

        await flow.store.beat(Worker("w", "host", 1))
        await flow.store.exchange("w", 1, [], [Claim("news", "fetch", "", 1)])

    in_database(database, claim)

    assert "being worked on by host pid 1" in on("why", "a").out
    assert "would release 1 item" in on("release", "--all", "--dry-run").out
    assert on("release", "--pipeline", "news", "--json").object["changed"] == 1
    assert on("show", "a", "--json").object["attempt"] == 0


def test_a_state_that_changed_meanwhile_is_said(
    filled: Call, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = onceflow.Flow.act

    async def late(flow: onceflow.Flow, *arguments: Any, **options: Any) -> Any:
        store_act = flow.store.act

        async def meanwhile(command: Any, targets: Any, stage: str, why: str) -> Any:
            await store_act(command, targets[:1], stage, why)
            return await store_act(command, targets, stage, why)

        monkeypatch.setattr(flow.store, "act", meanwhile)
        return await act(flow, *arguments, **options)

    monkeypatch.setattr(onceflow.Flow, "act", late)

    answer = filled("retry", "--state", "failed", "--permanent")

    assert "retried 1 item\n  1 left alone: their state changed meanwhile" in answer.out


def test_a_stage_is_paused_limited_and_resumed(filled: Call) -> None:
    assert filled("pause", "fetch", "--why", "lunch", "--json").object["paused"] is True
    assert "PAUSED (lunch)" in filled("status").out
    assert "is paused" in filled("doctor").out
    assert filled("limit", "fetch", 3, "--json").object["limit"] == 3
    assert "no limit" in filled("limit", "fetch", "--declared").out
    assert filled("resume", "fetch", "--json").object["paused"] is False
    assert len(filled("pause", "--pipeline", "news", "--json").lines) == 3


def test_prune_forgets_history_and_keeps_the_items(filled: Call) -> None:
    before = len(filled("events", "--json").lines)

    pruned = filled("prune", "--older-than", "0s", "--json").object["pruned"]

    assert pruned > 0
    assert len(filled("events", "--json").lines) < before
    assert len(filled("items", "--json").lines) == 5
    assert filled("prune", "--older-than", "30d").out == "forgot 0 rows of history\n"


def test_what_is_retried_without_its_file_gets_its_lane_from_who_works_on_it(
    on: Call, program: Path, write_program: Callable[[str], Path]
) -> None:
    path = write_program(
        "from onceflow import Lane, Permanent, Pipeline, Stage\n\n"
        "def work(work): raise Permanent('no')\n\n"
        'site = Pipeline("site", Stage("a", work, lane=Lane(lambda key: key[0])))\n'
    )
    on("run", path, "x1", "y1")

    on("run", program, "gone")
    assert "for good and left alone" in on("retry", "--run", "last", "--state", "failed").out
    assert "retried 1 item" in on("retry", "gone").out, "its own pipeline has no lanes"
    assert "retried 1 item" in on("retry", "x1").out
    assert "retried 1 item" in on("retry", path, "--state", "failed", "--permanent").out
    opened = on("items", "--pipeline", "site", "--json").lines
    assert {item["key"]: item["lane"] for item in opened} == {"x1": "", "y1": "y"}

    on("run", path)
    ended = on("items", "--pipeline", "site", "--state", "failed", "--json").lines
    assert {item["key"]: item["generation"] for item in ended} == {"x1": 2, "y1": 2}


# --- checking ---


def test_audit_is_clean_after_a_run_and_names_what_is_broken(
    call: Call, program: Path, tmp_path: Path
) -> None:
    import sqlite3

    call("run", program, "a", "gone")
    assert call("audit").code == 0
    with sqlite3.connect(tmp_path / "onceflow.db") as connection:
        connection.execute("UPDATE item SET attempt = 99 WHERE key = 'gone'")
        connection.execute("DELETE FROM event WHERE item = 1 AND n = 2")
    connection.close()

    answer = call("audit")
    found = call("audit", "--json")

    assert (answer.code, found.code) == (1, 1)
    assert "I12 item 1 a: " in answer.out
    assert "I12 means:" in answer.out
    assert {one["invariant"] for one in found.object["violations"]} >= {"I12"}
    assert call("doctor").code == 1


def test_doctor_lists_every_setting_that_is_no_default(
    filled: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_SUMMARIZE_WORDS", "60")
    monkeypatch.setenv("ONCEFLOW_POLL_SECONDS", "0.2")
    (tmp_path / "onceflow.toml").write_text("[fetch]\nrobots = false\n")

    [found] = [one for one in filled("doctor", "--json").object["findings"]
               if one["what"] == "settings"]  # fmt: skip

    assert found["detail"] == (
        "db from flag, poll_seconds from ONCEFLOW_POLL_SECONDS, fetch.robots from onceflow.toml, "
        "summarize.words from ONCEFLOW_SUMMARIZE_WORDS"
    )


def test_doctor_says_that_a_worker_is_missing(on: Call, program: Path, database: str) -> None:
    on("run", program, "a", "--add-only")

    answer = on("doctor")

    assert answer.code == 1
    assert "items are ready, but no worker lives" in answer.out
    assert f"start one: onceflow worker FILE.py --db {masked(database)}" in answer.out
    assert on("doctor", "--json").object["ok"] is False


@pytest.mark.parametrize(
    "words",
    [
        ("limit", "fetch", 10**20),
        ("events", "--after", 10**20),
        ("audit", "--grace-seconds", "nan"),
        ("prune", "--older-than", f"{10**20}d"),
    ],
    ids=lambda words: words[0],
)
def test_a_number_that_no_database_takes_is_refused_in_a_line(
    on: Call, program: Path, words: tuple[object, ...]
) -> None:
    on("run", program, "a")

    answer = on(*words)

    assert answer.code == 2
    assert answer.err.startswith("onceflow: ")
    assert len(answer.err.splitlines()) == 1


# --- usage ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "there is no command 'frobnicate'"),
        (["statsu"], "did you mean `onceflow status`?"),
        (["items", "--bogus"], "--bogus"),
        (["items", "--limit", "many"], "--limit"),
        (["items", "--limit", "-1"], "--limit is -1"),
        (["items", "--phase", "sleepy"], "there is no phase 'sleepy'"),
        (["items", "--state", "sleepy"], "there is no state 'sleepy'"),
        (["items", "--pipeline", "other"], "there is no pipeline 'other'"),
        (["items", "--run", "0"], "there is no run '0'"),
        (["show", "nobody"], "there is no item 'nobody'"),
        (["show"], "parameter"),
        (["cancel"], "say which items to cancel"),
        (["retry", "a", "--state", "failed"], "keys or a filter"),
        (["retry", "--stage", "nowhere"], "there is no stage 'nowhere'"),
        (["pause"], "name a stage"),
        (["pause", "nowhere"], "there is no stage 'nowhere'"),
        (["limit", "fetch"], "give a number"),
        (["limit", "fetch", "0"], "at least 1"),
        (["prune", "--older-than", "soon"], "--older-than is 'soon'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_said_in_a_line_or_two_with_exit_code_2(
    call: Call, program: Path, words: list[str], said: str
) -> None:
    call("run", program, "a")

    answer = call(*words)

    assert answer.code == 2
    assert said in answer.err
    assert 1 <= answer.err.count("\n") <= 2
    assert answer.out == ""


def test_help_and_version_are_data(call: Call) -> None:
    assert "Usage: onceflow COMMAND" in call("--help").out
    assert call("--version").out == f"{onceflow.__version__}\n"
    assert "Exit codes" in call("retry", "--help").out
    assert "Usage: onceflow config" in call("config").out


def test_every_command_takes_json_db_and_quiet(call: Call) -> None:
    for commands in COMMANDS.values():
        for name in commands:
            words = [name, "show"] if name == "config" else [name]
            text = call(*words, "--help").out
            own = {"--db"} if name == "demo" else set()  # the demo brings its own database
            assert {flag for flag in ("--json", "--db", "--quiet") if flag not in text} == own, name


def test_json_is_plain_ascii(on: Call, program: Path) -> None:
    on("run", program, "käse 漢字")

    text = on("items", "--json").out

    assert text.isascii()
    assert "käse 漢字" in [json.loads(line)["key"] for line in text.splitlines()]
