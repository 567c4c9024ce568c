"""The framing of a chunked answer, read strictly and beside the HTTP library's own parser.

The library passes over chunk extensions of any length and believes any 64-bit size; neither is
visible behind it.
"""

from __future__ import annotations

import re

from onceflow.clients.codings import too_large
from onceflow.core.errors import HandlerError, Permanent

LINE_BYTES_MAX = 4096  # a chunk's size with its extensions, or one trailer
CHUNKS_MAX = 100_000  # in 10 MiB, chunks of 100 bytes; each costs its time to read
SIZE_MAX = 2**63 - 1  # what no counter of bytes can hold is no size

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")


class Chunks:
    """`feed` the bytes behind the head as they come; raises `Permanent` where they are wrong."""

    def __init__(self, *, bytes_max: int, trailers_max: int) -> None:
        self._bytes_max = bytes_max
        self._trailers_left = trailers_max
        self._chunks_left = CHUNKS_MAX
        self._left = 0  # bytes of the chunk that are still to come
        self._line = bytearray()
        self._take = self._size

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data) and self._take != self._nothing:
            if self._left:
                skipped = min(self._left, len(data) - at)
                self._left -= skipped
                at += skipped
                continue
            end = data.find(b"\n", at, at + LINE_BYTES_MAX + 1)
            piece = data[at:] if end == -1 else data[at:end]
            if len(self._line) + len(piece) > LINE_BYTES_MAX:
                raise refused_framing("a chunk's line without end")
            self._line += piece
            if end == -1:
                return
            at = end + 1
            line = bytes(self._line).removesuffix(b"\r")
            self._line.clear()
            self._take(line)

    def _size(self, line: bytes) -> None:
        text = line.partition(b";")[0].rstrip(b" \t")
        if not _SIZE.fullmatch(text):
            raise refused_framing("a chunk without a size")
        size = int(text, 16)
        if size > SIZE_MAX:
            raise refused_framing("a chunk of an impossible size")
        if size > self._bytes_max:
            raise too_large(self._bytes_max, "announced")
        self._chunks_left -= 1
        if self._chunks_left < 0:
            raise refused_framing("chunks without end")
        self._left = size
        self._take = self._end_of_data if size else self._trailer

    def _end_of_data(self, line: bytes) -> None:
        if line:
            raise refused_framing("a chunk that is longer than its size")
        self._take = self._size

    def _trailer(self, line: bytes) -> None:
        if not line:
            self._take = self._nothing
            return
        self._trailers_left -= 1
        if self._trailers_left < 0:
            raise refused_framing("trailers without end")

    def _nothing(self, line: bytes) -> None:
        """Behind the end nothing belongs to this answer."""


def refused_framing(what: str) -> HandlerError:
    """What is on the wire is no answer as HTTP has it."""
    return Permanent(f"the server does not speak HTTP properly: {what}", code="bad_protocol")
