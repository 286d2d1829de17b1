"""Size limits of replies, and reuse of connections."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from caseworker.models.ports import Message, ModelError, ModelRequest
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.endpoint import EndpointProvider
from caseworker.models.wires.openai import openai_provider
from caseworker.models.wires.transport import ModelTransport, ReplyRefusedError, WireReply

LIMIT = 200_000
QUESTION = ModelRequest(messages=(Message(role="user", content="?"),))


class _Server:
    """Answers every request with the same bytes; counts connections and keeps the requests."""

    def __init__(self, body: bytes, encoding: str, kind: str) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\ncontent-encoding: {encoding}"
        self._reply = f"{head}\r\ncontent-type: {kind}\r\n\r\n".encode() + body
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self._reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def _serving(
    body: bytes = b"{}", encoding: str = "", kind: str = "application/json"
) -> AsyncIterator[_Server]:
    answers = _Server(body, encoding, kind)
    server = await asyncio.start_server(answers.serve, "127.0.0.1", 0)
    answers.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield answers
    finally:
        server.close()


@pytest.fixture
async def transport() -> AsyncIterator[ModelTransport]:
    """Yield a transport, and close it afterwards."""
    transport = ModelTransport(LIMIT)
    yield transport
    await transport.aclose()


async def _opened(transport: ModelTransport, url: str, content: bytes = b"") -> WireReply:
    return await transport.post(url, {}, content, lambda: None)


async def _read(transport: ModelTransport, url: str) -> bytes:
    reply = await _opened(transport, url)
    try:
        return b"".join([part async for part in reply.parts()])
    finally:
        reply.close()


async def test_one_call_after_the_other_needs_one_connection(transport: ModelTransport) -> None:
    """Sequential calls reuse the connection."""
    async with _serving() as server:
        for _ in range(5):
            assert await _read(transport, server.url) == b"{}"

    assert server.connections == 1


async def test_a_reply_that_is_not_read_leaves_no_connection(transport: ModelTransport) -> None:
    """The unread rest of the reply would be read as the next reply."""
    async with _serving(b"x" * LIMIT) as server:
        for _ in range(2):
            (await _opened(transport, server.url)).close()

    assert server.connections == 2


async def test_an_endless_reply_is_refused(transport: ModelTransport) -> None:
    """Reading an endless reply stops at the limit."""
    async with _serving(b"x" * LIMIT) as fits, _serving(b"x" * (LIMIT + 1)) as endless:
        assert len(await _read(transport, fits.url)) == LIMIT
        with pytest.raises(ReplyRefusedError):
            await _read(transport, endless.url)


async def test_what_is_repeated_around_each_piece_of_a_stream_is_not_its_length(
    transport: ModelTransport,
) -> None:
    """The framing of a stream counts less, but neither large nor very many pieces are accepted."""
    event = b"data: %s\n\n" % (b"x" * 500)
    most = 16 * LIMIT // len(event)
    many, long = event * (most - 1), b"data: %s\n\n" % (b"x" * (2 * LIMIT))
    async with _serving(many, kind="text/event-stream") as server:
        assert len(await _read(transport, server.url)) == len(many)
    for refused in (event * (most + 1), long):
        async with _serving(refused, kind="text/event-stream") as server:
            with pytest.raises(ReplyRefusedError):
                await _read(transport, server.url)


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_a_stop_delivers_nothing_more_of_a_request(transport: ModelTransport) -> None:
    """A cancelled upload never reaches its end."""
    arrived = bytearray()
    began, goes_on, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.extend(await reader.read(1000))
        began.set()
        await goes_on.wait()
        with suppress(ConnectionError):
            while more := await reader.read(1_000_000):
                arrived.extend(more)
        writer.close()
        gone.set()

    body = b"x" * 30_000_000
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        sending = asyncio.create_task(_opened(transport, url, body))
        await began.wait()
        sending.cancel()
        await asyncio.wait({sending})
        goes_on.set()
        await gone.wait()
    assert 0 < len(arrived) < len(body)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity, deflate"])
async def test_a_reply_is_counted_as_it_is_unfolded(
    transport: ModelTransport, encoding: str
) -> None:
    """A small compressed reply may expand to a large one; decompression stops at the limit."""
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    packed, bomb = pack(b"x" * LIMIT), pack(b"x" * 60_000_000)

    async with _serving(packed, encoding) as fits, _serving(bomb, encoding) as explodes:
        assert len(await _read(transport, fits.url)) == LIMIT
        tracemalloc.start()
        with pytest.raises(ReplyRefusedError):
            await _read(transport, explodes.url)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 4 * LIMIT


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip, gzip", gzip.compress(gzip.compress(b"x", mtime=0), mtime=0)),
        ("br", b"x"),
        ("gzip", b"no gzip at all"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"x" * LIMIT),
        ("gzip", gzip.compress(b"{}", mtime=0) * 2),
    ],
)
async def test_a_reply_that_is_packed_in_another_way_is_refused(
    transport: ModelTransport, encoding: str, body: bytes
) -> None:
    """No other encoding was requested, and its size could not be limited while reading."""
    async with _serving(body, encoding) as server:
        with pytest.raises(ReplyRefusedError):
            await _read(transport, server.url)


async def test_a_proxy_of_the_environment_is_used(
    transport: ModelTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy gets the full URL; excluded hosts are called directly."""
    async with _serving() as proxy, _serving() as excepted:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:secret@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        await _read(transport, "http://behind-a-proxy.test/v1")
        await _read(transport, excepted.url)

    (request,) = proxy.requests
    assert request.startswith(b"POST http://behind-a-proxy.test/v1 HTTP/1.1\r\n")
    assert b"proxy-authorization: basic dxnlcjpzzwnyzxq=" in request.lower()
    assert len(excepted.requests) == 1


async def test_a_proxy_may_be_named_by_its_address_and_one_port_be_excepted(
    transport: ModelTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables are read as other programs read them."""
    async with _serving() as proxy, _serving() as excepted:
        monkeypatch.setenv("http_proxy", proxy.url.split("/")[2])
        monkeypatch.setenv("no_proxy", excepted.url.split("/")[2])
        await _read(transport, "http://behind-an-address.test/v1")
        await _read(transport, excepted.url)

    assert [len(each.requests) for each in (proxy, excepted)] == [1, 1]


@pytest.mark.parametrize("build", [openai_provider, anthropic_provider])
async def test_nothing_of_the_environment_goes_to_another_server(
    build: Callable[..., EndpointProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environment variables for the vendors' own servers are not sent to other servers."""
    for name in ("API_KEY", "AUTH_TOKEN", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", "canary-7c1e")
        monkeypatch.setenv(f"ANTHROPIC_{name}", "canary-7c1e")
    for maker in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{maker}_CUSTOM_HEADERS", "x-canary: canary-7c1e")
    async with _serving() as server:
        provider = build(base_url=server.url, api_key="own")
        with pytest.raises(ModelError):  # {} is no reply
            await provider.complete("m", QUESTION)
        await provider.aclose()

    (request,) = server.requests
    assert b"own" in request
    assert b"canary" not in request


async def test_a_proxy_that_speaks_no_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, and the request is not retried."""
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    provider = openai_provider(base_url="http://behind-socks.test/v1")

    with pytest.raises(ModelError, match="HTTP_PROXY") as refused:
        await provider.complete("m", QUESTION)

    await provider.aclose()
    assert not refused.value.retryable


async def test_a_request_is_not_kept_while_its_reply_is_awaited(
    transport: ModelTransport,
) -> None:
    """A conversation may be long, and its reply may take minutes."""
    arrived = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = LIMIT
        while left > 0:
            left -= len(await reader.read(10_000))
        arrived.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    provider = openai_provider(base_url=url, api_key="none", wire=transport)
    long = ModelRequest(messages=(Message(role="user", content="x" * LIMIT),))
    tracemalloc.start()
    try:
        asking = asyncio.create_task(provider.complete("m", long))
        await arrived.wait()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        asking.cancel()
        await asyncio.wait({asking})
        server.close()

    assert held < LIMIT / 2
