"""Runs tools for agents through the run's call gateway, restricted by the allowlist.

The allowlist is enforced here, where a tool is run, and not in a prompt.
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from caseworker.core.budget.ledger import FreeAmounts
from caseworker.core.budget.retry import ONE_ATTEMPT, RetryPolicy
from caseworker.core.budget.stops import Stop
from caseworker.core.trace.frozen_json import ValueTooLargeError
from caseworker.core.trace.node import CALL_ID
from caseworker.core.trace.payloads import Payloads
from caseworker.engine.call import (
    FREE,
    AttemptError,
    Call,
    CallFailedError,
    OutcomeUnknownError,
    Reply,
    Spent,
)
from caseworker.engine.containment import ForeignError, contained
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import HASH_CHARS
from caseworker.engine.waiting_calls import (
    Author,
    Question,
    WaitingCalls,
    id_of,
    request_hash_of,
)
from caseworker.platform.code_table import executing
from caseworker.platform.fair_threads import CallThreads, PacedThread
from caseworker.platform.logs.errors import class_name, message_of_error
from caseworker.platform.logs.redaction import MAX_TEXT_CHARS, redact_text
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.artifacts import ArtifactKeeper, ArtifactTooLargeError, with_references
from caseworker.tools.client_call import ClientCall
from caseworker.tools.ports import (
    ONE_TOOL_CALL,
    Tool,
    ToolContext,
    ToolRefusedError,
    ToolResult,
    ToolSpec,
    failure,
    is_failure,
)
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker.tools.results import UnfitResultError, result_of_async
from caseworker.tools.servers import (
    NO_SERVERS,
    SERVER_LOST,
    ServerListing,
    ServerUnavailableError,
    ToolServers,
)

log = structlog.get_logger(__name__)


TOO_LARGE = "too_large"
"""Error code for a tool call whose file or result exceeds a size limit."""
UNFIT_RESULT = "unfit_result"
"""Error code for a tool call whose result cannot be converted to JSON."""

MAX_ERROR_CHARS = 1000
MAX_CODE_CHARS = 60

_OUTCOME_UNKNOWN = (
    "Outcome unknown: the tool had begun when its process stopped. Check its effect before it is"
    " called again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A call of a tool that an agent or a step requests."""

    name: str
    args: Mapping[str, Any]
    key: str
    """Identifies the call inside the step."""
    context: ToolContext
    call_id: str | None = None
    """ID of the call in the model's reply; None if no model requested it."""
    requires_approval: bool = False
    succeeded: Callable[[str], object] | None = None
    """Invoked after a call without an error, with the ID of the call's trace node."""


class ToolDispatch:
    """Runs the tools that the operator's policy allows."""

    def __init__(
        self,
        registry: ToolRegistry,
        policy: ToolPolicy,
        *,
        payloads: Payloads,
        retry: RetryPolicy,
        approval_timeout_seconds: float,
        wait_seconds: float,
        expose_errors: bool,
        servers: ToolServers = NO_SERVERS,
    ) -> None:
        """Create a dispatcher; ``payloads`` decides how traces store arguments.

        ``retry`` applies to tools that declare transient failures; all others get a single attempt.
        ``approval_timeout_seconds`` is the time limit for a person to approve a call,
        ``wait_seconds`` that for a client to execute one. ``servers`` provide additional tools.
        With ``expose_errors`` models see the messages of exceptions.

        Raises:
            UnfitSchemaError: a schema is unusable; the message names the tool.
        """
        self._servers = servers
        self._expose_errors = expose_errors
        self._payloads = payloads
        self._redaction = PacedThread()
        self._retry = retry
        self._approval_timeout_seconds = approval_timeout_seconds
        self._wait_seconds = wait_seconds
        self._registry = registry
        self._policy = policy
        self._checks = {tool.spec.name: ArgumentCheck.of(tool) for tool in registry}

    def usable(self) -> list[ToolSpec]:
        """Return the specs of the allowed local tools, sorted by name."""
        return [spec for spec in self._registry.specs() if self._policy.allows(spec.name)]

    def requires_approval(self, spec: ToolSpec) -> bool:
        """Return whether a person must approve each call: by the tool or by the configuration."""
        return self._policy.requires_approval(spec)

    def __iter__(self) -> Iterator[str]:
        """Return the names of the allowed local tools."""
        return (spec.name for spec in self.usable())

    def __len__(self) -> int:
        return len(self.usable())

    def __contains__(self, name: object) -> bool:
        """Return whether a run may use this name; a server's tool list is checked at the call."""
        if not isinstance(name, str) or not self._policy.allows(name):
            return False
        return self._registry.find(name) is not None or self._servers.serves(name)

    @property
    def servers(self) -> Sequence[str]:
        """Names of the configured tool servers, sorted."""
        return self._servers.names

    async def tools_of(self, server: str, tenant: str) -> Sequence[ToolSpec]:
        """Return a server's allowed tools for a tenant, sorted by name.

        Raises:
            ServerUnavailableError: the server is unreachable or not configured.
        """
        offered = await self._servers.tools(server, tenant)
        return [spec for spec in offered if self._policy.allows(spec.name)]

    async def listings(self, tenant: str) -> Sequence[ServerListing]:
        """Query all servers concurrently; return their current tools, sorted by server name.

        The servers are called with the credentials of ``tenant``.
        """

        async def listing(server: str) -> ServerListing:
            try:
                return ServerListing(server, await self.tools_of(server, tenant))
            except ServerUnavailableError as error:
                return ServerListing(server, problem=str(error))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(listing(name)) for name in self._servers.names]
        return [task.result() for task in tasks]

    def tool(self, name: str) -> Tool | None:
        """Return the local tool with this name, or None if it is unknown or not allowed."""
        return self._registry.find(name) if self._policy.allows(name) else None

    def problem(self, name: str, args: Mapping[str, Any]) -> str | None:
        """Return a message about invalid arguments for a local tool, or None if they are valid.

        Arguments for a server's tool are checked by the call itself, because the tool's schema may
        change before the call is executed again.
        """
        return self._checks[name].problem(args) if name in self._checks else None

    async def run(self, context: FlowContext, request: ToolRequest) -> ToolResult:
        """Run a tool; every failure is returned as a dict with ``error`` and ``code``.

        A person must approve the call first if the request, the tool or the policy demands it. The
        person may change the arguments. A rejection is also returned as an error result.

        Raises:
            Stop: a limit or a cancel request prevented or ended the call.
        """
        name = request.name
        try:
            tool = await self._find(name, context.run.tenant)
        except ServerUnavailableError as error:
            return failure(str(error), SERVER_LOST)
        if tool is None:
            return failure(f"There is no tool {redact_text(name, max_chars=60)!r}.", "unknown_tool")
        return await self._run(
            context,
            tool.spec,
            request,
            partial(self.problem, name),
            partial(self._call, context, tool),
        )

    async def run_by_client(
        self,
        context: FlowContext,
        spec: ToolSpec,
        check: ArgumentCheck,
        request: ToolRequest,
        wait_seconds: float | None,
    ) -> ToolResult:
        """Have the client of the run execute a tool; like :meth:`run` otherwise.

        ``wait_seconds`` is the time limit; None is the configured one. The result is
        ``{"output": …}``, or the client's error.

        Raises:
            Stop: a limit or a cancel request prevented or ended the call, or the run was suspended.
        """
        if WaitingCalls not in context.services:
            message = "The client of the run executes this tool, and there is none here."
            return failure(message, "client_unavailable")
        call_of = partial(self._client_call, context, spec, wait_seconds or self._wait_seconds)
        return await self._run(context, spec, request, check.problem, call_of)

    async def _run(
        self,
        context: FlowContext,
        spec: ToolSpec,
        request: ToolRequest,
        problem_of: Callable[[Mapping[str, Any]], str | None],
        call_of: Callable[[ToolRequest], Awaitable[Call]],
    ) -> ToolResult:
        """Check and approve the arguments, and make the call."""
        problem = problem_of(request.args)
        if problem is not None:
            return failure(problem, "invalid_arguments")
        if request.requires_approval or self.requires_approval(spec):
            refused, args = await self._approved(context, spec, request, problem_of)
            if refused is not None:
                return refused
            request = replace(request, args=args)
        call = await call_of(request)
        try:
            answered = await context.run.calls.perform(
                call, parent=context.trace_parent, scope=context.scope
            )
        except OutcomeUnknownError:
            return failure(_OUTCOME_UNKNOWN, "outcome_unknown")
        except CallFailedError as failed:
            timeout = failed.error_class == "TimeoutError"
            message = str(failed) if self._expose_errors else failed.message_for_model
            return failure(message, "timeout" if timeout else failed.error_class)
        if request.succeeded is not None:
            request.succeeded(answered.node_id)
        result: ToolResult = answered.value
        return result

    async def _approved(
        self,
        context: FlowContext,
        spec: ToolSpec,
        request: ToolRequest,
        problem_of: Callable[[Mapping[str, Any]], str | None],
    ) -> tuple[ToolResult | None, Mapping[str, Any]]:
        """Wait for an approval; return an error result or None, and the arguments to use."""
        args = request.args
        approvals: WaitingCalls | None = context.services.get(WaitingCalls)
        if approvals is None:
            message = "The call needs an approval, and no approver is available here."
            return failure(message, "approval_unavailable"), args
        question = Question(
            subject=spec.name,
            message=f"The run wants to call the tool {spec.name}.",
            arguments=dict(args),
            schema=spec.parameters,
            timeout_seconds=self._approval_timeout_seconds,
        )
        decision = await approvals.decision(context, context.path.call(request.key), question)
        if not decision.approved:
            return failure(decision.refusal, f"approval_{decision.verdict.value}"), args
        if decision.arguments is None:
            return None, args
        problem = problem_of(decision.arguments)
        if problem is not None:  # the schema changed after the approval
            return failure(problem, "invalid_arguments"), args
        return None, decision.arguments

    async def _find(self, name: str, tenant: str) -> Tool | None:
        tool = self.tool(name)
        return await self._servers.find(name, tenant) if tool is None and name in self else tool

    async def _call(self, context: FlowContext, tool: Tool, request: ToolRequest) -> "_ToolCall":
        spec, args, run = tool.spec, request.args, context.run
        key = context.path.call(request.key)
        identity, about = await self._about(request)
        return _ToolCall(
            key=key,
            kind="tool",
            name=spec.name,
            request_hash=_hash(identity),
            per_attempt=ONE_TOOL_CALL,
            external=spec.external or not spec.idempotent,  # no crash may repeat it
            repeatable=spec.idempotent,
            retry=self._retry if spec.retried else ONE_ATTEMPT,
            timeout_seconds=spec.timeout_seconds,
            metadata=about,
            tool=tool,
            args=args,
            context=replace(
                request.context,
                # Tenants may use the same run IDs.
                call_key=_hash(json.dumps([run.tenant, run.run_id, key.text])),
                threads=context.services.get(CallThreads),
                max_result_bytes=context.limits.max_value_bytes,
                max_result_depth=context.limits.max_depth,
                executing=executing(context.services, run.tenant, run.run_id, spec.name),
            ),
            keeper=run.services.get(ArtifactKeeper),
            check_stop=run.token.check,
            logged_with=run.logged_with,
            pause=partial(run.slots.turns.pause, run.slots),
        )

    async def _client_call(
        self, context: FlowContext, spec: ToolSpec, wait_seconds: float, request: ToolRequest
    ) -> ClientCall:
        question = Question(
            subject=spec.name,
            message="",
            arguments=dict(request.args),
            schema=None,
            timeout_seconds=wait_seconds,
            author=Author.CLIENT,
        )
        key, asked_hash = context.path.call(request.key), request_hash_of(question)
        call_id = id_of(context, key, asked_hash)
        _, about = await self._about(request)
        return ClientCall(
            key=key,
            name=spec.name,
            request_hash=asked_hash,
            per_call=ONE_TOOL_CALL,
            metadata={**about, CALL_ID: call_id},
            context=context,
            question=question,
            call_id=call_id,
        )

    async def _about(self, request: ToolRequest) -> tuple[str, dict[str, Any]]:
        """Return the text that identifies a request, and the metadata of its node."""
        args = request.args
        identity = json.dumps([request.name, args], sort_keys=True, default=str)
        redact = partial(self._payloads.display, dict(args), text_chars=MAX_TEXT_CHARS)
        displayed = await self._redaction.call(redact, len(identity))
        about: dict[str, Any] = {} if displayed is None else {"args": displayed}
        if request.call_id is not None:
            # Some endpoints encode thousands of characters of state in an ID.
            about["tool_call_id"] = request.call_id[:MAX_CODE_CHARS]
        return identity, about


@dataclass(kw_only=True, eq=False)
class _ToolCall(Call):
    """One call of a tool with valid arguments."""

    tool: Tool
    args: Mapping[str, Any]
    context: ToolContext
    keeper: ArtifactKeeper | None
    check_stop: Callable[[], None]
    """Raises the stop of the run, if there is one."""
    logged_with: Callable[[BaseException], BaseException | None]
    pause: Callable[[], Awaitable[None]]
    """Lets other runs continue before a result, which may be large, is processed."""

    def maximum(self, free: FreeAmounts) -> Spent:
        """Return no usage: a tool uses no tokens."""
        return FREE

    async def send(self, attempt: int) -> Reply:
        """Run the tool once; a result with an error is a failed attempt, so the trace shows it."""
        context = self.context
        sink = None if self.keeper is None else self.keeper.sink_of(self.key.text)
        try:
            call_context = context if sink is None else replace(context, artifacts=sink)
            result = await contained(self._result(call_context))
            await self.pause()
        except (ArtifactTooLargeError, ValueTooLargeError) as refusal:
            raise AttemptError(str(refusal), error_class=TOO_LARGE, retryable=False) from refusal
        except UnfitResultError as refusal:
            raise AttemptError(str(refusal), error_class=UNFIT_RESULT, retryable=False) from refusal
        except Exception as error:
            raise self._broken(error) from None
        if is_failure(result):
            raise self._failed(result)
        if sink is None or not sink.saved:
            return Reply(result)
        return Reply(with_references(result, sink.saved, context.run_id))

    def _broken(self, error: Exception) -> AttemptError:
        """Return the error of an attempt in which the tool raised an exception, and log it."""
        cause = error.__cause__ if isinstance(error, ForeignError) else None
        if isinstance(cause, Stop):
            self.check_stop()  # the run's own stop may have reached the tool
        logged = self.logged_with(cause or error)
        name, key = class_name(cause or error), self.key.text
        log.warning("tool.broke", tool=self.tool.spec.name, call_key=key, exc_info=logged)
        return AttemptError(
            f"The tool broke: {message_of_error(error)}",
            error_class=name,
            retryable=False,
            message_for_model=f"The tool broke ({name}).",
        )

    def _failed(self, result: ToolResult) -> AttemptError:
        """Return the error of an attempt with an error result.

        It is redacted: it may quote arguments or data, and it appears in traces and events.
        """
        message, code = result["error"], str(result.get("code") or "error")
        message = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
        code = redact_text(code, max_chars=MAX_CODE_CHARS)
        return AttemptError(
            redact_text(message, max_chars=MAX_ERROR_CHARS),
            error_class=code,
            retryable=code in self.tool.spec.retried,
            retry_after_seconds=_seconds(result.get("retry_after_seconds")),
        )

    async def _result(self, context: ToolContext) -> ToolResult:
        guard = nullcontext if getattr(self.tool, "records_code", False) else context.executing
        try:
            with guard():
                result = await self.tool.run(self.args, context)
        except ToolRefusedError as refusal:
            result = refusal.result()
        if getattr(self.tool, "converts_results", False):
            return result
        if not issubclass(type(result), Mapping):  # isinstance would ask the value
            raise UnfitResultError(f"The tool returned a {type(result).__name__}, and no dict.")
        return await result_of_async(
            result,
            threads=context.threads,
            max_bytes=context.max_result_bytes,
            max_depth=context.max_result_depth,
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]


def _seconds(value: object) -> float | None:
    """Return the delay that a tool requests, in seconds; None if it is not a number."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return math.inf
