"""The graph benchmarks of this project; those of its peers need separate environments."""

import importlib.util

import pytest

from bench.environments import own_environment, worker
from bench.figures import Samples
from bench.graph_runtimes import RUNTIMES, requirements_of
from bench.harness import OURS
from bench.rows.graph_step import fastest
from bench.rows.tracing import overhead_percent
from bench.timing import seconds_each, seconds_each_awaited


async def test_the_graph_runtime_answers_every_question_that_a_row_asks() -> None:
    """Each question returns a time, after the worker has checked the results of the graph."""
    async with worker(own_environment(), RUNTIMES[OURS].script) as side:
        assert await side.ask("chain", steps=3, times=2) > 0
        assert await side.ask("chain", steps=3, times=2, timeout_ms=60_000) > 0
        assert await side.ask("fan_out", width=3, times=2) > 0
        assert await side.ask("protocol") > 0
        assert await side.ask("protocol", traced=True) > 0
        assert await side.ask("protocol", traced=True, read=True) > 0


async def test_the_floor_answers_what_it_is_compared_in() -> None:
    """The asyncio baseline measures a chain of tasks and a TaskGroup."""
    async with worker(own_environment(), RUNTIMES["asyncio"].script) as side:
        assert await side.ask("chain", steps=3, times=2) > 0
        assert await side.ask("fan_out", width=3, times=2) > 0


async def test_a_large_graph_is_measured_in_time_and_in_memory() -> None:
    """A large graph is measured in time and memory; a step takes at least a few hundred bytes."""
    async with worker(own_environment(), "graph_memory") as side:
        assert await side.ask("seconds", wide=2, deep=3) > 0
        assert await side.ask("peak_bytes", wide=2, deep=3) > 300


def test_every_runtime_has_its_module_and_a_pinned_version() -> None:
    """Each runtime has a module, and its requirements are pinned."""
    for runtime in RUNTIMES.values():
        assert importlib.util.find_spec(f"bench.sides.{runtime.script}") is not None
    assert all("==" in needed for needed in requirements_of(RUNTIMES))
    assert {name for name, runtime in RUNTIMES.items() if not runtime.requirements} == {
        OURS,
        "asyncio",
    }


def test_the_best_peer_is_the_one_with_the_smallest_median() -> None:
    """The fastest peer is the one with the smallest median, not with the best single round."""
    measured = {"lucky": Samples((1.0, 9.0, 9.0)), "steady": Samples((5.0, 5.0, 5.0))}

    assert fastest(measured, measured) == "steady"


def test_the_overhead_of_a_trace_is_taken_pair_by_pair() -> None:
    """The overhead is computed per round, so a slower machine does not count as overhead."""
    plain, traced = Samples((1.0, 10.0)), Samples((1.04, 10.4))

    assert overhead_percent(traced, plain).values == pytest.approx((4.0, 4.0))


def test_work_is_done_as_often_as_it_is_said_to_be() -> None:
    """Work is repeated the given number of times; the result is the mean time."""
    calls: list[str] = []

    async def awaited() -> None:
        calls.append("awaited")

    assert seconds_each(lambda: calls.append("called"), 3) >= 0
    assert seconds_each_awaited(awaited, 2) >= 0
    assert calls == ["called"] * 3 + ["awaited"] * 2
