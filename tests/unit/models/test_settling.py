"""Charges of calls whose final token counts did not arrive."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caseworker.core.budget.budget import Budget
from caseworker.engine.call import CallFailedError
from caseworker.models.client_bodies import read_body
from caseworker.models.families import family_of
from caseworker.models.fields.tables import TABLES
from caseworker.models.lost_usage import CALL_TOKENS
from caseworker.models.ports import SendState
from caseworker.models.pricing import TokenPrice
from caseworker.models.relay import Relay
from caseworker.models.speeds import tokens_per_second_at
from caseworker.models.table import Tier
from caseworker.models.tokens import near_tokens
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.failures import Failures
from caseworker.models.wires.openai import openai_provider
from caseworker.models.wires.reply_body import ReplyBody
from caseworker.models.wires.transport import ConnectionFailedError
from caseworker.platform.logs.secret_mask import SecretMask
from tests.unit.models.asking import Asking, asking_after, priced
from tests.unit.models.wires.captured import Capture, captures

MODEL = "gpt-5-nano"
"""Its tokenizer is the one that the estimate was measured with."""
TABLE_OF = {"openai": "chat_completions", "anthropic": "messages", "responses": "responses"}
PATHS = {"openai": "/chat/completions", "anthropic": "/v1/messages", "responses": "/responses"}
WORDS = "The report says that sales in the north rose by a tenth in the third quarter. "
SPEED = 200
FREE_OF_CHARGE = TokenPrice(usd_per_million_in=Decimal(0), usd_per_million_out=Decimal(0))
END = "end"
CUT = "cut"
HOLD = "hold"
COUNTED = {"input_tokens": 20, "cache_read_input_tokens": 3000, "cache_creation_input_tokens": 100}


@dataclass
class TimedReply:
    """A reply whose parts arrive at given times; the wire that carries it keeps the requests."""

    parts_after: Sequence[tuple[float, bytes]]
    """Parts of the body, each with the seconds before it."""
    then: str = END
    status: int = 200
    content_type: str = "text/event-stream"
    bodies: list[Any] = field(default_factory=list)

    @property
    def headers(self) -> Mapping[str, str]:
        """The type of the content."""
        return {"content-type": self.content_type}

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, note_sent: Callable[[], None]
    ) -> "TimedReply":
        """Note the request."""
        note_sent()
        self.bodies.append(json.loads(content))
        return self

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the parts at their times."""
        for seconds, part in self.parts_after:
            await asyncio.sleep(seconds)
            yield part
        if self.then == HOLD:
            await asyncio.Event().wait()
        if self.then == CUT:
            raise ConnectionFailedError

    def close(self) -> None:
        """Close nothing."""

    async def aclose(self) -> None:
        """Close nothing."""


def event(document: Any) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(document)}\n\n".encode()


def chunk(text: str, index: int = 0, **more: Any) -> bytes:
    """Return a chunk of a streamed chat completion."""
    return event({"choices": [{"index": index, "delta": {"content": text}, **more}]})


def tokens_of(text: str) -> int:
    """Return the estimate of a text's tokens."""
    return near_tokens(text, family_of(MODEL))


def charged(
    reply: TimedReply,
    *,
    dialect: str = "openai",
    cancel_after: float | None = None,
    limit: int = 100_000,
    stream: bool = True,
    **body: Any,
) -> tuple[dict[str, Any], Asking]:
    """Relay a call and cancel it; return its node's counts and the estimated part."""
    build = anthropic_provider if dialect == "anthropic" else openai_provider

    async def story(asking: Asking) -> None:
        provider = build(base_url="http://models.test", wire=reply)
        chosen = replace(asking.models.table[Tier.SMALL], provider=provider)
        sent = {"model": MODEL, "max_tokens": limit, "stream": stream, **body}
        sent |= {"messages": [{"role": "user", "content": "hi"}]}
        table = TABLES[TABLE_OF[dialect]]
        call = await asking.models.relayed(
            asking.context,
            chosen,
            read_body(sent, "messages", table.read(sent, limits_spending=False)),
            alias="small",
            key="k",
            request_hash="h",
            body=sent,
            headers={},
            relay=Relay(),
            path=PATHS[dialect],
            limit_fields=("max_tokens",),
            made_in={},
        )
        calls, parent = asking.context.calls, asking.context.trace_parent
        work = asyncio.create_task(calls.perform(call, parent=parent, scope=asking.context.scope))
        await asyncio.wait([work], timeout=cancel_after)
        work.cancel()
        await asyncio.wait([work])

    asking = asking_after(story, priced(MODEL, max_output_tokens=500), budget=Budget())
    [node] = asking.calls()
    estimated: Any = (node["metadata"] or {}).get("estimated", {})
    return {"in": node["tokens_in"], "out": node["tokens_out"], "estimated": estimated}, asking


@pytest.mark.req("cw/3.lost")
def test_the_received_text_of_all_choices_is_charged() -> None:
    """Three choices were relayed, and the call was cancelled at once."""
    parts = [(0.0, b"".join(chunk(WORDS * 9, index) for index in range(3)))]

    charge, _ = charged(TimedReply(parts, HOLD), cancel_after=0.0001, n=3)

    assert charge["out"] == pytest.approx(tokens_of(WORDS * 27), abs=4)
    assert charge["estimated"]["tokens_out"] == charge["out"]


CALLS = {
    "openai": [
        event(
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {
                            "tool_calls": [
                                {
                                    "index": at,
                                    "id": "c",
                                    "function": {"name": "add", "arguments": "{}"},
                                }
                            ]
                        },
                    }
                ]
            }
        )
        for at in range(3)
    ],
    "anthropic": [
        event(
            {
                "type": "content_block_start",
                "index": at,
                "content_block": {"type": "tool_use", "id": "c", "name": "add", "input": {}},
            }
        )
        for at in range(3)
    ],
    "responses": [
        event(
            {
                "type": "response.output_item.added",
                "output_index": at,
                "item": {"type": "function_call", "name": "add"},
            }
        )
        for at in range(3)
    ],
}


@pytest.mark.req("cw/3.lost")
@pytest.mark.parametrize("dialect", CALLS)
def test_tool_calls_are_charged_beside_their_arguments(dialect: str) -> None:
    """Models write more for a call than its name and its arguments."""
    parts = [(0.0, b"".join(CALLS[dialect]))]

    charge, _ = charged(TimedReply(parts, HOLD), dialect=dialect, cancel_after=0.0001)

    assert 3 * CALL_TOKENS <= charge["out"] <= 3 * CALL_TOKENS + 30


@pytest.mark.req("cw/3.lost")
def test_every_relayed_word_has_a_token() -> None:
    """Text of words that are tokens is charged in full."""
    charge, _ = charged(TimedReply([(0.0, chunk("tok " * 5000))], HOLD), cancel_after=0.0001)

    assert charge["out"] >= 5000


@pytest.mark.req("cw/3.lost")
@pytest.mark.parametrize("choices", [1, 4])
def test_silence_before_and_after_the_parts_is_charged_for_each_choice(choices: int) -> None:
    """Pauses between parts are not charged: the next part shows the text of the pause."""
    parts = [(2.0, chunk("a")), (5.0, chunk("b")), (5.0, chunk("c"))]

    charge, _ = charged(TimedReply(parts, HOLD), cancel_after=15, n=choices)

    assert charge["out"] == pytest.approx((2 + 3) * SPEED * choices, abs=4)


@pytest.mark.req("cw/3.lost")
def test_a_call_without_a_stream_is_charged_by_its_time() -> None:
    """Nothing shows how far the reply has come."""
    charge, _ = charged(TimedReply([], HOLD), cancel_after=3, stream=False)

    assert charge["out"] == 3 * SPEED


def test_the_charge_is_at_most_the_reservation() -> None:
    """The limit was a part of the request."""
    charge, _ = charged(TimedReply([(0.0, chunk(WORDS * 99))], HOLD), cancel_after=9, limit=70)

    assert charge["out"] == 70


REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
HIDDEN = {
    "responses": [
        (0.0, event({"type": "response.output_text.delta", "output_index": 0, "delta": "a"})),
        (0.0, event({"type": "response.output_item.added", "output_index": 1, "item": REASONING})),
        (4.0, event({"type": "response.output_text.delta", "output_index": 2, "delta": "b"})),
    ],
    "anthropic": [
        (
            0.0,
            event({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}),
        ),
        (
            0.0,
            event(
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": "a"},
                }
            ),
        ),
        (
            0.0,
            event(
                {
                    "type": "content_block_start",
                    "index": 1,
                    "content_block": {"type": "redacted_thinking", "data": "x" * 999},
                }
            ),
        ),
        (
            4.0,
            event({"type": "content_block_start", "index": 2, "content_block": {"type": "text"}}),
        ),
        (
            0.0,
            event(
                {
                    "type": "content_block_delta",
                    "index": 2,
                    "delta": {"type": "text_delta", "text": "b"},
                }
            ),
        ),
    ],
}


@pytest.mark.req("cw/3.lost")
@pytest.mark.parametrize("dialect", HIDDEN)
def test_hidden_thinking_is_charged_by_its_time(dialect: str) -> None:
    """The model thinks for four seconds between two parts, and shows nothing."""
    charge, _ = charged(TimedReply(HIDDEN[dialect], HOLD), dialect=dialect, cancel_after=4.0001)

    assert charge["out"] == pytest.approx(4 * SPEED, abs=4)


@pytest.mark.req("cw/3.lost")
def test_counts_from_the_beginning_of_a_stream_replace_the_estimate() -> None:
    """Anthropic counts the input, with its caches, before the first part."""
    usage = {**COUNTED, "output_tokens": 1}
    begin = event({"type": "message_start", "message": {"content": [], "usage": usage}})
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}

    charge, asking = charged(
        TimedReply([(0.0, begin + event(text))], HOLD), dialect="anthropic", cancel_after=0.0001
    )

    assert charge["in"] == 3120
    assert 1 <= charge["out"] <= 3
    # A dollar for each token: a quarter more for written ones; cached ones have no discount here.
    assert asking.run.scope.to_dict()["cost_usd"] == 3120 + 25 + charge["out"]


def test_impossible_counts_from_the_beginning_of_a_stream_are_not_used() -> None:
    """The estimate of the input holds."""
    usage = {"input_tokens": 10**12, "output_tokens": 1}
    begin = event({"type": "message_start", "message": {"content": [], "usage": usage}})

    charge, _ = charged(TimedReply([(0.0, begin)], HOLD), dialect="anthropic", cancel_after=0.0001)

    assert 0 < charge["in"] < 1000


FINAL = {
    "openai": [
        chunk("a", finish_reason="stop"),
        event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
    ],
    "anthropic": [
        event({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 7}}}),
        event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 2},
            }
        ),
    ],
}


@pytest.mark.parametrize("dialect", FINAL)
def test_final_counts_hold_even_if_the_end_of_the_stream_is_lost(dialect: str) -> None:
    """Nothing is estimated."""
    reply = TimedReply([(1.0, b"".join(FINAL[dialect]))], HOLD)

    charge, _ = charged(reply, dialect=dialect, cancel_after=9)

    assert charge == {"in": 7, "out": 2, "estimated": {}}


def test_running_totals_are_a_lower_bound() -> None:
    """Some endpoints count in every chunk; the text alone would be less here."""
    usage = {"prompt_tokens": 7, "completion_tokens": 90, "total_tokens": 97}
    part = event({"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": usage})

    charge, _ = charged(TimedReply([(0.0, part)], HOLD), cancel_after=0.0001)

    assert (charge["in"], charge["out"]) == (7, 90)
    assert charge["estimated"]


def call_model(reply: TimedReply, **settings: Any) -> tuple[dict[str, Any], Asking]:
    """Ask as an agent does, without reading the parts; return the node of the call."""

    async def story(asking: Asking) -> None:
        provider = openai_provider(base_url="http://models.test", wire=reply)
        chosen = replace(asking.models.table[Tier.SMALL], provider=provider)
        asking.models.table[Tier.SMALL] = chosen
        try:
            await asking.ask()
        except CallFailedError:
            return

    model = replace(priced(MODEL, max_output_tokens=4096), **settings)
    asking = asking_after(story, model)
    node: Any = asking.calls()[0]
    return node, asking


@pytest.mark.req("cw/3.lost")
def test_the_broken_reply_of_an_agent_is_charged_by_what_arrived() -> None:
    """The provider is asked for a stream although the parts are not read."""
    reply = TimedReply([(0.0, chunk(WORDS * 5))], CUT)

    node, _ = call_model(reply)

    assert [body["stream"] for body in reply.bodies] == [True, True, True]
    assert node["tokens_out"] == 3 * tokens_of(WORDS * 5)
    assert node["metadata"]["estimated"]["tokens_out"] == node["tokens_out"]


@pytest.mark.req("cw/3.lost")
def test_a_long_reply_of_an_agent_is_read_in_batches() -> None:
    """The end of a reply, or its loss, would otherwise stall the process for long."""
    parts = [chunk("word " * 1_000) for _ in range(1_000)]
    unread, state = list[int](), cast("SendState", None)

    class Watched(TimedReply):
        async def parts(self) -> AsyncGenerator[bytes]:
            async for part in super().parts():
                yield part
                unread.append(sum(len(each) for _, each in state.unread))

    async def read() -> list[Any]:
        nonlocal state
        state = SendState()
        state.read_later = lambda _, parts: None
        body, failures = ReplyBody(), Failures("p", False, SecretMask(()))
        reply: Any = Watched([(0.0, part) for part in parts])
        return [document async for _, document in body.documents(reply, failures, state)]

    assert len(asyncio.run(read())) == len(parts)
    assert max(unread) <= 1024 * 1024


@pytest.mark.req("cw/3.lost")
def test_counts_are_read_from_a_stream_that_stays_open() -> None:
    """Some endpoints send no ``[DONE]`` and do not close the connection."""
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    parts = [chunk("fo"), chunk("ur"), chunk("", finish_reason="stop"), event(usage)]

    node, asking = call_model(TimedReply([(0.1, part) for part in parts], HOLD))

    assert (node["tokens_in"], node["tokens_out"]) == (7, 2)
    assert "estimated" not in node["metadata"]
    assert asking.run.scope.to_dict()["api_calls"] == 1


@dataclass
class RefusesStreams(TimedReply):
    """An endpoint that refuses to stream."""

    says: str = "Unsupported value: 'stream' does not support true with this model."

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, note_sent: Callable[[], None]
    ) -> TimedReply:
        """Refuse a request for a stream."""
        await super().post(url, headers, content, note_sent)
        if not self.bodies[-1].get("stream"):
            return self
        said = {"error": {"message": self.says, "code": "unsupported_value"}}
        return TimedReply([(0.0, json.dumps(said).encode())], status=400)


COMPLETE = json.dumps(
    {
        "choices": [{"index": 0, "message": {"content": "four"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }
).encode()


@pytest.mark.req("cw/3.lost")
@pytest.mark.parametrize(
    "says",
    [
        "Unsupported value: 'stream' does not support true with this model.",
        "Your organization must be verified to stream this model.",
        "Streaming is not supported for this model.",
    ],
)
def test_a_model_that_refuses_to_stream_is_asked_again_at_once(says: str) -> None:
    """Later requests ask for no stream, and no attempt is counted for the refusal."""
    reply = RefusesStreams([(0.0, COMPLETE)], says=says)

    async def story(asking: Asking) -> None:
        provider = openai_provider(base_url="http://models.test", wire=reply)
        chosen = replace(asking.models.table[Tier.SMALL], provider=provider)
        asking.models.table[Tier.SMALL] = chosen
        for key in ("first", "second"):
            assert (await asking.ask(key=key)).text == "four"

    asking = asking_after(story, priced(MODEL))

    assert ["stream" in body for body in reply.bodies] == [True, False, False]
    assert asking.run.scope.to_dict()["api_calls"] == 2
    assert [node["tokens_out"] for node in asking.calls()] == [2, 2]


def test_a_model_can_be_configured_not_to_stream() -> None:
    """Its lost calls are charged by time."""
    reply = TimedReply([(0.0, COMPLETE)], content_type="application/json")

    node, _ = call_model(reply, stream=False)

    assert reply.bodies[0]["stream"] is False
    assert "stream_options" not in reply.bodies[0]
    assert node["tokens_out"] == 2


@pytest.mark.req("cw/3.lost")
def test_counts_above_the_reservation_are_marked_as_overrun() -> None:
    """The whole cost is charged; the node shows the excess over the reservation."""
    usage = {"prompt_tokens": 7, "completion_tokens": 5096}
    body = json.dumps({**json.loads(COMPLETE), "usage": usage}).encode()

    node, asking = call_model(TimedReply([(0.0, body)]))

    assert node["cost_usd"] == 5103
    reserved = node["cost_usd"] - node["metadata"]["overrun_usd"]
    assert 4096 < reserved < 5096
    assert node["metadata"]["overrun_tokens"] == node["metadata"]["overrun_usd"]
    assert asking.run.scope.to_dict()["cost_usd"] == 5103


@pytest.mark.req("cw/3.lost")
def test_the_overruns_of_all_attempts_are_added_without_a_price_too() -> None:
    """The connection breaks after the counts, three times; the model costs nothing."""
    counts = {"usage": {"prompt_tokens": 7, "completion_tokens": 5096}, "choices": []}
    reply = TimedReply([(0.0, chunk("four") + event(counts))], CUT)

    node, asking = call_model(reply, price=FREE_OF_CHARGE)

    assert node["tokens_out"] == 3 * 5096
    assert 3 * 4096 < node["tokens_out"] - node["metadata"]["overrun_tokens"] + 3 * 7 < 3 * 5096
    assert "overrun_usd" not in node["metadata"]
    assert asking.run.scope.to_dict()["tokens"] == 3 * 5103


@pytest.mark.parametrize(
    ("url", "speed"),
    [
        (None, 200),
        ("https://api.openai.com/v1", 200),
        ("https://api.cerebras.ai/v1", 3000),
        ("https://api.groq.com/openai/v1", 1000),
        ("https://notgroq.com/v1", 200),
    ],
)
def test_the_speed_of_a_model_is_that_of_its_provider(url: str | None, speed: int) -> None:
    """Unknown providers have the usual speed."""
    assert tokens_per_second_at(url) == speed


STREAMS = [
    each
    for each in captures()
    if each.streamed and each.status == 200 and each.expected.get("usage")
]


def _written_in(body: bytes) -> Iterator[str]:
    """Yield the texts in the complete events of a torn stream."""
    for line in body.decode(errors="replace").splitlines()[:-1]:
        if not line.startswith("data: {"):
            continue
        document = json.loads(line.removeprefix("data: "))
        for choice in document.get("choices") or ():
            if isinstance(text := (choice.get("delta") or {}).get("content"), str):
                yield text
        if isinstance(text := (document.get("delta") or {}).get("text"), str):
            yield text


@settings(max_examples=60, deadline=None)
@given(
    capture=st.sampled_from(STREAMS),
    cut=st.integers(0, 30_000),
    pieces=st.integers(1, 5),
    pause=st.sampled_from([0.0, 0.01, 2.0]),
    then=st.sampled_from([CUT, HOLD]),
)
@pytest.mark.req("cw/3.lost")
def test_a_stream_that_is_torn_anywhere_is_charged_between_what_arrived_and_its_maximum(
    capture: Capture, cut: int, pieces: int, pause: float, then: str
) -> None:
    """The counts arrive late, torn or not at all."""
    body = capture.body[: cut % len(capture.body)]
    words = sum(len(text.split()) for text in _written_in(body))
    size = -(-len(body) // pieces) or 1
    parts = [(pause, body[at : at + size]) for at in range(0, len(body), size)]

    charge, asking = charged(
        TimedReply(parts, then), dialect=capture.dialect, cancel_after=pause * 5 + 1
    )

    cost = asking.run.scope.to_dict()["cost_usd"]
    assert isinstance(cost, Decimal | int | float)
    if charge["estimated"]:
        assert charge["in"] > 0
        assert words <= charge["out"] <= 100_000
    else:
        assert charge["out"] == capture.expected["usage"]["tokens_out"]
