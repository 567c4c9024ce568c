"""A way to PostgreSQL that can be cut: a small TCP proxy with a switch for each kind of cut."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Passes bytes on. `drop_replies` COMMITs reach the server and their answers are lost with the
    connection; while `frozen` is set, nothing passes in either direction."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self.drop_replies = 0
        self.dropped = 0
        self.thawed = asyncio.Event()
        self.thawed.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = self._to.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._to._replace(netloc=f"{user}@127.0.0.1:{port}"))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lead_to(self, url: str) -> None:
        """Where new connections go from now on; those that there are end with their server."""
        self._to = urlsplit(url)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):  # else it is logged
                await self._connect(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._to.hostname, self._to.port)
        cut = asyncio.Event()

        async def up() -> None:
            while data := await reader.read(65536):
                await self.thawed.wait()
                if self.drop_replies and b"COMMIT\x00" in data:
                    self.drop_replies -= 1
                    self.dropped += 1
                    cut.set()
                far_writer.write(data)
                await far_writer.drain()

        async def down() -> None:
            while data := await far_reader.read(65536):
                await self.thawed.wait()
                if cut.is_set():  # the server has answered: it is committed
                    return
                writer.write(data)
                await writer.drain()

        ways = [asyncio.create_task(up()), asyncio.create_task(down())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.close()
