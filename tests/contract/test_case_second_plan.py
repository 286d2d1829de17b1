"""An answer is verified only if a second source confirms the operation of its plan."""

import json
from typing import Any

import pytest

from tests.support.configured_cases import FAILING, QUESTION, RIGHT, Configured, calculation
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("cw/8.operation")]

AUTO = {"VERIFIER_THRESHOLDS_SECOND_PLAN": "auto"}
UNREAD = {"input": "Each of 7 boxes holds 6 apples. How many apples are in them?"}
"""A question that the built-in planner cannot read."""
WRONG = calculation("7 + 6")


def second(*expressions: str, function: str = "calculator") -> Step:
    """Return a reply with a second plan of calculations."""
    calls = [{"function": function, "arguments": {"expression": each}} for each in expressions]
    return Step(plan={"steps": "The numbers are worked out.", "calls": calls})


def operation(run: dict[str, Any]) -> bool | None:
    """Return the operation check of a run."""
    holds: bool | None = run["result"]["verification"]["checks"]["operation"]
    return holds


def ending(run: dict[str, Any]) -> tuple[Any, ...]:
    """Return the status, finish reason, answer and verification of a run."""
    result = run["result"]
    return run["status"], run["finish_reason"], result["answer"], result["verified"]


async def test_a_second_plan_with_the_same_calls_confirms_the_operation(
    configured: Configured,
) -> None:
    """The second plan is a call of the same tier with its own name and its own reply format."""
    await configured.script([RIGHT, second("7*6")])
    async with configured.serving(**AUTO) as client:
        run = await client.post_run(UNREAD, wait_seconds=120)
        snapshot = (await client.trace(run["run_id"]))["snapshot"]

    assert ending(run) == ("completed", "success", "42", True)
    assert operation(run) is True
    assert run["result"]["verification"]["confirmed_by"] == "computed_otherwise"
    assert (run["usage"]["llm_calls_small"], run["usage"]["tool_calls"]) == (2, 1)
    nodes = snapshot["nodes"].values()
    assert [node["name"] for node in nodes if node["kind"] == "llm"] == ["plan", "second_plan"]
    assert violations(snapshot) == []
    first, other = await configured.body(0), await configured.body(1)
    assert other["messages"][0] == first["messages"][0]
    assert len(other["messages"]) == 2
    assert other["messages"][1] != first["messages"][1]
    assert "6 * 7" not in json.dumps(other["messages"])
    assert other["response_format"] != first["response_format"]


@pytest.mark.parametrize(
    "same",
    [second("42 / 1"), second("6", "7 * ${result.1}"), second("6 * 7", "7 * 6")],
    ids=["another notation", "more steps", "twice"],
)
async def test_calls_that_ask_for_the_same_are_the_same(configured: Configured, same: Step) -> None:
    """Notation and number of steps make no difference."""
    run = await configured.run([RIGHT, same], **UNREAD, **AUTO)

    assert (operation(run), run["result"]["verified"]) == (True, True)


async def test_a_third_plan_that_agrees_with_the_second_is_verified(configured: Configured) -> None:
    """The first two plans differ, so the next pass makes a third plan."""
    run = await configured.run([WRONG, second("6 * 7"), RIGHT], **UNREAD, **AUTO)

    assert ending(run) == ("completed", "success", "42", True)
    assert run["usage"]["llm_calls_small"] == 3
    verified = [entry for entry in run["result"]["logs"] if entry["step_type"] == "verify"]
    assert [entry["checks"]["operation"] for entry in verified] == [False, True]
    assert "Another reading" in (await configured.document(2))["failure"]


async def test_plans_that_differ_verify_nothing(configured: Configured) -> None:
    """Repeating the first plan or asking the big tier does not verify it either."""
    replies = [WRONG, second("6 * 7"), WRONG]
    run = await configured.run(replies, [WRONG, second("6 * 7"), WRONG], **UNREAD, **AUTO)

    assert ending(run) == ("failed", "big_fail", "13", False)
    assert operation(run) is False
    # Two further plans of the small tier and one of the big tier, each tier with one second plan.
    assert (run["usage"]["llm_calls_small"], run["usage"]["llm_calls_big"]) == (4, 2)


async def test_a_plan_of_the_big_tier_is_confirmed_by_the_second_plan_of_the_small_one(
    configured: Configured,
) -> None:
    """No further call is needed."""
    run = await configured.run(
        [WRONG, second("6 * 7"), WRONG], [RIGHT], **UNREAD, **AUTO, FLAGS_MODE="fallback_only"
    )

    assert ending(run) == ("completed", "success", "42", True)
    assert (run["usage"]["llm_calls_small"], run["usage"]["llm_calls_big"]) == (2, 1)


@pytest.mark.parametrize(
    ("budget", "dimension"),
    [
        ({"max_llm_calls_small": 1, "max_llm_calls_big": 0}, "llm_calls_small"),
        ({"max_llm_calls": 1}, "llm_calls"),
    ],
)
async def test_without_budget_for_a_second_plan_the_run_is_halted_with_its_answer(
    configured: Configured, budget: dict[str, int], dimension: str
) -> None:
    """The operation is unconfirmed, so the check and ``verified`` are null."""
    run = await configured.run([RIGHT, second("6 * 7")], budget=budget, **UNREAD, **AUTO)

    assert ending(run) == ("halted", "budget", "42", None)
    assert operation(run) is None
    assert run["stop"]["dimension"] == dimension
    assert await configured.call_counts() == {"small": 1, "big": 0}


@pytest.mark.parametrize(
    ("big_calls", "end"),
    [(2, ("completed", "success", "42", True)), (1, ("halted", "budget", "42", None))],
)
async def test_without_budget_of_the_small_tier_the_big_one_is_asked(
    configured: Configured, big_calls: int, end: tuple[Any, ...]
) -> None:
    """The plan of the big tier needs a second plan too, within its own budget."""
    budget = {"max_llm_calls_small": 1, "max_llm_calls_big": big_calls}
    run = await configured.run([RIGHT], [RIGHT, second("6 * 7")], budget=budget, **UNREAD, **AUTO)

    assert ending(run) == end
    assert await configured.call_counts() == {"small": 1, "big": big_calls}


@pytest.mark.parametrize(
    "reply",
    [
        Step(text="I am sure that it is right."),
        second("6 * 7", function="abacus"),
        Step(plan={"cannot": "I do not know."}),
        Step(status=400),
        Step(plan={"steps": "", "calls": []}, finish_reason="length"),
    ],
    ids=["prose", "unknown tool", "gives up", "refused", "cut off"],
)
async def test_a_second_reply_that_is_no_plan_confirms_nothing(
    configured: Configured, reply: Step
) -> None:
    """The case continues as unverified and escalates without another pass."""
    big = [RIGHT, second("6 * 7")]
    run = await configured.run([RIGHT, reply, RIGHT, RIGHT], big, **UNREAD, **AUTO)

    assert ending(run) == ("completed", "success", "42", True)
    checks = [entry["checks"] for entry in run["result"]["logs"] if entry["step_type"] == "verify"]
    assert [one["operation"] for one in checks] == [None, True]
    assert (run["usage"]["llm_calls_small"], run["usage"]["llm_calls_big"]) == (2, 2)


async def test_without_any_confirmation_of_the_big_tier_the_case_has_failed(
    configured: Configured,
) -> None:
    """The second plan was within budget, but its replies were invalid."""
    prose = Step(text="I am sure that it is right.")
    budget = {"max_llm_calls_big": 3}
    run = await configured.run([RIGHT, prose], [RIGHT, prose], budget=budget, **UNREAD, **AUTO)

    assert ending(run) == ("failed", "big_fail", "42", None)
    assert await configured.call_counts() == {"small": 2, "big": 2}


@pytest.mark.parametrize(
    ("fields", "settings", "holds"),
    [
        ({**UNREAD, "expected_tools": ["calculator"]}, AUTO, True),
        ({**UNREAD, "gold_answer": "42"}, AUTO, True),
        (QUESTION, AUTO, True),
        (UNREAD, {"VERIFIER_THRESHOLDS_SECOND_PLAN": "off"}, None),
    ],
    ids=["expected evidence", "gold answer", "read by the built-in planner", "off"],
)
async def test_no_second_plan_is_asked_for_where_it_is_not_needed(
    configured: Configured, fields: dict[str, Any], settings: dict[str, str], holds: bool | None
) -> None:
    """No second plan is requested if the operation is confirmed otherwise or needs no check."""
    run = await configured.run([RIGHT, FAILING], **fields, **settings)

    assert ending(run) == ("completed", "success", "42", True)
    assert operation(run) is holds
    assert await configured.call_counts() == {"small": 1, "big": 0}


async def test_a_step_may_turn_the_second_plan_off(configured: Configured) -> None:
    """The data of a case step can set ``second_plan``, next to ``pass_metric``."""
    data = {**UNREAD, "second_plan": "off"}
    graph = {"steps": [{"id": "case", "type": "case", "data": data}], "edges": []}
    await configured.script([RIGHT, FAILING])
    async with configured.serving(**AUTO) as client:
        run = await client.post_run({"kind": "graph", "graph": graph}, wait_seconds=120)

    assert run["result"]["outputs"]["case"]["result"]["verified"] is True
    assert await configured.call_counts() == {"small": 1, "big": 0}


async def test_a_plan_that_differs_from_the_built_in_planner_is_not_verified(
    configured: Configured,
) -> None:
    """The built-in planner reads the question exactly, so no second plan is needed."""
    run = await configured.run([WRONG, RIGHT], **QUESTION, **AUTO)

    assert ending(run) == ("completed", "success", "42", True)
    verified = [entry for entry in run["result"]["logs"] if entry["step_type"] == "verify"]
    assert [entry["checks"]["operation"] for entry in verified] == [False, True]
    assert await configured.call_counts() == {"small": 2, "big": 0}


async def test_the_built_in_planner_needs_no_confirmation(configured: Configured) -> None:
    """The built-in planner makes one call, and its operation is not checked."""
    offline = {"MODELS_SMALL_PROVIDER": "offline", "MODELS_BIG_PROVIDER": "offline"}
    run = await configured.run([FAILING], **QUESTION, **AUTO, **offline)

    assert ending(run) == ("completed", "success", "42", True)
    assert operation(run) is None
    assert run["usage"]["llm_calls_small"] == 1
