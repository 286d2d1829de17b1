"""Clients of the gateway that disconnect, join again, or get a failure, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect, Request

from caseworker.core.budget.stops import CancelledError, Stop
from caseworker.engine.call import CallFailedError
from caseworker.features.external.attempts import PendingReply
from caseworker.features.external.session import GatewayRequest, GatewaySession
from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.serve import relayed, shaped
from caseworker.models.relay import Head, Relay
from tests.unit.features.external.execution import executed

LINGER = 30.0
HEAD = Head(200, {"content-type": "text/event-stream"})
FIRST, LAST = b"data: first\n\n", b"data: [DONE]\n\n"
WHOLE = Head(200, {"content-type": "application/json"}, b'{"whole": 1}')
Reply = Callable[[Relay], None]


def whole(relay: Relay) -> None:
    relay.hold(WHOLE)


def streamed(relay: Relay) -> None:
    relay.hold(LAST)


def started(relay: Relay, reply: Reply) -> None:
    """Pass on what arrives before the end: the status and a part of a stream."""
    if reply is streamed:
        relay.begin(HEAD)
        relay.write(FIRST)


BOTH = pytest.mark.parametrize("reply", [whole, streamed])


@dataclass
class Client:
    """A client whose connection can be closed."""

    session: GatewaySession
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    body: bytes = b""
    status: int = 0

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    async def ask(self, *, is_retry: bool = False) -> None:
        """Send the request of the story, and receive the reply unless the connection is closed."""
        asked = cast("GatewayRequest", SimpleNamespace(digest=lambda _: "digest", body=None))
        flight = self.session.answer(asked, call_key=None, is_retry=is_retry)
        scope = {"type": "http", "method": "POST", "headers": [], "asgi": {"spec_version": "2.3"}}
        request = Request(scope, self.receive)
        try:
            reply = relayed(request, CHAT_COMPLETIONS, self.session, flight, linger_seconds=LINGER)
            response = await shaped(reply, CHAT_COMPLETIONS)
            await response(scope, self.receive, self.send)
        except ClientDisconnect:
            assert self.gone.is_set()

    async def ask_and_leave(self, after_seconds: float) -> None:
        """Close the connection ``after_seconds`` after the request."""
        asyncio.get_running_loop().call_later(after_seconds, self.gone.set)
        await self.ask()


def story(
    call: Callable[[Relay], Awaitable[None]], client: Callable[[GatewaySession], Awaitable[None]]
) -> list[float]:
    """Let clients talk to a run whose calls do the same; return the seconds at which they ended.

    A call that was interrupted counts with its time negated.
    """
    ends: list[float] = []

    async def made(call_request: GatewayRequest, entry: Any, reply: PendingReply) -> None:
        loop = asyncio.get_running_loop()
        try:
            await call(reply.relay)
        except asyncio.CancelledError:
            ends.append(-loop.time())
            raise
        ends.append(loop.time())

    async def talk(session: GatewaySession) -> None:
        session._call = made  # type: ignore[method-assign]
        await client(session)
        session.finish(None)

    executed(talk)
    return [round(each) for each in ends]


@BOTH
def test_a_call_ends_some_time_after_its_last_client_has_left(reply: Reply) -> None:
    """It continues so that its reply is recorded, but not for longer than the linger time."""

    async def call(relay: Relay) -> None:
        started(relay, reply)
        await asyncio.sleep(1000)

    async def client(session: GatewaySession) -> None:
        await Client(session).ask_and_leave(10)
        await asyncio.sleep(100)

    assert story(call, client) == [-(10 + LINGER)]


@BOTH
def test_an_equal_request_after_a_lost_connection_is_the_same_call(reply: Reply) -> None:
    """It gets the whole reply of the first call, although that outlasts the linger time."""

    async def call(relay: Relay) -> None:
        started(relay, reply)
        await asyncio.sleep(200)
        reply(relay)

    bodies: list[bytes] = []

    async def client(session: GatewaySession) -> None:
        for seconds in (10, 10):
            await Client(session).ask_and_leave(seconds)
        last = Client(session)
        await last.ask()
        bodies.append(last.body)

    assert story(call, client) == [200]
    assert bodies == [WHOLE.content if reply is whole else FIRST + LAST]


@BOTH
def test_a_client_that_leaves_does_not_end_the_call_of_another_one(reply: Reply) -> None:
    """A retry joined the call while both connections were open."""

    async def call(relay: Relay) -> None:
        started(relay, reply)
        await asyncio.sleep(200)
        reply(relay)

    bodies: list[bytes] = []

    async def client(session: GatewaySession) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Client(session).ask_and_leave(10))
            await asyncio.sleep(1)
            stays = Client(session)
            await stays.ask(is_retry=True)
        bodies.append(stays.body)

    assert story(call, client) == [200]
    assert bodies == [WHOLE.content if reply is whole else FIRST + LAST]


@BOTH
@pytest.mark.parametrize(
    "error",
    [
        CancelledError("enough"),
        CallFailedError("The journal is full.", error_class="too_large", attempts=1),
    ],
)
def test_a_reply_that_could_not_be_recorded_is_not_delivered_whole(
    reply: Reply, error: Stop | CallFailedError
) -> None:
    """The client gets the error, so that no client has a whole reply that the journal has not."""

    async def call(relay: Relay) -> None:
        started(relay, reply)
        reply(relay)
        raise error

    seen: list[Client] = []

    async def client(session: GatewaySession) -> None:
        seen.append(Client(session))
        await seen[0].ask()

    story(call, client)

    assert b"error" in seen[0].body
    assert b"whole" not in seen[0].body
    assert b"[DONE]" not in seen[0].body
    assert seen[0].status == (200 if reply is streamed else seen[0].status)
    assert (seen[0].status >= 400) == (reply is whole)


@BOTH
def test_a_retry_after_a_failure_is_another_call(reply: Reply) -> None:
    """It does not get the failure of the first call again."""
    made: list[Relay] = []

    async def call(relay: Relay) -> None:
        made.append(relay)
        started(relay, reply)
        await asyncio.sleep(5)
        if len(made) == 1:
            raise CallFailedError("It broke off.", error_class="unavailable", attempts=1)
        reply(relay)

    seen: list[Client] = []

    async def client(session: GatewaySession) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Client(session).ask_and_leave(1))
            await asyncio.sleep(10)
            seen.append(Client(session))
            await seen[0].ask(is_retry=True)

    story(call, client)

    assert len(made) == 2
    assert seen[0].body == (WHOLE.content if reply is whole else FIRST + LAST)
