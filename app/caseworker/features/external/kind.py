"""The kind of runs ``external``: its bodies, its view and its admission."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.features.definitions.agent_kind import agent_of
from caseworker.features.definitions.definitions import Definitions
from caseworker.models.gateway import ModelGateway
from caseworker.models.table import ModelTable
from caseworker.nodes.agent.definition import MAX_TOOLS, ToolUse
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.bodies import STORABLE, BodyModel, DocumentedAs, View
from caseworker.platform.http.problems import INVALID_REQUEST, ProblemError, Violation
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.http.admission import Admission, Fields, KindApi, require_none
from caseworker.runs.http.body import OfAgents, OfGraphs, OfOthers, OfQueued, RunFields
from caseworker.runs.http.fields import IdleSeconds, ModelAliases, ModelNames, RunId
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.http.problems import graph_violations
from caseworker.runs.http.views import RunDetails
from caseworker.runs.kinds import EXTERNAL_STEP, KINDS, client_of, client_tools_in, parent_of
from caseworker.runs.run import RunKind, RunRequest

AgentName = Annotated[str, Field(min_length=1, max_length=200), STORABLE]


OfferedTools = Annotated[
    list[str | Annotated[dict[str, Any], DocumentedAs(ToolUse)]], Field(max_length=MAX_TOOLS)
]


class ParentRun(BodyModel):
    """The run whose budget a child run shares, and with which it ends."""

    run_id: RunId
    """ID of the parent, which must be an external run that has not ended."""


class ExternalBody(RunFields):
    """An agent that runs outside of the service and calls models through its gateway.

    The run starts at once or is rejected. The response holds the base URLs and the key that the
    agent uses.
    """

    streams = False
    kind: Literal["external"]
    """Kind of the run."""
    name: AgentName | None = None
    """Name of the agent, for lists and traces."""
    input: Any = None
    """Any JSON value; it is stored with the run and not interpreted."""
    models: ModelNames | ModelAliases | None = None
    """Models that the agent may call: a list of configured names, or a map from the names that the
    agent sends to configured names. The name ``*`` matches all names that are not listed.
    Defaults to all configured models."""
    tools: OfferedTools | None = None
    """Tools that the agent may call at ``mcp_url``, in the form of an agent's ``tools``: names of
    tools, or objects with one of ``tool``, ``toolset``, ``agent`` and ``mcp``. The entry
    ``client`` is refused, also in the agents, because the client executes its own tools itself."""
    idle_seconds: IdleSeconds = 600
    """Seconds without a call or heartbeat after which the run fails."""
    replay: bool = True
    """Whether a later attempt gets the recorded replies of earlier attempts instead of new ones."""
    parent: ParentRun | None = None
    """Parent of the run. Defaults to the run whose key sends the request. The run shares the rest
    of its parent's budget, may call only its parent's models, and ends with it."""
    start_at: OfQueued = None
    priority: OfQueued = None
    concurrency_key: OfQueued = None
    concurrency_limit: OfQueued = None
    graph: OfGraphs = None
    agent: OfAgents = None
    model: OfAgents = None
    messages: OfAgents = None
    inputs: OfOthers = None


class ExternalFields(BodyModel):
    """Fields of an external run that resumes from another one."""

    name: AgentName | None = None
    """Name of an agent outside of the service."""
    models: ModelNames | ModelAliases | None = None
    """Models that an agent outside of the service may call."""
    idle_seconds: IdleSeconds | None = None
    """Seconds without a call or heartbeat after which an external run fails."""
    replay: bool | None = None
    """Whether an external run gets recorded replies."""


class ExternalResult(View):
    """The result of an agent that ran outside of the service."""

    output: Any
    """Output that the client sent when it finished the run."""
    replayed_calls: int
    """Number of calls that were answered with recorded replies."""
    unused_calls: int
    """Number of recorded replies of earlier attempts that the last attempt did not request."""


class Access(View):
    """The gateway of an external run, and the key that identifies the run there."""

    key: str
    """Key for the gateway; it is shown only once."""
    openai_base_url: str
    """Base URL for clients of the OpenAI API."""
    anthropic_base_url: str
    """Base URL for clients of the Anthropic API."""
    mcp_url: str
    """URL of the MCP server that offers the run's tools."""
    expires_at: datetime | None
    """Deadline of the run; null if it has none. The key works until the run ends."""


class RunClient(View):
    """The client whose standing key has opened a run."""

    key_id: str
    """ID of the key."""
    conversation: str | None
    """Name of the session that the run belongs to; null for the unnamed session of the key."""
    user_agent: str | None
    """The `User-Agent` of the first request."""


class ExternalRun(RunDetails):
    """A run of an agent outside of the service, with its result."""

    kind: Literal[RunKind.EXTERNAL]
    result: Annotated[dict[str, Any], DocumentedAs(ExternalResult)] | None
    """Output that the client sent at the end; null before that, and after an early end."""
    parent_run_id: str | None = None
    """ID of the run whose budget this one shares; null if it shares none."""
    client: RunClient | None = None
    """Client of a standing key; null if the run was not opened by one."""
    attempt: int | None = None
    """Number of the attempt that this request opened; null for other requests."""
    access: Access | None = None
    """Access of this attempt; null for other requests and after the end of the run."""


class ExternalAdmission(Admission):
    """Validates request bodies of kind ``external`` and converts them to runs."""

    kind = RunKind.EXTERNAL

    def __init__(self, limits: ApiLimits, definitions: Definitions, models: ModelTable) -> None:
        super().__init__(limits, models)
        self._definitions = definitions

    def fields_of(self, request: RunRequest, overrides: Mapping[str, Any]) -> Fields:
        """Return the input, and the settings of the gateway."""
        settings = (request.graph or {})["steps"][0]["data"][EXTERNAL_STEP]
        overridable = {
            name: value for name, value in settings.items() if name not in ("parent", "client")
        }
        return {**overridable, "input": request.inputs.get(DEFAULT_HANDLE)}

    def _violations(self, body: ExternalBody) -> Iterator[Violation]:
        models = body.models or {}
        aliases = models.items() if isinstance(models, dict) else enumerate(models)
        for place, name in aliases:
            if name not in self._models:
                names = ", ".join(sorted(self._models)) or "none"
                message = f"Unknown model. Configured models: {names}."
                yield Violation(f"models.{place}", message)

    async def _own_fields(self, body: ExternalBody, tenant: str) -> tuple[Fields, Fields]:
        settings = {
            "name": body.name,
            "models": body.models,
            "idle_seconds": body.idle_seconds,
            "replay": body.replay,
            "parent": None if body.parent is None else body.parent.run_id,
            "tools": await self._resolved(body.tools, tenant) if body.tools else [],
        }
        graph = KINDS[self.kind].graph_of(settings)
        inputs = {} if body.input is None else {DEFAULT_HANDLE: body.input}
        return {"graph": graph, "inputs": inputs}, {}

    async def _resolved(self, tools: Sequence[Any], tenant: str) -> Any:
        """Return the tools with references to registered agents replaced by the agents.

        Raises:
            ProblemError: a tool is invalid or unknown.
        """
        agent = {"name": EXTERNAL_STEP, "prompt": {}, "tools": tools}
        try:
            resolved = await self._definitions.inline(tenant, agent, DefinitionKind.AGENT)
        except GraphRefusedError as refused:
            found_in = graph_violations(refused.problems)
            raise ProblemError(INVALID_REQUEST, violations=found_in) from None
        tools = agent_of(resolved.graph)["tools"]
        message = "The client of an external run executes its own tools. Remove this entry."
        require_none([Violation(place, message) for place in client_tools_in({"tools": tools})])
        return tools


EXTERNAL_API: Final = KindApi(
    kind=RunKind.EXTERNAL,
    body=ExternalBody,
    view=ExternalRun,
    admission=lambda services: ExternalAdmission(
        services.service(ApiLimits),
        services.service(Definitions),
        services.service(ModelGateway).table,
    ),
    own_members=lambda run: {
        "parent_run_id": parent_of(run.request),
        "client": client_of(run.request),
    },
    resume=ExternalFields,
)
