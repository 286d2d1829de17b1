"""The conformance suite of MCP's authors, against the client of tools and the server.

``tests/data/mcp_conformance`` lists the checks that pass, of the scenarios that the revision
requires. The other checks of the server need tools, prompts and resources that only the example of
the suite has. Those of the client are about OAuth, whose scenarios are not run, and about questions
of a server to a user, which the service does not answer.
"""

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mcp_servers import ROOT
from tests.support.npm_packages import installed_packages, node
from tests.support.service import ServiceProcess

pytestmark = pytest.mark.proof

REVISION = "2026-07-28"
NPM = ROOT / "tests" / "support" / "npm_mcp_conformance"
LISTS = ROOT / "tests" / "data" / "mcp_conformance"
STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")


async def suite(*arguments: str) -> str:
    """Run a command of the suite; return its output."""
    folder = installed_packages(NPM) / "@modelcontextprotocol" / "conformance"
    command = node(folder / "dist" / "index.js", *arguments)
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout


def passed(results: Path) -> list[str]:
    """Return a line for each check that passes."""
    lines = set()
    for file in results.rglob("checks.json"):
        scenario = STAMP.sub("", str(file.parent.relative_to(results)))
        checks = json.loads(file.read_text())
        failed = {each["id"] for each in checks if each["status"] == "FAILURE"}
        succeeded = {each["id"] for each in checks if each["status"] == "SUCCESS"}
        lines |= {f"{scenario} {check}" for check in succeeded - failed}
    return sorted(lines)


async def checks_of_client(results: Path) -> list[str]:
    """Run the required scenarios, one after the other: the suite would start all at once."""
    client = shlex.join([sys.executable, "-m", "tests.support.conformance_client"])
    required = await suite("list", "--client", "--requirements", REVISION)
    scenarios = re.findall(r"^  - (\S+)", required.partition("Client scenarios")[2], re.MULTILINE)
    for scenario in scenarios:
        if not scenario.startswith("auth/"):
            chosen = ("--scenario", scenario, "--spec-version", REVISION)
            await suite("client", "--command", client, *chosen, "-o", str(results))
    return passed(results)


async def checks_of_server(url: str, results: Path) -> list[str]:
    """Run the required scenarios against the server at a URL."""
    await suite("server", "--url", url, "--requirements", REVISION, "-o", str(results))
    return passed(results)


def listed(role: str) -> list[str]:
    return (LISTS / f"{role}.txt").read_text().splitlines()


async def test_the_client_passes_the_listed_checks(tmp_path: Path) -> None:
    """A check that passes in addition belongs into the list."""
    assert await checks_of_client(tmp_path) == listed("client")


async def test_the_server_passes_the_listed_checks(database_url: str, tmp_path: Path) -> None:
    """A check that passes in addition belongs into the list."""
    async with ServiceProcess(database_url) as service:
        assert await checks_of_server(f"{service.url}/mcp", tmp_path) == listed("server")
