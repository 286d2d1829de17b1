"""No statement of the service reads more rows than it needs, however many runs are stored.

A scenario drives every route and every loop of two real processes. Each statement is explained on
the connection that sends it, with its role, its settings and its parameters. ``statements.toml``
has an entry for each, and ``exceptions.toml`` lists those that may read more rows, with reasons.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psycopg
import pytest

from tests.integration.plans.entries import (
    Exemption,
    entries_of,
    exemptions,
    expected,
    names_of,
    senders,
    unreached,
)
from tests.integration.plans.large import ORIGIN, fill
from tests.integration.plans.probe import Explained, Probe
from tests.integration.plans.scenario import play, scenario
from tests.support.api import openapi_document
from tests.support.fake_provider.client import FakeProvider

GROWING = frozenset({"runs", "calls", "events", "messages", "procrastinate_jobs", "run_costs"})
"""Tables that no statement may read sequentially."""

FREE_ROWS, ROWS_A_RESULT = 100, 20
"""Rows that a statement may read, and further rows for each one that it returns or changes."""


def sequential(plan: Mapping[str, Any]) -> frozenset[str]:
    """Return the tables that a plan reads sequentially."""
    own = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set()
    return frozenset(own).union(*map(sequential, plan.get("Plans", ())))


def excessive(explained: Iterable[Explained], allowed: Iterable[Exemption]) -> Iterator[str]:
    """Yield the plans that read more than their statement may."""
    for each in explained:
        mine = [
            one for one in allowed if one.place == each.place and one.contains in each.statement
        ]
        scanned = (sequential(each.plan) | each.sequential) & GROWING
        scanned -= {table for one in mine for table in one.scans}
        most = FREE_ROWS + ROWS_A_RESULT * each.rows
        if scanned or sum(each.rows_read.values()) > max(most, *(one.rows for one in mine), 0):
            yield shown(each, scanned)


def shown(each: Explained, scanned: Iterable[str]) -> str:
    """Return a statement that reads too much, with its parameters and its plan."""
    return "\n".join(
        (
            f"{each.place} ({each.phase}, {each.mode} plan)",
            f"  read {dict(each.rows_read)}; returned or changed {each.rows}",
            f"  sequential scans: {', '.join(sorted(scanned)) or 'none'}",
            f"  {each.statement}",
            f"  parameters: {', '.join(each.parameters)[:2000]}",
            *nodes(each.plan, "  "),
        )
    )


def nodes(plan: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield a line for each node of a plan."""
    names = ("Node Type", "Index Name", "Relation Name", "Function Name", "Index Cond", "Filter")
    named = (str(plan[name]) for name in names if name in plan)
    removed = plan.get("Rows Removed by Filter", 0)
    rows = f"{plan['Actual Rows']} rows x {plan['Actual Loops']}, {removed} removed"
    yield f"{indent}{' '.join(named)[:300]}: {rows}"
    for each in plan.get("Plans", ()):
        yield from nodes(each, indent + "  ")


def unrequested(requests: Iterable[tuple[str, str]]) -> list[str]:
    """Return the operations of the OpenAPI document that the scenario did not request."""
    return [
        f"{method.upper()} {path}"
        for path, operations in openapi_document()["paths"].items()
        for method in operations
        if not any(
            method.upper() == sent and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), target)
            for sent, target in requests
        )
    ]


async def test_every_statement_has_an_entry_and_can_be_explained(database_url: str) -> None:
    """A statement without an entry fails, and an entry or a function that sends nothing."""
    probe = Probe()
    with psycopg.connect(database_url, autocommit=True) as connection:
        names = names_of(connection)
    with probe.watching():
        async with FakeProvider() as provider, scenario(database_url, provider) as told:
            await play(told, probe, "small")
    sent = entries_of(probe.sent, names)

    assert unrequested(told.requests) == []
    assert [each for each in probe.explained if each.error] == []
    assert {text for _, text in probe.sent} == {each.statement for each in probe.explained}
    assert sorted(set(senders()) - unreached() - probe.functions) == []
    assert sorted(sent ^ expected()) == [], "see `python -m tests.integration.plans`"


@pytest.mark.proof
async def test_no_statement_reads_more_of_100_000_runs_than_it_needs(database_url: str) -> None:
    """Each statement is executed with a plan for any values, and with one for its values."""
    probe = Probe(modes=("generic", "custom"))
    async with FakeProvider() as provider:
        async with scenario(database_url, provider) as told:
            await told.of_tenant(ORIGIN, erases=False)
        with psycopg.connect(database_url, autocommit=True) as connection:
            rows = fill(connection)
        with probe.watching():
            async with scenario(database_url, provider) as told:
                await play(told, probe, "large", "small")
    executed = [each for each in probe.explained if each.mode]
    found = list(excessive(executed, exemptions()))

    assert rows["runs"] >= 100_000
    assert all(rows[table] > 10_000 for table in GROWING), rows
    assert {each.mode for each in executed} == {"generic", "custom"}
    assert [each for each in probe.explained if each.error] == []
    assert not found, "\n\n".join((f"{len(found)} plans read too much", *found))
