"""One URL parser and one canonical form, for checking, deduplicating and fetching.

The parser is WHATWG's (`ada-url`), so `http://2130706433/` is seen as the address it means. On top
of it stand our own refusals: what a browser would silently repair (a missing slash, a tab in the
host) is refused here, because two programs may repair it differently.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from onceflow.clients._missing import not_installed
from onceflow.core.errors import Permanent

URL_CHARS_MAX = 8192
HOST_CHARS_MAX = 253
LABEL_CHARS_MAX = 63
NAMED_CHARS = 80
"""How much of a refused URL its message shows: the reason must still be seen behind it."""

DEFAULT_PORTS = {"http": 80, "https": 443}

# The ports the Fetch standard refuses (services that can be talked into doing something by an HTTP
# request), and the databases and container sockets a page has no business on.
# fmt: off
REFUSED_PORTS = frozenset((
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101,
    102, 103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427,
    445, 465, 512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989,
    990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666,
    6667, 6668, 6669, 6679, 6697, 10080,
    1433, 1521, 2375, 2376, 3306, 5432, 6379, 11211, 27017,
))
# fmt: on

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_\-]*[a-z0-9_])?")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
# A name whose last part begins with a letter (so it is no number) or four numbers, a port without
# a leading zero, a path and a query without escapes.
_PLAIN = re.compile(
    r"(https?)://"
    r"(?:((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){0,8}[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)"
    r"|((?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(?:\.(?!:|/)|(?=:|/))){4}))"
    r"(?::([1-9][0-9]{0,4}))?"
    r"(/[A-Za-z0-9._~!$&()*+,;=:@/-]*)"
    r"(?:\?[A-Za-z0-9._~!$&()*+,;=:@/-]+)?"
)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Url(NamedTuple):
    """A checked URL. `href` is canonical and has no fragment; it is both the key and the request.

    `host` is a lower-case ASCII name or an address without brackets.
    """

    href: str
    origin: str
    scheme: str
    host: str
    port: int
    is_address: bool

    def __str__(self) -> str:
        return self.href


def canonical(text: str) -> str:
    """The one spelling of a URL; raises `Permanent` (`bad_url`, `refused_scheme`) if refused."""
    return parse_url(text).href


def parse_url(text: str, *, base: Url | None = None) -> Url:
    """Check and canonicalise. With `base`, `text` may be relative (a `Location`, a link).

    Raises `Permanent`: `refused_scheme` for anything but http and https, `bad_url` for the rest.
    """
    if (plain := _PLAIN.fullmatch(text)) and (url := _plain(text, plain)):
        return url
    text = text.strip(" \t\r\n\f")
    if not text:
        raise _bad("is empty", text)
    if len(text) > URL_CHARS_MAX:
        raise _bad(f"has {len(text):,} characters; at most {URL_CHARS_MAX:,} are accepted", text)
    if _CONTROL.search(text):
        raise _bad("has a control character inside", text)
    scheme = _SCHEME.match(text)
    if scheme is None and base is None:
        raise _bad("has no scheme; write http:// or https:// before it", text)
    if scheme is not None:
        _check_absolute(scheme.group(1).lower(), text)
    return _parse(text, None if base is None or scheme is not None else base.href)


def _check_absolute(scheme: str, text: str) -> None:
    if scheme not in DEFAULT_PORTS:
        raise Permanent(
            f"{shown(text)}: only http and https are fetched, not {scheme[:32]}",
            code="refused_scheme",
        )
    rest = text[len(scheme) + 1 :]
    if not rest.startswith("//") or rest[2:3] in ("", "/", "\\", "?", "#"):
        raise _bad("needs two slashes and a host after the scheme", text)
    authority = re.split(r"[/?#]", rest[2:], maxsplit=1)[0]
    if "@" in authority:
        raise _bad("carries a user name or password; configure credentials instead", text)
    if "\\" in authority:
        raise _bad("has a backslash in its host", text)
    if "@" in rest.partition("#")[2] and "/" not in rest[2:].partition("#")[0]:
        raise _bad("has an @ right behind its host, which some programs take for a password", text)


@lru_cache(maxsize=4096)
def _parse(text: str, base: str | None) -> Url:
    # Loaded at the first URL, not with the package: it brings a compiled library.
    try:
        from ada_url import URL, HostType
    except ImportError as error:
        raise not_installed("reading URLs", error, "clients") from None
    try:
        text.encode()
        parsed = URL(text) if base is None else URL(text, base=base)
        scheme = parsed.protocol[:-1]
        host = parsed.hostname
    except ValueError:  # also UnicodeEncodeError: a lone surrogate
        raise _bad("is not a URL", text) from None
    if scheme not in DEFAULT_PORTS:
        raise Permanent(
            f"{shown(text)}: only http and https are fetched, not {scheme[:32]}",
            code="refused_scheme",
        )
    if parsed.username or parsed.password:
        raise _bad("carries a user name or password; configure credentials instead", text)
    is_address = parsed.host_type is not HostType.DEFAULT
    if is_address:
        host = host.strip("[]")
    else:
        host = host.removesuffix(".")
        _check_name(host, text)
    port = int(parsed.port) if parsed.port else DEFAULT_PORTS[scheme]
    if port in REFUSED_PORTS:
        raise _bad(f"names port {port}, which is not a web server's", text)
    path = _ESCAPE.sub(_plain_escape, parsed.pathname)
    query = _ESCAPE.sub(_plain_escape, parsed.search) if len(parsed.search) > 1 else ""
    origin = _origin(scheme, host, port)
    href = f"{origin}{path}{query}"
    if len(href) > URL_CHARS_MAX:
        raise _bad(f"has {len(href)} characters once encoded; {URL_CHARS_MAX} is the limit", text)
    return Url(href, origin, scheme, host, port, is_address)


def _plain(text: str, match: re.Match[str]) -> Url | None:
    """What is plainly in its canonical form already needs no parser to find that out.

    Most URLs of a crawl are, and the parser took a fifth of the time of a small fetch. That both
    ways agree is a test. None where the parser has to look.
    """
    scheme, name, address, port_text, path = match.groups()
    host = name or address
    port = int(port_text or DEFAULT_PORTS[scheme])
    if port in REFUSED_PORTS or port > 65535 or (port_text and port == DEFAULT_PORTS[scheme]):
        return None
    if len(text) > URL_CHARS_MAX or len(host) > HOST_CHARS_MAX or "xn--" in host or "/." in path:
        return None
    origin = text[: match.start(5)]
    return Url(text, origin, scheme, host, port, is_address=address is not None)


def _origin(scheme: str, host: str, port: int) -> str:
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}" if port == DEFAULT_PORTS[scheme] else f"{scheme}://{host}:{port}"


def _check_name(host: str, text: str) -> None:
    if len(host) > HOST_CHARS_MAX:
        raise _bad(f"has a host of {len(host)} characters", text)
    for label in host.split("."):
        if len(label) > LABEL_CHARS_MAX or not _LABEL.fullmatch(label):
            raise _bad(f"has a host with the part {label[:70]!r}, which no name may have", text)


def _plain_escape(match: re.Match[str]) -> str:
    """`%7e` is `~`: an unreserved character has one spelling, the plain one (RFC 3986, 6.2.2)."""
    char = chr(int(match.group(1), 16))
    return char if char in _UNRESERVED else match.group(0).upper()


def shown(text: str, *, chars_max: int = 200) -> str:
    """A URL for a message: passwords and key-like parameters hidden, control characters out."""
    text = text[: chars_max + 1]
    text = re.sub(r"(?<=//)[^/@\s]*@", "***@", text)
    text = re.sub(
        r"(?i)([?&][^=&#]*(?:key|token|secret|passw|auth|sig|session)[^=&#]*=)[^&#]+",
        r"\1***",
        text,
    )
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= chars_max else text[:chars_max] + "…"


def _bad(why: str, text: str) -> Permanent:
    name = shown(text, chars_max=NAMED_CHARS)
    return Permanent(f"{name} {why}" if text else f"the URL {why}", code="bad_url")
