"""The oracle for every stored or returned snapshot of an ExecutionGraph."""

import json
from collections.abc import Mapping
from typing import Any

from app.trace.invariants import regressions, violations


def assert_sound(snapshot: Mapping[str, Any]) -> None:
    """Fail unless a snapshot keeps every invariant and survives a trip through strict JSON."""
    assert violations(snapshot) == []
    assert json.loads(json.dumps(snapshot, allow_nan=False)) == snapshot


def assert_no_regression(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> None:
    """Fail if anything went backwards between two snapshots of one graph."""
    assert regressions(earlier, later) == []
