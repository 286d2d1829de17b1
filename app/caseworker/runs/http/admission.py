"""Validate bodies of run requests, apply defaults and ceilings, and compute the request hash.

The hash detects whether a request repeated under the same run ID or idempotency key is identical.
It covers the meaning of the body: order, whitespace and explicit nulls make no difference. It
excludes the ``run_id``, which identifies the run rather than its content. It also excludes
configured defaults, so a request repeated after a configuration change still matches.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from pydantic import ValidationError

from caseworker.core.budget.budget import UNLIMITED, Budget
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.trace.frozen_json import ValueTooLargeError, freeze
from caseworker.models.table import ModelTable
from caseworker.nodes.agent.definition import AgentDefinition, AgentInputError
from caseworker.nodes.agent.node import INPUTS, MESSAGES
from caseworker.nodes.chat import CHAT_START
from caseworker.nodes.nesting import DefinitionKind, is_reference
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    ProblemError,
    Violation,
    invalid,
    violations_of,
)
from caseworker.platform.http.request import ApiRequest
from caseworker.platform.webhook_addresses import AddressRefusedError
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.graphs import (
    Definition,
    ResolvedDefinition,
    RunnableGraph,
    RunnableGraphs,
)
from caseworker.runs.http.body import (
    AgentRunBody,
    ExternalBody,
    RequestedBudget,
    RunFields,
    WebhookBody,
)
from caseworker.runs.http.fields import DefinitionByName
from caseworker.runs.http.limits import MAX_METADATA_BYTES, ApiLimits
from caseworker.runs.http.problems import graph_violations
from caseworker.runs.kinds import AGENT_STEP, EXTERNAL_STEP, KINDS, needs_package
from caseworker.runs.run import (
    DefinitionRef,
    NewRun,
    Queueing,
    RememberedVersion,
    RunKey,
    RunKind,
    RunRequest,
    Webhook,
)
from caseworker.runs.service import new_run_id

_CHAT = "chat"
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
        limits, budget_body, ceiling = self._limits, body.budget, self._limits.budget_ceiling
        require_none([*common_violations(body, limits), *self._violations(body)])
        of_request, of_run = await self._own_fields(body, tenant)
        request = RunRequest(
            kind=self.kind,
            budget=self._usual
            if budget_body is None
            else budget_body.over(self._usual).merged_with(ceiling),
            requires_prices=requires_prices(budget_body, self._default, limits),
            limits_spending=limits_spending(budget_body, self._default),
            deadline=body.deadline,
            start_at=body.start_at,
            seed=limits.default_seed if body.seed is None else body.seed,
            timezone=body.timezone or limits.default_timezone,
            **of_request,
        )
        return NewRun(
            key=RunKey(tenant, body.run_id or new_run_id()),
            request=request,
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


class GraphAdmission(Admission):
    """Validates request bodies of kind ``graph`` and converts them to runs."""

    kind = RunKind.GRAPH

    def __init__(self, limits: ApiLimits, definitions: RunnableGraphs, models: ModelTable) -> None:
        super().__init__(limits, models)
        self._definitions = definitions

    def fields_of(self, request: RunRequest, overrides: Mapping[str, Any]) -> Fields:
        """Return the graph and its inputs."""
        inputs = dict(request.inputs)
        if overrides.get("input") is not None:
            inputs.pop(DEFAULT_HANDLE, None)
        return {"graph": request.graph, "inputs": inputs}

    def chat_graph(
        self,
        definition: Mapping[str, Any],
        stored_definition: Definition | None,
        *,
        with_inputs: bool,
    ) -> dict[str, Any]:
        """Return the graph that a run executes to answer in a thread.

        ``definition`` is a graph or a reference. ``stored_definition`` is the referenced
        definition; None if ``definition`` is inline or the definition is unknown.

        Raises:
            ProblemError: the definition is unknown.
        """
        if stored_definition is None and is_reference(definition):
            raise invalid("graph.name", "Unknown graph. GET /graphs lists all graphs.")
        graph = dict(definition if stored_definition is None else stored_definition.content)
        steps = graph.get("steps")
        starts = [
            step.get("id")
            for step in (steps if isinstance(steps, list) else ())
            if isinstance(step, dict) and step.get("type") == CHAT_START
        ]
        return {"entry": starts, **graph} if starts else graph

    def by_handle(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the ``inputs`` of a request, keyed by the input handles of the graph."""
        return inputs

    def unfit_values(
        self, graph: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> Iterator[Violation]:
        """Yield a violation for each of the ``inputs`` that the graph does not accept."""
        return iter(())

    def _inputs(self, body: Any) -> Mapping[str, Any]:
        """Return the input values by handle; ``input`` is the value of the default handle."""
        short = {} if body.input is None else {DEFAULT_HANDLE: body.input}
        return self.by_handle(body.inputs or {}) | short

    async def _runnable(
        self, body: Any, tenant: str, *, remembers: bool
    ) -> tuple[RunnableGraph, ResolvedDefinition | None]:
        """Return the graph of a run, and its definition if it has a registered one."""
        kind, changes = DefinitionKind(self.kind), self._changes(body)
        definition = getattr(body, kind)
        if not is_reference(definition):
            return await self._definitions.inline(tenant, {**definition, **changes}, kind), None
        ref = reference_from(definition, kind)
        resolved = await self._definitions.resolved(tenant, ref, changes, remembers=remembers)
        return resolved.runnable, resolved

    def _changes(self, body: Any) -> Fields:
        """Return the fields of the definition that the request replaces."""
        return {}

    async def _own_fields(
        self, body: Any, tenant: str, *, remembers: bool = True
    ) -> tuple[Fields, Fields]:
        runnable, resolved = await self._runnable(body, tenant, remembers=remembers)
        graph, kind = runnable.graph, DefinitionKind(self.kind)
        require_models = partial(self._definitions.require_models, kind, graph)
        ref = None if resolved is None else resolved.head.ref
        remembered = None
        if resolved is not None and resolved.is_remembered:
            remembered = RememberedVersion(
                ref=resolved.head.ref,
                sha256=resolved.head.sha256,
                newest=getattr(body, kind).get("version") is None,
                again=partial(self._read_again, body),
            )
        return (
            {"graph": graph, "definition_ref": ref, "inputs": self._inputs(body)},
            {
                "prepared": runnable.prepared,
                "require_models": require_models,
                "remembered": remembered,
            },
        )

    async def _read_again(self, body: Any, new: NewRun) -> NewRun:
        of_request, of_run = await self._own_fields(body, new.key.tenant, remembers=False)
        return replace(new, request=replace(new.request, **of_request), **of_run)

    def _violations(self, body: Any) -> Iterator[Violation]:
        max_bytes = self._limits.max_body_bytes
        if body.inputs and not fits(body.inputs, max_bytes, self._limits):
            yield Violation("inputs", f"The inputs must not exceed {max_bytes} bytes as JSON.")
        if isinstance(body.input, dict | list) and len(canonical_body(body.input)) > max_bytes:
            yield Violation("input", f"The input must not exceed {max_bytes} bytes as JSON.")
        if body.input is not None and DEFAULT_HANDLE in (body.inputs or {}):
            message = f"Send this value either as input or as inputs.{DEFAULT_HANDLE}, not both."
            yield Violation(f"inputs.{DEFAULT_HANDLE}", message)


class AgentAdmission(GraphAdmission):
    """Validates request bodies of kind ``agent`` and converts them to runs."""

    kind = RunKind.AGENT

    def fields_of(self, request: RunRequest, overrides: Mapping[str, Any]) -> Fields:
        """Return the agent, its conversation and the values of its variables."""
        return {
            "agent": agent_of(request.graph or {}),
            "input": request.inputs.get(DEFAULT_HANDLE),
            "messages": request.inputs.get(MESSAGES),
            "inputs": request.inputs.get(INPUTS),
        }

    def chat_graph(
        self,
        definition: Mapping[str, Any],
        stored_definition: Definition | None,
        *,
        with_inputs: bool,
    ) -> dict[str, Any]:
        """Return a graph whose first step is the agent and whose second step provides the thread.

        An unknown agent raises no error here; graph validation reports it with all other problems.
        """
        ref = None if stored_definition is None else stored_definition.head
        agent = dict(definition) if ref is None else {"name": ref.name, "version": ref.version}
        edges = [
            {
                "source": _CHAT,
                "target": AGENT_STEP,
                "source_handle": handle,
                "target_handle": handle,
                "data": {"channel": "flow"},
            }
            for handle in (DEFAULT_HANDLE, *((INPUTS,) if with_inputs else ()))
        ]
        steps = [
            {"id": AGENT_STEP, "type": AGENT_STEP, "data": {AGENT_STEP: agent}},
            {"id": _CHAT, "type": CHAT_START, "data": {}},
        ]
        return {"steps": steps, "edges": edges}

    def by_handle(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the agent's variables as one dict on the ``inputs`` handle."""
        return {INPUTS: inputs} if inputs else {}

    def unfit_values(
        self, graph: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> Iterator[Violation]:
        """Yield a violation for each of the ``inputs`` that the graph's agent does not accept."""
        if not inputs and not agent_of(graph).get("inputs"):
            return
        try:
            _parsed(graph).values_of(inputs)
        except AgentInputError as error:
            for place, message in error.faults:
                yield Violation(f"inputs.{place}", message)

    def _inputs(self, body: Any) -> Mapping[str, Any]:
        messages = [message.model_dump() for message in body.messages or ()]
        return {**super()._inputs(body), **({MESSAGES: messages} if messages else {})}

    async def _runnable(
        self, body: Any, tenant: str, *, remembers: bool
    ) -> tuple[RunnableGraph, ResolvedDefinition | None]:
        runnable, resolved = await super()._runnable(body, tenant, remembers=remembers)
        require_none(list(self._input_violations(body, runnable.graph)))
        return runnable, resolved

    def _changes(self, body: Any) -> Fields:
        return {} if body.model is None else {"model": body.model.model_dump(exclude_unset=True)}

    def _violations(self, body: Any) -> Iterator[Violation]:
        yield from super()._violations(body)
        if body.model is not None:
            yield from (Violation(*fault) for fault in body.model.faults(self._models))

    def _input_violations(
        self, body: AgentRunBody, graph: Mapping[str, Any]
    ) -> Iterator[Violation]:
        """Yield violations in the input, messages and variables."""
        messages, input_ = body.messages or [], body.input
        if isinstance(input_, str) and not input_.strip():
            yield Violation("input", "The input must not be blank.")
        elif input_ is None and not messages:
            yield Violation("input", "An agent run requires input or messages.")
        elif input_ is None and "user" not in (
            *(each.role for each in messages),
            *(each.role for each in _parsed(graph).prompt.messages),
        ):
            yield Violation("messages", "At least one message must have the role user.")
        yield from self.unfit_values(graph, body.inputs or {})


def agent_of(graph: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the agent in the first step of a graph."""
    agent: Mapping[str, Any] = graph["steps"][0]["data"][AGENT_STEP]
    return agent


def _parsed(graph: Mapping[str, Any]) -> AgentDefinition:
    return AgentDefinition.model_validate(agent_of(graph))


class ExternalAdmission(Admission):
    """Validates request bodies of kind ``external`` and converts them to runs."""

    kind = RunKind.EXTERNAL

    def __init__(self, limits: ApiLimits, definitions: RunnableGraphs, models: ModelTable) -> None:
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
        return agent_of(resolved.graph)["tools"]


class Admissions:
    """Maps each kind of run to its :class:`Admission`."""

    def __init__(self, admissions: Iterable[Admission]) -> None:
        self._by_kind = {each.kind: each for each in admissions}

    def __getitem__(self, kind: RunKind) -> Admission:
        """Return the admission of a kind.

        Raises:
            ProblemError: the package of the kind is not installed.
        """
        if kind not in self._by_kind:
            raise invalid("kind", needs_package(KINDS[kind]))
        return self._by_kind[kind]

    async def new_run(
        self,
        body: RunFields,
        request: ApiRequest,
        hashed: str | None = None,
        idempotency_key: str | None = None,
    ) -> NewRun:
        """Return the run that the body of a request describes.

        ``hashed`` is the hash of the request; by default, the one of ``body``.

        Raises:
            ProblemError: the body is too large for its kind, or invalid for this service.
            GraphRefusedError: the graph or agent is invalid; the error lists all problems.
        """
        if not body.contains_graph:
            request.require_small()
        admission = self[RunKind(body.kind)]
        if hashed is None:
            hashed = await request.computed(partial(request_hash, body))
        return await admission.new_run(body, request.caller.tenant, hashed, idempotency_key)


def reference_from(document: Mapping[str, Any], kind: DefinitionKind) -> DefinitionRef:
    """Parse a reference to a registered graph or agent: its name and, optionally, its version.

    Raises:
        ProblemError: the name or the version is invalid.
    """
    try:
        reference = DefinitionByName.model_validate(document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        located = ({**wrong, "loc": (kind.value, *wrong["loc"])} for wrong in errors)
        raise ProblemError(INVALID_REQUEST, violations=violations_of(located)) from None
    return DefinitionRef(reference.name, reference.version, kind)


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
    budget = usual if requested_budget is None else requested_budget.over(usual)
    return budget.max_cost_dollars is not None or budget.max_tokens is not None


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
