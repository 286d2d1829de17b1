"""Who the embedded server runs as: PostgreSQL refuses to run as root."""

import os
import pwd
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
