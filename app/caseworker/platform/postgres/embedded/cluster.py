"""Create, configure, start and stop one PostgreSQL cluster on disk.

The module `server` tracks which processes share the cluster. It calls this module only while it
holds its lock.
"""

import hashlib
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import psutil
import structlog
from psycopg import pq

from caseworker.platform.postgres.embedded.programs import (
    MAJOR_VERSION,
    Account,
    EmbeddedPostgresError,
    change_owner,
    open_for_search,
    programs_folder,
    run_program,
)

_LOG = structlog.get_logger(__name__)

_LONGEST_SOCKET_PATH_BYTES = 103
"""Size limit of `sun_path` on macOS; Linux allows four more bytes."""

_LOG_LIMIT_BYTES = 10 * 1024 * 1024

_INITDB_OPTIONS = (
    "--username=postgres",
    # Other accounts cannot access the socket's folder, and the server listens on no network
    # address.
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
)

_SETTINGS = """\
# Written by the service before each launch; own settings belong into postgresql.auto.conf.
listen_addresses = ''
port = 5432
unix_socket_directories = '{socket_dir}'
unix_socket_permissions = 0700
max_connections = 200
shared_buffers = 128MB
max_parallel_workers_per_gather = 0
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
# The values of rows and the text of statements stay out of the log.
log_error_verbosity = terse
log_min_error_statement = panic
"""


_NEVER_ALIVE_PID = 2**31 - 1
"""Higher than any process ID of a supported system."""

_PING_TIMEOUT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Cluster:
    """The files of one PostgreSQL server on disk."""

    directory: Path
    """Absolute path of the data directory, without symbolic links."""
    account: Account | None
    """Account that the server runs as; None means the account of this process."""

    def make(self) -> None:
        """Create the cluster in a draft folder, then rename the folder to ``directory``.

        A draft left by an interrupted attempt is deleted first.

        Raises:
            EmbeddedPostgresError: `initdb` failed.
        """
        draft = self.directory.with_name(self.directory.name + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        self._grant_account_access(draft)
        code, output = run_program(self.account, "initdb", "-D", str(draft), *_INITDB_OPTIONS)
        if code:
            raise EmbeddedPostgresError(
                f"the embedded database cannot be initialized: {_ending(output)}"
            )
        with (draft / "postgresql.conf").open("a") as config:
            config.write("include 'caseworker.conf'\n")
        draft.rename(self.directory)

    def launch(self, *, timeout_seconds: float) -> None:
        """Start the server and wait until it is ready.

        Raises:
            EmbeddedPostgresError: the server does not start; the message ends with its log output.
        """
        self._require_version()
        self._grant_account_access(self.directory)
        disown_reused_pid(self.directory)
        self._write_settings()
        log = self._log_file()
        seen = log.stat().st_size
        give_up_at = time.monotonic() + timeout_seconds
        while not self._control("start", "-l", str(log), timeout_seconds=timeout_seconds):
            with log.open(errors="replace") as lines:
                lines.seek(seen)
                output = lines.read()
            # The backends of a killed postmaster take a moment to notice and exit.
            if "shared memory block" not in output or time.monotonic() > give_up_at:
                raise EmbeddedPostgresError(
                    f"the embedded database failed to start: {_ending(output)}"
                )
            time.sleep(0.1)

    def halt(self, *, timeout_seconds: float) -> None:
        """Stop the server. Open transactions are rolled back, committed ones are kept.

        Raises:
            EmbeddedPostgresError: the server is still running.
        """
        for mode in ("fast", "immediate"):
            running = read_postmaster(self.directory)
            if running is None or not running.is_alive():
                return
            if self._control("stop", "-m", mode, timeout_seconds=timeout_seconds):
                running.wait_for_exit()
                return
        raise EmbeddedPostgresError(f"the embedded database in {self.directory} failed to stop")

    def _control(self, action: str, *options: str, timeout_seconds: float) -> bool:
        """Run `pg_ctl`, wait for the server, and return whether the command succeeded."""
        wait = ("-w", "-t", str(max(1, round(timeout_seconds))))
        place = ("-D", str(self.directory))
        code, _ = run_program(self.account, "pg_ctl", action, *place, *wait, *options)
        return code == 0

    def _require_version(self) -> None:
        version = (self.directory / "PG_VERSION").read_text().strip()
        if version != MAJOR_VERSION:
            raise EmbeddedPostgresError(
                f"{self.directory} was created by PostgreSQL {version}, but this release "
                f"includes PostgreSQL {MAJOR_VERSION}: dump it with the release that created it, "
                "and restore it into another database.data_dir"
            )

    def _write_settings(self) -> None:
        path = self.directory / "caseworker.conf"
        path.write_text(_SETTINGS.format(socket_dir=self._socket_dir()))
        self._hand_over(path)

    def _log_file(self) -> Path:
        """Return the server's log file, rotated first if it has grown large."""
        log = self.directory / "server.log"
        if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))
        log.touch(mode=0o600)
        self._hand_over(log)
        return log

    def _socket_dir(self) -> Path:
        """Return the cluster folder, or a private folder under /tmp if its path is too long."""
        if len(os.fsencode(self.directory / ".s.PGSQL.5432")) <= _LONGEST_SOCKET_PATH_BYTES:
            return self.directory
        identity = f"{self.directory}:{self.directory.stat().st_ino}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        short = Path(f"/tmp/caseworker-{digest}")  # noqa: S108 - its owner is checked below
        try:
            short.mkdir(mode=0o700)
            self._hand_over(short)
        except FileExistsError:
            self._require_private(short)
        return short

    def _require_private(self, folder: Path) -> None:
        status = folder.lstat()
        owner = self.account.pw_uid if self.account else os.geteuid()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner or status.st_mode & 0o077:
            raise EmbeddedPostgresError(
                f"the path of {self.directory} is too long for a socket, and the alternative "
                f"{folder} is owned by another user: use a shorter database.data_dir"
            )

    def _hand_over(self, path: Path) -> None:
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def _grant_account_access(self, directory: Path) -> None:
        if self.account is None:
            return
        change_owner(directory, self.account)
        changed = open_for_search((directory.parent, programs_folder()))
        if changed:
            _LOG.warning(
                "running as root: the embedded database runs under its own account; granted all "
                "accounts execute permission (not read) on these folders",
                account=self.account.pw_name,
                folders=[str(folder) for folder in changed],
                advice="run the service as an ordinary user, or set DATABASE_URL",
            )


def _ending(text: str) -> str:
    """Return the last lines joined into one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-4:])[-800:] or "no output"


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The main process of a server, as described by `postmaster.pid` in its cluster."""

    cluster: Path
    pid: int
    port: int
    socket_dir: str
    """Folder of the server's Unix socket; empty until the server has opened the socket."""

    @property
    def url(self) -> str:
        """URL of the database, valid for libpq and SQLAlchemy."""
        place = urlencode({"host": self.socket_dir, "port": self.port}, quote_via=quote, safe="")
        return f"postgresql://postgres@/postgres?{place}"

    def is_alive(self) -> bool:
        """Return whether the process is this cluster's server and not one that reused its PID."""
        try:
            process = psutil.Process(self.pid)
            return process.name().startswith("postgres") and Path(process.cwd()) == self.cluster
        except (psutil.Error, OSError):
            return False

    def wait_for_exit(self) -> None:
        """Block until the process of the stopped server has exited, without a time limit.

        The server removes its PID file earlier.
        """
        while self.is_alive():
            time.sleep(0.01)

    def accepts(self) -> bool:
        """Return whether a client can connect to the server now."""
        if not self.socket_dir:
            return False
        url = f"{self.url}&connect_timeout={_PING_TIMEOUT_SECONDS}"
        return pq.PGconn.ping(url.encode()) == pq.Ping.OK


def read_postmaster(cluster: Path) -> Postmaster | None:
    """Return the contents of a cluster's PID file; None if it does not exist or is incomplete."""
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
        pid, port = int(lines[0]), int(lines[3])
    except (OSError, ValueError, IndexError):
        return None
    # A sixth line shows that the fifth, the socket folder, was written completely.
    return Postmaster(cluster, pid, port, lines[4].strip() if len(lines) > 5 else "")


def disown_reused_pid(cluster: Path) -> None:
    """Remove the PID from the files of a dead server if another process has reused it.

    PostgreSQL would otherwise refuse to start. The rest of the PID file stays: it names the shared
    memory by which PostgreSQL detects surviving backends of the dead server.
    """
    postmaster = read_postmaster(cluster)
    if postmaster is None or not psutil.pid_exists(postmaster.pid) or postmaster.is_alive():
        return
    socket_lock = Path(postmaster.socket_dir or cluster) / f".s.PGSQL.{postmaster.port}.lock"
    for path in (cluster / "postmaster.pid", socket_lock):
        if path.exists():
            _, _, rest = path.read_text().partition("\n")
            path.write_text(f"{_NEVER_ALIVE_PID}\n{rest}")
