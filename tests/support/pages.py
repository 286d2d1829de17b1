"""The pages of the documentation and their fenced blocks."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "examples" / "README.md", *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_ADDRESS = re.compile(r"(?:http://)?(?:localhost|127\.0\.0\.1):\d+(/.*)")
_END_OF_WORD, _END_OF_COMMAND = "\x1f", "\x1e"
_VARIABLES = {
    "ID": "0",
    "DATABASE_URL": "old",
    "NEW_DATABASE_URL": "new",
    "OPENAI_BASE_URL": "url",
    "OPENAI_API_KEY": "key",
}
_STUB = r"""#!/bin/sh
exec >> "$NOTES"
printf '%s\037' "${0##*/}" "$@"
printf '\036'
"""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """Return the fenced blocks of a page, of some languages or of all."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, each.start()) + 1, each[2], each[3])
        for each in _BLOCK.finditer(text)
    ]
    return [each for each in found if not languages or each.language in languages]


def blocks(*languages: str) -> list[Block]:
    """Return the fenced blocks of all pages, of some languages or of all."""
    return [block for page in PAGES for block in blocks_of(page, *languages)]


def outside_blocks(page: Path) -> str:
    """Return the text of a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Request:
    """The request that a ``curl`` command makes."""

    method: str
    path: str
    body: str | None
    media: str


class StubbedShell:
    """A shell in a folder whose programs, except ``cat``, only record their arguments."""

    def __init__(self, folder: Path, programs: frozenset[str]) -> None:
        self._folder, self._notes = folder, folder / "notes"
        for name in programs:
            stub = folder / name
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(_STUB)
            stub.chmod(0o700)
        (folder / "docs").symlink_to(ROOT / "docs")

    def commands_of(self, block: Block) -> list[list[str]]:
        """Run a block and return the words of each command as the shell parsed them."""
        self._notes.write_text("")
        path = f"{self._folder}:/usr/bin:/bin"
        subprocess.run(
            ["/bin/bash", "-euc", block.text],
            cwd=self._folder,
            env={"PATH": path, "NOTES": str(self._notes), **_VARIABLES},
            check=True,
        )
        commands = self._notes.read_text().split(_END_OF_COMMAND)[:-1]
        return [command.split(_END_OF_WORD)[:-1] for command in commands]


def request_of(curl: list[str]) -> Request:
    """Return the request of a curl command line.

    Raises:
        ValueError: The command has no address of a service on this machine.
    """
    method, body, headers, path = None, None, "", None
    words = iter(curl[1:])
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-d":
            body = next(words)
        elif word == "-H":
            headers += next(words).lower()
        elif found := _ADDRESS.fullmatch(word):
            path = found[1]
        elif not re.fullmatch(r"-[sfN]+", word):
            raise ValueError(f"curl is not called with {word!r} here")
    if path is None:
        raise ValueError("no address of the service")
    media = "application/json" if "content-type: application/json" in headers else ""
    return Request(method or ("GET" if body is None else "POST"), path, body, media)
