"""A PID file of a server that has ended may name a process that has reused its PID."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from caseworker.platform.postgres.embedded.cluster import Postmaster


@contextmanager
def _process(program: Path, folder: Path) -> Iterator[int]:
    process = subprocess.Popen([program, "600"], cwd=folder)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("name", "folder", "alive"),
    [
        ("postgres", "cluster", True),
        ("postgres", "another", False),
        ("sleep", "cluster", False),
        ("sleep", "another", False),
    ],
)
def test_the_server_of_a_cluster_is_a_postgres_in_its_folder(
    tmp_path: Path, name: str, folder: str, *, alive: bool
) -> None:
    """The name and the folder of the process decide together."""
    for each in ("cluster", "another"):
        (tmp_path / each).mkdir()
    program = shutil.which("sleep")
    assert program is not None
    shutil.copy(program, tmp_path / name)

    with _process(tmp_path / name, tmp_path / folder) as pid:
        server = Postmaster(cluster=tmp_path / "cluster", pid=pid, port=1, socket_dir="")
        assert server.is_alive() is alive
    assert not server.is_alive()
