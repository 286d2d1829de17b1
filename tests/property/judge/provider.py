"""A provider on the test's clock that counts its output, also without a connection.

It generates at a steady speed, at most the request's limit for each choice. Text may be preceded by
hidden thinking. Its output until it notices that the connection was closed (the
time of one way and of one step later) is counted. The network may cut a reply at any byte.
"""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from caseworker.models.wires.transport import ConnectionFailedError, Wire, WireReply
from tests.property.judge.truth import (
    CACHE_WRITE,
    CACHE_WRITE_1H,
    CHAT,
    MESSAGES,
    OF_MODEL,
    RESPONSES,
    SEARCH_SECONDS,
    SEARCH_TOKENS,
    SEARCH_USD,
    Bill,
    Books,
    Family,
    cached_seconds,
)

CALL: ContextVar[tuple[str, str, str]] = ContextVar("call")
"""Tenant, run and key of the call that a task of the service sends."""
_MARKER: Final = re.compile(rb"<(\d+)/(\w+)>")
_MILLION: Final = Decimal(1_000_000)
_WORDS_TEXT: Final = """
the of and to in is that for it with as was on be at by this have
"""
_WORDS: Final = re.findall(r"\w+", _WORDS_TEXT)
IMPOSSIBLE: Final = ("negative", "below the text", "contradictory", "huge", "text", "fraction")
"""Counts that no provider can mean."""
MAX_STEP_SECONDS: Final = 0.3
"""Longest time after which a provider looks whether the connection is still open."""
SHORT_TOKENS: Final = 20
"""Length of a text for which a count of one token is not plainly impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the provider treats one request; times in seconds."""

    status: int = 200
    hangs: bool = False
    connect_seconds: float = 0.0
    latency_seconds: float = 0.05
    """Time of one way between the service and the provider."""
    prefill_seconds: float = 0.2
    tokens_per_second: float = 200.0
    output_tokens: int = 100
    """Tokens of each choice, unless the request's limit is lower."""
    thinking_share: float = 0.0
    """Part of them that is thinking, which comes first."""
    shows_thinking: bool = False
    part_tokens: int = 20
    calls_tool: bool = False
    counts: str = "right"
    """right, late, missing, running (in each part), or one of ``IMPOSSIBLE``."""
    early_counts: bool = True
    """Whether a message starts with the counts of its input."""
    late_seconds: float = 0.0
    cut_at: float | None = None
    """Part of the reply's bytes after which the connection is lost; None is never."""
    ends_cleanly: bool = False
    """Whether a cut looks like the end of the body."""
    cached_share: float = 0.0


@dataclass(slots=True, eq=False)
class Generation:
    """One request as the provider saw it."""

    marker: str
    family: Family
    bill: Bill
    behaviour: Behaviour
    asked_at: float
    """When the service began to connect."""
    arrived_at: float
    call: tuple[str, str, str] | None
    tokens_out: int = 0
    """Tokens of each choice that it generates unless the connection is closed."""
    thinking: int = 0
    began_at: float = 0.0
    closed_at: float | None = None
    """When the connection was closed or cut."""
    stopped_at: float | None = None
    """When it noticed that the connection was closed; None if it generated everything."""
    cached: int = 0
    written: int = 0
    written_1h: int = 0
    is_complete: bool = False
    """Whether the reply was delivered to its last byte."""
    is_streamed: bool = False

    @property
    def counted_out(self) -> int:
        """Output tokens that were generated, of all choices."""
        per_choice = self.tokens_out
        if self.stopped_at is not None:
            seconds = max(0.0, self.stopped_at - self.began_at)
            per_choice = min(per_choice, int(seconds * self.behaviour.tokens_per_second))
        return per_choice * self.bill.choices + self.bill.billed_out

    @property
    def searches(self) -> int:
        """Searches whose ends had arrived; unfinished ones are not billed."""
        if self.closed_at is None:
            return self.bill.searches
        began_at = self.began_at - self.bill.searches * SEARCH_SECONDS
        seconds = self.closed_at - self.behaviour.latency_seconds - began_at
        return min(self.bill.searches, max(0, int((seconds - 1e-9) / SEARCH_SECONDS)))

    @property
    def counted_in(self) -> int:
        """Input tokens with the results of searches."""
        return self.bill.tokens_in + self.searches * SEARCH_TOKENS

    @property
    def counted(self) -> int:
        """Input and output tokens."""
        return self.counted_in + self.counted_out

    @property
    def cost_usd(self) -> Decimal:
        """Cost that the provider bills, in US dollars."""
        family, bill = self.family, self.bill
        fresh = self.counted_in - self.cached - self.written
        cost = (
            fresh * family.usd_in
            + self.cached * family.usd_cached
            + (self.written - self.written_1h) * family.usd_in * CACHE_WRITE
            + self.written_1h * family.usd_in * CACHE_WRITE_1H
            + self.counted_out * family.usd_out
        )
        return cost * bill.factor / _MILLION + bill.extra_usd + self.searches * SEARCH_USD

    @property
    def lost(self) -> bool:
        """Whether the provider reported no counts that can be charged."""
        kind, is_short = self.behaviour.counts, self.tokens_out - self.thinking <= SHORT_TOKENS
        are_right = kind in ("right", "late", "running") or (kind == "below the text" and is_short)
        return not (self.is_complete and are_right)


@dataclass(slots=True)
class CountingProvider:
    """Answers every model as the story draws it."""

    behaviour_of: Callable[[str, int], Behaviour]
    """Returns the behaviour for a marker and the number of its request, from 0."""
    generations: list[Generation] = field(default_factory=list)
    _books: Books = field(default_factory=Books)
    _requests: dict[str, int] = field(default_factory=dict)

    def wire(self) -> Wire:
        """Return the wire that routes every request here."""
        return self

    async def aclose(self) -> None:
        """Close nothing."""

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, note_sent: Callable[[], None]
    ) -> WireReply:
        """Take a request; the reply begins after the way there and back."""
        clock = asyncio.get_running_loop().time
        path = urlsplit(url).path.removeprefix("/v1" if "/messages" not in url else "")
        body = json.loads(content)
        found = _MARKER.search(content)
        marker = "?" if found is None else found[0].decode()
        family = OF_MODEL[body["model"]]
        behaviour = self.behaviour_of(marker, self._requests.get(marker, 0))
        asked_at = clock()
        await asyncio.sleep(behaviour.connect_seconds)
        self._requests[marker] = self._requests.get(marker, 0) + 1
        note_sent()
        if body.get("stream") and not family.streams:
            await asyncio.sleep(2 * behaviour.latency_seconds)
            return _refusal(400, "Unsupported value: 'stream' does not support true.")
        if behaviour.status != 200:
            await asyncio.sleep(2 * behaviour.latency_seconds)
            return _refusal(behaviour.status, "overloaded")
        bill = self._books.bill(path, body, family)
        if bill.tokens_in > family.context_tokens:
            await asyncio.sleep(2 * behaviour.latency_seconds)
            return _refusal(400, "The prompt is longer than the context window.")
        made = Generation(marker, family, bill, behaviour, asked_at, clock(), CALL.get(None))
        made.is_streamed = bool(body.get("stream"))
        made.tokens_out = min(_output_limit(body, family), behaviour.output_tokens)
        made.thinking = int(made.tokens_out * behaviour.thinking_share)
        searching = bill.searches * SEARCH_SECONDS
        made.began_at = clock() + behaviour.latency_seconds + behaviour.prefill_seconds + searching
        self._cache(made, body)
        self.generations.append(made)
        try:
            if behaviour.hangs:
                await asyncio.Event().wait()
            reply = _Reply(made, path, self._books)
            await asyncio.sleep(reply.head_seconds)
        except asyncio.CancelledError:
            _closed(made)
            raise
        return reply

    def _cache(self, made: Generation, body: Mapping[str, Any]) -> None:
        seconds, share = cached_seconds(body), made.behaviour.cached_share
        made.cached = int(made.bill.tokens_in * share)
        if seconds and not share:
            made.written = made.bill.tokens_in
            made.written_1h = made.written if seconds == 3600 else 0


def _output_limit(body: Mapping[str, Any], family: Family) -> int:
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    limits = [n for name in names if isinstance(n := body.get(name), int)]
    return min(limits, default=family.max_output_tokens)


def _closed(made: Generation) -> None:
    """Note that the service closed the connection now."""
    behaviour = made.behaviour
    part_seconds = behaviour.part_tokens / behaviour.tokens_per_second
    now = asyncio.get_running_loop().time()
    if made.stopped_at is None and not made.is_complete:
        made.closed_at = now
        step_seconds = min(part_seconds, behaviour.prefill_seconds, MAX_STEP_SECONDS)
        made.stopped_at = now + behaviour.latency_seconds + step_seconds


@dataclass(slots=True)
class _Refusal:
    """A whole reply without success."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    async def parts(self) -> AsyncGenerator[bytes]:
        yield self.content

    def close(self) -> None:
        """Close nothing."""


def _refusal(status: int, message: str) -> _Refusal:
    document = {"error": {"message": message, "type": "error", "param": "stream", "code": None}}
    return _Refusal(status, json.dumps(document).encode(), {"content-type": "application/json"})


class _Reply:
    """A reply that arrives while it is generated."""

    status = 200

    def __init__(self, made: Generation, path: str, books: Books) -> None:
        self._made = made
        self._books = books
        self._writer = _WRITERS[path](made, f"id-{made.marker[1:-1].replace('/', '-')}")
        kind = "text/event-stream" if made.is_streamed else "application/json"
        self.headers: Mapping[str, str] = {"content-type": kind}
        behaviour = made.behaviour
        seconds = 2 * behaviour.latency_seconds
        if not made.is_streamed:
            seconds = made.began_at - made.arrived_at + behaviour.latency_seconds
            seconds += made.tokens_out / behaviour.tokens_per_second
        self.head_seconds = seconds

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the reply in pieces, each when it arrives."""
        made, behaviour = self._made, self._made.behaviour
        clock = asyncio.get_running_loop().time
        timeline = list(self._timeline())
        size = sum(len(data) for _, data in timeline)
        left = size if behaviour.cut_at is None else int(size * behaviour.cut_at)
        try:
            for at, data in timeline:
                await asyncio.sleep(max(0.0, at - clock()))
                if left < len(data):
                    yield data[:left]
                    made.closed_at = made.stopped_at = clock()
                    if behaviour.ends_cleanly:
                        return
                    raise ConnectionFailedError
                left -= len(data)
                middle = len(data) // 2
                yield data[:middle]
                yield data[middle:]
            made.is_complete = True
            self._books.responses[self._writer.id] = made.counted, made.bill.is_unusual
        finally:
            _closed(made)

    def close(self) -> None:
        """Close the connection."""
        _closed(self._made)

    def _timeline(self) -> Iterator[tuple[float, bytes]]:
        """Yield each piece of the body with the time at which it arrives."""
        made, behaviour, writer = self._made, self._made.behaviour, self._writer
        latency, speed = behaviour.latency_seconds, behaviour.tokens_per_second
        first = made.arrived_at + 2 * latency
        generated = made.began_at + made.tokens_out / speed + latency
        late = behaviour.late_seconds if behaviour.counts == "late" else 0.0
        if not made.is_streamed:
            yield max(first, generated), writer.whole()
            return
        yield first, b"".join(writer.start())
        for number in range(made.bill.searches):
            before = (made.bill.searches - number - 1) * SEARCH_SECONDS
            yield made.began_at - before + latency, b"".join(writer.search(number))
        thought = 0 if behaviour.shows_thinking else made.thinking
        seconds = 5.0
        while thought and seconds < made.thinking / speed:
            yield made.began_at + seconds + latency, writer.ping()
            seconds += 5.0
        for before in range(thought, made.tokens_out, behaviour.part_tokens):
            size = min(behaviour.part_tokens, made.tokens_out - before)
            at = made.began_at + (before + size) / speed + latency
            shown = before < made.thinking
            yield at, b"".join(writer.part(before + size, words(before, size), thinking=shown))
        yield max(first, generated), b"".join(writer.finish())
        yield max(first, generated) + late, b"".join(writer.end())


def words(at: int, count: int) -> str:
    """Return that many common words, one token each."""
    return "".join(f" {_WORDS[(at + n) % len(_WORDS)]}" for n in range(count))


class _Writer(ABC):
    """Writes one reply in the form of an API."""

    def __init__(self, made: Generation, identifier: str) -> None:
        self.id = identifier
        self._made = made
        self._behaviour = made.behaviour
        self._choices = made.bill.choices
        self._text = words(made.thinking, made.tokens_out - made.thinking)

    def counts(self, tokens_out: int | None = None) -> dict[str, Any] | None:
        """Return the counts that the provider reports, true or not; None are no counts."""
        made, kind = self._made, self._behaviour.counts
        if kind == "missing":
            return None
        if tokens_out is None:
            tokens_out = self._all_tokens
        reasoning = made.thinking * self._choices
        is_final = tokens_out == self._all_tokens
        tokens_in = made.counted_in if is_final else made.bill.tokens_in
        counts = self._true_counts(tokens_in, tokens_out, reasoning)
        spoilt: Mapping[str, Callable[[int], Any]] = {
            "negative": lambda n: -n - 1,
            "huge": lambda n: n * 10**15 + 10**15,
            "text": str,
            "fraction": lambda n: n + 0.5,
        }
        if kind == "contradictory":
            return self._contradicted(counts)
        if kind == "below the text":
            if not self._is_long:
                return counts
            return self._true_counts(tokens_in, 1, 0)
        if (change := spoilt.get(kind)) is not None:
            return {k: change(v) if isinstance(v, int) else v for k, v in counts.items()}
        return counts

    @property
    def _is_long(self) -> bool:
        """Whether one token is too little for the text of one choice."""
        return self._made.tokens_out - self._made.thinking > SHORT_TOKENS

    @property
    def _all_tokens(self) -> int:
        return self._made.tokens_out * self._choices + self._made.bill.billed_out

    def search(self, number: int) -> Iterator[bytes]:
        """Write a search that the provider has made."""
        yield from ()

    @abstractmethod
    def _contradicted(self, counts: dict[str, Any]) -> dict[str, Any]:
        """Return counts whose parts exceed the whole."""

    @abstractmethod
    def _true_counts(self, tokens_in: int, tokens_out: int, reasoning: int) -> dict[str, Any]: ...

    @abstractmethod
    def start(self) -> Iterator[bytes]: ...

    @abstractmethod
    def part(self, so_far: int, text: str, *, thinking: bool) -> Iterator[bytes]: ...

    @abstractmethod
    def finish(self) -> Iterator[bytes]: ...

    @abstractmethod
    def end(self) -> Iterator[bytes]: ...

    def ping(self) -> bytes:
        return b": keep-alive\n\n"

    @abstractmethod
    def whole(self) -> bytes: ...

    @property
    def _reason(self) -> str:
        made = self._made
        return "length" if made.tokens_out < self._behaviour.output_tokens else "stop"


class _ChatWriter(_Writer):
    def _true_counts(self, tokens_in: int, tokens_out: int, reasoning: int) -> dict[str, Any]:
        return {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
            "prompt_tokens_details": {"cached_tokens": self._made.cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def _contradicted(self, counts: dict[str, Any]) -> dict[str, Any]:
        details = {"reasoning_tokens": counts["completion_tokens"] + 1000}
        return {**counts, "completion_tokens": 1, "completion_tokens_details": details}

    def _chunk(self, choices: Sequence[Any], **more: Any) -> bytes:
        common = {"id": self.id, "object": "chat.completion.chunk", "created": 1}
        return _data({**common, "model": self._made.family.model, "choices": choices, **more})

    def start(self) -> Iterator[bytes]:
        for index in range(self._choices):
            delta = {"role": "assistant", "content": ""}
            yield self._chunk([{"index": index, "delta": delta, "finish_reason": None}])

    def part(self, so_far: int, text: str, *, thinking: bool) -> Iterator[bytes]:
        running = {}
        if self._behaviour.counts == "running":
            running["usage"] = self.counts(so_far * self._choices)
        for index in range(self._choices):
            delta: dict[str, Any] = {"reasoning_content" if thinking else "content": text}
            if self._behaviour.calls_tool and not thinking:
                called = {"id": "call_1", "type": "function", "index": 0}
                function = {"name": "look_up", "arguments": text}
                delta = {"tool_calls": [{**called, "function": function}]}
            choice = {"index": index, "delta": delta, "finish_reason": None}
            yield self._chunk([choice], **running)

    def finish(self) -> Iterator[bytes]:
        for index in range(self._choices):
            yield self._chunk([{"index": index, "delta": {}, "finish_reason": self._reason}])

    def end(self) -> Iterator[bytes]:
        if (counts := self.counts()) is not None:
            yield self._chunk([], usage=counts)
        yield b"data: [DONE]\n\n"

    def whole(self) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": self._text}
        if self._behaviour.shows_thinking:
            message["reasoning_content"] = words(0, self._made.thinking)
        choices = [
            {"index": index, "message": message, "finish_reason": self._reason}
            for index in range(self._choices)
        ]
        document = {"id": self.id, "object": "chat.completion", "created": 1, "choices": choices}
        return _whole({**document, "model": self._made.family.model}, self.counts())


class _ResponseWriter(_Writer):
    def _true_counts(self, tokens_in: int, tokens_out: int, reasoning: int) -> dict[str, Any]:
        return {
            "input_tokens": tokens_in,
            "input_tokens_details": {"cached_tokens": self._made.cached},
            "output_tokens": tokens_out,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": tokens_in + tokens_out,
        }

    def _contradicted(self, counts: dict[str, Any]) -> dict[str, Any]:
        details = {"reasoning_tokens": counts["output_tokens"] + 1000}
        return {**counts, "output_tokens": 1, "output_tokens_details": details}

    def _response(self, status: str, output: Sequence[Any], **more: Any) -> dict[str, Any]:
        about = {"id": self.id, "object": "response", "created_at": 1, "status": status}
        return {**about, "model": self._made.family.model, "output": output, "error": None, **more}

    def start(self) -> Iterator[bytes]:
        yield _event("response.created", response=self._response("in_progress", [], usage=None))

    def part(self, so_far: int, text: str, *, thinking: bool) -> Iterator[bytes]:
        kind = "reasoning_summary_text" if thinking else "output_text"
        if self._behaviour.calls_tool and not thinking:
            kind = "function_call_arguments"
        yield _event(f"response.{kind}.delta", item_id="i", output_index=99, delta=text)

    def search(self, number: int) -> Iterator[bytes]:
        item = self._searches[number]
        yield _event("response.output_item.added", output_index=number, item=item)
        yield _event("response.output_item.done", output_index=number, item=item)

    @property
    def _searches(self) -> list[dict[str, Any]]:
        searched = {"type": "web_search_call", "status": "completed"}
        return [{**searched, "id": f"ws_{n}"} for n in range(self._made.bill.searches)]

    @property
    def _item(self) -> dict[str, Any]:
        if self._behaviour.calls_tool:
            called = {"id": "fc_1", "type": "function_call", "call_id": "call_1"}
            return {**called, "name": "look_up", "arguments": self._text}
        content = [{"type": "output_text", "text": self._text, "annotations": []}]
        return {"id": "msg_1", "type": "message", "role": "assistant", "content": content}

    def finish(self) -> Iterator[bytes]:
        index = self._made.bill.searches
        yield _event("response.output_item.done", output_index=index, item=self._item)

    def end(self) -> Iterator[bytes]:
        status = "completed" if self._reason == "stop" else "incomplete"
        output = [*self._searches, self._item]
        whole = self._response(status, output, usage=self.counts())
        yield _event(f"response.{status}", response=whole)

    def whole(self) -> bytes:
        output = [*self._searches, self._item]
        return _whole(self._response("completed", output), self.counts())


class _MessageWriter(_Writer):
    def _true_counts(self, tokens_in: int, tokens_out: int, reasoning: int) -> dict[str, Any]:
        made = self._made
        five = made.written - made.written_1h
        return {
            "input_tokens": tokens_in - made.cached - made.written,
            "cache_read_input_tokens": made.cached,
            "cache_creation_input_tokens": made.written,
            "cache_creation": {
                "ephemeral_5m_input_tokens": five,
                "ephemeral_1h_input_tokens": made.written_1h,
            },
            "output_tokens": tokens_out,
            "server_tool_use": {"web_search_requests": made.searches},
        }

    def _contradicted(self, counts: dict[str, Any]) -> dict[str, Any]:
        more = {"ephemeral_1h_input_tokens": counts["cache_creation_input_tokens"] + 10**6}
        return {**counts, "cache_creation": more}

    def _message(self, content: Sequence[Any], reason: str | None) -> dict[str, Any]:
        about = {"id": self.id, "type": "message", "role": "assistant", "content": content}
        return {**about, "model": self._made.family.model, "stop_reason": reason}

    def start(self) -> Iterator[bytes]:
        message = self._message([], None)
        counts = self.counts(1)
        if self._behaviour.early_counts and counts is not None:
            message["usage"] = counts
        yield _event("message_start", message=message)

    def ping(self) -> bytes:
        return _event("ping")

    def search(self, number: int) -> Iterator[bytes]:
        for at, block in enumerate(_searched(number)):
            index = 2 * number + at
            yield _event("content_block_start", index=index, content_block=block)
            yield _event("content_block_stop", index=index)

    def part(self, so_far: int, text: str, *, thinking: bool) -> Iterator[bytes]:
        index, delta = self._first + int(self._made.thinking > 0 and not thinking), "text_delta"
        block: dict[str, Any] = {"type": "text", "text": ""}
        written = {"type": delta, "text": text}
        if thinking:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            written = {"type": "thinking_delta", "thinking": text}
        elif self._behaviour.calls_tool:
            block = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}
            written = {"type": "input_json_delta", "partial_json": text}
        before = so_far - len(text.split())
        is_first = before in (0, self._made.thinking)
        if is_first:
            yield _event("content_block_start", index=index, content_block=block)
        yield _event("content_block_delta", index=index, delta=written)

    def finish(self) -> Iterator[bytes]:
        yield _event("content_block_stop", index=self._first + int(self._made.thinking > 0))

    def end(self) -> Iterator[bytes]:
        counts = self.counts()
        delta = {"stop_reason": "end_turn" if self._reason == "stop" else "max_tokens"}
        about = {} if counts is None else {"usage": counts}
        yield _event("message_delta", delta=delta, **about)
        yield _event("message_stop")

    def whole(self) -> bytes:
        searched = [each for n in range(self._made.bill.searches) for each in _searched(n)]
        content = [*searched, {"type": "text", "text": self._text}]
        return _whole(self._message(content, "end_turn"), self.counts())

    @property
    def _first(self) -> int:
        """Index of the first block after the searches."""
        return 2 * self._made.bill.searches


def _searched(number: int) -> Sequence[dict[str, Any]]:
    """Return the blocks of one search."""
    about = {"id": f"srvtoolu_{number}", "name": "web_search", "input": {}}
    result = {"tool_use_id": about["id"], "content": []}
    return (
        {"type": "server_tool_use", **about},
        {"type": "web_search_tool_result", **result},
    )


_WRITERS: Final[Mapping[str, Callable[[Generation, str], _Writer]]] = {
    CHAT: _ChatWriter,
    RESPONSES: _ResponseWriter,
    MESSAGES: _MessageWriter,
}


def some_behaviour(chance: Random) -> Behaviour:
    """Draw how the provider treats a request."""
    counts = chance.choices(
        ("right", "late", "missing", "running", *IMPOSSIBLE),
        (10, 2, 3, 1, *[0.5] * len(IMPOSSIBLE)),
    )[0]
    return Behaviour(
        status=chance.choices((200, 500, 429), (12, 1, 0.5))[0],
        hangs=chance.random() < 0.03,
        connect_seconds=chance.choice((0.0, 0.0, 0.0, 0.3)),
        latency_seconds=chance.choice((0.0, 0.02, 0.1)),
        prefill_seconds=chance.choice((0.05, 0.3, 3.0)),
        tokens_per_second=chance.choice((200.0, 200.0, 120.0, 30.0)),
        output_tokens=chance.choice((1, 5, 40, 150, 400, 1200, 10**6)),
        thinking_share=chance.choice((0.0, 0.0, 0.0, 0.3, 0.95)),
        shows_thinking=chance.random() < 0.3,
        part_tokens=chance.choice((3, 20, 90, 300)),
        calls_tool=chance.random() < 0.15,
        counts=counts,
        early_counts=chance.random() < 0.8,
        late_seconds=chance.choice((0.5, 4.0, 20.0)),
        cut_at=chance.random() if chance.random() < 0.2 else None,
        ends_cleanly=chance.random() < 0.5,
        cached_share=chance.choice((0.0, 0.0, 0.5, 0.98)),
    )


def _data(document: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})


def _whole(document: dict[str, Any], counts: Mapping[str, Any] | None) -> bytes:
    return json.dumps(document if counts is None else {**document, "usage": counts}).encode()
