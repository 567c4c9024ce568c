"""One HTTP exchange through aiohttp: no redirect, no decoding, no cookie, no environment.

The only file that imports aiohttp. Whatever goes wrong leaves here as `Transient` or `Permanent`
with a stable code.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import select
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from aiohttp import http_exceptions
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDictProxy
from yarl import URL as YarlURL

from onceflow.clients import addresses
from onceflow.clients._frames import Chunks, refused_framing
from onceflow.clients.codings import Decoder, codings, too_large
from onceflow.clients.resolve import Resolver
from onceflow.clients.settings import FetchSettings
from onceflow.clients.urls import Url, shown
from onceflow.core.errors import HandlerError, Permanent, Transient

REDIRECTS = (301, 302, 303, 307, 308)

# Answers after which a server may not send a body. If it does, the bytes would be read as the next
# answer, so the connection is not used again (P12).
BODILESS = (204, 205, 304)


VERSION = b"HTTP/1."  # the library's parser also takes RTSP and others for an answer
INTERIM_MAX = 16  # answers before the answer (100, 103): each is parsed, and none is used


class Answer(NamedTuple):
    """Status and headers as they came. `body` is decoded, and empty for a redirect."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class Wire:
    """A pool of connections, each judged by its real address before it is opened."""

    def __init__(
        self, settings: FetchSettings, resolver: Resolver, headers: Mapping[str, str]
    ) -> None:
        """`headers` go with every request, so they must hold nothing secret."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._timeout = self._within(settings.fetch_seconds)
        self._allowed = addresses.networks(settings.allow_networks)
        self._session = aiohttp.ClientSession(
            connector=_Connector(
                functools.partial(_Handler, settings),
                resolver=_JudgingResolver(resolver, self._allowed, settings.addresses_max),
                socket_factory=self._judged_socket,
                ssl=ssl.create_default_context(cafile=settings.ca_file),
                use_dns_cache=False,  # one resolution per connection, and the one that was judged
                limit=0,
                limit_per_host=settings.connections_per_host_max,
                keepalive_timeout=15,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            requote_redirect_url=False,
            max_line_size=8190,
            max_field_size=min(8190, settings.header_bytes_max),
            max_headers=settings.header_lines_max,
            headers=headers,
        )

    async def close(self) -> None:
        await self._session.close()

    async def get(
        self, url: Url, headers: Mapping[str, str] | None, *, until: float, cut_at: int | None
    ) -> Answer:
        """Send a GET and read its answer; `cut_at` takes the beginning of a longer body.

        By the loop's time `until` the body has been read or the fetch has failed: the library's
        own timer, which costs half of what `asyncio.timeout` around it does.

        The connection is kept only if the answer was read to its proper end.
        """
        if url.is_address:
            addresses.check(url.host, self._allowed)
        target = YarlURL(url.href, encoded=True)
        if (target.raw_host or "").strip("[]") != url.host or target.port != url.port:
            raise Permanent(f"{shown(url.href)} is not read the same by all parts", code="bad_url")
        left = until - self._loop.time()
        if left <= 0:
            raise Transient(f"{shown(url.href)}: no time left", code="timeout")
        fresh = left > self._settings.fetch_seconds - 0.01
        timeout = self._timeout if fresh else self._within(left)
        try:
            response = await self._session.get(
                target, headers=headers, allow_redirects=False, timeout=timeout
            )
            try:
                self._check_head(response, url)
                redirects = response.status in REDIRECTS and "Location" in response.headers
                body = b"" if redirects else await self._body(response, cut_at)
            finally:
                if response.content.at_eof() and response.status not in BODILESS:
                    response.release()
                else:
                    response.close()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _named(error, url) from error
        return Answer(response.status, response.headers, body)

    def _within(self, seconds: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=seconds, sock_connect=self._settings.connect_seconds, ceil_threshold=math.inf
        )

    async def _body(self, response: aiohttp.ClientResponse, cut_at: int | None) -> bytes:
        settings = self._settings
        if response.status in BODILESS:
            return b""
        length = response.content_length
        if cut_at is None and length is not None and length > settings.wire_bytes_max:
            raise too_large(settings.wire_bytes_max, "announced")
        encoded = response.headers.getall("Content-Encoding", ())
        names = codings(",".join(encoded), codings_max=settings.codings_max) if encoded else []
        decoder = Decoder(names, bytes_max=settings.decoded_bytes_max)
        wire_bytes = 0
        while chunk := await response.content.readany():
            wire_bytes += len(chunk)
            if wire_bytes > settings.wire_bytes_max:
                raise too_large(settings.wire_bytes_max, "on the wire")
            if not names and len(chunk) == length and cut_at is None:
                return chunk  # the usual small page: in one piece, and not copied
            try:
                decoder.feed(chunk)
            except Permanent:
                if cut_at is None or len(decoder.body) < cut_at:
                    raise
            if cut_at is not None and len(decoder.body) >= cut_at:
                return bytes(decoder.body[:cut_at])
        decoder.finish()
        return bytes(decoder.body)

    def _check_head(self, response: aiohttp.ClientResponse, url: Url) -> None:
        if not 200 <= response.status <= 599:
            raise _bad_protocol(url, f"status {response.status}")
        head = response.raw_headers
        if len(head) > self._settings.header_lines_max:
            raise _bad_protocol(url, f"{len(head)} header lines")
        head_bytes = sum([len(name) + len(value) + 4 for name, value in head])
        if head_bytes > self._settings.header_bytes_max:
            raise _bad_protocol(url, f"{head_bytes:,} bytes of headers")

    def _judged_socket(self, info: Any) -> socket.socket:
        """The last door: the address that this very socket is about to connect to."""
        family, kind, protocol, _, address = info
        addresses.check(str(address[0]), self._allowed)
        return socket.socket(family, kind, protocol)


class _Handler(ResponseHandler):
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
        self._refused: HandlerError | None = None

    def set_response_params(self, **params: Any) -> None:
        """A request is about to be sent: a new answer begins."""
        self._bytes = self._chunked_at = self._interim = 0
        self._start = self._before = b""
        self._chunks = self._refused = None
        super().set_response_params(**params)

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

    def _refuse(self, error: HandlerError) -> None:
        self._refused = error
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        # Nothing more of this answer is wanted, and its end must not hide what was wrong with it.
        self._parser = self._payload = None
        if self.transport is not None:
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    """Never hands out a kept connection on which the server has spoken unasked (P20)."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(**options)
        self._factory = functools.partial(handler, loop=self._loop)

    async def _get(self, key: Any, traces: Any) -> Any:
        kept = self._conns.get(key)
        if kept:
            for entry in [entry for entry in kept if _has_spoken(entry[0])]:
                kept.remove(entry)
                entry[0].close()
            if not kept:
                del self._conns[key]
                return None
        return await super()._get(key, traces)


def _has_spoken(protocol: Any) -> bool:
    if protocol.should_close or protocol.transport is None:
        return True
    ready = select.poll()
    try:
        ready.register(protocol.transport.get_extra_info("socket").fileno(), select.POLLIN)
    except ValueError:  # closed already
        return True
    # Readable means bytes that nobody asked for, or the end of the connection.
    return bool(ready.poll(0))


class _JudgingResolver(AbstractResolver):
    """Judges all answers for a name, then gives the first few: one bad one refuses the name."""

    def __init__(
        self, resolver: Resolver, allowed: tuple[addresses.Network, ...], addresses_max: int
    ) -> None:
        self._resolver = resolver
        self._allowed = allowed
        self._addresses_max = addresses_max

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = list(dict.fromkeys(await self._resolver(host)))
        if not found:
            raise Permanent(f"{host} has no address", code="name_not_found")
        for address in found:
            addresses.check(address, self._allowed, host=host)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found[: self._addresses_max]
        ]

    async def close(self) -> None:
        return None


def _named(error: Exception, url: Url) -> HandlerError:
    name = shown(url.href)
    cause = error.__cause__
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.CertificateError():
            return Permanent(
                f"{name}: the certificate is not valid: {_short(error)}", code="bad_certificate"
            )
        case aiohttp.ClientConnectorSSLError(os_error=ssl.SSLEOFError() | ssl.SSLZeroReturnError()):
            return Transient(
                f"{name}: the connection was cut in the handshake", code="disconnected"
            )
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return Permanent(f"{name}: no TLS connection: {_short(error)}", code="bad_tls")
        case aiohttp.ClientConnectorDNSError():
            return Transient(f"{name}: {_short(error)}", code="resolve_failed")
        case TimeoutError():
            return Transient(f"{name}: no answer within the time limit", code="timeout")
        case aiohttp.ClientConnectorError(os_error=ConnectionResetError() | BrokenPipeError()):
            return Transient(f"{name}: the connection was cut at its start", code="disconnected")
        case aiohttp.ClientConnectorError():
            return Transient(f"{name}: no connection: {_short(error)}", code="connect_failed")
        case aiohttp.ClientPayloadError() if isinstance(cause, http_exceptions.ContentLengthError):
            return Transient(f"{name}: the answer ended too early", code="truncated")
        case aiohttp.ClientPayloadError() if isinstance(cause, http_exceptions.BadHttpMessage):
            if "Not enough data" in str(cause):
                return Transient(f"{name}: the answer ended too early", code="truncated")
            return _bad_protocol(url, _short(cause))
        case aiohttp.ClientPayloadError():
            return Transient(f"{name}: the answer ended too early", code="truncated")
        case aiohttp.ClientResponseError() | http_exceptions.HttpProcessingError():
            return _bad_protocol(url, _short(error))
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return Permanent(f"{name} is not a URL that can be fetched", code="bad_url")
        case aiohttp.ClientError() | OSError():
            return Transient(f"{name}: the connection was lost", code="disconnected")
        case _:
            return _bad_protocol(url, _short(error))


def _bad_protocol(url: Url, what: str) -> Permanent:
    return Permanent(f"{shown(url.href)} does not speak HTTP properly: {what}", code="bad_protocol")


def _short(error: BaseException | None) -> str:
    """The error's own words, as text that is safe to show: a server may have chosen them."""
    text = str(getattr(error, "os_error", None) or getattr(error, "message", None) or error)
    return shown(" ".join(text.split()), chars_max=120) or type(error).__name__
