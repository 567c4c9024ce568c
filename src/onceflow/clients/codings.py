"""Content codings undone by hand, in small steps under a cap, so a bomb costs only the cap."""

from __future__ import annotations

import zlib

from onceflow.core.errors import Permanent, Transient

STEP_BYTES = 256 * 1024
MEMBERS_MAX = 4096  # of one gzip stream; a page compressed in blocks of 64 KiB has 320

# What we can undo, and so what the request's Accept-Encoding offers.
ACCEPTED = "gzip, deflate"


def codings(header: str, *, codings_max: int) -> list[str]:
    """The codings of a `Content-Encoding`, in the order they were applied."""
    names = [name.strip().lower() for name in header.split(",") if name.strip()]
    names = [name for name in names if name != "identity"]
    if len(names) > codings_max:
        raise Permanent(
            f"the page is encoded {len(names)} times over; at most {codings_max} are undone",
            code="bad_encoding",
        )
    for name in names:
        if name not in ("gzip", "x-gzip", "deflate"):
            raise Permanent(f"the page has the unknown coding {name[:40]!r}", code="bad_encoding")
    return names


class Decoder:
    """A chain of codings. `feed` as bytes arrive, then `finish`; `body` is what came out."""

    def __init__(self, names: list[str], *, bytes_max: int) -> None:
        self._layers = [_Layer(name) for name in reversed(names)]
        self._bytes_max = bytes_max
        self.body = bytearray()

    def feed(self, data: bytes) -> None:
        self._push(0, data)

    def finish(self) -> None:
        """Raise `Transient` (`truncated`) if a coding did not come to its end."""
        if any(layer.started and not layer.ended for layer in self._layers):
            raise Transient("the compressed page ended in the middle", code="truncated")

    def _push(self, depth: int, data: bytes) -> None:
        if depth == len(self._layers):
            if len(self.body) + len(data) > self._bytes_max:
                raise too_large(self._bytes_max, "decoded")
            self.body += data
            return
        layer = self._layers[depth]
        while data:
            plain, data = layer.step(data)
            layer.produced += len(plain)
            if layer.produced > self._bytes_max:
                raise too_large(self._bytes_max, "decoded")
            if plain:
                self._push(depth + 1, plain)


class _Layer:
    """One coding being undone; several gzip members after one another are one stream."""

    def __init__(self, name: str) -> None:
        self.produced = 0
        self.started = False
        self._members = 1
        self._deflate = name == "deflate"
        self._undo = None if self._deflate else zlib.decompressobj(wbits=31)

    @property
    def ended(self) -> bool:
        return self._undo is not None and self._undo.eof

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        """At most STEP_BYTES of output, and the input that is left."""
        if self._undo is None:
            # "deflate" means zlib's format, but some servers send the bare one (RFC 9110, 8.4.1.2).
            has_header = data[0] & 0x0F == 8 and data[0] >> 4 <= 7
            self._undo = zlib.decompressobj(wbits=15 if has_header else -15)
        if self._undo.eof:
            if self._deflate or not data.startswith(b"\x1f"):
                return b"", b""  # bytes behind the end of a stream are padding: dropped
            self._members += 1
            if self._members > MEMBERS_MAX:
                raise Permanent(
                    f"the compressed page is in more than {MEMBERS_MAX:,} parts",
                    code="bad_encoding",
                )
            self._undo = zlib.decompressobj(wbits=31)
        self.started = True
        try:
            plain = self._undo.decompress(data, STEP_BYTES)
        except zlib.error as error:
            raise Permanent(
                f"the compressed page is damaged: {error}", code="bad_encoding"
            ) from None
        return plain, self._undo.unconsumed_tail or self._undo.unused_data


def too_large(bytes_max: int, which: str) -> Permanent:
    return Permanent(
        f"the page is larger than {bytes_max:,} bytes ({which})",
        code="too_large",
    )
