"""Forward requests to the process that owns a run, on this or another host.

A forwarded request is signed with a secret of the receiving process, which the processes of an
installation read in its heartbeat row. It makes one hop: the receiver never forwards it again, and
checks the credential of the client like in any other request.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from cachetools import LRUCache
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caseworker.platform.http.problems import FORGED, ProblemError, problem_response

T = TypeVar("T")

FORWARDED: Final = "caseworker.forwarded"
"""ASGI scope key that is set for a request that another process has forwarded."""
MISDIRECTED: Final = "caseworker.misdirected"
"""ASGI scope key that is set if the process that forwarded the request must try another one."""
HEADER: Final = "x-caseworker-forwarded"
"""Signature of a forwarded request. In a response, it marks the request as misdirected."""
VALID_SECONDS: Final = 60
"""Seconds for which a signature is valid, so the maximum difference between the hosts' clocks."""
MAX_CLIENTS: Final = 64
"""Number of processes to which connections are kept."""
CONNECT_SECONDS: Final = 1.0
"""Time to connect to another process, in seconds."""

_TIME_DIGITS: Final = 12
"""Maximum number of digits of the time in a signature, in seconds."""
_OF_A_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", HEADER}
)
"""Headers that concern one connection only."""
_SET_AGAIN: Final = frozenset({"content-length"})
"""Headers of a request that its forwarding sets again."""
_OF_THE_SERVER: Final = frozenset({"date"})
"""Headers of a response that each server adds."""


class UnreachableError(Exception):
    """The other process cannot be reached, so it has not received the request."""


class BrokenOffError(Exception):
    """The other process closed the connection before it answered."""


class MisdirectedError(Exception):
    """The other process has not handled the request, because another one must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a process receives forwarded requests, and the secret that signs them."""

    host: str
    """Name of the host, on which other processes can use the Unix socket."""
    socket: str
    """Path of the Unix socket."""
    url: str | None
    """URL for processes on other hosts; None if they cannot reach this process."""
    secret: str = field(repr=False, default_factory=lambda: secrets.token_hex(32))

    def is_near(self) -> bool:
        """Return whether the Unix socket can be used."""
        return self.host == socket.gethostname() and Path(self.socket).exists()

    def to_json(self) -> dict[str, Any]:
        """Return the form in which the address is stored."""
        return asdict(self)


def own_address(url: str | None) -> Address:
    """Return a new address for this process, with a socket that only its user can reach.

    Raises:
        PermissionError: another user owns the folder of the socket or may read it.
    """
    folder = Path(tempfile.gettempdir()) / f"caseworker-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to this user and be closed to other users.")
    for socket_file in folder.glob("*.sock"):  # of processes that were killed
        if not _is_running(int(socket_file.name.partition("-")[0])):
            socket_file.unlink(missing_ok=True)
    name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
    return Address(host=socket.gethostname(), socket=str(folder / name), url=url)


def _is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


class ForwardedRequests:
    """Accepts requests that other processes have forwarded to this one, and rejects forged ones."""

    def __init__(self, app: ASGIApp, *, secret: str | None) -> None:
        """Check signatures made with ``secret``, the secret of this process; None accepts none."""
        self._app = app
        self._secret = secret or secrets.token_hex()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that has the header."""
        addresses = [value.decode("latin-1") for name, value in scope["headers"] if name == _NAME]
        at, client, digest = [*addresses[0].split(" "), "", ""][:3]
        signed = _signed(self._secret, scope["method"], _path_of(scope), digest, client, at)
        is_valid = len(addresses) == 1 and hmac.compare_digest(
            addresses[0].encode(), signed.encode()
        )
        is_time = at.isdecimal() and len(at) <= _TIME_DIGITS
        if not (is_valid and is_time and abs(time.time() - int(at)) <= VALID_SECONDS):
            refusal = problem_response(scope, ProblemError(FORGED))
            await refusal(scope, receive, send)
            return
        scope[FORWARDED] = True
        scope["client"] = None if client == "-" else (client, 0)

        async def sent_back(message: Message) -> None:
            if message["type"] == "http.response.start" and scope.get(MISDIRECTED):
                message["headers"] = [*message["headers"], (_NAME, b"misdirected")]
            await send(message)

        await self._app(scope, _checked(receive, digest), sent_back)


def only_forwarded(app: ASGIApp) -> ASGIApp:
    """Return ``app``, which then rejects a request that no process has forwarded as forged."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if all(name != _NAME for name, _ in scope["headers"]):
            scope["headers"] = [*scope["headers"], (_NAME, b"")]
        await app(scope, receive, send)

    return answer


def _checked(receive: Receive, digest: str) -> Receive:
    """Return ``receive`` with a check of the whole body."""
    hasher = hashlib.sha256()

    async def received() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            hasher.update(message.get("body", b""))
            if not message.get("more_body") and hasher.hexdigest() != digest:
                raise ProblemError(FORGED)
        return message

    return received


class Forwarder:
    """Sends requests to other processes."""

    def __init__(self) -> None:
        self._clients: LRUCache[str, httpx.AsyncClient] = LRUCache(MAX_CLIENTS)

    async def forward(self, request: Request, content: bytes, to: Address) -> Response:
        """Send a request with the body ``content`` to another process; return its response.

        Raises:
            UnreachableError: no connection could be established.
            BrokenOffError: the connection was closed before the response.
            MisdirectedError: another process must handle the request.
            ClientDisconnect: the client of the request is gone.
        """
        client, base_url = self._client_for(to)
        path = _path_of(request.scope)
        outgoing = client.build_request(request.method, base_url + path, content=content)
        outgoing.headers = _signed_headers(request, path, content, to.secret)
        sending = asyncio.ensure_future(client.send(outgoing, stream=True))
        try:
            reply = await while_connected(request, sending)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise UnreachableError from None
        except httpx.TransportError:
            raise BrokenOffError from None
        finally:
            sending.cancel()
        if HEADER in reply.headers:
            await reply.aclose()
            raise MisdirectedError
        response = StreamingResponse(_parts(reply), reply.status_code)
        response.raw_headers = _passed(reply.headers.raw, _OF_THE_SERVER)
        return response

    def _client_for(self, to: Address) -> tuple[httpx.AsyncClient, str]:
        """Return the client that reaches a process, and its base URL."""
        is_near = to.is_near()
        place = to.socket if is_near else to.url
        if place is None:
            raise UnreachableError
        client = self._clients.get(place)
        if client is None:
            transport = httpx.AsyncHTTPTransport(
                uds=place if is_near else None,
                verify=not is_near,  # loading the certificates takes 0.2 s
                limits=httpx.Limits(max_connections=None),
                socket_options=None if is_near else _KEEP_ALIVE,
            )
            timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
            client = httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)
            self._clients[place] = client
        return client, "http://caseworker" if is_near else place.rstrip("/")

    async def aclose(self) -> None:
        """Close all connections."""
        for client in list(self._clients.values()):
            await client.aclose()


async def while_connected(request: Request, work: asyncio.Future[T]) -> T:
    """Wait for ``work`` and return its result.

    Raises:
        ClientDisconnect: the client is gone; ``work`` was not cancelled.
    """
    disconnect = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        disconnect.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _parts(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in reply.aiter_raw():
            yield part
    finally:
        await reply.aclose()


def _signed_headers(request: Request, path: str, content: bytes, secret: str) -> httpx.Headers:
    """Return the headers with which a request is forwarded."""
    digest = hashlib.sha256(content).hexdigest()
    host, now = "-" if request.client is None else request.client.host, str(int(time.time()))
    return httpx.Headers(
        [
            *_passed(request.headers.raw, _SET_AGAIN),
            (b"content-length", str(len(content)).encode()),
            (_NAME, _signed(secret, request.method, path, digest, host, now).encode()),
        ]
    )


def _signed(secret: str, method: str, path: str, digest: str, client: str, at: str) -> str:
    """Return the value of the header for a request."""
    text = "\n".join((method, path, digest, client, at)).encode()
    mac = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    return f"{at} {client} {digest} {mac}"


def _path_of(scope: Mapping[str, Any]) -> str:
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _passed(
    headers: Iterable[tuple[bytes, bytes]], but: frozenset[str]
) -> list[tuple[bytes, bytes]]:
    """Return the headers to pass on, without those of the connection and without ``but``."""
    dropped = _OF_A_CONNECTION | but
    return [each for each in headers if each[0].decode("latin-1").lower() not in dropped]


def mark_misdirected(request: Request) -> None:
    """Note that another process must handle a request, which the process that forwarded it tries.

    The mark has no effect on a request that comes from a client.
    """
    request.scope[MISDIRECTED] = True


_NAME: Final = HEADER.encode()
_KEEP_ALIVE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), count)
        for name, count in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)  # not on every system
    ),
]
"""Socket options with which the connection to a host that has crashed ends after 11 seconds."""
