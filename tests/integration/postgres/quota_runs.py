"""Runs under quotas."""

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.runs.errors import QuotaExceededError
from caseworker.runs.quotas import Quota
from caseworker.runs.run import NewRun, Run
from tests.support.stores import Stores, new_run

USUAL = Quota()


def run_within(run_id: str, *, cost: str | None = None, deadline: datetime | None = None) -> NewRun:
    new = new_run(run_id)
    budget = Budget(max_cost_usd=None if cost is None else Decimal(cost))
    return replace(new, request=replace(new.request, budget=budget, deadline=deadline))


async def accepted(stores: Stores, new: NewRun) -> Run | QuotaExceededError:
    """Return the run, or the error that refused it."""
    try:
        return (await stores.runs.accept(new, worker_id="w1")).run
    except QuotaExceededError as error:
        return error


async def set_quota(stores: Stores, **limits: Any) -> None:
    await PostgresQuotas(stores.engines.work, USUAL).put("default", Quota(**limits))
