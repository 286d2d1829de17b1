"""Tools, streamed parts of replies, and named models at the gateway."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from caseworker.models.candidates import model_request_hash
from caseworker.models.model_call import OnDelta
from caseworker.models.ports import (
    Delta,
    Incomplete,
    Message,
    ModelProvider,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolCall,
    ToolDefinition,
)
from caseworker.models.table import ModelTable
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, asking_after, busy, chain, priced, unpriced

ADD = ToolDefinition(name="add", description="Adds.", parameters={"type": "object"})
CALLED = ToolCall(id="c1", name="add", arguments='{"a": 1}')
SPOKEN = ModelReply(
    text="I add.",
    model="m",
    usage=TokenUsage(tokens_in=5, tokens_out=5),
    tool_calls=(CALLED,),
    thinking="One and one",
    provider_state={"signature": "s\0"},
)
PRICED = priced("first")


class Scripted:
    """A provider that answers with one reply, optionally streamed in parts."""

    name, external = "scripted", True

    def __init__(self, reply: ModelReply, parts: tuple[Delta, ...] = ()) -> None:
        self.reply, self.parts = reply, parts
        self.requests: list[ModelRequest] = []

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Stream the parts, then return the reply."""
        self.requests.append(request)
        if request.on_delta is not None:
            for part in self.parts:
                request.on_delta(part)
        return replace(self.reply, model=model)

    async def aclose(self) -> None:
        """Close nothing."""


def _asked_by(asking: Asking, provider: ModelProvider) -> None:
    """Replace the real clients by this provider."""
    table = asking.models.table
    asking.models.table = ModelTable(
        {name: replace(table[name], provider=provider) for name in table}
    )


def _written(into: list[tuple[int, Delta]]) -> OnDelta:
    return lambda attempt, delta: into.append((attempt, delta))


def test_calls_of_tools_and_thinking_are_answers_and_are_replayed() -> None:
    """A replay returns the whole answer from the journal and streams no parts."""
    provider, parts = Scripted(SPOKEN), list[tuple[int, Delta]]()

    async def story(asking: Asking) -> None:
        _asked_by(asking, provider)
        first = await asking.ask(tools=[ADD], on_delta=_written(parts))
        seen = len(parts)
        asking.begin(asking.run.journal)
        assert await asking.ask(tools=[ADD], on_delta=_written(parts)) == first
        assert len(parts) == seen
        assert (first.tool_calls, first.thinking) == ((CALLED,), "One and one")
        assert first.provider_state == {"signature": "s\ufffd"}
        assert first.message.tool_calls == (CALLED,)
        other = await asking.ask(tools=[replace(ADD, description="Adds two.")])
        assert other == first

    asking_after(story, PRICED)

    assert [request.tools[0].description for request in provider.requests] == ["Adds.", "Adds two."]


def test_an_incomplete_answer_says_so_when_it_is_replayed() -> None:
    """The journal keeps why the answer is incomplete and the model's reason."""
    refused = replace(SPOKEN, incomplete=Incomplete.REFUSAL, incomplete_reason="I must not.")

    async def story(asking: Asking) -> None:
        _asked_by(asking, Scripted(refused))
        first = await asking.ask()
        asking.begin(asking.run.journal)
        assert await asking.ask() == first
        assert (first.incomplete, first.incomplete_reason) == (Incomplete.REFUSAL, "I must not.")

    asking_after(story, PRICED)


@pytest.mark.parametrize(
    ("step", "incomplete"),
    [
        (Step(text="It is", finish_reason="length"), Incomplete.LENGTH),
        (Step(text="It is", finish_reason="content_filter"), Incomplete.CONTENT_FILTER),
        (Step(text=" \n"), Incomplete.EMPTY),
        (Step(text="It is so."), None),
    ],
)
def test_a_cut_blocked_or_empty_answer_is_incomplete(
    step: Step, incomplete: Incomplete | None
) -> None:
    """Only a complete answer is not marked as incomplete."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", step)
        assert (await asking.ask()).incomplete is incomplete

    asking_after(story, PRICED)


def test_the_parts_of_a_reply_are_those_of_its_attempts() -> None:
    """Attempt numbers continue over a fallback; one that does not stream sends one part."""
    parts = list[tuple[int, Delta]]()

    async def story(asking: Asking) -> None:
        asking.provider.script("first", busy(), repeat_last=True)
        asking.provider.script("second", Step(text="here"))
        await asking.ask(on_delta=_written(parts))

    asked = asking_after(story, chain(priced("first"), priced("second")))

    assert "".join(delta.text for _, delta in parts) == "here"
    assert {attempt for attempt, _ in parts} == {len(asked.provider.arrivals)}


@pytest.mark.req("002/13.4")
def test_a_stream_that_breaks_off_is_charged_and_begun_anew() -> None:
    """Each attempt's parts carry its number; the broken attempt's cost is an estimate."""
    parts = list[tuple[int, Delta]]()

    async def story(asking: Asking) -> None:
        broken = Step(text="a text that is cut", after_events=2, then="end")
        asking.provider.script("first", broken, Step(text="a text that is cut"))
        await asking.ask(on_delta=_written(parts))

    (call,) = asking_after(story, PRICED).calls()

    said = {
        number: "".join(delta.text for attempt, delta in parts if attempt == number)
        for number in (1, 2)
    }
    assert said == {1: "a text that is c", 2: "a text that is cut"}
    estimated: Any = call["metadata"]["estimated"]
    assert estimated["tokens_in"] > 0


def test_a_provider_that_does_not_stream_gives_its_reply_as_one_part() -> None:
    """Thinking comes first, and a streamed reply is not sent again as a whole."""
    whole, streamed = list[tuple[int, Delta]](), list[tuple[int, Delta]]()
    said = (Delta("content", "I "), Delta("content", "add."))

    async def story(asking: Asking) -> None:
        _asked_by(asking, Scripted(SPOKEN))
        await asking.ask(on_delta=_written(whole))
        _asked_by(asking, Scripted(SPOKEN, said))
        await asking.ask(key="again", on_delta=_written(streamed))

    asking_after(story, PRICED)

    assert whole == [(1, Delta("thinking", "One and one")), (1, Delta("content", "I add."))]
    assert streamed == [(1, part) for part in said]


def test_a_named_model_is_asked_first_and_at_its_own_price() -> None:
    """The configured price belongs to the configured model, and the tier's fallbacks remain."""
    seen: list[Any] = []

    async def story(asking: Asking) -> None:
        asking.provider.script("other", busy(), repeat_last=True)
        seen.append(await asking.ask(model="other", temperature=0.5))
        seen.append(await asking.ask(model="second", key="again"))

    asked = asking_after(story, chain(priced("first"), unpriced("second")))

    models = asked.provider.models()
    assert set(models[:-1]) == {"other", "second"}
    assert [answer.model for answer in seen] == ["second", "second"]
    assert asked.provider.arrivals[0].body["temperature"] == 0.5
    assert seen[1].cost_usd is None


def test_fallbacks_that_a_caller_names_are_asked_before_the_configured_ones() -> None:
    """Fallbacks named by the caller are called first, each once and in order."""

    async def story(asking: Asking) -> None:
        for model in ("first", "other", "third"):
            asking.provider.script(model, busy(), repeat_last=True)
        await asking.ask(fallbacks=("other", "third", "first"))

    asked = asking_after(story, chain(unpriced("first"), unpriced("second"), unpriced("third")))

    assert list(dict.fromkeys(asked.provider.models())) == ["first", "other", "third", "second"]


def test_the_hash_of_a_request_is_that_of_what_is_sent() -> None:
    """Tools and their messages change the hash; plain requests keep the hash that journals hold."""
    plain = ModelRequest(
        messages=(Message(role="user", content="h\u00e9?"),), seed=3, max_output_tokens=64
    )
    model = replace(unpriced("m"), provider=Scripted(SPOKEN), temperature=0.2)

    def hashed(change: Callable[[ModelRequest], ModelRequest] = lambda request: request) -> str:
        return model_request_hash(model, change(replace(plain, temperature=0.2)), None)

    result = Message(role="tool", content="2", tool_call_id="c1", tool_name="add")
    changed = [
        hashed(),
        hashed(lambda request: replace(request, tools=(ADD,))),
        hashed(lambda request: replace(request, temperature=0.3)),
        hashed(lambda request: replace(request, messages=(*plain.messages, result))),
        hashed(
            lambda request: replace(
                request,
                messages=(*plain.messages, replace(result, tool_call_id="c2")),
            )
        ),
    ]

    assert changed[0] == "da3f8d5a09899e96d6341672b8dea957"
    assert len(set(changed)) == len(changed)


def test_a_trace_shows_tools_and_what_was_called() -> None:
    """The trace shows the tool names, the assistant's calls and the call of each result."""
    said = [
        Message(role="user", content="1+1?"),
        Message(role="assistant", content="", tool_calls=(CALLED,)),
        Message(role="tool", content="2", tool_call_id="c1", tool_name="add"),
    ]

    async def story(asking: Asking) -> None:
        _asked_by(asking, Scripted(SPOKEN))
        await asking.ask(tools=[ADD], messages=said)

    (shown,) = asking_after(story, PRICED).run.journal.requests.values()

    assert shown["tools"] == ["add"]
    assert shown["messages"][1]["tool_calls"][0]["name"] == "add"
    assert shown["messages"][2]["tool_call_id"] == "c1"
