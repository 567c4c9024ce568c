"""A folder of files as a site on loopback, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

HOST = "127.0.0.2"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """Serve the folder; gives the address of its home page."""

    async def answer(request: web.Request) -> web.StreamResponse:
        path = _file(folder, request.path)
        if path is None:
            return web.Response(status=404, text="not here")
        return web.FileResponse(path)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://{HOST}:{port}/"
    finally:
        await runner.cleanup()


def _file(folder: Path, asked: str) -> Path | None:
    path = (folder / asked.lstrip("/")).resolve()
    if path.is_dir():
        path /= "index.html"
    return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
