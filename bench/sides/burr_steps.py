"""Burr: actions joined by transitions; the application is built once and restarted each time."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

from burr.core import (  # type: ignore[import-not-found]
    ApplicationBuilder,
    GraphBuilder,
    State,
    action,
)

from bench.answering import answer
from bench.timing import seconds_each, seconds_each_awaited


@action(reads=["value"], writes=["value"])  # type: ignore[untyped-decorator]
def increment(state: Any) -> Any:
    """Add one."""
    return state.update(value=state["value"] + 1)


@action(reads=["value"], writes=["value"])  # type: ignore[untyped-decorator]
async def increment_awaited(state: Any) -> Any:
    """Add one, in a coroutine."""
    return state.update(value=state["value"] + 1)


def chain(steps: int, times: int) -> float:
    """Return the time of one step of a chain of plain actions, which cannot wait."""
    application, last = _application(steps, awaited=False), str(steps - 1)

    def execute() -> None:
        _begin_anew(application)
        *_, state = application.run(halt_after=[last])
        assert state["value"] == steps

    return seconds_each(execute, times) / steps


def chain_awaited(steps: int, times: int) -> float:
    """Return the time of one step of a chain of coroutines."""
    application, last = _application(steps, awaited=True), str(steps - 1)

    async def execute() -> None:
        _begin_anew(application)
        *_, state = await application.arun(halt_after=[last])
        assert state["value"] == steps

    return seconds_each_awaited(execute, times) / steps


def _begin_anew(application: Any) -> None:
    application.update_state(State({"value": 0}))
    application.reset_to_entrypoint()


@lru_cache
def _application(steps: int, *, awaited: bool) -> Any:
    names = [str(number) for number in range(steps)]
    work = increment_awaited if awaited else increment
    graph = (
        GraphBuilder()
        .with_actions(**dict.fromkeys(names, work))
        .with_transitions(*pairwise(names))
        .build()
    )
    builder = ApplicationBuilder().with_graph(graph).with_state(value=0).with_entrypoint(names[0])
    return builder.build()


if __name__ == "__main__":
    answer({"chain": chain, "chain_awaited": chain_awaited})
