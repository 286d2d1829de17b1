"""Contract of every real model provider for streams and tools, over real sockets."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from caseworker.models.ports import (
    Delta,
    Message,
    ModelProvider,
    ModelReply,
    ModelRequest,
    SendState,
    TokenUsage,
    ToolDefinition,
)
from caseworker.models.wires.openai import openai_provider
from caseworker.models.wires.transport import ModelTransport
from tests.support.fake_provider import DEFAULT_PLAN, FakeProvider, Step
from tests.support.model_line import FLAVOURS, Flavour, Line

ADD = ToolDefinition(
    name="add",
    description="Adds two numbers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
)
CALLS = [
    {"id": "call_1", "name": "add", "arguments": '{"a":1,"b":"\u00fc\\u00fc"}'},
    {"id": "call_2", "name": "add", "arguments": '{"a":3,"b":4}'},
]
CALLING = Step(
    text="Let me add.",
    thinking="One and one, I think.",
    tool_calls=CALLS,
    chunk_chars=3,
    tokens_in=40,
    tokens_out=9,
)
SCHEMA = {
    "type": "object",
    "properties": {"actions": {"type": "array", "items": {"type": "object"}}},
    "required": ["actions"],
}


def _words(deltas: list[Delta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)


async def test_a_stream_brings_the_whole_reply_in_parts(line: Line, flavour: Flavour) -> None:
    """The parts form the text, and the counts are those of the last chunk."""
    deltas = list[Delta]()
    step = Step(text="It is forty-two.", tokens_in=11, tokens_out=7, tokens_cached=4)

    reply = await line.ask(step, on_delta=deltas.append)

    assert reply.text == _words(deltas, "content") == "It is forty-two."
    assert len(deltas) > 1
    assert reply.finish_reason == flavour.stop
    assert reply.usage == TokenUsage(tokens_in=11, tokens_out=7, tokens_cached=4)
    assert (await line.request_body())["stream"] is True


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_calls_of_tools_come_with_the_text_beside_them(
    line: Line, flavour: Flavour, streamed: bool
) -> None:
    """Arguments are assembled from fragments that may break anywhere."""
    deltas = list[Delta]()
    listening: dict[str, Any] = {"on_delta": deltas.append} if streamed else {}

    reply = await line.ask(CALLING, tools=(ADD,), **listening)

    assert [(call.id, call.name) for call in reply.tool_calls] == [
        ("call_1", "add"),
        ("call_2", "add"),
    ]
    assert [json.loads(call.arguments) for call in reply.tool_calls] == [
        {"a": 1, "b": "\u00fc\u00fc"},
        {"a": 3, "b": 4},
    ]
    assert (reply.text, reply.thinking) == ("Let me add.", "One and one, I think.")
    assert reply.finish_reason == flavour.calling
    if streamed:
        assert _words(deltas, "content") == reply.text
        assert _words(deltas, "thinking") == reply.thinking


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_both_protocols_say_the_same(fake: FakeProvider, streamed: bool) -> None:
    """Replies and deltas are equal, except for names, finish reasons and provider state."""
    said: list[tuple[ModelReply, list[Delta]]] = []
    for flavour in FLAVOURS:
        provider, deltas = flavour.build(fake), list[Delta]()
        listening: dict[str, Any] = {"on_delta": deltas.append} if streamed else {}
        reply = await Line(fake, provider, flavour).ask(CALLING, tools=(ADD,), **listening)
        await provider.aclose()
        calls = tuple(
            replace(call, arguments=json.dumps(json.loads(call.arguments)))
            for call in reply.tool_calls
        )
        alike = replace(reply, model="", finish_reason="", provider_state=None, tool_calls=calls)
        said.append((alike, deltas))

    assert said[0] == said[1]


async def test_a_conversation_with_tools_is_sent_back_as_it_was(
    line: Line, fake: FakeProvider, flavour: Flavour, provider: ModelProvider
) -> None:
    """The request has the calls, their results in one turn, and the thinking with its signature."""
    first = await line.ask(CALLING, tools=(ADD,), on_delta=lambda _: None)
    await fake.reset()
    state = json.loads(json.dumps(first.provider_state))
    asked = Message(
        role="assistant",
        content=first.text,
        tool_calls=first.tool_calls,
        provider_state=state,
    )
    results = [
        Message(role="tool", content=text, tool_call_id=call.id, tool_name=call.name)
        for call, text in zip(first.tool_calls, ("2", "7"), strict=True)
    ]
    request = line.request(tools=(ADD,))

    await provider.complete(
        flavour.model, replace(request, messages=(*request.messages, asked, *results))
    )

    body = await line.request_body()
    if flavour.name == "anthropic":
        assistant, answer = body["messages"][-2:]
        kinds = [block["type"] for block in assistant["content"]]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        assert assistant["content"][0]["signature"] == CALLING.signature
        assert assistant["content"][2]["input"] == {"a": 1, "b": "\u00fc\u00fc"}
        assert [block["tool_use_id"] for block in answer["content"]] == ["call_1", "call_2"]
        assert body["tools"][0]["input_schema"]["required"] == ["a", "b"]
    else:
        assistant, *answers = body["messages"][-3:]
        assert assistant["content"] == "Let me add."
        sent = assistant["tool_calls"][0]["function"]["arguments"]
        assert json.loads(sent) == {"a": 1, "b": "\u00fc\u00fc"}
        assert [(each["tool_call_id"], each["content"]) for each in answers] == [
            ("call_1", "2"),
            ("call_2", "7"),
        ]
        assert body["tools"][0]["function"]["parameters"]["required"] == ["a", "b"]


async def test_broken_arguments_come_as_they_are_and_can_be_sent_back(
    line: Line, fake: FakeProvider, flavour: Flavour, provider: ModelProvider
) -> None:
    """The provider returns invalid arguments unchanged, and the conversation can continue."""
    broken = [{"id": "call_1", "name": "add", "arguments": '{"a": 1, '}]
    reply = await line.ask(Step(tool_calls=broken), tools=(ADD,), on_delta=lambda _: None)
    (call,) = reply.tool_calls
    request = line.request(tools=(ADD,))
    said = (
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="not JSON", tool_call_id=call.id, tool_name="add"),
    )
    await fake.script(line.marker, [Step(text="sorry")])

    again = await provider.complete(
        flavour.model, replace(request, messages=(*request.messages, *said))
    )

    assert call.arguments == '{"a": 1, '
    assert again.text == "sorry"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_schema_and_tools_go_together(line: Line, streamed: bool) -> None:
    """The reply is the JSON document, even if a tool has the name that the adapter uses for it."""
    deltas = list[Delta]()
    listening: dict[str, Any] = {"on_delta": deltas.append} if streamed else {}
    tools = (ADD, replace(ADD, name="reply"))

    reply = await line.ask(json_schema=SCHEMA, tools=tools, **listening)

    assert json.loads(reply.text) == DEFAULT_PLAN
    assert reply.tool_calls == ()
    if streamed:
        assert _words(deltas, "content") == reply.text


async def test_the_first_part_arrives_before_the_second_is_sent(
    line: Line, fake: FakeProvider, flavour: Flavour
) -> None:
    """Nothing is buffered: the provider sends the rest only after the caller has the first part."""
    came, deltas = asyncio.Event(), list[Delta]()

    def note(delta: Delta) -> None:
        deltas.append(delta)
        came.set()

    begin = {"openai": 1, "anthropic": 3}[flavour.name]
    step = Step(text="first then the rest", chunk_chars=5, after_events=begin)
    asking = asyncio.create_task(line.ask(step, on_delta=note))

    async with asyncio.timeout(150):
        await came.wait()
    assert [delta.text for delta in deltas] == ["first"]
    await fake.release()
    reply = await asking

    assert reply.text == "first then the rest"


@pytest.mark.parametrize("then", ["cut", "end", "fail"])
@pytest.mark.parametrize("after", [1, 5])
async def test_a_stream_that_breaks_off_may_be_tried_again(
    line: Line, then: Any, after: int
) -> None:
    """The request was sent, so a cut, an early end or an error in the stream is estimated."""
    delivery = SendState()
    step = Step(text="a longer text " * 9, after_events=after, then=then)

    error = await line.fail(step, on_delta=lambda _: None, delivery=delivery)

    assert (error.retryable, error.status) == (True, None)
    assert delivery.is_sent


@pytest.mark.parametrize(
    "step",
    [
        Step(text="a text that hangs", after_events=4),
        Step(text="a slow text " * 500, chunk_seconds=0.05),
    ],
    ids=["silent", "slow"],
)
async def test_the_time_limit_holds_within_a_stream(
    line: Line, fake: FakeProvider, step: Step
) -> None:
    """The time limit ends a stalled or too slow stream, and closes the connection."""
    error = await line.fail(step, on_delta=lambda _: None, timeout_seconds=1)

    assert error.retryable
    (arrival,) = await fake.wait_for_arrivals(1, line.marker, ended=True)
    assert arrival.outcome == "client_gone"


async def test_a_cancel_within_a_stream_closes_the_connection(
    line: Line, fake: FakeProvider
) -> None:
    """The provider sees the client disconnect during its reply, long before any time limit."""
    came = asyncio.Event()
    step = Step(text="a text that hangs", after_events=4)
    asking = asyncio.create_task(
        line.ask(step, on_delta=lambda _: came.set(), timeout_seconds=3600)
    )
    async with asyncio.timeout(150):
        await came.wait()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    (arrival,) = await fake.wait_for_arrivals(1, line.marker, ended=True)
    assert arrival.outcome == "client_gone"


async def test_a_stream_without_counts_is_not_taken_for_free(line: Line) -> None:
    """The usage of the reply is ``None`` instead of zero."""
    reply = await line.ask(Step(text="fine", omit_usage=True), on_delta=lambda _: None)

    assert (reply.text, reply.usage) == ("fine", None)


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_a_refused_stream_fails_like_a_refused_request(line: Line, status: int) -> None:
    """The status arrives before the stream starts."""
    error = await line.fail(Step(status=status), on_delta=lambda _: None)

    assert (error.status, error.retryable) == (status, status != 400)


async def test_a_stream_is_read_up_to_the_limit_of_a_reply(fake: FakeProvider) -> None:
    """A refused stream is not retried, because the same reply would come again."""
    flavour = FLAVOURS[0]
    limited = replace(
        flavour,
        build=lambda fake: openai_provider(base_url=fake.openai_url, wire=ModelTransport(20_000)),
    )
    provider = limited.build(fake)
    line, deltas = Line(fake, provider, limited), list[Delta]()

    error = await line.fail(Step(text="long " * 6_000), on_delta=deltas.append)
    await provider.aclose()

    assert not error.retryable
    assert deltas


async def test_an_answer_of_one_provider_is_shown_to_another_without_its_thoughts(
    fake: FakeProvider,
) -> None:
    """A signature of one provider has no meaning for another."""
    said, sent = [], []
    for flavour in FLAVOURS:
        provider = flavour.build(fake)
        said.append(await Line(fake, provider, flavour).ask(CALLING, tools=(ADD,)))
        await provider.aclose()
    for flavour, reply in zip(reversed(FLAVOURS), said, strict=True):
        provider = flavour.build(fake)
        line = Line(fake, provider, flavour)
        thought = Message(role="assistant", content="x", provider_state=reply.provider_state)
        request: ModelRequest = line.request()
        messages = (*request.messages, thought, Message(role="user", content="go on"))
        await provider.complete(flavour.model, replace(request, messages=messages))
        sent.append(json.dumps(await line.request_body()))
        await provider.aclose()

    assert not any("One and one" in body for body in sent)
