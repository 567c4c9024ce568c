"""A web site on loopback that behaves as badly as it is told to, a canary, and a scripted fetcher.

    async with Site() as site, Canary(site.port) as canary:
        site.answer("/a", b"<p>hello</p>")
        site.script("/slow", never_answers)
        http = Http(settings=FetchSettings(allow_networks=("127.0.0.2/32",)))

The site listens on 127.0.0.2, which `allow_networks` can open without opening 127.0.0.1, where the
canary sits on the same port: whoever connects to it has been talked into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from onceflow.clients.http import AGENT, Headers, Http, Page, check_status
from onceflow.clients.robots import Rules
from onceflow.clients.urls import canonical
from onceflow.core.errors import Permanent

HOST = "127.0.0.2"
ALLOWED = ("127.0.0.2/32",)


@dataclass(frozen=True, slots=True)
class Request:
    """What the site was asked."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Exchange:
    """One request in the hands of a script: say anything, in any way."""

    request: Request
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keep_open: bool = False

    async def send(self, data: bytes) -> None:
        """Write; a client that has gone away is not the script's problem."""
        with contextlib.suppress(OSError):
            self.writer.write(data)
            await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client closes the connection: how a script says "never"."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


def reply(
    body: bytes | str = b"",
    *,
    status: int | str = 200,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    content_type: str | None = "text/html; charset=utf-8",
) -> bytes:
    """A well-formed answer; `status` as text may be any status line's end."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} OK" if isinstance(status, int) else f"HTTP/1.1 {status}"]
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    names = {name.lower() for name, _ in pairs}
    if content_type is not None and "content-type" not in names:
        pairs.append(("Content-Type", content_type))
    if "content-length" not in names and "transfer-encoding" not in names:
        pairs.append(("Content-Length", str(len(data))))
    lines += [f"{name}: {value}" for name, value in pairs]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


class Site:
    """A loopback HTTP server. Paths it was not told about answer 404, robots.txt among them."""

    def __init__(self, host: str = HOST, port: int = 0, *, tls: ssl.SSLContext | None = None):
        self.host = host
        self.port = port
        self.requests: list[Request] = []
        self.connections = 0
        self.open_now = 0
        self.open_peak = 0
        self._tls = tls
        self._scripts: dict[str, list[Script]] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def url(self, path: str = "/", *, host: str | None = None) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{host or self.host}:{self.port}{path}"

    def answer(
        self,
        path: str,
        body: bytes | str = b"",
        *,
        status: int | str = 200,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        content_type: str | None = "text/html; charset=utf-8",
    ) -> None:
        """Add an answer; a path with several gives them one after another, the last for ever."""
        data = reply(body, status=status, headers=headers, content_type=content_type)
        self.raw(path, data, keep_open=True)

    def redirect(self, path: str, location: str, *, status: int = 302) -> None:
        self.answer(path, status=status, headers={"Location": location})

    def raw(self, path: str, data: bytes, *, keep_open: bool = False) -> None:
        """Add an answer byte by byte as it stands; then the connection is closed."""

        async def send(exchange: Exchange) -> None:
            exchange.keep_open = keep_open
            await exchange.send(data)

        self.script(path, send)

    def script(self, path: str, script: Script) -> None:
        self._scripts.setdefault(path, []).append(script)

    def paths(self) -> list[str]:
        """What was asked for, robots.txt left out."""
        return [r.path for r in self.requests if r.path != "/robots.txt"]

    async def __aenter__(self) -> Site:
        self._server = await asyncio.start_server(
            self._accept, self.host, self.port, ssl=self._tls, limit=2**20
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        self.open_peak = max(self.open_peak, self.open_now)
        try:
            while (request := await self._read(reader)) is not None:
                self.requests.append(request)
                exchange = Exchange(request, reader, writer)
                await self._script_for(request.path)(exchange)
                if not exchange.keep_open:
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client went away
        finally:
            self.open_now -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _script_for(self, path: str) -> Script:
        scripts = self._scripts.get(path) or self._scripts.get(path.partition("?")[0])
        if not scripts:
            return _not_found
        return scripts.pop(0) if len(scripts) > 1 else scripts[0]

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = Headers([(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)])
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(method, path, headers, body)


async def _not_found(exchange: Exchange) -> None:
    exchange.keep_open = True
    await exchange.send(reply(b"not here", status=404))


class Canary:
    """Listens where nobody may connect, and counts who does."""

    def __init__(self, port: int, hosts: Sequence[str] = ("127.0.0.1", "::1")) -> None:
        self.port = port
        self.connections = 0
        self._hosts = hosts
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Canary:
        for host in self._hosts:
            with contextlib.suppress(OSError):  # a machine without IPv6 has no ::1 to reach
                self._servers.append(await asyncio.start_server(self._count, host, self.port))
        assert self._servers, "the canary could not listen anywhere"
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(reply(b"the canary"))
        writer.close()


class ScriptedResolver:
    """Name -> addresses. A list of lists gives one answer per call, the last for ever."""

    def __init__(self, names: Mapping[str, Sequence[str] | Sequence[Sequence[str]]]) -> None:
        self._names = {name: _answers(found) for name, found in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, /) -> Sequence[str]:
        self.asked.append(host)
        answers = self._names.get(host)
        if answers is None:
            raise Permanent(f"no such name: {host}", code="name_not_found")
        return answers.pop(0) if len(answers) > 1 else answers[0]


def _answers(found: Sequence[str] | Sequence[Sequence[str]]) -> list[Sequence[str]]:
    if all(isinstance(one, str) for one in found):
        return [[str(one) for one in found]]
    return [list(one) for one in found]


class FakeHttp(Http):
    """A fetcher without a network: URL -> text, `Page` or exception; a list is used up in turn.

    What it was not told about answers 404. `asked` is what it was asked for.
    """

    def __init__(self, pages: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._left: dict[str, list[object]] = {
            canonical(url): list(page) if isinstance(page, list) else [page]
            for url, page in (pages or {}).items()
        }

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        etag: str | None = None,
        last_modified: str | None = None,
        robots: bool | None = None,
    ) -> Page:
        key = canonical(url)
        self.asked.append(key)
        pages = self._left.get(key, [Page(key, 404)])
        page = pages.pop(0) if len(pages) > 1 else pages[0]
        if isinstance(page, BaseException):
            raise page
        if isinstance(page, Page):
            return page
        return Page(key, 200, Headers({"Content-Type": "text/html"}), str(page).encode())

    async def robots(self, url: str) -> Rules:
        """There is no robots.txt: everything is allowed."""
        return Rules(None, AGENT)

    async def page(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        etag: str | None = None,
        last_modified: str | None = None,
    ) -> Page:
        page = await self.get(url, etag=etag, last_modified=last_modified)
        check_status(page, not_modified_asked=bool(etag or last_modified))
        return page
