"""Every requirement mark must name a known requirement."""

from tests.architecture.requirement_ids import TESTS, known_ids, marked_ids, unknown_ids


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
