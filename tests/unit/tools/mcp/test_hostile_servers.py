"""An MCP server that crashes, hangs, floods or lies costs at most the current call."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from caseworker.tools.mcp import servers as module
from caseworker.tools.mcp.config import ServerConfig
from caseworker.tools.servers import ServerUnavailableError
from tests.support.mcp_servers import CONTEXT, Hostile, alive, hostile, until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def test_calls_share_one_process_and_its_tools_have_the_name_of_the_server(log: Path) -> None:
    """The server is started once, at its first use."""
    async with hostile(log) as server:
        assert server.pids() == []
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(server.call("echo", text=str(n))) for n in range(20)]

        assert [call.result() for call in calls] == [{"text": str(n)} for n in range(20)]
        assert len(server.pids()) == 1
        assert "h.echo" in [spec.name for spec in await server.servers.tools("h")]


async def test_hints_of_a_server_say_what_may_be_repeated_and_run_side_by_side(log: Path) -> None:
    """Without hints, a tool counts as changing state."""
    async with hostile(log) as server:
        specs = {spec.name: spec for spec in await server.servers.tools("h")}

    echo, crash = specs["h.echo"], specs["h.crash"]
    assert (echo.external, echo.idempotent, echo.parallel_safe) == (True, True, True)
    assert (crash.external, crash.idempotent, crash.parallel_safe) == (True, False, False)


async def test_lies_about_schemas_make_one_tool_unusable_and_are_logged(log: Path) -> None:
    """Invalid, remote, deep or large schemas are never compiled."""
    with capture_logs() as lines:
        async with hostile(log) as server:
            specs = {spec.name: spec for spec in await server.servers.tools("h")}
            refused = await server.call("lie_type")

    unusable = {line["tool"]: line["detail"] for line in lines if "unusable" in line["event"]}
    lies = ("lie_type", "lie_reference", "lie_depth", "lie_size", "lie_nul")
    assert {f"h.{name}" for name in lies} <= set(unusable)
    malformed = {name for name in unusable if "malformed" in name}
    assert len(unusable) == len(lies) + 1 + len(malformed) + len({"h.7", "h.None"})
    assert not any("lie" in name or "bad" in name for name in specs)
    assert len(specs["h.long"].description) == 4000
    assert "\x00" not in specs["h.long"].description
    assert refused["code"] == "unknown_tool"


async def test_a_malformed_entry_in_a_list_costs_one_tool_and_is_logged(log: Path) -> None:
    """A malformed tool is logged with its error, and the server's other tools can be used."""
    with capture_logs() as lines:
        async with hostile(log) as server:
            names = [spec.name for spec in await server.servers.tools("h")]
            result = await server.call("echo", text="here")

    unusable = {line["tool"]: line for line in lines if line["event"] == "mcp.tool_unusable"}
    kinds = ("schema", "type", "hints")
    malformed = {*(f"h.malformed_{kind}" for kind in kinds), "h.7", "h.None"}
    assert malformed <= set(unusable)
    assert {unusable[name]["log_level"] for name in malformed} == {"warning"}
    assert "inputSchema" in unusable["h.malformed_schema"]["detail"]
    assert result == {"text": "here"}
    assert "h.echo" in names
    assert not malformed & set(names)


async def test_arguments_are_checked_before_they_are_sent(log: Path) -> None:
    """Invalid arguments are not sent to the server."""
    async with hostile(log) as server:
        result = await server.call("echo", text=7)

    assert result["code"] == "invalid_arguments"
    assert server.lines("call") == []


async def test_a_crash_ends_the_call_and_the_server_is_started_again(log: Path) -> None:
    """The next call starts a new process."""
    async with hostile(log) as server:
        lost = await server.call("crash")
        again = await server.call("echo", text="back")

        assert lost["code"] == "outcome_unknown"
        assert again == {"text": "back"}
        assert len(server.pids()) == 2


async def killed(server: Hostile) -> None:
    """Kill the server between two calls, without waiting until the service has noticed."""
    psutil.Process(server.pids()[-1]).kill()


async def calls(server: Hostile, tool: str) -> None:
    assert await server.call(tool) == {"text": f"did {tool}"}


CLOSED: Mapping[str, Callable[[Hostile], Awaitable[None]]] = {
    "killed": killed,
    "quit": partial(calls, tool="quit"),
    "closed input": partial(calls, tool="close_input"),
    "closed output": partial(calls, tool="close_output"),
}


@pytest.mark.parametrize("tool", ["echo", "either"])
@pytest.mark.parametrize("close", CLOSED.values(), ids=CLOSED)
async def test_a_call_after_the_pipes_were_closed_is_executed_once_by_a_new_process(
    log: Path, close: Callable[[Hostile], Awaitable[None]], tool: str
) -> None:
    """No process took the call before, so it is made whatever its tool does."""
    args = {"text": "here"} if tool == "echo" else {"a": "here"}
    async with hostile(log) as server:
        await server.call("echo", text="before")
        await close(server)
        result = await server.call(tool, **args)

        if "error" in result:  # the line may have been in the pipe already, and be lost with it
            assert tool == "either"
            assert result["code"] in ("outcome_unknown", "timeout")
            assert len(server.lines("call either")) <= 1
        else:
            assert result["text"] in ("here", "did either")
            assert len(server.lines(f"call {tool}")) == 1 + (tool == "echo")
        assert await server.call("echo", text="after") == {"text": "after"}
        assert len(server.pids()) == 2


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        ("crash_first", {"text": "did crash_first"}),
        ("crash_first_writing", "outcome_unknown"),
        ("crash", "outcome_unknown"),
        ("crash_reading", "server_lost"),
        ("endless", "outcome_unknown"),
    ],
)
async def test_a_crash_during_a_call_repeats_only_calls_that_read(
    log: Path, tool: str, result: Any
) -> None:
    """A read is made at most twice; another call is made once, and its outcome is unknown."""
    async with hostile(log) as server:
        await server.call("echo", text="before")
        got = await server.call(tool)

        assert got == result if isinstance(result, dict) else got["code"] == result, got
        reads = tool in ("crash_first", "crash_reading")
        assert len(server.lines(f"call {tool}")) == 1 + reads


async def test_progress_restarts_the_timeout_of_a_call(log: Path) -> None:
    """A call may take longer than its timeout while its server reports progress."""
    async with hostile(log, timeout_seconds=2) as server:
        assert await server.call("report") == {"text": "did report"}


async def test_progress_without_an_end_times_out(log: Path) -> None:
    """The server gets a cancel notification and is started again."""
    limits = {"timeout_seconds": 1.5, "progress_timeout_seconds": 2, "start_timeout_seconds": 6}
    async with hostile(log, **limits) as server:
        assert (await server.call("report_forever"))["code"] == "timeout"


async def test_a_server_that_crashes_again_and_again_is_started_with_growing_pauses(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During the pause, calls report how long it lasts."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", (0.0, 100.0, 1000.0))
    async with hostile(log) as server:
        await server.call("crash")
        await server.call("crash")
        refused = await server.call("echo", text="x")

    assert refused["code"] == "server_lost"
    assert "kaput" in refused["error"]
    assert 0 < refused["retry_after_seconds"] <= 100
    assert len(server.pids()) == 2


async def test_a_call_that_is_never_answered_ends_alone(log: Path) -> None:
    """The server gets a cancel notification, and its other calls continue."""
    async with hostile(log, timeout_seconds=2) as server:
        silent = await server.call("hang")
        await until(lambda: server.lines("cancelled"))
        other = await server.call("echo", text="x")

        assert silent["code"] == "timeout"
        assert other == {"text": "x"}
        assert len(server.pids()) == 1


async def test_a_server_that_reads_nothing_more_is_ended_with_all_it_has_started(
    log: Path,
) -> None:
    """After an unanswered call, the server must list its tools in time, or it counts as hung."""
    async with hostile(log, timeout_seconds=2, start_timeout_seconds=6) as server:
        assert (await server.call("echo", text="x")) == {"text": "x"}
        deaf = server.pids()[0]
        silent = asyncio.create_task(server.call("deaf"))
        await until(lambda: psutil.Process(deaf).children())
        family = [deaf, *(child.pid for child in psutil.Process(deaf).children())]

        assert (await silent)["code"] == "timeout"
        await until(lambda: not any(map(alive, family)))
        assert (await server.call("echo", text="y")) == {"text": "y"}


async def test_a_process_that_keeps_the_pipes_of_a_server_delays_no_end(log: Path) -> None:
    """It is in another process group, so it outlives the server."""
    async with asyncio.timeout(150):
        async with hostile(log) as server:
            started = await server.call("detach")
        detached = psutil.Process(int(started["text"]))
        assert detached.is_running()
        detached.kill()


async def test_a_cancelled_caller_does_not_wait_and_disturbs_nobody(log: Path) -> None:
    """The server gets the protocol's cancel notification."""
    async with hostile(log) as server:
        cancelled = asyncio.create_task(server.call("hang"))
        await until(lambda: server.lines("call hang"))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await until(lambda: server.lines("cancelled"))

        assert await server.call("echo", text="on") == {"text": "on"}
        assert len(server.pids()) == 1


@pytest.mark.parametrize("tool", ["large", "large_last"])
async def test_an_answer_that_is_too_large_is_not_gathered(log: Path, tool: str) -> None:
    """The call ends with a code, wherever the answer names it, and the session continues."""
    async with hostile(log) as server:
        result = await server.call(tool)

        assert result["code"] == "too_large"
        assert await server.call("echo", text="on") == {"text": "on"}
        assert len(server.pids()) == 1


@pytest.mark.parametrize("tool", ["endless", "chatter"])
async def test_a_flood_ends_the_server(log: Path, tool: str) -> None:
    """An endless line or unsolicited messages end the server."""
    async with hostile(log) as server:
        result = await server.call(tool)

        assert result["code"] == "outcome_unknown"
        await until(lambda: not alive(server.pids()[0]))
        assert await server.call("echo", text="on") == {"text": "on"}


async def test_answers_that_make_no_sense_or_cannot_be_stored_are_tool_errors(log: Path) -> None:
    """Characters that a journal cannot store are replaced; a tool's own refusal has a code."""
    async with hostile(log) as server:
        assert (await server.call("nonsense"))["code"] == "unfit_result"
        assert await server.call("surrogates") == {
            "text": "a\ufffd",
            "structured": {"a\ufffd": ["\ufffd", "\U0001f600"]},
        }
        assert await server.call("refuse") == {"error": "I will not.", "code": "tool_error"}
        assert await server.call("unstorable") == {
            "text": "a\ufffdb",
            "structured": {"a": 1, "error": "no error"},
        }


async def test_a_change_of_the_tools_is_noticed(log: Path) -> None:
    """A removed tool is unknown, and a new one can be used."""
    async with hostile(log) as server:
        await server.call("change")
        found: list[str] = []

        async def listed() -> list[str]:
            found[:] = [spec.name for spec in await server.servers.tools("h")]
            return found

        async with asyncio.timeout(150):
            while "h.new" not in await listed():  # noqa: ASYNC110 - the server's process says when
                await asyncio.sleep(0.01)
        assert "h.hang" not in found
        assert (await server.call("hang"))["code"] == "unknown_tool"
        assert await server.call("new") == {"text": "did new"}


async def test_a_server_gets_only_the_variables_that_it_was_promised(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's keys are not passed to the server."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with hostile(log, env={"WANTED": "yes"}) as server:
        found: dict[str, Any] = json.loads((await server.call("env"))["text"])

    assert found["WANTED"] == "yes"
    assert "OPENAI_API_KEY" not in found


async def test_only_tools_of_the_allowlist_exist(log: Path) -> None:
    """Tools that are not on the allowlist are neither listed nor served."""
    async with hostile(log, allow=frozenset({"echo"})) as server:
        names = [spec.name for spec in await server.servers.tools("h")]

        assert names == ["h.echo"]
        assert not server.servers.serves("h.crash")
        assert (await server.call("crash"))["code"] == "unknown_tool"


async def test_a_program_that_is_not_there_is_a_server_that_is_lost(log: Path) -> None:
    """The tools of a missing program return an error, and listing them raises."""
    async with hostile(log) as server:
        other = type(server.servers)(
            [
                ServerConfig(
                    name="gone",
                    command=("/no/such/program",),
                    timeout_seconds=1,
                    progress_timeout_seconds=1,
                    start_timeout_seconds=1,
                    max_message_bytes=1000,
                )
            ]
        )
        with pytest.raises(ServerUnavailableError, match="gone"):
            await other.tools("gone")
        tool = await other.find("gone.any")
        assert (await tool.run({}, CONTEXT))["code"] == "server_lost"
        await other.aclose()


async def test_closing_ends_the_process_by_its_stdin(log: Path) -> None:
    """Closing the server's stdin ends a well-behaved server."""
    async with hostile(log) as server:
        await server.call("echo", text="x")

    assert server.lines("stdin closed")
    assert not alive(server.pids()[0])
