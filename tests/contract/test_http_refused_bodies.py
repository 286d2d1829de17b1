"""Bodies of refused requests: little of them is read, and the client gets its answer."""

import asyncio
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import anthropic
import httpx
import httpx2
import openai
import pytest
import pytest_asyncio
import requests

from caseworker.features.access import authentication
from caseworker.platform.http import protocol
from caseworker.platform.http.protocol import MAX_DROPPED_BYTES, BoundedProtocol
from tests.support.api import Api
from tests.support.asgi_calls import routes_of
from tests.support.limits import api_limits
from tests.support.served import Served, served
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

KIB, MIB = 1024, 1024 * 1024
SIZES = (0, 1, 63 * KIB, 64 * KIB, 65 * KIB, 256 * KIB, MIB, 20 * MIB)
MOST_BEFORE = 64 * KIB
FORGED = {
    "API key": f"cwk_{'0' * 16}_{'0' * 64}",
    "key of a run": f"cwr_{'0' * 64}",
    "key of a step": f"cwr_ZGVmYXVsdApydW4=.{'0' * 96}",
}
PIECE = b"x" * (64 * KIB)
PUBLIC = ("/healthz", "/readyz", "/docs", "/openapi.json", "/ui", "/metrics")


@dataclass
class Received:
    """Bytes of bodies that the server has read."""

    before: list[int] = field(default_factory=list)
    """Bytes of each request, its head included, until the response."""
    total: int = 0


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Received:
    """Count what all connections receive."""
    counts, of_requests = Received(), dict[BoundedProtocol, int]()
    data_received, complete = BoundedProtocol.data_received, BoundedProtocol.on_response_complete

    def counted(connection: BoundedProtocol, data: bytes) -> None:
        counts.total += len(data)
        of_requests[connection] = of_requests.get(connection, 0) + len(data)
        data_received(connection, data)

    def answered(connection: BoundedProtocol) -> None:
        counts.before.append(of_requests.pop(connection))
        complete(connection)

    monkeypatch.setattr(BoundedProtocol, "data_received", counted)
    monkeypatch.setattr(BoundedProtocol, "on_response_complete", answered)
    return counts


@pytest_asyncio.fixture(loop_scope="module")
async def server(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """Run a closed server that answers refused requests without a delay."""
    monkeypatch.setattr(authentication, "MAX_REFUSAL_SECONDS", 0.0)
    async with served(api.app(bootstrap_key=OPERATOR_KEY)) as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How a client sends a body."""

    version: str = "1.1"
    headers: str = ""
    is_chunked: bool = False
    piece_bytes: int = len(PIECE)
    waits: bool = False
    """Whether the client sends no body before the server has asked for it."""

    def head(self, path: str, key: str, size: int, method: str = "POST") -> bytes:
        """Return the head of a request."""
        length = "Transfer-Encoding: chunked" if self.is_chunked else f"Content-Length: {size}"
        return (
            f"{method} {path} HTTP/{self.version}\r\nHost: localhost\r\n{length}\r\n{self.headers}"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n\r\n"
        ).encode()

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the body."""
        for start in range(0, size, self.piece_bytes):
            piece = PIECE[: min(self.piece_bytes, size - start)]
            yield b"%x\r\n%s\r\n" % (len(piece), piece) if self.is_chunked else piece
        if self.is_chunked:
            yield b"0\r\n\r\n"


TRANSFERS = {
    "with a length": Transfer(),
    "chunked": Transfer(is_chunked=True),
    "in crumbs": Transfer(piece_bytes=1_000),
    "HTTP/1.0": Transfer(version="1.0"),
    "then closed": Transfer(headers="Connection: close\r\n"),
    "compressed": Transfer(headers="Content-Encoding: gzip\r\n"),
    "if asked for": Transfer(headers="Expect: 100-continue\r\n", waits=True),
    "asking and not waiting": Transfer(headers="Expect: 100-continue\r\n"),
}


async def refused(server: Served, head: bytes, pieces: Iterator[bytes]) -> bytes:
    """Send a body until the answer arrives; return the answer, the first bytes of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head)

    async def send() -> None:
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(150):
            return await reader.readuntil(b"\r\n\r\n")
    finally:
        sending.cancel()
        writer.transport.abort()


async def require_bounded(server: Served, received: Received) -> None:
    """Require that little was read, before the answers and afterwards, and that none is held."""
    assert max(received.before) <= MOST_BEFORE
    assert received.total <= len(received.before) * (MOST_BEFORE + MAX_DROPPED_BYTES)
    await eventually(server.is_idle)
    assert not server.bodies._in_use


@pytest.mark.parametrize("transfer", TRANSFERS.values(), ids=TRANSFERS)
async def test_little_of_a_body_is_read_before_and_after_its_refusal(
    server: Served, received: Received, transfer: Transfer
) -> None:
    """The answer is sent first, however long the body is and however it is sent."""
    for number, size in enumerate(SIZES):
        for path in ("/runs", "/gateway/openai/v1/responses", "/mcp"):
            key = list(FORGED.values())[number % len(FORGED)]
            pieces = iter(()) if transfer.waits else transfer.pieces(size)
            answer = await refused(server, transfer.head(path, key, size), pieces)
            assert answer.startswith(b"HTTP/1.1 401"), (path, size, answer)

    assert len(received.before) == 3 * len(SIZES)
    await require_bounded(server, received)


@pytest.mark.proof
@pytest.mark.parametrize("transfer", TRANSFERS.values(), ids=TRANSFERS)
@pytest.mark.parametrize("kind", FORGED)
async def test_every_route_with_a_body_of_every_size_refuses_a_forged_key(
    server: Served, received: Received, api: Api, transfer: Transfer, kind: str
) -> None:
    """Also routes that expect no body."""
    count = 0
    for method, path in dict.fromkeys(routes_of(api.app(), "x")):
        if path.startswith(PUBLIC) or method == "HEAD":
            continue
        for size in SIZES:
            head = transfer.head(path, FORGED[kind], size, method)
            pieces = iter(()) if transfer.waits else transfer.pieces(size)
            answer = await refused(server, head, pieces)
            assert answer.startswith(b"HTTP/1.1 401"), (method, path, size, answer)
            count += 1

    assert count == len(received.before) > 80 * len(SIZES)
    await require_bounded(server, received)


@pytest.mark.parametrize(
    "transfer", [TRANSFERS["with a length"], TRANSFERS["asking and not waiting"]], ids=str
)
async def test_nothing_more_is_read_while_a_refusal_waits_for_its_turn(
    server: Served, received: Received, monkeypatch: pytest.MonkeyPatch, transfer: Transfer
) -> None:
    """Guesses are answered at a limited rate; the delay does not request the body."""
    monkeypatch.setattr(authentication, "MAX_REFUSAL_SECONDS", 1.5)
    monkeypatch.setattr(authentication, "REFUSALS_PER_SECOND", 0.5)
    head = transfer.head("/gateway/openai/v1/responses", FORGED["key of a run"], 20 * MIB)
    for _ in range(2):
        answer = await refused(server, head, transfer.pieces(20 * MIB))
        assert answer.startswith(b"HTTP/1.1 401"), answer

    await require_bounded(server, received)


def by_urllib(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Send a request with the standard library; return the status."""
    request = urllib.request.Request(url, body, headers)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=150) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def by_requests(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Send a request with ``requests``; return the status."""
    with requests.Session() as session:
        session.trust_env = False
        return session.post(url, data=body, headers=headers, timeout=150).status_code


def by_httpx(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Send a request with ``httpx``; return the status."""
    return httpx.post(url, content=body, headers=headers, timeout=150, trust_env=False).status_code


def by_httpx2(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Send a request with ``httpx2`` and asyncio; return the status."""

    async def send() -> int:
        async with httpx2.AsyncClient(timeout=150, trust_env=False) as client:
            return (await client.post(url, content=body, headers=headers)).status_code

    return asyncio.run(send())


def by_curl(url: str, body: bytes, headers: dict[str, str], *options: str) -> int:
    """Send a request with curl, which asks before it sends a long body; return the status."""
    command = ["curl", "-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", *options]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    command += ["--data-binary", "@-", url]
    done = subprocess.run(command, input=body, capture_output=True, timeout=150, check=True)
    return int(done.stdout)


def by_openai(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Make a call with the client library of OpenAI; return the status of its error."""
    base, key = url.removesuffix("/chat/completions"), headers["Authorization"].split()[1]
    with (
        httpx2.Client(trust_env=False, timeout=150) as transport,
        openai.OpenAI(base_url=base, api_key=key, http_client=transport) as client,
        pytest.raises(openai.AuthenticationError) as error,
    ):
        client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": body.decode()}]
        )
    return error.value.status_code


def by_anthropic(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Make a call with the client library of Anthropic; return the status of its error."""
    base, key = url.removesuffix("/v1/messages"), headers["Authorization"].split()[1]
    with (
        httpx2.Client(trust_env=False, timeout=150) as transport,
        anthropic.Anthropic(base_url=base, api_key=key, http_client=transport) as client,
        pytest.raises(anthropic.AuthenticationError) as error,
    ):
        client.messages.create(
            model="claude", max_tokens=9, messages=[{"role": "user", "content": body.decode()}]
        )
    return error.value.status_code


CLIENTS: dict[str, tuple[str, Callable[[str, bytes, dict[str, str]], int]]] = {
    "urllib": ("/runs", by_urllib),
    "requests": ("/runs", by_requests),
    "httpx": ("/mcp", by_httpx),
    "httpx2": ("/runs", by_httpx2),
    "curl": ("/gateway/openai/v1/responses", by_curl),
    "openai": ("/gateway/openai/v1/chat/completions", by_openai),
    "anthropic": ("/gateway/anthropic/v1/messages", by_anthropic),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_unmodified_client_that_sends_two_megabytes_sees_the_refusal(
    server: Served, received: Received, name: str
) -> None:
    """Most clients read the answer after they have sent the body; a reset would hide it."""
    path, send = CLIENTS[name]
    url = f"http://127.0.0.1:{server.port}{path}"
    for key in FORGED.values():
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        assert await asyncio.to_thread(send, url, b"x" * 2_000_000, headers) == 401
    await require_bounded(server, received)


@pytest.mark.parametrize("transfer", TRANSFERS.values(), ids=TRANSFERS)
async def test_a_client_that_reads_after_its_body_gets_the_whole_refusal(
    server: Served, transfer: Transfer
) -> None:
    """The connection ends after the document of the problem."""
    head = transfer.head("/runs", FORGED["API key"], 2_000_000)
    talk = await server.connect(head)
    if not transfer.waits:
        for piece in transfer.pieces(2_000_000):
            await talk.send(piece)
    answer = await talk.rest()

    assert answer.startswith(b"HTTP/1.1 401"), answer
    assert answer.endswith(b"}"), answer


async def test_a_connection_is_used_again_after_the_rest_of_a_refused_body(server: Served) -> None:
    """A client that sends a body within the limit keeps its connection."""
    transfer, size = Transfer(), 200 * KIB
    talk = await server.connect(transfer.head("/runs", FORGED["API key"], size))
    answers = []
    for _ in range(2):
        for piece in transfer.pieces(size):
            await talk.send(piece)
        answers.append(await talk.answer())
        await talk.send(transfer.head("/runs", FORGED["API key"], size))

    assert all(answer.startswith(b"HTTP/1.1 401") for answer in answers)


async def test_dropped_bytes_stay_within_the_share_of_unknown_callers(
    api: Api, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it, connections end without the rest of their bodies; tenants keep their memory."""
    monkeypatch.setattr(authentication, "MAX_REFUSAL_SECONDS", 0.0)
    limits = api_limits(max_bodies_bytes=16 * MIB)
    head = Transfer().head("/runs", FORGED["API key"], 20 * MIB)
    body = b'{"input": "2+2?"}' + b" " * 200_000
    own = Transfer().head("/runs", OPERATOR_KEY, len(body))
    async with served(api.app(bootstrap_key=OPERATOR_KEY, limits=limits)) as server:
        talks = [await server.connect(head) for _ in range(40)]
        sending = [asyncio.create_task(talk.send(PIECE * 64)) for talk in talks]
        answers = [await talk.answer() for talk in talks]
        accepted = await (await server.connect(own + body)).answer()
        await asyncio.wait(sending)
        await server.hang_up()
        await eventually(server.is_idle)

    assert all(answer.startswith(b"HTTP/1.1 401") for answer in answers)
    assert accepted.startswith(b"HTTP/1.1 202"), accepted
    # Each connection notices the full share only after its next read.
    assert received.total <= MIB + len(talks) * (MOST_BEFORE + protocol.READ_BYTES) + len(body) * 2
