"""Agent definitions, and the problems reported for an invalid one."""

from typing import Any

import pytest
from pydantic import ValidationError

from caseworker.nodes.agent.definition import (
    AgentDefinition,
    AgentInputError,
)
from caseworker.nodes.agent.unknown import unknown_names
from caseworker.nodes.nesting import DefinitionKind, DefinitionReference, agents_in
from caseworker.nodes.strict_parsing import problems_in

WHOLE: dict[str, Any] = {
    "name": "writer",
    "description": "Writes.",
    "prompt": {
        "system": "Write about ${topic} in ${style.tone}. $${this} stays.",
        "messages": [{"role": "user", "content": "Hello, ${topic}."}],
    },
    "model": {"tier": "big", "name": "m-2", "temperature": 0.5, "max_output_tokens": 100},
    "limits": {"max_turns": 3, "timeout_ms": 1500, "budget": {"max_turns": 2, "max_tokens": 9}},
    "tools": [
        "calculator",
        {"tool": "calendar"},
        {"agent": {"name": "helper", "prompt": {}}},
        {"agent": {"name": "known", "version": 3}},
        {"mcp": "files", "allow": ["read"]},
    ],
    "inputs": {
        "topic": {"type": "string"},
        "style": {"type": "object", "default": {"tone": "prose"}},
        "many": {"type": "integer", "required": False},
    },
    "output": {"schema": {"type": "object"}, "strict": True},
    "conversation": {"max_tokens": 4000, "policy": "summarise"},
}


def places(definition: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        AgentDefinition.model_validate(definition)
    return {problem.place: problem.message for problem in problems_in(caught.value, "agent")}


@pytest.mark.req("003/FR1.1")
def test_a_definition_says_everything_about_an_agent() -> None:
    """Name, prompt, model, limits, tools, inputs, output and conversation are parsed."""
    agent = AgentDefinition.model_validate(WHOLE)

    assert (agent.limits.max_turns, agent.limits.total_budget.max_turns) == (3, 2)
    assert agent.limits.total_budget.max_seconds == 1.5
    assert agent.limits.total_budget.max_tokens == 9
    assert [one.name for one in agent.sub_agents()] == ["helper"]
    assert agent.output is not None
    assert agent.output.json_schema.read("{}") == {}
    assert AgentDefinition.model_json_schema()["required"] == ["name", "prompt"]


@pytest.mark.req("003/FR1.2")
@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": "no spaces"}, "agent.name"),
        ({"strange": 1}, "agent.strange"),
        ({"prompt": {"system": "${nobody}"}}, "agent.prompt.system"),
        ({"prompt": {"system": "${topic"}}, "agent.prompt.system"),
        ({"prompt": {"messages": [{"role": "user", "content": "${nobody}"}]}}, None),
        ({"model": {"tier": "huge"}}, "agent.model.tier"),
        ({"model": {"temperature": 3}}, "agent.model.temperature"),
        ({"limits": {"max_turns": -1}}, "agent.limits.max_turns"),
        ({"limits": {"budget": {"max_tokens": "9"}}}, "agent.limits.budget.max_tokens"),
        ({"tools": ["calculator", "calculator"]}, "agent.tools.1"),
        ({"tools": [{}]}, "agent.tools.0"),
        ({"tools": [{"tool": "a", "mcp": "b"}]}, "agent.tools.0"),
        (
            {"tools": [{"agent": {"name": "inner", "prompt": {"system": "${a}"}}}]},
            "agent.tools.0.agent.prompt.system",
        ),
        ({"inputs": {"topic": {"type": "date"}}}, "agent.inputs.topic.type"),
        (
            {"inputs": {"topic": {"type": "integer", "default": True}}, "prompt": {}},
            "agent.inputs.topic.default",
        ),
        ({"output": {"schema": {"$ref": "http://a.b/c"}}}, "agent.output.schema"),
        ({"conversation": {"policy": "forget"}}, "agent.conversation.policy"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change: dict[str, Any], place: str | None) -> None:
    """Problems inside a nested agent have their full path."""
    assert list(places({**WHOLE, **change})) == [place or "agent.prompt.messages.0.content"]


@pytest.mark.req("003/sub")
def test_agents_stand_in_one_another_at_most_eight_deep() -> None:
    """The ninth level of nesting is rejected."""

    def nested(depth: int) -> dict[str, Any]:
        tools = [{"agent": nested(depth - 1)}] if depth > 1 else []
        return {"name": f"a{depth}", "prompt": {}, "tools": tools}

    assert AgentDefinition.model_validate(nested(8)).depth == 8
    assert places(nested(9)) == {"agent.tools": "At most 8 levels of nested agents are allowed."}


@pytest.mark.req("003/FR1.3")
def test_variables_are_put_in_once_and_never_read_again() -> None:
    """A substituted value that looks like a variable stays text."""
    agent = AgentDefinition.model_validate(WHOLE)

    values = agent.values_of({"topic": "${style.tone}"})

    assert agent.rendered(values) == [
        ("system", "Write about ${style.tone} in prose. ${this} stays."),
        ("user", "Hello, ${style.tone}."),
    ]


@pytest.mark.req("003/FR1.3")
def test_inputs_that_do_not_fit_are_errors_with_their_places() -> None:
    """Missing, unknown and mistyped inputs are reported with their paths."""
    agent = AgentDefinition.model_validate(WHOLE)

    with pytest.raises(AgentInputError) as caught:
        agent.values_of({"many": 2.5, "other": 1})

    assert [place for place, _ in caught.value.faults] == ["other", "topic", "many"]


def test_what_is_not_known_here_is_a_fault_of_the_definition() -> None:
    """Unknown tools, unknown servers and unresolved agent names are reported."""
    missing = ["tools.1", "tools.3.agent", "tools.4.mcp"]

    for agent in (WHOLE, {**WHOLE, "prompt": 5, "limits": []}):
        found = unknown_names(agent, tools=("calculator",), servers=())
        assert [place for place, _ in found] == missing


def test_an_error_in_one_field_hides_none_in_another() -> None:
    """Checks across fields run on all fields that could be parsed."""
    tools = [{"tool": "calculator"}, "calculator", {"agent": {"name": "b", "tools": {}}}]
    inputs = {"many": {"type": "integer", "default": "no"}}
    prompt = {"system": "About ${topic}."}
    agent = {"name": "a b", "prompt": prompt, "inputs": inputs, "tools": tools[:2], "odd": 1}

    assert places(agent).keys() == {
        "agent.name",
        "agent.odd",
        "agent.prompt.system",
        "agent.inputs.many.default",
        "agent.tools.1",
    }
    assert places({"name": "a", "tools": tools}).keys() == {
        "agent.prompt",
        "agent.tools.2.agent.prompt",
        "agent.tools.2.agent.tools",
    }


def test_the_names_that_stand_for_agents_are_found_in_the_json() -> None:
    """The whole agent may also be a name."""
    inner = {"name": "a", "prompt": {}, "tools": [{"agent": {"name": "b"}}]}

    assert list(agents_in({"name": "c", "version": 2})) == [
        DefinitionReference((), DefinitionKind.AGENT, "c", 2)
    ]
    place = ("agent", "tools", 1, "agent", "tools", 0, "agent")
    assert list(agents_in({**WHOLE, "tools": ["x", {"agent": inner}]}, ("agent",))) == [
        DefinitionReference(place, DefinitionKind.AGENT, "b")
    ]


@pytest.mark.req("003/FR1.1")
@pytest.mark.parametrize(
    ("prompt", "system"),
    [
        ("You are a clerk.", "You are a clerk."),
        ("You serve ${topic}.", "You serve tea."),
        ("Pay $${topic}.", "Pay ${topic}."),
        ("Zwei Zeilen:\n\u00fcber \u8336", "Zwei Zeilen:\n\u00fcber \u8336"),
        ("", ""),
    ],
)
def test_a_prompt_may_be_the_text_of_the_system_message(prompt: str, system: str) -> None:
    """A text means the same as an object with only ``system``."""
    inputs = {"topic": {"type": "string"}}
    given = {"name": "a", "inputs": inputs}
    text = AgentDefinition.model_validate({**given, "prompt": prompt})
    whole = AgentDefinition.model_validate({**given, "prompt": {"system": prompt}})

    values = {"topic": "tea"}
    assert text.rendered(values) == whole.rendered(values) == [("system", system)]


@pytest.mark.req("003/FR1.2")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("You serve ${topic}.", "The variables 'topic' are not declared"),
        ("You serve ${topic.", "A ${ has no closing }"),
        (["You are a clerk."], "This must be the text of the system message"),
        ([{"role": "system", "content": "You are a clerk."}], "This must be the text of the"),
        (7, "This must be the text of the system message"),
        (None, "This must be the text of the system message"),
        (True, "This must be the text of the system message"),
    ],
)
def test_a_wrong_prompt_is_refused_at_the_field_itself(prompt: object, message: str) -> None:
    """The message names the forms of a prompt."""
    found = places({"name": "a", "prompt": prompt})

    assert [*found] == ["agent.prompt"]
    assert found["agent.prompt"].startswith(message)


def test_the_errors_of_a_text_and_of_other_fields_are_reported_together() -> None:
    """A wrong field does not hide an unknown variable of the prompt."""
    found = places({"name": "a", "prompt": "For ${x}.", "limits": {"max_turns": -1}})

    assert {*found} == {"agent.prompt", "agent.limits.max_turns"}
