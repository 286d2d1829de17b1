"""Odd tools under the rules of the service, without a process."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import count, repeat
from typing import Any, Literal
from uuid import UUID

import pytest
import structlog
from pydantic import AwareDatetime, BaseModel, ConfigDict, NaiveDatetime

from caseworker import Tool, ToolRefusedError, failure, tool
from caseworker.testing import ScriptedModel, calls, run_agent_test, run_tool, says
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.ports import is_failure
from tests.support.odd_tools import KINDS, RAISES, RETURNS, odd_tool

_UNFIT = "unfit_result"
FAILURES: Mapping[str, str] = {
    "said_error": "error",
    "error_of_api": "error",
    "true_error": "error",
    "circular": "too_large",
    "nested": "too_large",
    "shared": "too_large",
    "shared_text": "too_large",
    "shared_object": "too_large",
    "endless_generator": "too_large",
    "endless_inner": "too_large",
    "large_text": "too_large",
    "interrupted_generator": "KeyboardInterrupt",
    "failing_mapping": "GeneratorExit",
    "exiting_model": "SystemExit",
}
"""Error codes of results, by name; all other failures are unfit results."""
CLASSES: Mapping[str, str] = {
    "keyboard_interrupt": "KeyboardInterrupt",
    "generator_exit": "GeneratorExit",
    "system_exit": "SystemExit",
    "system_exit_zero": "SystemExit",
    "cancelled": "CancelledError",
    "cancelled_run": "CancelledError",
    "base_exception": "BaseException",
    "own_base_exception": "RudeError",
    "group": "BaseExceptionGroup",
    "cancelled_group": "BaseExceptionGroup",
    "deep_group": "BaseExceptionGroup",
    "stop_iteration": "StopIteration",
    "stop_async_iteration": "StopAsyncIteration",
    "unreadable": "UnreadableError",
    "surrogates": "ValueError",
    "timeout": "timeout",
    "recursion": "RecursionError",
    "frozen": "FrozenError",
}
"""Error codes of exceptions, by name."""

pytestmark = pytest.mark.req("002/5.5", "002/13.1")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with structlog.testing.capture_logs():
        yield


@pytest.mark.parametrize("name", RAISES)
async def test_what_a_tool_raises_is_the_error_of_its_call(name: str) -> None:
    """A thread, a coroutine and a class end alike; the model sees only the class."""
    for kind in KINDS:
        result = await run_tool(odd_tool("odd", RAISES[name], kind))

        code = result["code"]
        if (name, kind) in (("stop_iteration", "async"), ("stop_iteration", "class")):
            assert code == "RuntimeError"  # Python's own: a coroutine cannot raise StopIteration
        else:
            assert code == CLASSES.get(name, code)
        assert result["error"].startswith("The tool broke (")
        assert len(result["error"]) < 200
        assert result["error"].isprintable()


@pytest.mark.parametrize("name", RETURNS)
async def test_what_a_tool_returns_is_json_or_the_error_of_its_call(name: str) -> None:
    """The values mean what their types mean; nothing is converted without limits."""
    function, expected = RETURNS[name]
    for kind in KINDS:
        result = await run_tool(odd_tool("odd", function, kind))

        if expected is None:
            assert is_failure(result)
            assert result["code"] == FAILURES.get(name, _UNFIT)
        else:
            assert result in (expected, {"value": expected})  # a class returns a dict
            assert not is_failure(result)


@pytest.mark.parametrize(
    ("result", "fails"),
    [
        ({"data": 1, "error": None}, False),
        ({"data": 1, "error": False}, False),
        ({"data": 1, "error": " \n"}, False),
        ({"data": 1, "error": {}}, False),
        ({"data": 1, "error": 0}, False),
        ({"data": 1, "error": 0.02}, False),
        ({"data": 1, "errors": ["one"]}, False),
        ({"error": "one"}, True),
        ({"error": True}, True),
        ({"error": {"code": 1}}, True),
        ({"error": ["one"]}, True),
        (failure(""), True),
        (ToolRefusedError(" ").result(), True),
    ],
)
def test_an_error_that_says_nothing_is_no_failure(result: dict[str, Any], fails: bool) -> None:
    """A blank message of a failure is replaced."""
    assert is_failure(result) is fails


async def test_an_agent_sees_the_data_beside_an_empty_error_and_goes_on() -> None:
    """The tools that break do not end it."""
    names = ["keyboard_interrupt", "generator_exit", "cancelled_run", "cancelled", "unreadable"]
    broken = [odd_tool(name, RAISES[name], "async") for name in names]
    orders = odd_tool("orders", lambda: {"data": [1, 2], "error": None}, "plain")
    odd = odd_tool("odd_text", lambda: {"\ud800": "\udfff"}, "async")
    tools = [*broken, orders, odd]
    script = [*(calls(each.spec.name) for each in tools), says("done")]
    model = ScriptedModel(script)
    agent = {
        "name": "a",
        "prompt": {"system": "Help."},
        "tools": [each.spec.name for each in tools],
        "limits": {"max_turns": 20},
    }

    result = await run_agent_test(agent, "go", model=model, tools=tools)

    said = [each.content for each in model.requests[-1].messages if each.role == "tool"]
    assert result.output == "done"
    assert [
        f"The tool broke ({name})" in text
        for name, text in zip(
            ["KeyboardInterrupt", "GeneratorExit", "CancelledError", "CancelledError"],
            said,
            strict=False,
        )
    ] == [True] * 4
    assert said[-2:] == ['{"data":[1,2],"error":null}', '{"\ufffd":"\ufffd"}']


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime
    id: UUID


def _made_of(kind: Any) -> Tool:
    def takes(at: Any) -> str:
        return repr(at)

    takes.__annotations__["at"] = kind
    return tool(name="takes", description="Takes a value.")(takes)


@pytest.mark.parametrize(
    ("kind", "given", "taken"),
    [
        (datetime, "2026-03-01T09:00:00", "datetime.datetime(2026, 3, 1, 9, 0)"),
        (datetime, "2026-03-01 09:00", "datetime.datetime(2026, 3, 1, 9, 0)"),
        (datetime, "2026-03-01", "datetime.datetime(2026, 3, 1, 0, 0)"),
        (
            datetime,
            "2026-03-01T09:00:00Z",
            "datetime.datetime(2026, 3, 1, 9, 0, tzinfo=TzInfo(0))",
        ),
        (NaiveDatetime, "2026-03-01T09:00:00", "datetime.datetime(2026, 3, 1, 9, 0)"),
        (NaiveDatetime, "2026-03-01T09:00:00Z", None),
        (
            AwareDatetime,
            "2026-03-01T09:00:00+00:00",
            "datetime.datetime(2026, 3, 1, 9, 0, tzinfo=TzInfo(0))",
        ),
        (AwareDatetime, "2026-03-01T09:00:00", None),
        (datetime | None, "2026-03-01T09:00:00", "datetime.datetime(2026, 3, 1, 9, 0)"),
        (list[datetime], ["2026-03-01T09:00:00"], "[datetime.datetime(2026, 3, 1, 9, 0)]"),
        (time, "09:30:00", "datetime.time(9, 30)"),
        (time, "09:30", "datetime.time(9, 30)"),
        (date, "2026-03-01", "datetime.date(2026, 3, 1)"),
        (timedelta, "PT5M", "datetime.timedelta(seconds=300)"),
        (timedelta, "00:05:00", "datetime.timedelta(seconds=300)"),
        (UUID, "0" * 31 + "1", "UUID('00000000-0000-0000-0000-000000000001')"),
        (tuple[int, str], [1, "a"], "(1, 'a')"),
        (set[int], [1], "{1}"),
        (Literal["a", 2], 2, "2"),
        (
            Strict,
            {"at": "2026-03-01T09:00:00", "id": "0" * 31 + "1"},
            "Strict(at=datetime.datetime(2026, 3, 1, 9, 0),"
            " id=UUID('00000000-0000-0000-0000-000000000001'))",
        ),
        (datetime, "soon", None),
        (datetime, "2026-02-30T09:00:00", None),
        (time, "25:00", None),
        (timedelta, "a while", None),
    ],
)
async def test_an_argument_is_taken_as_its_type_takes_it(
    kind: Any, given: Any, taken: str | None
) -> None:
    """JSON Schema would refuse times without a zone."""
    result = await run_tool(_made_of(kind), {"at": given})

    if taken is None:
        assert result["code"] == "invalid_arguments"
        assert "at" in result["error"]
    else:
        assert result == {"value": taken}


@pytest.mark.parametrize(
    ("kind", "given", "form"),
    [
        (datetime, "soon", "a date and time written YYYY-MM-DDThh:mm:ss, with or without a zone"),
        (
            NaiveDatetime,
            "nine",
            "a date and time written YYYY-MM-DDThh:mm:ss, with or without a zone",
        ),
        (time, "late", "a time written hh:mm:ss, with or without a zone"),
        (date, "today", "a date written YYYY-MM-DD"),
        (timedelta, "long", "a duration such as PT5M or 00:05:00"),
    ],
)
def test_a_form_that_no_type_takes_is_refused_before_the_call(
    kind: Any, given: str, form: str
) -> None:
    """A graph with such a constant is refused when it is posted."""
    assert ArgumentCheck.of(_made_of(kind)).problem({"at": given}) == (
        f"'at' must be {form}: change it."
    )


async def test_a_result_is_converted_outside_of_the_event_loop() -> None:
    """The code of an iterator may block."""
    places: list[bool] = []

    def rows() -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            places.append(True)
        yield 1

    for kind in KINDS:
        assert await run_tool(odd_tool("rows", rows, kind)) == {"value": [1]}
    assert places == [True] * 3


class Open(BaseModel):
    """A model that may hold anything."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)
    a: Any = None


@dataclass
class Box:
    """A dataclass that may hold anything."""

    a: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda: Open(a=count()),
        lambda: Open(a=[count()]),
        lambda: Open(a=Open(a=count())),
        lambda: Open(other=count()),
        lambda: Open(a={"b": ({"c": (number for number in count())},)}),
        lambda: Open(a=Box([map(str, count())])),
        lambda: Open(a=deque([repeat(1)])),
    ],
)
async def test_an_endless_iterator_in_a_model_is_an_error(make: Callable[[], BaseModel]) -> None:
    """Pydantic would read it until the memory is full."""
    for kind in KINDS:
        result = await run_tool(odd_tool("endless", make, kind))
        assert "iterator" in result["error"], result


async def test_a_model_that_contains_itself_is_an_error() -> None:
    """The search for iterators ends."""
    model = Open()
    model.a = [model]

    assert is_failure(await run_tool(odd_tool("circle", lambda: model, "async")))


async def test_a_result_shares_nothing_with_its_tool() -> None:
    """A tool that changes its value later does not change the result."""
    value: dict[str, Any] = {"rows": [1]}
    result = await run_tool(odd_tool("rows", lambda: value, "async"))
    value["rows"].append(2)

    assert result == {"rows": [1]}
