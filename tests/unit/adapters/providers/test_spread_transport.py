"""How calls are spread over pools, and how long a reply may be."""

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import httpx2
import pytest

from app.adapters.providers.pydantic_ai.transport import (
    ReplyRefusedError,
    SpreadTransport,
)

LIMIT = 200_000
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
        self.transport = SpreadTransport(self._open, LIMIT, calls_per_pool=2)

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
    half = b"x" * (LIMIT // 2)
    fits = await _World(half, half).transport.handle_async_request(REQUEST)
    endless = await _World(half, half, b"x").transport.handle_async_request(REQUEST)

    assert len(await fits.aread()) == LIMIT
    with pytest.raises(ReplyRefusedError):
        await endless.aread()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x"])
async def test_a_reply_is_counted_as_it_is_unfolded(encoding: str) -> None:
    """A few bytes may hold very many; no more is unfolded than may be read."""
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    headers = {"content-encoding": "identity, deflate" if encoding == "x" else encoding}

    fits = await _World(pack(b"x" * LIMIT), headers=headers).transport.handle_async_request(REQUEST)
    bomb = _World(pack(b"x" * 60_000_000), headers=headers)
    response = await bomb.transport.handle_async_request(REQUEST)

    assert len(await fits.aread()) == LIMIT
    tracemalloc.start()
    with pytest.raises(ReplyRefusedError):
        await response.aread()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * LIMIT


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip, gzip", gzip.compress(gzip.compress(b"x", mtime=0), mtime=0)),
        ("br", b"x"),
        ("gzip", b"no gzip at all"),
    ],
)
async def test_a_reply_that_is_packed_in_another_way_is_refused(encoding: str, body: bytes) -> None:
    """We asked for none; what cannot be measured on the way is not read."""
    world = _World(body, headers={"content-encoding": encoding})
    response = await world.transport.handle_async_request(REQUEST)

    with pytest.raises(ReplyRefusedError):
        await response.aread()


async def test_a_short_compressed_reply_is_unpacked() -> None:
    """The reader gets what the provider meant."""
    world = _World(gzip.compress(b"hello"), headers={"content-encoding": "gzip"})

    response = await world.transport.handle_async_request(REQUEST)

    assert await response.aread() == b"hello"
