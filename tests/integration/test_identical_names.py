"""Two tenants that use the same names for everything, in lockstep and without row-level security.

Each step of the story is done by one tenant and then by the other one: requests, and the work of a
worker on their runs. Both get the answers that a tenant gets who is alone, and no step changes a
row of another tenant. A statement that forgets the tenant in one condition breaks this, because
every row of a tenant has a twin with the same names. Row-level security would hide most of these
mistakes; where the user of the database may not use it, only the statements keep tenants apart.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import psycopg
import pytest
from psycopg import sql

from caseworker.core.budget.accounts import TENANT, Hold
from caseworker.engine.waiting_calls import Question, WaitingCall
from caseworker.features.external.postgres import PostgresAttempts, key_hash
from caseworker.features.retention.postgres import PostgresRetention
from caseworker.features.schedules.due_runs import ScheduleFiring
from caseworker.features.webhooks.delivery import DeliveryStatus, EndpointAnswer
from caseworker.features.webhooks.postgres import PostgresWebhooks
from caseworker.main.features import DROPS
from caseworker.models.ports import RateLimit
from caseworker.models.provider_limits import PostgresProviderLimits
from caseworker.runs.ports import JournalWrite, LateResult
from caseworker.runs.recover.postgres import PostgresWorkers
from caseworker.runs.run import EventRecord, Queueing, Run, RunKey
from caseworker.settings.schema import Settings
from tests.support.api import Api, client_of
from tests.support.artifacts import LIMITS, new_artifact
from tests.support.database import TestServer
from tests.support.stores import (
    end_of,
    graph_with_calls,
    new_run,
    records_of,
    recovery_of,
)
from tests.support.tenant_requests import GRAPH, GRAPHS, PLANTED, changes, resolved_path
from tests.support.tenants import OPERATOR_KEY, Tenants, stable_answer

ALONE, TENANTS = "six", ("one", "two")
"""The tenant that does the story first, while there is no other, and the two in lockstep."""
WHOSE_NAME = re.compile(rf"\b(?:{'|'.join((ALONE, *TENANTS))})\b")
VARYING = re.compile(
    r"""datetime\([^)]*\)
    | (?:seconds|_ms|available)[^0-9]{1,4}[0-9.e-]+
    | \d{4}-\d\d-\d\d[T\ ][0-9:.]+(?:[+-]\d\d:?\d\d|Z)?
    | [0-9a-f-]{16,} | \b1\d{9,12}\b(?:[.,]\d+)?
    | "seq":\d+(?=,"parent_id") | (?<=Z","seq":)\d+ | (?<=\+00:00","seq":)\d+(?=\}$)
    | \\*"(?:entry_id|id|sealed|secret|key)\\*":\ ?\\*"?[^",}]+""",
    re.VERBOSE,
)
"""Times, generated IDs, numbers of sequences and secrets, which differ between two tenants."""
WHOSE = """
SELECT relname, attname FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND attnum > 0
    AND (attname = 'tenant_id' OR (relname, attname) = ('procrastinate_jobs', 'queueing_lock'))
    AND NOT attisdropped ORDER BY 1
"""
"""Each table of tenants, with the column that names or starts with the tenant."""


class Rows:
    """The rows of the tenants, read past the service."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        columns = connection.execute(WHOSE).fetchall()
        assert len(columns) > 20
        each = sql.SQL(
            "SELECT tenant, {2} || row_to_json({0}) FROM {0}, unnest(%(tenants)s::text[]) AS tenant"
            " WHERE tenant IN (split_part({1}, '/', 1), split_part({1}, '/', 2))"
        )
        self._query = sql.SQL(" UNION ALL ").join(
            each.format(sql.Identifier(table), sql.Identifier(column), sql.Literal(table))
            for table, column in columns
        )

    def read(self) -> list[list[str]]:
        """Return the rows of each tenant."""
        found = self._connection.execute(self._query, {"tenants": [ALONE, *TENANTS]})
        rows = sorted(found.fetchall())
        return [[row for whose, row in rows if whose == each] for each in (ALONE, *TENANTS)]


@dataclass
class Side:
    """One tenant, and the worker that executes its runs."""

    tenant: str
    tenants: Tenants
    api: Api
    connection: psycopg.Connection[Any]
    owned: dict[str, Run] = field(default_factory=dict)

    @property
    def other(self) -> str:
        return TENANTS[self.tenant == TENANTS[0]]

    @property
    def worker(self) -> str:
        return f"worker of {self.tenant}"

    def key(self, run_id: str) -> RunKey:
        return RunKey(self.tenant, run_id)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        path = resolved_path(
            path, self.tenants, self.connection, mine=self.tenant, other=self.other
        )
        answer = await self.tenants.ask(self.tenant, method, path, body, **headers)
        assert answer.status_code != 500, (method, path, answer.text)
        return stable_answer(answer, {})

    async def claim(self, run_id: str) -> bool:
        claimed = await self.api.store.claim(self.key(run_id), self.worker)
        if claimed is not None:
            self.owned[run_id] = claimed
        return claimed is not None


NONE: Mapping[str, str] = {}
Step = Callable[[Side], Awaitable[Any]]


def plain(value: Any) -> str:
    """Return a value without the tenant's name, times and generated IDs."""
    return _plain(value if isinstance(value, str) else repr(value))


@cache
def _plain(text: str) -> str:
    return VARYING.sub("*", WHOSE_NAME.sub("<tenant>", text))


def request(method: str, path: str, body: Any = None, headers: Mapping[str, str] = NONE) -> Step:
    async def step(side: Side) -> Any:
        return await side.ask(method, path, body, **headers)

    step.__name__ = f"{method} {path}"
    return step


def settled(hold: Hold, cost: str) -> Hold:
    return Hold(node_id=hold.node_id, attempt=hold.attempt, cost_usd=Decimal(cost), tokens=7)


READS = (
    *("/runs", "/runs?status=completed", "/runs?metadata.of=x", "/statistics?period=day"),
    *("/approvals", "/graphs", "/graphs/x/versions", "/agents", "/schedules", "/threads", "/keys"),
    *("/webhooks/deliveries", "/webhooks/secret", "/mcp-credentials", "/audit", "/quotas"),
    *("/spend?group_by=model", "/threads/x/messages?tree=true", "/runs/job", "/runs/job/trace"),
    *("/runs/job/calls/n000002", "/runs/job/events", "/runs/job/approvals", "/runs/job/artifacts"),
)


async def read_all(side: Side) -> Any:
    return [(path, await side.ask("GET", path, accept="application/json")) for path in READS]


async def read_run(side: Side) -> Any:
    """Read a run as its owner, its followers and the next owner do."""
    store, key = side.api.store, side.key("job")
    return [
        await store.calls(key),
        await store.started_calls(key),
        await store.spent(key),
        await store.nodes(key),
        await store.call(key, "n000002"),
        await store.payloads(key, max_bytes=10_000),
        await store.events(key, after=0, limit=50),
        await store.earlier(key, "k"),
        [each.name for each in await side.api.files.find(key)],
        await side.api.approval_store.of_run(key),
    ]


HOLD = Hold(node_id="n000002", attempt=1, cost_usd=Decimal("0.5"), tokens=10)
QUESTION = Question(
    subject="pay", message="Pay?", arguments={"amount": 5}, schema=None, timeout_seconds=60
)


def gives_quota(max_running: int) -> Step:
    async def step(side: Side) -> Any:
        body = {"max_cost_usd_per_day": 1, "max_running": max_running, "max_queued": 60}
        body |= {"max_runs_per_minute": 1000, "max_stored_bytes": 10**8, "max_definitions": 50}
        headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        put = await side.tenants.client.put(f"/quotas/{side.tenant}", json=body, headers=headers)
        return put.status_code

    return step


def starts(run_id: str) -> Step:
    """Accept a run in the process that would execute it at once, if nothing else comes first."""

    async def step(side: Side) -> Any:
        queueing = Queueing(concurrency_key=run_id[:6], concurrency_limit=1)
        new = replace(new_run(run_id, tenant=side.tenant), queueing=queueing)
        return (await side.api.store.accept(new, worker_id=side.worker)).run.status

    step.__name__ = f"start {run_id}"
    return step


def claims(run_id: str) -> Step:
    async def step(side: Side) -> bool:
        return await side.claim(run_id)

    step.__name__ = f"claim {run_id}"
    return step


def journals(run_id: str, key: str = "k", llm_calls: int = 2) -> Step:
    async def step(side: Side) -> Any:
        run, now = side.owned[run_id], datetime.now(UTC)
        calls = records_of(
            graph_with_calls(run_id, llm_calls=llm_calls),
            call_key=key,
            value="v",
            request={"p": 1},
            outcome="result",
        )
        about: dict[str, Any] = {"step_id": "s", "node_id": "n000002"}
        events = (
            EventRecord(seq=1, ts=now, type="step.started", **about),
            EventRecord(seq=2, ts=now, type="content_chunk", data={"text": "a"}, **about),
        )
        write = JournalWrite(
            key=run.key,
            fence=run.fence,
            calls=calls,
            events=events if key == "k" else (),
            accounts=(TENANT,),
            holds=(HOLD,) if key == "k" else (),
        )
        granted = await side.api.journal.write(write)
        return granted.owned, granted.holds

    step.__name__ = f"journal {run_id}"
    return step


async def settles(side: Side) -> Any:
    run = side.owned["job"]
    write = JournalWrite(key=run.key, fence=run.fence, settled=(settled(HOLD, "0.25"),))
    return (await side.api.journal.write(write)).owned


async def saves_file(side: Side) -> Any:
    run = side.owned["job"]
    return await side.api.files.save(run.key, run.fence, new_artifact("drawing.png"), LIMITS)


async def asks(side: Side) -> Any:
    asked = WaitingCall(call_id="asked", node_id="n000002", call_key="k", question=QUESTION)
    return await side.api.approval_store.ask(side.owned["job"], asked)


async def suspends(side: Side) -> None:
    run = side.owned["job"]
    await side.api.store.release(
        run, active_seconds=1, calls=(), counted=False, waits_for=("asked",), settled=()
    )


async def releases(side: Side) -> None:
    await side.api.store.release(side.owned["job"], active_seconds=1, calls=(), counted=True)


def finishes(run_id: str) -> Step:
    async def step(side: Side) -> Any:
        finished = await side.api.journal.finish(end_of(side.owned[run_id]))
        return finished.done, finished.frees_capacity

    step.__name__ = f"finish {run_id}"
    return step


async def adds_late(side: Side) -> None:
    run = side.owned["job"]
    late = LateResult(key=run.key, fence=run.fence, calls=(), usage={"tokens": 99})
    await side.api.store.late(late)


async def opens_attempts(side: Side) -> Any:
    attempts, key = side.api.services[PostgresAttempts], side.key("ext")
    numbers = [
        await attempts.open(key, key_hash(f"{side.tenant} {n}"), renew=renew)
        for n, renew in enumerate((False, True, False))
    ]
    used = await attempts.use(key_hash(f"{side.tenant} 2"))
    before = await attempts.known_objects(side.tenant, ["resp_1"])
    await attempts.note_objects(key, ["resp_1"], 5)
    known = before, await attempts.known_objects(side.tenant, ["resp_1"])
    found = await attempts.find(key_hash(f"{side.tenant} 2"))
    return numbers, used, known, found, await attempts.owner_of(key)


async def delivers(side: Side) -> Any:
    """Make the attempts of each delivery: one that fails, and one that is answered."""
    webhooks = side.api.services[PostgresWebhooks]
    found = await webhooks.find(side.tenant, status=None, run_id="job", limit=5, cursor=None)
    shown = list[Any]()
    for each in found.items:
        for status in (DeliveryStatus.PENDING, DeliveryStatus.DEAD):
            attempt = await webhooks.begin(side.tenant, each.delivery_id, claim_seconds=60)
            shown.append(attempt is not None)
            if attempt is not None:
                answer = EndpointAnswer(status_code=500)
                await webhooks.end(attempt.delivery, answer, status=status, pause_seconds=0)
        shown.append(await webhooks.get(side.tenant, each.delivery_id))
        shown.append(await webhooks.redeliver(side.tenant, each.delivery_id))
    return shown


async def fires(side: Side) -> Any:
    side.connection.execute(
        "UPDATE schedules SET next_at = now() - interval '1 second' WHERE tenant_id = %s",
        (side.tenant,),
    )
    parts = side.api.parts
    await ScheduleFiring(parts.engines, parts.limits).fire(side.tenant, "x")
    return await side.ask("GET", "/schedules/x")


async def takes_rate_slots(side: Side) -> Any:
    limits = PostgresProviderLimits(side.api.parts.engines.work)
    limit = RateLimit(model="m", requests_per_minute=1)
    waits = [await limits.take(limit, side.tenant, 1) > 0 for _ in range(2)]
    await limits.leave(limit, side.tenant)
    return waits[1:]


RUN = {"kind": "graph", "graph": GRAPH, "webhook": {"url": "https://example.com/hook"}}
JOB = {**RUN, "run_id": "job", "metadata": {"of": "x"}, "concurrency_key": "c"}
EXTERNAL = {"kind": "external", "run_id": "ext"}
KEYED = {"idempotency_key": "k"}
CHANGES = [each for each in changes("x", "y", KEYED, GRAPH) if each[0] != PLANTED]


async def ages(side: Side) -> None:
    """Move the claims and ends of three runs into the past, and a deadline."""
    side.connection.execute(
        "UPDATE runs SET claimed_at = claimed_at - interval '1 day', queued_at = queued_at"
        " - interval '1 day', finished_at = finished_at - interval '2 days',"
        " deadline = CASE WHEN run_id = 'late' THEN now() END"
        " WHERE tenant_id = %s AND run_id IN ('lost', 'late', 'kept')",
        (side.tenant,),
    )


async def beats(side: Side) -> Any:
    """Return the result of the last heartbeat of the worker that owns runs of the tenant."""
    workers = PostgresWorkers(side.api.parts.engines)
    beat = await workers.beat(side.worker)
    await workers.leave(side.worker)  # so that its runs are lost
    return sorted(beat.owned), sorted(beat.cancelled)


async def recovers(side: Side) -> Any:
    """Recover all runs, as one process does for all tenants."""
    await recovery_of(side.api.parts, stale_seconds=3600).recover()


def drops(record: str) -> Step:
    async def step(side: Side) -> bool:
        retention = PostgresRetention(side.api.parts.engines.work, DROPS)
        return await retention.drop(side.tenant, record, days=1)

    step.__name__ = f"drop {record}"
    return step


TOGETHER = (recovers,)
"""Steps that one process does for all tenants."""
LOST = [
    gives_quota(20),
    *(request("POST", "/runs", RUN | {"run_id": each}) for each in ("lost", "late", "kept")),
    claims("lost"),
    journals("lost"),
    claims("kept"),
    finishes("kept"),
    beats,
    ages,
    recovers,
    claims("lost"),
    journals("lost", key="later", llm_calls=3),
    finishes("lost"),
    ages,
]
KEPT = [drops(record) for record in DROPS]

BY_NAME = {"kind": "graph", "graph": {"name": "gone"}}
STORY: Sequence[Step] = [
    starts("direct"),
    starts("direct-2"),
    request("POST", "/graphs", {"name": "gone", "graph": GRAPH}),
    *(request("POST", "/runs", {**BY_NAME, "run_id": f"gone-{n}"}) for n in range(2)),
    request("DELETE", "/graphs/gone"),
    request("POST", "/runs", {**BY_NAME, "run_id": "gone-2"}),
    gives_quota(4),
    starts("direct-3"),
    request("PUT", "/mcp-credentials/web", {"headers": {"X-Tenant": "x"}}),
    request("POST", "/webhooks/secret"),
    request("POST", "/runs", JOB | {"run_id": "first"}),
    request("POST", "/runs/cancel", {"status": "queued"}),
    request("POST", "/graphs", {"name": "x", "graph": GRAPH}),
    request("POST", "/graphs", {"name": "x", "graph": GRAPHS[1]}),
    request("POST", "/agents", {"agent": {"name": "x", "prompt": {"system": "x"}}}),
    request("DELETE", "/runs/early"),
    request("POST", "/runs", JOB, KEYED),
    request("POST", "/runs", JOB, KEYED),
    request("POST", "/runs", JOB | {"run_id": "next", "priority": 3}),
    request("POST", "/runs", {"kind": "graph", "graph": {"name": "x"}, "run_id": "by-name"}),
    request("POST", "/runs", RUN | {"run_id": "early"}),
    claims("job"),
    claims("next"),
    journals("job"),
    read_run,
    settles,
    saves_file,
    asks,
    suspends,
    request("POST", "/runs/job/approvals/asked", {"decision": "approve"}),
    claims("job"),
    releases,
    claims("job"),
    read_run,
    finishes("job"),
    claims("next"),
    claims("by-name"),
    finishes("by-name"),
    delivers,
    adds_late,
    read_all,
    read_run,
    request("POST", "/runs", {"from": {"run_id": "job"}, "run_id": "resumed"}),
    claims("resumed"),
    request("POST", "/runs", EXTERNAL),
    opens_attempts,
    takes_rate_slots,
    request("PUT", "/schedules/x", {"cron": "0 0 1 1 *", "run": {"kind": "graph", "graph": GRAPH}}),
    fires,
    fires,
    *(request(*each) for each in CHANGES),
    request("DELETE", "/runs/by-name/record"),
    *LOST,
    *KEPT,
    read_all,
]


@pytest.mark.guarantee(14)
async def test_tenants_with_identical_names_never_meet(postgres: TestServer) -> None:
    """Each gets the answers of a tenant that is alone, and changes no row of the other one."""
    with postgres.database() as url, psycopg.connect(url, autocommit=True) as connection:
        await tell(url, connection)


async def tell(url: str, connection: psycopg.Connection[Any]) -> None:
    """Play the story on a database in which only the statements separate the tenants."""
    walls = connection.execute("SELECT relname FROM pg_class WHERE relrowsecurity").fetchall()
    for (table,) in walls:
        off = sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(sql.Identifier(table))
        connection.execute(off)
    servers = {"web": {"url": "http://127.0.0.1:9/mcp"}}
    settings = Settings(secrets={"encryption_key": "k" * 32}, tools={"mcp": {"servers": servers}})
    api, rows = Api(url, settings), Rows(connection)
    app = api.app(bootstrap_key=OPERATOR_KEY)
    async with api.opened(), client_of(app) as client:
        tenants = Tenants(client, app)
        sides = [Side(each, tenants, api, connection) for each in (ALONE, *TENANTS)]
        alone = list[tuple[str, list[str]]]()
        for step in STORY:
            alone.append((plain(await step(sides[0])), sorted(map(plain, rows.read()[0]))))
        stored = rows.read()
        for number, step in enumerate(STORY):
            about = (number, step.__name__)
            for side in sides[1:2] if step in TOGETHER else sides[1:]:
                assert plain(await step(side)) == alone[number][0], (*about, side.tenant)
                before, stored = stored, rows.read()
                at = sides.index(side)
                others = [each for each in range(3) if each != at and step not in TOGETHER]
                assert [stored[each] for each in others] == [before[each] for each in others], about
            for each in stored[1:]:
                assert sorted(map(plain, each)) == alone[number][1], about
