"""The package as its users get it: a wheel and its page, without the service."""

import asyncio
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "clients" / "python"
UV = Path(sys.executable).parent / "uv"
BLOCKS = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text("utf-8"), re.DOTALL)
[WITH_TOOL] = [block for block in BLOCKS if "answer_call" in block]
OFFLINE = [block for block in BLOCKS if block != WITH_TOOL]
PRINTED = (
    "completed 397.8",
    "run.completed",
    "not-today changed our mind",
    "422 budget.max_seconds",
)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a program and return its output; fail the test if the program fails."""
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.proof
def test_the_wheel_works_with_its_own_dependencies_alone(tmp_path: Path) -> None:
    """The wheel is installed from the lock into an empty environment without the service."""
    run(UV, "build", "--quiet", "--out-dir", tmp_path / "dist", FOLDER)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    [_] = (tmp_path / "dist").glob("*.tar.gz")
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    chosen = ("--package", "caseworker-client", "--no-dev", "--no-emit-workspace", "--locked")
    locked = run(UV, "export", "--quiet", *chosen, cwd=ROOT)
    (tmp_path / "requirements.txt").write_text(locked)
    install = (UV, "pip", "install", "--quiet", "--no-deps", "--python", python)
    run(*install, "-r", tmp_path / "requirements.txt")
    run(*install, wheel)

    said = run(
        *(python, "-I", "-W", "error", "-c"),
        "import caseworker_client, importlib.util, pathlib\n"
        "folder = pathlib.Path(caseworker_client.__file__).parent\n"
        "caseworker_client.CaseworkerClient('http://nowhere').close()\n"
        "print((folder / 'py.typed').is_file(), importlib.util.find_spec('caseworker'))",
        cwd=tmp_path,
    )
    installed = run(UV, "pip", "list", "--python", python)

    assert said.split() == ["True", "None"]
    assert {"httpx", "pydantic", "caseworker-client"} <= set(re.findall(r"^\S+", installed, re.M))
    assert "fastapi" not in installed


def test_it_depends_on_httpx_and_pydantic_alone() -> None:
    """The client supports the Python versions of the service and has the same version."""
    ours, service = (
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        for folder in (FOLDER, ROOT)
    )

    names = [re.split(r"[<>=]", each)[0] for each in ours["dependencies"]]
    assert names == ["httpx", "pydantic"]
    assert ours["requires-python"] == service["requires-python"]
    assert ours["version"] == service["version"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def offline(module_database_url: str) -> AsyncIterator[ServiceProcess]:
    """Run a service with its defaults and the built-in planner."""
    async with ServiceProcess(module_database_url) as running:
        yield running


@pytest.mark.parametrize(("block", "printed"), [*zip(OFFLINE, PRINTED, strict=True)])
async def test_every_program_of_its_page_works_as_pasted(
    offline: ServiceProcess, block: str, printed: str
) -> None:
    """The address of the service is in the environment."""
    assert printed in await _printed(block, offline)


async def test_the_program_with_a_tool_of_its_own_works_as_pasted(
    database_url: str, service_settings: dict[str, str], provider: FakeProvider
) -> None:
    """The model requests the tool, and reads the output of the program."""
    call = {"id": "c1", "name": "look_up", "arguments": '{"order": 7}'}
    await provider.script("order 7?", [Step(tool_calls=[call])])
    await provider.script("sent on Monday", [Step(text="It was sent on Monday.")])

    async with ServiceProcess(database_url, settings=service_settings) as service:
        printed = await _printed(WITH_TOOL, service)
    assert printed == "It was sent on Monday.\n"


async def _printed(block: str, service: ServiceProcess) -> str:
    """Run a program with the address of a service, and return its output."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", block),
        env={"CASEWORKER_URL": service.url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaints = await program.communicate()
    assert program.returncode == 0, complaints.decode()
    return out.decode()
