"""Lists of keys: counted right, refused by line, in little memory."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceflow import Pipeline, Stage
from onceflow.commands.output import UsageError
from onceflow.commands.seeds import LINE_BYTES_MAX, Seen, Survey, keys_of, source_of, survey
from tests.cli.conftest import Call, clean_environment

PIPELINE = Pipeline("news", Stage("fetch", lambda work: None))


def looked_through(path: Path) -> Survey:
    with source_of([str(path)]) as source:
        assert source is not None
        return survey(PIPELINE, source)


def keys_in(path: Path) -> list[str]:
    with source_of([str(path)]) as source:
        assert source is not None
        return list(keys_of(PIPELINE, source))


@pytest.mark.parametrize(
    ("raw", "keys", "duplicates"),
    [
        (b"", [], 0),
        (b"\n\n  \n", [], 0),
        (b"a\nb\n", ["a", "b"], 0),
        (b"a\nb", ["a", "b"], 0),
        (b"a\r\nb\r\n", ["a", "b"], 0),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"], 0),
        (b"# a list\na\n  # indented\n\nb\n", ["a", "b"], 0),
        (b"a\nb\na\n a \n", ["a", "b", "a", "a"], 2),
    ],
)
def test_c09_a_list_is_counted_right(
    tmp_path: Path, raw: bytes, keys: list[str], duplicates: int
) -> None:
    path = tmp_path / "seeds.txt"
    path.write_bytes(raw)

    found = looked_through(path)

    assert keys_in(path) == keys
    assert (found.accepted, found.duplicate, found.refused) == (len(set(keys)), duplicates, 0)


def test_c09_refused_lines_are_named_by_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    path.write_bytes(b"# head\r\na\r\n\xff\xfe\r\nb\x01c\r\ngate:x\r\nb\r\n")

    found = looked_through(path)

    assert (found.accepted, found.refused) == (2, 3)
    assert [(one.line, one.why[:12]) for one in found.refusals] == [
        (3, "it is not UT"),
        (4, "it has contr"),
        (5, "'gate:x': ke"),
    ]


def test_c10_a_long_line_is_refused_and_the_next_one_read(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    path.write_bytes(b"a\n" + b"x" * (10 * 1024 * 1024) + b"\nb\n" + b"y" * LINE_BYTES_MAX)

    found = looked_through(path)

    assert keys_in(path) == ["a", "b"]
    assert [one.line for one in found.refusals] == [2, 4]


@pytest.mark.parametrize(
    "raw", [os.urandom(64) + b"\x00" + os.urandom(4096), b"\xff\xfea\x00\n\x00"]
)
def test_c10_a_binary_file_is_refused_as_a_whole(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(raw)

    with pytest.raises(UsageError, match=r"picture\.png is (a binary file|UTF-16 text)"):
        looked_through(path)


def test_c10_a_million_lines_are_looked_through_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    with path.open("w") as file:
        file.writelines(f"https://a.test/page/{number}\n" for number in range(1_000_000))
        file.write("https://a.test/page/7\n")
    code = (
        "import resource, sys; from tests.cli.test_seeds import looked_through, Path;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "found = looked_through(Path(sys.argv[1]));"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before;"
        "print(found.accepted, found.duplicate, grown // 1024)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2], env=clean_environment(),
    )  # fmt: skip

    accepted, duplicate, grown_mib = map(int, done.stdout.split())
    assert (accepted, duplicate) == (1_000_000, 1)
    assert grown_mib <= 64


HOSTILE = [
    "=cmd()", "\"quoted\" 'key'", "<script>alert(1)</script>", "'; DROP TABLE item; --",
    "\u202eright to left", "%s %d {}", "../../etc/passwd", "$(reboot)",
]  # fmt: skip


def test_c11_hostile_keys_are_stored_and_shown_as_text(
    call: Call, database: str, program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text("\n".join([*HOSTILE, "tab\tinside", "\x1b[31mred", "bell\x07"]))

    added = call("run", program, path, "--db", database, "--json")
    listed = call("items", "--db", database)
    data = call("items", "--db", database, "--json")

    assert added.code == 1
    assert [one["line"] for one in added.object["refusals"]] == [9, 10, 11]
    assert added.object["done"] == len(HOSTILE)
    keys = [item["key"] for item in data.lines if not item["key"].startswith("gate:")]
    assert sorted(keys) == sorted(HOSTILE)
    shown = listed.out + added.err
    assert not any(char in shown for char in "\x1b\x07\u202e")


def test_stdin_is_read_as_a_list(
    call: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"a\nb\n\nb\n"))
    monkeypatch.setattr(sys, "stdin", stdin)

    answer = call("run", program, "-", "--json")

    assert answer.code == 0
    assert (answer.object["new"], answer.object["duplicate"]) == (2, 1)


def test_a_pipe_is_read_as_a_list(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"a\nb\n")
    os.close(write_end)

    found = looked_through(Path(f"/dev/fd/{read_end}"))
    os.close(read_end)

    assert found.accepted == 2


def test_a_comment_behind_a_url_is_no_part_of_it_and_a_key_may_hold_anything(
    tmp_path: Path,
) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text("https://a.test/1  # mine\nhttps://a.test/2#part\n")
    for urls, expected in (
        (True, ["https://a.test/1", "https://a.test/2#part"]),
        (False, ["https://a.test/1  # mine", "https://a.test/2#part"]),
    ):
        with source_of([str(path)], urls=urls) as source:
            assert source is not None
            assert list(keys_of(PIPELINE, source)) == expected


def test_a_folder_is_refused_and_a_file_can_be_a_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        looked_through(tmp_path)
    with source_of([str(tmp_path)], as_keys=True) as source:
        assert source is not None
        assert list(keys_of(PIPELINE, source)) == [str(tmp_path)]


def test_the_same_set_of_keys_is_known_again_in_any_order() -> None:
    def mark(*keys: str) -> str:
        with source_of(keys) as source:
            assert source is not None
            return survey(PIPELINE, source).fingerprint

    assert mark("a", "b", "c") == mark("c", "a", "b", "a")
    assert len({mark("a"), mark("b"), mark("a", "b"), mark("ab")}) == 4


def test_numbers_are_seen_once() -> None:
    seen = Seen()
    numbers = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(5000)]

    assert all(seen.add(number) for number in numbers)
    assert not any(seen.add(number) for number in numbers)
