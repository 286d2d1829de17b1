"""What the service answers, with its field names.

A model keeps members that it does not know, and values such as a status are plain texts: an older
client goes on working with a newer service.
"""

from datetime import datetime
from typing import Any, Final, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field

_ENDS: Final = frozenset({"run.completed", "run.failed", "run.halted", "run.cancelled"})


class Answer(BaseModel):
    """An object that the service has sent; its checks are made when the first one comes."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    @classmethod
    def of(cls, response: httpx.Response) -> Self:
        """Return the object in the body of a response.

        Raises:
            ValueError: the body is something else.
        """
        return cls.model_validate_json(response.content)

    def as_json(self) -> dict[str, Any]:
        """Return what was sent, as JSON values: no member is added."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Usage(Answer):
    """What a run has spent, estimates included."""

    tokens: int = 0
    """Input plus output tokens."""
    seconds: float = 0
    steps: int = 0
    api_calls: int = 0
    """Attempts at a model provider."""
    cost_usd: float | None = None
    """None if the price of a call is not known."""
    llm_calls: int = 0
    """Logical calls of all models."""
    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    turns: int = 0


class Stop(Answer):
    """Why a run ended before its natural end."""

    kind: str
    """``budget``, ``deadline``, ``cancelled``, ``loop``, ``error`` or ``worker_lost``."""
    dimension: str | None = None
    """Which limit: ``seconds``, ``tool_calls``…"""
    scope: str | None = None
    """Whose limit: ``run``, or the path of a step."""
    limit: float | None = None
    used: float | None = None
    requested_by: str | None = None
    reason: str | None = None
    at: datetime | None = None


class RunSource(Answer):
    """The run that another one goes on from."""

    run_id: str
    until: str | None = None
    """The last node that is taken over; None takes over everything that ended well."""


class RunDefinition(Answer):
    """The registered graph or agent that a run was accepted with."""

    name: str
    version: int | None = None


class RunSummary(Answer):
    """A run as lists show it."""

    run_id: str
    kind: str = "case"
    """``case``, ``graph`` or ``agent``."""
    status: str
    """``queued``, ``running`` or ``waiting``; at the end ``completed``, ``failed``, ``halted`` (a
    limit stopped it) or ``cancelled``."""
    graph: RunDefinition | None = None
    """The registered graph that it executes."""
    agent: RunDefinition | None = None
    """The registered agent that it executes, or that answers in its thread."""
    thread_id: str | None = None
    """The thread that it answers in."""
    input: Any = None
    """What it was asked, redacted as configured; in lists the first 200 characters of a text. None
    where it was just accepted."""
    finish_reason: str | None = None
    """How a case ended: ``success``, ``budget`` or ``big_fail``."""
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    """How often a worker has begun it."""
    limits: dict[str, int | float | None] = Field(default_factory=dict)
    """What it may spend at most; None is unlimited."""
    usage: Usage | None = None
    stop: Stop | None = None
    cancel: dict[str, Any] | None = None
    """The request to cancel it."""
    from_: RunSource | None = Field(None, alias="from")
    """The run that it goes on from."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    links: dict[str, Any] = Field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.finished_at is not None


class CaseResult(Answer):
    """What a case came to."""

    answer: str | None = None
    verified: bool | None
    """True if the checks of the answer hold, and one of them is independent of the plan; None if
    only the operation that the plan chose is not confirmed."""
    verification: dict[str, Any] = Field(default_factory=dict)
    finish_reason: str | None = None
    logs: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    evidence: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    artifacts: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    counters: dict[str, Any] = Field(default_factory=dict)
    models: dict[str, Any] = Field(default_factory=dict)


class AgentError(Answer):
    """What failed or stopped an agent."""

    class_: str = Field(alias="class")
    message: str


class AgentResult(Answer):
    """What an agent came to."""

    success: bool
    """True if it ended by itself."""
    output: Any = None
    """Its answer: text, or JSON that follows the schema of its output."""
    output_valid: bool | None = None
    """Whether the answer follows the schema; None without one, and where there is no answer."""
    raw_content: str = ""
    """The answer as the model wrote it."""
    terminate_reason: str | None = None
    """``goal``, ``error``, ``timeout``, ``max_turns``, ``aborted`` or ``budget``."""
    error: AgentError | None = None
    """What failed or stopped it; None after ``goal``."""
    turn_count: int = 0
    messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """The conversation, as much of its end as the limits allow."""


class StepResult(Answer):
    """How a step of a graph stands."""

    status: str
    error: str | None = None
    error_class: str | None = None


class GraphResult(Answer):
    """What a graph came to."""

    outputs: dict[str, dict[str, Any]]
    """Values by step and output handle."""
    steps: dict[str, StepResult] = Field(default_factory=dict[str, StepResult])


class Run(RunSummary):
    """A run and what came of it."""

    inputs: dict[str, Any] | None = None
    """What a graph or agent was given besides ``input``, by handle."""

    result: CaseResult | AgentResult | GraphResult | None = None
    """Of its kind. What there is of it stays if the run ends early."""


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
    """None on the last page."""


class Event(Answer):
    """Something that happened in a run."""

    run_id: str
    seq: int
    """1 to n in each run, without a gap."""
    ts: datetime
    type: str
    step_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @property
    def ends(self) -> bool:
        """Whether the run has ended with it; only late results of abandoned calls may follow."""
        return self.type in _ENDS


class EventPage(Answer):
    """Some events of a run, in order."""

    events: list[Event]
    next_after: int | None = None
    """None behind the last event of a run."""


class Decision(Answer):
    """What became of an approval."""

    decision: str
    """``approved``, ``refused`` or ``timed_out``."""
    by: str | None = None
    """Who decided."""
    at: datetime
    reason: str | None = None
    arguments: Any = None
    """What is used in the place of what was asked for; None if that stays."""


class Approval(Answer):
    """A question of a run to a person."""

    run_id: str
    approval_id: str
    node_id: str
    run_url: str = ""
    """The run, whose ``input`` is what its caller asked."""
    subject: str
    """The tool that is to be called, or the step that asks."""
    message: str
    arguments: Any = None
    """What will be used if it is approved."""
    requested_at: datetime
    expires_at: datetime
    open: bool
    """Whether it can be decided now."""
    decision: Decision | None = None


class ApprovalList(Answer):
    """A page of approvals, oldest first."""

    approvals: list[Approval]
    next_cursor: str | None = None


class CancelReceipt(Answer):
    """What came of a request to cancel a run."""

    run_id: str
    status: str | None = None
    """None if there is no such run yet; a run that is created later is cancelled at once."""
    already_finished: bool = False
    requested_at: datetime | None = None
    delivered_at: datetime | None = None
    """When the worker that executes the run received it."""
    settled_at: datetime | None = None
    requested_by: str | None = None
    reason: str | None = None
    calls: list[dict[str, Any]] = Field(default_factory=list)
    """The calls that had begun before."""


class CancelledRuns(Answer):
    """What came of a request to stop all runs that fit a filter."""

    ended: int
    """Runs that were waiting for a worker: they ended at once."""
    requested: int
    """Runs at work: their workers have been asked to stop them."""
    more: bool
    """True if there are more: send the request again."""


class Trace(Answer):
    """What a run did: the graph of its calls."""

    run_id: str
    snapshot: dict[str, Any]
    """``nodes`` by their id, and aggregates."""


class Call(Answer):
    """One call of a run, with what it asked and what it got."""

    run_id: str
    node_id: str
    kind: str
    """``llm``, ``tool`` or ``system``."""
    name: str
    status: str
    request: dict[str, Any] | None = None
    reply: Any = None


class Artifact(Answer):
    """A file that a run has made, without its bytes."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime
    url: str


class ArtifactList(Answer):
    """All files that a run has made so far, oldest first."""

    artifacts: list[Artifact]


class Definition(Answer):
    """A version of a registered graph or agent; lists leave ``graph`` and ``agent`` out."""

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
    """Something that is wrong with a graph."""

    place: str
    """Such as ``steps.2.type``; empty for the graph as a whole."""
    message: str
    severity: str
    """An ``error`` keeps the graph from being run, a ``warning`` does not."""


class Validation(Answer):
    """Everything that is wrong with a graph."""

    valid: bool
    problems: list[Problem]


class Thread(Answer):
    """A conversation, and what answers in it."""

    thread_id: str
    agent: dict[str, Any] | None = None
    """None if a graph answers, and in lists."""
    graph: dict[str, Any] | None = None
    inputs: dict[str, Any] = Field(default_factory=dict)
    tools: list[Any] = Field(default_factory=list)
    """What the user brings along."""
    title: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime


class ThreadList(Answer):
    """A page of threads, newest first."""

    threads: list[Thread]
    next_cursor: str | None = None
    """None on the last page."""


class Message(Answer):
    """Something that was said in a thread."""

    message_id: str
    parent_id: str | None = None
    """The message that it follows."""
    role: str
    """``user`` or ``assistant``."""
    content: str | None = None
    """Of an assistant what its run came to, so far; None in a whole tree."""
    model: str | None = None
    """Of an assistant: the model that answered, as its provider names it."""
    status: str | None = None
    """Of an assistant: the status of its run, or ``not_started``."""
    run_id: str | None = None
    siblings: list[str] = Field(default_factory=list)
    """The messages at the same place in other branches, itself among them, oldest first."""
    created_at: datetime | None = None


class MessageList(Answer):
    """A branch of a thread, or all of its messages."""

    messages: list[Message]


class Turn(Answer):
    """What was said, and its answer."""

    user: Message | None = None
    """None where nothing new was said."""
    assistant: Message
    run: Run
    """The run that makes the answer."""


class CancelledThread(Answer):
    """The answers of a thread that are cancelled."""

    thread_id: str
    runs: list[CancelReceipt]
