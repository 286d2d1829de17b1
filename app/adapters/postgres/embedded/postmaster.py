"""What the pid file of a server says, and whether it is still true."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import psutil
from psycopg import pq

_NEVER_ALIVE_PID = 2**31 - 1
"""Above every system's highest process id."""

_PING_TIMEOUT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The head of a server, as the `postmaster.pid` of its cluster describes it."""

    cluster: Path
    pid: int
    port: int
    socket_dir: str
    """Empty while the server has not opened its socket yet."""

    @property
    def url(self) -> str:
        """The URL of the database, for libpq and SQLAlchemy alike."""
        place = urlencode({"host": self.socket_dir, "port": self.port}, quote_via=quote, safe="")
        return f"postgresql://postgres@/postgres?{place}"

    def is_alive(self) -> bool:
        """Say whether the process is a server of this cluster, not one that got its pid."""
        try:
            process = psutil.Process(self.pid)
            return process.name().startswith("postgres") and Path(process.cwd()) == self.cluster
        except (psutil.Error, OSError):
            return False

    def accepts(self) -> bool:
        """Say whether a client can connect now."""
        if not self.socket_dir:
            return False
        asked = f"{self.url}&connect_timeout={_PING_TIMEOUT_SECONDS}"
        return pq.PGconn.ping(asked.encode()) == pq.Ping.OK


def read_postmaster(cluster: Path) -> Postmaster | None:
    """Return what the pid file says; None if there is no file or no sense in it yet."""
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
        pid, port = int(lines[0]), int(lines[3])
    except (OSError, ValueError, IndexError):
        return None
    # The sixth line ends the fifth: a socket folder may still be half written.
    return Postmaster(cluster, pid, port, lines[4].strip() if len(lines) > 5 else "")


def disown_reused_pid(cluster: Path) -> None:
    """Take a pid that another process has by now out of the files a dead server left.

    PostgreSQL would refuse to start. The rest of the pid file stays: by the shared memory it
    names, PostgreSQL finds out whether backends of the dead server still live.
    """
    left = read_postmaster(cluster)
    if left is None or not psutil.pid_exists(left.pid) or left.is_alive():
        return
    socket_lock = Path(left.socket_dir or cluster) / f".s.PGSQL.{left.port}.lock"
    for path in (cluster / "postmaster.pid", socket_lock):
        if path.exists():
            _, _, rest = path.read_text().partition("\n")
            path.write_text(f"{_NEVER_ALIVE_PID}\n{rest}")
