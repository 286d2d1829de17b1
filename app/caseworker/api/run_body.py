"""What a caller may send about runs: bodies and headers."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetPydanticSchema,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import core_schema
from starlette.datastructures import Headers

from caseworker.api.definition_body import AgentOrName, GraphOrName
from caseworker.api.field_types import (
    STORABLE,
    Body,
    CaseInput,
    Instant,
    Reason,
    RunId,
    Seed,
    ToolName,
    ZoneName,
)
from caseworker.api.problems import invalid
from caseworker.control.budget import UNLIMITED, Budget, field_name, json_number
from caseworker.nodes.agent.definition import MAX_MESSAGES
from caseworker.nodes.model_spec import ModelSpec
from caseworker.nodes.reading import refusal
from caseworker.runs.quotas import Queueing

MAX_EXPECTED_TOOLS = 50
MAX_KEY_CHARS = 255

_KEY = r"^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$"
_VALID_KEY = re.compile(_KEY[1:-1])
_WAIT = re.compile(r'(?:^|,)\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?=[,;]|$)', re.IGNORECASE | re.ASCII)

POST_HEADERS: list[dict[str, Any]] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes a POST safe to retry: the same key never creates two runs.",
        "schema": {"type": "string", "pattern": _KEY, "minLength": 1, "maxLength": MAX_KEY_CHARS},
    },
    {
        "name": "Prefer",
        "in": "header",
        "description": "`wait=N` waits up to N seconds for the result (RFC 7240).",
        "schema": {"type": "string", "examples": ["wait=10"]},
    },
]
"""How the OpenAPI document describes the headers of POST /runs.

They are read by hand: as parameters of the route they would cost a tenth of the whole request."""


@dataclass(frozen=True, slots=True)
class GivenBudget:
    """The limits that a caller sent: what is left out takes a default, null is unlimited."""

    budget: Budget
    given: frozenset[str]
    """The fields that were sent, by their JSON names."""

    def over(self, usual: Budget) -> Budget:
        """Return ``usual`` with the given limits in the place of its own, null included."""
        if usual is UNLIMITED:  # so is what was not sent
            return self.budget
        names = map(field_name, self.given)
        return replace(usual, **{name: getattr(self.budget, name) for name in names})

    def to_json(self) -> dict[str, int | float | None]:
        """Return the limits that were sent, by their JSON names."""
        return {name: json_number(getattr(self.budget, name)) for name in self.given}


def _given(value: Any, read: ValidatorFunctionWrapHandler) -> GivenBudget:
    return GivenBudget(read(value), frozenset(value))


BudgetBody = Annotated[
    GivenBudget,
    GetPydanticSchema(
        lambda _, handler: core_schema.no_info_wrap_validator_function(_given, handler(Budget))
    ),
]
"""Limits of a run."""


def _kind(value: Any) -> Any:
    if value not in ("case", "graph", "agent"):
        raise refusal("This must be one of: 'case', 'graph' or 'agent'.")
    return value


def _of(kinds: str) -> BeforeValidator:
    def refuse(value: Any) -> None:
        if value is not None:
            raise refusal(
                f"This field is only for runs of kind {kinds}. Send that kind or omit this field."
            )

    return BeforeValidator(refuse)


OfCases = SkipJsonSchema[Annotated[None, _of("case")]]
OfGraphs = SkipJsonSchema[Annotated[None, _of("graph")]]
OfAgents = SkipJsonSchema[Annotated[None, _of("agent")]]
OfOthers = SkipJsonSchema[Annotated[None, _of("graph or agent")]]


Mode = Literal["hrm_small_then_escalate", "escalate", "fallback_only"]

NodeId = Annotated[str, Field(pattern=r"^n[0-9]{6,12}$", examples=["n000004"])]


ConcurrencyKey = Annotated[str, StringConstraints(min_length=1, max_length=200), STORABLE]
EndType = Literal["run.cancelled", "run.completed", "run.failed", "run.halted"]


class WebhookBody(Body):
    """Where the end of the run is announced, signed with the secret of `POST /webhooks/secret`."""

    url: Annotated[str, Field(examples=["https://example.com/hooks/caseworker"])]
    """A public https URL."""
    events: Annotated[list[EndType], Field(min_length=1, max_length=4)] | None = None
    """Of which ends; left out, of every one."""


class RunFields(Body):
    """What runs of every kind have."""

    run_id: RunId | None = None
    """Names the run; left out, the service makes a UUIDv7. Repeating an id repeats nothing."""
    kind: str
    input: Any = None
    budget: BudgetBody | None = None
    """What the run may spend."""
    deadline: Instant | None = None
    """When the run is halted at the latest, whatever it is doing."""
    start_at: Instant | None = None
    """When it is begun at the earliest; until then it is queued, and can be cancelled."""
    seed: Seed | None = None
    """Makes prompts and sampling repeatable where the provider supports it."""
    timezone: ZoneName | None = None
    """Where "today" begins; left out, as configured."""
    metadata: dict[str, Any] | None = None
    """Comes back with the run and means nothing to the service."""
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """Of the queued runs of a tenant, those with a higher one begin first; left out, 0."""
    concurrency_key: ConcurrencyKey | None = None
    """Of all runs of a tenant with the same key, at most ``concurrency_limit`` are under way, those
    that wait for an approval included; the others wait in order."""
    concurrency_limit: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many runs of its key may be under way for this one to begin, itself included; left out,
    1."""

    @model_validator(mode="after")
    def _limit_has_key(self) -> Self:
        if self.concurrency_limit is not None and self.concurrency_key is None:
            raise refusal("concurrency_limit requires concurrency_key.")
        return self

    @property
    def queueing(self) -> Queueing:
        """When the run may begin beside others."""
        return Queueing(
            priority=self.priority or 0,
            concurrency_key=self.concurrency_key,
            concurrency_limit=self.concurrency_limit or 1,
        )

    webhook: WebhookBody | None = None
    """Who is told when it ends."""


class CaseBody(RunFields):
    """A case to run."""

    kind: Annotated[Literal["case"], BeforeValidator(_kind)] = "case"
    """What to run."""
    input: CaseInput
    """The question, UTF-8 text of at most the configured number of characters (8192)."""
    expected_tools: Annotated[list[ToolName], Field(max_length=MAX_EXPECTED_TOOLS)] | None = None
    """Tools without which the answer does not count as verified; GET /tools lists them."""
    gold_answer: str | None = None
    """The right answer, for the verifier alone: no model ever sees it."""
    mode: Mode | None = None
    """How much the small model does before the big one; left out, as configured. ``escalate`` means
    ``hrm_small_then_escalate``."""
    budget: BudgetBody | None = None
    """What the run may spend; left out, the configured limits."""
    graph: OfGraphs = None
    agent: OfAgents = None
    model: OfAgents = None
    messages: OfAgents = None
    inputs: OfOthers = None


class GraphRunBody(RunFields):
    """A graph to run."""

    kind: Literal["graph"]
    """What to run."""
    graph: GraphOrName
    """The graph itself, or the name of a registered one. The run keeps the graph that it was
    accepted with, with all the graphs that it contains."""
    inputs: dict[str, Any] | None = None
    """Values by input handle, for the steps without incoming flow edges."""
    input: Any = None
    """Short for ``inputs.default``: any JSON; null is left out."""
    budget: BudgetBody | None = None
    """What the run may spend; left out, as much as the service allows any run."""
    expected_tools: OfCases = None
    gold_answer: OfCases = None
    mode: OfCases = None
    agent: OfAgents = None
    model: OfAgents = None
    messages: OfAgents = None


class ChatMessage(Body):
    """Something that was said."""

    role: Literal["user", "assistant"]
    content: Annotated[CaseInput, STORABLE]


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


class AgentRunBody(RunFields):
    """An agent to run."""

    kind: Literal["agent"]
    """What to run."""
    agent: AgentOrName
    """The agent itself, or the name of a registered one. The run keeps the agent that it was
    accepted with, with all the agents among its tools."""
    input: Any = None
    """What the agent is asked: text, or any JSON, which it is shown as text. It comes after
    ``messages``."""
    messages: Messages | None = None
    """What was said before, the newest last."""
    inputs: dict[str, Any] | None = None
    """The values of the variables that the agent declares."""
    model: ModelSpec | None = None
    """Takes the place of the whole ``model`` of the agent."""
    budget: BudgetBody | None = None
    """What the run may spend; left out, as much as the service allows any run."""
    expected_tools: OfCases = None
    gold_answer: OfCases = None
    mode: OfCases = None
    graph: OfGraphs = None


class FromRun(Body):
    """The run to go on from."""

    run_id: RunId
    """It must have ended."""
    until: NodeId | None = None
    """A node of its trace: what had ended when this one ended is taken over. Left out, all that
    ended well is."""


class GoingOnBody(RunFields):
    """A run that goes on from an ended one: what that had done is taken over and costs nothing.

    What is left out is as it was in the other run, except deadline and metadata. What is sent
    applies to what comes after the part that is taken over.
    """

    _sent: dict[str, Any] = PrivateAttr()

    from_: Annotated[FromRun, Field(alias="from")]
    """Which run, and how much of it."""
    kind: Annotated[Literal["case", "graph", "agent"], BeforeValidator(_kind)] | None = None  # type: ignore[assignment]
    """That of the other run."""
    input: Any = None
    """Another question, or another input of the graph or the agent."""
    graph: GraphOrName | None = None
    """Another graph, for example one in which a step was changed."""
    agent: AgentOrName | None = None
    """Another agent, for example one with another model."""
    model: ModelSpec | None = None
    """Another model, in the place of that of the agent."""
    messages: Messages | None = None
    """Another conversation, for example one with an edited message."""
    inputs: dict[str, Any] | None = None
    """Other values by input handle, or of the variables of the agent."""
    expected_tools: Annotated[list[ToolName], Field(max_length=MAX_EXPECTED_TOOLS)] | None = None
    """As in a case."""
    gold_answer: str | None = None
    """As in a case."""
    mode: Mode | None = None
    """As in a case."""

    @property
    def sent(self) -> Mapping[str, Any]:
        """What its caller has sent, as it was sent."""
        return self._sent

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, sent: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        body = read(sent)
        body._sent = sent
        return body


OwnBody = CaseBody | GraphRunBody | AgentRunBody

_BODIES: Mapping[Any, type[OwnBody]] = MappingProxyType(
    {"graph": GraphRunBody, "agent": AgentRunBody}
)


def body_of_kind(sent: Any) -> OwnBody:
    """Return what was sent as a body of its kind, a case if it names none.

    Raises:
        ValidationError: it is none.
    """
    kind = sent.get("kind") if isinstance(sent, dict) else None
    body = _BODIES.get(kind, CaseBody) if isinstance(kind, str) else CaseBody
    return body.model_validate(sent)


def _of_its_kind(sent: Any, _: ValidatorFunctionWrapHandler) -> OwnBody | GoingOnBody:
    if isinstance(sent, dict) and "from" in sent:
        return GoingOnBody.model_validate(sent)
    return body_of_kind(sent)


RunBody = Annotated[
    CaseBody | GraphRunBody | AgentRunBody | GoingOnBody, WrapValidator(_of_its_kind)
]
"""A run to accept: its ``kind`` says which, a case if there is none; ``from`` goes on from one."""


class CancelBody(Body):
    """Why a run is cancelled."""

    reason: Reason | None = None
    """Shown in the receipt and in the trace."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, sent: Any) -> Any:
        return {} if sent is None else sent


def idempotency_key(headers: Headers) -> str | None:
    """Return the SHA-256 of the key under which the request may be repeated.

    The key itself is not stored: it may contain anything, and is only ever compared.

    Raises:
        ProblemError: it is not 1 to 255 printable ASCII characters.
    """
    key = headers.get("idempotency-key")
    if key is not None and (len(key) > MAX_KEY_CHARS or not _VALID_KEY.fullmatch(key)):
        message = f"An idempotency key has 1 to {MAX_KEY_CHARS} printable ASCII characters."
        raise invalid("Idempotency-Key", message)
    return None if key is None else hashlib.sha256(key.encode("ascii")).hexdigest()


def wait_seconds(headers: Headers, *, longest: int) -> int | None:
    """Return how long to wait for the result, at most ``longest``; None if that is not preferred.

    A preference that cannot be read is ignored (RFC 7240); the first of several counts.
    """
    if "prefer" not in headers:
        return None
    found = _WAIT.search(",".join(headers.getlist("prefer")))
    return min(int(found.group(1)), longest) if found else None
