"""MCP server on top of the SDK, offering the tools of this service; imported on first use."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
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
from caseworker.runs.run import Run, RunKey
from caseworker.runs.service import RunService

log = structlog.get_logger(__name__)

Context = ServerRequestContext[dict[str, Any], Any]

WAIT_SECONDS: Final = 45.0
"""Seconds that a call waits for its run to end; MCP clients time out after 60 seconds."""
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
    """Handles MCP requests. Its only state is the cancel requests in progress."""

    def __init__(self, version: str) -> None:
        self._cancelling: set[asyncio.Task[Any]] = set()
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
            try:
                message = " ".join(_reasons_of(request, error))
            except LookupError:
                log.exception("mcp.resource_broke")
                raise MCPError(INTERNAL_ERROR, _BROKE) from None
            raise MCPError(INVALID_PARAMS, message, data={"uri": params.uri}) from None

    async def _call(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        request = _request_of(context)
        args = dict(params.arguments or {})
        try:
            if params.name == _GET_RUN.name:
                wait = _pop_wait(args)
                run = await request.service(RunService).get(
                    RunKey(request.caller.tenant, str(args.get("run_id")))
                )
                return await self._ended(context, request, run, wait)
            tool = await offered_tool(request, params.name)
            if tool is None:
                return _refused("Unknown tool. tools/list lists the available tools.")
            wait = WAIT_SECONDS if _has_own_wait(tool) else _pop_wait(args)
            return await self._run(context, request, tool, args, wait)
        except ValidationError as error:
            violations = violations_of(error.errors())
            return _refusal_of(request, ProblemError(INVALID_REQUEST, violations=violations))
        except Exception as error:
            return _refusal_of(request, error)

    async def _run(
        self,
        context: Context,
        request: ApiRequest,
        tool: RunTool,
        args: Mapping[str, Any],
        wait: float,
    ) -> CallToolResult:
        request.require(AccessScope.RUN)
        run_id = session_run_id(request.headers.get(SESSION_HEADER), context.request_id)
        of_run = {"run_id": run_id, "metadata": {"via": "mcp", "tool": tool.name}}
        new = await request.service(Admissions).new_run(tool.body(args, of_run), request)
        accepted = await request.service(RunService).accept(new)
        try:
            return await self._ended(context, request, accepted.run, wait)
        except asyncio.CancelledError:
            runs = request.service(RunService)
            if not runs.is_closing:  # otherwise the process shuts down, not the client
                self._cancel(runs, accepted.run.key)
            raise

    def _cancel(self, runs: RunService, key: RunKey) -> None:
        """Cancel the run of a disconnected client in a separate task, since this one ends."""
        cancelling = asyncio.create_task(runs.cancel(key, by=CALLER, reason="The client left."))
        self._cancelling.add(cancelling)
        cancelling.add_done_callback(self._cancelling.discard)

    async def _ended(
        self, context: Context, request: ApiRequest, run: Run, wait: float
    ) -> CallToolResult:
        """Return the run when it ends, after ``wait`` seconds, or when the process shuts down."""
        started, runs = time.monotonic(), request.service(RunService)
        while not run.finished and (remaining := wait - (time.monotonic() - started)) > 0:
            if runs.is_closing:
                break
            run = await runs.wait(run.key, seconds=min(PROGRESS_SECONDS, remaining))
            if not run.finished:
                waited = time.monotonic() - started
                with suppress(Exception):
                    await context.session.report_progress(waited, wait, run.status.value)
        await request.require_still(AccessScope.READ)
        view = (await view_with_usage(run, request)).model_dump(mode="json")
        content: list[ContentBlock] = [TextContent(text=json.dumps(view, ensure_ascii=False))]
        if is_version_at_least(context.protocol_version, _FIRST_WITH_LINKS):
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
        return _refused(*_reasons_of(request, error))
    except LookupError:
        log.exception("mcp.call_broke")
        return _refused(_BROKE)


def _reasons_of(request: ApiRequest, error: Exception) -> Collection[str]:
    """Return the problem that a route would have returned, as texts.

    Raises:
        LookupError: no problem type is registered for the error.
    """
    problem: ProblemError = request.problem_of(error)
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
