"""Steps that call a tool, and toolsets that restrict the tools of other steps."""

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from caseworker.core.budget.budget import Budget
from caseworker.nodes.node_type import RunFacts
from caseworker.nodes.toolset import ToolFailedError, Toolset
from caseworker.tools.ports import ToolContext, ToolRefusedError, ToolResult, ToolSpec, failure
from tests.unit.cases.agent.world import ScriptedModel, calculate, plan, respond
from tests.unit.nodes.world import NOW, NodeRun, flow, graph, link, step


def using(tool: str = "echo", **data: Any) -> dict[str, Any]:
    return graph(step("t", "tool", {"tool": tool, **data}))


SAYING: dict[str, Any] = {"args": {"say": "${default}", "times": "${n}"}}


async def test_a_tool_is_used_with_the_arguments_of_its_step() -> None:
    """An argument that is a single placeholder keeps the type of its value."""
    here = NodeRun()

    assert await here.value(using(**SAYING), "t", default="hi", n=3) == {"said": "hi", "times": 3}
    assert here.scope.usage.to_dict()["tool_calls"] == 1


async def test_without_arguments_the_inputs_are_the_arguments() -> None:
    """Without arguments, each input handle becomes an argument of the tool."""
    assert await NodeRun().value(using(), "t", say="hi", times=2) == {"said": "hi", "times": 2}


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
async def test_a_tool_knows_the_run_its_time_and_its_zone(zone: str | None) -> None:
    """The zone defaults to the configured one; the time is that of acceptance."""
    here = NodeRun(facts=RunFacts(now=NOW, timezone=zone))

    await here.run(using(**SAYING), default="hi", n=1)

    (context,) = here.echo.contexts
    expected = zone or "Europe/Berlin"
    assert (context.run_id, context.timezone, context.now) == ("run-1", expected, NOW)
    assert context.now.tzinfo == ZoneInfo(expected)


async def test_an_error_of_a_tool_is_data_where_an_edge_waits_for_it() -> None:
    """The edge of the result is then dead."""
    of = graph(
        step("t", "tool", {"tool": "echo"}),
        step("good", "llm", {"prompt": "no"}),
        step("bad", "llm", {"prompt": "It said ${default.code}."}),
        flow("t", "good"),
        flow("t", "bad", "error"),
    )
    here = NodeRun(small=ScriptedModel(["sorry"]))

    outcome = await here.run(of, say="fail")

    assert {s: r.status.value for s, r in outcome.steps.items()} == {
        "t": "completed",
        "good": "skipped",
        "bad": "completed",
    }
    assert here.small.requests[0].messages[-1].content == "It said unsaid."


async def test_an_error_of_a_tool_that_nobody_waits_for_fails_the_step() -> None:
    """Secrets are removed from the error's message."""
    error = await NodeRun().failure(using(), say="fail")

    assert isinstance(error, ToolFailedError)
    assert str(error).startswith("Tool echo failed (unsaid): It would not say so to ")
    assert "alice@example.org" not in str(error)


async def test_wrong_arguments_at_run_time_are_an_error_of_the_tool() -> None:
    """Invalid arguments are reported as a tool error, and the tool is not called."""
    here = NodeRun()

    error = await here.failure(using(**SAYING), default=["no text"], n=1)

    assert "invalid_arguments" in str(error)
    assert here.echo.contexts == []


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"tool": "os.system"}, "tool"),
        ({"tool": "calculator"}, "tool"),
        ({"tool": "echo", "args": {}}, "args"),
        ({"tool": "echo", "args": {"say": 1}}, "args"),
        ({"tool": "echo", "args": {"say": "x", "more": 1}}, "args"),
        ({"tool": "echo", "args": ["say"]}, "args"),
        ({"tool": "echo", "args": "${default}"}, "args"),
    ],
)
def test_tools_and_constant_arguments_are_checked_with_the_graph(data: Any, place: str) -> None:
    """A denied tool is treated as unknown; arguments with placeholders are checked at run time."""
    here = NodeRun(deny=frozenset({"calculator"}))

    assert here.places(graph(step("t", "tool", data))) == [f"steps.0.data.{place}"]
    assert here.places(using(args={"say": "${default}"})) == []


async def test_a_tool_that_is_denied_meanwhile_is_not_used() -> None:
    """The graph was accepted when the tool was still allowed."""
    here, denying = NodeRun(), NodeRun(deny=frozenset({"echo"}))
    prepared = here.execution(using(), say="hi")
    here.tools.__dict__.update(denying.tools.__dict__)

    outcome = await prepared.run()

    assert "unknown_tool" in str(outcome.error)
    assert here.echo.contexts == []


async def test_a_limit_on_tool_calls_stops_the_run() -> None:
    """The run stops before the tool is called."""
    here = NodeRun(budget=Budget(max_tool_calls=0))

    outcome = await here.run(using(), say="hi")

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "tool_calls"
    assert here.echo.contexts == []


def asked(*tools: str, more: Any = ()) -> dict[str, Any]:
    """Return a case that is linked to a toolset, which is linked to further ones."""
    return graph(
        step("c", "case", {"input": "${default}"}),
        step("t", "toolset", {"tools": list(tools)}),
        link("t", "c"),
        *more,
    )


@pytest.mark.req("004/materialize", "004/pipeline")
async def test_toolsets_narrow_the_tools_of_a_case_to_what_they_name_together() -> None:
    """The case gets the intersection; toolsets may link to toolsets."""
    more = [
        step("t2", "toolset", {"tools": ["respond", "calculator"]}),
        step("t3", "toolset", {"tools": ["echo"]}),
        link("t2", "t"),
        link("t3", "t"),
    ]
    here = NodeRun(small=ScriptedModel([plan(calculate("6 * 7"))]))

    outcome = await here.run(asked("calculator", more=more), default="6 * 7?")

    assert outcome.steps["c"].outputs["default"] == "42"
    assert set(outcome.steps) == {"c"}
    offered = here.small.document(0)["functions"]
    assert offered == ["calculator", "echo", "respond", "cannot"]


@pytest.mark.req("004/materialize")
async def test_a_tool_outside_its_toolsets_is_refused_to_a_case() -> None:
    """The planner's request is refused; an empty toolset allows no tool."""
    here = NodeRun(
        small=ScriptedModel([plan(calculate("6 * 7")), plan(respond("42"))]),
        big=ScriptedModel([plan(respond("42"))] * 2),
    )

    outcome = await here.run(asked(), default="6 * 7?")

    result = outcome.steps["c"].outputs["result"]
    assert {found.get("warning") for found in result["evidence"]} == {"unknown_tool"}
    assert result["counters"]["tool_calls"] == 0


async def test_a_circle_of_toolsets_is_refused_when_the_graph_is_checked() -> None:
    """The circle is an error because the case needs the toolsets."""
    circle = [step("t2", "toolset", {"tools": []}), link("t2", "t"), link("t", "t2")]

    assert NodeRun().places(asked(more=circle)) == ["edges.1"]


def test_toolsets_name_tools_that_may_be_used_and_are_linked_only() -> None:
    """Denied and unknown tools, and other uses of a toolset, are reported with their paths."""
    here = NodeRun(deny=frozenset({"calculator"}))
    of = graph(
        step("c", "case"),
        step("t", "toolset", {"tools": ["echo", "calculator", "rm -rf"]}),
        flow("t", "c", "tools"),
    )

    assert here.places(of) == [
        "steps.1.data.tools.1",
        "steps.1.data.tools.2",
        "edges.0.data.channel",
        "steps.1.type",
    ]


def test_toolsets_keep_each_name_once_in_their_order() -> None:
    """Prompts therefore have a fixed order of tools."""
    joined = Toolset(("b", "a")) | Toolset(("c", "a", "b"))

    assert joined == Toolset(("b", "a", "c"))
    assert "a" in joined
    assert "d" not in joined


class Fussy:
    """A tool that fails with the code in its argument."""

    def __init__(self, *, deterministic: bool = False) -> None:
        self.calls = 0
        self.spec = ToolSpec(
            name="fussy",
            description="Fails.",
            parameters={
                "type": "object",
                "additionalProperties": False,
                "properties": {"how": {"type": "string"}},
            },
            deterministic=deterministic,
        )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.calls += 1
        match args["how"]:
            case "raise":
                raise ValueError("the password of db7 is wrong")
            case "refuse":
                raise ToolRefusedError("Ask for less.", code="too_much")
            case _:
                return failure("Ask for more.")


RETRIED = {"on_error": "retry", "retry_count": 2, "retry_delay_ms": 0}


@pytest.mark.req("cw/13.retry")
@pytest.mark.parametrize(
    ("deterministic", "rules", "calls"),
    [
        (False, {}, 3),
        (True, {}, 1),
        (True, {"retry_on": ["too_much"]}, 1),
        (False, {"no_retry_on": ["too_much"]}, 1),
        (False, {"retry_on": ["too_much"]}, 3),
        (False, {"retry_on": ["ToolFailedError"]}, 3),
        (False, {"retry_on": ["source_unavailable"]}, 1),
    ],
)
async def test_a_failed_tool_is_used_again_if_that_may_help(
    deterministic: bool, rules: dict[str, Any], calls: int
) -> None:
    """Deterministic tools are not retried; the tool's error codes are the failure classes."""
    tool = Fussy(deterministic=deterministic)
    here = NodeRun(more_tools=[tool])
    of = step("t", "tool", {"tool": "fussy"}, policy={**RETRIED, **rules})

    error = await here.failure(graph(of), how="refuse")

    assert isinstance(error, ToolFailedError)
    assert tool.calls == calls


@pytest.mark.req("cw/13.errors")
@pytest.mark.parametrize(
    ("how", "expose", "read"),
    [
        ("raise", False, {"error": "The tool broke (ValueError).", "code": "ValueError"}),
        (
            "raise",
            True,
            {
                "error": "The tool broke: ValueError: the password of db7 is wrong",
                "code": "ValueError",
            },
        ),
        ("refuse", False, {"error": "Ask for less.", "code": "too_much"}),
        ("return", False, {"error": "Ask for more.", "code": "failed"}),
    ],
)
async def test_what_a_model_reads_of_a_failure_is_chosen_by_the_tool(
    how: str, expose: bool, read: dict[str, Any]
) -> None:
    """The text of an unexpected exception stays in trace and log, also in a resumed run."""
    here = NodeRun(small=ScriptedModel(["seen"]), more_tools=[Fussy()], expose_errors=expose)
    of = graph(
        step("t", "tool", {"tool": "fussy"}),
        step("e", "llm", {"prompt": "${default}"}),
        flow("t", "e", "error"),
    )

    with capture_logs() as lines:
        for _ in range(2):
            outcome = await here.run(of, how=how)
            here.journal.reopen()

            assert outcome.steps["t"].outputs["error"] == read
    nodes = here.trace.snapshot()["nodes"].values()
    reasons = [node["stop_reason"] for node in nodes if node["name"] == "fussy"]
    if how == "raise":
        assert all("the password of db7 is wrong" in str(reason) for reason in reasons)
        [logged] = [line for line in lines if line["event"] == "tool.broke"]
        assert "the password of db7 is wrong" in str(logged["exc_info"])
