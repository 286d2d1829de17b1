"""Links between the repository's own pages work without a site."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, outside_blocks

LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings: lower case, and hyphens for blanks."""
    titles = [
        re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", title)
        for title in HEADING.findall(outside_blocks(page))
    ]
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Links are relative to the page and stay inside the repository."""
    dead = []
    for target, anchor in LINK.findall(outside_blocks(page)):
        file = (page.parent / target).resolve() if target else page
        if not file.is_relative_to(ROOT) or not file.exists():
            dead.append(target)
        elif anchor and anchor not in anchors_of(file):
            dead.append(f"{target}#{anchor}")

    assert dead == []
