"""The edits that the mutation tool makes."""

from pathlib import Path

from tests.mutants import mutants_of

SOURCE = '''
"""Whether a < b."""


async def store(a: int, b: int) -> bool | None:
    """Return whether a == b."""
    if a < b <= 9 and (not a or b is not None):
        log.info("stored", same=a == b)
        raise ValueError("a" if a > b else "b")
    for each in [x for x in (a, b) if x
                 not in
                 (1, 2)]:
        await keep("é", each == a)
    if a:
        return True
    if b:
        return None
    return a


if __name__ == "__main__":
    run()
'''
EDITS = """
if a <= b <= 9 and (not a or b is not None):
if a < b < 9 and (not a or b is not None):
if a < b <= 9 or (not a or b is not None):
if a < b <= 9 and (a or b is not None):
if a < b <= 9 and (not a and b is not None):
if a < b <= 9 and (not a or b is None):
in
pass
await keep("é", each != a)
return False
return None
"""


def test_edits_are_made_where_a_test_should_notice_them(tmp_path: Path) -> None:
    """The tool edits comparisons, boolean operators, returns and calls, but no messages or logs."""
    path = tmp_path / "module.py"
    path.write_text(SOURCE)

    mutants = sorted(mutants_of(str(path)), key=lambda mutant: mutant.start)
    for mutant in mutants:
        compile(mutant.mutated, mutant.path, "exec")

    assert [each.edit.split(" -> ")[1] for each in mutants] == EDITS.strip().splitlines()
