"""Sentence vectors: embedded and offline, or from an OpenAI-compatible `/embeddings`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from onceflow.clients._missing import not_installed
from onceflow.core.errors import SettingsError, Transient

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

TEXTS_PER_CALL_MAX = 256
TEXT_CHARS_MAX = 20_000


class EmbedModel(Protocol):
    """Texts to vectors of one length, in order."""

    name: str

    async def vectors(self, texts: Sequence[str]) -> Any: ...

    async def close(self) -> None: ...


DIMENSIONS_MAX = 16_384  # no model has that many


class Embedder:
    """Vectors of length one, so that a dot product is the cosine.

    `Embedder()` is the embedded model (256 dimensions, offline, some thousand sentences a second);
    `Embedder("openai:MODEL", base_url=..., api_key=...)` asks a server.
    """

    def __init__(
        self,
        model: str | EmbedModel = "embedded",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
    ) -> None:
        self._dimensions = dimensions
        if not isinstance(model, str):
            self._model = model
        elif model == "embedded":
            self._model = WordVectors()
        elif model.startswith("openai:") and model != "openai:":
            from onceflow.clients.openai import OpenAIVectors

            self._model = OpenAIVectors(model, base_url=base_url, api_key=api_key)
        else:
            raise SettingsError(f"unknown embedding model {model!r}: embedded or openai:MODEL")
        self.name = self._model.name

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """An array of len(texts) rows; raises `Transient` (`bad_vectors`) rather than give rubbish.

        The first answer fixes the number of dimensions, unless it was given.
        """
        import numpy as np

        rows: list[Vectors] = []
        for start in range(0, len(texts), TEXTS_PER_CALL_MAX):
            part = [
                text[:TEXT_CHARS_MAX] or " " for text in texts[start : start + TEXTS_PER_CALL_MAX]
            ]
            rows.append(self._checked(await self._model.vectors(part), len(part)))
        if not rows:
            return np.zeros((0, self._dimensions or 0), dtype=np.float32)
        return np.vstack(rows)

    async def close(self) -> None:
        """Close the connections now. Without it they are closed with the event loop."""
        await self._model.close()

    async def __aenter__(self) -> Embedder:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _checked(self, answer: Any, count: int) -> Vectors:
        import numpy as np

        try:
            vectors = np.asarray(answer, dtype=np.float32)
        except (ValueError, TypeError):
            raise self._bad("vectors of different lengths") from None
        shape = vectors.shape
        if vectors.ndim != 2 or shape[0] != count or not 0 < shape[1] <= DIMENSIONS_MAX:
            raise self._bad(f"an answer of shape {shape} for {count} texts")
        if shape[1] != (self._dimensions or shape[1]):
            raise self._bad(f"{shape[1]} dimensions instead of {self._dimensions}")
        if not np.isfinite(vectors).all():
            raise self._bad("numbers that are not finite")
        self._dimensions = int(shape[1])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        lengths[lengths == 0] = 1  # a text without a known word is the zero vector, like nothing
        scaled: Vectors = vectors / lengths
        return scaled

    def _bad(self, what: str) -> Transient:
        return Transient(f"embedding model {self.name} gave {what}", code="bad_vectors")


class WordVectors:
    """Means of word vectors that come inside a Python package: no download, no key."""

    name = "embedded"

    async def vectors(self, texts: Sequence[str]) -> Any:
        return await asyncio.to_thread(word_vectors, texts)

    async def close(self) -> None:
        return None


def word_vectors(texts: Sequence[str]) -> Vectors:
    """Vectors of length one, computed here and now."""
    vectors: Vectors = _loaded().embed(list(texts), norm=True)
    return vectors


_loading = Lock()


@contextmanager
def _log_as_it_was() -> Iterator[None]:
    """The package turns on the logging of the whole program when it is imported."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        for handler in [one for one in root.handlers if one not in handlers]:
            root.removeHandler(handler)
        root.setLevel(level)


def _loaded() -> Any:
    with _loading:  # two threads at the first use load it once
        return _load()


@lru_cache(maxsize=1)
def _load() -> Any:
    # A fork after the tokenizer's threads have started makes it warn on every call, and our
    # processes use the cores already.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with _log_as_it_was():
            import wordllama  # type: ignore[import-untyped]  # the package has no types
    except ImportError as error:
        raise not_installed("the embedded model", error, "embedded") from None
    # The package holds its tokenizer in a folder where it does not look by itself; without this it
    # would ask a model hub.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
