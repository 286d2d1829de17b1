"""The first steps in the pages work as printed, against the service of ``make serve``."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.json_client import JsonClient
from tests.support.pages import ROOT, Block, blocks_of
from tests.support.processes import ChildFailedError, ChildProcess, run_caseworker

HOST = "localhost:8080"
README = ROOT / "README.md"
TUTORIAL = tuple(f"docs/tutorial/{page.name}" for page in sorted(ROOT.glob("docs/tutorial/*.md")))
SERVED_WITH_TOOLS = re.compile(
    r"^`?PYTHONPATH=(\S+) TOOLS_PLUGINS=((\w+):\S+) make serve(?:`\.)?$", re.M
)
_DURATION = re.compile(r"\d[\d.]* m?s\b")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[ChildProcess]:
    """Run the service of ``make serve`` with the tools of the pages and without a model."""
    files: dict[str, str] = {}
    tools: set[str] = set()
    for page in ("README.md", *TUTORIAL):
        served = SERVED_WITH_TOOLS.findall((ROOT / page).read_text())
        for path, plugins, module in served:
            [tool] = [each for each in blocks_of(ROOT / page, "python") if "@tool" in each.text]
            files[module] = files.get(module, "") + tool.text
            tools.update(plugins.split(","))
            assert path == "."
    [options] = re.findall(r"\$\(BIN\)/caseworker (serve .*)", (ROOT / "Makefile").read_text())
    # Not a folder of pytest's, which is closed to the account of the embedded database.
    with tempfile.TemporaryDirectory(prefix="caseworker-first-steps-") as folder:
        for module, text in files.items():
            (Path(folder) / f"{module}.py").write_text(text)
        env = {
            **dict.fromkeys(("DATABASE_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"), ""),
            "DATABASE_DATA_DIR": f"{folder}/postgres",
            "SERVER_PORT": "0",
            "PYTHONPATH": ".",
            "TOOLS_PLUGINS": ",".join(tools),
        }
        arguments = ("-m", "caseworker", *options.split())
        child = ChildProcess.python(*arguments, env=env, cwd=Path(folder), name="demo")
        with child:
            while "Ctrl+C" not in child.stdout:
                if child.exit_code is not None:
                    raise ChildFailedError(child.stdout + child.stderr)
                await asyncio.sleep(0.1)
            yield child
            assert await child.terminate() == 0


@pytest.fixture
def url(demo: ChildProcess) -> str:
    """Return the address of the service."""
    found = re.search(r"Caseworker listens on (\S+)", demo.stdout)
    assert found
    return found[1]


def answered(command: str, url: str) -> str:
    """Run a block of a page and return its output."""
    text = command.replace(HOST, url.removeprefix("http://"))
    ended = subprocess.run(
        ["bash", "-euc", text], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def script_output(script: Block, url: str) -> str:
    """Run a program of a page, which the next block calls by its name, and return its output."""
    ended = subprocess.run(
        [sys.executable, "-c", script.text],
        env={**os.environ, "CASEWORKER_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def documents_in(text: str) -> Iterator[Any]:
    """Return the JSON objects of a text, from left to right."""
    at = text.find("{")
    while at >= 0:
        try:
            document, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            yield document
        at = text.find("{", end)


def is_part(shown: Any, whole: Any) -> bool:
    """Return whether a JSON value contains everything in the shown part."""
    if isinstance(shown, dict):
        return isinstance(whole, dict) and all(
            name in whole and is_part(value, whole[name]) for name, value in shown.items()
        )
    if isinstance(shown, list):
        return (
            isinstance(whole, list) and len(shown) == len(whole) and all(map(is_part, shown, whole))
        )
    return bool(shown == whole)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without durations and repeated spaces."""
    return [" ".join(_DURATION.sub("T", line).split()) for line in text.splitlines() if line]


def difference(shown: Block, printed: str) -> list[Any]:
    """Return the parts of a shown block that are missing from the actual output."""
    if shown.language == "json":
        document = json.loads(shown.text)
        return [] if any(is_part(document, one) for one in documents_in(printed)) else [document]
    return [line for line in lines_of(shown.text) if line not in lines_of(printed)]


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(("README.md",), id="README"),
        pytest.param(("docs/quickstart.md",), id="quickstart"),
        pytest.param(("docs/graphs.md",), id="graphs"),
        pytest.param(("docs/threads.md",), id="threads", marks=pytest.mark.req("004/chat")),
        pytest.param(TUTORIAL, id="tutorial"),
    ],
)
def test_the_commands_of_pages_run_as_printed_and_answer_what_they_show(
    pages: tuple[str, ...], url: str
) -> None:
    """A page shows JSON that is part of an answer, or lines of the output."""
    printed, compared = None, 0
    for block in (block for page in pages for block in blocks_of(ROOT / page)):
        if block.language == "sh" and ".py" not in block.text:
            printed = answered(block.text, url) if "curl" in block.text else None
        elif block.language == "python" and "CaseworkerClient" in block.text:
            printed = script_output(block, url)
        elif block.language in ("json", "text") and printed is not None:
            assert difference(block, printed) == [], f"{block}: {printed}"
            compared += 1
    assert compared


def test_serving_ends_with_an_example_run_and_commands_that_work(
    demo: ChildProcess, url: str
) -> None:
    """``make serve`` prints a run, its trace, the viewer, and commands that work as printed."""
    said = demo.stdout
    last = said[said.index("View all runs") :]
    commands = re.findall(r"^  curl (?:.*\\\n)*.*$", last, re.MULTILINE)

    assert "answer    397.8" in said, said
    assert "calculator" in said
    assert re.search(rf"{url}/ui/runs/\S+", said)
    assert f"{url}/ui\n" in last
    assert f"{url}/docs\n" in last
    asked, explained, cancelled = (answered(command, url) for command in commands)
    assert json.loads(asked)["result"]["answer"] == "12"
    assert "calculator" in explained
    assert json.loads(cancelled)["already_finished"] is False


def test_the_command_line_asks_stops_and_explains(url: str) -> None:
    """The commands run, trace and cancel call the service over HTTP."""
    at = ("--url", url)
    asked = run_caseworker("run", "What is 2 to the power of 10?", *at, env={})
    run_id = re.findall(r"run +(\S+)", asked.stdout)[0]
    explained = run_caseworker("trace", run_id, *at, env={})
    stopped = run_caseworker("cancel", run_id, "--json", *at, env={})
    refused = run_caseworker("trace", "nobody", *at, env={})

    assert asked.returncode == 0, asked.stderr
    assert "answer  1024" in asked.stdout
    assert "calculator" in explained.stdout
    assert json.loads(stopped.stdout)["already_finished"] is True
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1


async def test_a_question_that_the_planner_does_not_read_fails_with_the_reason(url: str) -> None:
    """The built-in planner escalates, and the run fails with the reason."""
    async with JsonClient(url, timeout_seconds=150) as client:
        run = await client.post_run({"input": "Who wrote Hamlet?"}, wait_seconds=30)

        assert run["status"] == "failed"
        assert run["finish_reason"] == "big_fail"
        assert "do not understand" in run["stop"]["reason"]
        assert run["result"]["counters"]["llm_calls_big"] == 1


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
    """The line names the key, and there is no traceback."""
    ended = run_caseworker("serve", env=variables)

    assert ended.returncode == 2
    assert told in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_port_that_is_in_use_ends_the_start_with_one_line(database_url: str) -> None:
    """The line names the setting that selects another port."""
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        ended = run_caseworker("serve", env={"DATABASE_URL": database_url, "SERVER_PORT": port})

    assert ended.returncode == 2
    [line] = ended.stderr.strip().splitlines()
    assert "SERVER_PORT selects another port" in line
