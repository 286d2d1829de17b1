"""A model provider without latency: an OpenAI-compatible server in a separate process.

The model name selects its behaviour, so it keeps no state. ``turns-20`` requests nineteen calls of
the tool ``calculator`` and then answers. ``clock-50-20`` answers with 50 chunks, 20 ms apart, each
containing its sending time. ``wait-30`` answers after 30 s. ``letters-1000`` answers with a text of
1,000 letters that depends on the number of messages.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n\r\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
ANSWER = "The calculator has worked out all of it, and this is what the answer looks like."


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            await answer(json.loads(await reader.readexactly(length)), writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def answer(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Answer in the manner that the name of the model selects."""
    play, *numbers = asked["model"].split("-")
    if play == "clock":
        writer.write(HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
        for _ in range(int(numbers[0])):
            await asyncio.sleep(int(numbers[1]) / 1000)
            writer.write(sent(asked, {"content": f"{time.monotonic():.6f} "}))
        writer.write(sent(asked, {}, "stop") + last(asked))
        return
    if play == "wait":
        await asyncio.sleep(int(numbers[0]))
    made = sum(message["role"] == "tool" for message in asked["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if play == "letters":
        chance = random.Random(len(asked["messages"]))
        message["content"] = "".join(chance.choices("etaoinshrdlu ", k=int(numbers[0])))
    if play == "turns" and made < int(numbers[0]) - 1:
        function = {"name": "calculator", "arguments": json.dumps({"expression": f"{made} + 1"})}
        call = {"id": f"call-{made}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    if asked.get("stream"):
        writer.write(HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
        writer.write(b"".join(sent(asked, part) for part in parts(message)))
        writer.write(sent(asked, {}, reason) + last(asked))
        return
    choice = {"index": 0, "message": message, "finish_reason": reason}
    document = {**common(asked), "object": "chat.completion", "choices": [choice], "usage": USAGE}
    body = json.dumps(document).encode()
    writer.write(HEAD % (b"application/json", b"Content-Length: %d" % len(body)) + body)


def parts(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in the parts that a stream brings."""
    for word in (message["content"] or "").split():
        yield {"role": "assistant", "content": f"{word} "}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        begun = {**call, "index": index, "function": {**function, "arguments": ""}}
        yield {"role": "assistant", "tool_calls": [begun]}
        written = {"index": index, "function": {"arguments": function["arguments"]}}
        yield {"tool_calls": [written]}


def common(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the common fields of all documents of an answer."""
    return {"id": "chatcmpl-1", "created": 1_700_000_000, "model": asked["model"]}


def sent(asked: dict[str, Any], delta: dict[str, Any], reason: str | None = None) -> bytes:
    """Return one event of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return _event({**common(asked), "object": "chat.completion.chunk", "choices": [choice]})


def last(asked: dict[str, Any]) -> bytes:
    """Return the end of a stream, with the usage."""
    usage = {**common(asked), "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
    return _event(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _event(document: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + json.dumps(document).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def main() -> None:
    """Listen on a free port, print it, and serve until the process ends."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"listens on http://127.0.0.1:{port}/v1\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
