"""The page of problems is written from the table of problem types."""

from tests.support.problems_page import PAGE, render_page


def test_the_page_of_problems_has_a_section_for_each_type() -> None:
    """Write it again: `make example`."""
    page = PAGE.read_text(encoding="utf-8")

    assert render_page(page) == page
    assert "### run-not-found (404)\n" in page
