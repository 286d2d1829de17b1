"""The graph that a run executes."""

import asyncio

from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.catalog import NodeCatalog
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import Run, RunKind


class RunGraphs:
    """Prepares the graphs of runs for execution."""

    def __init__(self, catalog: NodeCatalog) -> None:
        self._catalog = catalog
        self._usual: dict[tuple[RunKind, str | None], PreparedGraph] = {}
        """Graphs of runs without a graph, expected tools or gold answer, by kind and mode."""

    async def prepared(self, run: Run) -> PreparedGraph:
        """Return the prepared graph of a run; a graph sent by a caller is prepared in a thread."""
        if run.request.graph is not None:
            return await asyncio.to_thread(self.graph_for, run)
        return self.graph_for(run)

    def graph_for(self, run: Run) -> PreparedGraph:
        """Return the prepared graph of a run.

        Raises:
            GraphProblemsError: this process cannot execute the graph.
        """
        request, key = run.request, (run.kind, run.request.mode)
        graph, answer = request.graph, request.gold_answer
        is_own = graph is not None or answer is not None or request.expected_tools
        prepared = None if is_own else self._usual.get(key)
        if prepared is None:
            graph = KINDS[request.kind].graph(request)
            prepared = self._catalog.prepare(graph, graph_id=run.key.run_id)
            if not is_own:
                self._usual[key] = prepared
        return prepared
