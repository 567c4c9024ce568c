"""Names to addresses. Tests and users may put in their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Protocol

from onceflow.clients import addresses
from onceflow.clients.urls import parse_url
from onceflow.core.errors import Permanent, Transient

LOOKUPS_MAX = 32
"""Look-ups at once. They wait in threads of their own: a few names whose servers never answer would
otherwise hold up everything else that this process does in threads."""

_NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


class Resolver(Protocol):
    """All addresses of a name, or `Permanent`/`Transient`. Asked once for each connection."""

    async def __call__(self, host: str, /) -> Sequence[str]: ...


async def check_public(
    url: str,
    *,
    allow_networks: Iterable[str] = (),
    resolver: Resolver | None = None,
) -> str:
    """The canonical URL, if all its addresses are public; else `Permanent` (`blocked_address`).

    For addresses that come in through the API (a webhook): refused early, with a clear answer.
    It does not replace the judgement at connect time, since a name may change its mind.
    """
    parsed = parse_url(url)
    allowed = addresses.networks(allow_networks)
    if parsed.is_address:
        addresses.check(parsed.host, allowed)
    else:
        for address in await (resolver or system_resolver)(parsed.host):
            addresses.check(address, allowed, host=parsed.host)
    return parsed.href


async def system_resolver(host: str, /) -> Sequence[str]:
    """What the machine's own resolver says."""
    loop = asyncio.get_running_loop()
    try:
        answers = await loop.run_in_executor(_threads(), _look_up, host)
    except socket.gaierror as error:
        if error.errno in _NO_SUCH_NAME:
            raise Permanent(f"no such name: {host}", code="name_not_found") from None
        raise Transient(f"could not resolve {host}: {error}", code="resolve_failed") from None
    except (OSError, UnicodeError) as error:
        raise Transient(f"could not resolve {host}: {error}", code="resolve_failed") from None
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="resolve")


def _look_up(host: str) -> list[tuple[object, object, object, object, tuple[object, ...]]]:
    return list(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
