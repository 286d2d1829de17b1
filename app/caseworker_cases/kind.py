"""The kind of runs ``case``: a graph with one step, the case agent."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, Final

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.runs.kind_rules import OPTIONAL, one_step
from caseworker.runs.run import RunKind, RunRequest

EXPECTED_TOOLS: Final = "expected_tools"
GOLD_ANSWER: Final = "gold_answer"
"""Expected answer, which only the verifier may see: it must not reach a planner, a prompt or a
log."""
MODE: Final = "mode"
"""Mode of the run; None means the configured mode."""


def _graph(request: RunRequest) -> Mapping[str, Any]:
    """Return the graph of a case; the question is an input, not part of the graph."""
    options = {name: request.options.get(name, usual) for name, usual in _STORED.options.items()}
    return one_step("case", options)


def _shared_graph(request: RunRequest) -> Hashable | None:
    """Return the mode of a case without expected tools and gold answer."""
    options = request.options
    is_own = options.get(GOLD_ANSWER) is not None or options.get(EXPECTED_TOOLS)
    return None if is_own else (options.get(MODE),)


_STORED: Final = OPTIONAL[RunKind.CASE]

CASE: Final = replace(
    _STORED,
    graph=_graph,
    inputs=lambda request: {DEFAULT_HANDLE: request.input},
    shared_graph=_shared_graph,
    api="caseworker_cases.api:CASE_API",
    package="",
)
