"""What a newcomer does first, exactly as the README says it."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks_of
from tests.support.processes import ChildProcess, run_caseworker
from tests.support.service import ServiceProcess

HOST = "localhost:8080"


CANCELLED = ['"answer":"397.8"', "calculator", '"status":"cancelled"', "changed our mind"]
SESSIONS = [
    (ROOT / "README.md", slice(1, 3), CANCELLED),
    (
        ROOT / "docs" / "quickstart.md",
        slice(None),
        [*CANCELLED, '"run.completed"', "<title>", '"value":"1190"'],
    ),
    (ROOT / "docs" / "graphs.md", slice(None), ['"valid":true', '"status":"completed"']),
]
"""Pages, which of their shell blocks need nothing but a service, and what these print."""


def _caseworker(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_caseworker(*arguments, env=variables)


async def test_the_sessions_of_the_pages_work_as_pasted(database_url: str) -> None:
    """An answer, its trace, a run that was stopped before it existed, a page and graphs."""
    async with ServiceProcess(database_url) as service:
        for page, shown, expected in SESSIONS:
            session = "\n".join(block.text for block in blocks_of(page, "sh")[shown])

            shell = await asyncio.create_subprocess_exec(
                *("bash", "-euc", session.replace(HOST, service.url.removeprefix("http://"))),
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            printed, _ = await shell.communicate()
            said = printed.decode().replace('": ', '":')
            assert shell.returncode == 0, page
            assert [each for each in expected if each not in said] == [], said


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
        run = await client.post_run({"input": "Who wrote Hamlet?"}, wait_seconds=120)

        assert run["status"] == "failed"
        assert run["finish_reason"] == "big_fail"
        assert "do not understand" in run["stop"]["reason"]
        assert run["result"]["counters"]["llm_calls_big"] == 1


async def test_serving_with_nothing_configured_shows_one_run(database_folder: Path) -> None:
    """``make serve``: a database of its own, migrated, an example, its trace, and URLs."""
    env = {"DATABASE_DATA_DIR": str(database_folder / "pg"), "SERVER_PORT": "0", "DATABASE_URL": ""}
    with ChildProcess.python("-m", "app", "serve", "--demo", env=env, name="demo") as demo:
        for _ in range(3000):
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
