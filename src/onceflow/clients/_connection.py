"""The connection's side of an HTTP exchange: aiohttp's protocol and pool, made stricter.

Requests are written here and not by the library's session, which takes longer for a small page than
all the rest together; what is safety in it (one parser, redirects, cookies, the environment) is
either ours already or was off.
"""

from __future__ import annotations

import asyncio
import functools
import re
import select
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from onceflow.clients._frames import Chunks, refused_framing
from onceflow.clients.codings import too_large
from onceflow.clients.settings import FetchSettings
from onceflow.core.errors import HandlerError

VERSION = b"HTTP/1."  # the library's parser also takes RTSP and others for an answer
INTERIM_MAX = 16  # answers before the answer (100, 103): each is parsed, and none is used
LINE_BYTES_MAX = 8190


class Handler(ResponseHandler):
    """Counts what really comes in (heads, interim answers, chunk sizes and all), and reads the
    framing of chunked answers strictly (P19, R6)."""

    def __init__(self, settings: FetchSettings, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._settings = settings
        self._bytes_max = settings.wire_bytes_max + settings.header_bytes_max
        self._bytes = 0
        self._start = b""
        self._before = b""  # the last bytes of an unfinished head: its end may be cut in two
        self._heads = self._interim = 0
        self._chunks: Chunks | None = None
        self._chunked_at = 0  # behind which head of the bytes at hand chunks begin
        self._refused: BaseException | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._poll: select.poll | None = None

    def ask(self, request: bytes, until: float) -> None:
        """Send a request; `read` then gives the heads that come. After the loop's time `until`
        the connection is cut and whoever reads gets TimeoutError."""
        self._bytes = self._chunked_at = self._interim = 0
        self._start = self._before = b""
        self._chunks = self._refused = None
        self.set_response_params(
            read_until_eof=True,
            auto_decompress=False,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=min(LINE_BYTES_MAX, self._settings.header_bytes_max),
            max_headers=self._settings.header_lines_max,
        )
        if self.transport is None:
            raise aiohttp.ServerDisconnectedError
        self._ending = self._loop.call_at(until, self._refuse, TimeoutError())
        self.transport.write(request)

    def answered(self) -> None:
        """The exchange is over."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    @property
    def bytes_received(self) -> int:
        return self._bytes

    def has_spoken(self) -> bool:
        """On a kept connection: has it ended, or are there bytes that nobody asked for?"""
        if self.should_close or self.transport is None:
            return True
        try:
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        except ValueError:  # closed already
            return True
        return bool(self._poll.poll(0))

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > self._bytes_max:
            self._refuse(too_large(self._settings.wire_bytes_max, "on the wire"))
            return
        try:
            if self._chunks is not None:
                self._chunks.feed(data)
                super().data_received(data)
                return
            if len(self._start) < len(VERSION):
                self._start = (self._start + data)[: len(VERSION)]
                if not VERSION.startswith(self._start):
                    raise refused_framing("another protocol")
            self._heads = 0
            super().data_received(data)
            if self._chunked_at:
                self._begin_chunks(self._before + data)
            elif not self._heads:
                self._before = (self._before + data)[-3:]
        except HandlerError as error:
            self._refuse(error)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called by the library for each head it has read."""
        self._heads += 1
        message = data[0]
        if message.code < 200:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                self._refuse(refused_framing("interim answers without end"))
                return
        if message.chunked and message.code >= 200 and not self._chunked_at:
            self._chunked_at = self._heads
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        if self._refused is None or exc is self._refused:
            super().set_exception(exc, *cause)

    def _begin_chunks(self, data: bytes) -> None:
        self._chunks = Chunks(
            bytes_max=self._settings.wire_bytes_max, trailers_max=self._settings.header_lines_max
        )
        ends = [match.end() for match in re.finditer(rb"\n\r?\n", data)]
        if len(ends) >= self._chunked_at:
            self._chunks.feed(data[ends[self._chunked_at - 1] :])

    def _refuse(self, error: BaseException) -> None:
        self._refused = error
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        # Nothing more of this answer is wanted, and its end must not hide what was wrong with it.
        self._parser = self._payload = None
        if self.transport is not None:
            self.transport.abort()


class Connector(aiohttp.TCPConnector):
    """Never hands out a kept connection on which the server has spoken unasked (P20)."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(**options)
        self._factory = functools.partial(handler, loop=self._loop)

    async def _get(self, key: Any, traces: Any) -> Any:
        while True:
            found: Any = await super()._get(key, traces)
            if found is None or not found.protocol.has_spoken():
                return found
            found.close()
