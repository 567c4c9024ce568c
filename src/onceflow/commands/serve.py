"""`serve`: the HTTP API and the pages, with a worker inside unless it is not wanted."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onceflow import Flow, Pipeline
from onceflow.commands.common import Common, Engine, Flag
from onceflow.commands.config import Config
from onceflow.commands.ingest import Reading, ingest_jobs
from onceflow.commands.knowledge import folder
from onceflow.commands.output import INTERRUPTED, OK, UsageError
from onceflow.commands.program import pipelines_of
from onceflow.commands.ready import check_installed
from onceflow.commands.work import LogLines, logging_to
from onceflow.core.errors import pip_install

PORT = 8000
TOKEN_VARIABLE = "ONCEFLOW_TOKEN"
TOKEN_CHARS_LEAST = 16
TOKEN_BYTES_MAX = 4096
SWITCH_SECONDS = 0.0005
"""How long a thread that reads the database waits for a busy loop at each row; else it is 5 ms."""
ANY = frozenset({"0.0.0.0", "::", ""})
NEEDED = ("fastapi", "jinja2", "uvicorn")


def serve(
    file: Path | None = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    no_worker: Annotated[bool, Flag] = False,
    auto_generate: Annotated[bool, Flag] = False,
    token_file: Path | None = None,
    allow_host: Annotated[list[str] | None, Parameter(negative=())] = None,
    root_path: str = "",
    verbose: Annotated[bool, Flag] = False,
    reading: Reading | None = None,
    engine: Engine | None = None,
    common: Common | None = None,
) -> int:
    """Serve the HTTP API and the pages, and work on what comes in.

    It works on the same database as any number of workers and other servers. Ctrl-C
    ends it within three seconds; what was under way is given back, nothing is lost.

    Parameters
    ----------
    file
        A Python file with Pipelines of your own to serve as well.
    host
        The address to listen on. One that other machines reach needs a token.
    port
        The port; 0 takes any that is free.
    no_worker
        Only serve; workers elsewhere do the work.
    auto_generate
        Write the story of an article as soon as its text is there.
    token_file
        A file with the token that callers must send; else ONCEFLOW_TOKEN.
    allow_host
        Answer for this host name too, such as a proxy's; repeatable.
    root_path
        The path under which a proxy offers this server, such as /onceflow.
    verbose
        Log every transition, and the tracebacks of handlers.
    """
    common = common or Common()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {', '.join(missing)}: {pip_install('server,clients')}")
    token = _token(token_file)  # taken out of the environment, before anybody inherits it
    if token is None and not _is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached by other machines: put a token of at least "
            f"{TOKEN_CHARS_LEAST} characters into a file and give --token-file, or set "
            f"{TOKEN_VARIABLE}"
        )
    if not 0 <= port <= 65535:
        raise UsageError(f"--port is {port}; it must be between 0 and 65535")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise UsageError(f"--root-path is {root_path}; it must begin with / and not end with it")
    settings = (engine or Engine()).settings(common)
    reading = reading or Reading()
    job, shared = ingest_jobs(common, reading.options(), auto_generate=auto_generate)
    if not no_worker:
        check_installed(shared.llm.name)
    pipelines: list[Pipeline] = [job.pipeline(), shared.pipeline()]
    pipelines += _articles(common, reading, worker=not no_worker)
    pipelines += _sites(common, reading, worker=not no_worker)
    if file is not None:
        pipelines += pipelines_of(file, ())
    asyncio.run(_opened_once(common.flow(*pipelines, settings=settings)))
    flow = common.flow(*pipelines, settings=settings)
    shared.pages.flow = flow

    from onceflow.web.app import create_app
    from onceflow.web.server import listen, make_server

    hosts = [*(allow_host or ()), *([] if host in ANY else [host])]
    app = create_app(flow, worker=not no_worker, token=token, hosts=hosts, knowledge=folder(common))
    try:
        listening = listen(host, port)
    except OSError as error:
        raise UsageError(
            f"port {port} of {host} cannot be had: {error.strerror}; choose another with --port"
        ) from None
    bound = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{bound}{root_path}/"
    server = make_server(app, root_path=root_path)
    handler = LogLines(as_json=False, quiet=common.quiet, verbose=verbose)

    def tell() -> None:
        _answer_soon()
        handler.say(f"pid {os.getpid()} serves {flow.store.url} at {url}; Ctrl-C stops it")
        if common.json:
            common.out.emit({"url": url, "pid": os.getpid(), "worker": not no_worker})
            common.out.flush()

    server.when_started = tell
    with logging_to(handler, verbose=verbose):
        asyncio.run(server.serve(sockets=[listening]))
    if server.signals:
        handler.say("stopped; nothing is lost")
    elif not server.started:
        raise UsageError(f"the server did not start on {flow.store.url}; --verbose says more")
    return INTERRUPTED if signal.SIGINT in server.signals else OK


def _articles(common: Common, reading: Reading, *, worker: bool) -> list[Pipeline]:
    """The expand pipeline, where this server can work on it: with a contact, and all installed."""
    from onceflow.commands.expand import NEEDED as READING_NEEDS
    from onceflow.commands.expand import Reach, Subject, expand_job

    contact = Config(common.config).place("contact", reading.contact)[0]
    able = bool(contact) and all(find_spec(name) is not None for name in READING_NEEDS)
    if worker and not able:
        return []
    reach = Reach(contact, reading.allow_network)
    return [expand_job(common, Subject(), reach, works=worker).pipeline()]


def _sites(common: Common, reading: Reading, *, worker: bool) -> list[Pipeline]:
    """The analyze pipeline, where this server can work on it."""
    from onceflow.commands.analyze import Asking, Assistants, analyze_job
    from onceflow.commands.ready import MODELS_NEED

    if worker and any(find_spec(name) is None for name in MODELS_NEED["embedded"]):
        return []
    model = None if reading.model is None else [reading.model]
    assistants = Assistants(model, reading.base_url, reading.contact, reading.allow_network)
    return [analyze_job(common, Asking(), assistants, works=worker).pipeline()]


async def _opened_once(flow: Flow) -> None:
    """A database that cannot be used is said now, in one line, not by the server's traceback."""
    async with flow:
        pass


def _token(file: Path | None) -> str | None:
    given = os.environ.pop(TOKEN_VARIABLE, None)
    source = TOKEN_VARIABLE
    if file is not None:
        source = f"--token-file {file}"
        try:
            with file.open("rb") as opened:
                given = opened.read(TOKEN_BYTES_MAX).decode().strip()
        except OSError as error:
            raise UsageError(f"{source} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{source} is not text") from None
    if given is None:
        return None
    if len(given) < TOKEN_CHARS_LEAST or not given.isascii() or not given.isprintable():
        raise UsageError(
            f"{source}: a token has at least {TOKEN_CHARS_LEAST} plain characters and no spaces"
        )
    return given


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _answer_soon() -> None:
    """Nothing here shall hold up a request for long: neither threads that take turns, nor a look
    for garbage among all that was imported, which takes a tenth of a second."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
