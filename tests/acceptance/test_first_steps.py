"""What a newcomer does first, exactly as the README says it."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import ChildProcess, run_caseworker
from tests.support.service import ServiceProcess

ROOT = Path(__file__).parents[2]


def _first_session() -> str:
    """Return the shell session of the README's first steps."""
    steps = (ROOT / "README.md").read_text().partition("## First steps")[2]
    found = re.search(r"```sh\n(.*?)```", steps, re.DOTALL)
    assert found is not None
    return found[1]


def _caseworker(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_caseworker(*arguments, env=variables)


async def test_the_readmes_first_session_works_as_pasted(database_url: str) -> None:
    """An answer, its trace, and a run that was stopped before it existed."""
    async with ServiceProcess(database_url) as service:
        session = _first_session().replace("localhost:8080", service.url.removeprefix("http://"))

        shell = await asyncio.create_subprocess_exec(
            "bash", "-euc", session, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await shell.communicate()
        said = printed.decode()
        assert shell.returncode == 0
        assert '"answer":"397.8"' in said.replace('": ', '":')
        assert "calculator" in said
        assert '"status":"cancelled"' in said.replace('": ', '":')
        assert "changed our mind" in said


async def test_the_command_line_asks_stops_and_explains(database_url: str) -> None:
    """run, trace and cancel, over HTTP like any caller."""
    async with ServiceProcess(database_url) as service:
        at = ("--url", service.url)
        asked = await asyncio.to_thread(_caseworker, "run", "What is 2 to the power of 10?", *at)
        run_id = re.findall(r"run +(\S+)", asked.stdout)[0]
        explained = await asyncio.to_thread(_caseworker, "trace", run_id, *at)
        stopped = await asyncio.to_thread(_caseworker, "cancel", run_id, "--json", *at)
        refused = await asyncio.to_thread(_caseworker, "trace", "nobody", *at)

        assert asked.returncode == 0, asked.stderr
        assert "answer  1024" in asked.stdout
        assert "calculator" in explained.stdout
        assert json.loads(stopped.stdout)["already_finished"] is True
        assert refused.returncode == 2
        assert len(refused.stderr.strip().splitlines()) == 1


async def test_a_question_that_nobody_understands_says_so(database_url: str) -> None:
    """The built-in planner escalates, and the run fails with the reason."""
    async with ServiceProcess(database_url) as service, service.client() as client:
        run = await client.post_run({"input": "Who wrote Hamlet?"}, wait_seconds=20)

        assert run["status"] == "failed"
        assert run["finish_reason"] == "big_fail"
        assert "do not understand" in run["stop"]["reason"]
        assert run["result"]["counters"]["llm_calls_big"] == 1


async def test_serving_with_nothing_configured_shows_one_run(database_folder: Path) -> None:
    """``make serve``: a database of its own, migrated, an example, its trace, and URLs."""
    env = {"DATABASE_DATA_DIR": str(database_folder / "pg"), "SERVER_PORT": "0", "DATABASE_URL": ""}
    with ChildProcess.python("-m", "app", "serve", "--demo", env=env, name="demo") as demo:
        for _ in range(600):
            if "Ctrl+C" in demo.stdout or demo.exit_code is not None:
                break
            await asyncio.sleep(0.1)
        said = demo.stdout

        assert "answer    397.8" in said, said + demo.stderr
        assert "calculator" in said
        assert re.search(r"http://127\.0\.0\.1:\d+/docs", said)
        assert await demo.terminate() == 0


@pytest.mark.req("002/15.3")
@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"SERVER_PORT": "banana"}, "SERVER_PORT"),
        ({"CASEWORKER_SERVER_PROT": "1"}, "CASEWORKER_SERVER_PORT"),
        ({"CASEWORKER_CONFIG": "missing.yaml"}, "missing.yaml"),
        ({"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x"}, "database.url"),
    ],
)
def test_a_start_that_cannot_work_ends_with_one_line(variables: dict[str, str], told: str) -> None:
    """It names the key, and there is no traceback."""
    ended = _caseworker("serve", **variables)

    assert ended.returncode == 2
    assert told in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
