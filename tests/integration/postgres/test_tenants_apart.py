"""Row-level security: the rows that a transaction of one tenant can read and change."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, text

from caseworker.features.threads.postgres.threads import PostgresThreads
from caseworker.platform.postgres.engines import AS_TENANT, transaction
from caseworker.platform.postgres.schema_version import downgrade, upgrade
from caseworker.runs.postgres.tables import runs
from tests.integration.postgres.two_tenants import KEPT_APART, OTHERS, rows_of_two_tenants
from tests.support.database import TestServer
from tests.support.stores import Stores, new_run, open_stores

NOT_FOR_TENANTS = {"api_keys"}


@pytest.fixture
def as_a(database_url: str) -> Iterator[psycopg.Connection]:
    """Open a transaction for tenant ``a`` where both tenants have a row in every table."""
    with psycopg.connect(database_url) as connection:
        rows_of_two_tenants(connection)
    with psycopg.connect(database_url) as connection:
        connection.execute("SET session_replication_role = replica")  # no triggers
        connection.execute(AS_TENANT, ("a",))
        yield connection
        connection.rollback()
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM snapshots")


@pytest.mark.guarantee(14)
def test_the_rows_of_others_are_neither_seen_nor_written(
    as_a: psycopg.Connection, subtests: pytest.Subtests
) -> None:
    """No statement finds them, with or without a condition, while the own row is found."""
    for table in KEPT_APART:
        with subtests.test(table), as_a.transaction(force_rollback=True):
            require_kept_apart(sql.Identifier(table), as_a, admitted=table not in NOT_FOR_TENANTS)


def require_kept_apart(named: sql.Identifier, as_a: psycopg.Connection, *, admitted: bool) -> None:
    if not admitted:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), as_a.transaction():
            as_a.execute(sql.SQL("SELECT FROM {}").format(named))
        return
    seen = as_a.execute(sql.SQL("SELECT tenant_id FROM {}").format(named)).fetchall()
    changed = as_a.execute(
        sql.SQL("UPDATE {} SET tenant_id = tenant_id WHERE tenant_id = 'b'").format(named)
    )
    gone = as_a.execute(sql.SQL("DELETE FROM {} WHERE tenant_id <> 'a'").format(named))
    locked = as_a.execute(sql.SQL("SELECT FROM {} WHERE tenant_id = 'b' FOR UPDATE").format(named))

    assert seen == [("a",)]
    assert (changed.rowcount, gone.rowcount, locked.rowcount) == (0, 0, 0)
    moved = sql.SQL("UPDATE {} SET tenant_id = 'b'").format(named)
    added = sql.SQL(
        "INSERT INTO {0} OVERRIDING SYSTEM VALUE"
        ' SELECT (jsonb_populate_record(r, \'{{"tenant_id": "b"}}\')).* FROM {0} r'
    ).format(named)
    for forged in (moved, added):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), as_a.transaction():
            as_a.execute(forged)


def test_a_view_shows_no_more_than_its_table(as_a: psycopg.Connection) -> None:
    """The view uses the rights of the user that queries it."""
    assert as_a.execute("SELECT tenant_id FROM journal").fetchall() == [("a",)]


def test_the_role_is_neither_owner_nor_superuser(as_a: psycopg.Connection) -> None:
    """An owner or superuser would bypass row-level security."""
    row = as_a.execute(
        "SELECT rolsuper, rolbypassrls, rolcanlogin, rolcreaterole FROM pg_roles"
        " WHERE rolname = current_user"
    ).fetchone()
    owners = as_a.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE tablename = 'runs'")

    assert row == (False, False, False, False)
    assert owners.fetchone() != ("caseworker_tenant",)


def test_without_a_tenant_nothing_is_seen(as_a: psycopg.Connection) -> None:
    """A transaction without a tenant sees no rows."""
    as_a.execute("SELECT set_config('caseworker.tenant', '', true)")

    assert as_a.execute("SELECT FROM runs").rowcount == 0


def test_every_table_of_tenants_is_forced_to_keep_them_apart(database_url: str) -> None:
    """A migration that adds a table must call the function again."""
    with psycopg.connect(database_url) as connection:
        forced = connection.execute(
            "SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity ORDER BY 1"
        ).fetchall()

    assert [name for (name,) in forced] == KEPT_APART


async def test_a_statement_that_forgets_its_tenant_shows_nothing_of_others(stores: Stores) -> None:
    """Row-level security hides the rows that a missing filter would show."""
    for tenant in OTHERS:
        await stores.runs.accept(new_run("same", tenant=tenant), worker_id=None)
    broken = runs.select()

    async with transaction(stores.engines.work, "a") as connection:
        seen = {row.tenant_id for row in await connection.execute(broken)}
    async with transaction(stores.engines.work) as connection:
        there = {row.tenant_id for row in await connection.execute(broken)}
        user = await connection.scalar(text("SELECT current_user"))

    assert seen == {"a"}
    assert there == {"a", "b"}
    assert user != "caseworker_tenant"  # the switch ends with its transaction


async def test_branches_and_contents_are_read_behind_the_wall(
    stores: Stores, database_url: str
) -> None:
    """Row-level security that hides every message hides them too."""
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("SET session_replication_role = replica")
        owner.execute(
            """INSERT INTO messages (tenant_id, thread_id, message_id, role, request_hash, run_id,
                ends, created_at) VALUES ('a', 't', 'm', 'assistant', '', 'r', '["x"]', now())"""
        )
        owner.execute(
            """INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status,
                result, finished_at) VALUES ('a', 'r', 'graph', '{"chat": {"thread_id": "t"}}', '',
                '{}', 'completed', '{"outputs": {"x": {"default": "Secret."}}}', now())"""
        )
        threads = PostgresThreads(stores.engines)

        async def read() -> list[Any]:
            branch = await threads.branches.read("a", "t", "m")
            shown = [
                await threads.contents("a", "t", ["m"]),
                await threads.displayed("a", "t", ["m"]),
            ]
            found = [one["m"]["content"] for one in shown if "m" in one]
            return [*(message.content for message in branch.messages), *found]

        assert await read() == ["Secret."] * 3
        owner.execute("ALTER POLICY own_tenant ON messages USING (false)")
        assert await read() == []


@pytest.fixture
def plain_user(postgres: TestServer) -> Iterator[str]:
    """Return the URL of an empty database whose owner may not create roles."""
    with postgres.empty_database() as url, psycopg.connect(url, autocommit=True) as admin:
        name = make_url(url).database
        user = sql.Identifier(f"plain_{name}")
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(user))
        admin.execute(
            sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(str(name)), user)
        )
        admin.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(user))
        yield make_url(url).set(username=f"plain_{name}").render_as_string(hide_password=False)
        admin.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(user))
        admin.execute(sql.SQL("DROP OWNED BY {}").format(user))
        admin.execute(sql.SQL("DROP ROLE {}").format(user))


async def test_a_user_who_may_not_use_the_role_does_without_until_it_may(
    plain_user: str, postgres: TestServer
) -> None:
    """After the grant and a call of the function, row-level security applies."""
    upgrade(plain_user)
    user = make_url(plain_user).username
    async with open_stores(plain_user) as stores:
        for tenant in OTHERS:
            await stores.runs.accept(new_run("same", tenant=tenant), worker_id=None)
        async with transaction(stores.engines.work, "a") as connection:
            assert len((await connection.execute(runs.select())).all()) == 2
        with psycopg.connect(postgres.url_of("postgres"), autocommit=True) as admin:
            admin.execute("SELECT FROM pg_roles WHERE rolname = 'caseworker_tenant'")
            admin.execute(
                sql.SQL("GRANT caseworker_tenant TO {}").format(sql.Identifier(str(user)))
            )
        with psycopg.connect(plain_user) as owner:
            assert owner.execute("SELECT caseworker_keep_tenants_apart()").fetchone() == (True,)

        async with transaction(stores.engines.work, "a") as connection:
            assert len((await connection.execute(runs.select())).all()) == 1
        async with transaction(stores.engines.work) as connection:
            assert len((await connection.execute(runs.select())).all()) == 2
    downgrade(plain_user, "base")
    upgrade(plain_user)
