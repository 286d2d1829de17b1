"""Which records of an ended run are imported by a run that resumes it."""

from typing import Any

import pytest

from caseworker.runs.accept.resume import ImportedRows, ImportRow, rows_to_import
from caseworker.runs.errors import InvalidRunError


def line(seq: int, parent: int | None, begun: int, ended: int, **more: Any) -> ImportRow:
    """Return the record of a successful call; ``more`` overrides fields."""
    return ImportRow(
        **{
            "seq": seq,
            "node_id": f"n{seq:06}",
            "parent_id": None if parent is None else f"n{parent:06}",
            "kind": "llm",
            "name": "ask",
            "status": "success",
            "call_key": f"key/{seq}",
            "outcome": "result",
            "start_ts_ms": begun,
            "end_ts_ms": ended,
            "imported": False,
            **more,
        }
    )


ROOT = line(1, None, 0, 99, kind="system", call_key=None, outcome=None, status="fail")
FAILED: dict[str, Any] = {"status": "fail", "outcome": "failure"}
STEP: dict[str, Any] = {"kind": "system", "name": "step"}
ATTEMPT: dict[str, Any] = {"kind": "system", "name": "attempt", "call_key": None, "outcome": None}


def chosen(known: list[int], unknown: list[int], still_open: list[int]) -> ImportedRows:
    return ImportedRows(known=known, unknown=unknown, open=still_open)


def test_a_failure_that_was_survived_is_on_the_way() -> None:
    """A run resumes at the last failure, or at one that overlaps a call; earlier ones stay."""
    lines = [
        ROOT,
        line(2, 1, 0, 90, **STEP, **FAILED),
        line(3, 2, 1, 5, **FAILED),
        line(4, 2, 6, 9),
        line(5, 2, 10, 15, **FAILED),
        line(6, 2, 10, 20),
    ]

    assert rows_to_import(lines, None) == chosen([3, 4, 6], [], [1, 2])
    assert rows_to_import(lines, "n000003") == chosen([], [], [1, 2])
    assert rows_to_import(lines, "n000004") == chosen([3, 4], [], [1, 2])


@pytest.mark.parametrize(
    ("reply", "step"),
    [
        ({"incomplete": True}, {**FAILED, "error_class": "ModelAnswerIncomplete"}),
        ({"incomplete": True}, {"status": "halt", "outcome": None}),
        ({}, {**FAILED, "error_class": "OutputInvalidError"}),
        ({}, {**FAILED, "error_class": "UnfitReplyError"}),
    ],
)
def test_a_reply_that_would_end_its_step_again_is_asked_for_anew(
    reply: dict[str, Any], step: dict[str, Any]
) -> None:
    """A reply that was followed by another record is kept, even within the same millisecond."""
    lines = [
        ROOT,
        line(2, 1, 0, 90, **{**STEP, **step}),
        line(3, 2, 1, 5, **reply),
        line(4, 3, 5, 7, kind="tool"),
        line(5, 2, 8, 15, **reply),
    ]

    assert rows_to_import(lines, None) == chosen([3, 4], [], [1, 2])
    assert rows_to_import(lines, "n000004") == chosen([3, 4], [], [1, 2])
    assert rows_to_import(lines, "n000003") == chosen([3], [], [1, 2])


def test_a_reply_of_a_step_that_failed_otherwise_is_not_paid_for_twice() -> None:
    """A reply that its step accepted although incomplete is kept too."""
    lines = [
        ROOT,
        line(2, 1, 0, 90, **{**STEP, **FAILED}, error_class="ValueError"),
        line(3, 2, 1, 5),
        line(4, 1, 0, 9, **STEP),
        line(5, 4, 1, 8, incomplete=True),
    ]

    assert rows_to_import(lines, None) == chosen([3, 4, 5], [], [1, 2])


def test_what_ended_well_is_whole() -> None:
    """Failures and attempts inside it are kept, but not those of a step that is resumed."""
    lines = [
        ROOT,
        line(2, 1, 0, 9, **STEP),
        line(3, 2, 1, 5, **FAILED),
        line(4, 2, 1, 5, **{**ATTEMPT, "status": "fail"}),
        line(5, 1, 10, 90, **{**STEP, **FAILED}),
        line(6, 5, 10, 12, **{**ATTEMPT, "status": "fail"}),
        line(7, 5, 13, 15),
        line(8, 7, 14, 15, **ATTEMPT),
    ]

    assert rows_to_import(lines, None) == chosen([2, 3, 4, 7, 8], [], [1, 5])
    assert rows_to_import(lines, "n000008") == chosen([2, 3, 4, 7, 8], [], [1, 5])
    assert rows_to_import(lines, "n000001") == rows_to_import(lines, None)


def test_a_tool_that_may_have_taken_effect_stays_unknown() -> None:
    """An interrupted model call, or a tool that never started, is simply called again."""
    cut_off: dict[str, Any] = {"status": "halt", "outcome": None}
    lines = [
        ROOT,
        line(2, 1, 0, 90, **STEP, **cut_off),
        line(3, 2, 1, 5, kind="tool", **cut_off),
        line(4, 2, 1, 5, **cut_off),
        line(5, 2, 1, 5, kind="tool", status="halt", outcome="not_made"),
    ]

    assert rows_to_import(lines, None) == chosen([], [3], [1, 2])


def test_of_a_step_that_was_begun_twice_the_last_node_goes_on() -> None:
    """The first node, lost with its worker, keeps its finished calls."""
    lost: dict[str, Any] = {**STEP, "status": "halt", "outcome": None, "call_key": "step:s"}
    lines = [
        ROOT,
        line(2, 1, 0, 30, **lost),
        line(3, 2, 1, 5),
        line(4, 1, 31, 90, **{**lost, "status": "fail", "outcome": "failure"}),
        line(5, 4, 32, 40),
    ]

    assert rows_to_import(lines, None) == chosen([3, 5], [2], [1, 4])
    assert rows_to_import(lines, "n000003") == chosen([3], [], [1, 2])


def test_what_ended_later_is_not_there_yet() -> None:
    """Of two nodes that ended in the same millisecond, the older one ended first."""
    lines = [
        ROOT,
        line(2, 1, 0, 90, **STEP),
        line(3, 2, 1, 7),
        line(4, 2, 1, 7),
        line(5, 2, 1, 8),
        line(6, 1, 0, 6, **STEP),
    ]

    assert rows_to_import(lines, "n000003") == chosen([3, 6], [], [1, 2])
    assert rows_to_import(lines, "n000004") == chosen([3, 4, 6], [], [1, 2])


def test_a_node_that_is_not_there_is_refused() -> None:
    """The error names the field; a run without a journal has no nodes."""
    for lines in ([ROOT], []):
        with pytest.raises(InvalidRunError) as refused:
            rows_to_import(lines, "n000009")
        assert refused.value.field == "from.until"
    assert rows_to_import([], None) == chosen([], [], [])
