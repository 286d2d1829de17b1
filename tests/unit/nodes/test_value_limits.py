"""Size limits of values, checked where a step creates them and where inputs are joined."""

from typing import Any

import pytest

from caseworker.core.trace.frozen_json import ValueLimits, ValueTooLargeError
from caseworker.nodes.templates import TooMuchTextError
from tests.unit.nodes.world import NodeRun, flow, graph, step

LIMITS = ValueLimits(
    max_value_bytes=10_000, max_outputs_bytes=20_000, max_result_bytes=40_000, max_depth=16
)
ALWAYS = {"path": "default", "op": "exists"}


def router(step_id: str, handles: int = 1, value: str = "default") -> dict[str, Any]:
    routes = [{"when": ALWAYS, "to": f"o{n}"} for n in range(handles)]
    data = {"mode": "all", "routes": routes, "value": value}
    placed: dict[str, Any] = step(step_id, "router", data)
    return placed


def joined(one: str, other: str, handles: int) -> list[dict[str, Any]]:
    return [flow(one, other, f"o{n}") for n in range(handles)]


@pytest.mark.parametrize(
    ("steps", "handles", "leaf"), [(40, 10, "x"), (4, 100, "x" * 40), (8, 90, "x" * 90)]
)
async def test_values_that_multiply_fail_the_step_that_makes_them_too_large(
    steps: int, handles: int, leaf: str
) -> None:
    """Each step joins the outputs that the step before it sent on many handles."""
    of = graph(
        *(router(f"r{n}", handles) for n in range(steps)),
        *(edge for n in range(steps - 1) for edge in joined(f"r{n}", f"r{n + 1}", handles)),
    )

    error = await NodeRun(limits=LIMITS).failure(of, default=leaf)

    assert isinstance(error, ValueTooLargeError)
    assert "step r" in str(error)
    assert "(limits.max_" in str(error)


async def test_a_join_is_refused_before_a_template_writes_it() -> None:
    """The step that would render the value fails, and the error names its input."""
    of = graph(
        router("r", 5, "large"),
        step("t", "tool", {"tool": "echo", "args": {"say": "${default}"}}),
        *joined("r", "t", 5),
    )

    error = await NodeRun(limits=LIMITS).failure(of, default=1, large="x" * 3000)

    assert isinstance(error, ValueTooLargeError)
    assert "values on input default of step t" in str(error)


async def test_a_template_makes_no_more_than_a_value_may_have() -> None:
    """The template has the same limit as a value."""
    of = graph(step("t", "tool", {"tool": "echo", "args": {"say": "${default}${default}"}}))

    error = await NodeRun(limits=LIMITS).failure(of, default="x" * 6000)

    assert isinstance(error, TooMuchTextError)
    assert "limits.max_value_kb" in str(error)


async def test_values_that_nest_deeper_with_every_step_are_refused() -> None:
    """Every accepted value can be read back."""
    of = graph(
        router("k"),
        *(router(f"s{n}") for n in range(30)),
        *joined("k", "s0", 1),
        *(edge for n in range(29) for edge in joined(f"s{n}", f"s{n + 1}", 1)),
        *(edge for n in range(29) for edge in joined("k", f"s{n + 1}", 1)),
    )

    error = await NodeRun(limits=LIMITS).failure(of, default=1)

    assert "nested deeper than 16 levels (limits.max_depth)" in str(error)


async def test_a_map_stops_at_the_item_whose_result_is_too_much() -> None:
    """The map does not run the remaining items, because the list could not be stored."""
    routes = {"routes": [{"when": ALWAYS, "to": "default"}], "value": "large"}
    data = {"step": {"type": "router", "data": routes}}
    here = NodeRun(limits=LIMITS)

    error = await here.failure(graph(step("m", "map", data)), default=[0] * 100, large="x" * 3000)

    assert "m/3" in str(error)
    assert len(here.began()) == 5


async def test_the_steps_of_a_run_produce_no_more_than_its_result_may_have() -> None:
    """A step that makes the result too large fails, and outputs of earlier steps stay."""
    of = graph(*(router(f"r{n}", 1, "large") for n in range(8)))
    here = NodeRun(limits=LIMITS)

    outcome = await here.run(of, default=1, large="x" * 9000)

    assert "The result of the run has more than 40,000 bytes" in str(outcome.error)
    assert sum(bool(report.outputs) for report in outcome.steps.values()) == 4


async def test_a_value_is_shared_and_not_copied_while_it_is_small_enough() -> None:
    """Values below the limits are passed on without a copy."""
    of = graph(router("a", 3), router("b"), *joined("a", "b", 3))

    outcome = await NodeRun(limits=LIMITS).run(of, default="x")

    assert outcome.steps["b"].outputs == {"o0": ["x", "x", "x"]}
    assert outcome.steps["b"].sizes == {"o0": 13}
