"""Conversations longer than the model's context, and how little of them is stored again."""

import pytest

from caseworker.models.ports import ModelReply, ModelRequest
from caseworker.nodes.agent.conversation import ConversationTooLongError
from caseworker.nodes.templates import compact
from tests.unit.nodes.agent.world import (
    agent,
    asking,
    events,
    model_reply,
    result,
    scripted_agent,
    wants,
)


@pytest.mark.req("003/long")
@pytest.mark.parametrize("policy", ["trim", "summarise", "refuse"])
async def test_a_conversation_that_is_too_long_is_cut_as_it_says(policy: str) -> None:
    """The question stays, calls keep their results, and an event lists the removed messages."""
    turns = [model_reply("x" * 600, wants("echo", say=f"{n}")) for n in range(4)] + [
        model_reply("Done.")
    ]

    async def answer(request: ModelRequest) -> ModelReply:
        return turns.pop(0) if request.tools else model_reply("Summary!")

    here = scripted_agent(*[answer] * 9)
    conversation = {"max_tokens": 700, "policy": policy}

    outcome = await here.run(
        asking(agent(tools=["echo"], conversation=conversation, model={"stream": False})),
        default="The task.",
    )

    if policy == "refuse":
        assert isinstance(outcome.error, ConversationTooLongError)
        return
    cuts = [(kind, data) for kind, data in events(here) if kind.startswith("conversation.")]
    assert cuts[0][0] == f"conversation.{'trimmed' if policy == 'trim' else 'summarised'}"
    assert cuts[0][1]["tokens_after"] < 700 < cuts[0][1]["tokens_before"]
    asked = [request for request in here.small.requests if request.tools]
    for request in asked:
        roles = [message.role for message in request.messages]
        assert roles[:2] == ["system", "user"]
        assert request.messages[1].content == "The task."
        assert all(roles[at - 1] == "assistant" for at, r in enumerate(roles) if r == "tool")
    assert max(len(request.messages) for request in asked) <= 7
    assert result(outcome)["turn_count"] == 5
    assert len(result(outcome)["messages"]) == 11
    marks = [n["metadata"] for n in here.trace.snapshot()["nodes"].values() if n["name"] == "a"]
    assert any(name.startswith("conversation.") for mark in marks for name in mark)


@pytest.mark.req("003/long")
async def test_a_call_stores_what_it_adds_to_the_conversation() -> None:
    """Earlier answers and results are stored as references to their calls."""
    turns = [model_reply(f"{n} " * 100, wants("echo", say=f"{n} " * 100)) for n in range(60)]
    here = scripted_agent(*turns, "Done.")

    outcome = await here.run(
        asking(agent(tools=["echo"], limits={"max_turns": 100})), default="Go on."
    )

    assert result(outcome)["turn_count"] == 61
    stored = [len(compact(dict(request))) for request in here.journal.requests.values()]
    assert max(stored[2:]) < 1000
    assert sum(stored) < sum(len(one.content) for one in here.small.requests[-1].messages)
    assert len(compact(result(outcome)["messages"])) < sum(stored)
