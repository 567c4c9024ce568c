"""How bodies are compressed: with Zstandard, which takes half of zlib's time. What was stored with
zlib by earlier versions is still read. Both are known by their first byte, with which no JSON text
begins."""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zstandard

ZLIB, ZSTANDARD = b"x", b"("
LEVEL = 1


class _Mine(threading.local):
    """A compressor belongs to one thread at a time, and is costly to make anew for each body."""

    compressor: zstandard.ZstdCompressor | None = None
    decompressor: zstandard.ZstdDecompressor | None = None


_mine = _Mine()


def is_packed(body: bytes) -> bool:
    return body[:1] in (ZLIB, ZSTANDARD)


def pack(raw: bytes) -> bytes:
    compressor = _mine.compressor
    if compressor is None:
        import zstandard  # only who stores something large pays for loading it

        compressor = _mine.compressor = zstandard.ZstdCompressor(level=LEVEL)
    return compressor.compress(raw)


def unpack(body: bytes) -> bytes:
    """What was packed, or a body as it is if it was not."""
    first = body[:1]
    if first == ZLIB:
        return zlib.decompress(body)
    if first != ZSTANDARD:
        return body
    decompressor = _mine.decompressor
    if decompressor is None:
        import zstandard

        decompressor = _mine.decompressor = zstandard.ZstdDecompressor()
    return decompressor.decompress(body)
