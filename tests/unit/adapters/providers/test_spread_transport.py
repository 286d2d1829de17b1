"""How calls are spread over pools, and how long a reply may be."""

import gzip
from collections.abc import AsyncIterator

import httpx2
import pytest

from app.adapters.providers.pydantic_ai.transport import (
    MAX_COMPRESSED_BYTES,
    MAX_REPLY_BYTES,
    ReplyRefusedError,
    SpreadTransport,
)

REQUEST = httpx2.Request("POST", "http://provider.test/v1/chat/completions")


class _Wire(httpx2.AsyncByteStream):
    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


class _Pool(httpx2.AsyncBaseTransport):
    """Answers every request with the same parts, or fails."""

    def __init__(
        self, parts: list[bytes], headers: dict[str, str], failure: Exception | None
    ) -> None:
        self._parts, self._headers, self._failure = parts, headers, failure
        self.closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._failure is not None:
            raise self._failure
        return httpx2.Response(200, headers=self._headers, stream=_Wire(self._parts))

    async def aclose(self) -> None:
        self.closed = True


class _World:
    def __init__(
        self,
        *parts: bytes,
        headers: dict[str, str] | None = None,
        failure: Exception | None = None,
    ) -> None:
        self.opened: list[_Pool] = []
        self._parts, self._headers, self._failure = list(parts), headers or {}, failure
        self.transport = SpreadTransport(self._open, calls_per_pool=2)

    def _open(self) -> _Pool:
        self.opened.append(_Pool(self._parts, self._headers, self._failure))
        return self.opened[-1]


async def test_one_call_after_the_other_needs_one_pool() -> None:
    """A quiet service reuses its connections."""
    world = _World(b"{}")

    for _ in range(5):
        response = await world.transport.handle_async_request(REQUEST)
        assert await response.aread() == b"{}"
        await response.aclose()

    assert len(world.opened) == 1


async def test_calls_beyond_a_pool_open_another_and_close_it_when_done() -> None:
    """Nothing waits, and nothing stays open but the first pool."""
    world = _World(b"{}")
    responses = [await world.transport.handle_async_request(REQUEST) for _ in range(5)]

    assert len(world.opened) == 3
    for response in responses:
        await response.aclose()
        await response.aclose()  # closing twice frees one place
    assert [pool.closed for pool in world.opened] == [False, True, True]


async def test_a_call_that_fails_gives_its_place_back() -> None:
    """Also a connection that was never made."""
    world = _World(failure=httpx2.ConnectError("no"))

    for _ in range(5):
        with pytest.raises(httpx2.ConnectError):
            await world.transport.handle_async_request(REQUEST)

    assert len(world.opened) == 1


async def test_an_endless_reply_is_refused() -> None:
    """It is not read to its end, whatever the end may be."""
    half = b"x" * (MAX_REPLY_BYTES // 2)
    fits = await _World(half, half).transport.handle_async_request(REQUEST)
    endless = await _World(half, half, b"x").transport.handle_async_request(REQUEST)

    assert len(await fits.aread()) == MAX_REPLY_BYTES
    with pytest.raises(ReplyRefusedError):
        await endless.aread()


@pytest.mark.parametrize(
    ("encoding", "length", "read"),
    [
        ("gzip", MAX_COMPRESSED_BYTES, True),
        ("gzip", MAX_COMPRESSED_BYTES + 1, False),
        ("gzip, gzip", 10, False),
        ("gzip, deflate", 10, False),
        ("br", 10, False),
        ("identity", MAX_COMPRESSED_BYTES + 1, True),
    ],
)
async def test_a_compressed_reply_is_read_only_while_it_cannot_explode(
    encoding: str, length: int, read: bool
) -> None:
    """We asked for none; a short one of a known kind is let pass."""
    world = _World(b"x" * length, headers={"content-encoding": encoding})
    response = await world.transport.handle_async_request(REQUEST)
    assert isinstance(response.stream, httpx2.AsyncByteStream)

    if read:
        assert sum([len(part) async for part in response.stream]) == length
    else:
        with pytest.raises(ReplyRefusedError):
            async for _ in response.stream:
                pass


async def test_a_short_compressed_reply_is_unpacked() -> None:
    """The reader gets what the provider meant."""
    world = _World(gzip.compress(b"hello"), headers={"content-encoding": "gzip"})

    response = await world.transport.handle_async_request(REQUEST)

    assert await response.aread() == b"hello"
