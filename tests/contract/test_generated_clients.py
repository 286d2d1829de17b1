"""Generated clients work with the service whose OpenAPI document they come from.

The programs in ``generated_clients`` show how a caller uses them: they post, wait, follow events,
cancel and read traces. The type checker of its language checks each program, and then it is
executed.
"""

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.npm_packages import installed_packages
from tests.support.npm_packages import node as node_command
from tests.support.service import ServiceProcess, model_settings

SOURCES = Path(__file__).parent / "generated_clients"
KEY = "operator-" + "7" * 32
PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "0.17 * 2340"}}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[ServiceProcess]:
    """Run a service whose model answers one question and hangs at the other."""
    settings = {**model_settings(running_provider.openai_url), "AUTH_BOOTSTRAP_KEY": KEY}
    async with ServiceProcess(module_database_url, settings=settings) as running:
        await running_provider.script("17%", [Step(plan=PLAN)], repeat_last=True)
        await running_provider.script("slow", [Step(hang=True)], repeat_last=True)
        yield running


@pytest.fixture
def folder(service: ServiceProcess, tmp_path: Path) -> Path:
    """Return a folder with the OpenAPI document, in which a client is generated."""
    answer = httpx.get(f"{service.url}/openapi.json", trust_env=False, timeout=600)
    (tmp_path / "openapi.json").write_text(answer.text)
    return tmp_path


def run(*command: str | Path, cwd: Path) -> None:
    """Run a program and fail with its output if its exit code is not 0."""
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.proof
def test_a_client_of_openapi_python_client_is_strictly_typed_and_works(
    service: ServiceProcess, folder: Path
) -> None:
    """The generator prints no warning."""
    (folder / "config.yaml").write_text("package_name_override: generated_client\npost_hooks: []")
    shutil.copy(SOURCES / "program.py", folder)

    generator = (sys.executable, "-m", "openapi_python_client", "generate")
    source = ("--path", "openapi.json", "--output-path", "generated_client", "--meta", "none")
    run(*generator, *source, "--config", "config.yaml", "--fail-on-warning", cwd=folder)
    run(sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py", cwd=folder)
    run(sys.executable, "program.py", service.url, KEY, cwd=folder)


@pytest.mark.proof
def test_a_client_of_openapi_typescript_is_strictly_typed_and_works(
    service: ServiceProcess, folder: Path
) -> None:
    """The client uses openapi-fetch on Node.js."""
    for name in ("program.ts", "tsconfig.json", "package.json"):
        shutil.copy(SOURCES / name, folder)
    (folder / "node_modules").symlink_to(installed_packages(SOURCES))

    generator = "node_modules/openapi-typescript/bin/cli.js"
    node(generator, "openapi.json", "-o", "schema.d.ts", "--default-non-nullable=false", cwd=folder)
    node("node_modules/typescript/bin/tsc", "--project", ".", cwd=folder)
    node("program.ts", service.url, KEY, cwd=folder)


def node(*arguments: str | Path, cwd: Path) -> None:
    run(*node_command(*arguments), cwd=cwd)
