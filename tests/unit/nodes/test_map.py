"""Steps that process every item of a list."""

import asyncio
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.engine.ports import CallOutcome
from caseworker.engine.report import class_of
from caseworker.nodes.subgraph import UnfitListError
from tests.unit.cases.agent.world import ScriptedModel
from tests.unit.nodes.world import NodeRun, flow, function, graph, settle_down, step


@function("twice")
def twice(context: Any) -> Any:
    return context.input * 2


TWICE = {"type": "function", "data": {"name": "twice"}}


NO_LIST = "The map step 'm' needs a list at default: send it as input or connect an edge."


def mapped(**data: Any) -> dict[str, Any]:
    return graph(step("m", "map", data))


class Turnstile:
    """A function in which each item waits until it is released."""

    def __init__(self) -> None:
        self.inside: list[Any] = []
        self.most = 0
        self.doors: dict[Any, asyncio.Future[Any]] = {}
        self.cancelled: list[Any] = []

    async def __call__(self, context: Any) -> Any:
        item = context.input
        self.inside.append(item)
        self.most = max(self.most, len(self.inside))
        self.doors[item] = asyncio.get_running_loop().create_future()
        try:
            return await self.doors[item]
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        finally:
            self.inside.remove(item)


async def test_each_item_is_worked_on_by_a_step() -> None:
    """The results have the order of the items."""
    here = NodeRun(functions=[twice])

    assert await here.value(mapped(step=TWICE), "m", default=[1, 2, 3]) == [2, 4, 6]
    assert here.began() == ["m", "m/0", "m/1", "m/2"]
    assert here.scope.usage.to_dict()["steps"] == 4


async def test_each_item_is_worked_on_by_a_graph_that_knows_its_number() -> None:
    """The graph's outputs by handle are the item's result; it also gets the other inputs."""
    inner = graph(
        step("a", "function", {"name": "twice", "args": "${default.n}"}),
        step("b", "llm", {"prompt": "${default}"}),
        step("c", "llm", {"prompt": "${index} ${mood}"}),
        flow("a", "b"),
    )
    outputs = {
        "double": {"step": "a", "handle": "default"},
        "said": {"step": "c", "handle": "default"},
    }
    here = NodeRun(functions=[twice], small=ScriptedModel([*"abcd"]))

    result = await here.value(
        mapped(over="list.items", graph=inner, outputs=outputs),
        "m",
        list={"items": [{"n": 1}, {"n": 2}]},
        mood="kind",
    )

    assert [one["double"] for one in result] == [2, 4]
    asked = sorted(request.messages[-1].content for request in here.small.requests)
    assert asked == ["0 kind", "1 kind", "2", "4"]
    assert "m/1/a" in here.began()


async def test_no_items_are_no_work() -> None:
    """The result of a map over an empty list is an empty list."""
    here = NodeRun(functions=[twice])

    assert await here.value(mapped(step=TWICE), "m", default=[]) == []
    assert here.began() == ["m"]


@pytest.mark.parametrize(("max_parallel", "most"), [(1, 1), (3, 3)])
async def test_items_are_worked_on_in_parallel_as_far_as_is_allowed(
    max_parallel: int, most: int
) -> None:
    """The results have the order of the items, whichever finishes first."""
    gate = Turnstile()
    here = NodeRun(functions=[function("gate")(gate)])
    of = mapped(step={"type": "function", "data": {"name": "gate"}}, max_parallel=max_parallel)
    running = asyncio.create_task(here.value(of, "m", default=[*range(5)]))

    for _ in range(5):
        await settle_down()
        last = gate.inside[-1]
        gate.doors[last].set_result(last * 10)

    assert await running == [0, 10, 20, 30, 40]
    assert gate.most == most


@pytest.mark.req("cw/13.map")
async def test_the_failure_of_one_item_cancels_the_others_and_fails_the_step() -> None:
    """Results of finished items keep their positions."""
    gate = Turnstile()
    here = NodeRun(functions=[function("gate")(gate)])
    of = mapped(step={"type": "function", "data": {"name": "gate"}}, max_parallel=3)
    running = asyncio.create_task(here.run(of, default=[0, 1, 2, 3]))
    await settle_down()
    gate.doors[0].set_result("zero")
    await settle_down()
    gate.doors[2].set_exception(ValueError("no"))

    outcome = await running

    assert outcome.error is not None
    assert (str(outcome.error), class_of(outcome.error)) == ("Item 2: ValueError: no", "ValueError")
    assert sorted(gate.cancelled) == [1, 3]
    assert outcome.steps["m"].outputs == {
        "default": ["zero", None, None, None],
        "items": {
            "total": 4,
            "completed": 1,
            "failed": [{"index": 2, "error": "ValueError: no"}],
            "not_started": 0,
            "skipped": 0,
            "halted": 0,
            "cancelled": 2,
        },
    }


@function("picky")
def picky(context: Any) -> Any:
    if context.input == "bad":
        raise ValueError("no")
    return context.input


PICKY = {"type": "function", "data": {"name": "picky"}}


@pytest.mark.req("cw/13.map")
async def test_a_failed_item_differs_from_one_that_was_not_started() -> None:
    """Items run one after the other; those after the failed one never start."""
    here = NodeRun(functions=[picky])

    outcome = await here.run(mapped(step=PICKY), default=["a", "bad", "c", "d"])

    items = outcome.steps["m"].outputs["items"]
    assert [one["index"] for one in items["failed"]] == [1]
    assert (items["completed"], items["not_started"], items["cancelled"]) == (1, 2, 0)


@pytest.mark.parametrize("failing", [False, True])
async def test_what_became_of_the_items_leaves_on_a_handle_of_its_own(failing: bool) -> None:
    """The report is also available if the step's policy replaces the results."""
    over = mapped(step=PICKY)
    over["steps"][0]["policy"] = {"on_error": "skip", "fallback_value": []}
    echo = step("e", "function", {"name": "picky", "args": "${default}"})
    over = {"steps": [*over["steps"], echo], "edges": [flow("m", "e", "items")]}
    here = NodeRun(functions=[picky])

    outcome = await here.run(over, default=["a", "bad" if failing else "b"])

    assert outcome.steps["m"].outputs["default"] == ([] if failing else ["a", "b"])
    told = outcome.steps["e"].outputs["default"]
    assert (told["completed"], len(told["failed"])) == ((1, 1) if failing else (2, 0))


@pytest.mark.req("cw/13.map")
@pytest.mark.parametrize("form", ["step", "graph"])
@pytest.mark.parametrize(("policy", "skipped"), [("skip", 2), ("collect", 0)])
async def test_a_map_goes_on_after_failed_items_if_it_says_so(
    policy: str, skipped: int, form: str
) -> None:
    """Failed items have the result null; with ``collect`` their errors are listed."""
    here = NodeRun(functions=[picky])
    one = PICKY if form == "step" else graph(step("p", "function", {"name": "picky"}))
    of = mapped(**{form: one}, on_item_error=policy, max_parallel=2)

    outcome = await here.run(of, default=["a", "bad", "c", "bad"])

    assert outcome.error is None
    outputs = outcome.steps["m"].outputs
    good = ["a", None, "c", None]
    wrapped = [None if it is None else {"default": it} for it in good]
    assert outputs["default"] == (good if form == "step" else wrapped)
    items = outputs["items"]
    assert (items["total"], items["completed"], items["skipped"]) == (4, 2, skipped)
    assert [one["index"] for one in items["failed"]] == ([] if skipped else [1, 3])
    assert all("ValueError" in one["error"] for one in items["failed"])


async def test_a_second_attempt_of_a_map_works_on_the_skipped_items_again() -> None:
    """The retry keeps only the results of items that succeeded."""
    tries: list[Any] = []

    async def flaky(context: Any) -> Any:
        tries.append(context.input)
        if context.input == "bad" and tries.count("bad") == 1:
            raise ValueError("no")
        if context.input == "slow" and tries.count("slow") == 1:
            await asyncio.Event().wait()
        return context.input

    here = NodeRun(functions=[function("flaky")(flaky)])
    each = {"type": "function", "data": {"name": "flaky"}}
    policy = {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 0, "timeout_ms": 2_000}
    data = {"step": each, "on_item_error": "skip"}

    outcome = await here.run(
        graph(step("m", "map", data, policy=policy)), default=["a", "bad", "slow"]
    )

    assert outcome.steps["m"].outputs["default"] == ["a", "bad", "slow"]
    assert tries == ["a", "bad", "slow", "bad", "slow"]


async def test_a_step_of_another_type_can_be_mapped() -> None:
    """A map inside a map has its own paths."""
    inner = {
        "type": "map",
        "data": {"step": {"type": "tool", "data": {"tool": "echo", "args": {"say": "${default}"}}}},
    }
    here = NodeRun()

    result = await here.value(mapped(step=inner), "m", default=[["a"], ["b", "c"]])

    assert [[one["said"] for one in some] for some in result] == [["a"], ["b", "c"]]
    assert "m/1/1" in here.began()


async def test_finished_items_are_replayed_when_the_run_is_executed_again() -> None:
    """The call keys contain the item's number."""
    here = NodeRun(small=ScriptedModel(["a", "b"]))
    of = mapped(step={"type": "llm", "data": {"prompt": "${default}"}})
    first = await here.value(of, "m", default=[1, 2])

    here.journal.reopen()

    assert await here.value(of, "m", default=[1, 2]) == first == ["a", "b"]
    assert len(here.small.requests) == 2


async def test_a_limit_of_the_run_stops_a_map_in_the_middle() -> None:
    """A map that a limit stops keeps the results of finished items."""
    here = NodeRun(functions=[twice], budget=Budget(max_steps=3))

    outcome = await here.run(mapped(step=TWICE), default=[1, 2, 3])

    assert outcome.stop is not None
    outputs = outcome.steps["m"].outputs
    assert outputs["default"] == [2, 4, None]
    assert (outputs["items"]["completed"], outputs["items"]["failed"]) == (2, [])


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ({"default": {"a": 1}}, UnfitListError, NO_LIST),
        ({"default": "abc"}, UnfitListError, NO_LIST),
        ({"other": [1]}, UnfitListError, NO_LIST),
        (
            {"default": [1] * 4},
            UnfitListError,
            "The list at default has 4 items; at most 3 are allowed (max_items).",
        ),
    ],
)
async def test_what_is_no_list_of_items_fails_the_step(
    inputs: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """The step fails before an item starts."""
    here = NodeRun(functions=[twice])

    error = await here.failure(mapped(step=TWICE, max_items=3), **inputs)

    assert (type(error), str(error)) == (kind, message)
    assert here.began() == ["m"]


async def test_a_list_may_have_a_thousand_items_unless_the_step_says_otherwise() -> None:
    """Longer lists are rejected to limit the work of one step."""
    here = NodeRun(functions=[twice])

    assert len(await here.value(mapped(step=TWICE), "m", default=[1] * 1000)) == 1000
    assert isinstance(await here.failure(mapped(step=TWICE), default=[1] * 1001), UnfitListError)


@pytest.mark.parametrize(
    ("data", "places"),
    [
        ({}, [""]),
        ({"step": TWICE, "graph": graph(step("a", "function", TWICE["data"]))}, [""]),  # type: ignore[arg-type]
        ({"step": TWICE, "outputs": {}}, [""]),
        ({"step": {"type": "toolset", "data": {"tools": []}}}, [".step.type"]),
        ({"step": {"type": "mystery", "data": {}}}, [".step.type"]),
        ({"step": {"type": "function", "data": {"name": "gone"}}}, [".step.data.name"]),
        ({"step": {**TWICE, "policy": {}}}, [".step.policy"]),
        ({"step": TWICE, "max_parallel": 65}, [".max_parallel"]),
        ({"step": TWICE, "max_items": 10_001}, [".max_items"]),
        ({"step": TWICE, "over": "a b"}, [".over"]),
    ],
)
def test_the_data_of_a_map_is_checked(data: dict[str, Any], places: list[str]) -> None:
    """The data of the inner step or graph is validated too."""
    assert NodeRun(functions=[twice]).places(mapped(**data)) == [f"steps.0.data{p}" for p in places]


@pytest.mark.req("000/E2")
async def test_a_map_that_is_tried_again_asks_only_for_items_that_were_not_answered() -> None:
    """Items that succeeded in the first attempt are not executed or charged again."""
    asked: list[int] = []

    @function("once")
    def once(context: Any) -> Any:
        asked.append(context.input)
        if context.input == 3 and asked.count(3) == 1:
            raise ValueError("not yet")
        return context.input * 2

    here = NodeRun(functions=[once])
    mapping = step("m", "map", {"step": {"type": "function", "data": {"name": "once"}}})
    retried = {**mapping, "policy": {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 0}}

    assert await here.value(graph(retried), "m", default=[1, 2, 3, 4]) == [2, 4, 6, 8]
    assert asked == [1, 2, 3, 3, 4]


async def test_an_attempt_in_another_process_knows_what_was_answered_in_this_one() -> None:
    """The journal holds the finished items of the failed attempt."""
    asked: list[int] = []

    @function("twice of it")
    def twice_of_it(context: Any) -> Any:
        asked.append(context.input)
        return context.input * 2

    here = NodeRun(functions=[twice_of_it])
    failed = {"error_class": "ValueError", "message": "not yet", "failed_attempts": 1}
    here.journal.remember("step:m", CallOutcome.UNKNOWN, failed)
    here.journal.remember("step:m/0", CallOutcome.RESULT, {"default": 20})
    mapping = step("m", "map", {"step": {"type": "function", "data": {"name": "twice of it"}}})
    retried = {**mapping, "policy": {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 0}}

    assert await here.value(graph(retried), "m", default=[10, 2]) == [20, 4]
    assert asked == [2]
