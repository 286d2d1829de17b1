"""The embedded PostgreSQL, shared by all processes of a host that use one data directory.

Two lock files lie next to the cluster. `start.lock` is held while a server is started or stopped,
so only one process at a time decides. Every owner holds a shared lock on `owners.lock` as long as
it lives. The kernel releases both when a process dies for any reason. There is therefore no list of
PIDs to clean up, and a reused PID causes no confusion. A process that stops and then gets an
exclusive lock on `owners.lock` was the last owner, and stops the server.

    data_dir/start.lock    data_dir/owners.lock    data_dir/cluster/
"""

import atexit
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from caseworker.platform.postgres.embedded.cluster import Cluster, read_postmaster
from caseworker.platform.postgres.embedded.programs import (
    EmbeddedPostgresError,
    programs_folder,
    server_account,
)

_OWN_NAMES = frozenset({"start.lock", "owners.lock", "cluster", "cluster.new"})

_UNSAFE_IN_PATH = re.compile(r"[\x00-\x1f\x7f\"'$`\\,]")
"""Characters that a shell or PostgreSQL's settings would interpret."""


class EmbeddedPostgres:
    """A handle to the server in ``data_dir``, which runs while any handle is started.

    All methods block: a first start takes one to three seconds, a later one half a second, and
    joining a running server about ten milliseconds. A handle that is still started when the
    interpreter exits is stopped at that point. A server whose only owner was killed keeps running
    for the next owner.
    """

    def __init__(self, data_dir: Path, *, timeout_seconds: float = 60.0) -> None:
        self._data_dir = data_dir.expanduser().resolve()
        self._timeout_seconds = timeout_seconds
        self._ownership: BinaryIO | None = None
        self._url = ""

    def start(self) -> str:
        """Start the server, or join the running one, and return the URL of its database.

        Creates the cluster if it does not exist. A signal during the start releases the server.
        A server that is still recovering keeps running.

        Raises:
            EmbeddedPostgresError: the data directory cannot be used or the server does not start.
        """
        if self._ownership:
            return self._url
        programs_folder()  # before anything is created
        try:
            self._claim_folder()
            with self._deciding():
                self._ownership = _lock(self._data_dir / "owners.lock", fcntl.LOCK_SH)
                self._url = self._running_url()
        except OSError as error:
            self._disown()
            raise EmbeddedPostgresError(str(error)) from error
        except Exception:
            self._disown()
            raise
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)
        return self._url

    def stop(self) -> None:
        """Release the server, and stop it if no other handle is started.

        Does nothing if this handle is not started.

        Raises:
            EmbeddedPostgresError: the server does not stop.
        """
        if self._ownership is None:
            return
        atexit.unregister(self.stop)
        try:
            with self._deciding():
                self._disown()
                alone = _lock(self._data_dir / "owners.lock", fcntl.LOCK_EX)
                if alone:
                    with alone:
                        self._cluster().halt(timeout_seconds=self._timeout_seconds)
        except OSError as error:
            raise EmbeddedPostgresError(str(error)) from error

    def _disown(self) -> None:
        if self._ownership is not None:
            self._ownership.close()
            self._ownership = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _cluster(self) -> Cluster:
        return Cluster(self._data_dir / "cluster", server_account())

    def _claim_folder(self) -> None:
        """Create the data directory, or verify that this service created it."""
        if _UNSAFE_IN_PATH.search(str(self._data_dir)):
            raise EmbeddedPostgresError(
                f"database.data_dir: {str(self._data_dir)!r} contains a quote, comma, backslash, "
                "$, ` or control character: use another path"
            )
        # As root, the server runs as another account, which must traverse this folder.
        mode = 0o711 if os.geteuid() == 0 else 0o700
        self._data_dir.mkdir(mode=mode, parents=True, exist_ok=True)
        if not os.access(self._data_dir, os.R_OK | os.W_OK | os.X_OK):
            raise EmbeddedPostgresError(
                f"database.data_dir: {self._data_dir} is owned by another user: use another "
                "folder, or run the service as that user"
            )
        foreign = {entry.name for entry in self._data_dir.iterdir()} - _OWN_NAMES
        if foreign:
            raise EmbeddedPostgresError(
                f"database.data_dir: {self._data_dir} contains other files ({min(foreign)}, "
                "...): use an empty or new folder"
            )

    def _running_url(self) -> str:
        """Return the URL of a server that accepts connections; start one if necessary."""
        cluster = self._cluster()
        give_up_at = time.monotonic() + self._timeout_seconds
        while time.monotonic() < give_up_at:
            running = read_postmaster(cluster.directory)
            if running and running.accepts():
                return running.url
            if running and running.is_alive():
                time.sleep(0.05)  # it is starting, recovering or stopping
                continue
            if not cluster.directory.exists():
                cluster.make()
            cluster.launch(timeout_seconds=self._timeout_seconds)
        raise EmbeddedPostgresError(
            f"the embedded database in {self._data_dir} did not accept connections within "
            f"{self._timeout_seconds:g} seconds: see cluster/server.log in that folder"
        )

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Hold `start.lock`."""
        give_up_at = time.monotonic() + self._timeout_seconds
        while not (lock := _lock(self._data_dir / "start.lock", fcntl.LOCK_EX)):
            if time.monotonic() > give_up_at:
                raise EmbeddedPostgresError(
                    f"timed out after {self._timeout_seconds:g} seconds: another process is "
                    f"starting or stopping the embedded database in {self._data_dir}"
                )
            time.sleep(0.02)
        with lock:
            yield


def _lock(path: Path, kind: int) -> BinaryIO | None:
    """Lock a file and return it, or None if the lock is taken; closing the file releases it.

    Uses `flock` instead of `lockf`: the lock belongs to the open file and not to the process, so
    two handles of one process are two owners.
    """
    handle = path.open("ab")
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
