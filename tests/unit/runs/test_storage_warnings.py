"""Warnings to the operator about growing storage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from caseworker.runs.quotas import NearlyFull
from caseworker.runs.retention import Days, Record, Retention


class ProcessEndsError(Exception):
    """Ends the process at its third check for a due sweep."""


@dataclass
class Sweeps:
    """A store in which one sweep is due and no record is expired."""

    looks: int = 0

    async def begin_sweep(self, interval_seconds: float) -> bool:
        self.looks += 1
        if self.looks == 3:
            raise ProcessEndsError
        return self.looks == 1

    async def days_by_tenant(self, usual: Days) -> Mapping[str, Days]:
        return {}

    async def drop(self, tenant: str, record: Record, *, days: int) -> bool:
        return False

    async def drop_pending_cancels(self) -> bool:
        return False


async def logged(
    unlimited: Sequence[str], full: Sequence[NearlyFull] = ()
) -> list[Mapping[str, object]]:
    """Return the log lines of a process from its start to its third check."""

    async def nearly_full() -> Sequence[NearlyFull]:
        return full

    retention = Retention(
        store=Sweeps(),
        nearly_full=nearly_full,
        days=dict.fromkeys(Record),
        unlimited=unlimited,
        sweep_seconds=0,
    )
    with capture_logs() as lines, pytest.raises(ProcessEndsError):
        await retention.run()
    return list(lines)


@pytest.mark.parametrize("unlimited", [["runs", "threads"], ["threads"], []])
async def test_what_is_kept_for_ever_is_a_warning_at_the_start_and_with_each_sweep(
    unlimited: list[str],
) -> None:
    """No warning is logged if every kind of record has a retention period."""
    lines = await logged(unlimited)
    expected = {"event": "storage.unlimited", "log_level": "warning", "records": unlimited}

    assert lines == ([expected] * 2 if unlimited else [])


async def test_each_sweep_names_the_tenants_that_are_nearly_full() -> None:
    """The line has the dimension, the usage and the limit."""
    full = NearlyFull(tenant="acme", dimension="threads", used=80, limit=100)
    lines = await logged([], [full])

    assert lines == [
        {
            "event": "quota.nearly_full",
            "log_level": "warning",
            "tenant": "acme",
            "dimension": "threads",
            "used": 80,
            "limit": 100,
        }
    ]
