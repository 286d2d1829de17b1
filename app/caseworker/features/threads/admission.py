"""Converts thread requests to threads, and to runs of the agent or graph that answers.

An agent answers in a graph of two steps: a chat start (which provides the messages) and the agent.
Execution of a graph starts at its chat starts, so steps that cannot be reached from them are not
executed.
"""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, cast

from pydantic import Field, StringConstraints, model_validator

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.engine.prepared import PreparedGraph
from caseworker.features.definitions.agent_kind import agent_of
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.fields import AgentOrName, GraphOrName
from caseworker.features.definitions.graph_kind import GraphAdmission, GraphRunBody, reference_from
from caseworker.features.definitions.registration import DefinitionNotFoundError
from caseworker.features.quotas.usage import TenantQuota
from caseworker.features.threads.service import PlannedReply, derived_id
from caseworker.features.threads.thread import (
    Thread,
)
from caseworker.nodes.agent.definition import MAX_MESSAGES, MAX_TOOLS
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind, is_reference
from caseworker.platform.http.bodies import STORABLE, BodyModel, Instant, ZoneName
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    ProblemError,
    Violation,
)
from caseworker.platform.validation import refusal
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.http.admission import (
    canonical_body,
    fits,
    inherited_limits,
    metadata_violations,
    require_none,
)
from caseworker.runs.http.body import BudgetBody
from caseworker.runs.http.fields import (
    MessageId,
    NonBlankText,
    RunId,
    Seed,
    ThreadId,
)
from caseworker.runs.http.kinds import Admissions
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.http.problems import graph_violations
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import NewRun, Run, RunKey, RunKind, RunSource
from caseworker.runs.service import new_run_id

_BROUGHT = "users_tools"
"""Name of a placeholder agent used to validate a user's tools."""
_OF_TOOLS = DefinitionKind.AGENT


class NewThreadBody(BodyModel):
    """A thread to create, in which either an agent or a graph answers."""

    thread_id: ThreadId | None = None
    """ID of the thread; defaults to a generated UUIDv7."""
    agent: AgentOrName | None = None
    """An agent included in the request, or a reference to a registered one."""
    graph: GraphOrName | None = None
    """A graph included in the request, or a reference to a registered one. It starts at its
    ``chat_start`` steps, if it has any and defines no entry."""
    inputs: dict[str, Any] | None = None
    """Values for the variables that the agent declares, or further inputs of the graph."""
    tools: Annotated[list[str | dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    """Tools that the user provides, in the format of an agent's tools. They are offered to the
    graph's entry agents if its chat starts permit it."""
    title: Annotated[str, StringConstraints(max_length=200), STORABLE] | None = None
    metadata: dict[str, Any] | None = None
    """JSON object that is returned with the thread and not interpreted by the service."""

    @model_validator(mode="after")
    def _has_one(self) -> "NewThreadBody":
        if (self.agent is None) == (self.graph is None):
            raise refusal("Send either an agent or a graph.")
        return self


class GoOnBody(BodyModel):
    """Options for continuing an answer."""

    run_id: RunId | None = None
    """ID of the run that creates the answer; defaults to a generated one. Sending the same ID again
    creates no second run."""
    budget: BudgetBody | None = None
    """Limits for the run that creates the answer."""
    deadline: Instant | None = None
    """Time at which the run is halted if it has not ended."""
    metadata: dict[str, Any] | None = None
    """JSON object that is returned with the run and not interpreted by the service."""


class AnswerBody(GoOnBody):
    """Options for answering a message."""

    agent: AgentOrName | None = None
    """Agent that answers this message instead of the thread's own agent or graph."""
    graph: GraphOrName | None = None
    """Graph that answers this message instead of the thread's own agent or graph."""
    inputs: dict[str, Any] | None = None
    """Inputs that replace those of the thread for this answer."""
    seed: Seed | None = None
    """Seed that makes sampling reproducible where the provider supports it."""
    timezone: ZoneName | None = None
    """Time zone that defines "today"; defaults to the configured one."""

    @model_validator(mode="after")
    def _has_at_most_one(self) -> "AnswerBody":
        if self.agent is not None and self.graph is not None:
            raise refusal("Send either an agent or a graph, not both.")
        return self


class EditBody(AnswerBody):
    """A user message that replaces another one."""

    content: NonBlankText
    """Text of the user's message."""


class MessageBody(EditBody):
    """A user message to send."""

    parent_id: MessageId | None = None
    """ID of the answer that the message follows; defaults to the newest answer."""


class ThreadAdmission:
    """Validates bodies of thread requests and converts them to threads and runs."""

    def __init__(
        self,
        limits: ApiLimits,
        definitions: Definitions,
        admissions: Admissions,
        quota_of: Callable[[str], Awaitable[TenantQuota]],
    ) -> None:
        self._limits = limits
        self._definitions = definitions
        self._admissions = admissions
        self._quota_of = quota_of

    async def new_thread(self, body: NewThreadBody, tenant: str) -> Thread:
        """Return the thread that the body describes.

        Raises:
            ProblemError: the body is invalid; the error names every field.
            GraphRefusedError: its agent or graph cannot be executed.
        """
        require_none(list(self._violations(body)))
        kind, definition = next(_definitions_in(body))
        thread = Thread(
            tenant=tenant,
            thread_id=body.thread_id or new_run_id(),
            kind=kind,
            definition=definition,
            inputs=body.inputs or {},
            tools=body.tools or (),
            title=body.title,
            metadata=body.metadata or {},
            request_hash=_hash(body.model_dump(mode="json", exclude={"thread_id"})),
        )
        new, _ = await self._answering(thread, AnswerBody(), "?")
        await new.require_models_of((await self._quota_of(tenant)).quota.models)
        return thread

    def run_id(self, thread: Thread, body: GoOnBody, idempotency_key: str | None) -> str:
        """Return the run ID for a new answer.

        That is the ID in the body, else one derived from the idempotency key, else a generated one.
        """
        if body.run_id is not None or idempotency_key is None:
            return body.run_id or new_run_id()
        return derived_id(thread.tenant, thread.thread_id, idempotency_key)

    async def new_run(
        self, thread: Thread, turn: PlannedReply, body: AnswerBody, key: RunKey, request_hash: str
    ) -> tuple[NewRun, Sequence[str]]:
        """Return the run that creates an answer, and the IDs of the final steps of its graph.

        Raises:
            ProblemError: the body is invalid; the error names every field.
            GraphRefusedError: the agent or graph cannot be executed.
        """
        require_none([*self._violations(body), *self._too_long(turn)])
        new, tools = await self._answering(thread, body, turn.question)
        chat = ChatInput(thread_id=thread.thread_id, user_tools=tools)
        request = replace(new.request, chat=chat)
        new = replace(new, key=key, request=request, request_hash=request_hash)
        return new, _ends(new.prepared)

    def continued_run(self, source: Run, body: GoOnBody, key: RunKey, request_hash: str) -> NewRun:
        """Return a run that resumes ``source`` and inherits the limits that the body omits."""
        request = replace(
            source.request,
            **inherited_limits(body.budget, source.request, self._limits),
            deadline=body.deadline,
            source=RunSource(source.key.run_id),
        )
        metadata = body.metadata or {}
        return NewRun(key=key, request=request, request_hash=request_hash, metadata=metadata)

    async def _answering(
        self, thread: Thread, body: AnswerBody, question: str
    ) -> tuple[NewRun, tuple[Mapping[str, Any], ...]]:
        """Return a validated run of the agent or graph that answers, and the user's tools."""
        kind, definition = next(_definitions_in(body), (thread.kind, thread.definition))
        rules = cast("GraphAdmission", self._admissions[RunKind(kind)])
        inputs = dict(thread.inputs if body.inputs is None else body.inputs)
        stored_definition = None
        if is_reference(definition):
            with suppress(DefinitionNotFoundError):
                reference = reference_from(definition, kind)
                stored_definition = await self._definitions.get(thread.tenant, reference)
        run = GraphRunBody.model_construct(
            kind="graph",
            graph=rules.chat_graph(definition, stored_definition, with_inputs=bool(inputs)),
            inputs={**rules.by_handle(inputs), DEFAULT_HANDLE: question},
            **{name: getattr(body, name) for name in ("budget", "deadline", "seed", "timezone")},
            metadata=body.metadata,
        )
        try:
            new = await self._admissions[RunKind.GRAPH].new_run(run, thread.tenant, "")
        except GraphRefusedError as refused:
            raise GraphRefusedError(KINDS[kind].at_home(refused.problems), kind) from None
        require_none(list(rules.unfit_values(new.request.graph or {}, inputs)))
        request = replace(
            new.request,
            definition_ref=None if stored_definition is None else stored_definition.head.ref,
        )
        brought = await self._users_tools(thread)
        # The transaction that accepts the run calls it: it must not need another connection.
        require_models = partial(self._require_models, kind, request.graph or {}, brought)
        new = replace(new, request=request, require_models=require_models)
        return new, () if brought is None else _tools_in(brought)

    async def _require_models(
        self,
        kind: DefinitionKind,
        graph: Mapping[str, Any],
        brought: Mapping[str, Any] | None,
        allowed: Collection[str],
    ) -> None:
        """Check that the answering agent or graph and the user's tools name only allowed models.

        Raises:
            GraphRefusedError: the answering agent or graph names another model.
            ProblemError: an agent among the user's tools names another model.
        """
        await self._definitions.require_models(kind, graph, allowed)
        if brought is not None:
            try:
                await self._definitions.require_models(_OF_TOOLS, brought, allowed)
            except GraphRefusedError as refused:
                raise _in_tools(refused) from None

    async def _users_tools(self, thread: Thread) -> Mapping[str, Any] | None:
        """Return the graph of a placeholder agent with the user's tools; None without tools.

        Raises:
            ProblemError: the tools are invalid; the error names every field.
        """
        if not thread.tools:
            return None
        stand_in = {"name": _BROUGHT, "prompt": {"system": "-"}, "tools": list(thread.tools)}
        try:
            return (await self._definitions.inline(thread.tenant, stand_in, _OF_TOOLS)).graph
        except GraphRefusedError as refused:
            raise _in_tools(refused) from None

    def _violations(self, body: NewThreadBody | GoOnBody) -> Iterator[Violation]:
        limits = self._limits
        yield from metadata_violations(body.metadata, limits)
        inputs = None if not isinstance(body, NewThreadBody | AnswerBody) else body.inputs
        if inputs and not fits(inputs, limits.max_body_bytes, limits):
            message = f"The inputs must not exceed {limits.max_body_bytes} bytes as JSON."
            yield Violation("inputs", message)
        if inputs and DEFAULT_HANDLE in inputs:
            reserved = f"The input {DEFAULT_HANDLE} is reserved for the user's message."
            yield Violation(f"inputs.{DEFAULT_HANDLE}", reserved)
        longest = limits.max_input_chars
        if isinstance(body, EditBody) and len(body.content) > longest:
            message = f"A message must not exceed {longest} characters (flags.max_input_chars)."
            yield Violation("content", message)

    def _too_long(self, turn: PlannedReply) -> Iterator[Violation]:
        limit = self._limits.max_graph_bytes
        texts = [one for one in turn.history or () if one.role != "tool" and not one.tool_calls]
        size = sum(len(message.content.encode()) for message in texts)
        if len(texts) > MAX_MESSAGES or size > limit:
            message = (
                f"A branch is limited to {MAX_MESSAGES} messages and {limit} bytes in total. "
                "Continue from an earlier message or start a new thread."
            )
            yield Violation("parent_id", message)


def _tools_in(brought: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the user's tools, with references to agents resolved."""
    tools = agent_of(brought)["tools"]
    return tuple({"tool": tool} if isinstance(tool, str) else tool for tool in tools)


def _definitions_in(
    body: NewThreadBody | AnswerBody,
) -> Iterator[tuple[DefinitionKind, Mapping[str, Any]]]:
    for kind in DefinitionKind:
        if (definition := getattr(body, kind)) is not None:
            yield kind, definition


def _in_tools(refused: GraphRefusedError) -> ProblemError:
    """Return the error for invalid tools of a user, with the problems as violations."""
    return ProblemError(INVALID_REQUEST, violations=graph_violations(refused.problems))


def thread_request_hash(action: str, message_id: str | None, body: GoOnBody) -> str:
    """Return a SHA-256 in hexadecimal that identifies repetitions of the same thread request.

    It covers the action, the message and the meaning of the body, except its ``run_id``.
    """
    content = body.model_dump(mode="json", exclude={"run_id", "budget"})
    budget = None if body.budget is None else body.budget.to_json()
    return _hash({**content, "budget": budget, "action": action, "message_id": message_id})


def _hash(content: Mapping[str, Any]) -> str:
    present = {name: value for name, value in content.items() if value not in (None, [], {})}
    return hashlib.sha256(canonical_body(present)).hexdigest()


def _ends(prepared: PreparedGraph | None) -> Sequence[str]:
    """Return the active steps without outgoing edges."""
    if prepared is None:
        return ()
    topology = prepared.topology
    return [step_id for step_id in topology.active if step_id not in topology.outgoing]
