"""The code of an older release, from the history of this repository, as processes."""

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import ChildProcess
from tests.support.service import QUICK, ServiceProcess

COMMIT = "8903c0e8909b3408933e6d028daa31631f519e74"
"""The last one before tenants, approvals and quotas."""
REVISION = "20261122_1910"
"""The newest revision that it knows."""

_ROOT = Path(__file__).parents[2]


def unpack(folder: Path) -> Path:
    """Unpack the older code into a folder, or skip the test where its history is not at hand."""
    archive = subprocess.run(
        ["git", "archive", COMMIT, "app", "migrations"],
        cwd=_ROOT,
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        pytest.skip(f"commit {COMMIT[:8]} is not in this clone: fetch the whole history")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


class PreviousService(ServiceProcess):
    """One process of the older code in ``folder``."""

    def __init__(self, folder: Path, database_url: str, settings: Mapping[str, str]) -> None:
        super().__init__(database_url, settings=settings)
        self.child.close()  # it was never started
        path = os.pathsep.join((str(folder), str(_ROOT / "clients" / "python")))
        env = {**QUICK, **settings, "DATABASE_URL": database_url, "PYTHONPATH": path}
        self.child = ChildProcess.python("-m", "app", "serve", env=env, cwd=folder, name="previous")
