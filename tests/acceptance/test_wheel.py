"""The installed service: complete wheels, outside any source tree."""

import asyncio
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from urllib.request import urlopen
from zipfile import ZipFile

import httpx
import pytest

from tests.support.database import TestServer
from tests.support.fake_provider.client import FakeProvider
from tests.support.processes import ChildProcess
from tests.support.service import ServiceProcess, finished, model_settings

ROOT = Path(__file__).parents[2]
CASES = ROOT / "app" / "caseworker_cases"
PROJECTS = [
    tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    for folder in (ROOT, CASES)
]
PROJECT = PROJECTS[0]
UV = Path(sys.executable).parent / "uv"

RUN_IDS = ("waits", "unwanted")

pytestmark = pytest.mark.proof


def uv(*arguments: str | Path) -> None:
    ended = subprocess.run([UV, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with only the wheels of the service and of cases, built from sdists."""
    folder = tmp_path_factory.mktemp("wheel")
    for project in (ROOT, CASES):
        uv("build", "--quiet", "--out-dir", folder / "dist", project)
    wheels = (folder / "dist").glob("*.whl")
    target = ("--target", folder / "installed", "--python", sys.executable)
    uv("pip", "install", "--quiet", "--offline", "--no-deps", *target, *wheels)
    return folder / "installed"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with only the wheel, without any extra."""
    folder = tmp_path_factory.mktemp("bare")
    uv("build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT)
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    programs = folder / "venv" / "bin"
    [wheel] = (folder / "dist").glob("*.whl")
    uv("pip", "install", "--quiet", "--python", programs / "python", wheel)
    return programs


@pytest.fixture
def environment(installed: Path) -> dict[str, str]:
    """Return the environment of a shell in which the wheel precedes other installed packages."""
    return {**os.environ, "PYTHONPATH": str(installed), "AUTH_ANONYMOUS": "loopback"}


@pytest.fixture
def empty_database_url(postgres: TestServer) -> Iterator[str]:
    """Return the URL of a database without tables."""
    with postgres.empty_database() as url:
        yield url


def test_they_hold_all_files_and_entry_points(installed: Path) -> None:
    """The wheels have the packages, migrations, pages and styles, but no tests."""
    tracked = subprocess.run(
        ["git", "ls-files", "app", "migrations"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    points = ConfigParser()
    points.optionxform = str  # type: ignore[assignment,method-assign]
    for metadata in installed.glob("*.dist-info"):
        assert "Project-URL: Homepage, https://" in (metadata / "METADATA").read_text()
        points.read_string((metadata / "entry_points.txt").read_text("utf-8"))

    assert "app/caseworker/ui/static/app.js" in tracked
    about_cases = {"LICENSE", "README.md", "pyproject.toml"}
    places = [
        each.removeprefix("app/") if each.startswith("app/") else f"caseworker/{each}"
        for each in tracked
        if each not in {f"app/caseworker_cases/{name}" for name in about_cases}
    ]
    assert [each for each in places if not (installed / each).is_file()] == []
    assert not any((installed / "caseworker_cases" / each).exists() for each in about_cases)
    assert not any((installed / top).exists() for top in ("app", "migrations"))
    assert dict(points["console_scripts"]) == PROJECT["scripts"]
    groups = [group for project in PROJECTS for group in project["entry-points"].items()]
    assert len(groups) == 6
    declared: dict[str, dict[str, str]] = {}
    for group, named in groups:
        declared.setdefault(group, {}).update(named)
    assert {group: dict(points[group]) for group in declared} == declared
    assert not (installed / "tests").exists()


def test_each_wheel_has_packages_of_its_own(installed: Path) -> None:
    """The service comes with its client; cases are a wheel of their own."""
    packages = {}
    for wheel in (installed.parent / "dist").glob("*.whl"):
        with ZipFile(wheel) as archive:
            tops = {each.partition("/")[0] for each in archive.namelist()}
        packages[wheel.name.partition("-")[0]] = {each for each in tops if "." not in each}

    assert packages == {
        "caseworker": {"caseworker", "caseworker_client"},
        "caseworker_cases": {"caseworker_cases"},
    }


def test_cases_require_the_service_of_the_same_version() -> None:
    """Cases use internal modules of the service, and the extra installs only that version."""
    service, cases = PROJECTS
    assert cases["version"] == service["version"]
    assert cases["requires-python"] == service["requires-python"]
    assert f"caseworker=={service['version']}" in cases["dependencies"]
    assert service["optional-dependencies"]["cases"] == [f"caseworker-cases=={cases['version']}"]
    assert (CASES / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_it_migrates_serves_and_runs_a_case(
    environment: dict[str, str], empty_database_url: str, installed: Path, tmp_path: Path
) -> None:
    """The installed wheel runs far from its sources, with the installed dependencies."""
    script = installed / "bin" / "caseworker"
    said = subprocess.run(
        [sys.executable, script, "--version"], env=environment, cwd=tmp_path, capture_output=True
    )
    where = "import caseworker; print(caseworker.__file__)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", where], env=environment, cwd=tmp_path, capture_output=True
    )
    serving = {**environment, "DATABASE_URL": empty_database_url, "SERVER_PORT": "0"}
    with ChildProcess.python(str(script), "serve", "--demo", env=serving, cwd=tmp_path) as child:
        until = time.monotonic() + 600
        while "Ctrl+C" not in child.stdout:
            assert child.exit_code is None, child.stderr
            assert time.monotonic() < until, child.stdout + child.stderr
            time.sleep(0.1)
        url = child.stdout.split("Caseworker listens on ")[1].split()[0]
        with urlopen(f"{url}/ui/static/app.js", timeout=600) as page:  # noqa: S310
            sent = page.read()
        shown = child.stdout

    assert said.stdout.decode() == f"caseworker {PROJECT['version']}\n", said.stderr
    assert all(path.startswith(f"{installed}/") for path in found.stdout.decode().split())
    assert "answer    397.8" in shown
    assert sent == (ROOT / "app/caseworker/ui/static/app.js").read_bytes()


def test_without_extras_it_serves_all_but_cases(
    bare: Path, empty_database_url: str, tmp_path: Path, provider: FakeProvider
) -> None:
    """Without extras, cases are refused with the name of the extra, and agents run."""
    clean = {"PATH": os.environ["PATH"], "AUTH_ANONYMOUS": "loopback", "SERVER_PORT": "0"}
    python, script = str(bare / "python"), str(bare / "caseworker")
    no_database = subprocess.run(
        [python, script, "serve"], env=clean, cwd=tmp_path, capture_output=True, text=True
    )
    models = model_settings(provider.openai_url)
    serving = {**clean, **models, "DATABASE_URL": empty_database_url}
    collected = {**serving, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    no_otel = subprocess.run(
        [python, script, "serve", "--migrate"],
        env=collected,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    command = (python, "-u", script, "serve", "--migrate")
    with ChildProcess(command, env=serving, cwd=tmp_path) as child:
        until = time.monotonic() + 600
        while "Caseworker listens on " not in child.stdout:
            assert child.exit_code is None, child.stderr
            assert time.monotonic() < until, child.stdout + child.stderr
            time.sleep(0.1)
        url = child.stdout.split("Caseworker listens on ")[1].split()[0]
        refused = httpx.post(f"{url}/runs", json={"input": "What is 6 * 7?"}, timeout=600)
        agent = {"name": "a", "prompt": {"system": "Answer."}}
        ran = httpx.post(
            f"{url}/runs",
            json={"kind": "agent", "agent": agent, "input": "Hello"},
            headers={"Prefer": "wait=60"},
            timeout=600,
        )

    doctor = subprocess.run(
        [python, script, "doctor"],
        env={**clean, "DATABASE_URL": empty_database_url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert "pip install 'caseworker[cases]' adds cases" in doctor.stdout
    assert "planner" not in doctor.stdout
    assert "unknown provider" not in doctor.stdout
    assert no_database.returncode == no_otel.returncode == 2
    assert "pip install 'caseworker[embedded]'" in no_database.stderr + no_database.stdout
    assert "pip install 'caseworker[otel]'" in no_otel.stderr + no_otel.stdout
    assert refused.status_code == 422
    [fault] = refused.json()["errors"]
    assert fault["field"] == "kind"
    assert "pip install 'caseworker[cases]'" in fault["message"]
    assert (ran.status_code, ran.json()["status"]) == (200, "completed"), ran.text


async def test_a_stored_case_waits_in_an_environment_without_its_package(
    bare: Path, empty_database_url: str, tmp_path: Path
) -> None:
    """The service of the wheel shows and cancels cases of a complete service, and claims none."""
    async with (
        ServiceProcess(empty_database_url, "--no-worker", "--migrate") as full,
        full.client() as client,
    ):
        for run_id in RUN_IDS:
            await client.post_run({"run_id": run_id, "input": "What is 6 * 7?"})
    clean = {"PATH": os.environ["PATH"], "AUTH_ANONYMOUS": "loopback", "SERVER_PORT": "0"}
    command = (str(bare / "python"), "-u", str(bare / "caseworker"), "serve")
    route = {"when": {"path": "default", "op": "ge", "value": 1}, "to": "next"}
    step = {"id": "a", "type": "router", "data": {"routes": [route]}}
    graph = {"kind": "graph", "graph": {"steps": [step], "edges": []}, "input": 1}
    env = {**clean, "DATABASE_URL": empty_database_url}
    with ChildProcess(command, env=env, cwd=tmp_path) as child:
        until = time.monotonic() + 600
        while "Caseworker listens on " not in child.stdout:
            assert child.exit_code is None, child.stderr
            assert time.monotonic() < until, child.stdout + child.stderr
            await asyncio.sleep(0.1)
        url = child.stdout.split("Caseworker listens on ")[1].split()[0]
        async with httpx.AsyncClient(base_url=url, timeout=600) as client_of_bare:
            ran = await client_of_bare.post("/runs", json=graph, headers={"Prefer": "wait=60"})
            cancelled = await client_of_bare.delete("/runs/unwanted")
            runs = {name: (await client_of_bare.get(f"/runs/{name}")).json() for name in RUN_IDS}
        complaints = child.stderr
    async with ServiceProcess(empty_database_url) as full, full.client() as client:
        ended = await finished(client, "waits")

    assert (ran.status_code, ran.json()["status"]) == (200, "completed"), ran.text
    assert cancelled.status_code == 202, cancelled.text
    assert [(run["kind"], run["status"]) for run in runs.values()] == [
        ("case", "queued"),
        ("case", "cancelled"),
    ]
    assert "2 runs wait for a process that has it" in complaints
    assert "run.declined" not in complaints
    assert (ended["status"], ended["result"]["answer"]) == ("completed", "42")


def test_a_project_is_created_and_tested_with_the_wheel_alone(bare: Path, tmp_path: Path) -> None:
    """The templates and the client are part of the wheel, so no other package of ours is needed."""
    clean = {"PATH": os.environ["PATH"]}
    uv("pip", "install", "--quiet", "--python", bare / "python", "pytest")

    def ended(*command: str) -> subprocess.CompletedProcess[str]:
        program = [str(bare / command[0]), *command[1:]]
        return subprocess.run(program, env=clean, cwd=tmp_path, capture_output=True, text=True)

    created = ended("caseworker", "init")
    tested = ended("pytest", "-q")
    checked = ended("caseworker", "config", "check")

    assert created.returncode == 0, created.stderr
    assert tested.returncode == 0, tested.stdout
    assert checked.returncode == 0, checked.stderr
