"""What every hostile case has to show besides its own result."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import pytest

from onceflow.clients.http import Http, Page
from onceflow.core.errors import Permanent, Transient
from onceflow.testing.site import Site

MEMORY_BYTES_MAX = 64 * 1024 * 1024


async def failure(waited: Awaitable[object]) -> str:
    """`permanent blocked_address`: the kind and the code a call ends with."""
    with pytest.raises((Permanent, Transient)) as caught:
        await waited
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500
    return f"{type(caught.value).__name__.lower()} {caught.value.code}"


async def failure_beside_others(
    http: Http, site: Site, url: str, *, patient: Http | None = None
) -> str:
    """The failure of a hostile URL while ten ordinary pages of the same site are fetched.

    `patient` fetches those where `http` has so little time that a busy machine could use it up.
    """
    for number in range(10):
        site.answer(f"/ordinary/{number}", f"page {number}")
    async with asyncio.TaskGroup() as tasks:
        hostile = tasks.create_task(failure(http.get(url)))
        ordinary = [site.url(f"/ordinary/{number}") for number in range(10)]
        others = [tasks.create_task((patient or http).get(one)) for one in ordinary]
    pages: list[Page] = [other.result() for other in others]
    assert [page.text for page in pages] == [f"page {number}" for number in range(10)]
    return hostile.result()


@contextmanager
def memory_bounded() -> Iterator[None]:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < MEMORY_BYTES_MAX
