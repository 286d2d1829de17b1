"""Warnings to the operator about growing storage."""

from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from caseworker.features.quotas.usage import NearlyFull
from caseworker.features.retention.postgres import PostgresRetention
from caseworker.features.retention.sweep import Retention
from caseworker.main.features import DROPS
from tests.support.stores import open_stores


class ProcessEndsError(Exception):
    """Ends the process during its second sweep."""


async def logged(
    database_url: str, unlimited: Sequence[str], full: Sequence[NearlyFull] = ()
) -> list[Mapping[str, object]]:
    """Return the log lines of a process from its start to its second sweep."""
    answers = iter([full])

    async def nearly_full() -> Sequence[NearlyFull]:
        for answer in answers:
            return answer
        raise ProcessEndsError

    async with open_stores(database_url) as stores:
        retention = Retention(
            store=PostgresRetention(stores.engines.work, DROPS),
            nearly_full=nearly_full,
            days=dict.fromkeys(DROPS),
            unlimited=unlimited,
            sweep_seconds=0,
        )
        with capture_logs() as lines, pytest.raises(ProcessEndsError):
            await retention.run()
    return list(lines)


@pytest.mark.parametrize("unlimited", [["runs", "threads"], ["threads"], []])
async def test_what_is_kept_for_ever_is_a_warning_at_the_start_and_with_each_sweep(
    database_url: str, unlimited: list[str]
) -> None:
    """No warning is logged if every kind of record has a retention period."""
    lines = await logged(database_url, unlimited)
    expected = {"event": "storage.unlimited", "log_level": "warning", "records": unlimited}

    assert lines == ([expected] * 3 if unlimited else [])


async def test_each_sweep_names_the_tenants_that_are_nearly_full(database_url: str) -> None:
    """The line has the dimension, the usage and the limit."""
    full = NearlyFull(tenant="acme", dimension="threads", used=80, limit=100)
    lines = await logged(database_url, [], [full])

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
