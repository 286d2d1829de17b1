"""Problem types of registered graphs and agents, and the errors that cause them."""

from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.problems import Errors, ProblemError, ProblemType
from caseworker.runs.errors import DefinitionInUseError, DefinitionNotFoundError

GRAPH_NOT_FOUND = ProblemType(
    slug="graph-not-found",
    status=404,
    title="Graph not found",
    detail="No graph has this name and version. GET /graphs lists all graphs.",
)
AGENT_NOT_FOUND = ProblemType(
    slug="agent-not-found",
    status=404,
    title="Agent not found",
    detail="No agent has this name and version. GET /agents lists all agents.",
)
GRAPH_IN_USE = ProblemType(
    slug="graph-in-use",
    status=409,
    title="Graph is in use",
    detail="First delete the graphs and agents that use it.",
)
AGENT_IN_USE = ProblemType(
    slug="agent-in-use",
    status=409,
    title="Agent is in use",
    detail="First delete the graphs and agents that use it.",
)


def _in_use(error: DefinitionInUseError) -> ProblemError:
    users = ", ".join(f"{one.kind.value} {one.name}@{one.version}" for one in error.users)
    kind = GRAPH_IN_USE if error.ref.kind is DefinitionKind.GRAPH else AGENT_IN_USE
    return ProblemError(kind, f"First delete the definitions that use it: {users}.")


def _not_found(error: DefinitionNotFoundError) -> ProblemError:
    is_graph = error.ref.kind is DefinitionKind.GRAPH
    return ProblemError(GRAPH_NOT_FOUND if is_graph else AGENT_NOT_FOUND)


ERRORS: Errors = {DefinitionInUseError: _in_use, DefinitionNotFoundError: _not_found}
PROBLEMS = (GRAPH_NOT_FOUND, AGENT_NOT_FOUND, GRAPH_IN_USE, AGENT_IN_USE)
