"""Models behind an OpenAI-compatible API: OpenAI, Ollama, vLLM, llama.cpp and others.

The `openai` package speaks the protocol; its own retries, redirects and use of the environment
are off. Retrying is the engine's business.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from onceflow.clients._lifetime import PerLoop
from onceflow.clients._missing import not_installed
from onceflow.clients.breaker import Breaker
from onceflow.clients.http import parse_retry_after
from onceflow.clients.llm import Finish, Request, Usage
from onceflow.clients.text import one_line
from onceflow.clients.urls import parse_url, shown
from onceflow.core.errors import HandlerError, Permanent, SettingsError, Transient

OPENAI_URL = "https://api.openai.com/v1"
CONTEXT_TOKENS_DEFAULT = 16_000
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
EVENT_BYTES_MAX = 1024 * 1024
LINES_MAX = 200_000
CONNECT_SECONDS = 10.0
EMBED_SECONDS = 60.0
RETRY_AFTER_SECONDS_MAX = 3600.0

_TOO_LONG = re.compile(
    r"context.{0,20}(?:length|size|window)|maximum context|too (?:long|many tokens)|exceed_context",
    re.IGNORECASE,
)


# Lines of an event stream that carry nothing for us. An event of such lines alone is no event, but
# the SDK takes it for one without JSON in it.
_NO_DATA = re.compile(rb"^(?:id|retry)(?::[^\n]*)?\n|^:[^\n]*\n", re.MULTILINE)


class OpenAIModel:
    """Chat completions, streamed, with usage."""

    writes = True

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.context_tokens: int | None = context_tokens or CONTEXT_TOKENS_DEFAULT
        self._api = _Api(name, base_url=base_url, api_key=api_key, clock=clock)

    async def stream(self, request: Request) -> AsyncIterator[str | Usage | Finish]:
        arguments: dict[str, Any] = {
            "model": self.name.partition(":")[2],
            "messages": _messages(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.output_tokens_max is not None:
            # The servers that copy the protocol know the old name, OpenAI's newer models the new.
            key = "max_completion_tokens" if self._api.is_openai else "max_tokens"
            arguments[key] = request.output_tokens_max
        if request.idempotency_key is not None:
            arguments["extra_headers"] = {"Idempotency-Key": request.idempotency_key}
        client = await self._api.client()
        async with self._api.call() as call:
            answer = await client.chat.completions.create(**arguments)
            call.began = True
            try:
                async for chunk in answer:
                    for event in _events(chunk):
                        yield event
            finally:
                await answer.close()

    async def close(self) -> None:
        await self._api.close()


class OpenAIVectors:
    """`/embeddings` of the same API."""

    def __init__(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None
    ) -> None:
        self.name = name
        self._api = _Api(name, base_url=base_url, api_key=api_key, clock=time.monotonic)

    async def vectors(self, texts: Sequence[str]) -> Any:
        client = await self._api.client()
        async with self._api.call():
            try:
                async with asyncio.timeout(EMBED_SECONDS):
                    answer = await client.embeddings.create(
                        model=self.name.partition(":")[2],
                        input=list(texts),
                        encoding_format="float",
                    )
            except TimeoutError:
                raise Transient(f"{self.name}: no answer in time", code="timeout") from None
            rows = getattr(answer, "data", None) or []
            return [row.embedding for row in sorted(rows, key=lambda row: row.index)]

    async def close(self) -> None:
        await self._api.close()


class _Api:
    """The SDK's client of one base URL and key, and what its failures mean."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None,
        api_key: str | None,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        try:
            host = parse_url(self._base_url).host
        except Permanent as error:
            raise SettingsError(f"base_url: {error}") from None
        self.is_openai = host == "api.openai.com"
        self._key = _checked_key(api_key or os.environ.get("OPENAI_API_KEY") or "")
        self._breaker = Breaker(name, clock=clock)
        self._clients: PerLoop[Any] = PerLoop(self._open, _close)

    async def client(self) -> Any:
        if self.is_openai and not self._key:
            raise Permanent(
                f"{self._name}: no key; set OPENAI_API_KEY to a key that the provider takes",
                code="wrong_key",
            )
        return await self._clients.get()

    async def close(self) -> None:
        await self._clients.close()

    def call(self) -> _Call:
        return _Call(self._name, shown(self._base_url), self._breaker, self._key)

    def _open(self) -> Any:
        try:
            import openai
        except ImportError as error:
            raise not_installed(self._name, error, "openai") from None
        return openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
            http_client=openai.DefaultAsyncHttpxClient(
                follow_redirects=False,
                trust_env=False,
                headers={"Accept-Encoding": "identity"},
                event_hooks={"response": [_bound]},
            ),
        )


class _Call:
    """One call under the breaker; what the SDK raises becomes ours, without the key in it."""

    def __init__(self, name: str, where: str, breaker: Breaker, key: str) -> None:
        self._name = name
        self._where = where
        self._breaker = breaker
        self._key = key
        self.began = False  # part of an answer may have come

    async def __aenter__(self) -> _Call:
        self._breaker.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._breaker.succeeded()
            return
        named = self._named(error)
        if named is None:  # cancelled, or the reader went away
            self._breaker.left()
            return
        if isinstance(named, Permanent):
            self._breaker.succeeded()  # it answered, and clearly
        elif named.code == "http_429":
            assert isinstance(named, Transient)
            self._breaker.told_to_wait(named.retry_after or 1.0)
        else:
            self._breaker.failed(str(named).removeprefix(self._name).lstrip(": "))
        # Without the chain: the SDK's exceptions hold the request, and so the key.
        raise named from None

    def _named(self, error: BaseException) -> HandlerError | None:
        import openai

        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, HandlerError):
                return cause
            cause = cause.__cause__
        match error:
            case openai.APIStatusError():
                return self._by_status(error)
            case openai.APITimeoutError():
                message = f"{self._name}: no connection to {self._where} in time"
                return Transient(message, code="timeout")
            case openai.APIConnectionError() if self.began:
                return Transient(f"{self._name}: the answer broke off", code="truncated")
            case openai.APIConnectionError():
                message = f"{self._name}: {self._where} cannot be reached; does the server run?"
                return Transient(message, code="disconnected")
            case openai.APIError():
                return Transient(f"{self._name}: {self._said(error)}", code="provider_error")
            case openai.OpenAIError():
                return Transient(f"{self._name}: {self._said(error)}", code="provider_error")
            case ValueError() | TypeError() | AttributeError() | KeyError() | RecursionError():
                return Transient(f"{self._name}: an answer that makes no sense", code="bad_answer")
            case _ if type(error).__module__.partition(".")[0].startswith(("httpx", "httpcore")):
                return Transient(f"{self._name}: the connection was lost", code="truncated")
            case _:
                return None

    def _by_status(self, error: Any) -> HandlerError:
        status = int(error.status_code)
        message = f"{self._name} answered {status}: {self._said(error)}"
        headers: Mapping[str, str] = error.response.headers
        code = str(error.code or "")
        if status in (401, 403):
            return Permanent(message, code="wrong_key")
        if code == "insufficient_quota":
            return Permanent(message, code="no_quota")
        if status in (400, 413, 422) and _TOO_LONG.search(f"{code} {error.type} {message}"):
            return Permanent(message, code="context_too_long")
        if status in (408, 409, 425, 429) or status >= 500:
            wait = parse_retry_after(
                headers.get("retry-after", ""),
                now=time.time(),
                seconds_max=RETRY_AFTER_SECONDS_MAX,
            )
            return Transient(message, code=f"http_{status}", retry_after=wait)
        if 300 <= status < 400:
            return Permanent(
                f"{self._name} redirects elsewhere; the key is not sent there", code="redirected"
            )
        return Permanent(message, code="no_model" if status == 404 else f"http_{status}")

    def _said(self, error: Any) -> str:
        body = getattr(error, "body", None)
        text = body.get("message") if isinstance(body, Mapping) else None
        return redacted(one_line(str(text or "no reason given"), chars_max=200), self._key)


def redacted(text: str, key: str) -> str:
    """Text that somebody else wrote, without our key and without anything that looks like one."""
    if len(key) >= 4:
        text = text.replace(key, "***")
    text = re.sub(r"(?i)\b(bearer|basic)\s+[\w.~+/=\-]{4,}", r"\1 ***", text)
    return re.sub(r"\b(?:sk|pk|key|gsk|xai)-[\w\-]{6,}", "***", text)


def _messages(request: Request) -> list[dict[str, str]]:
    system = [{"role": "system", "content": request.system}] if request.system else []
    return [*system, {"role": "user", "content": request.text()}]


def _events(chunk: Any) -> list[str | Usage | Finish]:
    """What one event says; unknown ones say nothing."""
    events: list[str | Usage | Finish] = []
    for choice in (getattr(chunk, "choices", None) or [])[:1]:
        delta = getattr(choice, "delta", None)
        for text in (getattr(delta, "content", None), getattr(delta, "refusal", None)):
            if isinstance(text, str) and text:
                events.append(text)
        reason = getattr(choice, "finish_reason", None)
        if reason:
            known = {"stop": "stop", "length": "length", "content_filter": "refused"}
            events.append(Finish(known.get(str(reason), "stop")))
    usage = getattr(chunk, "usage", None)
    asked, said = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    if isinstance(asked, int) and isinstance(said, int) and min(asked, said) >= 0:
        events.append(Usage(asked, said))
    return events


async def _bound(response: Any) -> None:
    """Before an answer is read: no coding we did not ask for, and a cap on all it sends."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Transient("the provider compressed its answer unasked", code="bad_encoding")
    # Which HTTP library the SDK uses depends on its version; its stream class is in its top module.
    library = sys.modules[type(response).__module__.partition(".")[0]]
    source = response.stream
    streams = "event-stream" in response.headers.get("content-type", "")

    class Bounded(library.AsyncByteStream):  # type: ignore[name-defined,misc]  # as above
        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = lines = 0
            line = bytearray()  # one that is not whole yet
            async for chunk in source:
                total += len(chunk)
                lines += chunk.count(b"\n")
                end = chunk.rfind(b"\n") + 1
                rest = len(line) + len(chunk) if not end else len(chunk) - end
                limit = EVENT_BYTES_MAX if streams else RESPONSE_BYTES_MAX
                if total > RESPONSE_BYTES_MAX or rest > limit or lines > LINES_MAX:
                    raise Transient("the provider's answer has no end", code="too_large")
                if not streams:
                    yield chunk
                elif end:
                    yield _NO_DATA.sub(b"", bytes(line) + chunk[:end])
                    line = bytearray(chunk[end:])
                else:
                    line += chunk
            yield bytes(line)

        async def aclose(self) -> None:
            await source.aclose()

    response.stream = Bounded()


def _checked_key(key: str) -> str:
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingsError("the API key has a space, a line break or an unusual character in it")
    return key


async def _close(client: Any) -> None:
    await client.close()
