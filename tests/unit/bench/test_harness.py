"""Discovery, measurement and reports of the benchmark rows."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench import report
from bench.environments import own_environment, worker
from bench.figures import Check, Figure, Samples, Target
from bench.harness import Effort, Row, find_rows, interleaved
from bench.machine import this_machine
from bench.servers import cpu_seconds


async def test_sides_take_turns_and_the_first_round_is_not_counted() -> None:
    """Sides alternate, so disturbances affect both, and the warm-up round is not counted."""
    turns: list[str] = []

    async def side_a() -> float:
        turns.append("A")
        return float(len(turns))

    async def side_b() -> float:
        turns.append("B")
        return float(len(turns))

    measured = await interleaved({"a": side_a, "b": side_b}, rounds=2)

    assert "".join(turns) == "ABABAB"
    assert measured == {"a": Samples((3.0, 5.0)), "b": Samples((4.0, 6.0))}


def test_every_row_names_what_it_measures_and_pins_its_peers() -> None:
    """Each row has a title and pinned versions of its peers."""
    rows = find_rows()

    assert {"callnode_life", "graph_snapshot", "graph_snapshot_large"} <= rows.keys()
    assert all(row.title for row in rows.values())
    assert all("==" in peer for row in rows.values() for peer in row.peers)


def test_a_quick_effort_is_a_smaller_one() -> None:
    """A quick run has fewer rounds and smaller sizes."""
    assert Effort(quick=True).rounds < Effort().rounds
    assert (Effort().choose(100, 3), Effort(quick=True).choose(100, 3)) == (100, 3)


async def test_a_worker_that_dies_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """The error names the worker and the failed question; its traceback is on standard error."""
    async with worker(own_environment(), "bare_records") as floor:
        with pytest.raises(RuntimeError, match="bare_records died of weigh"):
            await floor.ask("weigh")

    assert "KeyError: 'weigh'" in capfd.readouterr().err


async def test_both_call_graph_questions_run_on_this_projects_graph() -> None:
    """Each question about the call graph has an answer, even for a tiny graph."""
    async with worker(
        own_environment(), "call_graph", ["caseworker.core.trace.execution_graph"]
    ) as graph:
        for question in ("life", "snapshot", "lock_held", "changes"):
            assert float(await graph.ask(question, nodes=5)) >= 0
        for way in ("dict_in_thread", "json_in_thread", "parts_in_thread", "parts_on_loop"):
            assert await graph.ask("delays", nodes=5, way=way)


def test_a_report_says_how_each_target_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report shows each target's grade in a table and in JSON."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    check = Check(what="against peer", value=0.5, target=Target(must=0.6, stretch=0.4))
    sides = {"caseworker": Samples((1.0, 2.0)), "peer": Samples((2.0, 4.0))}
    figure = Figure(title="Life", unit="us", sides=sides, checks=[check])

    async def measure(effort: Effort) -> list[Figure]:
        return [figure]

    row = Row(title="CallNode life", peers=("peer==1.0",), measure=measure)
    out = io.StringIO()

    report.show_row(Console(file=out, width=100), row, [figure])
    path = report.write_results(this_machine(), {"life": (row, [figure])})

    assert "against peer: 0.5x (must <= 0.6x, stretch <= 0.4x) reached" in out.getvalue()
    written = json.loads(path.read_text())
    assert written["machine"]["cores"] >= 1
    assert written["rows"]["life"]["peers"] == ["peer==1.0"]
    assert written["rows"]["life"]["figures"][0]["checks"][0]["grade"] == "reached"
    assert written["rows"]["life"]["figures"][0]["sides"]["peer"]["median"] == 3.0


def test_cpu_of_a_server_includes_children_that_have_ended() -> None:
    """CPU time includes ended children, because Postgres uses one process per connection."""

    def process(own: float, ended: float, children: list[Any]) -> Any:
        times = SimpleNamespace(user=own, system=own, children_user=ended, children_system=ended)
        return SimpleNamespace(cpu_times=lambda: times, children=lambda: children)

    server = process(1, ended=10, children=[process(100, ended=0, children=[])])

    assert cpu_seconds(server, below=True) == 222
    assert cpu_seconds(server) == 2
