"""Commands of a caller, over HTTP against a service."""

import json
import subprocess
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess

GRAPH = {
    "steps": [
        {
            "id": "double",
            "type": "tool",
            "data": {"tool": "calculator", "args": {"expression": "${default.price} * 2"}},
        }
    ],
    "edges": [],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(module_database_url: str) -> AsyncIterator[ServiceProcess]:
    """Run a service with the built-in planner."""
    async with ServiceProcess(module_database_url) as running:
        yield running


@pytest.fixture
def at(service: ServiceProcess) -> dict[str, str]:
    """Return the environment of a caller of the service."""
    return {"CASEWORKER_URL": service.url}


def caseworker(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_caseworker(*arguments, env=variables)


def test_commands_find_the_service_where_it_is_configured(service: ServiceProcess) -> None:
    """The order is --url, CASEWORKER_URL, then the configured host and port."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    nowhere = {"CASEWORKER_URL": "http://127.0.0.1:9"}

    by_option = caseworker("runs", "--url", service.url, **nowhere)
    by_variable = caseworker("runs", CASEWORKER_URL=service.url, SERVER_PORT="9")
    configured = caseworker("runs", SERVER_HOST=host, CASEWORKER_SERVER_PORT=port)
    lost = caseworker("runs", **nowhere)
    open_port = caseworker("runs", SERVER_PORT="0")

    assert [each.returncode for each in (by_option, by_variable, configured)] == [0, 0, 0]
    assert (lost.returncode, open_port.returncode) == (2, 2)
    assert "http://127.0.0.1:9" in lost.stderr
    assert "CASEWORKER_URL" in open_port.stderr


def test_a_run_takes_an_id_and_limits_and_is_listed(at: dict[str, str]) -> None:
    """Limits work as in a budget, and the list can be read by people and programs."""
    asked = caseworker("run", "2 + 2?", "--run-id", "listed", "--max-tool-calls", "3", **at)
    halted = caseworker("run", "2 + 2?", "--run-id", "halted", "--max-seconds", "0", "--json", **at)
    listed = caseworker("runs", **at)
    as_json = caseworker("runs", "--status", "completed", "--limit", "1", "--json", **at)

    assert asked.stdout == "run     listed\nstatus  completed\nanswer  4\n", asked.stderr
    assert halted.returncode == 3
    assert json.loads(halted.stdout)["stop"]["dimension"] == "seconds"
    rows = [line.split() for line in listed.stdout.splitlines()][:2]
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("case", "halted", "halted"),
        ("case", "completed", "listed"),
    ]
    assert [run["status"] for run in json.loads(as_json.stdout)["runs"]] == ["completed"]


def test_events_are_followed_to_the_end(at: dict[str, str]) -> None:
    """Following can start at any point, and ends with the last event."""
    caseworker("run", "3 + 3?", "--run-id", "followed", **at)

    shown = caseworker("events", "followed", **at).stdout.splitlines()
    parsed = [
        json.loads(line)
        for line in caseworker("events", "followed", "--json", **at).stdout.splitlines()
    ]
    rest = caseworker("events", "followed", "--after", str(len(parsed)), **at)
    unknown = caseworker("events", "nobody", **at)

    assert [event["seq"] for event in parsed] == list(range(1, len(shown) + 1))
    assert parsed[-1]["type"] == "run.completed"
    assert "run.completed" in shown[-1]
    assert (rest.returncode, rest.stdout) == (0, "")
    assert (unknown.returncode, unknown.stdout) == (2, "")


def test_a_run_is_watched_to_its_end(at: dict[str, str]) -> None:
    """A terminal shows a tree, other outputs show lines or JSON; the exit code gives the status."""
    caseworker("run", "4 * 4?", "--run-id", "watched", **at)
    caseworker("run", "4 * 4?", "--run-id", "stopped", "--max-seconds", "0", **at)

    lines = caseworker("watch", "watched", **at)
    stopped = caseworker("watch", "stopped", **at)
    parsed = caseworker("watch", "watched", "--json", **at)
    drawn = caseworker("watch", "watched", **at, FORCE_COLOR="1", COLUMNS="100", LINES="40")

    assert [each.returncode for each in (lines, stopped, parsed, drawn)] == [0, 3, 0, 0]
    assert "tool calculator" in lines.stdout
    assert "answer  16\n" in lines.stdout
    assert "\x1b" not in lines.stdout
    assert "status  halted" in stopped.stdout
    events = [json.loads(line)["type"] for line in parsed.stdout.splitlines()]
    assert (events[0], events[-1]) == ("run.started", "run.completed")
    assert "case watched" in drawn.stdout
    assert "── " in drawn.stdout
    assert "step.started" not in drawn.stdout


def test_a_trace_is_a_tree_beside_a_timeline(at: dict[str, str]) -> None:
    """The trace shows the reason of the stop; the explanation and the snapshot are optional."""
    caseworker("run", "5 * 5?", "--run-id", "traced", **at)
    caseworker("run", "5 * 5?", "--run-id", "cut", "--max-tool-calls", "0", **at)

    drawn = caseworker("trace", "traced", **at)
    cut = caseworker("trace", "cut", **at)
    short = caseworker("trace", "traced", "--max-calls", "2", **at)
    explained = caseworker("trace", "traced", "--explain", **at)
    parsed = json.loads(caseworker("trace", "traced", "--json", **at).stdout)

    [call] = [line for line in drawn.stdout.splitlines() if "tool calculator" in line]
    assert "─ tool calculator" in call
    assert "completed" in call
    assert any(block in call for block in "█▐▌▎▍▋▊▉▕▏")
    assert len([line for line in drawn.stdout.splitlines() if "─ " in line]) == (
        len(parsed["snapshot"]["nodes"]) - 1
    )
    path = {each["node_id"]: each["name"] for each in parsed["analysis"]["critical_path"]}
    *marked, legend = (line for line in drawn.stdout.splitlines() if line.startswith("* "))
    assert "critical path" in legend
    assert len(marked) == len(path) > 0  # calls of no time are on no path
    assert all(any(name in line for name in path.values()) for line in marked)
    assert "Stopped at " in cut.stdout
    assert len([line for line in short.stdout.splitlines() if "─ " in line]) == 1
    assert "more call" in short.stdout
    assert "Where the time went" in explained.stdout


def test_what_is_refused_is_told_in_a_line(at: dict[str, str]) -> None:
    """The line states the error and the remedy, for every command."""

    def told(*arguments: str, **variables: str) -> str:
        ended = caseworker(*arguments, **{**at, **variables})
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        return ended.stderr

    assert "caseworker serve" in told("runs", CASEWORKER_URL="http://127.0.0.1:9")
    assert "CASEWORKER_API_KEY" in told("runs", CASEWORKER_API_KEY="cwk_none.nothing")
    assert "is not a valid URL" in told("runs", "--url", ":::")
    for command in ("watch", "trace", "events"):
        assert "`caseworker runs`" in told(command, "nobody")


def test_a_shell_completes_commands_and_runs(at: dict[str, str]) -> None:
    """Completion of run IDs stays silent if the service does not respond."""
    caseworker("run", "6 * 6?", "--run-id", "complete-me", **at)

    def completed(words: str, **variables: str) -> list[str]:
        asked = {"_CASEWORKER_COMPLETE": "complete_bash", "COMP_WORDS": words}
        position = str(words.count(" "))
        ended = caseworker(**at, **asked, COMP_CWORD=position, **variables)
        assert ended.stderr == ""
        return ended.stdout.split()

    assert completed("caseworker wat") == ["watch"]
    assert completed("caseworker watch complete-") == ["complete-me"]


def test_a_graph_is_validated_and_run_from_a_file(at: dict[str, str], tmp_path: Path) -> None:
    """Each problem is printed with its place."""
    file, broken = tmp_path / "graph.json", tmp_path / "broken.json"
    file.write_text(json.dumps(GRAPH))
    broken.write_text(json.dumps({**GRAPH, "edges": [{"source": "double", "target": "no"}]}))

    valid = caseworker("graph", "validate", str(file), **at)
    invalid = caseworker("graph", "validate", str(broken), **at)
    told = caseworker("graph", "validate", str(broken), "--json", **at)
    nowhere = {"CASEWORKER_URL": "http://127.0.0.1:9"}
    offline = caseworker("graph", "validate", str(broken), "--json", "--offline", **nowhere)
    ran = caseworker(
        "graph", "run", str(file), "--input", '{"price": 21}', "--max-steps", "1", **at
    )
    no_json = caseworker("graph", "run", str(file), "--input", "{price", **at)

    assert (valid.returncode, valid.stdout) == (0, "The graph is valid.\n")
    assert invalid.returncode == 1
    assert json.loads(told.stdout)["problems"][0]["place"] == "edges.0.data"
    assert "edges.0.data" in invalid.stdout
    assert (offline.returncode, json.loads(offline.stdout)) == (1, json.loads(told.stdout))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "status  completed" in ran.stdout
    assert '"value": "42"' in ran.stdout
    assert (no_json.returncode, no_json.stderr.count("\n")) == (2, 1)


def test_the_version_is_shown() -> None:
    """The version is that of the installed package."""
    assert caseworker("--version").stdout == f"caseworker {version('caseworker')}\n"


@pytest.mark.req("002/15.4")
def test_storage_that_grows_without_retention_is_a_warning_of_the_check() -> None:
    """The configuration is still valid, and there is no warning if both periods are set."""
    kept = caseworker("config", "check", RETENTION_RUNS_DAYS="30")
    days = {"RETENTION_RUNS_DAYS": "30", "RETENTION_THREADS_DAYS": "30"}
    cleared = caseworker("config", "check", "--json", **days)

    assert (kept.returncode, cleared.returncode) == (0, 0)
    assert "retention.threads_days: not set; threads are kept until they are deleted" in kept.stdout
    assert "retention.runs_days" not in kept.stdout
    assert json.loads(cleared.stdout)["warnings"] == []


def test_a_variable_that_is_nearly_a_setting_cannot_be_missed() -> None:
    """``config check`` fails, and every command that reads the configuration reports it."""
    miss = {"BUDGET_MAX_SECOND": "3"}
    told = "BUDGET_MAX_SECOND: not a setting; did you mean BUDGET_MAX_SECONDS?"
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x", "LOGGING_LEVEL": "error"}

    checked = caseworker("config", "check", **miss)
    started = caseworker("serve", **miss, **nowhere)
    asked = caseworker("runs", SERVER_PORT="9", **miss)
    fits = caseworker("config", "check")
    linked = caseworker("config", "check", "--json", CASEWORKER_SERVICE_HOST="10.0.0.1")

    assert checked.returncode == 1
    assert told in checked.stdout
    assert told in started.stderr
    assert told in asked.stderr
    assert (fits.returncode, linked.returncode) == (0, 0)
    assert "CASEWORKER_SERVICE_HOST" in json.loads(linked.stdout)["warnings"][0]
