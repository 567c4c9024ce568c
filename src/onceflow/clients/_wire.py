"""One HTTP exchange through aiohttp: no redirect, no decoding, no cookie, no environment.

With `_connection.py` the only file that imports aiohttp. Whatever goes wrong leaves here as
`Transient` or `Permanent` with a stable code.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from aiohttp import http_exceptions
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDictProxy
from yarl import URL as YarlURL

from onceflow.clients import addresses
from onceflow.clients._connection import Connector, Handler
from onceflow.clients._frames import refused_framing
from onceflow.clients.codings import Decoder, codings, too_large
from onceflow.clients.resolve import Resolver
from onceflow.clients.settings import FetchSettings
from onceflow.clients.urls import Url, shown
from onceflow.core.errors import HandlerError, Permanent, Transient

REDIRECTS = (301, 302, 303, 307, 308)

# Answers after which a server may not send a body. If it does, the bytes would be read as the next
# answer, so the connection is not used again (P12).
BODILESS = (204, 205, 304)

ORIGINS_MAX = 1000

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]{0,8000}")


class Answer(NamedTuple):
    """Status and headers as they came. `body` is decoded, and empty for a redirect."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class _Origin(NamedTuple):
    """What all requests to one origin have in common."""

    request: aiohttp.ClientRequest  # only for the pool, to know and to open a connection by
    key: Any
    lines: bytes


class Wire:
    """A pool of connections, each judged by its real address before it is opened."""

    def __init__(
        self, settings: FetchSettings, resolver: Resolver, headers: Mapping[str, str]
    ) -> None:
        """`headers` go with every request, so they must hold nothing secret."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._headers = dict(headers)
        self._allowed = addresses.networks(settings.allow_networks)
        self._origins: dict[str, _Origin] = {}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds)
        self._connector = Connector(
            functools.partial(Handler, settings),
            resolver=_JudgingResolver(resolver, self._allowed, settings.addresses_max),
            socket_factory=self._judged_socket,
            ssl=ssl.create_default_context(cafile=settings.ca_file),
            use_dns_cache=False,  # one resolution per connection, and the one that was judged
            limit=0,
            limit_per_host=settings.connections_per_host_max,
            keepalive_timeout=15,
        )

    async def close(self) -> None:
        await self._connector.close()

    async def get(
        self, url: Url, headers: Mapping[str, str] | None, *, until: float, cut_at: int | None
    ) -> Answer:
        """Send a GET and read its answer; `cut_at` takes the beginning of a longer body.

        By the loop's time `until` the body has been read or the fetch has failed. The connection
        is kept only if the answer was read to its proper end.
        """
        if url.is_address:
            addresses.check(url.host, self._allowed)
        if until <= self._loop.time():
            raise Transient(f"{shown(url.href)}: no time left", code="timeout")
        origin = self._origins.get(url.origin) or self._origin(url)
        path = url.href[len(url.origin) :].encode("ascii")
        lines = origin.lines if headers is None else self._lines(url, headers)
        request = b"GET %b HTTP/1.1\r\n%b\r\n" % (path, lines)
        try:
            kept = await self._connector._get(origin.key, [])
            if kept is not None:
                handler = kept.protocol
                try:
                    return await self._exchange(kept, url, request, until, cut_at)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    # A server may close a connection that nobody uses just when somebody does.
                    if handler.bytes_received:
                        raise
            async with asyncio.timeout_at(until):
                fresh = await self._connector.connect(origin.request, [], self._timeout)
            return await self._exchange(fresh, url, request, until, cut_at)
        except (
            aiohttp.ClientError,
            http_exceptions.HttpProcessingError,
            TimeoutError,
            OSError,
            ValueError,
        ) as error:
            raise _named(error, url) from error

    async def _exchange(
        self, connection: Any, url: Url, request: bytes, until: float, cut_at: int | None
    ) -> Answer:
        handler: Handler = connection.protocol
        whole = False
        try:
            handler.ask(request, until)
            message, payload = await handler.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, payload = await handler.read()
            status, headers = message.code, message.headers
            self._check_head(status, message.raw_headers, url)
            if status in REDIRECTS and "Location" in headers:
                body = b""
            else:
                body = await self._body(message, payload, cut_at)
            whole = payload.at_eof() and status not in BODILESS
            return Answer(status, headers, body)
        finally:
            handler.answered()
            if whole:
                connection.release()
            else:
                connection.close()

    async def _body(self, message: Any, payload: Any, cut_at: int | None) -> bytes:
        settings = self._settings
        if message.code in BODILESS:
            return b""
        told = None if message.chunked else message.headers.get("Content-Length")
        length = None if told is None else int(told)
        if cut_at is None and length is not None and length > settings.wire_bytes_max:
            raise too_large(settings.wire_bytes_max, "announced")
        transfer = message.headers.getall("Transfer-Encoding", None)
        if transfer and ",".join(transfer).strip().lower() not in ("chunked", "identity"):
            # Another coding would have to be undone before anything of the page can be read.
            raise refused_framing("an unknown transfer coding")
        encoded = message.headers.getall("Content-Encoding", None)
        names = codings(",".join(encoded), codings_max=settings.codings_max) if encoded else []
        chunk = await payload.readany()
        if len(chunk) == length and not names and cut_at is None:
            return bytes(chunk)  # the usual small page: in one piece
        decoder = Decoder(names, bytes_max=settings.decoded_bytes_max)
        wire_bytes = 0
        while chunk:
            wire_bytes += len(chunk)
            if wire_bytes > settings.wire_bytes_max:
                raise too_large(settings.wire_bytes_max, "on the wire")
            try:
                decoder.feed(chunk)
            except Permanent:
                if cut_at is None or len(decoder.body) < cut_at:
                    raise
            if cut_at is not None and len(decoder.body) >= cut_at:
                return bytes(decoder.body[:cut_at])
            chunk = await payload.readany()
        decoder.finish()
        return bytes(decoder.body)

    def _check_head(self, status: int, head: Any, url: Url) -> None:
        if not 200 <= status <= 599:
            raise _bad_protocol(url, f"status {status}")
        if len(head) > self._settings.header_lines_max:
            raise _bad_protocol(url, f"{len(head)} header lines")
        head_bytes = sum([len(name) + len(value) + 4 for name, value in head])
        if head_bytes > self._settings.header_bytes_max:
            raise _bad_protocol(url, f"{head_bytes:,} bytes of headers")

    def _origin(self, url: Url) -> _Origin:
        target = YarlURL(f"{url.origin}/", encoded=True)
        if (target.raw_host or "").strip("[]") != url.host or target.port != url.port:
            raise Permanent(f"{shown(url.href)} is not read the same by all parts", code="bad_url")
        request = aiohttp.ClientRequest("GET", target, loop=self._loop)
        found = _Origin(request, request.connection_key, self._lines(url, {}))
        if len(self._origins) >= ORIGINS_MAX:
            del self._origins[next(iter(self._origins))]
        self._origins[url.origin] = found
        return found

    def _lines(self, url: Url, headers: Mapping[str, str]) -> bytes:
        """The header lines of a request; a caller's own take the place of the usual ones."""
        own = {name.lower() for name in headers}
        usual = {name: value for name, value in self._headers.items() if name.lower() not in own}
        host = {} if "host" in own else {"Host": url.origin.partition("://")[2]}
        lines = []
        for name, value in {**host, **usual, **headers}.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise Permanent(
                    f"{shown(url.href)}: the header {shown(name, chars_max=40)} cannot be sent",
                    code="bad_header",
                )
            lines.append(f"{name}: {value}\r\n")
        return "".join(lines).encode()

    def _judged_socket(self, info: Any) -> socket.socket:
        """The last door: the address that this very socket is about to connect to."""
        family, kind, protocol, _, address = info
        addresses.check(str(address[0]), self._allowed)
        return socket.socket(family, kind, protocol)


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
