"""A model endpoint for examples. It needs no network, and keeps the requests that it gets.

It offers chat completions and Anthropic messages, whole or streamed. The reply to a request without
tool results calls a tool that the request offers. Any other reply is a sentence with the result.

    .venv/bin/python examples/external/offline_model.py 8199
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import web

CALLS = {
    "rain": {"city": "Bergen"},
    "Bash": {"command": "echo 12 mm", "description": "Measure the rain in Bergen"},
}
"""Arguments of the tools that the model calls, by the tool's name."""
TOKENS_IN, TOKENS_OUT = 100, 20
"""Token counts of each reply."""


class OfflineModel:
    """``async with OfflineModel() as model`` serves at ``model.url`` until the block ends."""

    def __init__(self, port: int = 0) -> None:
        self.url = ""
        """Base URL for Anthropic clients; OpenAI clients append ``/v1``."""
        self.requests: list[dict[str, Any]] = []
        """Bodies of all requests so far."""
        self.answers: int | None = None
        """Number of requests that are answered whole; later ones wait. None answers all."""
        self._port = port
        self._changed = asyncio.Condition()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/messages", self._answer)
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)

    async def __aenter__(self) -> "OfflineModel":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def requested(self, count: int) -> None:
        """Wait until there were ``count`` requests."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)

    async def _count_tokens(self, _: web.Request) -> web.Response:
        return web.json_response({"input_tokens": TOKENS_IN})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        async with self._changed:
            self.requests.append(body)
            self._changed.notify_all()
        number, limit = len(self.requests), self.answers
        held = asyncio.Event()
        if limit is None or number <= limit:
            held.set()
        is_anthropic = request.path.endswith("/messages")
        call, text = _reply_to(body)
        if not body.get("stream"):
            await held.wait()
            whole = _message if is_anthropic else _completion
            return web.json_response(whole(body["model"], number, call, text))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = _message_events if is_anthropic else _chunks
        async for event in _held(events(body["model"], number, call, text), held):
            name = f"event: {event['type']}\n" if is_anthropic else ""
            await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if not is_anthropic:
            await response.write(b"data: [DONE]\n\n")
        return response


async def _held(events: Iterator[Any], held: asyncio.Event) -> AsyncIterator[Any]:
    """Yield the first words, and the other events once ``held`` is set."""
    for at, event in enumerate(events):
        if at == 4:
            await held.wait()
        yield event


def _reply_to(body: dict[str, Any]) -> tuple[str | None, str]:
    """Return the name of the tool to call, or None and a sentence."""
    tools = [tool.get("function", tool).get("name") for tool in body.get("tools") or ()]
    called = next((name for name in CALLS if name in tools), None)
    results = [*_results_in(body["messages"])]
    if called and not results:
        return called, ""
    return None, f"The rain report for Bergen is: {results[-1] if results else 'unknown'}."


def _results_in(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if message["role"] == "tool":
            yield _text_of(content)
        for part in parts:
            if part.get("type") == "tool_result":
                yield _text_of(part.get("content"))


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content)


def _pieces(call: str | None, text: str) -> list[str]:
    """Return the parts of a text, or of a tool's arguments, in which they are streamed."""
    if call:
        return [json.dumps(CALLS[call])]
    return [f"{word} " for word in text.split()]


def _completion(model: str, number: int, call: str | None, text: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if call:
        function = {"name": call, "arguments": json.dumps(CALLS[call])}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    finish = "tool_calls" if call else "stop"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": _usage("prompt_tokens", "completion_tokens", total_tokens=TOKENS_IN + TOKENS_OUT),
    }


def _chunks(model: str, number: int, call: str | None, text: str) -> Iterator[dict[str, Any]]:
    shared = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 0}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**shared, "model": model, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    if call:
        function = {"name": call, "arguments": ""}
        began = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        yield chunk({"tool_calls": [began]})
    for piece in _pieces(call, text):
        arguments = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        yield chunk(arguments if call else {"content": piece})
    yield chunk({}, "tool_calls" if call else "stop")
    usage = _usage("prompt_tokens", "completion_tokens", total_tokens=TOKENS_IN + TOKENS_OUT)
    yield {**shared, "model": model, "choices": [], "usage": usage}


def _message(model: str, number: int, call: str | None, text: str) -> dict[str, Any]:
    tool = {
        "type": "tool_use",
        "id": f"toolu_{number}",
        "name": call,
        "input": CALLS.get(call or ""),
    }
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [tool if call else {"type": "text", "text": text}],
        "stop_reason": "tool_use" if call else "end_turn",
        "stop_sequence": None,
        "usage": _usage("input_tokens", "output_tokens"),
    }


def _message_events(
    model: str, number: int, call: str | None, text: str
) -> Iterator[dict[str, Any]]:
    whole = _message(model, number, call, text)
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    empty = {"input": {}} if call else {"text": ""}
    block = {**whole["content"][0], **empty}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    for piece in _pieces(call, text):
        delta = (
            {"type": "input_json_delta", "partial_json": piece}
            if call
            else {"type": "text_delta", "text": piece}
        )
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    ended = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ended, "usage": whole["usage"]}
    yield {"type": "message_stop"}


def _usage(tokens_in: str, tokens_out: str, **more: int) -> dict[str, int]:
    return {tokens_in: TOKENS_IN, tokens_out: TOKENS_OUT, **more}


async def _serve(port: int) -> None:
    async with OfflineModel(port) as model:
        print(f"The model listens on {model.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]) if len(sys.argv) > 1 else 8199))
