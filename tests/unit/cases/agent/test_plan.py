"""The plan schema."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.functions import functions_of
from caseworker_cases.agent.evidence import Action
from caseworker_cases.agent.plan import Cannot, Plan, PlanSchemaError, parse_plan, plan_schema
from caseworker_cases.tools.calculator import Calculator

ACT: dict[str, Any] = {"tool": "calculator", "args": {"expression": "1 + 1"}}


@pytest.mark.req("002/8.1", "002/10.1", "002/10.4", "002/18.1")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_to_three_actions_are_a_plan(count: int) -> None:
    """A plan has one to three actions, each with a tool and arguments."""
    parsed = parse_plan(json.dumps({"actions": [ACT] * count}))

    assert parsed == Plan((Action("calculator", {"expression": "1 + 1"}),) * count)


def test_a_planner_may_say_that_it_cannot() -> None:
    """A planner can refuse with a reason, as a key or as an action."""
    assert parse_plan('{"cannot": "no tool for that"}') == Cannot("no tool for that")
    action = {"tool": "cannot", "args": {"reason": "no tool for that"}}
    assert parse_plan(json.dumps({"actions": [ACT, action]})) == Cannot("no tool for that")
    assert parse_plan('{"actions": [{"tool": "cannot", "args": []}]}') == Cannot("no reason")


@pytest.mark.req("002/8.1", "002/8.2", "002/10.1", "002/10.4", "002/18.1")
@pytest.mark.parametrize(
    "reply",
    [
        "",
        "The answer is 2.",
        "null",
        "[]",
        "{}",
        '{"actions": []}',
        json.dumps({"actions": [ACT] * 4}),
        json.dumps({"actions": ACT}),
        json.dumps({"actions": [ACT], "why": "because"}),
        json.dumps({"actions": [ACT], "cannot": "but"}),
        json.dumps({"actions": [{"tool": "calculator"}]}),
        json.dumps({"actions": [ACT | {"note": "x"}]}),
        json.dumps({"actions": [ACT | {"args": "1 + 1"}]}),
        json.dumps({"actions": [ACT | {"args": [1]}]}),
        json.dumps({"actions": [ACT | {"tool": ""}]}),
        json.dumps({"actions": [ACT | {"tool": " "}]}),
        json.dumps({"actions": [ACT | {"tool": 7}]}),
        json.dumps({"actions": ["calculator"]}),
        '{"cannot": ""}',
        '{"cannot": 1}',
        "```json\n" + json.dumps({"actions": [ACT]}) + "\n```",
        "Sure! " + json.dumps({"actions": [ACT]}),
        json.dumps({"actions": [ACT]}) + " Done.",
        '{"actions": [{"tool": "a", "tool": "b", "args": {}}]}',
        '{"actions": [{"tool": "a", "args": {"x": 1, "x": 2}}]}',
        '{"actions": [{"tool": "a", "args": {"x": NaN}}]}',
        '{"actions": [{"tool": "a", "args": {"x": -Infinity}}]}',
        '{"actions": [{"tool": "a", "args": {"x": 1e999}}]}',
        '{"actions": [{"tool": "a", "args": {"x": "\\u0000"}}]}',
        '{"actions": [{"tool": "a", "args": {"\\ud800": 1}}]}',
        '{"actions": [{"tool": "a", "args": {"x": [["\\udfff"]]}}]}',
        '{"actions": [{"tool": "a", "args": {"x": ' + "9" * 5000 + "}}]}",
        '{"actions": [{"tool": "a", "args": {"x": ' + "[" * 20 + "]" * 20 + "}}]}",
        "[" * 9000,
        '{"cannot": "' + "x" * 30_000 + '"}',
    ],
)
def test_anything_else_is_refused(reply: str) -> None:
    """Any other reply is rejected, including ambiguous JSON and values that cannot be stored."""
    with pytest.raises(PlanSchemaError):
        parse_plan(reply)


def test_the_message_says_what_to_change_and_repeats_nothing() -> None:
    """The error names the required change without repeating the reply in prompt or log."""
    with pytest.raises(PlanSchemaError) as refused:
        parse_plan('{"actions": [{"tool": "a", "args": {}}, {"tool": "b", "secret": 1}]}')

    assert str(refused.value) == (
        "actions[1] must be an object with exactly the keys tool and args."
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "calculator", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["actions", "tool", "args", "expression"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)
_ACTION = st.fixed_dictionaries(
    {
        "tool": st.sampled_from(["calculator", "cannot", ""]),
        "args": st.dictionaries(st.sampled_from(["expression", "reason"]), st.just("1") | _JSON),
    },
    optional={"x": st.none()},
)
_SCHEMA = jsonschema_rs.Draft202012Validator(plan_schema(functions_of(Calculator.spec)))


@given(_JSON | st.fixed_dictionaries({"actions": st.lists(_ACTION, max_size=4)}))
def test_the_parser_accepts_what_the_schema_for_providers_accepts(value: Any) -> None:
    """Every reply that fits the JSON schema for providers is accepted by the parser."""
    if _SCHEMA.is_valid(value):
        assert isinstance(parse_plan(json.dumps(value)), Plan | Cannot)
