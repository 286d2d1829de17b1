"""Secrets in the messages of MCP servers, with letters outside ASCII."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse

from caseworker.platform.logs.secret_mask import SecretMask, secrets_in
from caseworker.tools.mcp.checked_stream import checked_transport

PASSWORD = "p\u00e4ssw\u00f6rd-\u20ac/\U0001f600hidden"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": lambda text: json.dumps({"p": text}),
    "JSON in JSON": lambda text: json.dumps(json.dumps([text])),
    "percent": quote,
    "Python": lambda text: repr({"p": text.encode()}),
    "entities": lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
}


def response(**result: Any) -> JSONRPCMessage:
    return JSONRPCResponse(jsonrpc="2.0", id=1, result=result)


PLACES: dict[str, Callable[[str], JSONRPCMessage]] = {
    "text": lambda shown: response(content=[{"type": "text", "text": shown}]),
    "value": lambda shown: response(content=[], structuredContent={"a": [{"b": shown}]}),
    "key": lambda shown: response(content=[], structuredContent={shown: 1}),
    "error": lambda shown: JSONRPCError(
        jsonrpc="2.0", id=1, error=ErrorData(code=-32000, message=f"bad {shown}")
    ),
    "data of an error": lambda shown: JSONRPCError(
        jsonrpc="2.0", id=1, error=ErrorData(code=-32000, message="bad", data={shown: [shown]})
    ),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
async def test_a_variable_is_masked_in_every_message(form: str, place: str) -> None:
    """The program received the password in its environment."""
    sending, receiving = anyio.create_memory_object_stream[SessionMessage | Exception](1)
    writing, written = anyio.create_memory_object_stream[SessionMessage](1)

    @asynccontextmanager
    async def transport() -> AsyncIterator[TransportStreams]:
        yield receiving, writing

    mask = SecretMask(secrets_in({"DB_PASSWORD": PASSWORD}))
    async with AsyncExitStack() as stack:
        for stream in (sending, written, receiving, writing):
            await stack.enter_async_context(stream)
        reading, _ = await stack.enter_async_context(
            checked_transport("program", transport(), mask)
        )
        await sending.send(SessionMessage(PLACES[place](FORMS[form](PASSWORD))))
        received = await reading.receive()

    assert isinstance(received, SessionMessage)
    shown = received.message.model_dump_json()
    assert "[secret]" in shown
    assert "hidden" not in shown
