"""Request schemas for creating and cancelling runs: bodies and headers."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetPydanticSchema,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import core_schema
from starlette.datastructures import Headers

from caseworker.core.budget.budget import UNLIMITED, Budget, field_name, json_name
from caseworker.platform.http.bodies import (
    STORABLE,
    BodyModel,
    Instant,
    Reason,
    ZoneName,
)
from caseworker.platform.http.problems import invalid
from caseworker.platform.http.request import accepted_types
from caseworker.platform.suggestions import suggestion
from caseworker.platform.validation import refusal, with_suggestions, without_surplus
from caseworker.runs.http.fields import RunId, Seed
from caseworker.runs.kinds import KINDS, QUEUED, choice_of, choice_of_kinds, needs_package
from caseworker.runs.run import RunKind

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
"""OpenAPI description of the request headers for POST /runs.

The service parses them by hand: as route parameters, they would slow down each request by 10 %.
"""

RUN_HEADERS = {
    "Location": {"description": "URL of the run.", "schema": {"type": "string"}},
    "Preference-Applied": {
        "description": "The wait time that was applied, if the request had a Prefer header.",
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "Remaining runs of a rate-limited tenant (r), and the seconds until more "
        "are available (t).",
        "schema": {"type": "string", "examples": ['"runs";r=59;t=1']},
    },
    "RateLimit-Policy": {
        "description": "Rate limit of the tenant: runs (q) per window in seconds (w).",
        "schema": {"type": "string", "examples": ['"runs";q=60;w=60']},
    },
}
"""OpenAPI description of the headers in a response to POST /runs."""


@dataclass(frozen=True, slots=True)
class RequestedBudget:
    """The limits that a caller sent.

    Omitted limits take a default; a limit sent as null is unlimited.
    """

    budget: Budget
    sent_names: frozenset[str]
    """JSON names of the limits that were sent."""

    def over(self, usual: Budget) -> Budget:
        """Return ``usual``, overridden by the limits that were sent, including null."""
        if usual is UNLIMITED:  # omitted limits are unlimited too
            return self.budget
        names = map(field_name, self.sent_names)
        return replace(usual, **{name: getattr(self.budget, name) for name in names})

    def to_json(self) -> dict[str, int | float | None]:
        """Return the limits that were sent as a dict by JSON name."""
        limits = self.budget.to_json()
        return {name: limits[name] for name in self.sent_names}


def _budget_with_names(value: Any, read: ValidatorFunctionWrapHandler) -> RequestedBudget:
    try:
        return RequestedBudget(read(without_surplus(value, _LIMITS)), frozenset(value))
    except ValidationError as error:
        raise with_suggestions(error, _LIMITS) from None


_LIMITS = [json_name(name) for name in Budget.__dataclass_fields__]


_BUDGET: Final = TypeAdapter(Budget).core_schema
"""Built once for all bodies, because pydantic parses the source of the class for its docstrings."""

BudgetBody = Annotated[
    RequestedBudget,
    GetPydanticSchema(
        lambda *_: core_schema.no_info_wrap_validator_function(_budget_with_names, _BUDGET)
    ),
]
"""Limits for a run."""


def checked_kind(value: Any) -> Any:
    """Return the kind of a body, for validators.

    Raises:
        PydanticCustomError: the kind is unknown, or its package is not installed.
    """
    if value not in list(RunKind):
        message = f"This must be one of: {choice_of_kinds()}."
        raise refusal(message + suggestion(value, list(RunKind)))
    if KINDS[value].package:
        raise refusal(needs_package(KINDS[value]))
    return value


def only_for(kinds: str) -> BeforeValidator:
    """Return a validator for a field that only runs of other kinds have."""

    def refuse(value: Any) -> None:
        if value is not None:
            raise refusal(_only_for(kinds))

    return BeforeValidator(refuse)


def _only_for(kinds: str) -> str:
    return f"This field is only for runs of kind {kinds}. Send that kind or omit this field."


@cache
def _foreign_fields(body: type[BodyModel]) -> Mapping[str, str]:
    """Return a message for each field that ``body`` lacks because only one kind of runs has it."""
    return {
        name: _only_for(rules.kind)
        for rules in KINDS.values()
        for name in rules.options
        if name not in body.model_fields
    }


OfGraphs = SkipJsonSchema[Annotated[None, only_for("graph")]]
OfAgents = SkipJsonSchema[Annotated[None, only_for("agent")]]
OfQueued = SkipJsonSchema[Annotated[None, only_for(f"{choice_of(QUEUED)}, which can be queued")]]
OfOthers = SkipJsonSchema[Annotated[None, only_for("graph or agent")]]


NodeId = Annotated[str, Field(pattern=r"^n[0-9]{6,12}$", examples=["n000004"])]


ConcurrencyKey = Annotated[str, StringConstraints(min_length=1, max_length=200), STORABLE]
EndType = Literal["run.cancelled", "run.completed", "run.failed", "run.halted"]


class WebhookBody(BodyModel):
    """Where to send a notification when the run ends.

    It is signed with the secret from `POST /webhooks/secret`.
    """

    url: Annotated[str, Field(examples=["https://example.com/hooks/caseworker"])]
    """Public https URL that receives the notification."""
    events: Annotated[list[EndType], Field(min_length=1, max_length=4)] | None = None
    """The outcomes to announce; defaults to all."""


class RunFields(BodyModel):
    """Fields that all kinds of runs share."""

    run_id: RunId | None = None
    """ID of the run; defaults to a generated UUIDv7. Sending the same ID again creates no second
    run."""
    kind: str
    contains_graph: ClassVar[bool] = False
    """Whether the body contains or names a graph or agent, and may therefore be larger."""
    streams: ClassVar[bool] = True
    """Whether the response may be a stream of the run's events."""
    input: Any = None
    budget: BudgetBody | None = None
    """Limits for the run."""
    deadline: Instant | None = None
    """Time at which the run is halted if it has not ended, even if it is queued or waiting."""
    start_at: Instant | None = None
    """Earliest time at which the run may start. Until then it is queued and can be cancelled."""
    seed: Seed | None = None
    """Seed that makes prompts and sampling reproducible if the provider supports it."""
    timezone: ZoneName | None = None
    """Time zone that defines "today"; defaults to the configured one."""
    metadata: dict[str, Any] | None = None
    """JSON object that is returned with the run and not interpreted by the service."""
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """Priority among the queued runs of the tenant: higher ones start first. Defaults to 0."""
    concurrency_key: ConcurrencyKey | None = None
    """Key that limits concurrency: at most ``concurrency_limit`` runs of a tenant with the same key
    are active, including those that wait for an approval. The others are queued in order."""
    concurrency_limit: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Maximum number of active runs with the same key, including this one, at which this run may
    start. Defaults to 1."""

    @model_validator(mode="after")
    def _limit_has_key(self) -> Self:
        if self.concurrency_limit is not None and self.concurrency_key is None:
            raise refusal("concurrency_limit requires concurrency_key.")
        return self

    webhook: WebhookBody | None = None
    """Webhook that is called when the run ends."""

    @classmethod
    def foreign_fields(cls) -> Mapping[str, str]:
        """Return messages for fields that only runs of one other kind have."""
        return _foreign_fields(cls)


class FromRun(BodyModel):
    """The run to resume from, and how much of it to import."""

    run_id: RunId
    """ID of the source run, which must have ended."""
    until: NodeId | None = None
    """ID of a node in the source run's trace: everything that had ended when this node ended is
    imported. If omitted, all successful steps and calls are imported."""


class GoingOnBody(RunFields):
    """A run that resumes from an ended run; imported steps and calls cost nothing.

    Omitted fields default to those of the source run, except deadline and metadata. Fields that are
    sent apply to the part after the import.
    """

    _document: dict[str, Any] = PrivateAttr()

    from_: Annotated[FromRun, Field(alias="from")]
    """The source run, and how much of it to import."""
    kind: Annotated[RunKind, Field(strict=False), BeforeValidator(checked_kind)] | None = None  # type: ignore[assignment]
    """Kind of the source run."""
    input: Any = None
    """Question, or input of the graph or agent, to use instead of the source run's."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The JSON body as the caller sent it, before validation."""
        return self._document

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, document: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        body = read(document)
        body._document = document
        return body


class CancelBody(BodyModel):
    """Options for cancelling a run."""

    reason: Reason | None = None
    """Reason for cancelling the run, shown in the receipt and in the trace."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value


def idempotency_key(headers: Headers) -> str | None:
    """Return the SHA-256 of the Idempotency-Key header in hexadecimal, or None without the header.

    The key itself is not stored: it may contain anything and is only compared.

    Raises:
        ProblemError: the key is not 1 to 255 printable ASCII characters.
    """
    key = headers.get("idempotency-key")
    if key is not None and (len(key) > MAX_KEY_CHARS or not _VALID_KEY.fullmatch(key)):
        message = f"An idempotency key has 1 to {MAX_KEY_CHARS} printable ASCII characters."
        raise invalid("Idempotency-Key", message)
    return None if key is None else hashlib.sha256(key.encode("ascii")).hexdigest()


def wants_stream(headers: Headers) -> bool:
    """Return whether a client that creates a run asks for its events."""
    return bool(accepted_types(headers).get("text/event-stream"))


def wait_seconds(headers: Headers, *, longest: int) -> int | None:
    """Return the number of seconds to wait for the result, at most ``longest``.

    Returns None if the Prefer header contains no ``wait``. Malformed preferences are ignored (RFC
    7240); if there are several, the first applies.
    """
    if "prefer" not in headers:
        return None
    match = _WAIT.search(",".join(headers.getlist("prefer")))
    return min(int(match.group(1)), longest) if match else None
