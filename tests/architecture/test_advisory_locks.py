"""All advisory locks are in one module, because the previous release uses the same keys."""

import re
from pathlib import Path

from caseworker.platform.postgres import locks

APP = Path("app")
KEYS = {
    "LOCK_IDEMPOTENCY_KEY": r"hashtextextended(%s || E'\n' || %s, 0)",
    "TRY_IDEMPOTENCY_KEY": r"hashtextextended(tenant_id || E'\n' || idempotency_key, 0)",
    "LOCK_TENANT": "hashtextextended(%s, 2)",
    "LOCK_DEFINITIONS": r"hashtextextended(E'graphs\n' || %s, 0)",
    "LOCK_SCHEDULES": "hashtextextended('schedules ' || %s, 0)",
    "LOCK_API_KEYS": "hashtextextended('keys ' || %s, 0)",
    "LOCK_WEBHOOK_SECRETS": "hashtextextended('webhook secrets ' || %s, 0)",
    "LOCK_ATTEMPTS": r"hashtextextended(%s || E'\n' || %s, 3)",
    "LOCK_KEY_SESSIONS": r"hashtextextended(%s || E'\n' || %s, 4)",
    "HOLD_WORKER_LIFE": "hashtextextended(%s, 1)",
    "TRY_WORKER_LIFE": "hashtextextended(worker_id, 1)",
    "TRY_LOCK_MIGRATION": "1130460005",
    "LOCK_COSTS": "hashtextextended('costs', 3)",
    "TRY_LOCK_COSTS": "hashtextextended('costs', 3)",
}


def test_only_the_list_of_locks_acquires_advisory_locks() -> None:
    """A lock elsewhere would be missing from the list and from the order of locks."""
    others = [path for path in APP.rglob("*.py") if path.name != "locks.py"]

    assert [path for path in others if re.search(r"advisory_\w*lock", path.read_text())] == []


def test_the_keys_of_advisory_locks_never_change() -> None:
    """During an upgrade, the previous release excludes this one only by equal keys."""
    statements = {
        name: text
        for name, text in vars(locks).items()
        if name.startswith(("LOCK_", "TRY_", "HOLD_"))
    }

    assert statements.keys() == KEYS.keys()
    for name, statement in statements.items():
        key = re.search(r"lock(_shared)?\((.*)\)$", statement)
        assert key is not None
        assert key[2] == KEYS[name]
