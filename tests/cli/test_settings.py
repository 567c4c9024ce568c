"""Settings: the design's numbers, where they come from, and what is refused by name (C01, C02)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onceflow import Settings
from onceflow.commands.config import CONFIG_BYTES_MAX, Config, read_file
from onceflow.core.errors import SettingsError
from onceflow.engine.settings import RANGES


def load(
    file: Path | None = None, environment: Mapping[str, str] | None = None, **given: Any
) -> tuple[Settings, dict[str, str]]:
    settings, origins = Config(file, environment).made("engine", **given)
    return settings, origins


def test_the_defaults_are_the_numbers_of_the_design() -> None:
    assert Settings().as_dict() == {
        "scan_seconds": 60.0,
        "queue_max": 1000,
        "assign_seconds": 5.0,
        "cycle_seconds": 0.1,
        "health_seconds": 30.0,
        "cleanup_seconds": 300.0,
        "grace_seconds": 30.0,
        "poll_seconds": 0.5,
        "partial_seconds": 0.25,
        "patience_seconds": 5.0,
        "cpu_processes": 0,
        "durability": "full",
    }


def test_every_number_has_a_range() -> None:
    assert set(RANGES) == set(Settings().as_dict()) - {"durability"}


def test_a_later_source_wins_and_each_value_says_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "onceflow.toml"
    file.write_text(
        'db = "x.db"\n[engine]\nscan_seconds = 1\nqueue_max = 5\nhealth_seconds = 2.5\n'
    )
    environment = {"ONCEFLOW_QUEUE_MAX": " 6 ", "ONCEFLOW_HEALTH_SECONDS": "3", "QUEUE_MAX": "9"}

    settings, origin = load(file, environment, health_seconds=4, poll_seconds=None)

    assert (settings.scan_seconds, settings.queue_max, settings.health_seconds) == (1.0, 6, 4.0)
    assert isinstance(settings.scan_seconds, float)
    assert origin["scan_seconds"] == str(file)
    assert origin["queue_max"] == "ONCEFLOW_QUEUE_MAX"
    assert origin["health_seconds"] == "flag"
    assert origin["poll_seconds"] == "default"


def test_the_file_of_the_folder_is_read_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environment={})[0] == Settings()
    Path("onceflow.toml").write_text("[engine]\nqueue_max = 5\n")
    assert load(environment={})[0].queue_max == 5


def test_the_environment_of_the_process_is_read_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCEFLOW_QUEUE_MAX", "7")

    assert load()[0].queue_max == 7
    assert load(environment={})[0].queue_max == 1000


def test_C01_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_bytes(b"")

    assert load(file, {})[0] == Settings()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        ("folder", "is a folder; name a file"),
        (b"#" * (CONFIG_BYTES_MAX + 1), "is larger than 1,048,576 bytes"),
        (b"[engine]\nscan_seconds = = 1\n", r"\(at line 2, column 16\)"),
        (b"[engine]\nx = '\xff'\n", "line 2: it is not UTF-8 text"),
        (b"engine = 5\n", r"engine must be a table, \[engine\]"),
        (b"scan_second = 5\n", "there is no 'scan_second'; there are contact"),
        (b"[enginee]\n", "there is no 'enginee'; there are contact, db, knowledge, model, out, "),
        (b"db = 5\n", "db is 5; it must be text"),
    ],
    ids=[
        "missing",
        "a folder",
        "large",
        "syntax",
        "bytes",
        "no table",
        "loose",
        "misspelt",
        "place",
    ],
)
def test_C01_a_config_file_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, content: bytes | str | None, words: str
) -> None:
    file = tmp_path / "onceflow.toml"
    if content == "folder":
        file.mkdir()
    elif isinstance(content, bytes):
        file.write_bytes(content)

    with pytest.raises(SettingsError, match=words) as refused:
        load(file, {})

    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_C01_a_config_file_without_read_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "onceflow.toml"
    file.write_text("")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(SettingsError, match="cannot be read: Permission denied"):
        load(file, {})


def test_what_the_commands_have_flags_for_may_stand_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "onceflow.toml"
    file.write_text('\ufeffmodel = "embedded"\ndb = "news.db"\n', encoding="utf-8")

    assert load(file, {})[0] == Settings()
    assert read_file(file) == {"model": "embedded", "db": "news.db"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("scan_secs", 5, "there is no setting 'scan_secs'; there are assign_seconds, cleanup"),
        ("queue_max", "many", "queue_max is 'many'; it must be a whole number"),
        ("queue_max", 1.5, "queue_max is 1.5; it must be a whole number"),
        ("queue_max", "1.5", "queue_max is '1.5'; it must be a whole number"),
        ("queue_max", True, "queue_max is True; it must be a whole number"),
        ("queue_max", "", "queue_max is ''; it must be a whole number"),
        ("scan_seconds", "soon", "scan_seconds is 'soon'; it must be a number"),
        ("scan_seconds", [1], r"scan_seconds is \[1\]; it must be a number"),
        ("durability", 1, "durability is 1; it must be text"),
        ("durability", "none", "durability is 'none'; it must be 'full' or 'normal'"),
        ("queue_max", 0, "queue_max is 0; it must be between 1 and 1000000"),
        ("queue_max", -1, "queue_max is -1; it must be between"),
        ("scan_seconds", 0, "scan_seconds is 0.0; it must be between 0.05 and 86400"),
        ("health_seconds", -1, "health_seconds is -1.0; it must be between"),
        ("grace_seconds", math.nan, "grace_seconds is nan; it must be between"),
        ("cleanup_seconds", math.inf, "cleanup_seconds is inf; it must be between"),
        ("cpu_processes", 5000, "cpu_processes is 5000; it must be between 0 and 1024"),
    ],
)
def test_C02_a_wrong_setting_is_refused_by_its_name_and_range(
    tmp_path: Path, name: str, value: Any, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        load(None, {}, **{name: value})
    file = tmp_path / "onceflow.toml"
    file.write_text(f"[engine]\n{name} = {toml(value)}\n")
    with pytest.raises(SettingsError, match=words):
        load(file, {})


@pytest.mark.parametrize("name", sorted(RANGES))
def test_C02_both_ends_of_every_range_are_allowed_and_nothing_beyond(name: str) -> None:
    low, high = RANGES[name]
    given: dict[str, Any]
    for value in (low, high):
        given = {name: value}
        assert getattr(Settings(**given), name) == value
    for value in (low - 1, high + 1):
        given = {name: value}
        with pytest.raises(SettingsError, match=re.escape(f"{name} is {value}")):
            Settings(**given)


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
