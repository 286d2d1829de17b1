"""A project with own tools: created, served while it changes, explained and examined."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from caseworker.cli import cli
from caseworker.main import doctor
from tests.support.json_client import JsonClient
from tests.support.processes import ChildProcess
from tests.support.service import QUICK, finished

TOOLS = """
import asyncio
from pathlib import Path

from caseworker import tool

VERSION = "old"


@tool
def note() -> str:
    \"\"\"Notes a call.\"\"\"
    with Path("noted").open("a") as file:
        file.write(VERSION)
    return VERSION


@tool
async def pause() -> str:
    \"\"\"Waits for a file.\"\"\"
    Path("waiting").write_text(VERSION)
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return VERSION
"""
GRAPH = {
    "steps": [
        {"id": "first", "type": "tool", "data": {"tool": "note", "args": {}}},
        {"id": "second", "type": "tool", "data": {"tool": "pause", "args": {}}},
    ],
    "edges": [{"source": "first", "target": "second", "data": {"channel": "flow"}}],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a created project, which is the working directory."""
    folder = tmp_path / "project"
    assert caseworker("init", str(folder)).exit_code == 0
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def caseworker(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "120", **env})


def test_a_created_project_passes_its_test_and_is_never_overwritten(project: Path) -> None:
    """The project needs neither a model nor a service, and no file of the template is missing."""
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        check=False,
    )
    (project / "shop.py").write_text("own = 1\n")
    for each in ("Dockerfile", "compose.yaml"):
        (project / each).unlink()
    again = caseworker("init")

    assert tested.returncode == 0, tested.stdout
    assert {".env.example", ".gitignore", ".dockerignore"} <= {e.name for e in project.iterdir()}
    assert again.exit_code == 2
    assert "shop.py: already exists" in again.stderr or "shop.py, tests" in again.stderr
    assert (project / "shop.py").read_text() == "own = 1\n"
    assert not (project / "Dockerfile").exists()


def test_every_setting_is_shown_with_its_source_and_no_secret(project: Path) -> None:
    """A variable replaces the file, and a line of the file replaces the default."""
    env = {"OPENAI_API_KEY": "sk-a-secret", "ADMISSION_MAX_SECONDS": "5"}
    listed = caseworker("config", "show", **env)
    every = json.loads(caseworker("config", "show", "--all", "--json", **env).stdout)
    sources = {each["key"]: (each["value"], each["source"]) for each in every}
    written = (project / "caseworker.yaml").read_text().splitlines()

    assert sources["admission.max_seconds"] == (5, "ADMISSION_MAX_SECONDS")
    assert sources["server.port"] == (8080, "default")
    assert sources["models.small.api_key"][1] == "OPENAI_API_KEY"
    value, source = sources["tools.plugins"]
    assert value[0] in written[int(source.removeprefix("caseworker.yaml:")) - 1]
    assert "sk-a-secret" not in listed.stdout + json.dumps(every)
    assert "server.port" not in listed.stdout
    (project / "config.yaml").touch()
    assert "config.yaml and caseworker.yaml" in caseworker("config", "show").stderr


async def shown(child: ChildProcess, text: str, *, times: int = 1) -> None:
    """Wait until a process has printed a text."""
    async with asyncio.timeout(150):
        while child.stdout.count(text) < times:
            assert child.exit_code is None, child.stdout + child.stderr
            await asyncio.sleep(0.05)


async def written(file: Path, text: str) -> None:
    """Wait until a file contains a text."""

    def contains() -> bool:
        return file.exists() and file.read_text() == text

    async with asyncio.timeout(150):
        while True:
            if contains():
                return
            await asyncio.sleep(0.02)


async def test_a_reload_keeps_the_runs_in_flight_and_survives_errors(
    project: Path, database_url: str
) -> None:
    """A run continues in the new process with the new code, and no finished call is repeated."""
    (project / "shop.py").write_text(TOOLS)
    (project / "agents" / "support.yaml").unlink()
    (project / "caseworker.yaml").write_text(
        "agents: {folder: agents}\ntools: {plugins: ['shop:note', 'shop:pause']}\n"
    )
    env = {**QUICK, "DATABASE_URL": database_url}
    command = ("-m", "caseworker", "dev", "--no-open")
    with ChildProcess.python(*command, env=env, cwd=project) as child:
        await shown(child, "Caseworker listens on ")
        url = child.stdout.split("Caseworker listens on ")[1].split()[0]
        async with JsonClient(url, timeout_seconds=150) as client:
            run = await client.post_run({"run_id": "kept", "kind": "graph", "graph": GRAPH})
            await written(project / "waiting", "old")
            (project / "shop.py").write_text(TOOLS + "\ndef broken(:\n")
            await shown(child, "error: The tool 'shop:note'")
            unharmed = await client.get_run("kept")
            (project / "shop.py").write_text(TOOLS.replace('"old"', '"new"'))
            await shown(child, "Reloaded")
            await written(project / "waiting", "new")
            (project / "go").touch()
            run = await finished(client, "kept")

        assert "SyntaxError: invalid syntax (shop.py, line 26)" in child.stdout
        assert unharmed["status"] == "running"
        assert run["status"] == "completed", run
        assert run["result"]["outputs"]["second"]["default"] == {"value": "new"}
        assert (project / "noted").read_text() == "old"


@pytest.mark.parametrize(
    ("is_installed", "said"),
    [(True, "the built-in planner plans cases"), (False, "pip install 'caseworker[cases]'")],
)
def test_the_doctor_says_what_works_without_a_model(
    module_database_url: str, monkeypatch: pytest.MonkeyPatch, is_installed: bool, said: str
) -> None:
    """Without the extra `cases`, no planner is installed."""
    if not is_installed:
        monkeypatch.setattr(doctor, "Providers", list)
    done = caseworker("doctor", DATABASE_URL=module_database_url, SERVER_PORT="0")

    [line] = [line for line in done.stdout.splitlines() if "models" in line]
    assert said in line
    assert ("planner" in line) == is_installed
    assert "set OPENAI_API_KEY to run agents" in line


def test_the_doctor_says_what_is_wrong_and_what_to_do(
    project: Path, module_database_url: str
) -> None:
    """A broken database does not hide the results of the other checks."""
    healthy = caseworker("doctor", DATABASE_URL=module_database_url, SERVER_PORT="0")
    broken = caseworker(
        *("doctor", "--json"),
        DATABASE_URL="postgresql://nobody@127.0.0.1:1/none",
        TOOLS_PLUGINS="shop:missing",
        SERVER_PORT="0",
    )
    problems = {
        each["check"]: each["detail"] for each in json.loads(broken.stdout) if not each["ok"]
    }
    asked = caseworker(
        *("doctor", "--models"),
        DATABASE_URL=module_database_url,
        SERVER_PORT="0",
        MODELS_SMALL_PROVIDER="openai",
        MODELS_SMALL_BASE_URL="http://127.0.0.1:1/v1",
    )

    assert healthy.exit_code == 0, healthy.stdout
    assert broken.exit_code == asked.exit_code == 1
    assert set(problems) == {"plugins", "database"}
    assert "Connection refused" in problems["database"]
    assert "check that PostgreSQL is running" in problems["database"]
    assert "module 'shop' has no attribute 'missing'" in problems["plugins"]
    assert "problem  model small" in asked.stdout
