"""Rules about the sources that no linter holds."""

from pathlib import Path

import pytest

from tests.architecture.domain_words import domain_words

ROOT = Path(__file__).parents[2]
MOST_LINES = 400


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert found
    return found


@pytest.mark.req("004/kernel", "004/guard")
def test_the_kernel_has_no_word_of_the_domain() -> None:
    """Nodes, handles, edges and channels are all that it talks about."""
    found = {
        str(path.relative_to(ROOT)): words
        for path in sources("app/kernel")
        if (words := domain_words(path.read_text(encoding="utf-8")))
    }

    assert found == {}


def test_a_word_of_the_domain_is_found_wherever_it_hides() -> None:
    """In names, in texts and in comments; a match statement's own keyword is none."""
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


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    """At most 400 lines; most have far fewer."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources("app", "tests")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }

    assert long == {}


@pytest.mark.req("card/layout")
def test_the_top_level_is_laid_out_as_promised() -> None:
    """What a newcomer looks for is where they look."""
    for file in (
        *("pyproject.toml", "uv.lock", "Makefile", "Dockerfile", ".dockerignore"),
        *("docker-compose.yml", "config.yaml.example", "README.md", "LICENSE", "CHANGELOG.md"),
    ):
        assert (ROOT / file).stat().st_size > 0, file
    for folder in ("app", "migrations", "tests"):
        assert (ROOT / folder).is_dir(), folder
