"""Start-up with a database that cannot be used: one line with libpq's reason, and no secret."""

import asyncio
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from caseworker.platform.postgres.connections import reason_of
from caseworker.platform.postgres.embedded import EmbeddedPostgres
from caseworker.platform.postgres.schema_version import upgrade
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.own_postgres import OwnPostgres
from tests.support.processes import run_caseworker

PARSED = ["p#ss", "p:ss", "p?ss", "pä☃ss", "Zx7:Qv3#Kj9"]
UNPARSED = ["p@ss", "p/ss", "p%ss", "p ss", "p@/ss", "Zx7@Qv3/Kj9%Wy5", "Zx7/Qv3@Kj9", "Zx7%Qv3"]

ROLES = """
CREATE ROLE locked LOGIN PASSWORD 'right';
CREATE ROLE reader LOGIN;
GRANT pg_read_all_data TO reader;
CREATE ROLE frozen LOGIN SUPERUSER;
ALTER ROLE frozen SET default_transaction_read_only = on;
"""


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """Return a migrated database on a server that requires a password for one role."""
    with (
        tempfile.TemporaryDirectory(prefix="caseworker-pg-") as folder,
        EmbeddedPostgres(Path(folder) / "data") as server,
    ):
        url = server.start()
        upgrade(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(ROLES)
            found = connection.execute("SHOW hba_file").fetchone()
            assert found is not None
            hba = Path(found[0])
            hba.write_text(f"local all locked scram-sha-256\n{hba.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
        yield url


def failure_of(url: str, *command: str) -> str:
    """Run a command that fails because of the database; return its single line."""
    ended = run_caseworker(*command, env={"DATABASE_URL": url, "SERVER_PORT": "0"})

    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, ended.stderr
    return lines[0]


def pieces_of(secret: str) -> set[str]:
    """Return every sequence of three characters in a secret."""
    return {secret[at : at + 3] for at in range(len(secret) - 2)}


@pytest.mark.parametrize("password", [*PARSED, *UNPARSED])
@pytest.mark.parametrize("command", [("config", "check"), ("serve",), ("keys", "list")])
def test_no_part_of_a_password_is_printed(password: str, command: tuple[str, ...]) -> None:
    """An invalid URL or a missing server prints no three characters of it."""
    url = f"postgresql://app:{password}@127.0.0.1:1/name"
    ended = run_caseworker(*command, env={"DATABASE_URL": url})
    shown = ended.stdout + ended.stderr

    fits = command[0] == "config" and password in PARSED
    assert ended.returncode == (0 if fits else 2), shown
    assert {piece for piece in pieces_of(password) if piece in shown} == set()
    assert "Traceback" not in shown
    if password in UNPARSED:
        assert re.match(r"DATABASE_URL: .* percent-encode .* \(its value is not shown\)", shown)
    elif not fits:
        assert "database.url: connection failed" in shown
        assert "Connection refused" in shown


@pytest.mark.parametrize("parameter", ["password=p&ss", "password=p%ss", "password=p@ss"])
def test_a_password_among_the_parameters_is_not_printed(parameter: str) -> None:
    """A parameter that cannot be parsed is refused without its value."""
    line = failure_of(f"postgresql://app@127.0.0.1:1/name?{parameter}", "config", "check")

    assert line.startswith("DATABASE_URL: cannot be parsed")
    assert {piece for piece in pieces_of(parameter[9:]) if piece in line} == set()


@pytest.mark.parametrize("command", [("serve",), ("worker",), ("db", "upgrade"), ("keys", "list")])
@pytest.mark.parametrize(
    ("user", "reason", "advice"),
    [
        ("nobody", 'role "nobody" does not exist', "check the user"),
        ("locked:wrong", 'password authentication failed for user "locked"', "check the user"),
        ("locked", "no password supplied", "check the user"),
    ],
)
def test_a_refused_user_is_named(
    server_url: str, command: tuple[str, ...], user: str, reason: str, advice: str
) -> None:
    """The line has the server's reason and a hint."""
    line = failure_of(server_url.replace("postgres@", f"{user}@", 1), *command)

    assert line.startswith("database.url: ")
    assert reason in line
    assert advice in line


def test_a_missing_database_is_named(server_url: str) -> None:
    """The advice is to create it."""
    line = failure_of(server_url.replace("/postgres?", "/absent?"), "serve")

    assert 'database "absent" does not exist' in line
    assert "create the database" in line


def test_a_closed_port_is_named() -> None:
    """The line has the address that libpq tried."""
    line = failure_of("postgresql://app@127.0.0.1:1/name", "serve")

    assert 'connection to server at "127.0.0.1", port 1 failed: Connection refused' in line
    assert "check that PostgreSQL is running there" in line


async def test_demanded_tls_that_the_server_lacks_is_named(server_url: str) -> None:
    """A server without TLS answers a client that demands it."""
    async with FaultProxy(upstream_of(server_url)) as proxy:
        url = f"{proxied(server_url, proxy)}?sslmode=require"
        line = await asyncio.to_thread(failure_of, url, "serve")

    assert "server does not support SSL, but SSL was required" in line
    assert "set sslmode" in line


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("role", "reason"),
    [("reader", "permission denied for table"), ("frozen", "in a read-only transaction")],
)
def test_a_role_that_may_not_write_is_named(
    server_url: str, command: str, role: str, reason: str
) -> None:
    """The first write fails, the heartbeat; the line has the server's reason."""
    line = failure_of(server_url.replace("postgres@", f"{role}@", 1), command)

    assert reason in line
    assert "has write permission" in line


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("FATAL: unsupported startup parameter: options", "session pooling"),
        ('prepared statement "_pg3_0" already exists', "session pooling"),
        ("SSL error: certificate verify failed", "sslrootcert"),
        ('no pg_hba.conf entry for host "::1", user "a", database "b", no encryption', "sslmode"),
        ("must be owner of table runs", "owns the tables"),
    ],
)
def test_each_reason_has_its_advice(said: str, advice: str) -> None:
    """The first two messages come from PgBouncer 1.18 in transaction mode."""
    line = reason_of(psycopg.OperationalError(said))

    assert line.startswith(f"{said}: ")
    assert advice in line


@pytest.fixture(
    scope="module",
    params=[
        "SQL_ASCII",
        *(pytest.param(name, marks=pytest.mark.proof) for name in ("LATIN1", "EUC_JP")),
    ],
)
def encoded(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Return the name of an encoding and the URL of a server that `initdb` has created with it."""
    with OwnPostgres(f"--encoding={request.param}", "--locale=C") as server:
        yield request.param, server.url


@pytest.mark.parametrize("command", ["serve", "worker", "db upgrade", "db current", "keys list"])
def test_a_database_that_is_not_utf8_is_named(encoded: tuple[str, str], command: str) -> None:
    """`initdb` without a locale creates SQL_ASCII, whose text the driver returns as bytes."""
    encoding, url = encoded
    line = failure_of(url, *command.split())

    assert line.startswith(f"database.url: the database postgres has the encoding {encoding}")
    assert "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0 LOCALE 'C'" in line


def test_the_doctor_names_a_database_that_is_not_utf8(encoded: tuple[str, str]) -> None:
    """The other checks still run."""
    encoding, url = encoded
    done = run_caseworker("doctor", env={"DATABASE_URL": url, "SERVER_PORT": "0"})

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert (
        f"problem  database       database.url: the database postgres has the encoding {encoding}"
        in (done.stdout)
    )
    assert "OK       viewer" in done.stdout


def test_the_database_that_the_remedy_creates_works(encoded: tuple[str, str]) -> None:
    """The encoding of a client, such as PGCLIENTENCODING, does not matter."""
    _, url = encoded
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS caseworker")
        connection.execute(
            "CREATE DATABASE caseworker ENCODING 'UTF8' TEMPLATE template0 LOCALE 'C'"
        )
    other = url.removesuffix("postgres") + "caseworker"
    env = {"DATABASE_URL": other, "PGCLIENTENCODING": "SQL_ASCII"}
    upgraded = run_caseworker("db", "upgrade", env=env)
    created = run_caseworker("keys", "create", "--name", "naïve ☃", env=env)
    listed = run_caseworker("keys", "list", env=env)

    assert (upgraded.returncode, created.returncode) == (0, 0), upgraded.stderr + created.stderr
    assert "naïve ☃" in listed.stdout
