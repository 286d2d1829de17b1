"""PostgreSQL servers on loopback that a test freezes, stops, fences and promotes.

They are not the server of the other tests: its faults would reach them too.
"""

import os
import pwd
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg

from caseworker.platform.postgres.embedded.programs import change_owner, run_program, server_account
from tests.chaos.disks import SmallDisk

_USUAL = ("--encoding=UTF8", "--locale=C")
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
port = {port}
max_connections = {max_connections}
fsync = off
"""


class OwnPostgres:
    """A server with an empty database: ``with OwnPostgres() as server``.

    ``initdb`` are options of that program. ``max_connections`` is the setting of the server. With
    ``disk`` its tables are on a small disk of their own, which can be filled.
    """

    def __init__(
        self,
        *initdb: str,
        max_connections: int = 100,
        standby_of: "OwnPostgres | None" = None,
        disk: bool = False,
    ) -> None:
        self._initdb = initdb or _USUAL
        self._max_connections = max_connections
        self._primary = standby_of
        self._folder = tempfile.TemporaryDirectory(
            prefix="caseworker-pg-", ignore_cleanup_errors=True
        )
        self._account = server_account()
        self._frozen: list[psutil.Process] = []
        self.port = _free_port()
        folder = Path(self._folder.name)
        self.disk = SmallDisk(folder / "disk") if disk else None
        """The disk of the tables; the WAL is elsewhere."""
        self.data = folder / ("data" if self.disk is None else "disk/data")
        self.log = folder / "log"

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        try:
            if self.disk is not None:
                self.disk.mount()
                change_owner(self.disk.folder, self._account or pwd.getpwuid(os.geteuid()))
                self._initdb = (*_USUAL, f"--waldir={folder / 'wal'}")
            if self._primary is None:
                self._run("initdb", f"--pgdata={self.data}", "--username=postgres", *self._initdb)
            else:
                options = ("--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast")
                place = (f"--pgdata={self.data}", f"--dbname={self._primary.url}")
                self._run("pg_basebackup", *place, *options)
            with (self.data / "postgresql.conf").open("a") as settings:
                settings.write(
                    _SETTINGS.format(port=self.port, max_connections=self._max_connections)
                )
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        if self.pid is not None:
            os.kill(self.pid, signal.SIGQUIT)
            while self.pid is not None:
                time.sleep(0.01)
        if self.disk is not None:
            self.disk.unmount()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """The URL of the database ``postgres``."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int | None:
        """The process ID of the postmaster; None if it does not run."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
        except (OSError, IndexError):
            return None
        return pid if psutil.pid_exists(pid) else None

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._run("pg_ctl", "start", "-D", str(self.data), "-l", str(self.log), "-w")

    def stop(self) -> None:
        """Stop the server at once; connections are closed."""
        self._run("pg_ctl", "stop", "-D", str(self.data), "-m", "immediate", "-w")

    def freeze(self) -> None:
        """Send SIGSTOP to the postmaster and all its children; they keep their sockets."""
        postmaster = psutil.Process(self.pid)
        self._frozen = [postmaster]
        postmaster.suspend()  # first, so that it starts no more children
        self._frozen += postmaster.children(recursive=True)
        for each in self._frozen[1:]:
            each.suspend()

    def thaw(self) -> None:
        """Continue all processes that were frozen."""
        while self._frozen:
            self._frozen.pop().resume()

    def promote(self) -> None:
        """Make this standby a primary."""
        self._run("pg_ctl", "promote", "-D", str(self.data), "-w")

    def fence(self, *, read_only: bool = True) -> None:
        """Make all sessions read-only, also those that are open; or end that."""
        self.execute(f"ALTER SYSTEM SET default_transaction_read_only = {read_only}")
        self.execute("SELECT pg_reload_conf()")
        while self.value("SHOW default_transaction_read_only") != ("on" if read_only else "off"):
            time.sleep(0.01)

    def execute(self, statement: str, *values: Any) -> None:
        """Execute one statement in a separate session, which may write."""
        self._asked(statement, values)

    def value(self, statement: str, *values: Any) -> Any:
        """Return the first column of the first row of a statement."""
        row = self._asked(statement, values)
        return None if row is None else row[0]

    def _asked(self, statement: str, values: tuple[Any, ...]) -> Any:
        options = "-c default_transaction_read_only=off" if "ALTER" in statement else ""
        with psycopg.connect(self.url, autocommit=True, options=options) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchone() if cursor.description else None

    def _run(self, program: str, *options: str) -> None:
        code, output = run_program(self._account, program, *options)
        assert code == 0, f"{program}: {output}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
