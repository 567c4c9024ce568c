"""`onceflow summarize`, against a site and a model on loopback."""

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onceflow.commands import ready
from tests.cli.conftest import Answer, Call, clean_environment, finished, spawn
from tests.cli.loopback import ALLOW, GENTLE, Loopback
from tests.pipelines.conftest import article

WRITES = "--model=openai:m"
KEY = {"OPENAI_API_KEY": "sk-test-0123456789"}


@pytest.fixture
def web() -> Iterator[Loopback]:
    with Loopback().served() as served:
        yield served


@pytest.fixture
def on(call: Call, database: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command on this test's database, quick with hosts."""
    for name, value in {**GENTLE, **KEY}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object) -> Answer:
        return call(*arguments, "--db", database)

    return run


def files(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir() if not one.name.startswith(".")}


def summaries(folder: Path) -> dict[str, str]:
    found: list[dict[str, Any]] = [
        json.loads(body) for name, body in files(folder).items() if name[0].isdigit()
    ]
    return {one["url"]: one["summary"] for one in found}


def test_urls_become_files_and_a_digest_and_again_all_is_done(
    on: Call, web: Loopback, tmp_path: Path
) -> None:
    urls = web.articles(3)
    web.model_answers()

    answer = on("summarize", *urls, *ALLOW, *web.model)

    assert answer.code == 0
    assert "3 done, 440 tokens" in answer.out
    assert "written: summaries/digest.md" in answer.out
    out = tmp_path / "summaries"
    assert summaries(out) == {
        url: f"About subject{n}: it matters." for n, url in enumerate(urls, start=1)
    }
    before = files(out)
    again = on("summarize", *reversed(urls), *ALLOW, *web.model)
    assert (again.code, "all done already: 3 done" in again.out) == (0, True)
    assert "other options" not in again.out
    otherwise = on("summarize", *urls, *ALLOW, *web.model, "--words", "20")
    assert "they were summarized with other options, and stay as they are" in otherwise.out
    assert "--refresh does it again with these" in otherwise.out
    assert files(out) == before
    assert sum(web.summarized.values()) == 4
    assert sorted(web.site.paths().count(f"/a{n}") for n in (1, 2, 3)) == [1, 1, 1]


def test_the_embedded_model_needs_no_key_and_says_nothing_that_is_not_there(
    on: Call, web: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    [url] = web.articles(1)

    answer = on("summarize", url, *ALLOW, "--out", "there", "--json")

    report = answer.object
    assert (answer.code, report["done"], report["out"]) == (0, 1, "there/digest.md")
    [item] = [json.loads(body) for name, body in files(tmp_path / "there").items()
              if name[0].isdigit()]  # fmt: skip
    assert item["model"] == "embedded"
    assert all(sentence in item["text"] for sentence in item["summary"].split("\n") if sentence)


def test_bad_lines_are_named_by_their_number_and_do_not_stop_the_others(
    on: Call, web: Loopback, tmp_path: Path
) -> None:
    urls = web.articles(2)
    web.model_answers()
    lines = ["\ufeff# mine", urls[0], "", "nonsense", urls[1] + "#part", urls[1], "file:///etc/x"]
    (tmp_path / "list.txt").write_text("\r\n".join(lines), encoding="utf-8")

    answer = on("summarize", "list.txt", *ALLOW, *web.model, "--json")

    assert answer.code == 1
    assert "list.txt: 2 lines refused" in answer.err
    assert "line 4: nonsense has no scheme" in answer.err
    assert "line 7: file:///etc/x: only http and https are fetched" in answer.err
    report = answer.object
    assert (report["done"], report["duplicate"], report["refused"]) == (2, 1, 2)


def test_a_url_that_is_too_long_is_a_bad_one_named_briefly(on: Call, web: Loopback) -> None:
    [url] = web.articles(1)
    web.model_answers()
    long = url + "/" + "a" * 10_000

    alone = on("summarize", long, *ALLOW, *web.model)
    among = on("summarize", long, url, *ALLOW, *web.model, "--json")

    why = rf"a… has {len(long):,} characters; at most 8,192 are accepted"
    assert alone.code == 2
    assert f"no usable URL; argument 1: {url[:10]}" in alone.err
    assert why in alone.err
    assert len(alone.err) < 300
    assert (among.code, among.object["done"], among.object["refused"]) == (1, 1, 1)
    assert "the command line: 1 argument refused" in among.err
    assert why in among.err


@pytest.mark.parametrize("command", ["summarize", "ingest"])
def test_what_cannot_be_a_url_or_a_file_is_said_with_what_to_do(
    on: Call, tmp_path: Path, command: str
) -> None:
    (tmp_path / "bin.dat").write_bytes(b"\x00\x01")
    (tmp_path / "list.txt").write_text("https://a.test/")
    (tmp_path / "folder").mkdir()
    for arguments, said in (
        (["nowhere.txt"], "there is no file nowhere.txt; if it is a URL, write https:// before it"),
        ([""], "the argument is empty; name URLs, a file with them, or - for stdin"),
        (["bin.dat"], "a binary file, not a list of URLs; name a text file with one URL a line\n"),
        (["folder"], "folder is a folder; name a file with one URL a line\n"),
        (["--langauge"], f"no option --langauge; `onceflow {command} --help` lists them"),
        (["--refresh"], "name the URLs to add, a file with them, or - for stdin"),
        (["https://a.test/", "list.txt"], "list.txt is a file, and only one is read, alone"),
    ):
        answer = on(command, *arguments)

        assert (answer.code, answer.out) == (2, ""), arguments
        assert said in answer.err
        assert "--as-keys" not in answer.err


def test_articles_that_were_only_added_are_worked_on_by_the_command_that_is_named(
    on: Call, web: Loopback
) -> None:
    [url] = web.articles(1)

    added = on("ingest", url, "--add-only", *ALLOW)
    watched = on("watch", "--once")

    assert f"next: onceflow worker ingest {' '.join(ALLOW)} --db" in added.out
    assert "no worker lives; start one: onceflow worker ingest" in watched.out
    read = on("ingest", *ALLOW)
    assert "ingest: 0 done, 1 READY_TO_GENERATE in " in read.out
    assert "a story is written by onceflow ingest --generate --db" in read.out
    assert on("analyze").out.startswith("analyze: nothing to do: the database has none")
    said = on("why", f"{url}#part")
    assert (said.code, "READY_TO_GENERATE" in said.out) == (0, True), "another spelling of it"
    assert "look: onceflow export --pipeline ingest --db" in on("ingest", "--generate", *ALLOW).out


def test_without_urls_what_is_open_is_worked_on(
    on: Call, call: Call, web: Loopback, tmp_path: Path
) -> None:
    answer = call("summarize", "--db", "none.db")
    assert (answer.code, "name URLs" in answer.err) == (2, True)
    assert not (tmp_path / "none.db").exists()
    urls = web.articles(2)
    web.model_answers()
    added = on("summarize", *urls, "--add-only")
    assert (added.code, "onceflow worker summarize" in added.out) == (0, True)

    answer = on("summarize", *ALLOW, *web.model)

    assert (answer.code, "2 done" in answer.out) == (0, True)
    assert len(summaries(tmp_path / "summaries")) == 2
    assert (tmp_path / "summaries" / "digest.md").exists()


def test_damaged_files_are_mended_by_the_same_command(
    on: Call, web: Loopback, tmp_path: Path
) -> None:
    urls = web.articles(3)
    web.model_answers()
    on("summarize", *urls, *ALLOW, *web.model)
    out = tmp_path / "summaries"
    before = files(out)
    for name, body in before.items():
        (out / name).write_bytes(body[: len(body) // 2])

    answer = on("summarize", *urls, *ALLOW, *web.model)

    assert (answer.code, files(out)) == (0, before)
    assert sum(web.summarized.values()) == 4


def test_what_failed_is_listed_with_its_reason_and_how_to_look(
    on: Call, web: Loopback, tmp_path: Path
) -> None:
    urls = [*web.articles(1), web.site.url("/gone")]
    web.model_answers()

    answer = on("summarize", *urls, *ALLOW, *web.model)

    assert answer.code == 1
    assert f"failed scrape {urls[1]}: answered 404" in answer.err
    assert "1 done, 1 failed" in answer.out
    assert "next: onceflow items --state failed" in answer.out
    assert "answered 404" in (tmp_path / "summaries" / "digest.md").read_text()
    assert "(code http_404); `onceflow retry` opens it again" in on("why", urls[1]).out
    assert on("why", urls[1].upper().replace("/GONE", "/x/../gone#here")).code == 0
    assert "retried 1 item" in on("retry", urls[1]).out, "its lanes are known without a file"


def test_a_refused_address_names_the_flag_and_how_to_open_it_again(on: Call, web: Loopback) -> None:
    [url] = web.articles(1)
    web.model_answers()

    refused = on("summarize", url, *web.model)
    again = on("summarize", url, *ALLOW, *web.model)

    host = url.split("//")[1].split(":")[0]
    assert refused.code == again.code == 1
    assert (
        f"{host} is not a public address; to read it all the same: --allow-network {host}/32"
        in (refused.err)
    )
    assert "allow_networks of [fetch] in onceflow.toml" in refused.err
    assert "nothing is left to do: 0 done, 1 failed" in again.out
    [line] = [line for line in again.out.splitlines() if "to open them again:" in line]
    command = line.split("onceflow ")[1].split(" --db")[0].split()
    assert (
        on("retry", "--state", "failed").out.splitlines()[1].endswith("(--permanent includes them)")
    )
    assert "retried 1 item" in on(*command).out, "the hint is all it takes"
    assert "1 done" in on("summarize", url, *ALLOW, *web.model).out


def test_m09_a_wrong_key_is_one_message_that_says_how_to_go_on(
    on: Call, web: Loopback, database: str
) -> None:
    urls = web.articles(4)
    web.model_answers(status=401)

    answer = on("summarize", *urls, *ALLOW, *web.model)

    assert answer.code == 1
    assert "0 done, 4 open" in answer.out
    said = "openai:m answered 401: Incorrect API key provided; set OPENAI_API_KEY to a key"
    assert answer.err.count(said) == 1
    assert f"stage summarize is paused: {said}" in answer.out
    assert "then `onceflow resume summarize --db" in answer.out
    assert KEY["OPENAI_API_KEY"] not in answer.out + answer.err
    why = on("why", urls[0]).out
    assert "paused" in why
    assert said in why

    web.model_answers()
    assert on("resume", "summarize").code == 0
    answer = on("summarize", *urls, *ALLOW, *web.model)

    assert (answer.code, "4 done" in answer.out) == (0, True)
    assert [web.site.paths().count(f"/a{n}") for n in range(1, 5)] == [1, 1, 1, 1]


def test_a_ceiling_stops_new_calls_and_says_so(on: Call, web: Loopback) -> None:
    urls = web.articles(3)
    web.model_answers()

    answer = on("summarize", *urls, *ALLOW, *web.model, "--max-tokens", 1)

    assert answer.code == 1
    assert "the run is halted" in answer.out
    status = on("status").err
    assert "is halted: its token ceiling is reached" in status
    assert "larger --max-tokens" in status
    assert "onceflow worker" not in status
    assert sum(web.summarized.values()) < 4

    again = on("summarize", *urls, *ALLOW, *web.model, "--max-tokens", 100_000)

    assert (again.code, "3 done" in again.out) == (0, True)
    assert sum(web.summarized.values()) == 4
    assert len(on("runs", "--json").lines) == 1


def test_words_language_and_a_prompt_of_ones_own_reach_the_model(
    on: Call, web: Loopback, tmp_path: Path
) -> None:
    urls = web.articles(1)
    web.model_answers()
    (tmp_path / "prompt.txt").write_text("Say in {language}, in {words} words, who is right.")
    more = ("--words", 33, "--language", "Latin", "--prompt", "prompt.txt")

    assert on("summarize", *urls, *ALLOW, *web.model, *more).code == 0

    bodies = [one.body.decode() for one in web.site.requests if one.path.startswith("/v1")]
    assert "Say in Latin, in 33 words, who is right." in bodies[0]


@pytest.mark.parametrize(
    ("missing", "more", "said"),
    [
        ("aiohttp", [], "reading pages needs aiohttp: pip install '.[clients]'"),
        ("numpy", [], "the model embedded needs numpy: pip install '.[embedded]'"),
        ("openai", [WRITES], "the model openai:m needs openai: pip install '.[openai]'"),
    ],
)
def test_who_cannot_do_the_work_claims_nothing_of_it(
    call: Call, monkeypatch: pytest.MonkeyPatch, missing: str, more: list[str], said: str
) -> None:
    there = ready.find_spec
    monkeypatch.setattr(ready, "find_spec", lambda name: None if name == missing else there(name))
    url = "https://a.test/"
    assert call("summarize", url, "--add-only", *more).code == 0, "workers elsewhere do it"

    for command in (["summarize", url], ["worker", "summarize"], ["ingest", url], ["serve"]):
        answer = call(*command, *more)

        assert (answer.code, said in answer.err) == (2, True), command
    [item] = call("items", "--json").lines
    assert (item["phase"], item["attempt"]) == ("ready", 0)


def test_all_that_is_missing_is_said_at_once(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ("aiohttp", "numpy")
    there = ready.find_spec
    monkeypatch.setattr(ready, "find_spec", lambda name: None if name in gone else there(name))
    said = "pages needs aiohttp, the model embedded needs numpy: pip install '.[clients,embedded]';"
    assert said in call("summarize", "https://a.test/").err


@pytest.mark.parametrize(
    ("prompt", "more", "said"),
    [
        ("Say it.", [], "prompt has no effect: the model embedded picks"),
        (
            'As {{x}} and {"a": 1}.',
            ["--language", "Latin"],
            "prompt and language have no effect: the model embedded picks sentences of the page as "
            "they are; choose one that writes with --model",
        ),
        (
            "Say it in {words} words.",
            [WRITES, "--language", "Latin"],
            "language is told for the digest",
        ),
        (
            "Say it in {language}.",
            [WRITES, "--words", "30"],
            "has no {words} where '30' would stand",
        ),
        ("Say it in {language}.", [WRITES, "--language", "Latin"], ""),
        ("Say it.", [WRITES], ""),
    ],
)
def test_what_the_chosen_model_is_never_told_is_said_once(
    call: Call, tmp_path: Path, prompt: str, more: list[str], said: str
) -> None:
    (tmp_path / "prompt.txt").write_text(prompt)
    (tmp_path / "none.txt").touch()

    answer = call("summarize", "none.txt", "--prompt", "prompt.txt", *more)

    remarks = [line for line in answer.err.splitlines() if line.startswith("onceflow: ")]
    assert answer.code == 0
    assert (len(remarks), said in answer.err) == (1 if said else 0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "gpt"], "unknown model 'gpt'"),
        (["--prompt", "nowhere"], "nowhere cannot be read"),
        (["--words", "0"], "words is 0"),
        (["--contact", "a\nb"], "contact"),
        (["--allow-network", "here"], "here"),
        (["--follow", "--add-only"], "choose one"),
        (["--workers", "0"], "between 1 and 64"),
        (["--nothing"], "--nothing"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    call: Call, arguments: list[str], words: str
) -> None:
    answer = call("summarize", "https://a.test/", *arguments)

    assert answer.code == 2
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_c06_an_output_folder_that_is_a_file_is_refused_before_any_work(
    on: Call, web: Loopback, tmp_path: Path
) -> None:
    urls = web.articles(1)
    (tmp_path / "taken").touch()

    answer = on("summarize", *urls, *ALLOW, "--out", "taken")

    assert answer.code == 2
    assert "taken cannot be used: it is not a folder" in answer.err
    assert web.site.paths() == []


def test_another_databases_folder_is_refused_before_anything_is_added(
    call: Call, web: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in GENTLE.items():
        monkeypatch.setenv(name, value)
    [url] = web.articles(1)
    assert call("summarize", url, *ALLOW, "--db", "one.db").code == 0

    refused = call("summarize", url, *ALLOW, "--db", "other.db")

    assert refused.code == 2
    assert "has the summaries of another database; name another folder with --out" in refused.err
    assert call("items", "--db", "other.db", "--json").out == ""


def test_what_was_only_added_names_the_flags_that_its_workers_need(call: Call) -> None:
    answer = call(
        "summarize", "https://a.test/", "--add-only", "--words", 15, "--language", "Old Norse"
    )

    assert "next: onceflow worker summarize --words 15 --language 'Old Norse', and" in answer.out
    assert "each worker goes by its own flags and settings" in answer.out
    plain = call("summarize", "https://a.test/", "--add-only")
    assert "next: onceflow worker summarize, and onceflow watch" in plain.out


def test_workers_work_and_summarize_only_follows(
    on: Call, web: Loopback, database: str, tmp_path: Path
) -> None:
    urls = web.articles(3)
    web.model_answers()
    environment = clean_environment(**GENTLE, **KEY)
    where = ("--db", database)
    worker = spawn("worker", "summarize", *ALLOW, *web.model, *where, cwd=tmp_path, env=environment)
    watcher = spawn("summarize", *urls, "--follow", *where, cwd=tmp_path, env=environment)
    try:
        watched = finished(watcher)
    finally:
        worker.send_signal(signal.SIGTERM)
        worked = finished(worker)

    assert (watched.code, "3 done" in watched.out) == (0, True)
    assert worked.code == 0
    assert len(summaries(tmp_path / "summaries")) == 3
    assert (tmp_path / "summaries" / "digest.md").exists()
    assert on("audit").code == 0
    # Again, with nothing given: it follows the last run, which is over.
    assert "all done already: 3 done" in on("summarize", "--follow").out


def test_several_processes_work_for_one_command_and_end_with_it(
    on: Call, web: Loopback, database: str, tmp_path: Path
) -> None:
    urls = web.articles(6)
    web.model_answers()
    begun = web.hang("/a4")
    environment = clean_environment(**GENTLE, **KEY)
    command = ("summarize", *urls, *ALLOW, *web.model, "--db", database, "--workers", 2)
    process = spawn(*command, cwd=tmp_path, env=environment)
    helpers: list[psutil.Process] = []
    try:
        while len(helpers) < 1:  # it is a worker as soon as it is in the database
            pids = {row["pid"] for line in on("status", "--json").lines for row in line["workers"]}
            helpers = [psutil.Process(pid) for pid in pids - {process.pid}]
        assert begun.wait(180)
        words = helpers[0].cmdline()
        assert words[3:5] == ["worker", "summarize"]
        assert database not in words  # an address may have a password in it
    finally:
        process.kill()
        finished(process)
    gone, alive = psutil.wait_procs(helpers, timeout=180)
    assert (len(gone), alive) == (1, [])

    answer = finished(spawn(*command, cwd=tmp_path, env=environment))

    assert (answer.code, "6 done" in answer.out) == (0, True)
    assert len(summaries(tmp_path / "summaries")) == 6
    assert on("audit").code == 0


def test_c15_two_at_once_share_the_work(web: Loopback, database: str, tmp_path: Path) -> None:
    urls = web.articles(8)
    web.model_answers()
    environment = clean_environment(**GENTLE, **KEY)
    both = [
        spawn(
            "summarize", *urls, *ALLOW, *web.model, "--db", database, cwd=tmp_path, env=environment
        )
        for _ in range(2)
    ]
    answers = [finished(one) for one in both]

    assert [one.code for one in answers] == [0, 0], answers
    assert all("8 done" in one.out for one in answers)
    assert set(web.summarized.values()) == {1}
    assert len(summaries(tmp_path / "summaries")) == 8


@pytest.mark.parametrize("stop_at", ["scrape", "summarize"])
def test_kill_9_in_the_middle_and_again_completes_each_page_once(
    on: Call, web: Loopback, database: str, tmp_path: Path, stop_at: str
) -> None:
    """Killed while a page hangs, or while a summary streams; the same command then goes on."""
    urls = web.articles(6)
    begun = None
    if stop_at == "summarize":
        web.model_answers(stop_at="subject4")
        begun = web.reached("subject4")
    else:
        web.model_answers()
        begun = web.hang("/a4")
    environment = clean_environment(**GENTLE, **KEY)
    command = ("summarize", *urls, *ALLOW, *web.model, "--db", database)
    process = spawn(*command, cwd=tmp_path, env=environment)
    assert begun.wait(180)
    os.kill(process.pid, signal.SIGKILL)
    assert finished(process).code == -signal.SIGKILL
    kept = {line["key"] for line in on("items", "--state", "completed", "--json").lines}
    web.model_answers()

    answer = finished(spawn(*command, cwd=tmp_path, env=environment))

    assert (answer.code, "6 done" in answer.out) == (0, True), answer
    out = tmp_path / "summaries"
    assert summaries(out) == {
        url: f"About subject{n}: it matters." for n, url in enumerate(urls, start=1)
    }
    # What was committed is not asked for again; what was under way when it was killed may be.
    for n, url in enumerate(urls, start=1):
        most = 1 if url in kept else 2
        assert 1 <= web.summarized[f"subject{n}"] <= most
        assert web.site.paths().count(f"/a{n}") <= most
    assert web.summarized["digest"] == 1
    assert urls[3] not in kept
    assert on("audit").code == 0
    whole = files(out)
    for name in whole:
        (out / name).unlink()
    assert on("summarize", *urls, *ALLOW, *web.model).code == 0
    assert files(out) == whole


def test_ctrl_c_drains_and_the_same_command_goes_on(
    web: Loopback, database: str, tmp_path: Path
) -> None:
    urls = web.articles(3)
    web.model_answers()
    begun = web.hang("/a2")
    environment = clean_environment(**GENTLE, **KEY)
    command = ("summarize", *urls, *ALLOW, *web.model, "--db", database)
    process = spawn(*command, "--grace-seconds", "0", cwd=tmp_path, env=environment)
    assert begun.wait(180)
    process.send_signal(signal.SIGINT)
    answer = finished(process)

    assert answer.code == 130
    assert "nothing is lost: run the same command again" in answer.out
    again = finished(spawn(*command, cwd=tmp_path, env=environment))
    assert (again.code, "3 done" in again.out) == (0, True)


def test_a_page_that_did_not_change_is_not_summarized_again(
    on: Call, web: Loopback, tmp_path: Path
) -> None:
    web.site.answer("/e", article("subject1"), headers={"ETag": '"1"'})
    web.site.answer("/e", status=304, headers={"ETag": '"1"'})
    web.model_answers()
    on("summarize", web.site.url("/e"), *ALLOW, *web.model)

    answer = on("summarize", web.site.url("/e"), *ALLOW, *web.model, "--refresh")

    assert answer.code == 0
    assert web.site.paths().count("/e") == 2
    asked = [one for one in web.site.requests if one.path == "/e"]
    assert [one.headers.get("if-none-match") for one in asked] == [None, '"1"']
    # Page and digest, then the digest of the second run: one page's digest looks like the page.
    assert web.summarized == {"subject1": 3}
    assert summaries(tmp_path / "summaries") == {web.site.url("/e"): "About subject1: it matters."}


def test_c05_another_programs_database_is_refused(call: Call, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    with other:
        other.execute("create table mine (a)")
    other.close()

    answer = call("summarize", "https://a.test/", "--db", "other.db")

    assert answer.code == 2
    assert "other.db" in answer.err
