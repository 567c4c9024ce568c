"""A wiki on loopback in a thread of its own, for tests whose own loop comes and goes."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from onceflow.testing.wiki import WikiPage, WikiSite


@contextmanager
def served(pages: Mapping[str, WikiPage]) -> Iterator[WikiSite]:
    site = WikiSite(pages)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="wiki")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(site.__aenter__(), loop).result(30)
        yield site
        asyncio.run_coroutine_threadsafe(site.__aexit__(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
