"""The log and a metric say which step or request held the event loop."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from caseworker.main import loop_watch
from caseworker.nodes import router
from tests.support.tenants import Tenants, open_tenants

NAMES_IT = sys.version_info >= (3, 13)
"""Older versions cannot safely read the context variables of another thread."""
ROUTES = [{"when": {"path": "default", "op": "exists"}, "to": "a"}]
GRAPH = {"steps": [{"id": "slow", "type": "router", "data": {"routes": ROUTES}}], "edges": []}


def hold(*_: Any) -> Any:
    time.sleep(0.4)
    return {}


async def line_about(tenants: Tenants, **wanted: Any) -> dict[str, Any]:
    """Wait for a log line ``loop.held`` with some fields."""
    with capture_logs() as lines:
        body = {"kind": "graph", "graph": GRAPH, "inputs": {"default": 1}}
        await tenants.ask("a", "POST", "/runs", body, prefer="wait=30")
        await tenants.ask("a", "GET", "/runs?metadata.a=1")
        async with asyncio.timeout(600):
            while True:
                for line in lines:
                    if line["event"] == "loop.held" and wanted.items() <= line.items():
                        return dict(line)
                await asyncio.sleep(0.01)


async def test_a_step_that_holds_the_loop_is_logged_with_its_run(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the step, the seconds and the line of code."""
    monkeypatch.setattr(router.RouterData, "chosen_handles", lambda *_: list(hold()))
    async with open_tenants(database_url, executes=True) as tenants:
        line = await line_about(tenants, kind="step")
        metrics = (await tenants.client.get("/metrics")).text

    if NAMES_IT:
        assert (bool(line["run_id"]), line["step_id"]) == (True, "slow")
    assert line["seconds"] >= 0.1
    assert line["detail"].startswith("caseworker.nodes.router:")
    assert 'caseworker_event_loop_holds_total{by="step"} 1.0' in metrics


async def test_a_request_that_holds_the_loop_is_logged_with_its_route(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the method and the route but no data of the caller."""
    monkeypatch.setattr("caseworker.runs.http.runs.metadata_filter", hold)
    async with open_tenants(database_url) as tenants:
        line = await line_about(tenants, kind="request")

    assert line["detail"].startswith("caseworker.runs.http.")
    if NAMES_IT:
        assert (line["method"], line["route"]) == ("GET", "/runs")


async def test_the_wait_for_a_processor_is_no_hold(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that was ready but did not run is not logged; one that ran for as long is."""
    reads: list[float] = []

    def waits_a_second(_: int) -> float:
        reads.append(len(reads))
        return reads[-1]

    def late(*_: Any) -> Any:
        while not reads:
            time.sleep(0.01)
        hold()
        late_at.append(len(reads))
        return {}

    late_at: list[int] = []
    async with open_tenants(database_url) as tenants:
        with capture_logs() as lines, monkeypatch.context() as machine:
            machine.setattr("caseworker.runs.http.runs.metadata_filter", late)
            machine.setattr(loop_watch, "_processor_wait_seconds", waits_a_second)
            await tenants.ask("a", "GET", "/runs?metadata.a=1")
            while len(reads) <= late_at[0]:  # noqa: ASYNC110 - a thread reads
                await asyncio.sleep(0.01)
        assert not [line for line in lines if line["event"] == "loop.held"]
        monkeypatch.setattr("caseworker.runs.http.runs.metadata_filter", hold)
        await line_about(tenants, kind="request")
        metrics = (await tenants.client.get("/metrics")).text

    assert 'caseworker_event_loop_holds_total{by="request"} 1.0' in metrics


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count the waits"
)
def test_the_wait_for_a_processor_is_read() -> None:
    """It grows while another process runs on the only processor that this thread may use."""
    mine = threading.get_native_id()
    allowed = os.sched_getaffinity(mine)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for each in (mine, busy.pid):
            os.sched_setaffinity(each, {min(allowed)})
        before = loop_watch._processor_wait_seconds(mine)
        while loop_watch._processor_wait_seconds(mine) < before + 0.05:
            pass
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(mine, allowed)
