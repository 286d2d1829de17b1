"""MCP server on top of the SDK, offering the tools of this service; imported on first use."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    InputRequiredResult,
    InputResponses,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from mcp_types.version import is_version_at_least
from pydantic import ValidationError

from caseworker.faces.mcp_server.elicitation import (
    MAX_ROUNDS,
    Answers,
    Round,
    can_ask,
    decided,
    open_approvals,
    question_of,
)
from caseworker.faces.mcp_server.endpoint import CALLER, SESSION_HEADER, session_run_id
from caseworker.faces.mcp_server.offers import RunTool, offered_tool, offered_tools
from caseworker.faces.mcp_server.resources import (
    TEMPLATES,
    contents_of,
    links_of,
    newest_traces,
)
from caseworker.platform.caller import KeyScope as AccessScope
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.http.deadline import DEADLINE
from caseworker.platform.http.mcp import McpAnswer
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    UNAVAILABLE,
    ProblemError,
    invalid,
    violations_of,
    violations_text,
)
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.http.kinds import Admissions
from caseworker.runs.http.runs import view_with_usage
from caseworker.runs.run import Run, RunKey, RunStatus
from caseworker.runs.service import RunService

log = structlog.get_logger(__name__)

Context = ServerRequestContext[dict[str, Any], Any]
CallReply = CallToolResult | InputRequiredResult

WAIT_SECONDS: Final = 45.0
"""Seconds that a call waits for its run to end; MCP clients time out after 60 seconds."""
FIRST_LOOK_SECONDS: Final = 0.25
"""Seconds after which a call that may show forms looks for open approvals; the interval doubles up
to ``PROGRESS_SECONDS``."""
PROGRESS_SECONDS: Final = 2.0
"""Seconds between progress notifications to clients that requested them."""

_FIRST_WITH_LINKS: Final = "2025-06-18"
"""First version of the protocol whose tool results may have links to resources."""

_BROKE: Final = "Internal error. Retry the call later."
_WAIT_NAME: Final = "wait_seconds"
_WAIT = {
    "type": "number",
    "minimum": 0,
    "maximum": WAIT_SECONDS,
    "description": "Seconds to wait for the end of the run. If it has not ended by then, its"
    " current state is returned; call get_run to wait further.",
}
_GET_RUN = Tool(
    name="get_run",
    description="Returns a run by its run_id, when it has ended or after wait_seconds. Use it for"
    " runs that had not ended when their tool returned.",
    input_schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["run_id"],
        "properties": {"run_id": {"type": "string"}, "wait_seconds": _WAIT},
    },
    annotations=ToolAnnotations(read_only_hint=True),
)


class OfferingServer:
    """Handles MCP requests."""

    def __init__(self, version: str) -> None:
        self._server: Server[Any] = Server(
            "caseworker",
            version=version,
            instructions="Every call is a run within hard budgets. If a call returns before its run"
            " ends, the run continues; get_run returns it by its run_id.",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read,
        )

    def answer(self, content: bytes, method: object) -> McpAnswer:
        """Return the answer to a request with this body and method.

        ``scope["api_request"]`` is its :class:`ApiRequest`.
        """
        return McpAnswer(self._server, content, method)

    async def _list(self, context: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        request = _request_of(context)
        async with _in_time(request):
            offered = await offered_tools(request)
        tools = {_GET_RUN.name: _GET_RUN}
        for each in offered.values():
            tools.setdefault(each.name, _tool(each))
        return ListToolsResult(tools=list(tools.values()))

    async def _list_resources(
        self, context: Context, _: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        request = _request_of(context)
        async with _in_time(request):
            return ListResourcesResult(resources=await newest_traces(request))

    async def _list_templates(
        self, _: Context, __: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=list(TEMPLATES))

    async def _read(
        self, context: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        request = _request_of(context)
        try:
            async with _in_time(request):
                return ReadResourceResult(contents=[await contents_of(params.uri, request)])
        except MCPError:
            raise
        except Exception as error:
            raise _unread(request, params.uri, error) from None

    async def _call(self, context: Context, params: CallToolRequestParams) -> CallReply:
        request = _request_of(context)
        args = dict(params.arguments or {})
        state = None if params.request_state is None else Round.parsed(params.request_state)
        call = partial(_ToolCall, context, request, state, params.input_responses or {})
        try:
            if params.name == _GET_RUN.name:
                wait = _pop_wait(args)
                run = await request.service(RunService).get(
                    RunKey(request.caller.tenant, str(args.get("run_id")))
                )
                return await call(wait).ended(run)
            tool = await offered_tool(request, params.name)
            if tool is None:
                return _refused("Unknown tool. tools/list lists the available tools.")
            wait = WAIT_SECONDS if _has_own_wait(tool) else _pop_wait(args)
            return await self._run(call(wait), tool, args)
        except ValidationError as error:
            violations = violations_of(error.errors())
            return _refusal_of(request, ProblemError(INVALID_REQUEST, violations=violations))
        except Exception as error:
            return _refusal_of(request, error)

    async def _run(self, call: "_ToolCall", tool: RunTool, args: Mapping[str, Any]) -> CallReply:
        """Create the run of a call, unless an earlier round of the call did, and return its end."""
        call.request.require(AccessScope.RUN)
        runs, tenant = call.request.service(RunService), call.request.caller.tenant
        if call.state is None:
            run = await self._created(call, tool, args)
        else:
            run = await runs.get(RunKey(tenant, call.state.run_id))
        try:
            return await call.ended(run)
        except asyncio.CancelledError:
            runs.abandon(run.key, by=CALLER, reason="The client left.")
            raise

    async def _created(self, call: "_ToolCall", tool: RunTool, args: Mapping[str, Any]) -> Run:
        request = call.request
        run_id = session_run_id(request.headers.get(SESSION_HEADER), call.context.request_id)
        of_run = {"run_id": run_id, "metadata": {"via": "mcp", "tool": tool.name}}
        new = await request.service(Admissions).new_run(tool.body(args, of_run), request)
        return (await request.service(RunService).accept(new)).run


@dataclass(frozen=True, slots=True)
class _ToolCall:
    """One request for a call of a tool, which is a round of the call if forms are shown."""

    context: Context
    request: ApiRequest
    state: Round | None
    """State of the earlier round; None in the first round."""
    responses: InputResponses
    """The user's answers to the forms of the earlier round, by approval ID."""
    wait_seconds: float

    async def ended(self, run: Run) -> CallReply:
        """Return the run when it ends, when the time is over, or when the process shuts down.

        If the run waits for approvals that the caller may decide, and the client has forms, return
        the forms instead.
        """
        started, runs = time.monotonic(), self.request.service(RunService)
        answers, wait_seconds, tick_seconds = Answers(), self.wait_seconds, PROGRESS_SECONDS
        if self.responses:
            answers = await decided(run.key, self.responses, self.request)
            run = await runs.get(run.key)
        asks = self._may_ask() and not answers.is_cancelled
        if answers.is_cancelled:
            wait_seconds = 0
        if asks:
            tick_seconds = FIRST_LOOK_SECONDS
        while True:
            if asks and (question := await self._question(run, answers)) is not None:
                return question
            remaining = wait_seconds - (time.monotonic() - started)
            if run.finished or remaining <= 0 or runs.is_closing:
                return await self._result(run)
            run = await runs.wait(run.key, seconds=min(tick_seconds, remaining))
            tick_seconds = min(2 * tick_seconds, PROGRESS_SECONDS)
            if not run.finished:
                waited = time.monotonic() - started
                with suppress(Exception):
                    session, status = self.context.session, run.status.value
                    await session.report_progress(waited, wait_seconds, status)

    def _may_ask(self) -> bool:
        rounds = 0 if self.state is None else self.state.number
        may_decide = AccessScope.APPROVE in self.request.caller.scopes
        return may_decide and rounds < MAX_ROUNDS and can_ask(self.context)

    async def _question(self, run: Run, answers: Answers) -> InputRequiredResult | None:
        """Return the forms for the open approvals of a run; None if there are none."""
        if run.status not in (RunStatus.WAITING, RunStatus.RUNNING):
            return None
        approvals = await open_approvals(run.key, self.request)
        if not approvals:
            return None
        await self.request.require_still(AccessScope.READ)
        if not self._may_ask():
            return None
        number = 1 if self.state is None else self.state.number + 1
        return question_of(approvals, Round(number, run.key.run_id), answers.problems)

    async def _result(self, run: Run) -> CallToolResult:
        request = self.request
        await request.require_still(AccessScope.READ)
        view = (await view_with_usage(run, request)).model_dump(mode="json")
        content: list[ContentBlock] = [TextContent(text=json.dumps(view, ensure_ascii=False))]
        if is_version_at_least(self.context.protocol_version, _FIRST_WITH_LINKS):
            content += await links_of(run, request)
        return CallToolResult(
            content=content,
            structured_content=view,
            is_error=run.finished and run.status.value != "completed",
        )


def _request_of(context: Context) -> ApiRequest:
    return cast("ApiRequest", cast("Any", context.request).scope["api_request"])


def _has_own_wait(tool: RunTool) -> bool:
    """Return whether a tool has its own argument named ``wait_seconds``."""
    return _WAIT_NAME in tool.parameters.get("properties", {})


def _pop_wait(args: dict[str, Any]) -> float:
    """Remove ``wait_seconds`` from the arguments of a call and return it, capped at the maximum.

    Raises:
        ProblemError: it is not a number of seconds.
    """
    wait = args.pop(_WAIT_NAME, WAIT_SECONDS)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
        raise invalid(_WAIT_NAME, "This must be a number of seconds.")
    return min(wait, WAIT_SECONDS)


def _tool(offered: RunTool) -> Tool:
    properties = {_WAIT_NAME: _WAIT, **offered.parameters.get("properties", {})}
    return Tool(
        name=offered.name,
        description=offered.description,
        input_schema={**offered.parameters, "properties": properties},
        annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True),
    )


def _refused(*reasons: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=" ".join(reasons))], is_error=True)


def _refusal_of(request: ApiRequest, error: Exception) -> CallToolResult:
    """Return a failed call with the problem that a route would have returned, as text."""
    try:
        problem = request.problem_of(error)
    except LookupError:
        log.exception("mcp.call_broke")
        return _refused(_BROKE)
    return _refused(*_reasons_of(problem))


def _unread(request: ApiRequest, uri: str, error: Exception) -> MCPError:
    """Return the error of the protocol for a resource that cannot be read."""
    try:
        problem = request.problem_of(error)
    except LookupError:
        log.exception("mcp.resource_broke")
        return MCPError(INTERNAL_ERROR, _BROKE)
    is_temporary = problem.kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    code = INTERNAL_ERROR if is_temporary else INVALID_PARAMS
    return MCPError(code, " ".join(_reasons_of(problem)), data={"uri": uri})


def _reasons_of(problem: ProblemError) -> Collection[str]:
    messages = dict.fromkeys(violations_text((each,)) for each in problem.violations)
    if problem.detail == violations_text(problem.violations):  # it has the first violations
        return messages
    return (problem.detail, *messages)


@asynccontextmanager
async def _in_time(request: ApiRequest) -> AsyncIterator[None]:
    """Limit a block to the remaining time of its request.

    Raises:
        MCPError: the time is over, or the database is unavailable.
    """
    try:
        async with asyncio.timeout(request.scope[DEADLINE].left_seconds):
            yield
    except (StoreUnavailableError, TimeoutError):
        raise MCPError(INTERNAL_ERROR, UNAVAILABLE.detail) from None
