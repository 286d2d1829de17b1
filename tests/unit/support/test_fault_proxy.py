"""The fault proxy: what it forwards, and each way in which it does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy, Upstream


class _Ledger:
    """A line server that records what it was told and answers each line with ``done <line>``."""

    def __init__(self) -> None:
        self.heard = b""
        self.address: Upstream = ("", 0)
        self._more = asyncio.Event()

    @property
    def lines(self) -> list[bytes]:
        return self.heard.splitlines(keepends=True)

    async def hears(self, ending: bytes) -> None:
        """Wait until the last thing it was told is this."""
        while not self.heard.endswith(ending):
            self._more.clear()
            await self._more.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unfinished = b""
        try:
            while data := await reader.read(4096):
                self.heard += data
                self._more.set()
                *lines, unfinished = (unfinished + data).split(b"\n")
                writer.write(b"".join(b"done " + line + b"\n" for line in lines))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def _ledger(socket: Path | None = None) -> AsyncIterator[_Ledger]:
    ledger = _Ledger()
    if socket is None:
        server = await asyncio.start_server(ledger.serve, "127.0.0.1", 0)
        ledger.address = server.sockets[0].getsockname()
    else:
        server = await asyncio.start_unix_server(ledger.serve, socket)
        ledger.address = socket
    try:
        yield ledger
    finally:
        server.close()


@asynccontextmanager
async def _client(proxy: FaultProxy) -> AsyncIterator["_Client"]:
    reader, writer = await asyncio.open_connection(*proxy.address)
    try:
        yield _Client(reader, writer)
    finally:
        writer.close()


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, line: bytes) -> bytes:
        """Send a line and return the answer; empty when the connection is gone."""
        self.writer.write(line + b"\n")
        try:
            return (await self.reader.readline()).strip()
        except ConnectionError:
            return b""


async def test_it_forwards_both_ways() -> None:
    """Without a fault it is a wire."""
    async with _ledger() as ledger, FaultProxy(ledger.address) as proxy, _client(proxy) as client:
        assert await client.ask(b"hello") == b"done hello"
        assert proxy.counts.accepted == 1


async def test_it_reaches_a_unix_socket(tmp_path: Path) -> None:
    """An upstream may be a path."""
    socket = tmp_path / "ledger.sock"
    async with (
        _ledger(socket) as ledger,
        FaultProxy(ledger.address) as proxy,
        _client(proxy) as client,
    ):
        assert await client.ask(b"hello") == b"done hello"


async def test_a_server_that_hangs_up_is_heard_to_the_last_byte() -> None:
    """The end of the stream comes after everything that was sent before it."""

    async def farewell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 3_000_000)
        writer.close()

    server = await asyncio.start_server(farewell, "127.0.0.1", 0)
    async with FaultProxy(server.sockets[0].getsockname()) as proxy, _client(proxy) as client:
        assert len(await client.reader.read(-1)) == 3_000_000
    server.close()


async def test_a_cut_ends_open_connections_and_no_others() -> None:
    """The old connection is gone, the next one works."""
    async with _ledger() as ledger, FaultProxy(ledger.address) as proxy:
        async with _client(proxy) as client:
            await client.ask(b"before")
            assert proxy.cut() == 1
            assert await client.ask(b"after") == b""
        async with _client(proxy) as client:
            assert await client.ask(b"again") == b"done again"

    assert ledger.lines == [b"before\n", b"again\n"]


async def test_refused_connections_never_reach_the_server() -> None:
    """The client is hung up on until refusing ends."""
    async with _ledger() as ledger, FaultProxy(ledger.address) as proxy:
        proxy.refuse()
        async with _client(proxy) as client:
            assert await client.ask(b"knock") == b""
        proxy.refuse(False)
        async with _client(proxy) as client:
            assert await client.ask(b"knock knock") == b"done knock knock"

        assert proxy.counts.refused == 1
    assert ledger.lines == [b"knock knock\n"]


async def test_silence_holds_everything_until_it_ends() -> None:
    """Nothing is lost and nothing arrives; afterwards the answer does."""
    async with _ledger() as ledger, FaultProxy(ledger.address) as proxy, _client(proxy) as client:
        await client.ask(b"warm")
        proxy.silence()
        asking = asyncio.create_task(client.ask(b"quiet"))
        _, pending = await asyncio.wait({asking}, timeout=0.05)

        assert pending
        assert ledger.lines == [b"warm\n"]
        proxy.resume()
        assert await asking == b"done quiet"


async def test_a_lost_answer_is_lost_after_the_deed() -> None:
    """The server has committed, the client is cut off and cannot know."""
    async with _ledger() as ledger, FaultProxy(ledger.address) as proxy, _client(proxy) as client:
        proxy.lose_answer(b"COMMIT", b"done COMMIT")

        assert await client.ask(b"INSERT") == b"done INSERT"
        assert await client.ask(b"COMMIT") == b""
        assert proxy.counts.answers_dropped == 1
    assert ledger.lines == [b"INSERT\n", b"COMMIT\n"]


async def test_a_pattern_is_found_across_two_chunks() -> None:
    """TCP may split a COMMIT anywhere."""
    async with _ledger() as ledger, FaultProxy(ledger.address) as proxy, _client(proxy) as client:
        proxy.lose_answer(b"COMMIT", b"done COMMIT")
        await client.ask(b"a")
        client.writer.write(b"COM")
        await ledger.hears(b"COM")

        assert await client.ask(b"MIT") == b""
    assert ledger.lines == [b"a\n", b"COMMIT\n"]


@pytest.mark.parametrize("allowed", [0, 1, 7, 13])
async def test_a_cut_at_a_byte_lets_exactly_that_many_pass(allowed: int) -> None:
    """The client gets the first bytes of the answers and then the end."""
    async with _ledger() as ledger, FaultProxy(ledger.address) as proxy, _client(proxy) as client:
        proxy.cut_next_after(allowed)
        client.writer.write(b"one\ntwo\n")

        try:
            got = await client.reader.read(-1)
        except ConnectionError:
            got = b""
        assert got == b"done one\ndone two\n"[:allowed]
        assert proxy.counts.cut == 1
