"""The graph that a run executes."""

import asyncio
from collections.abc import Hashable

from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.catalog import NodeCatalog
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import Run, RunKind


class RunGraphs:
    """Prepares the graphs of runs for execution."""

    def __init__(self, catalog: NodeCatalog) -> None:
        self._catalog = catalog
        self._shared: dict[tuple[RunKind, Hashable], PreparedGraph] = {}
        """Graphs of several runs, by kind and key (``KindRules.shared_graph``)."""

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
        request, rules = run.request, KINDS[run.kind]
        key = rules.shared_graph(request)
        prepared = None if key is None else self._shared.get((run.kind, key))
        if prepared is None:
            prepared = self._catalog.prepare(rules.graph(request), graph_id=run.key.run_id)
            if key is not None:
                self._shared[run.kind, key] = prepared
        return prepared
