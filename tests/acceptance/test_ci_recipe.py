"""The steps of the workflow in docs/frameworks/ci.md, executed on this machine."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.pages import ROOT

PAGE: Final = ROOT / "docs" / "frameworks" / "ci.md"
SECONDS: Final = 300
PRICES: Final = {
    "MODELS_SMALL_PRICE_PER_MILLION_IN_USD": "0",
    "MODELS_SMALL_PRICE_PER_MILLION_OUT_USD": "10000",
}
AGENT: Final = """
import sys
from openai import OpenAI

client = OpenAI(max_retries=0)
for _ in range(CALLS):
    message = {"role": "user", "content": "Review this."}
    client.chat.completions.create(model="gpt-5", messages=[message], max_tokens=60)
print("reviewed")
"""
"""An agent whose calls cost $0.60 each; the budget is $1."""


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


class Job:
    """A job of the workflow, whose steps run in a folder as GitHub runs them."""

    def __init__(self, folder: Path, provider: FakeProvider, database_url: str) -> None:
        [workflow] = blocks("yaml")
        [self._job] = yaml.safe_load(workflow)["jobs"].values()
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
        self._exported = folder / "exported"
        self._exported.touch()
        self._provider = provider
        self._database_url = database_url
        self.groups: list[int] = []
        self.log = ""

    @property
    def steps(self) -> Mapping[str, Mapping[str, Any]]:
        """The steps with a name."""
        return {step["name"]: step for step in self._job["steps"] if "name" in step}

    def _variables(self, step: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment of a step, with the scripted provider and a free port."""
        exported = dict(
            line.split("=", 1) for line in self._exported.read_text().splitlines() if line
        )
        variables = {**self._job["env"], **step.get("env", {}), **exported}
        if "MODELS_SMALL_API_KEY" in variables:
            assert variables["MODELS_SMALL_API_KEY"] == "${{ secrets.OPENAI_API_KEY }}"
            variables |= {
                "MODELS_SMALL_API_KEY": "sk-of-the-provider",
                "MODELS_SMALL_BASE_URL": self._provider.openai_url,
                **PRICES,
            }
        address = f"http://127.0.0.1:{self._port}"
        assert variables["CASEWORKER_URL"] == "http://127.0.0.1:8080"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            **variables,
            "CASEWORKER_URL": address,
            "SERVER_PORT": str(self._port),
            "DATABASE_URL": self._database_url,
            "GITHUB_ENV": str(self._exported),
            "HOME": str(self._folder),
            "NO_PROXY": "*",
            "PATH": path,
        }

    async def run(self, name: str) -> int:
        """Run a step as GitHub does, and return its exit code."""
        step = self.steps[name]
        process = await asyncio.create_subprocess_exec(
            *("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]),
            cwd=self._folder,
            env=self._variables(step),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.groups.append(process.pid)
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
        self.log += output.decode()
        assert process.returncode is not None
        return process.returncode


@pytest.fixture
def job(tmp_path: Path, provider: FakeProvider, database_url: str) -> Iterator[Job]:
    opened = Job(tmp_path, provider, database_url)
    yield opened
    for group in opened.groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize(("calls", "code"), [(1, 0), (2, 3)])
async def test_the_workflow_prints_the_spend_and_fails_with_3_after_a_halt(
    job: Job, provider: FakeProvider, tmp_path: Path, calls: int, code: int
) -> None:
    """A call costs $0.60, so that the second one does not fit into the budget of $1."""
    step = Step(text="Fine.", tokens_in=10, tokens_out=60)
    await provider.script("Review this.", [step], repeat_last=True)
    (tmp_path / "agent.py").write_text(AGENT.replace("CALLS", str(calls)))
    started = [await job.run(name) for name in ("Start the service", "Make a key")]
    assert started == [0, 0], job.log + (tmp_path / "caseworker.log").read_text()
    assert re.search("::add-mask::cwa_[0-9a-f]+", job.log)
    job.log = ""

    assert await job.run("Run the agent") == code, job.log
    assert "spent $0.600000 in 1 model calls with 70 tokens" in job.log
    assert ("reviewed" in job.log) is (code == 0)
    assert ("halted. The run was halted: " in job.log) is (code == 3)
    assert "sk-of-the-provider" not in job.log
    assert await job.run("Show the log of the service") == 0
    assert await provider.count("Review this.") == 1


def test_only_the_step_of_the_service_has_the_key_of_the_provider() -> None:
    """The agent gets a standing key instead."""
    [workflow] = blocks("yaml")
    [job] = yaml.safe_load(workflow)["jobs"].values()

    with_secrets = [step["name"] for step in job["steps"] if "secrets." in str(step)]
    assert with_secrets == ["Start the service"]
    assert "secrets." not in str(job["env"])
