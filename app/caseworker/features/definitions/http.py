"""Routes that register, validate, read and delete graphs and agents."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Self

from fastapi import APIRouter, Body, Path, Query, Response
from fastapi.openapi.models import Example
from pydantic import StringConstraints

from caseworker.core.graph.validation import Problem, Severity
from caseworker.features.definitions.agent_kind import AGENT_EXAMPLE
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.fields import (
    MAX_VERSION,
    DefinitionName,
    InlineAgent,
    InlineGraph,
)
from caseworker.features.definitions.graph_kind import GRAPH_EXAMPLE
from caseworker.features.definitions.graph_shape import GraphShape
from caseworker.features.definitions.registration import (
    Definition,
    DefinitionInUseError,
    DefinitionNotFoundError,
    DefinitionVersion,
    Registered,
)
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.graph_spec import GraphSpec
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.bodies import STORABLE, BodyModel, DocumentedAs, PageQuery, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import Errors, ProblemError, ProblemType
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.platform.paging import Page
from caseworker.runs.http.problems import QUOTA_EXCEEDED, words_of
from caseworker.runs.run import DefinitionRef

MAX_DESCRIPTION_CHARS = 1000

Description = Annotated[str, StringConstraints(max_length=MAX_DESCRIPTION_CHARS), STORABLE]


class NewAgentBody(BodyModel):
    """An agent to register under the name in its definition."""

    agent: InlineAgent
    """The agent definition. Its tools may include registered agents, by name."""


class NewGraphBody(BodyModel):
    """A graph to register."""

    name: DefinitionName
    """Name of the graph. The first registration creates version 1, every change the next
    version."""
    graph: InlineGraph
    """The graph. Its steps may refer to registered graphs by name."""
    description: Description | None = None
    """Purpose of the graph, as text."""


class GraphToValidate(BodyModel):
    """A graph to validate."""

    graph: InlineGraph
    """The graph. Its steps may refer to registered graphs by name."""


NEW_AGENTS: dict[str, Example] = {
    "agent": Example(summary="An agent with a tool and a variable", value={"agent": AGENT_EXAMPLE})
}

NEW_GRAPHS: dict[str, Example] = {
    "graph": Example(
        summary="Two sequential calculations",
        value={
            "name": "discount",
            "description": "Calculates a discount and subtracts it.",
            "graph": GRAPH_EXAMPLE,
        },
    ),
}

GRAPHS_TO_VALIDATE: dict[str, Example] = {
    "graph": Example(summary="Two sequential calculations", value={"graph": GRAPH_EXAMPLE}),
}

NOT_FOUND = {
    kind: ProblemType(
        slug=f"{kind.value}-not-found",
        status=404,
        title=f"{kind.value.capitalize()} not found",
        detail=f"No {kind.value} has this name and version. GET /{kind.value}s lists all "
        f"{kind.value}s.",
        explanation=f"No registered {kind.value} has this name or version, or it belongs to "
        "another tenant.",
    )
    for kind in DefinitionKind
}
IN_USE = {
    kind: ProblemType(
        slug=f"{kind.value}-in-use",
        status=409,
        title=f"{kind.value.capitalize()} is in use",
        detail="First delete the graphs and agents that use it.",
        explanation="Other registered graphs or agents contain this version, or contain the newest "
        "version of the name and this is the last one. `detail` names them, such as "
        "`invoice-check@3`. Delete them first.",
    )
    for kind in DefinitionKind
}


def _in_use(error: DefinitionInUseError) -> ProblemError:
    users = ", ".join(f"{one.kind.value} {one.name}@{one.version}" for one in error.users)
    detail = f"First delete the definitions that use it: {users}."
    return ProblemError(IN_USE[error.ref.kind], detail)


ERRORS: Errors = {
    DefinitionInUseError: _in_use,
    DefinitionNotFoundError: lambda error: ProblemError(NOT_FOUND[error.ref.kind]),
}
PROBLEMS = (*NOT_FOUND.values(), *IN_USE.values())


class DefinitionLinks(View):
    """URLs for a version of a registered graph or agent."""

    self: str
    versions: str

    @classmethod
    def of(cls, head: DefinitionVersion, root: str) -> Self:
        """Return the URLs for a version. ``root`` is their path prefix."""
        versions = f"{root}/{head.kind.value}s/{head.name}/versions"  # names need no quoting
        return cls(self=f"{versions}/{head.version}", versions=versions)


class ProblemView(View):
    """A problem found in a graph."""

    place: str
    """Location of the problem, such as ``steps.2.type``; empty for the graph as a whole."""
    message: str
    severity: Severity
    """Severity: an ``error`` prevents the graph from being run or registered, a ``warning`` does
    not."""

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the view of a problem, with secrets in quoted names redacted."""
        return cls(place=problem.place, message=words_of(problem), severity=problem.severity)


class DefinitionSummary(View):
    """One version of a registered graph or agent, without its definition."""

    name: str
    version: int
    description: str | None
    sha256: str
    """SHA-256 of the definition as canonical JSON (sorted keys, no whitespace, UTF-8), in
    hexadecimal."""
    size_bytes: int
    """Size of the definition as canonical JSON, in bytes."""
    created_at: datetime
    links: DefinitionLinks

    @classmethod
    def of(cls, head: DefinitionVersion, root: str, **more: Any) -> Self:
        """Return the view of a version. ``root`` is the path prefix for its URLs."""
        return cls.of_parts(head, links=DefinitionLinks.of(head, root), **more)


class RegisteredDefinition(DefinitionSummary):
    """The registered version of a graph or agent, which may have existed already."""

    warnings: list[ProblemView]
    """Problems in the definition that do not prevent it from being run."""

    @classmethod
    def answer(cls, registered: Registered, root: str, response: Response) -> Self:
        """Return the response body for a registration, and set the response's Location header.

        If the version existed already, the status is set to 200 instead of 201.
        """
        warnings = [ProblemView.of(problem) for problem in registered.warnings]
        view = cls.of(registered.head, root, warnings=warnings)
        response.headers["Location"] = view.links.self
        if not registered.created:
            response.status_code = HTTPStatus.OK
        return view


class GraphDefinitionView(DefinitionSummary):
    """One version of a registered graph."""

    graph: Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
    """The graph definition as it was registered."""
    shape: GraphShape

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Return the view of a registered graph. ``root`` is the path prefix for its URLs."""
        graph = definition.content
        return cls.of(definition.head, root, graph=graph, shape=GraphShape.of(graph))


class AgentDefinitionView(DefinitionSummary):
    """One version of a registered agent."""

    agent: Annotated[dict[str, Any], DocumentedAs(AgentDefinition)]
    """The agent definition as it was registered."""

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Return the view of a registered agent. ``root`` is the path prefix for its URLs."""
        return cls.of(definition.head, root, agent=definition.content)


class DefinitionList(View):
    """A page of registered definitions: one item per version, without its definition."""

    @classmethod
    def of(cls, page: Page[DefinitionVersion], root: str) -> Self:
        """Return the view of a page of versions. ``root`` is the path prefix for their URLs."""
        items, cursor = cls.model_fields
        heads = [DefinitionSummary.of(head, root) for head in page.items]
        return cls.model_validate({items: heads, cursor: page.next_cursor})


class GraphList(DefinitionList):
    """A page of registered graphs: one item per version, without its definition."""

    graphs: list[DefinitionSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


class AgentList(DefinitionList):
    """A page of registered agents: one item per version, without its definition."""

    agents: list[DefinitionSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


class Validation(View):
    """Result of validating a graph."""

    valid: bool
    """Whether the graph can be run; if true, there may still be warnings."""
    problems: list[ProblemView]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Self:
        """Return the validation result for the problems found in a graph."""
        errors = any(problem.severity is Severity.ERROR for problem in problems)
        return cls(valid=not errors, problems=[ProblemView.of(problem) for problem in problems])


_WHERE = {"Location": {"description": "URL of the version.", "schema": {"type": "string"}}}

REGISTERED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, QUOTA_EXCEEDED),
    200: {
        "description": "The newest version is identical; no new version was created.",
        "headers": _WHERE,
        "model": RegisteredDefinition,
    },
    201: {"description": "A new version was created.", "headers": _WHERE},
}
"""OpenAPI responses for the routes that register a graph or agent."""

_DELETED: Responses = {204: {"description": "Deleted. Existing runs that use it are not affected."}}

NamePath = Annotated[DefinitionName, Path(description="Name of the definition.")]
VersionPath = Annotated[int, Path(description="Version number.", ge=1, le=MAX_VERSION)]


def definition_routes(
    kind: DefinitionKind,
    view: type[GraphDefinitionView | AgentDefinitionView],
    list_view: type[DefinitionList],
) -> APIRouter:
    """Return a router that lists, reads and deletes definitions of one kind.

    ``view`` is the response model for one definition and ``list_view`` for a list. The caller may
    add more routes to the router.
    """
    what = kind.value
    router = api_router(f"{what}s", prefix=f"/{what}s")
    not_found, in_use = NOT_FOUND[kind], IN_USE[kind]
    responses_of_one = answers(*EVERY_RUN_ROUTE, not_found)
    deleting: dict[str, Any] = {
        "status_code": HTTPStatus.NO_CONTENT,
        "responses": {**answers(*EVERY_RUN_ROUTE, not_found, in_use), **_DELETED},
    }
    about = f"a{'n' if what[0] in 'aeiou' else ''} {what}"

    @router.get(
        "",
        response_model=list_view,
        responses=answers(*EVERY_RUN_ROUTE),
        name=f"list_{what}s",
        description=f"List the newest version of each registered {what}, sorted by name.",
    )
    async def list_all(query: Annotated[PageQuery, Query()], request: ApiRequest):  # type: ignore[no-untyped-def]
        page = await request.service(Definitions).store.find(
            request.caller.tenant, kind, limit=query.limit, cursor=query.cursor
        )
        return list_view.of(page, request.root)

    @router.get(
        "/{name}",
        response_model=view,
        responses=responses_of_one,
        name=f"get_{what}",
        description=f"Return the newest version of {about}.",
    )
    async def newest(name: NamePath, request: ApiRequest):  # type: ignore[no-untyped-def]
        ref = DefinitionRef(name, kind=kind)
        definition = await request.service(Definitions).get(request.caller.tenant, ref)
        return view.of_definition(definition, request.root)

    @router.get(
        "/{name}/versions",
        response_model=list_view,
        responses=responses_of_one,
        name=f"list_{what}_versions",
        description=f"List the versions of {about}, newest first.",
    )
    async def versions(  # type: ignore[no-untyped-def]
        name: NamePath, query: Annotated[PageQuery, Query()], request: ApiRequest
    ):
        page = await request.service(Definitions).versions(
            request.caller.tenant,
            DefinitionRef(name, kind=kind),
            limit=query.limit,
            cursor=query.cursor,
        )
        return list_view.of(page, request.root)

    @router.get(
        "/{name}/versions/{version}",
        response_model=view,
        responses=responses_of_one,
        name=f"get_{what}_version",
        description=f"Return one version of {about}.",
    )
    async def version(name: NamePath, version: VersionPath, request: ApiRequest):  # type: ignore[no-untyped-def]
        ref = DefinitionRef(name, version, kind)
        definition = await request.service(Definitions).get(request.caller.tenant, ref)
        return view.of_definition(definition, request.root)

    @router.delete(
        "/{name}",
        **deleting,
        name=f"delete_{what}",
        description=f"Delete all versions of {about}. Version numbers are not reused.",
    )
    async def delete(name: NamePath, request: ApiRequest) -> None:
        ref = DefinitionRef(name, kind=kind)
        await request.service(Definitions).store.delete(request.caller.tenant, ref)

    @router.delete(
        "/{name}/versions/{version}",
        **deleting,
        name=f"delete_{what}_version",
        description=f"Delete one version of {about}. Its number is not reused.",
    )
    async def delete_version(name: NamePath, version: VersionPath, request: ApiRequest) -> None:
        ref = DefinitionRef(name, version, kind)
        await request.service(Definitions).store.delete(request.caller.tenant, ref)

    return router


graphs = definition_routes(DefinitionKind.GRAPH, GraphDefinitionView, GraphList)


@graphs.post("", status_code=HTTPStatus.CREATED, responses=REGISTERED)
async def register_graph(
    body: Annotated[NewGraphBody, Body(openapi_examples=NEW_GRAPHS)],
    request: ApiRequest,
    response: Response,
) -> RegisteredDefinition:
    """Register a graph as the next version of its name; versions are immutable.

    The graph must be valid, and all definitions that it refers to must be registered.
    """
    registered = await request.service(Definitions).register(
        request.caller.tenant, DefinitionRef(body.name), body.graph, body.description
    )
    return RegisteredDefinition.answer(registered, request.root, response)


@graphs.post("/validate", responses=answers(*EVERY_RUN_ROUTE, *EVERY_BODY))
async def validate_graph(
    body: Annotated[GraphToValidate, Body(openapi_examples=GRAPHS_TO_VALIDATE)], request: ApiRequest
) -> Validation:
    """Validate a graph and return all problems; nothing is stored."""
    definitions, kind = request.service(Definitions), DefinitionKind.GRAPH
    problems = await definitions.problems(request.caller.tenant, body.graph, kind)
    return Validation.of(problems)


agents = definition_routes(DefinitionKind.AGENT, AgentDefinitionView, AgentList)


@agents.post("", status_code=HTTPStatus.CREATED, responses=REGISTERED)
async def register_agent(
    body: Annotated[NewAgentBody, Body(openapi_examples=NEW_AGENTS)],
    request: ApiRequest,
    response: Response,
) -> RegisteredDefinition:
    """Register an agent as the next version of its name; versions are immutable.

    The agent must be valid, and every agent that it refers to must be registered.
    """
    registered = await request.service(Definitions).register_agent(
        request.caller.tenant, body.agent
    )
    return RegisteredDefinition.answer(registered, request.root, response)
