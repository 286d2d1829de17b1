"""Rules for the sources that no linter covers."""

import re
from pathlib import Path

import pytest

from tests.architecture.domain_words import domain_words

ROOT = Path(__file__).parents[2]


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert found
    return found


KNOWN_TO_THE_ENGINE = {
    # The kinds of call that document 001 gives the nodes of a graph.
    "app/caseworker/engine/call.py": ['kind: Literal["llm", "tool", "system"]'],
    # The field of the context that document 004 names.
    "app/caseworker/engine/context.py": [
        "chat_id: str | None = None",
        "def chat_id(self) -> str | None:",
        "return self.run.chat_id",
    ],
    # The names of the events of document 003.
    "app/caseworker/engine/events.py": [
        'TOOL_CALL_START: Final = "tool_call_start"',
        'TOOL_CALL_END: Final = "tool_call_end"',
        'AGENT_ERROR: Final = "error"',
    ],
}
"""Lines of the runtime core that contain a domain word, each with its reason."""


@pytest.mark.req("004/kernel", "004/guard")
def test_the_runtime_core_has_no_word_of_the_domain() -> None:
    """Kernel and engine use only nodes, handles, edges and channels."""
    found: dict[str, list[str]] = {}
    for path in sources("app/caseworker/core/graph", "app/caseworker/engine"):
        lines = path.read_text(encoding="utf-8")
        numbers = (int(word.partition(":")[0]) for word in domain_words(lines))
        named = [lines.splitlines()[number - 1].strip() for number in dict.fromkeys(numbers)]
        if named:
            found[str(path.relative_to(ROOT))] = named

    assert found == KNOWN_TO_THE_ENGINE


def test_only_the_tables_of_kinds_name_a_kind_of_runs() -> None:
    """The rest of ``runs`` asks the table, so a new kind changes nothing else there."""
    tables = {"kinds.py", "kind_rules.py"}
    naming = {
        path.name
        for path in sources("app/caseworker/runs")
        if re.search(r"\bRunKind\.[A-Z]", path.read_text(encoding="utf-8"))
    }

    assert naming == tables


@pytest.mark.req("004/kernel", "004/guard")
@pytest.mark.parametrize(
    "branch",
    ['if type == "agent":', 'if kind in ("llm", "tool"):', 'if step.type != "case":'],
)
def test_a_branch_on_a_type_of_the_domain_is_found(branch: str) -> None:
    """It is found in every file of the core, even next to allowed lines."""
    assert domain_words(f"{branch}\n    pass\n")
    assert all(branch not in lines for lines in KNOWN_TO_THE_ENGINE.values())


def test_a_word_of_the_domain_is_found_wherever_it_hides() -> None:
    """It is found in names, texts and comments, except for the keyword of a match statement."""
    source = '''
class ToolNode:
    """Runs agents."""

    def chat_id(self, x):
        match x:  # for LLMs
            case 1:
                return "caseless lowercase"
        return case
'''
    assert domain_words(source) == ["2: Tool", "3: agents", "5: chat", "6: LLMs", "9: case"]


@pytest.mark.req("card/layout")
def test_the_top_level_is_laid_out_as_promised() -> None:
    """Files and folders are in their usual places."""
    for file in (
        *("pyproject.toml", "uv.lock", "Makefile", "Dockerfile", ".dockerignore"),
        *("docker-compose.yml", "config.yaml.example", "README.md", "LICENSE", "CHANGELOG.md"),
    ):
        assert (ROOT / file).stat().st_size > 0, file
    for folder in ("app", "migrations", "tests"):
        assert (ROOT / folder).is_dir(), folder
