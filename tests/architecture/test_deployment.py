"""Checks of the container files that need no container engine."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from caseworker.settings.loader import SHARED_VARIABLES, load_settings
from caseworker.settings.schema import Settings
from caseworker.settings.values import keys_of, variable_of

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OUR_SERVICES = ("migrate", "api", "worker")
NOT_SETTINGS = {"PATH", "PYTHONUNBUFFERED"}


OF_A_PROJECT = ROOT / "app" / "caseworker" / "cli" / "template"


def read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    return content


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read(ROOT / "docker-compose.yml")


def in_container(environment: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables of a container if the user of Compose has set none.

    Compose then omits the variables without a value, and inserts the defaults of the rest.
    """
    return {
        name: re.sub(r"\$\{\w+:-(\w*)\}", r"\1", value)
        for name, value in environment.items()
        if value is not None
    }


def known_variables() -> set[str]:
    return {variable_of(path) for path, _ in keys_of(Settings)} | {*SHARED_VARIABLES}


@pytest.mark.req("card/layout")
def test_services_refer_only_to_what_is_defined(compose: dict[str, Any]) -> None:
    """Every dependency is a service that can meet its condition, and every volume is declared."""
    services = compose["services"]
    assert set(services) == {"database", *OUR_SERVICES}
    for service in services.values():
        for name, dependency in service.get("depends_on", {}).items():
            healthy = dependency["condition"] == "service_healthy"
            assert not healthy or "test" in services[name]["healthcheck"]
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"]


def test_replicas_of_a_service_can_all_have_a_port(compose: dict[str, Any]) -> None:
    """There are as many host ports as replicas, all bound to loopback."""
    api = compose["services"]["api"]
    [published] = api["ports"]
    address, ports, inner = published.split(":")
    first, last = map(int, ports.split("-"))

    assert address == "127.0.0.1"
    assert last - first + 1 == api["deploy"]["replicas"] == 2
    assert int(inner) == Settings().server.port
    assert f"EXPOSE {inner}" in DOCKERFILE


def test_a_created_project_runs_its_containers_as_the_repository_does(
    compose: dict[str, Any],
) -> None:
    """Only the command, the image and the ports of a service may differ."""
    created = read(OF_A_PROJECT / "compose.yaml")
    of_a_service = {"build", "image", "command", "ports", "env_file", "depends_on", "deploy"}

    def remaining(service: Mapping[str, Any]) -> dict[str, Any]:
        return {name: each for name, each in service.items() if name not in of_a_service}

    ours, theirs = (
        remaining(compose["services"]["api"]),
        remaining(created["services"]["caseworker"]),
    )
    variables, of_theirs = ours.pop("environment"), theirs.pop("environment")
    assert theirs == ours
    assert created["services"]["database"] == compose["services"]["database"]
    assert created["volumes"] == compose["volumes"]
    # A project passes on its whole .env, and is a single process.
    passed_on = {name for name, value in variables.items() if value is None}
    assert variables.keys() - of_theirs.keys() == {*passed_on, "SERVER_ADVERTISE_URL"}
    assert of_theirs == {name: variables[name] for name in of_theirs} | {
        "SERVER_ALLOWED_HOSTS": "caseworker"
    }
    assert {each["security_opt"][0] for each in (ours, theirs)} == {"no-new-privileges:true"}
    assert {each["restart"] for each in (ours, theirs)} == {"unless-stopped"}


@pytest.mark.parametrize("file", [ROOT / "docker-compose.yml", OF_A_PROJECT / "compose.yaml"])
def test_shipped_containers_start_without_a_warning(file: Path, tmp_path: Path) -> None:
    """They open their metrics like the API, and pass on no variable that the user has not set."""
    for name, service in read(file)["services"].items():
        if name == "database":
            continue
        loaded = load_settings(in_container(service["environment"]), tmp_path)
        assert loaded.warnings == ()
        assert loaded.settings.auth.anonymous == "anywhere"
        assert loaded.settings.telemetry.metrics == "anywhere"
        assert name == "migrate" or name in (loaded.settings.server.allowed_hosts or ())


def test_containers_are_given_known_settings_only(compose: dict[str, Any], tmp_path: Path) -> None:
    """A renamed setting must be renamed here too, and the values must load."""
    image = dict(
        re.findall(r"^(?:ENV |    )([A-Z_]+)=(\S+)", DOCKERFILE.split("\nFROM ")[-1], re.M)
    )
    assert set(image) - NOT_SETTINGS <= known_variables()
    assert set(re.findall(r"environ\.get\('(?:CASEWORKER_)?(\w+)'\)", DOCKERFILE)) == {
        "SERVER_PORT"
    }
    for name in OUR_SERVICES:
        environment = compose["services"][name]["environment"]
        assert set(environment) <= known_variables()
        settings = load_settings(in_container(environment | image), tmp_path).settings
        assert settings.database.url is not None
        grace = float(compose["services"][name]["stop_grace_period"].removesuffix("s"))
        assert grace > settings.shutdown.grace_seconds


@pytest.mark.parametrize("service", OUR_SERVICES)
def test_a_container_writes_to_its_home_alone(compose: dict[str, Any], service: str) -> None:
    """The root file system is read-only, and the home of the image's user is in memory."""
    ours = compose["services"][service]
    [home] = ours["tmpfs"]

    assert ours["read_only"] is True
    assert f"--home-dir {home} " in DOCKERFILE


@pytest.mark.parametrize("service", OUR_SERVICES)
def test_every_command_is_one_of_the_cli(compose: dict[str, Any], service: str) -> None:
    """All options exist; the test adds `--help`, so that the command does nothing."""
    words = compose["services"][service]["command"]
    asked = subprocess.run(
        [sys.executable, "-c", "from caseworker.cli import main; main()", *words, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )

    assert asked.returncode == 0, asked.stderr


def test_the_image_starts_the_service_itself() -> None:
    """It uses the exec form, so that signals reach the service, and an unprivileged user."""
    last_stage = DOCKERFILE.split("\nFROM ")[-1]

    assert 'ENTRYPOINT ["caseworker"]' in last_stage
    assert 'CMD ["serve"]' in last_stage
    assert "curl" not in DOCKERFILE


@pytest.mark.parametrize("file", [ROOT / "Dockerfile", OF_A_PROJECT / "Dockerfile"])
def test_the_user_of_an_image_is_a_number(file: Path) -> None:
    """Kubernetes compares only numbers with `runAsNonRoot`; 10001 is the user of the manifests."""
    instructions = file.read_text("utf-8").splitlines()
    users = [line for line in instructions if line.startswith("USER ")]

    assert users[-1] == "USER 10001"
    assert " --uid 10001 " in DOCKERFILE
    assert not [line for line in instructions if line.startswith("# syntax=")]


def test_the_health_check_is_a_program_that_compiles() -> None:
    """It can run only inside a container, but it must at least be valid Python."""
    [code] = re.findall(r'CMD \["python", "-c", "(.*)"\]', DOCKERFILE)

    compile(code, "healthcheck", "exec")
    assert "/readyz" in code


def test_the_image_is_built_with_the_locked_uv() -> None:
    """The same uv version reads the lock everywhere."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
    [locked] = [package["version"] for package in packages if package["name"] == "uv"]

    assert f"ARG UV_VERSION={locked}\n" in DOCKERFILE


def test_an_installation_compiles_the_service() -> None:
    """Uv compiles all packages but editable ones, and the user of the image writes no bytecode."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]

    assert settings["compile-bytecode"] is True
    assert "uv sync --locked --no-dev --no-editable" in DOCKERFILE
    for package in ("caseworker", "caseworker-cases"):
        assert f"--refresh-package {package} " in DOCKERFILE


def test_the_image_says_what_it_is() -> None:
    """OCI labels give the version, description and licence of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    last_stage = DOCKERFILE.split("\nFROM ")[-1]
    values = dict(re.findall(r"^ARG (\w+)=(\S*)$", last_stage, re.M))
    labels = {
        name: re.sub(r"\$\{(\w+)\}", lambda argument: values[argument[1]], text)
        for name, text in re.findall(r'org\.opencontainers\.image\.(\w+)="(.*?)"', last_stage)
    }

    assert labels == {
        "title": project["name"],
        "description": project["description"],
        "version": project["version"],
        "revision": '""',
        "source": '""',
        "licenses": project["license"],
    }


def test_the_dependencies_are_listed_and_an_audit_that_cannot_be_made_fails(
    tmp_path: Path,
) -> None:
    """`make sbom` and `make audit` run here without a reachable audit service."""

    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--silent", f"-o{ROOT / '.venv/.synced'}", *arguments]
        env = {**os.environ, "UV_HTTP_RETRIES": "0", "NO_PROXY": "127.0.0.1"}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)

    listed = make("sbom", f"SBOM={tmp_path / 'sbom.json'}")
    audited = make("audit", "ARGS=--service-url http://127.0.0.1:9")
    components = json.loads((tmp_path / "sbom.json").read_text("utf-8"))["components"]

    assert listed.returncode == 0, listed.stderr
    assert {"fastapi", "httpx"} <= {each["name"] for each in components}
    assert "pytest" not in {each["name"] for each in components}
    assert audited.returncode != 0
    assert "127.0.0.1:9" in audited.stderr


def test_every_file_that_is_copied_is_let_through() -> None:
    """`.dockerignore` excludes every file that it does not name."""
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M)
        for source in shlex.split(line)[:-1]
    ]

    assert copied
    assert ignored[0] == "*"
    for source in copied:
        folders = [source, *map(str, PurePosixPath(source).parents)]
        assert any(f"!{each}" in ignored for each in folders)
