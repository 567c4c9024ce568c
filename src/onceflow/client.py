"""A client for `onceflow serve`, sync and async. What is safe to repeat is repeated by itself.

with onceflow.Client("http://127.0.0.1:8000") as client:
    job = client.submit("https://a.test/article")
    client.extract(job["id"])
    print(client.generate(job["id"])["job"]["story"]["headline"])
    for event in client.events(item=job["id"], follow=False):
        print(event["seq"], event["state"])
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceflow.core.errors import OnceflowError, Permanent, pip_install

try:
    import httpx2
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise Permanent(
        f"the client needs httpx2: {pip_install('client')}", code="not_installed"
    ) from error

Json = dict[str, Any]
AGAIN = frozenset({408, 429, 502, 503, 504})
"""Answers that mean: not now."""
WAIT_SECONDS_MAX = 30.0


class ApiError(OnceflowError):
    """The server's answer is a problem: `status`, `kind` and everything it says in `problem`."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.kind = str(problem.get("type", "")).rpartition(":")[2]
        super().__init__(f"{status} {self.kind}: {problem.get('detail', 'no detail')}")


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    body: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Whether doing it twice is the same as doing it once."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """How patient a client is."""

    tries: int
    pause_seconds: float

    def pause(self, number: int, answer: httpx2.Response | None) -> float:
        told = (answer.headers.get("retry-after", "") if answer is not None else "").strip()
        floor = float(told) if told.isdecimal() and len(told) < 6 else 0.0
        return float(min(WAIT_SECONDS_MAX, max(floor, self.pause_seconds * 2.0**number)))

    def again(
        self, call: _Call, number: int, answer: httpx2.Response | None, error: Exception | None
    ) -> bool:
        """Whether to try once more. What was never sent may be sent again whatever it is."""
        if number + 1 >= self.tries:
            return False
        if isinstance(error, httpx2.ConnectError):
            return True
        return call.repeatable and (
            error is not None or (answer is not None and answer.status_code in AGAIN)
        )


def _text(answer: httpx2.Response) -> str:
    """The answer as text, or the problem it is."""
    if answer.status_code >= 300:
        _value(answer)
    return answer.text


def _value(answer: httpx2.Response) -> Json:
    """The answer's JSON, or the problem it is."""
    try:
        found = answer.json()
    except ValueError:
        found = {"detail": f"an answer that is no JSON: {answer.text[:200]!r}"}
        raise ApiError(answer.status_code, found) from None
    if answer.status_code >= 300:
        raise ApiError(answer.status_code, found if isinstance(found, dict) else {})
    return dict(found)


# --- the calls, the same for both clients ---


def _submit(url: str, key: str | None, route: str = "ingestion-jobs") -> _Call:
    headers = {"Idempotency-Key": key or secrets.token_hex(16)}
    return _Call("POST", f"/api/{route}", {"url": url}, headers=headers)


def _report(id: int, kind: str) -> _Call:
    return _Call("GET", f"/api/analysis-jobs/{id}/report.{kind}")


def _add(pipeline: str, keys: Sequence[str], key: str | None) -> _Call:
    body = {"pipeline": pipeline, "keys": list(keys)}
    headers = {"Idempotency-Key": key or secrets.token_hex(16)}
    return _Call("POST", "/api/runs", body, headers=headers)


def _stage(id: int, stage: str, wait: float) -> _Call:
    return _Call("POST", f"/api/ingestion-jobs/{id}/{stage}", params={"wait": wait})


def _act(id: int, command: str, body: Mapping[str, str]) -> _Call:
    # A repeated command may meet another state: only the caller can know what that means.
    return _Call("POST", f"/api/items/{id}/{command}", dict(body), repeatable=False)


def _get(path: str, **params: Any) -> _Call:
    given = {name: value for name, value in params.items() if value is not None}
    return _Call("GET", path, params=given)


def _event_params(wanted: Mapping[str, Any], *, follow: bool) -> dict[str, Any]:
    params = {name: value for name, value in wanted.items() if value is not None}
    return {**params, "follow": "true" if follow else "false"}


class _Cursor:
    """Where an event stream is; it goes on from there."""

    def __init__(self, after: int | None) -> None:
        self.after = after

    def headers(self) -> dict[str, str]:
        found = {"Accept": "application/x-ndjson"}
        if self.after is not None:
            found["Last-Event-ID"] = str(self.after)
        return found

    def take(self, line: str) -> Json | None:
        if not line.strip():
            return None  # a ping
        event: Json = json.loads(line)
        self.after = int(event["seq"])
        return event


def _options(token: str | None, timeout: float) -> dict[str, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {"timeout": timeout, "headers": headers, "trust_env": False}


class Client:
    """Talks to a server. `token` is the server's, if it has one."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        tries: int = 6,
        pause_seconds: float = 0.2,
        timeout_seconds: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._http = httpx2.Client(
            base_url=url.rstrip("/"), transport=transport, **_options(token, timeout_seconds)
        )
        self._rules = _Rules(tries, pause_seconds)
        self._sleep = sleep

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _do(self, call: _Call) -> Json:
        return _value(self._answer(call))

    def _answer(self, call: _Call) -> httpx2.Response:
        number = 0
        while True:
            answer: httpx2.Response | None = None
            failed: Exception | None = None
            try:
                answer = self._http.request(
                    call.method,
                    call.path,
                    json=call.body,
                    params=call.params or None,
                    headers=call.headers,
                )
            except httpx2.TransportError as error:
                failed = error
            if not self._rules.again(call, number, answer, failed):
                break
            self._sleep(self._rules.pause(number, answer))
            number += 1
        if answer is None:
            raise _unreachable(self._http.base_url, failed)
        return answer

    def submit(self, url: str, *, idempotency_key: str | None = None) -> Json:
        """The job of an article, made if need be."""
        return self._do(_submit(url, idempotency_key))

    def job(self, id: int) -> Json:
        return self._do(_get(f"/api/ingestion-jobs/{id}"))

    def fetch(self, id: int, *, seconds_max: float = 300) -> Json:
        """Have the page fetched: `{success, skipped, job}`, once it is."""
        return self._perform(id, "fetch", seconds_max)

    def extract(self, id: int, *, seconds_max: float = 300) -> Json:
        """Have the text found. The fetch starts this by itself; asking is harmless."""
        return self._perform(id, "extract", seconds_max)

    def generate(self, id: int, *, seconds_max: float = 300) -> Json:
        """Have the story written."""
        return self._perform(id, "generate", seconds_max)

    def _perform(self, id: int, stage: str, seconds_max: float) -> Json:
        until = time.monotonic() + seconds_max
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                answer = self._do(_stage(id, stage, min(left, WAIT_SECONDS_MAX)))
            except ApiError as error:
                # The stage before is under way: it comes by itself, so waiting is all there is.
                if not _comes(error) or left <= 0:
                    raise
                self._sleep(self._rules.pause_seconds)
                continue
            if not _under_way(answer, stage) or left <= 0:
                return answer

    def analyze(self, url: str, *, idempotency_key: str | None = None) -> Json:
        """The analysis job of a website, made if need be."""
        return self._do(_submit(url, idempotency_key, "analysis-jobs"))

    def analysis(self, id: int) -> Json:
        return self._do(_get(f"/api/analysis-jobs/{id}"))

    def analyses(self, **wanted: Any) -> Iterator[Json]:
        """Every analysis job that fits, page by page."""
        yield from self._pages("/api/analysis-jobs", "jobs", wanted)

    def report(self, id: int, kind: str = "md") -> str:
        """The report of a completed analysis: `md`, `html` or `json`, as text."""
        return _text(self._answer(_report(id, kind)))

    def add(
        self, pipeline: str, keys: Sequence[str], *, idempotency_key: str | None = None
    ) -> Json:
        """Add items to a pipeline as one run: `{run, new, known}`."""
        return self._do(_add(pipeline, keys, idempotency_key))

    def run(self, id: str) -> Json:
        return self._do(_get(f"/api/runs/{id}"))

    def item(self, id: int) -> Json:
        return self._do(_get(f"/api/items/{id}"))

    def items(self, **wanted: Any) -> Iterator[Json]:
        """Every item that fits, page by page."""
        yield from self._pages("/api/items", "items", wanted)

    def jobs(self, **wanted: Any) -> Iterator[Json]:
        """Every job that fits, page by page."""
        yield from self._pages("/api/ingestion-jobs", "jobs", wanted)

    def _pages(self, path: str, name: str, wanted: Mapping[str, Any]) -> Iterator[Json]:
        page = self._do(_get(path, **wanted))
        while True:
            yield from page[name]
            if page["next"] is None:
                return
            page = self._do(_get(_below(page["next"], self._http.base_url)))

    def retry(self, id: int, *, from_stage: str = "", why: str = "") -> Json:
        return self._do(_act(id, "retry", {"from_stage": from_stage, "why": why}))

    def cancel(self, id: int, *, why: str = "") -> Json:
        return self._do(_act(id, "cancel", {"why": why}))

    def release(self, id: int, *, why: str = "") -> Json:
        return self._do(_act(id, "release", {"why": why}))

    def stats(self) -> Json:
        return self._do(_get("/api/stats"))

    def health(self) -> Json:
        return self._do(_get("/health"))

    def events(
        self, *, after: int | None = None, follow: bool = True, **wanted: Any
    ) -> Iterator[Json]:
        """The history, each event once; a broken stream is resumed where it broke off. Without
        `after` a stream that follows begins with a `snapshot`."""
        cursor = _Cursor(after)
        params = _event_params(wanted, follow=follow)
        number = 0
        while True:
            try:
                with self._http.stream(
                    "GET", "/api/events", params=params, headers=cursor.headers()
                ) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        _value(answer)
                    for line in answer.iter_lines():
                        number = 0
                        if (event := cursor.take(line)) is not None:
                            yield event
                if not follow:
                    return
            except httpx2.TransportError as error:
                if number + 1 >= self._rules.tries:
                    raise _unreachable(self._http.base_url, error) from error
            except ApiError as error:
                if error.status not in AGAIN or number + 1 >= self._rules.tries:
                    raise
            self._sleep(self._rules.pause(number, None))
            number += 1


class AsyncClient:
    """The same, for asyncio."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        tries: int = 6,
        pause_seconds: float = 0.2,
        timeout_seconds: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/"), transport=transport, **_options(token, timeout_seconds)
        )
        self._rules = _Rules(tries, pause_seconds)
        self._sleep = sleep

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _do(self, call: _Call) -> Json:
        return _value(await self._answer(call))

    async def _answer(self, call: _Call) -> httpx2.Response:
        number = 0
        while True:
            answer: httpx2.Response | None = None
            failed: Exception | None = None
            try:
                answer = await self._http.request(
                    call.method,
                    call.path,
                    json=call.body,
                    params=call.params or None,
                    headers=call.headers,
                )
            except httpx2.TransportError as error:
                failed = error
            if not self._rules.again(call, number, answer, failed):
                break
            await self._sleep(self._rules.pause(number, answer))
            number += 1
        if answer is None:
            raise _unreachable(self._http.base_url, failed)
        return answer

    async def submit(self, url: str, *, idempotency_key: str | None = None) -> Json:
        """The job of an article, made if need be."""
        return await self._do(_submit(url, idempotency_key))

    async def job(self, id: int) -> Json:
        return await self._do(_get(f"/api/ingestion-jobs/{id}"))

    async def fetch(self, id: int, *, seconds_max: float = 300) -> Json:
        """Have the page fetched: `{success, skipped, job}`, once it is."""
        return await self._perform(id, "fetch", seconds_max)

    async def extract(self, id: int, *, seconds_max: float = 300) -> Json:
        """Have the text found. The fetch starts this by itself; asking is harmless."""
        return await self._perform(id, "extract", seconds_max)

    async def generate(self, id: int, *, seconds_max: float = 300) -> Json:
        """Have the story written."""
        return await self._perform(id, "generate", seconds_max)

    async def _perform(self, id: int, stage: str, seconds_max: float) -> Json:
        until = time.monotonic() + seconds_max
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                answer = await self._do(_stage(id, stage, min(left, WAIT_SECONDS_MAX)))
            except ApiError as error:
                if not _comes(error) or left <= 0:
                    raise
                await self._sleep(self._rules.pause_seconds)
                continue
            if not _under_way(answer, stage) or left <= 0:
                return answer

    async def analyze(self, url: str, *, idempotency_key: str | None = None) -> Json:
        """The analysis job of a website, made if need be."""
        return await self._do(_submit(url, idempotency_key, "analysis-jobs"))

    async def analysis(self, id: int) -> Json:
        return await self._do(_get(f"/api/analysis-jobs/{id}"))

    async def analyses(self, **wanted: Any) -> AsyncIterator[Json]:
        """Every analysis job that fits, page by page."""
        async for one in self._pages("/api/analysis-jobs", "jobs", wanted):
            yield one

    async def report(self, id: int, kind: str = "md") -> str:
        """The report of a completed analysis: `md`, `html` or `json`, as text."""
        return _text(await self._answer(_report(id, kind)))

    async def add(
        self, pipeline: str, keys: Sequence[str], *, idempotency_key: str | None = None
    ) -> Json:
        """Add items to a pipeline as one run: `{run, new, known}`."""
        return await self._do(_add(pipeline, keys, idempotency_key))

    async def run(self, id: str) -> Json:
        return await self._do(_get(f"/api/runs/{id}"))

    async def item(self, id: int) -> Json:
        return await self._do(_get(f"/api/items/{id}"))

    async def items(self, **wanted: Any) -> AsyncIterator[Json]:
        """Every item that fits, page by page."""
        async for one in self._pages("/api/items", "items", wanted):
            yield one

    async def jobs(self, **wanted: Any) -> AsyncIterator[Json]:
        """Every job that fits, page by page."""
        async for one in self._pages("/api/ingestion-jobs", "jobs", wanted):
            yield one

    async def _pages(self, path: str, name: str, wanted: Mapping[str, Any]) -> AsyncIterator[Json]:
        page = await self._do(_get(path, **wanted))
        while True:
            for one in page[name]:
                yield one
            if page["next"] is None:
                return
            page = await self._do(_get(_below(page["next"], self._http.base_url)))

    async def retry(self, id: int, *, from_stage: str = "", why: str = "") -> Json:
        return await self._do(_act(id, "retry", {"from_stage": from_stage, "why": why}))

    async def cancel(self, id: int, *, why: str = "") -> Json:
        return await self._do(_act(id, "cancel", {"why": why}))

    async def release(self, id: int, *, why: str = "") -> Json:
        return await self._do(_act(id, "release", {"why": why}))

    async def stats(self) -> Json:
        return await self._do(_get("/api/stats"))

    async def health(self) -> Json:
        return await self._do(_get("/health"))

    async def events(
        self, *, after: int | None = None, follow: bool = True, **wanted: Any
    ) -> AsyncIterator[Json]:
        """The history, each event once; a broken stream is resumed where it broke off."""
        cursor = _Cursor(after)
        params = _event_params(wanted, follow=follow)
        number = 0
        while True:
            try:
                async with self._http.stream(
                    "GET", "/api/events", params=params, headers=cursor.headers()
                ) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        _value(answer)
                    async for line in answer.aiter_lines():
                        number = 0
                        if (event := cursor.take(line)) is not None:
                            yield event
                if not follow:
                    return
            except httpx2.TransportError as error:
                if number + 1 >= self._rules.tries:
                    raise _unreachable(self._http.base_url, error) from error
            except ApiError as error:
                if error.status not in AGAIN or number + 1 >= self._rules.tries:
                    raise
            await self._sleep(self._rules.pause(number, None))
            number += 1


def _below(path: str, base: httpx2.URL) -> str:
    """A path that the server gave, without what the base address has of it already."""
    return path.removeprefix(base.path.rstrip("/"))


def _comes(error: ApiError) -> bool:
    """The stage before is not finished; unless it fails, it will be."""
    return error.kind in ("no-page-yet", "no-text-yet")


def _under_way(answer: Json, stage: str) -> bool:
    """Whether the stage is still being worked on."""
    names = {"fetch": "fetchedAt", "extract": "extractedAt", "generate": "generatedAt"}
    return answer["job"][names[stage]] is None


def _unreachable(url: object, error: Exception | None) -> OnceflowError:
    why = f"{type(error).__name__}: {error}" if error else "no answer"
    return OnceflowError(f"{url} cannot be reached ({why}); is `onceflow serve` running there?")
