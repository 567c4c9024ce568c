"""What every request passes before anything is done: whose host, whose page, which token, how much.

Plain ASGI, so that static files, pages, the API and the event stream are judged alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceflow.web.problems import Problem

log = logging.getLogger("onceflow")

BODY_BYTES_MAX = 1024 * 1024
NESTING_MAX = 64
HOST = re.compile(r"(?:(?P<name>[a-z0-9._-]+)|\[(?P<address>[0-9a-f:.]+)\])(?::[0-9]{1,5})?")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "onceflow_session"
OPEN_PATHS = ("/health", "/login", "/static/")
"""What is shown without the token: nothing about any item."""
FORM_KINDS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""What a form of any page can send; other kinds are ignored where there is no body."""
TOKEN_NAMES = frozenset({"token", "access_token", "api_key", "apikey", "key"})
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer a browser posts Origin: null
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask, and how much."""

    hosts: Sequence[str] = LOOPBACK
    token: str | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    body_seconds: float = 10.0

    @property
    def session(self) -> str:
        """What a browser keeps instead of the token."""
        return hmac.new((self.token or "").encode(), b"onceflow session", "sha256").hexdigest()

    def knows(self, given: str) -> bool:
        """Whether this is the token. The time it takes tells nothing, not even the length."""
        wanted = hashlib.sha256((self.token or "").encode()).digest()
        return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), wanted)


class Guard:
    """Judges each request, adds the headers to each answer, and answers what nobody caught."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        begun = False
        accept = _accept(scope)

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                names = {name.lower() for name, _ in message.get("headers", ())}
                message = {**message, "headers": [*message.get("headers", ())]}
                message["headers"] += [pair for pair in HEADERS if pair[0] not in names]
                if b"cache-control" not in names:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        try:
            headers = _headers(scope)
            self._judge(scope, headers)
            if scope["method"] not in SAFE:
                body = await self._body(scope, headers, receive)
                receive = _replay(body, receive)
            await self._app(scope, receive, guarded)
        except Problem as problem:
            if not begun:
                await problem.response(accept, _root(scope))(scope, receive, guarded)
        except Exception:
            # The traceback is for the operator's log, never for the answer.
            log.exception("%s %r was not answered", scope["method"], scope["path"][:200])
            if not begun:
                wrong = Problem(500, "internal", "something went wrong here; the log says what")
                await wrong.response(accept, _root(scope))(scope, receive, guarded)

    def _judge(self, scope: Scope, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "")
        for named in (host, *_authority(scope)):
            if _name(named) not in self._rules.hosts:
                raise Problem(
                    421,
                    "wrong-host",
                    "this server does not answer for that host; --allow-host NAME allows one",
                )
        self._judge_token(scope, headers)
        method = scope["method"]
        if method in SAFE:
            return
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        if foreign or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Problem(403, "wrong-origin", "a page of another site may change nothing here")

    def _judge_token(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if self._rules.token is None or _inside(scope, OPEN_PATHS):
            return
        query = scope.get("query_string", b"").decode("latin-1")
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        cookie = _cookies(headers).get(COOKIE, "")
        in_query = TOKEN_NAMES & {name.lower() for name, _ in parse_qsl(query)}
        known = (scheme.lower() == "bearer" and self._rules.knows(token.strip())) or (
            hmac.compare_digest(cookie.encode(), self._rules.session.encode())
        )
        if known and not in_query:
            return
        if not in_query and "text/html" in headers.get("accept", "") and scope["method"] == "GET":
            raise Problem(
                303, "log-in", "log in first", headers={"Location": f"{_root(scope)}/login"}
            )
        raise Problem(
            401,
            "no-token",
            "a token in the address gets into logs; send it as Authorization: Bearer TOKEN"
            if in_query
            else "send the server's token as Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": 'Bearer realm="onceflow"'},
        )

    async def _body(self, scope: Scope, headers: Mapping[str, str], receive: Receive) -> bytes:
        """The whole body, bounded in size and time, and fit to be parsed."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_form = not _inside(scope, ("/api/",)) and kind == "application/x-www-form-urlencoded"
        if kind in FORM_KINDS and not is_form:
            raise _not_json()
        most = self._rules.body_bytes_max
        told = headers.get("content-length", "0")
        if not told.isdecimal() or int(told[:20]) > most:
            raise _too_large(most)
        body = b""
        try:
            async with asyncio.timeout(self._rules.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Problem(
                408,
                "too-slow",
                f"the body did not come within {self._rules.body_seconds:g} seconds",
                headers={"Connection": "close"},
            ) from None
        if body and kind != "application/json" and not is_form:
            raise _not_json()
        if body and not is_form:
            check_json(body)
        return body


def check_json(body: bytes) -> None:
    """Refuse what two parsers would read differently, or not survive."""
    try:
        body.decode()
    except UnicodeDecodeError:
        raise Problem(400, "bad-json", "the body is not UTF-8 text") from None
    depth = 0
    for found in _BRACKET.finditer(_STRING.sub(b"", body)):
        depth += 1 if found[0] in b"[{" else -1
        if depth > NESTING_MAX:
            raise Problem(400, "bad-json", f"the body is nested deeper than {NESTING_MAX}")
    try:
        json.loads(body, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        what = " ".join(str(error).split())[:200]
        raise Problem(400, "bad-json", f"the body is not JSON: {what}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _not_json() -> Problem:
    return Problem(415, "not-json", "send the body as application/json")


def _too_large(most: int) -> Problem:
    return Problem(
        413, "too-large", f"the body has more than {most:,} bytes", headers={"Connection": "close"}
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    told = False

    async def again() -> Message:
        nonlocal told
        if not told:
            told = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def _headers(scope: Scope) -> dict[str, str]:
    """The last of each name, but none of two that must be one."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in found and name in ("host", "content-length", "content-type", "origin"):
            raise Problem(400, "bad-request", f"the header {name} is there twice")
        found[name] = value.decode("latin-1")
    return found


def _accept(scope: Scope) -> str:
    return ",".join(
        value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"
    )


def _cookies(headers: Mapping[str, str]) -> dict[str, str]:
    parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return {name: value for name, _, value in parts}


def _name(host: str) -> str:
    """A Host header without its port, as the allow-list has it; empty if it is no host and port."""
    found = HOST.fullmatch(host.strip().lower())
    return "" if found is None else found["name"] or found["address"]


def _authority(scope: Scope) -> tuple[str, ...]:
    """The host that a request line in absolute form names, as for a proxy."""
    if scope["path"].startswith("/"):
        return ()
    _, there, rest = scope["path"].partition("://")
    return (rest.partition("/")[0],) if there else ()


def _root(scope: Scope) -> str:
    return str(scope.get("root_path", "")).rstrip("/")


def _inside(scope: Scope, places: Sequence[str]) -> bool:
    path = scope["path"].removeprefix(_root(scope))
    return any(
        path == place or (place.endswith("/") and path.startswith(place)) for place in places
    )
