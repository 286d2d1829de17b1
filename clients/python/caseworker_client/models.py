"""Response models of runs, definitions and threads, with the field names of the API.

Models keep unknown members, and enumerations such as statuses are plain strings. An older client
therefore works with a newer service.
"""

from datetime import datetime
from typing import Any, Final, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field

_ENDS: Final = frozenset({"run.completed", "run.failed", "run.halted", "run.cancelled"})


class Answer(BaseModel):
    """Base class of all responses; validators are built lazily on first use."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    @classmethod
    def of(cls, response: httpx.Response) -> Self:
        """Parse the body of a response.

        Raises:
            ValueError: the body does not match the model.
        """
        return cls.model_validate_json(response.content)

    def as_json(self) -> dict[str, Any]:
        """Return the response as JSON values, exactly as it was sent."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Usage(Answer):
    """Resources used by a run, including estimates."""

    tokens: int = 0
    """Input plus output tokens."""
    seconds: float = 0
    steps: int = 0
    api_calls: int = 0
    """Requests to model providers, including retries."""
    cost_usd: float | None = None
    """Cost in US dollars; None if the price of a call is unknown."""
    llm_calls: int = 0
    """Logical calls to all models; retries are not counted."""
    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    turns: int = 0


class Stop(Answer):
    """Why a run ended early."""

    kind: str
    """``budget``, ``deadline``, ``cancelled``, ``loop``, ``error``, ``worker_lost``, ``poisoned``
    or ``abandoned``."""
    dimension: str | None = None
    """The exceeded budget dimension: ``seconds``, ``tool_calls``…"""
    scope: str | None = None
    """The scope of the limit: ``run``, or the path of a step."""
    limit: float | None = None
    used: float | None = None
    requested_by: str | None = None
    reason: str | None = None
    call: str | None = None
    """Name of the tool or function that ended the processes of the run, if it is ``poisoned``."""
    at: datetime | None = None


class RunSource(Answer):
    """The run from which another run resumes."""

    run_id: str
    until: str | None = None
    """The last imported node; None imports all successful ones."""


class RunDefinition(Answer):
    """The registered graph or agent with which a run was accepted."""

    name: str
    version: int | None = None


class RunSummary(Answer):
    """A run as shown in lists."""

    run_id: str
    kind: str = "case"
    """``case``, ``graph``, ``agent`` or ``external``."""
    status: str
    """``queued``, ``running`` or ``waiting``; finally ``completed``, ``failed``, ``halted``
    (stopped by a limit) or ``cancelled``."""
    graph: RunDefinition | None = None
    """The registered graph that the run executes; None for other runs."""
    agent: RunDefinition | None = None
    """The registered agent that it executes, or that answers in its thread."""
    thread_id: str | None = None
    """ID of the thread in which the run answers; None for other runs."""
    input: Any = None
    """The run's input, redacted as configured; in lists, texts are truncated to 200 characters.
    None in the response that accepts it."""
    finish_reason: str | None = None
    """How a case ended: ``success``, ``budget`` or ``big_fail``."""
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    """Number of times that a worker started the run."""
    limits: dict[str, int | float | None] = Field(default_factory=dict)
    """The run's limits by dimension; None is unlimited."""
    usage: Usage | None = None
    stop: Stop | None = None
    cancel: dict[str, Any] | None = None
    """The cancel request; None if there is none."""
    from_: RunSource | None = Field(None, alias="from")
    """The run that this run resumes; None if it resumes none."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    links: dict[str, Any] = Field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the run has ended and is final."""
        return self.finished_at is not None


class CaseResult(Answer):
    """The result of a case."""

    answer: str | None = None
    verified: bool | None
    """True if all checks passed and at least one is independent of the plan. None if only the
    plan's choice of operation is unconfirmed."""
    verification: dict[str, Any] = Field(default_factory=dict)
    finish_reason: str | None = None
    logs: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    evidence: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    artifacts: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    counters: dict[str, Any] = Field(default_factory=dict)
    models: dict[str, Any] = Field(default_factory=dict)


class AgentError(Answer):
    """The error or stop that ended an agent."""

    class_: str = Field(alias="class")
    message: str


class AgentResult(Answer):
    """The result of an agent."""

    success: bool
    """Whether the agent finished with an answer."""
    output: Any = None
    """The answer: text, or JSON that follows the agent's output schema."""
    output_valid: bool | None = None
    """Whether the answer follows the schema; None without a schema or an answer."""
    raw_content: str = ""
    """The answer exactly as the model wrote it."""
    terminate_reason: str | None = None
    """``goal``, ``error``, ``incomplete``, ``timeout``, ``max_turns``, ``aborted``, ``budget``."""
    error: AgentError | None = None
    """The error or stop; None after ``goal``."""
    turn_count: int = 0
    messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """The conversation; truncated at the start if it exceeds the limits."""


class StepResult(Answer):
    """The outcome of a step of a graph."""

    status: str
    error: str | None = None
    error_class: str | None = None


class GraphResult(Answer):
    """The result of a graph."""

    outputs: dict[str, dict[str, Any]]
    """Values by step ID and output handle."""
    steps: dict[str, StepResult] = Field(default_factory=dict[str, StepResult])


class ExternalResult(Answer):
    """The result of an agent that runs outside of the service."""

    output: Any = None
    """The output with which the agent finished the run."""
    replayed_calls: int
    """Number of calls that were answered with recorded replies."""
    unused_calls: int
    """Number of recorded replies that the last attempt did not request."""


class Access(Answer):
    """The gateway of an external run."""

    key: str
    """Key for the gateway; it is shown only once."""
    openai_base_url: str
    """Base URL for clients of the OpenAI API."""
    anthropic_base_url: str
    """Base URL for clients of the Anthropic API."""
    expires_at: datetime | None = None
    """The run's deadline; None if it has none."""


class Heartbeat(Answer):
    """The state of an external run."""

    run_id: str
    status: str
    left: dict[str, int | float | None] = Field(default_factory=dict)
    """The rest of each limit, by its name; None is unlimited."""


class RequiredCall(Answer):
    """A call of a run that waits for an answer from outside."""

    call_id: str
    author: str
    """Who answers: ``client`` (with ``answer_call``) or ``approver`` (with ``approve``)."""
    name: str
    """Name of the tool, or of the step that requests an approval."""
    arguments: Any = None
    expires_at: datetime


class RequiredAction(Answer):
    """The calls of a run that wait for an answer from outside."""

    calls: list[RequiredCall]


class Run(RunSummary):
    """A run with its result."""

    inputs: dict[str, Any] | None = None
    """Inputs of a graph or agent in addition to ``input``, by handle."""
    required_action: RequiredAction | None = None
    """Calls that wait for an answer from outside; None if there are none."""

    result: CaseResult | AgentResult | GraphResult | ExternalResult | None = None
    """The result for its kind; partial if the run ended early."""
    attempt: int | None = None
    """The attempt of an external run that this request opened; None for other requests."""
    access: Access | None = None
    """The access of that attempt; None for other requests."""


class CaseRun(Run):
    """A run of a case."""

    result: CaseResult | None = None  # pyright: ignore[reportIncompatibleVariableOverride] # frozen


class AgentRun(Run):
    """A run of an agent."""

    result: AgentResult | None = None  # pyright: ignore[reportIncompatibleVariableOverride] # frozen


class GraphRun(Run):
    """A run of a graph."""

    result: GraphResult | None = None  # pyright: ignore[reportIncompatibleVariableOverride] # frozen


class RunList(Answer):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    next_cursor: str | None = None
    """Cursor for the next page; None on the last page."""


class Event(Answer):
    """An event of a run."""

    run_id: str
    seq: int
    """Sequence number in the run, from 1, without gaps."""
    ts: datetime
    type: str
    step_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @property
    def ends(self) -> bool:
        """Whether the event ends the run; only late results of abandoned calls may follow."""
        return self.type in _ENDS


class EventPage(Answer):
    """A page of a run's events, in order."""

    events: list[Event]
    next_after: int | None = None
    """Value of ``after`` for the next page; None after the last event of a run."""


class Decision(Answer):
    """The outcome of an approval."""

    decision: str
    """``approved``, ``refused`` or ``timed_out``."""
    by: str | None = None
    """Name of the decider; None if the approval timed out."""
    at: datetime
    reason: str | None = None
    arguments: Any = None
    """Arguments that replace the requested ones; None if the requested ones are used."""


class Approval(Answer):
    """An approval that a run has requested."""

    run_id: str
    approval_id: str
    node_id: str
    run_url: str = ""
    """URL of the run; its ``input`` is the caller's request."""
    subject: str
    """The tool to call, or the step that requests the approval."""
    message: str
    arguments: Any = None
    """The arguments that are used on approval."""
    requested_at: datetime
    expires_at: datetime
    open: bool
    """Whether the approval can still be decided."""
    decision: Decision | None = None


class ApprovalList(Answer):
    """A page of approvals, oldest first."""

    approvals: list[Approval]
    next_cursor: str | None = None


class WaitingCall(Answer):
    """A call of a run that waits for an answer from outside, or that got one."""

    run_id: str
    call_id: str
    node_id: str
    author: str
    """Who answers: ``client`` (with ``answer_call``) or ``approver`` (with ``approve``)."""
    name: str
    """Name of the tool, or of the step that requests an approval."""
    arguments: Any = None
    status: str
    """``waiting``, ``answered``, ``expired`` or ``stopped``."""
    requested_at: datetime
    expires_at: datetime
    answered_at: datetime | None = None
    answered_by: str | None = None
    output: Any = None
    """Output that the client sent; None without one."""
    error: dict[str, str] | None = None
    """Error that the client sent, as ``{"class", "message"}``; None without one."""


class WaitingCallList(Answer):
    """The calls of a run that wait or waited for an answer from outside, oldest first."""

    calls: list[WaitingCall]


class CancelReceipt(Answer):
    """The outcome of a cancel request."""

    run_id: str
    status: str | None = None
    """Status of the run; None if it does not exist yet and will be cancelled on creation."""
    already_finished: bool = False
    requested_at: datetime | None = None
    delivered_at: datetime | None = None
    """Time at which the worker that executes the run received the request."""
    settled_at: datetime | None = None
    requested_by: str | None = None
    reason: str | None = None
    calls: list[dict[str, Any]] = Field(default_factory=list)
    """Calls that had started before the request."""


class CancelledRuns(Answer):
    """The outcome of a request to cancel all matching runs."""

    ended: int
    """Number of queued runs that ended immediately."""
    requested: int
    """Number of active runs whose workers were asked to stop them."""
    more: bool
    """True if more runs match; send the request again."""


class ErasedData(Answer):
    """What one request to erase data has erased."""

    runs: int
    threads: int
    schedules: int
    waiting: int
    """Number of cancelled runs that have not ended."""
    complete: bool
    """False if data is left; send the request again."""


class Trace(Answer):
    """The call graph of a run."""

    run_id: str
    snapshot: dict[str, Any]
    """The call graph: ``nodes`` by ID, and aggregates."""


class Call(Answer):
    """One call of a run, with its request and reply."""

    run_id: str
    node_id: str
    kind: str
    """``llm``, ``tool`` or ``system``."""
    name: str
    status: str
    request: dict[str, Any] | None = None
    reply: Any = None


class Artifact(Answer):
    """A file that a run has created, without its content."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime
    url: str


class ArtifactList(Answer):
    """All files that a run has created so far, oldest first."""

    artifacts: list[Artifact]


class Definition(Answer):
    """A version of a registered graph or agent; lists omit ``graph`` and ``agent``."""

    name: str
    version: int
    description: str | None = None
    sha256: str | None = None
    created_at: datetime | None = None
    graph: dict[str, Any] | None = None
    agent: dict[str, Any] | None = None
    warnings: list[dict[str, Any]] = Field(default_factory=list)


class GraphList(Answer):
    """A page of registered graphs."""

    graphs: list[Definition]
    next_cursor: str | None = None


class AgentList(Answer):
    """A page of registered agents."""

    agents: list[Definition]
    next_cursor: str | None = None


class Problem(Answer):
    """A problem found in a graph."""

    place: str
    """Location, such as ``steps.2.type``; empty for the graph as a whole."""
    message: str
    severity: str
    """An ``error`` prevents the graph from being run, a ``warning`` does not."""


class Validation(Answer):
    """The validation result of a graph."""

    valid: bool
    problems: list[Problem]


class Thread(Answer):
    """A conversation, with the agent or graph that answers in it."""

    thread_id: str
    agent: dict[str, Any] | None = None
    """The agent that answers; None if a graph answers, and in lists."""
    graph: dict[str, Any] | None = None
    inputs: dict[str, Any] = Field(default_factory=dict)
    tools: list[Any] = Field(default_factory=list)
    """Tools that the user provides."""
    title: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime


class ThreadList(Answer):
    """A page of threads, newest first."""

    threads: list[Thread]
    next_cursor: str | None = None
    """Cursor for the next page; None on the last page."""


class Message(Answer):
    """A message in a thread."""

    message_id: str
    parent_id: str | None = None
    """ID of the previous message; None for the first message."""
    role: str
    """``user`` or ``assistant``."""
    content: str | None = None
    """Text of the message. For an assistant, the answer so far. None if a whole tree was
    requested."""
    model: str | None = None
    """Name of the model that answered, from the provider's reply; None for a user message."""
    status: str | None = None
    """Status of the run that answers, ``not_started`` or ``erased``; None for a user message."""
    run_id: str | None = None
    siblings: list[str] = Field(default_factory=list)
    """Messages at the same position in other branches, including itself, oldest first."""
    created_at: datetime | None = None


class MessageList(Answer):
    """A branch of a thread, or all messages of the thread."""

    messages: list[Message]


class Turn(Answer):
    """A user message and its answer."""

    user: Message | None = None
    """The new user message; None if none was sent."""
    assistant: Message
    run: Run
    """The run that creates the answer."""


class CancelledThread(Answer):
    """The cancelled answers of a thread."""

    thread_id: str
    runs: list[CancelReceipt]
