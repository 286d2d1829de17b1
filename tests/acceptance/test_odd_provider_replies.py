"""Replies of providers with an odd status, header, content type or body, at the gateway.

The client gets the whole answer, or an error in the form of the API; it never gets the operator's
key.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.service import ServiceProcess

pytestmark = [pytest.mark.req("cw/15.refusals"), pytest.mark.asyncio(loop_scope="module")]

KEY = "sk-operator/secret+1="
CHAT = "/gateway/openai/v1/chat/completions"
RESPONSES = "/gateway/openai/v1/responses"
MESSAGES = "/gateway/anthropic/v1/messages"
COUNT = f"{MESSAGES}/count_tokens"
ERROR = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "x"}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
COMPLETION = {"id": "c", "object": "chat.completion", "choices": [_CHOICE], "usage": USAGE}

Parts = Sequence[bytes]


class Provider:
    """Writes the parts of the reply whose number is in the request; each is read on its own."""

    def __init__(self) -> None:
        self.replies: list[Parts] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, and answer it."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        number = re.search(rb"reply (\d+)", body)
        assert number is not None
        for part in self.replies[int(number[1])]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)  # so that the parts are not joined
        writer.close()

    def add(self, parts: Parts) -> str:
        """Keep a reply; return the text that requests it."""
        self.replies.append(parts)
        return f"reply {len(self.replies) - 1} "


@dataclass
class Gateway:
    """A service whose models are at the provider."""

    service: ServiceProcess
    provider: Provider
    http: httpx.AsyncClient

    async def ask(
        self, parts: Parts, path: str = CHAT, **body: Any
    ) -> tuple[httpx.Response, Mapping[str, Any]]:
        """Send one request in a run of its own; return the reply and the trace of the run."""
        run = (await self.http.post("/runs", json={"kind": "external"})).json()
        text = self.provider.add(parts)
        messages = [{"role": "user", "content": text}]
        bodies: dict[str, dict[str, Any]] = {
            CHAT: {"model": "gpt", "messages": messages},
            RESPONSES: {"model": "gpt", "input": text},
            MESSAGES: {"model": "claude", "max_tokens": 99, "messages": messages},
            COUNT: {"model": "claude", "messages": messages},
        }
        headers = {"authorization": f"Bearer {run['access']['key']}"}
        reply = await self.http.post(path, json={**bodies[path], **body}, headers=headers)
        trace = await self.http.get(f"/runs/{run['run_id']}/trace?payloads=true")
        return reply, {"text": trace.text, **run, **trace.json()}

    async def usage(self, run_id: str) -> Mapping[str, Any]:
        """Return the usage of a run."""
        usage: Mapping[str, Any] = (await self.http.get(f"/runs/{run_id}")).json()["usage"]
        return usage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_database_url: str) -> AsyncIterator[Gateway]:
    """Run a service with a model of each API at the provider; no call is repeated."""
    provider = Provider()
    server = await asyncio.start_server(provider.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    named = {
        "gpt": {"provider": "openai", "base_url": f"{url}/v1"},
        "claude": {"provider": "anthropic", "base_url": url},
    }
    named = {name: {**about, "api_key": KEY, "model": "m"} for name, about in named.items()}
    settings = {"MODELS_NAMED": json.dumps(named), "RETRY_MAX_RETRIES": "0"}
    async with (
        server,
        ServiceProcess(module_database_url, settings=settings) as service,
        httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=60) as http,
    ):
        yield Gateway(service, provider, http)


def whole(
    document: Any, status: int = 200, kind: bytes | None = b"application/json", more: bytes = b""
) -> Parts:
    """Return a reply with a document or with raw bytes."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    typed = b"" if kind is None else b"content-type: %b\r\n" % kind
    framed = b"content-length: %d\r\nconnection: close\r\n" % len(body)
    return [b"HTTP/1.1 %03d Odd\r\n" % status + typed + framed + more + b"\r\n" + body]


def stream(*parts: bytes, kind: bytes | None = b"text/event-stream", more: bytes = b"") -> Parts:
    """Return a streamed reply with these parts."""
    typed = b"" if kind is None else b"content-type: %b\r\n" % kind
    return [b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + typed + more + b"\r\n", *parts]


def event(data: Any, name: str = "", end: bytes = b"\n") -> bytes:
    """Return an event with a document or with raw bytes."""
    named = b"event: " + name.encode() + end if name else b""
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return named + b"data: " + body + end + end


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of a streamed chat completion."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    choices = [] if more else [choice]
    return {"id": "c1", "object": "chat.completion.chunk", "choices": choices, **more}


def assert_is_error(reply: httpx.Response, path: str = CHAT) -> None:
    """Check that a reply is 502 in the form of the API."""
    document = reply.json()
    assert (reply.status_code, document["error"]["code"]) == (502, "provider_failed"), reply.text
    assert document.get("type") == ("error" if path in (MESSAGES, COUNT) else None)


FIRST, SECOND = event(chunk("first ")), event(chunk("second"))
STOP, COUNTS, DONE = event(chunk(finish="stop")), event(chunk(usage=USAGE)), event(b"[DONE]")
REST = STOP + COUNTS + DONE


HEADERS = {
    "text outside of Latin-1": b"x-request-id: \xe2\x82\xac\r\n",
    "a character of UTF-16 pairs": b"x-request-id: \xf0\x9f\x98\x80\r\n",
    "bytes that are not UTF-8": b"x-request-id: \xff\xfe\xc3\r\n",
    "a byte of Latin-1": b"request-id: caf\xe9\r\n",
    "a control character": b"request-id: a\x01b\r\n",
    "a vertical tab": b"x-request-id: a\x0bb\r\n",
    "a dash": b"retry-after: \xe2\x80\x93 30\r\n",
}


@pytest.mark.parametrize("kind", ["whole", "stream", "429"])
@pytest.mark.parametrize("name", HEADERS)
async def test_headers_that_http_cannot_carry_are_left_out(
    gateway: Gateway, name: str, kind: str
) -> None:
    """The reply itself is passed on."""
    more = HEADERS[name]
    parts = {
        "whole": whole(COMPLETION, more=more),
        "stream": stream(FIRST, SECOND, REST, more=more),
        "429": whole({"error": {"message": "busy"}}, 429, more=more),
    }[kind]

    reply, _ = await gateway.ask(parts, stream=kind == "stream")

    assert reply.status_code == (429 if kind == "429" else 200), reply.text
    assert {"whole": "hi", "stream": "second", "429": "busy"}[kind] in reply.text
    assert not {"request-id", "retry-after"} & reply.headers.keys()
    assert re.fullmatch(r"[\w.-]{8,}", reply.headers["x-request-id"])  # the one of the service


@pytest.mark.parametrize(
    "kind",
    [b"application/json; x=\xe2\x82\xac", b"application/json; \xff", b"\xff;;;\x01", b"a\x0bb"],
)
async def test_a_content_type_that_http_cannot_carry_is_left_out(
    gateway: Gateway, kind: bytes
) -> None:
    """Here in a reply and in an error."""
    reply, _ = await gateway.ask(whole(COMPLETION, kind=kind))
    refused, _ = await gateway.ask(whole({"error": {"message": "no"}}, 400, kind=kind))

    assert (reply.status_code, reply.json()) == (200, COMPLETION)
    assert (refused.status_code, refused.json()) == (400, {"error": {"message": "no"}})
    assert "content-type" not in reply.headers
    assert "content-type" not in refused.headers


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, COUNT])
@pytest.mark.parametrize("status", [0, 101, 300, 600, 700, 999])
async def test_a_status_without_a_meaning_is_an_error_of_the_provider(
    gateway: Gateway, path: str, status: int
) -> None:
    """The body, here a valid completion, does not matter."""
    reply, _ = await gateway.ask(whole(COMPLETION, status), path)

    assert_is_error(reply, path)


@pytest.mark.parametrize("status", [201, 202, 203, 206, 226, 299])
async def test_every_status_of_success_has_an_answer(gateway: Gateway, status: int) -> None:
    """It is charged with the counts of the provider."""
    reply, run = await gateway.ask(whole(COMPLETION, status))
    counted, _ = await gateway.ask(whole({"input_tokens": 3}, status), COUNT)

    assert (reply.status_code, reply.json()) == (200, COMPLETION)
    assert (await gateway.usage(run["run_id"]))["tokens"] == 15
    assert (counted.status_code, counted.json()) == (200, {"input_tokens": 3})


NO_COUNTS = [
    *(b"", b"null", b"[]", b"42", b"NaN", b'"x"', b"{}", b"<html>busy</html>", b'{"input_tok'),
    *(b'{"input_tokens": "5"}', b'{"input_tokens": -1}', b'{"input_tokens": true}'),
    *(b'{"input_tokens": 5, "error": {"message": "no"}}', b'[{"input_tokens": 5}]'),
    *(json.dumps(ERROR).encode(), json.dumps(ERROR).encode("utf-16"), b"[" * 100_000),
]


@pytest.mark.parametrize("body", NO_COUNTS, ids=lambda body: repr(body[:24]))
async def test_a_reply_without_a_number_of_tokens_is_an_error(
    gateway: Gateway, body: bytes
) -> None:
    """The reply of count_tokens is an object with ``input_tokens``."""
    reply, _ = await gateway.ask(whole(body), COUNT)

    assert_is_error(reply, COUNT)
