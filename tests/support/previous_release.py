"""The code of an older release, from the history of this repository, as processes."""

import configparser
import io
import os
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes import ChildProcess
from tests.support.service import QUICK, ServiceProcess

REVISION = "20261127_1600"
"""The newest revision of that release."""
FOLLOWED_BY = "migrations/versions/20261129_1100_reserve_calls_in_accounts.py"
"""A file that the commit after the previous release added."""

_ROOT = Path(__file__).parents[2]


def unpack(folder: Path) -> Path:
    """Unpack the older code into a folder; it needs the whole history of the repository."""
    after = _git("log", "--diff-filter=A", "--format=%H", "--", FOLLOWED_BY).stdout.decode().split()
    paths = ("app", "migrations", "pyproject.toml")
    archive = _git("archive", f"{after[-1]}^", *paths) if after else None
    assert archive is not None, "the clone is shallow: run git fetch --unshallow"
    assert archive.returncode == 0, archive.stderr
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    _install_metadata(folder)
    return folder


def _install_metadata(folder: Path) -> None:
    """Write the entry points of the older code to where they precede those of this one."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    about = folder / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(head)
    points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    points.optionxform = str  # type: ignore[assignment, method-assign]
    points.read_dict(project.get("entry-points", {}))
    with (about / "entry_points.txt").open("w") as file:
        points.write(file)
    hide_cases(folder)  # its package of cases belongs to the same distribution


def hide_cases(folder: Path) -> None:
    """Make the installed package of cases register nothing where ``folder`` precedes it."""
    about = folder / "caseworker_cases-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: caseworker-cases\nVersion: 0\n")


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    if shutil.which("git") is None:
        return subprocess.CompletedProcess(arguments, 1, b"", b"there is no git")
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, check=False)


class PreviousService(ServiceProcess):
    """One process of the older code in ``folder``."""

    def __init__(self, folder: Path, database_url: str, settings: Mapping[str, str]) -> None:
        super().__init__(database_url, settings=settings)
        self.child.close()  # it was never started
        path = os.pathsep.join(map(str, (folder, folder / "app", _ROOT / "clients" / "python")))
        env = {**QUICK, **settings, "DATABASE_URL": database_url, "PYTHONPATH": path}
        self.child = ChildProcess.python(
            "-m", "caseworker", "serve", env=env, cwd=folder, name="previous"
        )
