"""A page's main text, title, date, links: read in a child process that can be killed.

page = await http.page(url)
found = await extractor.extract(page)
if not found.text: ...          # nothing to summarize: a result, not an error
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from onceflow.clients._lifetime import PerLoop
from onceflow.clients._missing import not_installed
from onceflow.clients.http import Page
from onceflow.clients.settings import MIB
from onceflow.clients.text import charset_of, clean, one_line
from onceflow.clients.urls import parse_url, shown
from onceflow.core.errors import Permanent, Transient

ANSWER_BYTES_MAX = 128 * MIB
CHILD = Path(__file__).with_name("_extract_child.py")
TITLE_CHARS_MAX = 500
SEND_CHARS = 64 * 1024  # a page goes to its child in pieces, so that it is here once and not thrice
PATIENCE = 6  # times its limit: for so long a child that gets no CPU time is waited for
NEWS_SECONDS = 0.5
PAGES_PER_CHILD = 1_000  # then a fresh one: parsers of strangers' pages leak


@dataclass(frozen=True)
class Extracted:
    """What a page says. Empty `text` means that there is none, not that something failed.

    `method` is how it was found: `fast`, `thorough`, `plain` (all text of a page too odd for the
    careful ways) or `none`.
    """

    text: str = ""
    markdown: str = ""
    title: str = ""
    author: str = ""
    date: str = ""
    description: str = ""
    site_name: str = ""
    language: str = ""
    canonical: str | None = None  # only if it is of the same site
    hrefs: tuple[str, ...] = field(default=(), repr=False)  # as the page writes its links
    base: str | None = None  # what they are relative to; without it there are no links
    links_max: int = field(default=1_000, repr=False)
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)  # if it was asked for
    method: str = "none"
    doubtful: bool = False  # characters were replaced, or header and page name different charsets

    @cached_property
    def links(self) -> tuple[str, ...]:
        """Absolute and canonical; each is judged again when it is fetched.

        Worked out when asked for: it takes as long as all the rest that is done here with a page.
        """
        if self.base is None:
            return ()
        base = parse_url(self.base)
        links: dict[str, None] = {}
        for href in self.hrefs:
            with contextlib.suppress(Permanent):
                links[parse_url(href, base=base).href] = None
            if len(links) >= self.links_max:
                break
        return tuple(links)


@dataclass(frozen=True, slots=True)
class ExtractSettings:
    """The limits of one extraction."""

    processes: int = 0  # 0: one for each core
    seconds: float = 10
    memory_bytes: int = 512 * MIB
    text_chars_max: int = 5_000_000
    links_max: int = 1_000


class Extractor:
    """Reads pages in up to `processes` children at once; make one and share it."""

    def __init__(self, settings: ExtractSettings | None = None, *, child: Path = CHILD) -> None:
        self.settings = settings or ExtractSettings()
        self._child = child
        self._pools: PerLoop[_Pool] = PerLoop(self._open, _close)

    async def extract(
        self,
        page: Page | str,
        *,
        url: str | None = None,
        markdown: bool = False,
        about: bool = False,
    ) -> Extracted:
        """Raises `Permanent` or `Transient` with the code `extract_failed`, and nothing else.

        A `Page` is also decoded in the child, which spares this process a large page's text; `url`
        defaults to its own, and all of a `text/plain` page is its text. Markdown takes about a
        quarter more time: it is made if asked for. So is `about`: what the page shows of its site
        (metas, headings, menus, JSON-LD, scripts, feeds), untrusted and as it is written there.
        """
        pool = await self._pools.get()
        url = page.url if url is None and isinstance(page, Page) else url
        chars_max = self.settings.text_chars_max
        plain = isinstance(page, Page) and page.content_type == "text/plain"
        request = {"url": url, "markdown": markdown, "chars_max": chars_max, "plain": plain}
        request["about"] = about
        async with pool.child() as child:
            answer = await child.ask(request, page, shown(url or "the page"))
        return self._result(answer, url)

    async def close(self) -> None:
        """End the children now. Without it they end with the event loop."""
        await self._pools.close()

    async def __aenter__(self) -> Extractor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self) -> _Pool:
        return _Pool(self.settings, self._child)

    def _result(self, answer: dict[str, Any], url: str | None) -> Extracted:
        def line(name: str, chars_max: int = TITLE_CHARS_MAX) -> str:
            return one_line(str(answer.get(name) or ""), chars_max=chars_max)

        chars_max = self.settings.text_chars_max
        text = clean(str(answer.get("text") or ""))[:chars_max].strip()
        return Extracted(
            text=text,
            markdown=clean(str(answer.get("markdown") or ""))[:chars_max].strip(),
            title=line("title"),
            author=line("author"),
            date=line("date", 40),
            description=line("description"),
            site_name=line("sitename"),
            language=line("language", 35),
            canonical=_canonical(line("canonical", 2048), url),
            hrefs=tuple(str(href) for href in answer.get("hrefs") or ()),
            base=_base(str(answer.get("base") or ""), url),
            links_max=self.settings.links_max,
            about=answer.get("about") or {},
            method=str(answer.get("method") or "none"),
            doubtful=bool(answer.get("doubtful")),
        )


def _base(named: str, url: str | None) -> str | None:
    """What a page's links are relative to: its `<base>`, if that is one, else its own address."""
    if url is None:
        return None
    page = parse_url(url)
    with contextlib.suppress(Permanent):
        if named:
            return parse_url(named, base=page).href
    return page.href


def _canonical(href: str, url: str | None) -> str | None:
    """A page may name another spelling of itself, not somebody else's page."""
    if not href or url is None:
        return None
    page = parse_url(url)
    try:
        named = parse_url(href, base=page)
    except Permanent:
        return None
    return named.href if named.host.removeprefix("www.") == page.host.removeprefix("www.") else None


class _Pool:
    """The children of one event loop: started when needed, replaced when they are gone."""

    def __init__(self, settings: ExtractSettings, path: Path) -> None:
        self._settings = settings
        self._path = path
        self._turns = asyncio.Semaphore(settings.processes or os.cpu_count() or 1)
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()

    @contextlib.asynccontextmanager
    async def child(self) -> Any:
        async with self._turns:
            child = self._idle.pop() if self._idle else await self._start()
            try:
                yield child
            finally:
                # One that was left in the middle of an answer cannot be asked again.
                if child.is_ready:
                    self._idle.append(child)
                else:
                    self._all.discard(child)
                    await child.end()

    async def close(self) -> None:
        for child in self._all:
            await child.end()
        self._all.clear()
        self._idle.clear()

    async def _start(self) -> _Child:
        child = await _Child.start(self._settings, self._path)
        self._all.add(child)
        return child


class _Used(NamedTuple):
    seconds: float
    """Of CPU time."""
    sleeps: bool


def _used(pid: int) -> _Used | None:
    """What a process has used up, and whether it waits for something; None if nobody can tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        fields = stat[stat.rindex(b")") + 2 :].split()
        ticks = int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    return _Used(ticks / os.sysconf("SC_CLK_TCK"), fields[0] == b"S")


class _Child:
    def __init__(self, process: asyncio.subprocess.Process, settings: ExtractSettings) -> None:
        self._process = process
        self._settings = settings
        self._asked = 0
        self._busy = False
        self._told = False
        """It has the whole page."""

    @classmethod
    async def start(cls, settings: ExtractSettings, path: Path) -> _Child:
        # -P: not with the child's folder on its path, where `http.py` would hide Python's own.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        child = cls(process, settings)
        limits = {"seconds": settings.seconds, "seconds_max": settings.seconds * PATIENCE}
        await child._send({"memory_bytes": settings.memory_bytes, **limits})
        return child

    @property
    def is_ready(self) -> bool:
        return not self._busy and self._process.returncode is None and self._asked < PAGES_PER_CHILD

    async def ask(self, request: dict[str, Any], page: Page | str, name: str) -> dict[str, Any]:
        self._busy = True
        self._asked += 1
        asking = asyncio.ensure_future(self._exchange(request, page))
        try:
            await self._wait_for(asking, name)
            answer = asking.result()
        except (OSError, EOFError, ValueError):
            raise Transient(
                f"{name}: the process that read it came to an end", code="extract_failed"
            ) from None
        finally:
            asking.cancel()
        self._busy = False
        if missing := answer.get("missing"):
            error = ImportError(f"{missing}", name=str(missing))
            raise not_installed("finding a page's text", error, "clients")
        if failure := answer.get("failure"):
            raise Permanent(f"{name} cannot be read: {failure}", code="extract_failed")
        return answer

    async def _exchange(self, request: dict[str, Any], page: Page | str) -> dict[str, Any]:
        self._told = False
        await self._send_page(request, page)
        self._told = True
        return await self._receive()

    async def _wait_for(self, asking: asyncio.Future[dict[str, Any]], name: str) -> None:
        """The time is for the page, not for others on a busy machine: a child that wants to run
        and was not let is waited for, and the page is not to blame if it never is."""
        seconds = self._settings.seconds
        begun = _used(self._process.pid)
        for _ in range(PATIENCE):
            if (await asyncio.wait([asking], timeout=seconds))[0]:
                return
            used = _used(self._process.pid)
            if used is None or begun is None or used.seconds - begun.seconds >= seconds / 2:
                break
            if used.sleeps and self._told:
                if (await asyncio.wait([asking], timeout=NEWS_SECONDS))[0]:
                    return  # it had answered, and we were busy ourselves
                break
        else:
            raise Transient(
                f"{name}: no text found within {PATIENCE * seconds:g} s, since the machine is too "
                "busy",
                code="extract_failed",
            )
        raise Permanent(f"{name}: no text found within {seconds:g} s", code="extract_failed")

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        # Without this the pipe is closed by the garbage collector, with a warning.
        self._process._transport.close()  # type: ignore[attr-defined]  # no public way

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        data = json.dumps(message).encode()
        self._process.stdin.write(struct.pack("!I", len(data)) + data)
        await self._process.stdin.drain()

    async def _send_page(self, request: dict[str, Any], page: Page | str) -> None:
        assert self._process.stdin is not None
        pieces: Iterator[bytes | memoryview]
        if isinstance(page, Page):
            declared = charset_of(page.headers.get("content-type", ""))
            await self._send({**request, "charset": declared, "bytes": len(page.body)})
            view = memoryview(page.body)
            pieces = (view[at : at + SEND_CHARS] for at in range(0, len(view), SEND_CHARS))
        else:
            starts = range(0, len(page), SEND_CHARS)
            parts = (page[at : at + SEND_CHARS].encode(errors="replace") for at in starts)
            length = sum(len(part) for part in parts)
            await self._send({**request, "bytes": length})
            pieces = (page[at : at + SEND_CHARS].encode(errors="replace") for at in starts)
        for piece in pieces:
            self._process.stdin.write(piece)
            await self._process.stdin.drain()

    async def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        (length,) = struct.unpack("!I", await self._process.stdout.readexactly(4))
        if length > ANSWER_BYTES_MAX:
            raise ValueError("an answer without end")
        answer = json.loads(await self._process.stdout.readexactly(length))
        if not isinstance(answer, dict):
            raise ValueError("not an answer")
        return answer


async def _close(pool: _Pool) -> None:
    await pool.close()
