"""A private nginx on loopback that serves a folder and keeps its own log.

    with nginx.serving(pages, folder) as site:
        site.url("/index.html")
        site.fetched()  # path -> how often it was sent whole, by nginx's own account

nginx comes from Debian; `make setup` does not bring it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.2"
START_SECONDS_MAX = 20.0

CONFIG = """
worker_processes 1;
daemon off;
{user}
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  types {{ text/html html htm; text/plain txt; text/css css; }}
  sendfile on;
  tcp_nodelay on;
  keepalive_requests 10000000;
  log_format facts escape=json '{{"path": "$uri", "status": $status,'
    ' "whole": "$request_completion", "sending": $connections_writing}}';
  access_log {log};
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {http}
  server {{ listen {host}:{port}; root {root}; etag on; {server} }}
}}
"""


class Unavailable(Exception):
    """There is no nginx here."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request, as nginx logged it when it was over. `sending`: how many were under way."""

    path: str
    status: int
    whole: bool
    sending: int


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    log: Path
    pid: int

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}:{self.port}{path}"

    def lines(self) -> list[Line]:
        """What was asked so far; nginx writes a line when a request is over."""
        text = self.log.read_text()
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [
            Line(one["path"], one["status"], one["whole"] == "OK", one["sending"]) for one in found
        ]


def program() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Unavailable("no nginx here; on Debian: apt-get install nginx-light")
    return found


@contextmanager
def serving(
    root: Path,
    folder: Path,
    *,
    host: str = HOST,
    logged: bool = True,
    http: str = "",
    server: str = "",
) -> Iterator[Server]:
    """`folder` is for its files; `http` and `server` go into those blocks of its configuration."""
    path = program()
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port(host)
    log = folder / "access.log"
    log.write_text("")
    user = "user root;" if os.geteuid() == 0 else ""
    wanted = f"{log} facts" if logged else "off"
    text = CONFIG.format(
        folder=folder,
        root=root,
        host=host,
        port=port,
        log=wanted,
        user=user,
        http=http,
        server=server,
    )
    config = folder / "nginx.conf"
    config.write_text(text)
    process = subprocess.Popen(
        [path, "-c", str(config), "-e", str(folder / "error.log")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait(process, host, port)
        yield Server(host, port, log, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        if process.stderr is not None:
            process.stderr.close()


def _wait(process: subprocess.Popen[str], host: str, port: int) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        if process.poll() is not None:
            assert process.stderr is not None
            raise Unavailable(f"nginx ended: {process.stderr.read().strip()}")
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.05)  # nobody can be told when another program listens
    raise Unavailable(f"nginx does not listen within {START_SECONDS_MAX:g} s")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
