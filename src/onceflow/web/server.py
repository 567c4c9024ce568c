"""uvicorn with our manners: slow senders and readers are cut, and a stop takes seconds."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from onceflow.web.app import stop_streams
from onceflow.web.problems import Problem

HEADER_SECONDS = 10.0
READER_SECONDS = 30.0
GRACEFUL_SECONDS = 1
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep an idle connection: whoever closes it must not be us."""
SEND_BYTES = 256 * 1024


def protocol(header_seconds: float, reader_seconds: float) -> type[asyncio.Protocol]:
    """HTTP/1.1 that waits only so long for a request's head, and for a reader to read."""

    class Timed(H11Protocol):
        _late: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            if self._late is None and self._idle():
                self._wait_for_head()
            super().data_received(data)
            if not self._idle():
                self._found()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self.loop.call_later(reader_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._read()

        def connection_lost(self, exc: Exception | None) -> None:
            self._found()
            self._read()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """What is no HTTP at all gets a problem too."""
            answer = Problem(400, "bad-request", "this is not an HTTP/1.1 request").response()
            headers = [(name, value) for name, value in answer.raw_headers]
            start = h11.Response(
                status_code=400,
                headers=[*headers, (b"connection", b"close")],
                reason=b"Bad Request",
            )
            for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _idle(self) -> bool:
            cycle: Any = self.cycle
            return cycle is None or bool(cycle.response_complete)

        def _wait_for_head(self) -> None:
            self._late = self.loop.call_later(header_seconds, self.transport.abort)

        def _found(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _read(self) -> None:
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None

    return Timed


class Server(uvicorn.Server):
    """Ends within seconds at the first signal, at once at the second, and says which it was."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._our_app = app
        self.signals: list[int] = []
        self.when_started: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals.append(sig)
        self.force_exit = len(self.signals) > 1
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stop_streams(self._our_app)
        await super().shutdown(sockets)


def make_server(
    app: FastAPI,
    *,
    root_path: str = "",
    header_seconds: float = HEADER_SECONDS,
    reader_seconds: float = READER_SECONDS,
) -> Server:
    """A server for an app; give it listening sockets."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol(header_seconds, reader_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        root_path=root_path,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    return Server(app, config)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; OSError if the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named asyncio sets TCP_NODELAY; without it each answer takes 40 ms more.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A connection inherits it: the kernel shall not keep megabytes for who does not read.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        found.bind((host, port))
        found.listen(2048)
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found
