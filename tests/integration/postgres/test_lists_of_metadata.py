"""Lists with metadata filters contain exactly the matching runs, in order, on every page."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from caseworker.runs.ports import RunFilter, json_of_text
from caseworker.runs.read.postgres import run_listing
from caseworker.runs.run import TERMINAL, RunKey, RunKind, RunStatus
from tests.support.stores import Oracle, Stores, new_run

SEED = 7
VALUES = ["7", 7, 7.5, True, None, "a", {"in": 7}, ["7"], 'quote " \\ é']
AGENTS = ["clerk", "helper", None]

INSERT = """
INSERT INTO runs (tenant_id, run_id, kind, status, request, metadata, request_hash, created_at,
    finished_at, worker_id)
SELECT row ->> 'tenant', row ->> 'run_id', row ->> 'kind', row ->> 'status',
    request || jsonb_build_object('kind', row ->> 'kind') || (row -> 'request'), row -> 'metadata',
    'h', now() - make_interval(hours => (row ->> 'hours')::int),
    CASE WHEN row ->> 'status' IN ('completed', 'failed') THEN now() END,
    CASE row ->> 'status' WHEN 'running' THEN 'w1' END
FROM runs, jsonb_array_elements(%s::jsonb) AS row WHERE run_id = 'first'
"""


def drawn(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a random run; a third of them are 30 days older."""
    kind, agent = rng.choice(["case", "agent", "external"]), rng.choice(AGENTS)
    named: dict[str, Any] = {}
    if kind == "agent":
        named = {"graph_ref": {"name": agent or "other", "version": 1}}
    elif kind == "external":
        data = {"external": {"name": agent or "other"}}
        named = {"graph": {"steps": [{"data": data}]}}
    elif agent:
        chat = {"thread_id": "talk", "message_id": "m", "messages": [], "user_tools": []}
        named = {"chat": {**chat, "agent": {"name": agent, "version": 1}}}
    return {
        "tenant": rng.choice(["default", "default", "default 9", "other"]),
        "run_id": f"run-{number:04}",
        "kind": kind,
        "status": rng.choice(["completed", "failed", "waiting", "running"]),
        "agent": agent or ("other" if kind != "case" else None),
        "request": named,
        "metadata": {key: rng.choice(VALUES) for key in rng.sample("xyz", rng.randint(0, 3))},
        "hours": number // 4 + (720 if rng.random() < 0.3 else 0),
    }


def matches(row: dict[str, Any], wanted: RunFilter) -> bool:
    """Return whether a run matches, computed without the database."""
    named = (
        wanted.status in (None, row["status"])
        and wanted.kind in (None, row["kind"])
        and wanted.agent in (None, row["agent"])
    )
    return named and all(
        key in row["metadata"]
        and any(
            type(one) is type(row["metadata"][key]) and one == row["metadata"][key]
            for one in json_of_text(value)
        )
        for key, value in wanted.metadata.items()
    )


@pytest.mark.parametrize("checked", [0, 3, 500])
async def test_lists_of_metadata_contain_exactly_the_matching_runs(
    stores: Stores, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, checked: int
) -> None:
    """Random filters, with any number of runs checked before the index is searched."""
    monkeypatch.setattr(run_listing, "CHECKED", checked)
    rng = random.Random(SEED)
    await stores.runs.accept(new_run("first"), worker_id="w1")
    rows = [drawn(rng, number) for number in range(400)]
    await oracle.rows(INSERT, json.dumps(rows))
    rows.sort(key=lambda row: (-row["hours"], row["run_id"]), reverse=True)
    texts = [value if isinstance(value, str) else json.dumps(value) for value in VALUES[:6]]
    texts.append(str(VALUES[-1]))
    found = 0

    for _ in range(60):
        tenant = rng.choice(["default", "default 9"])
        wanted = RunFilter(
            metadata={
                key: rng.choice(texts) for key in rng.sample("xyz", rng.choice([1, 1, 1, 2]))
            },
            status=rng.choice([None, None, *(RunStatus(s) for s in ("completed", "waiting"))]),
            kind=rng.choice([None, None, RunKind.AGENT, RunKind.CASE]),
            agent=rng.choice([None, None, "clerk"]),
            limit=3,
        )
        expected = [row for row in rows if row["tenant"] == tenant and matches(row, wanted)]
        listed = await all_pages(stores, tenant, wanted)
        active = [row["run_id"] for row in reversed(expected) if row["status"] not in TERMINAL]
        stoppable = await stores.runs.stoppable(tenant, wanted)

        assert listed == [row["run_id"] for row in expected], wanted
        assert list(stoppable) == [RunKey(tenant, run_id) for run_id in active[:3]], wanted
        found += len(listed)
    assert found > 100


async def all_pages(stores: Stores, tenant: str, wanted: RunFilter) -> list[str]:
    """Return the IDs on all pages of a list."""
    cursor, found = None, list[str]()
    while True:
        page = await stores.runs.find(tenant, replace(wanted, cursor=cursor))
        found += [run.key.run_id for run in page.items]
        if (cursor := page.next_cursor) is None:
            return found
