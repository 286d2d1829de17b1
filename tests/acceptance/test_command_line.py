"""Commands of a caller, over HTTP against a service."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path

import pytest
import pytest_asyncio
from caseworker_client import AsyncCaseworkerClient

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import ChildProcess, caseworker
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import eventually

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


NOWHERE = {"CASEWORKER_URL": "http://127.0.0.1:9"}
WRONG: dict[str, str | tuple[str, dict[str, str]]] = {
    "runs": ("or set its URL with --url or CASEWORKER_URL", NOWHERE),
    "graphs list": ("`caseworker serve`", NOWHERE),
    "tools list": ("Set CASEWORKER_API_KEY to another", {"CASEWORKER_API_KEY": "cwk_none.no"}),
    "runs --url :::": "is not a valid URL",
    "runs --url 127.0.0.1:8080": "is not a valid URL",
    "rnus": "Did you mean 'runs'? See `caseworker --help`.",
    "agents lst": "Did you mean 'list'? See `caseworker agents --help`.",
    "runs --limt 3": "Did you mean --limit? See `caseworker runs --help`.",
    "runs --limit 0": "0 is not in the range",
    "runs --metadata ticket": "must be KEY=VALUE",
    "run": "Missing argument",
    "run x --max-seconds -1": "'--max-seconds': -1.0 is not in the range",
    "run x --max-cost-usd nan": "--max-cost-usd: must be a number",
    "run x --max-tokens 99999999999999999999": "--max-tokens: must be a number",
    "watch nobody": "`caseworker runs`",
    "events nobody": "`caseworker runs`",
    "trace nobody": "`caseworker runs`",
    "threads show nobody": "`caseworker threads list`",
    "agents show nobody@2": "`caseworker agents list`",
    "agents show clerk@two": "must be a number, such as clerk@2",
    "agents run nobody": "`caseworker agents list`",
    "agents run no-file.yaml": "File not found: 'no-file.yaml'",
    "graphs run no-file.json": "no-file.json: No such file",
    "graphs validate {broken}": "is not valid JSON: Expecting property name enclosed in double "
    "quotes: line 2 column 3",
    "graphs register x {binary}": "is not valid JSON",
    "tools call calculator {{": "ARGUMENTS is not valid JSON",
    "tools show calculatr": "Did you mean 'calculator'?",
    "models test smal": "Did you mean 'small'?",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_command_line_gets_one_line_that_says_what_to_do(
    words: str, at: dict[str, str], tmp_path: Path
) -> None:
    """The exit code is 2, and standard output is empty."""
    files = {"broken": tmp_path / "broken.json", "binary": tmp_path / "binary.json"}
    files["broken"].write_text('{"steps": [],\n  }')
    files["binary"].write_bytes(b"\xff\xfe")
    given = WRONG[words]
    text, env = (given, {}) if isinstance(given, str) else given

    ended = caseworker(*words.format_map(files).split(), **{**at, **env})

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert text in ended.stderr


@pytest.mark.asyncio(loop_scope="module")
async def test_an_interrupted_command_exits_with_130(at: dict[str, str]) -> None:
    """It prints nothing to standard error."""
    graph = {"steps": [{"id": "a", "type": "approval", "data": {"message": "?"}}], "edges": []}
    async with AsyncCaseworkerClient(at["CASEWORKER_URL"]) as client:
        await client.run_graph(graph, run_id="asleep")
    with ChildProcess.service("events", "asleep", env=at, name="events") as child:

        async def follows() -> bool:
            return "run.started" in child.stdout

        await eventually(follows)
        child.signal(signal.SIGINT)

        assert (await child.wait(), child.stderr) == (130, "")


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
    assert completed("caseworker threads s") == ["show", "send"]


def test_the_completion_that_is_shown_for_bash_works_in_bash() -> None:
    """Bash calls the function with the words of the command line."""
    program = Path(sys.executable).with_name("caseworker")
    script = f"""
        eval "$({program} --show-completion bash)"
        COMP_WORDS=({program} schedules p) COMP_CWORD=2
        _caseworker_completion {program}
        echo "${{COMPREPLY[@]}}"
    """

    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True)

    assert (shown.stdout, shown.stderr) == ("pause\n", "")


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


def test_agents_and_graphs_are_registered_listed_run_and_deleted(
    at: dict[str, str], tmp_path: Path
) -> None:
    """A name selects the newest version; NAME@VERSION selects one."""
    agent, graph = tmp_path / "agent.json", tmp_path / "graph.json"
    agent.write_text(json.dumps({"name": "filed", "prompt": {"system": "Answer."}}))
    graph.write_text(json.dumps(GRAPH))

    registered = caseworker("agents", "register", str(agent), **at)
    listed = caseworker("agents", "list", **at)
    shown = caseworker("agents", "show", "filed@1", **at)
    deleted = caseworker("agents", "delete", "filed", **at)
    caseworker("graphs", "register", "doubling", str(graph), **at)
    ran = caseworker("graphs", "run", "doubling@1", "--input", '{"price": 21}', **at)
    page = caseworker("graphs", "list", "--limit", "1", "--json", **at)
    removed = caseworker("graph", "delete", "doubling", **at)

    assert registered.stdout == "Registered agent filed, version 1.\n", registered.stderr
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [["filed", "1"]]
    assert json.loads(shown.stdout)["agent"]["prompt"] == {"system": "Answer."}
    assert deleted.stdout == "Deleted agent filed.\n"
    assert '"value": "42"' in ran.stdout
    assert [each["name"] for each in json.loads(page.stdout)["graphs"]] == ["doubling"]
    assert removed.stdout == "Deleted graph doubling.\n"


def test_a_schedule_is_created_paused_resumed_triggered_and_deleted(at: dict[str, str]) -> None:
    """A triggered schedule creates a run with its budget."""
    called = ("schedules", "create", "nightly", "0 3 * * *", "1 + 1?", "--max-seconds", "9")
    made = caseworker(*called, **at)
    paused = caseworker("schedules", "pause", "nightly", **at)
    listed = caseworker("schedules", "list", "--json", **at)
    resumed = caseworker("schedules", "resume", "nightly", **at)
    ran = json.loads(caseworker("schedules", "trigger", "nightly", "--json", **at).stdout)
    deleted = caseworker("schedules", "delete", "nightly", **at)
    empty = caseworker("schedules", "list", **at)
    neither = caseworker("schedules", "create", "nothing", "0 3 * * *", **at)

    assert made.stdout.startswith("nightly  0 3 * * *  UTC  no "), made.stderr
    assert paused.stdout == "Schedule nightly is paused.\n"
    assert [each["paused"] for each in json.loads(listed.stdout)["schedules"]] == [True]
    assert resumed.stdout.startswith("Schedule nightly: next at ")
    assert ran["limits"]["max_seconds"] == 9
    assert (deleted.stdout, empty.stdout) == ("Deleted schedule nightly.\n", "")
    assert (neither.returncode, neither.stdout) == (2, "")


def test_threads_tools_models_and_artifacts_are_listed(at: dict[str, str]) -> None:
    """Lists of other resources have one line for each item, and JSON with --json."""
    thread = caseworker("threads", "create", "nobody", "--id", "chat", **at)
    tools = caseworker("tools", "list", **at)
    tool = json.loads(caseworker("tools", "show", "calculator", **at).stdout)
    called = caseworker("tools", "call", "calculator", '{"expression": "6 * 7"}', **at)
    models = json.loads(caseworker("models", "list", "--json", **at).stdout)["models"]
    caseworker("run", "8 + 8?", "--run-id", "fileless", **at)
    files = json.loads(caseworker("artifacts", "list", "fileless", "--json", **at).stdout)
    missing = caseworker("artifacts", "download", "fileless", "plot.png", **at)

    assert "`caseworker agents list`" in thread.stderr
    assert tool["name"] in {line.split()[0] for line in tools.stdout.splitlines()}
    assert '"value": "42"' in called.stdout
    assert models["small"]["provider"] == "offline"
    assert files == {"artifacts": []}
    assert "`caseworker artifacts list RUN`" in missing.stderr


@pytest.mark.asyncio(loop_scope="module")
async def test_an_endpoint_is_tested_for_what_works_with_it(tmp_path: Path) -> None:
    """The table shows what works; the exit code is 1 if the endpoint gives no answer."""
    async with FakeProvider() as provider:
        env = {**model_settings(provider.openai_url), "OPENAI_API_KEY": "key"}
        call = {"id": "1", "name": "get_capital", "arguments": '{"country": "France"}'}
        await provider.script("Call the tool", [Step(tool_calls=[call])])
        checked = await asyncio.to_thread(caseworker, "models", "test", "small", "--json", **env)
        await provider.answer_by_default(Step(status=401))
        refused = await asyncio.to_thread(caseworker, "models", "test", "small", **env)

    checks = json.loads(checked.stdout)["checks"]
    assert checked.returncode == 0
    assert {each["capability"]: each["works"] for each in checks} == {
        "plain answer": True,
        "usage of plain answer": True,
        "streaming": True,
        "usage of streaming": True,
        "tools": True,
        "JSON schema": False,  # the answer is "ok"
    }
    assert (refused.returncode, refused.stdout.count("\n")) == (1, 1)
    assert "401" in refused.stdout


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
