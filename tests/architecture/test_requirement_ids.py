"""Every requirement mark must name a known requirement."""

import pytest

from tests.architecture.requirement_ids import (
    TESTS,
    forgotten_ids,
    known_ids,
    marked_ids,
    named_ids,
    planned_ids,
    unknown_ids,
)


def test_every_marked_requirement_exists() -> None:
    """All test folders are checked."""
    known = known_ids()
    found = {
        str(path.relative_to(TESTS)): unknown
        for path in TESTS.rglob("*.py")
        if (unknown := unknown_ids(path.read_text(encoding="utf-8"), known))
    }

    assert found == {}


def test_every_requirement_has_a_test_that_names_it() -> None:
    """A requirement without a test is not verified."""
    marked: set[str] = set()
    for path in TESTS.rglob("*.py"):
        marked.update(marked_ids(path.read_text(encoding="utf-8")))

    assert sorted(known_ids() - marked) == []


def test_an_unknown_id_is_found() -> None:
    """The check reports an unknown ID."""
    source = """
@pytest.mark.req("001/inv1", "001/inv9")
def test_a(): ...

pytestmark = [pytest.mark.req(IDS)]
"""
    assert set(marked_ids(source)) == {"IDS", "001/inv1", "001/inv9"}
    assert unknown_ids(source, known_ids()) == ["001/inv9", "IDS"]


def test_the_table_is_read() -> None:
    """The table has a few hundred requirements, including these."""
    assert {
        "000/E1",
        "001/inv5",
        "002/15.3",
        "003/FR1.1",
        "004/guard",
        "card/layout",
    } <= known_ids()


def test_a_requirement_is_either_proven_or_planned() -> None:
    """An ID that is built moves from one table to the other."""
    assert known_ids() & planned_ids() == frozenset()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("`--workers 2` marked for cw/15.owner.", {"cw/15.owner"}),
        ("003/FR4.2: no test; 003/NFR1.1, 000/perf count", {"003/FR4.2", "003/NFR1.1", "000/perf"}),
        ("id\twhat\ncw/15.exec-restart\tresumes\n", {"cw/15.exec-restart"}),
        ("(001/inv3), retry jitter (000/E2)", {"001/inv3", "000/E2"}),
        ("see docs/000/E1, seeds/001/x.md, #12/3, 2024/25 and app/cw/15.owner", set()),
        ("all of cw/15.* and 002/", set()),
    ],
)
def test_the_ids_in_a_text_are_read(text: str, named: set[str]) -> None:
    """Issues name them in sentences, tables in their first column; paths are left out."""
    assert named_ids(text) == named


def test_an_id_of_an_issue_that_no_table_has_is_found() -> None:
    """Known and planned IDs are not reported."""
    text = "cw/15.owner, cw/17.once, cw/15.forgotten and 003/FR9.9"

    assert forgotten_ids(text) == ["003/FR9.9", "cw/15.forgotten"]


def test_no_document_of_this_repository_names_a_forgotten_id() -> None:
    """Pages, the changelog and the tests are read."""
    root = TESTS.parent
    paths = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *TESTS.glob("*.tsv")]
    found = {
        str(path.relative_to(root)): forgotten
        for path in paths
        if (forgotten := forgotten_ids(path.read_text(encoding="utf-8")))
    }

    assert found == {}
