"""Which steps get the chat, and which may use the tools that the chat user supplies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.engine.step_path import StepPath
from caseworker.models.ports import Message
from caseworker.nodes.chat import ChatInput, ChatScope, chat_services
from tests.unit.nodes.agent.world import agent, scripted_agent
from tests.unit.nodes.world import flow, graph, step

KINDS = ("agent", "yes", "no", "other")


def chat_step(step_id: str, kind: str) -> Any:
    """Return a step: an agent, a chat start with or without user tools, or another step."""
    if kind == "agent":
        return step(step_id, "agent", {"agent": agent()})
    if kind == "other":
        return step(step_id, "tool", {"tool": "calculator", "args": {"expression": "1"}})
    return step(step_id, "chat_start", {"includeUserTools": kind == "yes"})


def scope_of(document: Any) -> ChatScope:
    return ChatScope(scripted_agent().catalog.prepare(document, graph_id="g"))


@st.composite
def chats(draw: st.DrawFn) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Generate steps of random kinds, and flow edges from earlier to later ones."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=7))
    steps = {f"s{index}": kind for index, kind in enumerate(kinds)}
    pairs = [
        (f"s{a}", f"s{b}")
        for b, kind in enumerate(kinds)
        for a in range(b)
        if kind not in ("yes", "no")  # nothing flows into a chat start
    ]
    return steps, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


@pytest.mark.req("004/entry", "004/user-tools")
@given(chats())
def test_the_flow_alone_decides(chat: tuple[dict[str, str], list[tuple[str, str]]]) -> None:
    """All steps before a step decide, not only its direct predecessors."""
    steps, edges = chat
    document = graph(
        *(chat_step(step_id, kind) for step_id, kind in steps.items()),
        *(flow(a, b, into=f"from-{a}") for a, b in edges),
    )
    scope = scope_of(document)
    before: dict[str, set[str]] = {}
    for step_id in steps:  # edges lead from earlier to later ones
        near = {a for a, b in edges if b == step_id}
        before[step_id] = near.union(*(before[a] for a in near))

    for step_id in steps:
        kinds = {steps[a] for a in before[step_id]}
        path = StepPath(step_id)
        assert scope.is_entry_agent(path) == ("agent" not in kinds)
        assert scope.include_user_tools(path) == (
            "agent" not in kinds and "yes" in kinds and "no" not in kinds
        )


@pytest.mark.req("004/entry", "004/user-tools")
def test_graphs_inside_steps_are_part_of_the_flow() -> None:
    """Nested graphs belong to the flow at any depth; a retry of a step has the same position."""
    deep = graph(step("in", "subgraph", {"graph": graph(chat_step("a", "agent"))}))
    scope = scope_of(
        graph(
            chat_step("chat", "yes"),
            step("one", "subgraph", {"graph": deep}),
            step("two", "subgraph", {"graph": deep}),
            flow("chat", "one"),
            flow("one", "two"),
        )
    )

    assert scope.is_entry_agent(StepPath("one/in/a"))
    assert scope.include_user_tools(StepPath("one~2/in/a"))
    assert not scope.is_entry_agent(StepPath("two/in/a"))
    assert not scope.include_user_tools(StepPath("two/in/a"))


@pytest.mark.req("004/entry")
@pytest.mark.parametrize(
    "data",
    [
        {"step": {"type": "agent", "data": {"agent": agent()}}},
        {"graph": graph(chat_step("a", "agent"))},
    ],
)
def test_the_agents_of_a_map_work_on_its_items(data: dict[str, Any]) -> None:
    """The agents of the map get items and no chat; steps behind them come after agents."""
    scope = scope_of(
        graph(
            chat_step("chat", "yes"),
            step("m", "map", data),
            chat_step("b", "agent"),
            flow("chat", "m"),
            flow("m", "b"),
        )
    )

    assert not scope.is_entry_agent(StepPath("m/0"))
    assert not scope.is_entry_agent(StepPath("m/0/a"))
    assert not scope.is_entry_agent(StepPath("b"))


@pytest.mark.req("004/entry")
def test_an_agent_that_steps_in_for_another_step_counts_as_one() -> None:
    """The fallback agent of a step's policy counts as an agent."""
    fallback = {"type": "agent", "data": {"agent": agent()}}
    policy = {"on_error": "fallback", "fallback": fallback}
    first = {**chat_step("a", "other"), "policy": policy}
    scope = scope_of(graph(first, chat_step("b", "agent"), flow("a", "b")))

    assert scope.is_entry_agent(StepPath("a~fallback"))
    assert not scope.is_entry_agent(StepPath("b"))


def chat(*said: str, **more: Any) -> ChatInput:
    roles = ("user", "assistant")
    messages = (Message(role=roles[n % 2], content=text) for n, text in enumerate(said))  # type: ignore[arg-type]
    return ChatInput(thread_id="t", messages=tuple(messages), **more)


@pytest.mark.req("004/entry", "004/context")
async def test_an_entry_agent_may_be_asked_by_its_step() -> None:
    """The step's input replaces the newest message; the rest of the chat stays."""
    document = graph(
        chat_step("chat", "yes"),
        step("a", "agent", {"agent": agent(), "input": "In short: ${default}"}),
        flow("chat", "a"),
    )
    here = scripted_agent("Yes.")
    here.services = dict(
        chat_services(chat("1?", "One.", "2?"), here.catalog.prepare(document, graph_id="g"))
    )

    await here.run(document, default="2?")

    asked = [message.content for message in here.small.requests[0].messages]
    assert asked[1:] == ["1?", "One.", "In short: 2?"]


async def test_a_chat_start_outside_of_chats_gives_what_it_is_given() -> None:
    """A chat graph can therefore be tried like any other graph."""
    here = scripted_agent("Yes.")
    document = graph(chat_step("chat", "yes"), chat_step("a", "agent"), flow("chat", "a"))

    await here.run(document, default="Hello?")

    assert [message.content for message in here.small.requests[0].messages][1:] == ["Hello?"]


def test_a_chat_survives_being_stored() -> None:
    """A chat with all kinds of tools is restored unchanged."""
    whole = chat("1?", "One.", "2?", user_tools=({"tool": "calculator"}, {"agent": agent()}))

    assert ChatInput.of_json(whole.to_json()) == whole
