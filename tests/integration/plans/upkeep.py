"""Work for recovery and retention, and the commands of an operator."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.erasure.postgres import PostgresErasure, Subject
from caseworker.features.erasure.service import Erasing
from caseworker.features.external.postgres import PostgresAttempts
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.retention.postgres import set_days
from caseworker.features.threads.postgres.old_answers import AnswerMoves
from caseworker.main.deaths import Death, count_death
from caseworker.main.doctor import _database_findings
from caseworker.main.features import DROPS
from caseworker.models.ports import RateLimit
from caseworker.models.provider_limits import PostgresProviderLimits
from caseworker.platform.caller import OPERATOR
from caseworker.platform.code_table import ExecutedCode
from caseworker.platform.postgres.connections import driver_url
from caseworker.runs.kind_rules import OPTIONAL
from caseworker.runs.ports import LateResult
from caseworker.runs.postgres.missing_kinds import runs_of_missing_kinds
from caseworker.runs.recover.postgres import list_workers, request_drain
from caseworker.runs.run import RunKey
from tests.integration.plans.world import SAY, SUM, ObservedService
from tests.support.limits import patience
from tests.support.stores import eventually


@dataclass(slots=True)
class Upkeep(ObservedService):
    """Deaths of processes, old data, and the acts of an operator."""

    async def lost(self, tenant: str) -> None:
        """Let a run be taken from a process while its call is in flight, and a process die."""
        await self.hanging(tenant, "fenced")
        await self.replaced(
            "UPDATE runs SET fence = fence + 1 WHERE tenant_id = %s AND run_id = 'fenced'", tenant
        )
        await self.provider.release()
        await self.hanging(tenant, "orphan")
        gone = f"gone-{tenant}"
        await self.replaced(
            "INSERT INTO workers (worker_id, beat_at, started_at)"
            " VALUES (%s, now() - interval '1 h', now())",
            gone,
        )
        await self.replaced(
            "UPDATE runs SET worker_id = %s"
            " WHERE tenant_id = %s AND run_id IN ('orphan', 'fenced')",
            gone,
            tenant,
        )
        death = Death(gone, "SIGSEGV", [ExecutedCode(tenant, "orphan", "f")])
        await asyncio.to_thread(count_death, self.url, death, max_attempts=3, patience=patience())
        await self.provider.release()
        await self.provider.reset()
        for name in ("orphan", "fenced"):
            await self.ended(tenant, name)

    async def of_previous_release(self, tenant: str) -> None:
        """Read a thread and a forked run that the previous release stored, and move the answers."""
        await self.replaced(
            "UPDATE messages SET answer = NULL WHERE tenant_id = %s AND thread_id = 'talk'", tenant
        )
        path = "/threads/talk/messages"
        run_id = (await self.ask(tenant, "POST", path, {"content": "Old?"}))["run"]["run_id"]
        await self.ended(tenant, run_id)
        await self.replaced(
            "UPDATE runs SET request = request #- '{chat,leaf}' WHERE tenant_id = %s"
            " AND run_id = %s",
            tenant,
            run_id,
        )
        await self.ask(tenant, "GET", f"/runs/{run_id}/trace?payloads=true")
        await self.oracle.rows(
            "UPDATE moves SET ended_at = NULL, place = ARRAY[%s, 'talk', '']",
            tenant,
        )
        await AnswerMoves(self.executing._engines.work).move()
        await self.oracle.rows("UPDATE moves SET ended_at = now()")

    async def unreadable_schedule(self, tenant: str) -> None:
        """Let the firing of a schedule fail, and delete the jobs that are left over.

        The previous release and a dead process left them.
        """
        await self.oracle.rows(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, status)"
            " VALUES ('schedules', 'fire_schedule', 'schedule/old', '{}', 'todo'),"
            " ('schedules', 'stalled', 'schedule/stalled', '{}', 'doing')"
        )
        jobs = "SELECT count(*) = 0 FROM procrastinate_jobs WHERE queue_name = 'schedules'"
        await eventually(lambda: self.oracle.value(jobs))
        body = {"cron": "* * * * *", "run": {"kind": "graph", "graph": SUM}}
        await self.ask(tenant, "PUT", "/schedules/unreadable", body)
        await self.oracle.rows(
            "UPDATE schedules SET cron = 'never', next_at = now()"
            " WHERE tenant_id = %s AND name = 'unreadable'",
            tenant,
        )
        error = "SELECT last_error FROM schedules WHERE tenant_id = %s AND name = 'unreadable'"
        await eventually(lambda: self.oracle.value(error, tenant))
        await self.ask(tenant, "DELETE", "/schedules/unreadable")

    async def expire(self, tenant: str) -> None:
        """Let the sweep delete old data of each category."""
        pool = self.executing._engines.work
        await self.replaced(
            "UPDATE api_keys SET revoked_at = revoked_at - interval '1 year' WHERE tenant_id = %s"
            " AND agent IS NOT NULL",
            tenant,
        )
        for category in DROPS:
            await set_days(pool, tenant, category, 300 if category == "runs" else 100)
        for run_id, days in (("drawn", 200), ("forked", 400)):
            await self.replaced(
                "UPDATE runs SET finished_at = now() - make_interval(days => %s)"
                " WHERE tenant_id = %s AND run_id = %s",
                days,
                tenant,
                run_id,
            )
        await self.ask(tenant, "POST", "/threads", {"thread_id": "old", "graph": SAY})
        await self.replaced(
            "UPDATE threads SET created_at = now() - interval '1 year' WHERE tenant_id = %s"
            " AND thread_id = 'old'",
            tenant,
        )
        await self.replaced(
            "UPDATE audit SET at = now() - interval '1 year' WHERE tenant_id = %s"
            " AND entry_id <= (SELECT min(entry_id) + 5 FROM audit WHERE tenant_id = %s)",
            tenant,
            tenant,
        )

        async def swept() -> bool:
            found = [
                await self.worker.ask(tenant, "GET", path)
                for path in ("/threads/old", "/runs/forked")
            ]
            artifacts = await self.worker.ask(tenant, "GET", "/runs/drawn/artifacts")
            return [each.status_code for each in found] == [404, 404] and not artifacts.json()[
                "artifacts"
            ]

        await eventually(swept)

    async def of_operator(self) -> None:
        """Run the functions behind the commands of an operator, and erase a tenant."""
        pool = self.executing._engines.work
        await _database_findings(self.executing.settings, driver_url(self.url))
        await runs_of_missing_kinds(pool, OPTIONAL.values())
        key = RunKey("small", "queued-by-name")
        late = LateResult(key=key, fence=1, calls=(), usage={"tokens": 0})
        await self.executing._store.late(late)
        await list_workers(pool)
        await self.executing.services[PostgresQuotas].find()
        await request_drain(pool, "unknown")
        await self.run("doomed", {"kind": "graph", "graph": SUM})
        before = datetime(2020, 1, 1, tzinfo=UTC)
        await PostgresKeys(pool).revoke_all(OPERATOR, before=before, tenant="doomed", but=())
        attempts = self.executing.services[PostgresAttempts]
        await attempts.revoke_all(before=before, tenant="doomed")
        limit = RateLimit(model="fake", requests_per_minute=60_000)
        await PostgresProviderLimits(pool).leave(limit, "doomed")
        await PostgresProviderLimits(pool).pause(limit, 0.1)
        erasing = Erasing(PostgresErasure(pool), self.executing.runs)
        await erasing.erase(Subject("doomed"), by="operator", tenant="doomed")
        await self.hanging("small", "released")
