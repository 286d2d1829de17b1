"""Replies of providers with an odd status, header, content type or body, at the gateway.

The client gets the whole answer, or an error in the form of the API; it never gets the operator's
key.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from caseworker.models.relay import may_show
from caseworker.platform.logs.secret_mask import SecretMask
from tests.support.echoes import FORMS, shows
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
        self.writers: list[asyncio.StreamWriter] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, and answer it."""
        self.writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):  # the client has gone
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        number = re.search(rb"reply (\d+)", body)
        assert number is not None
        for part in self.replies[int(number[1])]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)  # so that the parts are not joined

    async def close(self) -> None:
        """Close the connections."""
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # connections end in the next iteration of the loop

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
        """Send one request in a new run; return the reply and the trace of the run."""
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
    await provider.close()


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


KINDS = {
    "other letters": b"Text/Event-Stream; charset=utf-8",
    "upper case": b"TEXT/EVENT-STREAM",
    "JSON": b"application/json",
    "none": None,
    "plain text": b"text/plain",
    "lines of JSON": b"application/x-ndjson",
    "twice": b"text/event-stream, text/event-stream",
    "not printable": b"\xe2\x82\xac",
}
SPLITS = {
    "each event": [FIRST, SECOND, STOP, COUNTS, DONE],
    "first event": [FIRST, SECOND + REST],
    "in an event": [FIRST + SECOND[:20], SECOND[20:] + STOP + COUNTS[:9], COUNTS[9:] + DONE],
    "one part": [FIRST + SECOND + REST],
    "blank lines first": [b"\r\n", b"\n", FIRST, SECOND + REST],
    "byte order mark": [b"\xef", b"\xbb\xbf" + FIRST, SECOND + REST],
    "comment first": [b": busy\n\n", FIRST + SECOND + REST],
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_with_any_content_type_arrives_whole(
    gateway: Gateway, kind: str, split: str
) -> None:
    """The client did not request the token counts: only their event is left out."""
    parts = SPLITS[split]

    reply, run = await gateway.ask(stream(*parts, kind=KINDS[kind]), stream=True)
    full, _ = await gateway.ask(
        stream(*parts, kind=KINDS[kind]), stream=True, stream_options={"include_usage": True}
    )

    assert reply.status_code == 200
    assert reply.content == b"".join(parts).replace(COUNTS, b"")
    assert full.content == b"".join(parts)
    assert (await gateway.usage(run["run_id"]))["tokens"] == 15


TEXT = f"Incorrect API key provided: {KEY}"
_CHUNK_ERROR = {"index": 0, "delta": {}, "finish_reason": "error", **ERROR}
_MESSAGE = {"role": "assistant", "content": TEXT}
LEAKS: dict[str, Parts] = {
    "after the end": stream(FIRST, REST, event(ERROR)),
    "in the part of the end": stream(FIRST + REST + event(ERROR)),
    "text after the end": stream(FIRST, REST, event(TEXT.encode(), "error")),
    "text of an error event": stream(FIRST, event(TEXT.encode(), "error")),
    "text of the first event": stream(event(TEXT.encode(), "error")),
    "cut error": stream(FIRST, b"data: " + json.dumps(ERROR).encode()[:-8]),
    "cut first error": stream(b"data: " + json.dumps(ERROR).encode()[:-2]),
    "line of an error": stream(FIRST, b"error: " + json.dumps(ERROR).encode() + b"\n\n"),
    "one byte at a time": stream(FIRST, *(bytes([each]) for each in event(ERROR)[:90])),
    "HTML": stream(f"<html>{TEXT}</html>".encode()),
    "HTML after text": stream(FIRST, f"<html>{TEXT}</html>\n\n".encode()),
    "plain text": stream(TEXT.encode() + b"\n\n"),
    "comment": stream(FIRST, f": {TEXT}\n\n".encode(), REST),
    "event with text": stream(FIRST, event(TEXT.encode()), REST),
    "unknown field": stream(FIRST, f"about: {TEXT}\n\n".encode(), REST),
    "carriage returns": stream(FIRST, event(ERROR, end=b"\r"), REST),
    "second of a list": stream(event([{"x": 1}, ERROR]), FIRST, REST),
    "error of a choice": stream(FIRST, event({"choices": [_CHUNK_ERROR]})),
    "text of the answer": stream(event(chunk(TEXT)), REST),
    "whole: no choices": whole({"choices": [], "object": "error", "message": TEXT}),
    "whole: null choices": whole({"choices": None, "object": "error", "message": TEXT}),
    "whole: string": whole(TEXT),
    "whole: second of a list": whole([{"x": 1}, ERROR]),
    "whole: answer": whole({**COMPLETION, "choices": [{**_CHOICE, "message": _MESSAGE}]}),
    "whole: more fields": whole({**COMPLETION, "debug": {TEXT: TEXT}}),
    "whole: UTF-16": whole(json.dumps({**COMPLETION, "debug": TEXT}).encode("utf-16")),
    "whole: UTF-32": whole(json.dumps({**COMPLETION, "debug": TEXT}).encode("utf-32-le")),
    "400: UTF-16": whole(json.dumps(ERROR).encode("utf-16"), 400),
    "400: UTF-16 without a mark": whole(json.dumps(ERROR).encode("utf-16-le"), 400),
    "400: zero bytes": whole(b"<p>" + b"\0".join(bytes([each]) for each in TEXT.encode()), 400),
    "500: text": whole(TEXT.encode(), 500, kind=b"text/plain"),
}


@pytest.mark.parametrize("name", LEAKS)
async def test_no_reply_shows_the_key_of_the_operator(gateway: Gateway, name: str) -> None:
    """Neither the client nor the trace of the run gets it."""
    is_stream = ":" not in name

    reply, trace = await gateway.ask(LEAKS[name], stream=is_stream)

    sent = reply.content.replace(b"\0", b"").decode(errors="replace")
    assert not shows(sent, KEY), sent
    assert not shows(trace["text"], KEY)


@pytest.mark.parametrize("form", FORMS)
async def test_no_form_of_the_key_is_shown_in_a_reply_without_an_error(
    gateway: Gateway, form: str
) -> None:
    """In a comment of a stream, in the text of an answer, and in a field of a whole reply."""
    text = FORMS[form](KEY)
    comment = b": " + text.encode() + b"\n\n"
    noted = {**COMPLETION, "note": text}

    streamed, _ = await gateway.ask(
        stream(FIRST, comment, event(chunk(text)), SECOND + REST), stream=True
    )
    reply, _ = await gateway.ask(whole(noted))
    counted, _ = await gateway.ask(whole({"input_tokens": 3, "note": text}), COUNT)

    assert "second" in streamed.text
    assert streamed.content.endswith(DONE)
    assert reply.json()["choices"] == COMPLETION["choices"]
    assert counted.json()["input_tokens"] == 3
    for each in (streamed, reply, counted):
        assert not shows(each.text, KEY), each.text


@pytest.mark.parametrize(
    "text",
    [
        b'{"content": "say \\"hi\\"\\n\\tC:\\\\x y\\/z"}',
        b"data: 100 % & R&D <b> sk-oper ator",
        "größe € 日本".encode(),
        b"a+b c=d %zz &nbsp &; \\u2028 \\ud83d\\ude00",
        json.dumps(COMPLETION).encode() * 50,
    ],
)
async def test_ordinary_text_is_not_searched_for_escaped_keys(text: bytes) -> None:
    """The full search takes milliseconds for long texts."""
    mask = SecretMask([f"Bearer {KEY}"])

    assert not may_show(text, mask)
    assert may_show(text + KEY.encode(), mask)


CUTS: dict[str, tuple[str, Parts, str]] = {
    "in an event": (CHAT, [FIRST, SECOND[:30]], "first"),
    "in the name": (CHAT, [FIRST, b"da"], "first"),
    "after a line": (CHAT, [FIRST, SECOND[:-1]], "second"),
    "after the data": (CHAT, [FIRST, SECOND[:-2]], "second"),
    "after a carriage return": (CHAT, [FIRST, SECOND[:-2] + b"\r"], "second"),
    "in a comment": (CHAT, [FIRST, b": bu"], "first"),
    "in text": (CHAT, [FIRST, b"<html>busy"], "first"),
    "in the end": (CHAT, [FIRST, b"data: [DO"], "first"),
    "in a character": (CHAT, [FIRST, b'data: {"a": "\xe2\x82'], "first"),
    "with the name of an event": (MESSAGES, [b"event: ping\ndata: {}\n\n", b"event: mess"], "ping"),
    "in an event of Responses": (
        RESPONSES,
        [event({"type": "response.created"}, "response.created"), b'event: x\ndata: {"type'],
        "created",
    ),
}


@pytest.mark.parametrize("name", CUTS)
async def test_a_stream_that_ends_in_an_event_has_a_readable_error(
    gateway: Gateway, name: str
) -> None:
    """The error is an event that a client can parse; so are all events before it."""
    path, parts, text = CUTS[name]

    reply, _ = await gateway.ask(stream(*parts), path, stream=True)

    *before, last = reply.text.strip().split("\n\n")
    documents = [json.loads(each.partition("data: ")[2]) for each in (*before, last)]
    assert "error" in documents[-1]
    assert text in "".join(before)
    assert last.strip().count("\n") == (0 if path == CHAT else 1)


_AFTER = [event(chunk("more")), event(chunk(usage={**USAGE, "prompt_tokens": 10**6}))]
_STOP_EVENTS = [
    event({"type": "message_start", "message": {"id": "m", "content": [], "usage": {}}}),
    event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}),
    event({"type": "message_stop"}, "message_stop"),
]
_ENDED = event({"type": "response.completed", "response": {"status": "completed", "output": []}})
ENDS: dict[str, tuple[str, Parts, Parts]] = {
    "a chunk": (CHAT, [FIRST, STOP, DONE], _AFTER[:1]),
    "token counts": (CHAT, [FIRST, STOP, DONE], _AFTER[1:]),
    "an error": (CHAT, [FIRST, STOP, DONE], [event({"error": {"message": "late"}})]),
    "text": (CHAT, [FIRST, STOP, DONE], [b"busy\n\n", b": late\n\n"]),
    "a part of an event": (CHAT, [FIRST, STOP, DONE], [b'data: {"id']),
    "in the same part": (CHAT, [FIRST + STOP + DONE + _AFTER[0]], []),
    "a part of an event without the end": (CHAT, [FIRST, STOP], [b'data: {"id']),
    "an error in Messages": (MESSAGES, _STOP_EVENTS, [event({"type": "error"}, "error")]),
    "an error in Responses": (RESPONSES, [_ENDED], [event({"type": "error"}, "error")]),
}


@pytest.mark.parametrize("name", ENDS)
async def test_nothing_is_passed_on_after_the_end_of_a_stream(gateway: Gateway, name: str) -> None:
    """It would not be read, counted or recorded."""
    path, parts, after = ENDS[name]

    reply, _ = await gateway.ask(stream(*parts, *after), path, stream=True)

    assert reply.content == b"".join(parts).removesuffix(_AFTER[0])


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (CHAT, [FIRST, STOP, DONE, DONE]),
        (CHAT, [FIRST, STOP, DONE[:-1]]),
        (CHAT, [FIRST, STOP, b"data: [DONE]"]),
        (CHAT, [FIRST, STOP]),
        (RESPONSES, [_ENDED, DONE]),
        (MESSAGES, [*_STOP_EVENTS[:2], _STOP_EVENTS[2][:-2]]),
    ],
)
async def test_unusual_ends_are_passed_on(gateway: Gateway, path: str, parts: Parts) -> None:
    """The answer is complete before them."""
    reply, _ = await gateway.ask(stream(*parts), path, stream=True)

    assert reply.content == b"".join(parts)


NO_ANSWERS = [
    *(b"[]", b"42", b"null", b'"x"', b"NaN", b"true", b"{}", b"[1, 2]", b'{"choices": 5}'),
    *(b'{"choices": NaN}', b'{"choices": "x"}', b'{"choices": null}', b'{"id": "x"}', b"", b" \n"),
]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("body", NO_ANSWERS, ids=repr)
async def test_a_reply_without_an_answer_is_an_error(
    gateway: Gateway, body: bytes, path: str
) -> None:
    """A client could not read it either."""
    reply, _ = await gateway.ask(whole(body), path)

    assert_is_error(reply, path)


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (CHAT, {"choices": [], "usage": USAGE}),
        (CHAT, {"choices": [{"message": {"content": "hi"}}]}),
        (CHAT, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}),
        (RESPONSES, {"status": "queued", "output": []}),
        (MESSAGES, {"type": "message", "content": [], "stop_reason": "end_turn"}),
    ],
)
async def test_an_unusual_reply_that_can_be_read_is_passed_on(
    gateway: Gateway, path: str, document: Any
) -> None:
    """It has an answer, possibly an empty one, or token counts."""
    reply, _ = await gateway.ask(whole(document), path)

    assert (reply.status_code, reply.json()) == (200, document)
