"""How the items of a map are reported when a limit ends it."""

import asyncio
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import Stop, StopCause, StopKind
from tests.unit.cases.agent.world import ScriptedModel
from tests.unit.nodes.world import NodeRun, flow, function, graph, settle_down, step


@function("twice")
def twice(context: Any) -> Any:
    return context.input * 2


@function("endless")
async def endless(context: Any) -> Any:
    await asyncio.Event().wait()


def mapped(**data: Any) -> dict[str, Any]:
    return graph(step("m", "map", data))


TWICE = {"type": "function", "data": {"name": "twice"}}
ASK = {"type": "llm", "data": {"prompt": "${default}"}}
ASK_TWICE = graph(
    step("a", "llm", {"prompt": "${default}"}),
    step("b", "llm", {"prompt": "${default}"}),
    flow("a", "b"),
)


@pytest.mark.req("cw/13.map")
@pytest.mark.parametrize(
    ("form", "max_parallel", "budget", "counted"),
    [
        ({"step": TWICE}, 1, {"max_steps": 3}, (2, 0, 2)),
        ({"step": TWICE}, 2, {"max_steps": 3}, (2, 0, 2)),
        ({"step": ASK}, 1, {"max_llm_calls": 2}, (2, 0, 2)),
        ({"step": ASK}, 3, {"max_llm_calls": 2}, (2, 0, 2)),
        ({"graph": ASK_TWICE}, 1, {"max_llm_calls": 3}, (1, 1, 2)),
        ({"graph": ASK_TWICE}, 2, {"max_llm_calls": 2}, (0, 2, 2)),
    ],
)
async def test_an_item_whose_first_call_a_limit_refuses_was_not_started(
    form: dict[str, Any], max_parallel: int, budget: Any, counted: tuple[int, int, int]
) -> None:
    """An item that had made a call is reported as halted; none is reported as cancelled."""
    here = NodeRun(functions=[twice], budget=Budget(**budget), small=ScriptedModel([*"abcd"]))

    outcome = await here.run(mapped(**form, max_parallel=max_parallel), default=[*"wxyz"])

    items = outcome.steps["m"].outputs["items"]
    assert (items["completed"], items["halted"], items["not_started"]) == counted
    assert (items["total"], items["cancelled"], items["failed"]) == (4, 0, [])


async def test_an_item_that_made_a_call_in_an_earlier_execution_was_halted() -> None:
    """An item is reported as halted even if the later execution only replays its call."""
    here = NodeRun(small=ScriptedModel(["a"]), budget=Budget(max_llm_calls=1))
    of = mapped(graph=ASK_TWICE)
    first = await here.run(of, default=[1, 2])

    here.journal.reopen()
    second = await here.run(of, default=[1, 2])

    for outcome in (first, second):
        items = outcome.steps["m"].outputs["items"]
        assert (items["halted"], items["not_started"], items["cancelled"]) == (1, 1, 0)


async def test_an_item_that_makes_no_calls_is_halted_by_a_limit_of_time() -> None:
    """The item's function had started; those of later items had not."""
    here = NodeRun(functions=[endless])
    of = mapped(step={"type": "function", "data": {"name": "endless"}}, max_parallel=2)
    running = asyncio.create_task(here.run(of, default=[0, 1, 2]))
    await settle_down()

    here.token.trip(Stop(StopCause(kind=StopKind.BUDGET, dimension="seconds")))
    running.cancel()
    items = (await running).steps["m"].outputs["items"]

    assert (items["halted"], items["not_started"], items["cancelled"]) == (2, 1, 0)
