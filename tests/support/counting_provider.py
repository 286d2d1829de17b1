"""A model provider that counts the tokens that it reads, caches and generates.

It generates at a fixed speed until it notices a close, and counts with the tokenizer of GPT-4o.
``POST /plan`` sets the replies (:class:`Reply`) of the next calls, and the last one is repeated.
``GET /calls`` returns the counts of each call. ``python -m tests.support.counting_provider`` prints
``{"url": ...}`` and ends when its stdin closes. It needs the package ``bpe-openai``.

The prompt cache follows the rules of the vendors on 2026-11-29: OpenAI reads the longest prefix
that an earlier call had, from 1,024 tokens on, in steps of 128; Anthropic writes up to the last
cache mark, and reads the longest written prefix that ends at most 20 blocks before a mark.
"""

import asyncio
import hashlib
import json
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import bpe_openai  # type: ignore[import-not-found, unused-ignore]

from tests.support.fake_provider import dialects
from tests.support.fake_provider.connection import Connection, Request
from tests.support.fake_provider.script import Step

PROSE: Final = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
CHUNK_CHARS: Final = 24
BATCH_TOKENS: Final = 20
MESSAGE_TOKENS: Final = 4
LOOKBACK_BLOCKS: Final = 20
LEAST_TOKENS, STEP_TOKENS = 1_024, 128
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
CLAUDE_FACTORS: Final = ((re.compile(r"claude-(3|.*-4-[0-6])"), 1.2), (re.compile("claude"), 1.55))
"""Tokens of a text as a multiple of those of GPT-4o: the medians of 107 files of prose, Python,
JavaScript, C and JSON, counted with ctok 1.3.0 on 2026-11-29."""
_ENCODING: Final = bpe_openai.get_encoding("o200k_base")


@lru_cache(maxsize=4096)
def tokens_of(text: str) -> int:
    """Return the number of tokens of a text."""
    return len(_ENCODING.encode_ordinary(text))


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Content that the provider generates for one call."""

    text_tokens: int = 50
    tool: str = ""
    """Name of the function to call; empty to write a text."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    thinking_tokens: int = 0
    is_hidden: bool = True
    """Whether the thinking is generated in silence, before the first part of the reply."""
    is_cached: bool = False
    """Whether all but 10 tokens of the prompt are read from the cache, regardless of marks."""


@dataclass(kw_only=True)
class Call:
    """The provider's own counts of one call; ``tokens_in`` includes the cached and written ones."""

    path: str
    model: str
    stream: bool
    limit: int | None
    tokens_in: int
    tokens_cached: int
    tokens_written: int
    tokens_written_1h: int
    started_at: float = field(default_factory=time.monotonic)
    tokens_out: int = 0
    """Tokens generated so far."""
    tokens_thinking: int = 0
    ended_at: float | None = None
    is_complete: bool = False


Block = tuple[str, str | None]
"""The text of a part of a prompt, and the lifetime in its cache mark if it has one."""


def blocks_of(body: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the parts of a prompt in the order in which they are cached."""
    for tool in body.get("tools") or ():
        yield json.dumps(tool, ensure_ascii=False), _mark_of(tool)
    for name in ("system", "instructions"):
        yield from _parts(body.get(name))
    for name in ("messages", "input"):
        value = body.get(name)
        for item in [{"content": value}] if isinstance(value, str) else value or ():
            rest = {key: item[key] for key in item if key not in ("role", "content", "type", "id")}
            if rest:
                yield json.dumps(rest, ensure_ascii=False), None
            yield from _parts(item.get("content"))
    if mark := _mark_of(body):
        yield "", mark


def _parts(content: Any) -> Iterator[Block]:
    for part in [content] if isinstance(content, str) else content or ():
        if isinstance(part, str):
            yield part, None
        elif isinstance(text := part.get("text"), str):
            yield text, _mark_of(part)
        else:
            shown = {key: part[key] for key in part if key not in ("cache_control", "type", "id")}
            yield json.dumps(shown, ensure_ascii=False), _mark_of(part)


def _mark_of(part: Mapping[str, Any]) -> str | None:
    mark = part.get("cache_control")
    return None if mark is None else str(mark.get("ttl", "5m"))


def read_tokens(body: Mapping[str, Any]) -> int:
    """Return the number of input tokens of a body, with the frames of its messages."""
    messages = body.get("messages") or body.get("input") or ()
    frames = MESSAGE_TOKENS * (1 if isinstance(messages, str) else len(messages))
    words = sum(tokens_of(text) for text, _ in blocks_of(body))
    return math.ceil(words * factor_of(body)) + frames


def factor_of(body: Mapping[str, Any]) -> float:
    """Return the tokens of the requested model for each token of GPT-4o."""
    model = str(body.get("model"))
    return next((factor for form, factor in CLAUDE_FACTORS if form.match(model)), 1.0)


class Cache:
    """The prompt caches of both vendors, without expiry."""

    def __init__(self) -> None:
        self._prefixes: set[bytes] = set()

    def of_marks(self, blocks: Sequence[Block], factor: float) -> tuple[int, int, int]:
        """Return the tokens that are read, written, and written for an hour."""
        marked = [index for index, (_, ttl) in enumerate(blocks) if ttl is not None]
        if not marked:
            return 0, 0, 0
        ends = list(_ends_of(blocks))
        near = {i for mark in marked for i in range(max(0, mark - LOOKBACK_BLOCKS), mark + 1)}
        read = math.ceil(self._read(ends[index] for index in near) * factor)
        written = max(0, math.ceil(ends[marked[-1]][1] * factor) - read)
        self._prefixes.update(digest for digest, _ in ends[: marked[-1] + 1])
        return read, written, written if blocks[marked[-1]][1] == "1h" else 0

    def of_prefix(self, blocks: Sequence[Block]) -> int:
        """Return the tokens of the longest prefix of an earlier call."""
        ends = list(_ends_of(blocks))
        read = self._read(ends)
        self._prefixes.update(digest for digest, _ in ends)
        return read // STEP_TOKENS * STEP_TOKENS if read >= LEAST_TOKENS else 0

    def _read(self, ends: Iterable[tuple[bytes, int]]) -> int:
        return max((tokens for digest, tokens in ends if digest in self._prefixes), default=0)


def _ends_of(blocks: Sequence[Block]) -> Iterator[tuple[bytes, int]]:
    """Yield a hash of each prefix, and its tokens."""
    hasher, tokens = hashlib.blake2b(digest_size=16), 0
    for text, _ in blocks:
        hasher.update(text.encode() + b"\0")
        tokens += tokens_of(text)
        yield hasher.digest(), tokens


class Server:
    """Answers model calls by a plan, and counts them."""

    def __init__(self) -> None:
        self._replies = [Reply()]
        self._tokens_per_second = 100.0
        self._first_seconds = 0.0
        self._cache = Cache()
        self._calls: list[Call] = []
        self._changed = asyncio.Event()

    async def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        if request.method == "POST" and request.path in dialects.PATHS:
            await self._answer(request, connection)
        elif request.path == "/plan":
            plan = request.json()
            self._replies = [Reply(**each) for each in plan["replies"]]
            self._tokens_per_second = plan["tokens_per_second"]
            self._first_seconds = plan["first_seconds"]
            self._calls, self._cache = [], Cache()
            connection.send_json(200, {})
        elif request.path == "/calls":
            await self._wait(**{name: int(value) for name, value in request.query.items()})
            connection.send_json(200, [asdict(call) for call in self._calls])
        elif request.path.endswith("/count_tokens"):
            connection.send_json(200, {"input_tokens": read_tokens(request.json())})
        else:
            connection.send_json(200, {"object": "list", "data": []})

    async def _wait(self, ended: int = 0, generated: int = 0) -> None:
        """Wait until calls have ended, and until one of them has generated some tokens."""
        while (
            sum(call.ended_at is not None for call in self._calls) < ended
            or max((call.tokens_out for call in self._calls), default=0) < generated
        ):
            await self._changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _call_of(self, path: str, body: Mapping[str, Any], reply: Reply) -> Call:
        blocks = list(blocks_of(body))
        total = read_tokens(body)
        read, written, written_1h = 0, 0, 0
        if reply.is_cached:
            read = total - 10
        elif path == dialects.MESSAGES:
            read, written, written_1h = self._cache.of_marks(blocks, factor_of(body))
        else:
            read = self._cache.of_prefix(blocks)
        return Call(
            path=path,
            model=str(body.get("model")),
            stream=bool(body.get("stream")),
            limit=next((body[name] for name in _LIMITS if body.get(name) is not None), None),
            tokens_in=total,
            tokens_cached=read,
            tokens_written=written,
            tokens_written_1h=written_1h,
        )

    async def _answer(self, request: Request, connection: Connection) -> None:
        body = request.json()
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        call = self._call_of(request.path, body, reply)
        self._calls.append(call)
        step, total = _step_of(call, reply, factor_of(body))
        prompt = dialects.read_prompt(request.path, body)
        try:
            await asyncio.sleep(self._first_seconds)
            await self._generate(connection, prompt, step, call, total)
            call.is_complete = True
        finally:
            call.ended_at = time.monotonic()
            self._announce()

    async def _generate(
        self,
        connection: Connection,
        prompt: dialects.Prompt,
        step: Step,
        call: Call,
        total: int,
    ) -> None:
        events = list(dialects.stream(prompt, step)) if call.stream else []
        silent = min(total, step.tokens_reasoning if step.thinking is None else 0)
        shows = [b"delta" in event for event in events]
        shares = [shown / max(1, sum(shows)) for shown in accumulate(shows)]
        kind = "text/event-stream" if call.stream else "application/json"
        call.started_at = time.monotonic()
        try:
            connection.send_head(200, [("content-type", kind)])
            for number, event in enumerate(events):
                if number:  # the first event starts the reply; text is generated before it is sent
                    await self._until(call, silent + int((total - silent) * shares[number]))
                connection.send_data(event)
            await self._until(call, total)
            if not call.stream:
                connection.send_data(json.dumps(dialects.reply(prompt, step)).encode())
            connection.send_end()
        except asyncio.CancelledError:
            seconds = time.monotonic() - call.started_at
            call.tokens_out = min(total, int(seconds * self._tokens_per_second) + 1)
            raise
        finally:
            call.tokens_thinking = min(call.tokens_out, step.tokens_reasoning)

    async def _until(self, call: Call, tokens: int) -> None:
        """Generate until a call has a number of tokens."""
        while call.tokens_out < tokens:
            call.tokens_out = min(tokens, call.tokens_out + BATCH_TOKENS)
            due = call.started_at + call.tokens_out / self._tokens_per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._announce()


def _step_of(call: Call, reply: Reply, factor: float) -> tuple[Step, int]:
    """Return the form of a reply, and its tokens within the limit of the request."""
    limit = 1 << 30 if call.limit is None else call.limit
    thinking = min(reply.thinking_tokens, limit)
    arguments = json.dumps(dict(reply.arguments))
    written = math.ceil(tokens_of(arguments) * factor) + 20 if reply.tool else reply.text_tokens
    total = min(limit, thinking + written)
    calls = [{"id": f"call_{time.time_ns()}", "name": reply.tool, "arguments": arguments}]
    shown = None if reply.is_hidden or not thinking else _prose(thinking / factor)
    step = Step(
        text="" if reply.tool else _prose((total - thinking) / factor),
        tool_calls=calls if reply.tool else [],
        thinking=shown,
        tokens_in=call.tokens_in,
        tokens_cached=call.tokens_cached,
        tokens_cache_written=call.tokens_written,
        tokens_cache_written_1h=call.tokens_written_1h,
        tokens_out=total,
        tokens_reasoning=thinking,
        chunk_chars=CHUNK_CHARS,
        response_id=f"resp_{time.time_ns()}",
    )
    return step, total


def _prose(tokens: float) -> str:
    """Return an English text of a number of tokens of GPT-4o."""
    copies = PROSE * (int(tokens) // 1_000 + 1)
    return str(_ENCODING.decode(_ENCODING.encode_ordinary(copies)[: int(tokens)])).replace(
        "\ufffd", ""
    )


async def _serve() -> None:
    server = Server()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(server.handle), "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{port}"}) + "\n")
        sys.stdout.flush()
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
