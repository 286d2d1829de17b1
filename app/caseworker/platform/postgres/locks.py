"""All advisory locks of the service, and the order in which a transaction acquires locks.

The previous release runs on the same database, so a key never changes: the two releases would no
longer exclude each other. A key is the hash of a text under a seed. Seeds separate uses whose texts
may be equal; a new lock takes an unused seed.

============================  ====================================  ==============================
key (seed)                    held by                               serialized work
============================  ====================================  ==============================
tenant, idempotency key (0)   the transaction that accepts a run    requests with the key
``graphs``, tenant (0)        a registration or deletion            definitions of the tenant
``schedules``, tenant (0)     the creation of a schedule            the count of schedules
``keys``, tenant (0)          a change of API keys                  the count of keys
``webhook secrets``, … (0)    the creation of a secret              secrets of the tenant
worker ID (1)                 the connection of a live worker       nothing: it shows life
tenant (2)                    accept, claim, writes under a quota   counts and sums of the tenant
tenant, run ID (3)            the start of an external attempt      attempts at the run
tenant, account (4)           a new run of a session of a key       runs and counts of sessions
``costs`` (3)                 one process                           sums of costs
``suspects`` (3)              ``caseworker_claim_suspect`` (SQL)    suspects that are executed
20261130, hash of a tenant    ``caseworker_await_claim`` (SQL),     removal of the tenant from
                              shared; a claim, exclusive            ``waiting_tenants``
0x43617365                    the process that migrates             migrations
============================  ====================================  ==============================

Locks that share a seed collide only if their texts are equal: a tenant that is called ``graphs``
and uses a tenant's name as an idempotency key waits for that tenant's registrations. This is
harmless, because no transaction waits for two of these locks.

A transaction acquires locks in this order, so that two transactions cannot wait for each other:

1. the idempotency key;
2. the tenant. A transaction that holds a row of ``runs`` does not wait for it: a claim locks the
   tenant before the row, and a schedule that cancels its last run locks the tenant first;
3. rows of ``runs``, in the order of tenant and run ID if there are several. Statements that write
   for many runs skip locked rows (``SKIP LOCKED``); their caller repeats the write;
4. the row of the source of a resumed run (``FOR KEY SHARE``);
5. rows of quotas and of the holds of accounts.

Locks for ``waiting_tenants`` are only tried, at any point: no transaction waits for them.
"""

from typing import Final

_COSTS: Final = "advisory_xact_lock(hashtextextended('costs', 3))"


def _held_until_commit(key: str) -> str:
    """Return the statement that waits for a lock and holds it until the transaction ends."""
    return f"SELECT pg_advisory_xact_lock({key})"


LOCK_IDEMPOTENCY_KEY: Final = _held_until_commit("hashtextextended(%s || E'\\n' || %s, 0)")
"""Lock an idempotency key; parameters: tenant and key."""

TRY_IDEMPOTENCY_KEY: Final = (
    "pg_try_advisory_xact_lock(hashtextextended(tenant_id || E'\\n' || idempotency_key, 0))"
)
"""SQL that tries to lock the idempotency key in a row of a statement."""

LOCK_TENANT: Final = _held_until_commit("hashtextextended(%s, 2)")
"""Lock the quotas and counts of a tenant; parameter: tenant."""

LOCK_DEFINITIONS: Final = _held_until_commit("hashtextextended(E'graphs\\n' || %s, 0)")
"""Serialize registrations and deletions of definitions; parameter: tenant."""

LOCK_SCHEDULES: Final = _held_until_commit("hashtextextended('schedules ' || %s, 0)")
LOCK_API_KEYS: Final = _held_until_commit("hashtextextended('keys ' || %s, 0)")
LOCK_WEBHOOK_SECRETS: Final = _held_until_commit("hashtextextended('webhook secrets ' || %s, 0)")

LOCK_ATTEMPTS: Final = _held_until_commit("hashtextextended(%s || E'\\n' || %s, 3)")
"""Serialize the starts of attempts at an external run; parameters: tenant and run ID."""

LOCK_KEY_SESSIONS: Final = _held_until_commit("hashtextextended(%s || E'\\n' || %s, 4)")
"""Serialize new runs of the sessions of a standing key; parameters: tenant and account."""

HOLD_WORKER_LIFE: Final = "SELECT pg_advisory_lock_shared(hashtextextended(%s, 1))"
"""Acquire the lock that shows that this worker is alive, until its connection ends. It is a shared
lock, because the server may not have closed the worker's previous connection yet."""

TRY_WORKER_LIFE: Final = "pg_try_advisory_xact_lock(hashtextextended(worker_id, 1))"
"""SQL that returns whether the worker in a row of a statement does not hold its lock any more."""

TRY_LOCK_MIGRATION: Final = f"SELECT pg_try_advisory_lock({0x43617365})"
"""Return whether this connection holds the lock that lets one process at a time migrate."""

LOCK_COSTS: Final = f"SELECT pg_{_COSTS}"
"""Wait for the process that merges sums; no process merges until this transaction ends."""

TRY_LOCK_COSTS: Final = f"SELECT pg_try_{_COSTS}"
"""Return whether this transaction holds the lock that lets one process at a time keep costs."""
