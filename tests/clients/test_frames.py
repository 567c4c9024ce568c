"""The framing of chunked answers (P19), however the bytes are cut."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.clients._connection import Handler
from onceflow.clients._frames import Chunks
from onceflow.clients.settings import FetchSettings
from onceflow.core.errors import Permanent


def chunks() -> Chunks:
    return Chunks(bytes_max=1000, trailers_max=3)


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.sampled_from([b"", b";a=b", b" ", b' ; a="\xff"']),
    st.sampled_from([b"", b"X: y\r\n", b"X: y\r\nZ: 1\r\n"]),
    st.integers(1, 30),
)
def test_what_is_right_passes(parts: list[bytes], more: bytes, trailer: bytes, step: int) -> None:
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(part), more, part) for part in parts)
    body += b"0\r\n" + trailer + b"\r\nwhat is behind the end"
    reader = chunks()
    for at in range(0, len(body), step):
        reader.feed(body[at : at + step])
    assert reader._take == reader._nothing


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"FFFFFFFFFFFFFFFF\r\n", "bad_protocol"),
        (b"8000000000000000\r\n", "bad_protocol"),
        (b"00000000000000000\r\n", "bad_protocol"),
        (b"7FFFFFFFFFFFFFFF\r\n", "too_large"),
        (b"3E9\r\n", "too_large"),
        (b"-1\r\n", "bad_protocol"),
        (b"+1\r\n", "bad_protocol"),
        (b" 1\r\n", "bad_protocol"),
        (b"0x10\r\n", "bad_protocol"),
        (b"1_0\r\n", "bad_protocol"),
        (b"\r\n", "bad_protocol"),
        (b";x\r\n", "bad_protocol"),
        (b"3\r\nabc0\r\n\r\n", "bad_protocol"),
        (b"3\r\nabcd\r\n", "bad_protocol"),
        (b"3\r\nab\r\n\r\n\r\n", "bad_protocol"),
        (b"3;" + b"x" * 5000, "bad_protocol"),
        (b"0\r\n" + b"X: y\r\n" * 4, "bad_protocol"),
        (b"0\r\nX: " + b"y" * 5000, "bad_protocol"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_P19_what_is_wrong_is_refused(body: bytes, code: str, step: int) -> None:
    reader = chunks()

    def feed() -> None:
        for at in range(0, len(body), step):
            reader.feed(body[at : at + step])

    with pytest.raises(Permanent) as caught:
        feed()
    assert caught.value.code == code


HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A connection that is only closed."""

    closed = False

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads it."""


@pytest.mark.parametrize("hint", [b"", HINT, HINT * 2])
@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 20, 50, 1000])
async def test_P19_chunks_are_watched_however_the_head_is_cut(hint: bytes, step: int) -> None:
    async def read(body: bytes) -> bytes:
        handler = Handler(FetchSettings(), loop=asyncio.get_running_loop())
        handler.connection_made(Wire())
        handler.ask(b"", asyncio.get_running_loop().time() + 60)
        data = hint + HEAD + body
        for at in range(0, len(data), step):
            handler.data_received(data[at : at + step])
        while True:
            message, payload = await handler.read()
            if message.code == 200:
                return await payload.read()

    assert await read(b"3\r\nabc\r\n0\r\n\r\n") == b"abc"
    with pytest.raises(Permanent, match="impossible size"):
        await read(b"3\r\nabc\r\nFFFFFFFFFFFFFFFF\r\nabc")
