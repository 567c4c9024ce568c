"""Which addresses may be talked to: global unicast ones, and what `allow_networks` opens.

The question is asked about the address really used, when connecting, so it does not matter by
which name, number or redirect somebody got there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from onceflow.core.errors import Permanent, SettingsError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Not left to `is_global`: what it says about several of these differs between Python versions.
_NOT_GLOBAL_4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
_GLOBAL_6 = IPv6Network("2000::/3")
_NOT_GLOBAL_6 = tuple(
    IPv6Network(text)
    # Protocol assignments (Teredo is in it), documentation twice, and the retired 6bone.
    for text in ("2001::/23", "2001:db8::/32", "3fff::/20", "3ffe::/16")
)
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_ISATAP = (0x00005EFE, 0x02005EFE)  # the third quarter of an address that ends in an IPv4 one


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The setting `allow_networks`, checked."""
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise SettingsError(f"allow_networks: {error}; write a network as 127.0.0.2/32") from None


@lru_cache(maxsize=4096)
def is_open(text: str, allowed: tuple[Network, ...] = ()) -> bool:
    """May a connection to this address be opened?"""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if any(address in network for network in allowed):
        return True
    return _is_global(address)


def check(text: str, allowed: tuple[Network, ...] = (), *, host: str = "") -> None:
    """Raise `Permanent` (`blocked_address`) unless `is_open`."""
    if not is_open(text, allowed):
        name = f"{host} is {text}, which" if host and host != text else text
        one = f"{text.partition('%')[0]}/{128 if ':' in text else 32}"
        raise Permanent(
            f"{name} is not a public address; to read it all the same: --allow-network {one}, or "
            "allow_networks of [fetch] in onceflow.toml",
            code="blocked_address",
        )


def _is_global(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_GLOBAL_4)
    if address.scope_id is not None:
        return False
    value = int(address)
    if address in _MAPPED or address in _NAT64:
        return _is_global(IPv4Address(value & 0xFFFFFFFF))
    if address not in _GLOBAL_6 or any(address in network for network in _NOT_GLOBAL_6):
        return False
    if address in _6TO4:
        return _is_global(IPv4Address((value >> 80) & 0xFFFFFFFF))
    if (value >> 32) & 0xFFFFFFFF in _ISATAP:
        return _is_global(IPv4Address(value & 0xFFFFFFFF))
    return True
