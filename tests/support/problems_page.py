"""Writes the types of problems into `docs/problems.md`: `python -m tests.support.problems_page`."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from caseworker.main.features import PROBLEM_TYPES

PAGE: Final = Path(__file__).parents[2] / "docs/problems.md"
BEGIN: Final = "<!-- The sections below are written by `make example`. -->\n"
WIDTH: Final = 120


def render_page(page: str) -> str:
    """Return the page with a section for each current type after its mark."""
    return page.partition(BEGIN)[0] + BEGIN + "".join(_sections())


def _sections() -> Iterator[str]:
    for kind in sorted(PROBLEM_TYPES, key=lambda kind: (kind.status, kind.slug)):
        paragraphs = kind.explanation.split("\n\n")
        yield "\n\n".join((f"\n### {kind.slug} ({kind.status})", *map(_wrapped, paragraphs))) + "\n"


def _wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text()))
