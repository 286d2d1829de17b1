"""A run that was just accepted has the same fields as the run that is read later."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caseworker.runs.postgres.rows import ACCEPTED_COLUMNS
from caseworker.runs.postgres.tables import CALLER_JSON
from caseworker.runs.run import CancelRequest, NewRun, Queueing, Run, RunKey, Webhook
from tests.support.stores import Oracle, Stores, new_run

KEY = RunKey("default", "case-1")
CALLER_VALUES: dict[str, Any] = {"metadata": {"ticket": 7}}


def full_run() -> NewRun:
    """Return a run with a value in each column that its caller determines."""
    new = new_run("case-1", key="order-7")
    return replace(
        new,
        request=replace(new.request, deadline=datetime.now(UTC) + timedelta(days=1)),
        queueing=Queueing(priority=3, concurrency_key="customer", concurrency_limit=2),
        webhook=Webhook("https://example.org/ended"),
        **CALLER_VALUES,
    )


def test_each_column_of_the_caller_has_a_value_here() -> None:
    """A new column must be added to the run of this module."""
    assert CALLER_VALUES.keys() == set(CALLER_JSON)
    absent = {name for name, value in ACCEPTED_COLUMNS.items() if value(full_run()) is None}
    assert absent == {"creator", "reserved_cost_usd"}  # of runs with clients' tools or keys


@pytest.mark.parametrize("after_cancel", [False, True])
async def test_an_accepted_run_has_the_fields_that_are_read_later(
    stores: Stores, oracle: Oracle, after_cancel: bool
) -> None:
    """This includes a run that replaces an expired cancel request with its ID."""
    if after_cancel:
        await stores.runs.cancel(KEY, CancelRequest(requested_by="ops"))
        await oracle.rows("UPDATE runs SET pending_cancel_expires_at = now() - interval '1 s'")

    accepted = (await stores.runs.accept(full_run(), worker_id=None)).run

    stored = await stores.runs.get(KEY)
    assert stored is not None
    for field in fields(Run):
        assert getattr(stored, field.name) == getattr(accepted, field.name), field.name
    columns = ", ".join(ACCEPTED_COLUMNS)
    (row,) = await oracle.rows(f"SELECT {columns} FROM runs")  # noqa: S608
    assert None not in row
