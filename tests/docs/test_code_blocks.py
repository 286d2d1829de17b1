"""Every fenced block of the documentation is checked: run, sent, compiled or parsed."""

import ast
import importlib
import json
import re
import tomllib
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import typer
import yaml
from typer.core import TyperGroup

from bench.harness import find_rows
from caseworker.cli import cli
from caseworker.engine import events
from caseworker.settings.loader import SHARED_VARIABLES, load_settings
from caseworker.settings.schema import Settings
from caseworker.settings.values import keys_of, path_text, variable_of
from tests.support.api import Api, client_of, openapi_document
from tests.support.pages import (
    PAGES,
    ROOT,
    Block,
    StubbedShell,
    blocks,
    blocks_of,
    outside_blocks,
    request_of,
)

OURS = frozenset({"curl", "caseworker", ".venv/bin/python"})
OTHERS = frozenset(
    {"make", "pip", "npm", "npx", "openapi-python-client", "claude", "docker", "kubectl", "pytest"}
    | {"aider", "codex", "litellm", "open-webui", "python"}
    | {"cp", "pg_dump", "pg_restore", "psql"}
)
"""Programs that the pages call; for all others only the syntax of the command is checked."""

NOT_INSTALLED = frozenset(
    {"agent_framework", "autogen_agentchat", "autogen_ext", "crewai", "google", "litellm"}
    | {"llama_index", "openhands", "smolagents"}
)
"""Packages of pages whose imports only their clients in ``make proofs`` execute."""

OF_CLIENTS = (
    *("OPENAI_API_BASE", "CODEX_API_KEY"),
    *("LITELLM_MASTER_KEY", "OPENAI_API_BASE_URL", "DEFAULT_MODEL_METADATA", "WEBUI_AUTH"),
)
"""Variables that only other programs read."""

BODIES: Mapping[str, list[str | None]] = {
    "docs/agents.md": ["POST /runs"],
    "docs/going-on.md": ["POST /runs", None, None],
}
"""The routes for the JSON blocks of a page; None is an answer or a notice."""

ELSEWHERE = {
    ("README.md", "text"): "tests/acceptance/test_first_steps.py",
    ("docs/quickstart.md", "text"): "tests/acceptance/test_first_steps.py",
    ("docs/webhooks.md", "js"): "tests/acceptance/test_webhooks.py",
    ("docs/call-it.md", "js"): "tests/acceptance/test_call_it.py",
    ("docs/tutorial/4-budget-cancel-trace.md", "text"): "tests/acceptance/test_first_steps.py",
    ("docs/tutorial/5-call-it.md", "text"): "tests/acceptance/test_first_steps.py",
    ("docs/clients.md", "ts"): "tests/contract/test_generated_clients.py",
    ("docs/security.md", "sql"): "tests/integration/postgres/test_tenants_apart.py",
    ("examples/README.md", "text"): "tests/acceptance/test_examples.py",
    ("docs/frameworks/README.md", "text"): "tests/acceptance/external/test_examples.py",
    **{
        (str(page.relative_to(ROOT)), "diff"): "tests/acceptance/external/test_examples.py"
        for page in ROOT.glob("docs/frameworks/*.md")
    },
}
"""Tests that run the blocks which no test here runs."""

LOOKED_AT = frozenset({"", "sh", "bash", "json", "python", "yaml", "toml"})
"""Languages of checked blocks; a block without one is a drawing or raw protocol text."""
REFUSED = frozenset({400, 405, 413, 415})
CONFIGURED = "No permitted tool is named", "No such model is configured", "No MCP server"
"""Problems of requests that need the tools and models which their page configures."""
KEYS = {path_text(path): path for path, _ in keys_of(Settings)}
VARIABLE = re.compile(r"^(?:export )?((?:[A-Z][A-Z0-9_]+=\S+\s+)+)", re.MULTILINE)


def test_no_block_is_of_a_language_that_nobody_looks_at() -> None:
    """A new language of blocks needs a test first."""
    unknown = [
        f"{block} {block.language}"
        for block in blocks()
        if block.language not in LOOKED_AT
        and (str(block.page.relative_to(ROOT)), block.language) not in ELSEWHERE
    ]

    assert unknown == []
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> StubbedShell:
    names = OURS | OTHERS | {".venv/bin/caseworker"}
    return StubbedShell(tmp_path_factory.mktemp("shell"), names)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("block", blocks("sh", "bash"), ids=str)
async def test_what_a_shell_block_asks_for_is_there(
    block: Block, shell: StubbedShell, client: httpx.AsyncClient
) -> None:
    """Shell syntax is valid; routes, bodies, commands, options, files and variables exist."""
    commands = shell.commands_of(block)

    assert commands
    for command in commands:
        if command[0] == "curl":
            request = request_of(command)
            assert request.media or request.body is None
            await accept(client, request.method, request.path, request.body)
        elif command[0] == "caseworker":
            take(command[1:])
        elif command[0] == "python":
            saved = f"Save this as `{command[1]}`" in outside_blocks(block.page)
            assert saved or (ROOT / command[1]).is_file()
    others = {*SHARED_VARIABLES, "CASEWORKER_URL", "CASEWORKER_KEY", "PYTHONPATH", *OF_CLIENTS}
    known = {variable_of(path) for path in KEYS.values()} | others
    assert [name for name in variables_in(block.text) if name not in known] == []


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a service that has the agents in the pages."""
    async with client_of(api.app()) as client:
        for name in ("clerk", "reporter", "shop"):
            agent = {"name": name, "description": "Reports.", "prompt": {"system": "Report."}}
            assert (await client.post("/agents", json={"agent": agent})).status_code == 201
        yield client


async def accept(client: httpx.AsyncClient, method: str, path: str, body: str | None) -> None:
    """Send a request; a missing run is not an error of the page."""
    if path == "/ui":  # no route of the API: the quickstart is run by tests/acceptance
        return
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    answer = await client.request(method, path, content=body, headers=headers)

    problem = answer.json().get("type", "") if answer.is_error else ""
    if answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY:
        errors = answer.json()["errors"]
        assert all(error["message"].startswith(CONFIGURED) for error in errors), answer.text
        return
    assert answer.status_code not in REFUSED, answer.text
    assert not problem.endswith(("route-not-found", "internal-error")), answer.text


def take(arguments: list[str]) -> None:
    """Let the command line parse a command without executing it."""
    command: Any = typer.main.get_command(cli)
    while isinstance(command, TyperGroup):
        context = typer.Context(command)
        _, command, arguments = command.resolve_command(context, arguments)
    command.make_context(command.name, [*arguments])  # raises the error that a user would see


def variables_in(text: str) -> list[str]:
    """Return the environment variables that a block sets."""
    return re.findall(r"([A-Z][A-Z0-9_]+)=", " ".join(VARIABLE.findall(text.replace("\\\n", ""))))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("block", blocks("json"), ids=str)
async def test_json_blocks_are_json_and_bodies_are_accepted(
    block: Block, client: httpx.AsyncClient
) -> None:
    """Blocks that are request bodies are validated by the models of the API."""
    page = str(block.page.relative_to(ROOT))
    on_page = [each for each in blocks("json") if each.page == block.page]
    request = BODIES[page][on_page.index(block)] if page in BODIES else None

    assert isinstance(json.loads(block.text), dict)
    if request is not None:
        method, path = request.split()
        await accept(client, method, path, block.text)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_blocks_compile_and_import_what_exists(block: Block) -> None:
    """Python blocks may use a top-level `await`, because they are excerpts of async functions."""
    tree = compile(
        block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )

    compile(tree, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in NOT_INSTALLED:
                continue
            module = importlib.import_module(node.module or "")
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_blocks_are_yaml_and_settings_are_accepted(block: Block, tmp_path: Path) -> None:
    """A block that begins with a section of the settings is validated by their schema."""
    written: Mapping[str, Any] = yaml.safe_load(block.text)

    if "jobs" in written:  # a workflow of GitHub, see tests/acceptance/test_ci_recipe.py
        return
    if "scrape_configs" not in written and "model_list" not in written:  # of Prometheus, LiteLLM
        (tmp_path / "config.yaml").write_text(block.text)
        loaded = load_settings({"OPENAI_API_KEY": "a-key-for-a-test"}, tmp_path)
        assert loaded.source is not None


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_blocks_are_toml(block: Block) -> None:
    """tests/unit/main/test_extending.py loads the extensions that they name."""
    assert tomllib.loads(block.text)


def test_every_make_target_that_a_page_names_exists() -> None:
    """Targets are named in shell blocks and between backticks."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (str(page.relative_to(ROOT)), target)
        for page in PAGES
        for code in (
            *re.findall(r"`[^`]+`", outside_blocks(page)),
            *(block.text for block in blocks_of(page, "", "sh", "bash")),
        )
        for target in re.findall(r"(?:`|^|=\S+ )make ([a-z-]+)", code, re.MULTILINE)
    }

    assert ("README.md", "serve") in named
    assert [each for each in sorted(named) if each[1] not in known] == []


def test_every_benchmark_that_a_page_names_is_a_row() -> None:
    """Rows are the arguments of ``make bench``."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = re.findall(r'make bench ARGS=(?:"([^"]+)"|(\w+))', pages)
    rows = {row for quoted, bare in named for row in (quoted or bare).split()} - {"--quick"}

    assert rows
    assert rows - find_rows().keys() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_key_that_a_page_names_is_a_key(page: Path) -> None:
    """`section.key` in a page is a setting, unless it is an event, or a field of the API."""
    sections = {path[0] for path in KEYS.values() if len(path) > 1}
    fields = {
        name
        for schema in openapi_document()["components"]["schemas"].values()
        for name in schema.get("properties", {})
    }
    named = re.findall(r"`([a-z]+(?:\.[a-z_]+)+)(?:: [^`]+)?`", outside_blocks(page))

    unknown = [
        name
        for name in named
        if name.split(".")[0] in sections
        and name not in vars(events).values()
        and not any(key == name or key.startswith(f"{name}.") for key in KEYS)
        and name.split(".")[-1] not in fields
    ]
    assert unknown == []
