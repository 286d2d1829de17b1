"""A server that lost a session gets a new one, and no call is executed twice unless it may be."""

import asyncio

import pytest

from caseworker.tools.mcp.servers import McpServers
from tests.support.mcp_servers import CONTEXT
from tests.support.session_mcp import NOT_FOUND, Refusal, SessionServer, call, session_server


def error(status: int, code: int, message: str) -> Refusal:
    text = f'{{"jsonrpc": "2.0", "id": null, "error": {{"code": {code}, "message": "{message}"}}}}'
    return status, "application/json; charset=utf-8", text


LOST = {
    "typescript": NOT_FOUND,
    "python": error(404, -32600, "Not Found: Invalid or expired session ID"),
    "python 1.9": error(400, -32600, "Bad Request: No valid session ID provided"),
    "typescript example": error(400, -32000, "Bad Request: No valid session ID provided"),
    "typescript restarted": error(400, -32000, "Bad Request: Server not initialized"),
    "typescript header": error(400, -32000, "Bad Request: Mcp-Session-Id header is required"),
    "go": (400, "text/plain; charset=utf-8", "Invalid session ID\n"),
    "go official": (404, "text/plain", "session not found\n"),
    "rust": (401, "text/plain", "Unauthorized: Session not found"),
    "rust missing": (422, "text/plain", "Unexpected message, expect initialize request"),
    "expired": (410, "application/json", '{"error": "The session has expired."}'),
    "older release": error(400, -32000, "Bad Request: Unsupported protocol version: 2026-07-28"),
    "empty": (404, "text/plain", ""),
    "proxy": (404, "text/html", "<h1>404 page not found</h1>"),
    "unknown method": error(404, -32601, "Method not found"),
    "invalid parameters": error(404, -32602, "Invalid params"),
    "gone": (410, "", "Gone"),
    "gone, empty": (410, "text/plain", ""),
    "gone, unknown method": error(410, -32601, "Method not found"),
    "precondition": (412, "text/plain", "unknown session"),
    "time-out": (440, "text/plain", "Login Time-out: session expired"),
    "parameters that name the session": error(400, -32602, "Invalid session id"),
}
REFUSED = {
    "empty": (400, "text/plain", ""),
    "conflict": (409, "text/plain", "Session ID mismatch"),
    "header": (400, "text/plain", "Mcp-Session-Id header is not known to this server"),
    "transport": (400, "text/plain", "sessionId abc does not match any active transport"),
    "no transport": error(400, -32000, "No transport found for sessionId"),
    "not there": error(400, -32000, "Could not find session"),
    "credentials": (401, "application/json", '{"error": "unauthorized"}'),
    "forbidden": (403, "text/html", "<h1>Forbidden</h1>"),
    "parameters": error(400, -32602, "Invalid request parameters"),
    "unknown method": error(405, -32601, "Method not found"),
}
"""Refusals that do not say clearly that the session is lost."""
FAILED = {
    "session": error(500, -32603, "Session not found"),
    "another code": error(500, -32000, "Session not found"),
    "internal": error(500, -32603, "Internal server error"),
    "text": (500, "text/plain", "Internal Server Error"),
    "empty": (500, "text/plain", ""),
    "proxy": (520, "text/html", "<h1>Web server returned an unknown error</h1>"),
}
"""Failures of a server that does not know the session; it may have executed the call."""
KEPT = {
    "invalid arguments": (error(400, -32602, "session_id is required"), "invalid_arguments"),
    "unknown tool": (error(400, -32601, "Session not found"), "unknown_tool"),
    "session of the tool": (error(400, -32602, "Invalid session id"), "invalid_arguments"),
    "empty": ((400, "text/plain", ""), "tool_error"),
    "conflict": ((409, "text/plain", "Session ID mismatch"), "tool_error"),
    "session of a database": (error(500, -32603, "Session not found"), "tool_error"),
    "another code": (error(500, -32000, "Session not found"), "tool_error"),
    "failure": ((500, "text/plain", ""), "tool_error"),
    "credentials": ((401, "text/plain", "Unauthorized"), "tool_error"),
    "forbidden": (error(403, -32000, "The amount is not valid."), "tool_error"),
    "too large": ((413, "text/html", "<h1>Too large</h1>"), "tool_error"),
    "too many": ((429, "text/plain", "No more sessions; expired quota"), "tool_error"),
    "internal": (error(500, -32603, "The session of the database was closed"), "tool_error"),
    "other": (error(400, -32000, "The amount is missing."), "tool_error"),
}


async def until_lost(server: SessionServer, servers: McpServers) -> None:
    """Open a session, and let the server forget it."""
    assert await call(servers, "read") == {"text": "did read"}
    server.sessions.clear()
    server.calls.clear()


@pytest.mark.parametrize("tool", ["read", "write"])
@pytest.mark.parametrize("refusal", LOST.values(), ids=LOST)
async def test_a_call_with_an_unknown_session_is_made_in_a_new_one(
    refusal: Refusal, tool: str
) -> None:
    """The server did nothing, so every tool is called again, and executed once."""
    async with session_server() as (server, servers):
        server.refusal = refusal
        await until_lost(server, servers)

        assert await call(servers, tool) == {"text": f"did {tool}"}
        assert server.calls == [tool]
        assert server.initialized == 2


@pytest.mark.parametrize(("refusal", "code"), KEPT.values(), ids=KEPT)
async def test_another_refusal_keeps_the_session(refusal: Refusal, code: str) -> None:
    """The call fails once, and the next call uses the same session."""
    async with session_server() as (server, servers):
        await call(servers, "read")
        server.refuse_calls = refusal
        failed = await call(servers, "read")
        server.refuse_calls = None

        assert failed["code"] == code, failed
        assert await call(servers, "write") == {"text": "did write"}
        assert server.initialized == 1
        assert [m.get("method") for _, m in server.messages].count("tools/call") == 3


@pytest.mark.parametrize("tool", ["read", "put"])
@pytest.mark.parametrize("refusal", [*REFUSED.values(), *FAILED.values()])
async def test_a_call_that_may_be_repeated_is_made_in_a_new_session_after_any_refusal(
    refusal: Refusal, tool: str
) -> None:
    """The server refuses to list its tools too, so the session is considered lost."""
    async with session_server() as (server, servers):
        server.refusal = refusal
        await until_lost(server, servers)

        assert await call(servers, tool) == {"text": f"did {tool}"}
        assert server.calls == [tool]
        assert server.initialized == 2


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(each, "tool_error") for each in REFUSED.values()]
    + [(each, "outcome_unknown") for each in FAILED.values()],
)
async def test_a_call_that_must_not_be_repeated_fails_once_after_any_refusal(
    refusal: Refusal, code: str
) -> None:
    """The next call opens a new session without a delay."""
    async with session_server() as (server, servers):
        server.refusal = refusal
        for _ in range(3):
            await until_lost(server, servers)
            failed = await call(servers, "write")
            assert failed["code"] == code, failed
            assert await call(servers, "write") == {"text": "did write"}
            assert server.calls == ["write"]
        assert server.initialized == 4


@pytest.mark.parametrize("refusal", [REFUSED["empty"], FAILED["empty"]])
async def test_a_call_that_is_refused_in_each_session_is_repeated_once(refusal: Refusal) -> None:
    """A server that forgets each session at once is not called without end."""
    async with session_server() as (server, servers):
        await call(servers, "read")
        server.forgets_at_call = True
        server.refusal = server.refuse_calls = refusal
        failed = await call(servers, "read")

        assert failed["code"] in ("tool_error", "server_lost"), failed
        assert [m.get("method") for _, m in server.messages].count("tools/call") == 3
        server.forgets_at_call, server.refuse_calls = False, None
        assert await call(servers, "read") == {"text": "did read"}
        assert server.initialized == 3


async def test_calls_that_are_refused_at_the_same_time_share_listings() -> None:
    """Each call waits for a listing after its refusal, and none causes its own."""
    async with session_server() as (server, servers):
        await call(servers, "read")
        server.refuse_calls = REFUSED["empty"]
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(servers, "write")) for _ in range(30)]

        assert {each.result()["code"] for each in calls} == {"tool_error"}
        assert [m.get("method") for _, m in server.messages].count("tools/list") < 31
        assert server.initialized == 1


async def test_a_call_in_flight_keeps_its_connection_when_another_call_is_refused() -> None:
    """The server still answers it, although it refuses to list its tools."""
    async with session_server() as (server, servers):
        server.refusal = REFUSED["empty"]
        held = asyncio.create_task(call(servers, "hold"))
        await server.until(lambda: "hold" in server.calls)
        server.sessions.clear()

        assert (await call(servers, "write"))["code"] == "tool_error"
        assert await call(servers, "write") == {"text": "did write"}
        server.release.set()
        assert await held == {"text": "did hold"}


async def test_a_refused_call_ends_when_the_listing_after_it_fails() -> None:
    """The connection of the listing breaks off, which ends the session."""
    async with asyncio.timeout(60), session_server() as (server, servers):
        await call(servers, "read")
        server.refuse_calls = REFUSED["empty"]
        server.breaks_lists = True

        assert (await call(servers, "write"))["code"] == "tool_error"
        assert (await call(servers, "write"))["code"] == "server_lost"


@pytest.mark.parametrize(
    ("tool", "codes"), [("read", None), ("put", None), ("write", "outcome_unknown")]
)
@pytest.mark.parametrize(
    "how", ["closed", "cut", "event stream", "bad gateway", "gateway timeout", "unavailable"]
)
async def test_a_call_that_may_have_been_executed_is_repeated_only_if_that_is_safe(
    how: str, tool: str, codes: str | None
) -> None:
    """Reads and idempotent calls are repeated at once; a write reports an unknown outcome."""
    async with session_server() as (server, servers):
        await call(servers, "read")
        server.calls.clear()
        server.break_next = how
        result = await call(servers, tool)

        if codes is None:
            assert result == {"text": f"did {tool}"}
            assert server.calls == [tool, tool]
        else:
            assert result["code"] == codes
            assert "Outcome unknown" in result["error"]
            assert server.calls == [tool]
        assert await call(servers, "read") == {"text": "did read"}


@pytest.mark.parametrize("tool", ["read", "put", "write"])
async def test_a_call_that_reached_no_server_fails_as_lost_and_works_after_the_restart(
    tool: str,
) -> None:
    """No tool reports an unknown outcome, because no server took the call."""
    async with session_server() as (server, servers):
        await call(servers, "read")
        found = await servers.find(f"web.{tool}")
        server.stop()
        lost = await found.run({}, CONTEXT)
        await server.start()
        server.calls.clear()

        assert lost["code"] == "server_lost"
        assert found.spec.without_effect == {"server_lost"}
        async with asyncio.timeout(60):
            while "error" in (result := await found.run({}, CONTEXT)):  # noqa: ASYNC110 - a pause
                await asyncio.sleep(result["retry_after_seconds"] or 0)
        assert result == {"text": f"did {tool}"}
        assert server.calls == [tool]


async def test_calls_at_the_same_time_share_one_new_session() -> None:
    """Every call is executed once, whichever call noticed the loss first."""
    async with session_server() as (server, servers):
        await until_lost(server, servers)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(servers, "write")) for _ in range(30)]

        assert [each.result() for each in calls] == [{"text": "did write"}] * 30
        assert server.calls == ["write"] * 30
        assert server.initialized == 2


async def test_a_call_in_flight_keeps_its_connection_when_another_call_loses_the_session() -> None:
    """A replica of the server may still answer it."""
    async with session_server() as (server, servers):
        held = asyncio.create_task(call(servers, "hold"))
        await server.until(lambda: "hold" in server.calls)
        server.sessions.clear()

        assert await call(servers, "write") == {"text": "did write"}
        server.release.set()
        assert await held == {"text": "did hold"}
        assert server.initialized == 2


async def test_a_session_that_is_lost_while_tools_are_listed_keeps_the_calls_in_flight() -> None:
    """A call that timed out has the tools listed again, which notices the loss."""
    async with session_server(timeout_seconds=3.0) as (server, servers):
        silent = asyncio.create_task(call(servers, "silent"))
        await server.until(lambda: "silent" in server.calls)
        await asyncio.sleep(2)  # the calls have equal limits
        held = asyncio.create_task(call(servers, "hold"))
        await server.until(lambda: "hold" in server.calls)
        server.sessions.clear()
        assert (await silent)["code"] == "timeout"
        lists = [m for _, m in server.messages if m.get("method") == "tools/list"]
        await server.until(
            lambda: sum(m.get("method") == "tools/list" for _, m in server.messages) > len(lists)
        )
        assert await call(servers, "write") == {"text": "did write"}
        server.release.set()
        assert await held == {"text": "did hold"}


async def test_a_session_that_is_lost_many_times_causes_no_pause() -> None:
    """A server that answers is not treated like one that crashes again and again."""
    async with session_server() as (server, servers):
        for _ in range(8):
            await until_lost(server, servers)
            assert await call(servers, "write") == {"text": "did write"}
        assert server.initialized == 9


async def test_closing_ends_a_lost_session_with_a_call_in_flight() -> None:
    """The process does not wait for the call."""
    async with asyncio.timeout(60), session_server() as (server, servers):
        held = asyncio.create_task(call(servers, "hold"))
        await server.until(lambda: "hold" in server.calls)
        server.sessions.clear()
        await call(servers, "write")
        await servers.aclose()

        assert (await held)["code"] == "outcome_unknown"


async def test_a_cancelled_call_is_cancelled_at_its_server() -> None:
    """The notification names the request and its session."""
    async with session_server() as (server, servers):
        held = asyncio.create_task(call(servers, "hold"))
        await server.until(lambda: "hold" in server.calls)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        requests = {m["id"]: s for s, m in server.messages if m.get("method") == "tools/call"}

        def cancelled() -> dict[int, str]:
            name = "notifications/cancelled"
            sent = [(s, m) for s, m in server.messages if m.get("method") == name]
            return {m["params"]["requestId"]: s for s, m in sent}

        await server.until(cancelled)
        assert cancelled() == requests
