"""Validate bodies of run requests, apply defaults and ceilings, and compute the request hash.

The hash detects whether a request repeated under the same run ID or idempotency key is identical.
It covers the meaning of the body: order, whitespace and explicit nulls make no difference. It
excludes the ``run_id``, which identifies the run rather than its content. It also excludes
configured defaults, so a request repeated after a configuration change still matches.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pydantic import ValidationError

from caseworker.api.definition_body import DefinitionByName
from caseworker.api.problem_types import INVALID_REQUEST
from caseworker.api.problems import ProblemError
from caseworker.api.run_body import (
    AgentRunBody,
    CaseBody,
    GivenBudget,
    GraphRunBody,
    RunFields,
    WebhookBody,
)
from caseworker.api.services import ApiLimits
from caseworker.api.violations import Violation, violations_of
from caseworker.core.budget.budget import UNLIMITED, Budget
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.trace.frozen_json import ValueTooLargeError, freeze
from caseworker.engine.prepared import PreparedGraph
from caseworker.features.webhooks.addresses import AddressRefusedError
from caseworker.models.table import ModelTable, Tier
from caseworker.nodes.agent.definition import AgentDefinition, AgentInputError
from caseworker.nodes.agent.node import INPUTS, MESSAGES
from caseworker.nodes.model_spec import no_model
from caseworker.nodes.nesting import DefinitionKind, is_reference
from caseworker.runs.definitions import Definitions
from caseworker.runs.graphs import RunnableGraph
from caseworker.runs.kinds import AGENT_STEP
from caseworker.runs.run import DefinitionRef, NewRun, RunKey, RunKind, RunRequest, Webhook
from caseworker.runs.service import new_run_id
from caseworker.tools.dispatch import ToolDispatch

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class CaseAdmission:
    """Validates request bodies of kind ``case`` and converts them to runs."""

    def __init__(
        self, limits: ApiLimits, tools: ToolDispatch, models: ModelTable, *, installed: bool = True
    ) -> None:
        """Admit cases, unless the package of cases is not ``installed``."""
        self._limits = limits
        self._tools = tools
        self._models = models
        self._installed = installed
        self._usual = limits.default_budget.merged_with(limits.budget_ceiling)

    def new_run(self, body: CaseBody, tenant: str, idempotency_key: str | None) -> NewRun:
        """Return the run that the body describes, with defaults and ceilings applied.

        Raises:
            ProblemError: the body is invalid for this service; the error names every field.
        """
        require_none([*usual_violations(body, self._limits), *self._violations(body)])
        new = new_run(body, self._request(body), tenant, idempotency_key)
        return replace(new, require_models=self._require_models)

    async def _require_models(self, allowed: Collection[str]) -> None:
        require_none(list(self._without_model(self._models.restricted(allowed))))

    def _request(self, body: CaseBody) -> RunRequest:
        """Apply the current defaults; the run keeps them even if it is executed later."""
        limits = self._limits
        return RunRequest(
            kind=RunKind.CASE,
            input=body.input,
            expected_tools=tuple(body.expected_tools or ()),
            gold_answer=body.gold_answer,
            mode=body.mode or limits.default_mode,
            budget=_budget(body.budget, self._usual, limits),
            requires_prices=requires_prices(body.budget, limits.default_budget, limits),
            deadline=body.deadline,
            seed=limits.default_seed if body.seed is None else body.seed,
            timezone=body.timezone or limits.default_timezone,
        )

    def _violations(self, body: CaseBody) -> Iterator[Violation]:
        if not self._installed:
            yield Violation("kind", "Runs of kind case need caseworker[cases].")
            return
        yield from self._without_model(self._models)
        if body.expected_tools:
            usable = [spec.name for spec in self._tools.usable()]
            for index, name in enumerate(body.expected_tools):
                if name not in usable:
                    message = f"Unknown tool. Available tools: {', '.join(usable)}."
                    yield Violation(f"expected_tools.{index}", message)

    def _without_model(self, models: ModelTable) -> Iterator[Violation]:
        if Tier.SMALL not in models:
            yield Violation("kind", no_model(Tier.SMALL, models))


class GraphAdmission:
    """Validates request bodies of kind ``graph`` or ``agent`` and converts them to runs."""

    def __init__(self, limits: ApiLimits, definitions: Definitions, models: ModelTable) -> None:
        self._limits = limits
        self._definitions = definitions
        self._models = models
        self._usual = UNLIMITED.merged_with(limits.budget_ceiling)

    async def new_run(
        self, body: GraphRunBody | AgentRunBody, tenant: str, idempotency_key: str | None
    ) -> NewRun:
        """Return the run that the body describes, with defaults and ceilings applied.

        Raises:
            ProblemError: the body is invalid for this service; the error names every field.
            GraphRefusedError: the graph or agent is invalid; the error lists all problems.
        """
        require_none([*usual_violations(body, self._limits), *self._violations(body)])
        if isinstance(body, AgentRunBody):
            kind, sent = DefinitionKind.AGENT, body.agent
        else:
            kind, sent = DefinitionKind.GRAPH, body.graph
        ref, runnable = await self._runnable(tenant, kind, sent)
        if isinstance(body, AgentRunBody):
            require_none(list(_input_violations(body, runnable.graph)))
            if body.model is not None:
                agent = runnable.graph["steps"][0]["data"][AGENT_STEP]
                model = body.model.model_dump(exclude_unset=True)
                runnable = await self._definitions.inline(tenant, {**agent, "model": model}, kind)
        limits = self._limits
        request = RunRequest(
            kind=RunKind(kind),
            budget=_budget(body.budget, self._usual, limits),
            requires_prices=requires_prices(body.budget, UNLIMITED, limits),
            deadline=body.deadline,
            seed=limits.default_seed if body.seed is None else body.seed,
            timezone=body.timezone or limits.default_timezone,
            graph=runnable.graph,
            definition_ref=ref,
            inputs=_inputs(body),
        )
        new = new_run(body, request, tenant, idempotency_key, runnable.prepared)
        require_models = partial(self._definitions.require_models, kind, runnable.graph)
        return replace(new, require_models=require_models)

    async def _runnable(
        self, tenant: str, kind: DefinitionKind, sent: dict[str, Any]
    ) -> tuple[DefinitionRef | None, RunnableGraph]:
        if not is_reference(sent):
            return None, await self._definitions.inline(tenant, sent, kind)
        return await self._definitions.named(tenant, reference_from(sent, kind))

    def _violations(self, body: GraphRunBody | AgentRunBody) -> Iterator[Violation]:
        most = self._limits.max_body_bytes
        if body.inputs and not fits(body.inputs, most, self._limits):
            yield Violation("inputs", f"The inputs must not exceed {most} bytes as JSON.")
        if isinstance(body.input, dict | list) and len(as_json(body.input)) > most:
            yield Violation("input", f"The input must not exceed {most} bytes as JSON.")
        if body.input is not None and DEFAULT_HANDLE in (body.inputs or {}):
            message = f"Send this value either as input or as inputs.{DEFAULT_HANDLE}, not both."
            yield Violation(f"inputs.{DEFAULT_HANDLE}", message)
        if isinstance(body, AgentRunBody) and body.model is not None:
            yield from (Violation(*fault) for fault in body.model.faults(self._models))


def reference_from(sent: Mapping[str, Any], kind: DefinitionKind) -> DefinitionRef:
    """Parse a reference to a registered graph or agent: its name and, optionally, its version.

    Raises:
        ProblemError: the name or the version is invalid.
    """
    try:
        wanted = DefinitionByName.model_validate(sent)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        named = ({**wrong, "loc": (kind.value, *wrong["loc"])} for wrong in found)
        raise ProblemError(INVALID_REQUEST, violations=violations_of(named)) from None
    return DefinitionRef(wanted.name, wanted.version, kind)


def _inputs(body: GraphRunBody | AgentRunBody) -> Mapping[str, Any]:
    """Return the input values by handle; ``input`` is the value of the default handle."""
    short = {} if body.input is None else {DEFAULT_HANDLE: body.input}
    if isinstance(body, GraphRunBody):
        return {**(body.inputs or {}), **short}
    said = [message.model_dump() for message in body.messages or ()]
    return {
        **short,
        **({INPUTS: body.inputs} if body.inputs else {}),
        **({MESSAGES: said} if said else {}),
    }


def _input_violations(body: AgentRunBody, graph: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield violations in the input, messages and variables of an agent run."""
    said, asked = body.messages or [], body.input
    if isinstance(asked, str) and not asked.strip():
        yield Violation("input", "The input must not be blank.")
    elif asked is None and not said:
        yield Violation("input", "An agent run requires input or messages.")
    elif asked is None and "user" not in (
        *(each.role for each in said),
        *(each.role for each in _agent_in(graph).prompt.messages),
    ):
        yield Violation("messages", "At least one message must have the role user.")
    yield from unfit_values(graph, body.inputs or {})


def unfit_values(graph: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a violation for each entry of ``inputs`` that the graph's agent does not accept.

    ``graph`` must consist of a single agent step. ``inputs`` are the values for the agent's
    variables.
    """
    try:
        _agent_in(graph).values_of(inputs)
    except AgentInputError as error:
        for place, message in error.faults:
            yield Violation(f"inputs.{place}", message)


def _agent_in(graph: Mapping[str, Any]) -> AgentDefinition:
    return AgentDefinition.model_validate(graph["steps"][0]["data"][AGENT_STEP])


def usual_violations(body: RunFields, limits: ApiLimits) -> Iterator[Violation]:
    """Yield violations in the fields that all kinds of runs share.

    Checks the lengths of input and metadata, ``start_at``, and the webhook URL.
    """
    longest, most = limits.max_input_chars, limits.max_metadata_bytes
    if isinstance(body.input, str) and len(body.input) > longest:
        message = f"The input must not exceed {longest} characters (max_input_chars)."
        yield Violation("input", message)
    if body.metadata and not fits(body.metadata, most, limits):
        yield Violation("metadata", f"Metadata must not exceed {most} bytes as JSON.")
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


def given_limits(given: GivenBudget | None, usual: Budget) -> Budget:
    """Return the limits in ``usual``, overridden by those that the caller sent.

    A limit that the caller sent as null is unlimited.
    """
    return usual if given is None else given.over(usual)


def _budget(given: GivenBudget | None, usual: Budget, limits: ApiLimits) -> Budget:
    """Cap the given limits at the ceilings; ``usual`` is capped already."""
    return usual if given is None else given.over(usual).merged_with(limits.budget_ceiling)


def requires_prices(given: GivenBudget | None, usual: Budget, limits: ApiLimits) -> bool:
    """Return whether the run may only call models whose price is known.

    That is the case if its cost limit was set explicitly, by the caller or in the configuration.
    """
    set_by_caller = given is not None and "max_cost_usd" in given.given
    budget = given.budget if given is not None and set_by_caller else usual
    return budget.max_cost_usd is not None or limits.ceiling_requires_prices


def new_run(
    body: RunFields,
    request: RunRequest,
    tenant: str,
    idempotency_key: str | None,
    prepared: PreparedGraph | None = None,
) -> NewRun:
    """Return the run to accept for a validated body.

    Generates a run ID if the body has none. ``request`` holds the values with defaults applied;
    ``prepared`` is the graph, ready for execution, if the run has one.
    """
    return NewRun(
        key=RunKey(tenant, body.run_id or new_run_id()),
        request=request if body.start_at is None else replace(request, start_at=body.start_at),
        request_hash=request_hash(body),
        idempotency_key=idempotency_key,
        named=body.run_id is not None,
        metadata=body.metadata or {},
        queueing=body.queueing,
        webhook=_webhook(body.webhook),
        prepared=prepared,
    )


def _webhook(given: WebhookBody | None) -> Webhook | None:
    if given is None:
        return None
    return Webhook(given.url) if given.events is None else Webhook(given.url, tuple(given.events))


def request_hash(body: RunFields) -> str:
    """Return the SHA-256 of the body's meaning in hexadecimal, as described for the module."""
    fields: dict[str, Any] = body.model_dump(mode="json", exclude={"run_id", "budget"})
    if body.budget is not None:  # here null is significant: unlimited
        fields["budget"] = body.budget.to_json()
    given = fields.pop("input")  # an empty list is a valid input
    sent = {name: value for name, value in fields.items() if value not in (None, [], {})}
    sent |= {} if given is None else {"input": given}
    return hashlib.sha256(as_json(sent)).hexdigest()


def as_json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Encode a value as canonical JSON: sorted keys, no whitespace, UTF-8."""
    return _CANONICAL.encode(value).encode()
