"""What a kind of runs provides for the HTTP API: its bodies, its view and its admission.

An admission validates the bodies of requests, and applies defaults and ceilings.

The hash detects whether a request repeated under the same run ID or idempotency key is identical.
It covers the meaning of the body: order, whitespace and explicit nulls make no difference. It
excludes the ``run_id``, which identifies the run rather than its content. It also excludes
configured defaults, so a request repeated after a configuration change still matches.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Protocol, TypeVar

from caseworker.core.budget.budget import UNLIMITED, Budget
from caseworker.core.trace.frozen_json import ValueTooLargeError, freeze
from caseworker.models.table import ModelTable
from caseworker.platform.http.bodies import BodyModel
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    ProblemError,
    Violation,
)
from caseworker.platform.webhook_addresses import AddressRefusedError
from caseworker.runs.http.body import (
    RequestedBudget,
    RunFields,
    WebhookBody,
)
from caseworker.runs.http.limits import MAX_METADATA_BYTES, ApiLimits
from caseworker.runs.http.views import RunDetails
from caseworker.runs.run import (
    NewRun,
    Queueing,
    Run,
    RunKey,
    RunKind,
    RunRequest,
    Webhook,
)
from caseworker.runs.service import new_run_id

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


Fields = Mapping[str, Any]
"""Values of fields by name."""


class Admission(ABC):
    """Validates request bodies of one kind and converts them to runs."""

    kind: ClassVar[RunKind]

    def __init__(self, limits: ApiLimits, models: ModelTable, budget: Budget = UNLIMITED) -> None:
        """``budget`` holds the limits that apply if the caller sends none."""
        self._limits = limits
        self._models = models
        self._default = budget
        self._usual = budget.merged_with(limits.budget_ceiling)

    async def new_run(
        self, body: RunFields, tenant: str, hashed: str, idempotency_key: str | None = None
    ) -> NewRun:
        """Return the run that the body describes, with defaults and ceilings applied.

        ``hashed`` is the hash of the request. The run keeps the current defaults even if it is
        executed later.

        Raises:
            ProblemError: the body is invalid for this service; the error names every field.
            GraphRefusedError: the graph or agent is invalid; the error lists all problems.
        """
        require_none([*common_violations(body, self._limits), *self._violations(body)])
        of_request, of_run = await self._own_fields(body, tenant)
        return NewRun(
            key=RunKey(tenant, body.run_id or new_run_id()),
            request=self._request(body, of_request),
            request_hash=hashed,
            idempotency_key=idempotency_key,
            named=body.run_id is not None,
            metadata=body.metadata or {},
            queueing=Queueing(
                priority=body.priority or 0,
                concurrency_key=body.concurrency_key,
                concurrency_limit=body.concurrency_limit or 1,
            ),
            webhook=_webhook(body.webhook),
            **of_run,
        )

    def _request(self, body: RunFields, own_fields: Fields) -> RunRequest:
        limits, budget = self._limits, self._usual
        if body.budget is not None:
            budget = body.budget.over(budget).merged_with(limits.budget_ceiling)
        return RunRequest(
            kind=self.kind,
            budget=budget,
            requires_prices=requires_prices(body.budget, self._default, limits),
            limits_spending=limits_spending(body.budget, self._default),
            deadline=body.deadline,
            start_at=body.start_at,
            seed=limits.default_seed if body.seed is None else body.seed,
            timezone=body.timezone or limits.default_timezone,
            **own_fields,
        )

    @abstractmethod
    def fields_of(self, request: RunRequest, overrides: Mapping[str, Any]) -> Fields:
        """Convert ``request`` back to the body fields that only this kind of run has.

        ``overrides`` holds the body fields that the caller overrides.
        """

    @abstractmethod
    def _violations(self, body: Any) -> Iterator[Violation]: ...

    @abstractmethod
    async def _own_fields(self, body: Any, tenant: str) -> tuple[Fields, Fields]:
        """Return the fields of RunRequest and of NewRun that runs of this kind set."""


T = TypeVar("T")


class Services(Protocol):
    """The services and settings of a process, from which an :class:`Admission` is built."""

    @property
    def settings(self) -> Any:
        """The sections of the service's settings."""
        ...

    def service(self, of: type[T], /) -> T:
        """Return the service of type ``of``."""
        ...


MCP_BUDGET: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "Limits of the run, as in POST /runs, such as max_cost_usd or max_tool_calls.",
}
"""JSON Schema of the limits of a run, as an argument of a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool for MCP clients, whose calls are runs of one kind."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schemas of the arguments, which are fields of the body, by name."""
    required: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindApi:
    """The HTTP API of one kind of runs."""

    kind: RunKind
    body: type[RunFields]
    """Body of requests."""
    view: type[RunDetails]
    """View of runs, with the result."""
    admission: Callable[[Services], Admission]
    """Function that builds the admission, which validates bodies and converts them to runs."""
    own_members: Callable[[Run], Fields] | None = None
    """Function that returns the fields of the view that only this kind has, except the result."""
    resume: type[BodyModel] | None = None
    """Fields that only runs of this kind have and that replace those of the source run."""
    secret_fields: frozenset[str] = frozenset()
    """Fields that are hidden from callers who may not create runs."""
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Examples of requests for the OpenAPI document, by name: ``summary`` and ``value``."""
    mcp_tools: tuple[McpTool, ...] = ()


def common_violations(body: RunFields, limits: ApiLimits) -> Iterator[Violation]:
    """Yield violations in the fields that all kinds of runs share.

    Checks the lengths of input and metadata, ``start_at``, and the webhook URL.
    """
    longest = limits.max_input_chars
    if isinstance(body.input, str) and len(body.input) > longest:
        message = f"The input must not exceed {longest} characters (flags.max_input_chars)."
        yield Violation("input", message)
    yield from metadata_violations(body.metadata, limits)
    if body.start_at is not None:
        latest = datetime.now(UTC) + timedelta(days=limits.max_delay_days)
        if body.start_at > latest:
            message = f"This must be at most {limits.max_delay_days} days in the future."
            yield Violation("start_at", message)
        elif body.deadline is not None and body.deadline <= body.start_at:
            yield Violation("start_at", "This must be earlier than the deadline.")
    if body.webhook is not None:
        try:
            limits.webhook_urls.read(body.webhook.url)
        except AddressRefusedError as error:
            yield Violation("webhook.url", str(error))


def metadata_violations(
    metadata: Mapping[str, Any] | None, limits: ApiLimits
) -> Iterator[Violation]:
    """Yield a violation if the metadata of a run or thread is too large."""
    if metadata and not fits(metadata, MAX_METADATA_BYTES, limits):
        message = f"Metadata must not exceed {MAX_METADATA_BYTES} bytes as JSON."
        yield Violation("metadata", message)


def fits(value: Mapping[str, Any], max_bytes: int, limits: ApiLimits) -> bool:
    """Return whether ``value`` takes at most ``max_bytes`` when stored as JSON.

    The stored form writes numbers without exponents, so it can be longer than the text sent. Values
    nested more deeply than allowed do not fit either.
    """
    try:
        freeze(value, max_bytes=max_bytes, max_depth=limits.max_json_depth, key="")
    except ValueTooLargeError:
        return False
    return True


def require_none(violations: Sequence[Violation]) -> None:
    """Raise an error for a request body if it has any violations.

    Raises:
        ProblemError: there is at least one violation.
    """
    if violations:
        raise ProblemError(INVALID_REQUEST, violations=violations)


def effective_limits(requested_budget: RequestedBudget | None, usual: Budget) -> Budget:
    """Return the limits in ``usual``, overridden by those that the caller sent.

    A limit that the caller sent as null is unlimited.
    """
    return usual if requested_budget is None else requested_budget.over(usual)


def requires_prices(
    requested_budget: RequestedBudget | None, usual: Budget, limits: ApiLimits
) -> bool:
    """Return whether the run may only call models whose price is known.

    That is the case if its cost limit was set explicitly, by the caller or in the configuration.
    """
    set_by_caller = requested_budget is not None and "max_cost_usd" in requested_budget.sent_names
    budget = requested_budget.budget if requested_budget is not None and set_by_caller else usual
    return budget.max_cost_dollars is not None or limits.ceiling_requires_prices


def limits_spending(requested_budget: RequestedBudget | None, usual: Budget = UNLIMITED) -> bool:
    """Return whether cost or tokens are limited by the caller or by a default, ceilings apart."""
    budget = effective_limits(requested_budget, usual)
    return budget.max_cost_dollars is not None or budget.max_tokens is not None


def inherited_limits(
    requested_budget: RequestedBudget | None, source: RunRequest, limits: ApiLimits
) -> Fields:
    """Return the fields for limits of a request that resumes ``source``.

    Limits that the caller did not send are those of ``source``.
    """
    budget = effective_limits(requested_budget, source.budget)
    prices = source.requires_prices
    if requested_budget is not None and "max_cost_usd" in requested_budget.sent_names:
        prices = requires_prices(requested_budget, source.budget, limits)
    return {
        "budget": budget.merged_with(limits.budget_ceiling),
        "requires_prices": prices,
        "limits_spending": source.limits_spending or limits_spending(requested_budget),
    }


def _webhook(body: WebhookBody | None) -> Webhook | None:
    if body is None:
        return None
    return Webhook(body.url) if body.events is None else Webhook(body.url, tuple(body.events))


def request_hash(body: RunFields) -> str:
    """Return the SHA-256 of the normalized body in hexadecimal; see the module docstring."""
    fields: dict[str, Any] = body.model_dump(mode="json", exclude={"run_id", "budget"})
    if body.budget is not None:  # here null is significant: unlimited
        fields["budget"] = body.budget.to_json()
    input_ = fields.pop("input")  # an empty list is a valid input
    content = {name: value for name, value in fields.items() if value not in (None, [], {})}
    content |= {} if input_ is None else {"input": input_}
    return hashlib.sha256(canonical_body(content)).hexdigest()


def canonical_body(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Encode a value as canonical JSON: sorted keys, no whitespace, UTF-8."""
    return _CANONICAL.encode(value).encode()
