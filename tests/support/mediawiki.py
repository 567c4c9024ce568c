"""A private MediaWiki on loopback: SQLite, PHP's own server, nothing installed outside a folder.

    with mediawiki.serving(folder, pages) as wiki:
        wiki.api_url
        wiki.ask(action="query", titles="A")

MediaWiki and PHP come from Debian (`make live-wiki` installs them where it may).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen
from xml.sax.saxutils import escape

HOST = "127.0.0.2"
ROOT = Path("/usr/share/mediawiki")
WORKERS = 4
START_SECONDS_MAX = 30.0

ROUTER = """<?php
putenv('MW_CONFIG_FILE=' . __DIR__ . '/LocalSettings.php');
$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
if ($path !== '/api.php') { http_response_code(404); return true; }
chdir('%(root)s');
$_SERVER['SCRIPT_NAME'] = $path;
$_SERVER['SCRIPT_FILENAME'] = '%(root)s' . $path;
require '%(root)s' . $path;
return true;
"""

SETTINGS = """
$wgArticlePath = '/wiki/$1';
$wgShowExceptionDetails = true;
$wgJobRunRate = 0;
$wgMainCacheType = CACHE_NONE;
$wgMessageCacheType = CACHE_NONE;
$wgUseDatabaseMessages = false;
$wgEnableUploads = false;
$wgCacheDirectory = __DIR__ . '/cache';
$wgLocalisationCacheConf['store'] = 'array';
$wgDBservers = [[
  'type' => 'sqlite', 'dbname' => $wgDBname, 'dbDirectory' => $wgSQLiteDataDir, 'load' => 1,
  'flags' => DBO_DEFAULT, 'variables' => ['synchronous' => 'OFF'],
]];
"""


class Unavailable(Exception):
    """There is no MediaWiki here."""


@dataclass(frozen=True, slots=True)
class Wiki:
    url: str

    @property
    def api_url(self) -> str:
        return f"{self.url}/api.php"

    def ask(self, **query: str) -> dict[str, Any]:
        """One request to the API, by no code of ours."""
        pairs = urlencode({"format": "json", "formatversion": "2", **query})
        with urlopen(f"{self.api_url}?{pairs}", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def query(self, **query: str) -> Iterator[dict[str, Any]]:
        """All answers to a query, continued to its end."""
        onward: dict[str, str] = {}
        while True:
            found = self.ask(action="query", **{**query, **onward})
            yield found["query"]
            if "continue" not in found:
                return
            onward = found["continue"]


@contextmanager
def serving(folder: Path, pages: Mapping[str, str]) -> Iterator[Wiki]:
    """A new wiki that holds `pages` (title -> wikitext)."""
    php = program()
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    url = f"http://{HOST}:{port}"
    _install(php, folder, url)
    _import(php, folder, pages)
    (folder / "router.php").write_text(ROUTER % {"root": ROOT})
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [php, "-S", f"{HOST}:{port}", "-t", str(folder), str(folder / "router.php")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PHP_CLI_SERVER_WORKERS": str(WORKERS)},
            start_new_session=True,  # its workers outlive it: they are ended as a group
        )
    try:
        _wait(server, port, folder / "server.log")
        yield Wiki(url)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(timeout=30)


def program() -> str:
    php = shutil.which("php")
    if php is None or not (ROOT / "api.php").exists():
        raise Unavailable(
            "no MediaWiki here; on Debian: apt-get install --no-install-recommends"
            " mediawiki php-cli php-sqlite3"
        )
    return php


def _install(php: str, folder: Path, url: str) -> None:
    (folder / "data").mkdir()
    (folder / "cache").mkdir()
    _maintain(
        php, folder, "install.php", "--dbtype", "sqlite", "--dbpath", str(folder / "data"),
        "--confpath", str(folder), "--server", url, "--scriptpath", "", "--pass",
        "a long enough one", "--lang", "en", "Wiki", "Admin",
    )  # fmt: skip
    with (folder / "LocalSettings.php").open("a") as settings:
        settings.write(SETTINGS)


def _import(php: str, folder: Path, pages: Mapping[str, str]) -> None:
    dump = folder / "pages.xml"
    with dump.open("w", encoding="utf-8") as file:
        file.write('<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">\n')
        for title, text in pages.items():
            file.write(
                f"<page><title>{escape(title)}</title><revision>"
                "<timestamp>2026-01-01T00:00:00Z</timestamp>"
                "<contributor><username>Admin</username></contributor><model>wikitext</model>"
                f'<format>text/x-wiki</format><text xml:space="preserve">{escape(text)}</text>'
                "</revision></page>\n"
            )
        file.write("</mediawiki>\n")
    _maintain(php, folder, "importDump.php", "--quiet", str(dump))
    _maintain(php, folder, "runJobs.php", "--quiet")


def _maintain(php: str, folder: Path, script: str, *arguments: str) -> None:
    done = subprocess.run(
        [php, str(ROOT / "maintenance" / script), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "MW_CONFIG_FILE": str(folder / "LocalSettings.php")},
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(f"{script}: {(done.stderr or done.stdout).strip()[-500:]}")


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        if server.poll() is not None:
            raise Unavailable(f"php ended: {log.read_text()[-500:]}")
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)  # nobody can be told when another program listens
    raise Unavailable(f"php does not listen within {START_SECONDS_MAX:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
