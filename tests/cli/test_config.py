"""A bad configuration is one line with the line number or the key's name, and exit code 2."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from onceflow import Settings
from onceflow.commands.common import Engine
from onceflow.commands.config import CONFIG_BYTES_MAX, TABLES, tables, variable_of
from tests.cli.conftest import Call

WRONG_FILES = {
    "invalid syntax": (b'db = "a"\n[engine\n', "line 2"),
    "not text": (b'db = "a"\nx = "\xff"\n', "line 2: it is not UTF-8 text"),
    "too large": (b"#" * (CONFIG_BYTES_MAX + 1), "larger than"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_c01_a_wrong_file_is_refused_in_one_line(call: Call, tmp_path: Path, name: str) -> None:
    raw, words = WRONG_FILES[name]
    (tmp_path / "onceflow.toml").write_bytes(raw)

    answer = call("status")

    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "onceflow.toml" in answer.err
    assert words in answer.err


def test_c01_a_missing_file_is_refused_only_if_it_was_named(call: Call, tmp_path: Path) -> None:
    assert call("config", "show").code == 0
    answer = call("config", "show", "--config", "mine.toml")
    assert (answer.code, answer.err) == (
        2,
        "onceflow: mine.toml cannot be read: No such file or directory\n",
    )


def test_c01_a_folder_is_refused_and_an_empty_file_is_fine(call: Call, tmp_path: Path) -> None:
    (tmp_path / "onceflow.toml").mkdir()
    assert "is a folder" in call("config", "show").err
    (tmp_path / "empty.toml").touch()
    assert call("config", "show", "--config", "empty.toml").code == 0


def test_c01_an_endless_file_is_refused(call: Call) -> None:
    answer = call("config", "show", "--config", "/dev/zero")

    assert (answer.code, "larger than" in answer.err) == (2, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_c01_an_unreadable_file_is_refused(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "onceflow.toml"
    path.touch(mode=0)

    assert "Permission denied" in call("config", "show").err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unknown = 1", ["'unknown'", "db"]),
        ("[engine]\nscan_second = 1", ["'scan_second'", "scan_seconds"]),
        ("[engin]\nscan_seconds = 1", ["'engin'", "[engine]"]),
        ("engine = 3", ["[engine]"]),
        ("db = 3", ["db is 3", "text"]),
        ('[engine]\nscan_seconds = "often"', ["scan_seconds is 'often'", "a number"]),
        ("[engine]\nqueue_max = 1.5", ["queue_max is 1.5", "a whole number"]),
        ("[engine]\nqueue_max = true", ["queue_max is True", "a whole number"]),
        ("[engine]\nqueue_max = -1", ["queue_max is -1", "between 1 and"]),
        ("[engine]\nqueue_max = 0", ["queue_max is 0", "between 1 and"]),
        ("[engine]\nscan_seconds = nan", ["scan_seconds is nan", "between"]),
        ('[engine]\ndurability = "some"', ["durability is 'some'", "'full' or 'normal'"]),
    ],
)
def test_c02_a_wrong_setting_is_refused_by_name(
    call: Call, tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "onceflow.toml").write_text(text)

    answer = call("config", "show")

    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert [word for word in words if word not in answer.err] == []


def test_c02_a_wrong_flag_and_a_wrong_variable_are_refused_by_name(
    call: Call, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "queue_max is 0" in call("run", program, "a", "--queue-max", 0).err
    monkeypatch.setenv("ONCEFLOW_SCAN_SECONDS", "soon")
    answer = call("status")
    assert (answer.code, "ONCEFLOW_SCAN_SECONDS" in answer.err) == (2, True)


def test_c14_spaces_and_newlines_around_a_variable_are_trimmed(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_SCAN_SECONDS", " 3\n")
    monkeypatch.setenv("ONCEFLOW_DB", " mine.db\n")

    shown = {line["name"]: line for line in call("config", "show", "--json").lines}

    assert (shown["scan_seconds"]["value"], shown["db"]["value"]) == (3.0, "mine.db")


def test_c14_a_newline_inside_an_address_is_refused_without_showing_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_DB", "postgresql://me:sec\nret@host/db")

    answer = call("status")

    assert answer.code == 2
    assert "ONCEFLOW_DB" in answer.err
    assert "ret" not in answer.err


def test_each_setting_says_where_it_comes_from_and_a_later_source_wins(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onceflow.toml").write_text(
        'db = "file.db"\n[engine]\nscan_seconds = 7\nqueue_max = 5\n'
    )
    monkeypatch.setenv("ONCEFLOW_QUEUE_MAX", "6")

    shown = {line["name"]: line for line in call("config", "show", "--json").lines}

    assert shown["db"] == {"name": "db", "value": "file.db", "from": "onceflow.toml"}
    assert shown["scan_seconds"]["from"] == "onceflow.toml"
    assert shown["queue_max"] == {"name": "queue_max", "value": 6, "from": "ONCEFLOW_QUEUE_MAX"}
    assert shown["grace_seconds"]["from"] == "default"
    assert "queue_max" in call("config", "show").out
    monkeypatch.setenv("ONCEFLOW_DB", "variable.db")
    assert call("config", "show", "--json").lines[0]["value"] == "variable.db"
    assert call("config", "show", "--db", "flag.db", "--json").lines[0]["from"] == "flag"


def test_every_setting_is_a_flag() -> None:
    assert set(Engine.__dataclass_fields__) == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_of_every_table_is_documented_with_its_variable(table: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    section = page.partition(f"## `[{table}]`")[2].partition("\n## ")[0]
    for field in fields(tables()[table]):
        row = next(line for line in section.splitlines() if line.startswith(f"| `{field.name}` |"))
        assert f"`{variable_of(table, field.name)}`" in row
        default: object = field.default
        words = {None: "none", (): "none", True: "true", False: "false"}
        text = words[default] if isinstance(default, bool | tuple | None) else default
        assert f"| {text} |" in row or f"| {text!r} |" in row


def test_the_clients_settings_come_from_file_and_environment(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onceflow.toml").write_text(
        'model = "openai:m"\n[fetch]\nrobots = false\nallow_networks = ["10.0.0.0/8"]\n'
        "[llm]\nidle_seconds = 5\n[summarize]\nwords = 50\n"
    )
    monkeypatch.setenv("ONCEFLOW_FETCH_ALLOW_NETWORKS", "127.0.0.0/8, 10.0.0.0/8")
    monkeypatch.setenv("ONCEFLOW_SUMMARIZE_WORDS", "60")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")

    answer = call("config", "show", "--json")

    shown = {line["name"]: (line["value"], line["from"]) for line in answer.lines}
    assert shown["model"] == ("openai:m", "onceflow.toml")
    assert shown["fetch.robots"] == (False, "onceflow.toml")
    assert shown["fetch.allow_networks"] == (
        ["127.0.0.0/8", "10.0.0.0/8"],
        "ONCEFLOW_FETCH_ALLOW_NETWORKS",
    )
    assert shown["llm.idle_seconds"] == (5.0, "onceflow.toml")
    assert shown["summarize.words"] == (60, "ONCEFLOW_SUMMARIZE_WORDS")
    assert shown["llm.base_url"] == ("http://localhost:1/v1", "OPENAI_BASE_URL")
    assert shown["OPENAI_API_KEY"] == ("set", "OPENAI_API_KEY")
    assert "sk-secret" not in answer.out + call("config", "show").out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fetch]\nrobot = true", ["'robot'", "robots"]),
        ("[fetch]\nrobots = 1", ["robots is 1", "true or false"]),
        ('[fetch]\nallow_networks = "10.0.0.0/8"', ["allow_networks", "a list of texts"]),
        ("[fetch]\nallow_networks = [10]", ["allow_networks", "a list of texts"]),
        ("[fetch]\nfetch_seconds = 0", ["fetch_seconds is 0", "greater than zero"]),
        ("[summarize]\nwords = 0", ["words is 0", "between 1 and"]),
        ('[summarize]\nprompt = " "', ["prompt is empty"]),
        (
            '[summarize]\nprompt = "In {langauge}: {words}"',
            ["{langauge}", "{words} and {language}"],
        ),
        ("[llm]\nprice_input = 1.0", ["price_input", "price_output", "together"]),
        ("[llm]\nidle_seconds = -1", ["idle_seconds is -1"]),
    ],
)
def test_c02_a_wrong_setting_of_a_client_is_refused_by_name(
    call: Call, tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "onceflow.toml").write_text(text)

    answer = call("config", "show")

    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert [word for word in words if word not in answer.err] == []


@pytest.mark.parametrize("text", ["maybe", "", "2"])
def test_a_switch_in_the_environment_is_on_or_off(
    call: Call, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ONCEFLOW_FETCH_ROBOTS", "off")
    shown = {line["name"]: line["value"] for line in call("config", "show", "--json").lines}
    assert shown["fetch.robots"] is False
    monkeypatch.setenv("ONCEFLOW_FETCH_ROBOTS", text)
    assert "true or false" in call("config", "show").err


def test_an_unknown_variable_is_named_with_the_nearest_known_one(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_LLM_BASEURL", "http://localhost:1")
    monkeypatch.setenv("ONCEFLOW_QQQ", "1")
    monkeypatch.setenv("ONCEFLOW_TEST_DATABASE", "ours")

    answer = call("config", "show")

    assert answer.code == 0
    assert (
        "ONCEFLOW_LLM_BASEURL is no setting and has no effect; did you mean ONCEFLOW_LLM_BASE_URL?"
    ) in answer.err
    assert "ONCEFLOW_QQQ is no setting and has no effect; `onceflow config show`" in answer.err
    assert "ONCEFLOW_TEST_DATABASE" not in answer.err
    assert call("config", "show", "--quiet").err == ""
