"""The list of commands, and which modules a command imports."""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer
from pydantic import TypeAdapter
from typer.testing import CliRunner

from caseworker.cli import COMMANDS, cli
from caseworker.cli.budget_options import LIMITS
from caseworker.core.budget.budget import Budget

SERVER = {"alembic", "fastapi", "mcp", "psycopg", "pydantic_settings", "sqlalchemy", "uvicorn"}
CLIENT = {"caseworker_client", "httpx", "pydantic"}
IMPORTED = """
import atexit, sys
from caseworker.cli import main
loaded = lambda: {name.partition(".")[0] for name, module in sys.modules.items() if module}
atexit.register(lambda: print("imported:", *loaded()))
main()
"""


def imported_by(*arguments: str, cwd: Path, **variables: str) -> set[str]:
    """Return the names of the packages that a command imports."""
    env = variables | {
        name: value for name, value in os.environ.items() if "CASEWORKER" not in name
    }
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.rpartition("imported: ")[2].split())


@pytest.mark.parametrize("arguments", ["--help", "-h", "agents --help", "keys -h", "quotas -h"])
def test_a_help_imports_neither_the_service_nor_the_client(arguments: str, tmp_path: Path) -> None:
    """The packages of plugins are not imported either."""
    imported = imported_by(*arguments.split(), cwd=tmp_path)

    assert "typer" in imported
    assert imported & (SERVER | CLIENT | {"caseworker_cases"}) == set()


def test_a_command_that_calls_the_api_imports_only_the_client(tmp_path: Path) -> None:
    """Without a configuration, the settings are not loaded to find the service."""
    imported = imported_by("runs", "--url", "no URL", cwd=tmp_path)

    assert "caseworker_client" in imported
    assert imported & SERVER == set()


def test_a_command_that_reads_the_address_imports_no_logs(tmp_path: Path) -> None:
    """To find the service, it loads the settings, but nothing that only a service needs."""
    imported = imported_by("runs", cwd=tmp_path, SERVER_PORT="9")

    assert imported & SERVER == {"pydantic_settings"}
    assert imported & {"phonenumbers", "structlog"} == set()


class Spend(BaseHTTPRequestHandler):
    """Answers every request with two sums, and keeps the path of the latest."""

    path_seen = ""

    def do_GET(self) -> None:
        type(self).path_seen = self.path
        sums = {"runs": 2, "llm_calls": 3, "tokens": 1200, "cost_usd": 0.5}
        items = [{"key": key, **sums, "cost_usd_estimated": 0.0} for key in ("clerk", None)]
        body = json.dumps({"group_by": "agent", "period": None, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_spend_is_a_table_of_sums() -> None:
    """A run without the key counts in the row without a key."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Spend) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        shown = CliRunner().invoke(cli, ["spend", "--after", "2026-11-01", "--url", url])
        server.shutdown()

    assert Spend.path_seen == "/spend?group_by=agent&after=2026-11-01"
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["clerk", "2", "3", "1200", "$0.5000", "$0.0000"],
        ["-", "2", "3", "1200", "$0.5000", "$0.0000"],
    ]


def test_every_command_has_the_help_that_the_list_shows() -> None:
    """The list repeats the first sentence, because it imports no command."""
    group: Any = typer.main.get_command(cli)
    listed = {name: text for panel in COMMANDS.values() for name, (_, text) in panel.items()}
    own = {name: group.get_command(None, name).help for name in listed.keys() - {"eval"}}

    assert {name: text.partition("\n\n")[0] for name, text in own.items()} == {
        name: text for name, text in listed.items() if name != "eval"
    }


@pytest.mark.parametrize(("older", "name"), [("agent", "agents"), ("thread", "threads")])
def test_the_older_names_of_groups_still_work(older: str, name: str) -> None:
    """They are not listed."""
    group: Any = typer.main.get_command(cli)

    assert (
        group.get_command(None, older).commands.keys()
        == group.get_command(None, name).commands.keys()
    )
    assert older not in group.list_commands(None)


def test_every_limit_of_a_budget_has_an_option() -> None:
    """The options come from the table of dimensions, the schema from the fields of the budget."""
    schema = TypeAdapter(Budget).json_schema()["properties"]

    assert LIMITS.keys() == {name for name, limit in schema.items() if "anyOf" in limit}
