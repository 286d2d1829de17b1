"""Migrations must be safe below a running service: no long locks and no removals.

General SQL rules are checked by squawk, the linter of migrations for PostgreSQL.
"""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory

from tests.support.previous_release import REVISION

LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s';"

NOT_ASKED = (
    "prefer-bigint-over-int",  # the numbers here are counts of small things
    "prefer-bigint-over-smallint",
    "require-statement-timeout",  # an index takes as long as it takes; locks are bounded
)

WITH_A_NOTE = {"require-concurrent-index-creation", "require-concurrent-index-deletion"}
"""Rules that may be broken if the docstring says what waits.

A revision is one repeatable transaction, and an index of a million runs takes about a second.
"""
NOTE = "Writes to ``runs`` are blocked while"

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "20261126_1700": {"ban-drop-constraint": "its successor lets the same rows and more"},
    "20261130_1400": {
        "ban-drop-function": "the previous release uses functions with fewer parameters"
    },
    "20261201_0500": {"ban-drop-constraint": "its successor lets one end of a run, and more"},
}
"""Allowed findings of squawk for each revision, with the reason."""


def _revisions() -> list[Script]:
    """Return the revisions that the previous release lacks, oldest first."""
    scripts = ScriptDirectory(str(files("migrations")))
    every = reversed(list(scripts.walk_revisions()))
    return [script for script in every if script.revision > REVISION]


def _sql(migration: Callable[[], None]) -> str:
    """Return the statements of a migration without executing it."""
    written = io.StringIO()
    options = {"as_sql": True, "output_buffer": written}
    context = MigrationContext.configure(dialect_name="postgresql", opts=options)
    with Operations.context(context):
        migration()
    return written.getvalue()


def _findings(statements: str) -> dict[str, str]:
    """Return the findings of squawk by rule; statements after a COMMIT are no transaction."""
    found = dict[str, str]()
    for number, part in enumerate(re.split("^(?:COMMIT|BEGIN);$", statements, flags=re.MULTILINE)):
        found |= _findings_of(part, *() if number % 2 else ("--assume-in-transaction",))
    return found


def _findings_of(statements: str, *options: str) -> dict[str, str]:
    command = [
        str(Path(sys.executable).with_name("squawk")),
        *options,
        "--pg-version=16",
        "--reporter=json",
        f"--exclude={','.join(NOT_ASKED)}",
    ]
    done = subprocess.run(command, input=statements, capture_output=True, text=True, check=False)
    return {each["rule_name"]: each["message"] for each in json.loads(done.stdout)}


@pytest.mark.parametrize("script", _revisions(), ids=lambda script: script.revision)
def test_a_revision_blocks_nobody_for_long_and_takes_nothing_away(script: Script) -> None:
    """No revision rewrites a table under a lock or removes a name that the old release uses."""
    findings = _findings(_sql(script.module.upgrade))
    allowed = set(ALLOWED.get(script.revision, {}))
    if NOTE in " ".join((script.module.__doc__ or "").split()):
        allowed |= WITH_A_NOTE

    assert {rule: said for rule, said in findings.items() if rule not in allowed} == {}


@pytest.mark.parametrize("script", _revisions(), ids=lambda script: script.revision)
def test_a_revision_waits_for_no_lock_for_long(script: Script) -> None:
    """Both directions set a lock timeout, because a waiting migration blocks all later queries."""
    for migration in (script.module.upgrade, script.module.downgrade):
        assert _sql(migration).lstrip().startswith(LOCK_TIMEOUT)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("ALTER TABLE runs RENAME COLUMN kind TO sort;", "renaming-column"),
        ("ALTER TABLE runs RENAME TO executions;", "renaming-table"),
        ("ALTER TABLE runs DROP COLUMN kind;", "ban-drop-column"),
        ("DROP TABLE runs;", "ban-drop-table"),
        ("ALTER TABLE calls ALTER COLUMN seq TYPE bigint;", "changing-column-type"),
        ("ALTER TABLE runs ALTER COLUMN kind SET NOT NULL;", "adding-not-nullable-field"),
        ("ALTER TABLE runs ADD COLUMN n text NOT NULL;", "adding-required-field"),
        ("ALTER TABLE runs ADD COLUMN n float DEFAULT random();", "adding-field-with-default"),
        ("ALTER TABLE runs ADD CONSTRAINT c CHECK (fence > 0);", "constraint-missing-not-valid"),
        ("CREATE INDEX i ON runs (kind);", "require-concurrent-index-creation"),
    ],
)
def test_the_linter_finds_what_would_stop_a_service(statement: str, rule: str) -> None:
    """The linter reports one statement of each forbidden kind."""
    assert rule in _findings(f"{LOCK_TIMEOUT}\n{statement}")
