"""The embedded PostgreSQL with real processes: shared, killed, and restarted."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from caseworker.platform.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError
from caseworker.platform.postgres.embedded.cluster import read_postmaster
from caseworker.platform.postgres.embedded.programs import open_for_search, server_account
from tests.support.processes import ChildProcess

OWNER = """
import json, signal, sys
from pathlib import Path
from caseworker.platform.postgres.embedded import EmbeddedPostgres
from caseworker.platform.postgres.embedded.cluster import read_postmaster

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
data_dir = Path(sys.argv[1])
EmbeddedPostgres(data_dir).start()
print(json.dumps({"postmaster": read_postmaster(data_dir / "cluster").pid}), flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def made_once() -> Iterator[Path]:
    """Create a stopped server with an empty database; copying it saves two seconds a test."""
    with tempfile.TemporaryDirectory(prefix="caseworker-pg-") as folder:
        with EmbeddedPostgres(Path(folder) / "pg") as server:
            server.start()
        yield Path(folder) / "pg"


@pytest.fixture
def data_dir(empty_dir: Path, made_once: Path) -> Path:
    """Return a stopped server; processes that remain end with the test."""
    subprocess.run(["cp", "-a", made_once, empty_dir], check=True)
    return empty_dir


@pytest.fixture
def empty_dir(database_folder: Path) -> Iterator[Path]:
    """Return an empty folder for a cluster; a server that remains ends with the test."""
    place = database_folder / "pg"
    yield place
    if (left := read_postmaster(place / "cluster")) and left.is_alive():
        os.kill(left.pid, signal.SIGQUIT)


def postmaster_pid(data_dir: Path) -> int:
    found = read_postmaster(data_dir / "cluster")
    assert found is not None
    assert found.is_alive()
    return found.pid


def owner(data_dir: Path) -> ChildProcess:
    """Return a separate process that starts or joins the server and runs until SIGTERM."""
    return ChildProcess.python("-c", OWNER, str(data_dir), cwd=Path.cwd(), name="owner")


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_the_server_stops_with_its_last_handle(data_dir: Path) -> None:
    """Two handles in one process count as two owners, and a repeated start has no effect."""
    first, second = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    url = first.start()
    server = psutil.Process(postmaster_pid(data_dir))

    assert second.start() == first.start() == url
    second.stop()
    assert postmaster_pid(data_dir) == server.pid
    first.stop()
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    first.stop()


def test_data_survives_a_stop(data_dir: Path) -> None:
    """A second start finds the committed data."""
    with EmbeddedPostgres(data_dir) as server:
        execute(server.start(), "CREATE TABLE kept AS SELECT 42 AS answer")
    with EmbeddedPostgres(data_dir) as server:
        assert execute(server.start(), "SELECT answer FROM kept") == [(42,)]


def test_the_server_is_tuned_and_listens_on_no_address(data_dir: Path) -> None:
    """The server allows many connections, uses UTC, and is not reachable from other machines."""
    with EmbeddedPostgres(data_dir) as server:
        url = server.start()
        shown = {
            name: execute(url, f"SHOW {name}")[0][0]
            for name in ("max_connections", "shared_buffers", "TimeZone", "listen_addresses")
        }
        assert shown == {
            "max_connections": "200",
            "shared_buffers": "128MB",
            "TimeZone": "UTC",
            "listen_addresses": "",
        }


def test_row_values_stay_out_of_the_server_log(data_dir: Path) -> None:
    """A violated constraint is logged without the row or the statement that violated it."""
    with EmbeddedPostgres(data_dir) as server:
        url = server.start()
        execute(url, "CREATE TABLE people (email text CHECK (email <> 'ada@example.org'))")
        with pytest.raises(psycopg.errors.CheckViolation):
            execute(url, "INSERT INTO people VALUES ('ada@example.org')")
        log = (data_dir / "cluster" / "server.log").read_text()
        assert "violates check constraint" in log
        assert "ada@example.org" not in log


async def test_the_next_owner_joins_the_server_of_a_killed_one(data_dir: Path) -> None:
    """The server keeps running after kill -9 of its owner, and stops with the next owner."""
    with owner(data_dir) as killed:
        pid = (await killed.json_line("postmaster"))["postmaster"]
        with psycopg.connect(read_url(data_dir)) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        killed.kill()
    assert postmaster_pid(data_dir) == pid

    with EmbeddedPostgres(data_dir) as server:
        assert postmaster_pid(data_dir) == pid
        assert execute(server.start(), "SELECT answer FROM kept") == [(42,)]
    assert read_postmaster(data_dir / "cluster") is None


async def test_processes_that_start_together_share_one_server(empty_dir: Path) -> None:
    """Three concurrent starts on an empty folder create one cluster; the last owner stops it."""
    with owner(empty_dir) as one, owner(empty_dir) as two, owner(empty_dir) as three:
        pids = {(await each.json_line("postmaster"))["postmaster"] for each in (one, two, three)}
        assert len(pids) == 1
        assert [await each.terminate() for each in (one, two)] == [0, 0]
        assert postmaster_pid(empty_dir) in pids
        assert await three.terminate() == 0
    assert read_postmaster(empty_dir / "cluster") is None


def test_a_killed_server_is_started_again_with_its_data(data_dir: Path) -> None:
    """A `kill -9` of the postmaster loses no committed data."""
    first = EmbeddedPostgres(data_dir)
    execute(first.start(), "CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(postmaster_pid(data_dir), signal.SIGKILL)

    with EmbeddedPostgres(data_dir) as second:
        assert execute(second.start(), "SELECT answer FROM kept") == [(42,)]
    first.stop()
    assert read_postmaster(data_dir / "cluster") is None


def test_a_pid_that_another_process_got_meanwhile_deceives_nobody(data_dir: Path) -> None:
    """PostgreSQL itself would refuse to start, because its old PID is in use."""
    with EmbeddedPostgres(data_dir):
        pid_file = data_dir / "cluster" / "postmaster.pid"
        left_behind = pid_file.read_text()
    account = server_account()
    with subprocess.Popen(["sleep", "600"], user=account.pw_uid if account else None) as foreign:
        _, _, rest = left_behind.partition("\n")
        pid_file.write_text(f"{foreign.pid}\n{rest}")
        try:
            with EmbeddedPostgres(data_dir) as server:
                assert execute(server.start(), "SELECT 1") == [(1,)]
                assert postmaster_pid(data_dir) != foreign.pid
            assert foreign.poll() is None
        finally:
            foreign.kill()


def test_an_interrupted_creation_is_begun_again(empty_dir: Path) -> None:
    """A partial cluster is never used."""
    draft = empty_dir / "cluster.new"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")

    with EmbeddedPostgres(empty_dir) as server:
        assert execute(server.start(), "SELECT 1") == [(1,)]
    assert not draft.exists()


def test_a_path_too_long_for_a_socket_still_works(data_dir: Path, database_folder: Path) -> None:
    """The socket is then placed in a short private folder."""
    deep = database_folder / ("d" * 60) / ("e" * 60)
    deep.parent.mkdir()
    data_dir.rename(deep)
    with EmbeddedPostgres(deep) as server:
        assert execute(server.start(), "SELECT 1") == [(1,)]
        found = read_postmaster(deep / "cluster")
        assert found is not None
        socket_dir = Path(found.socket_dir)
        assert socket_dir.stat().st_mode & 0o077 == 0
    socket_dir.rmdir()


def test_a_folder_with_other_files_is_refused_untouched(database_folder: Path) -> None:
    """A mistyped path must not turn a user's folder into a database."""
    (database_folder / "thesis.txt").write_text("precious")

    with pytest.raises(EmbeddedPostgresError, match=r"contains other files \(thesis.txt"):
        EmbeddedPostgres(database_folder).start()

    assert [entry.name for entry in database_folder.iterdir()] == ["thesis.txt"]


def test_a_path_that_a_shell_would_expand_is_refused(database_folder: Path) -> None:
    """pg_ctl passes the path to a shell."""
    with pytest.raises(EmbeddedPostgresError, match="use another path"):
        EmbeddedPostgres(database_folder / "$(id)").start()


def test_a_cluster_of_another_version_is_refused(empty_dir: Path) -> None:
    """The error names the release that can read it, and the files stay unchanged."""
    (empty_dir / "cluster").mkdir(parents=True)
    (empty_dir / "cluster" / "PG_VERSION").write_text("12\n")

    with pytest.raises(EmbeddedPostgresError, match="created by PostgreSQL 12"):
        EmbeddedPostgres(empty_dir).start()


def test_a_server_that_does_not_start_says_why(data_dir: Path) -> None:
    """The message ends with the reason from the server's own log."""
    with EmbeddedPostgres(data_dir):
        pass
    with (data_dir / "cluster" / "postgresql.auto.conf").open("a") as settings:
        settings.write("max_connections = 'many'\n")

    with pytest.raises(EmbeddedPostgresError, match="max_connections"):
        EmbeddedPostgres(data_dir).start()


def test_folders_are_opened_for_passing_and_never_for_listing(database_folder: Path) -> None:
    """Only permissions that root's server needs are added to parent folders, and reported."""
    closed = database_folder / "closed"
    inner = closed / "inner"
    inner.mkdir(parents=True)
    closed.chmod(0o700)
    inner.chmod(0o755)

    changed = open_for_search([inner])

    assert closed in changed
    assert inner not in changed
    assert closed.stat().st_mode & 0o777 == 0o701


def read_url(data_dir: Path) -> str:
    found = read_postmaster(data_dir / "cluster")
    assert found is not None
    return found.url
