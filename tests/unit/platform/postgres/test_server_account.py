"""Creating an OS account for the embedded database is logged."""

import os
import pwd
import subprocess
from typing import Any

import pytest
from structlog.testing import capture_logs

from caseworker.platform.postgres.embedded import programs


def test_an_account_that_root_makes_is_logged_as_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The warning comes first; it names the account and the alternative."""
    someone = pwd.getpwuid(os.getuid())
    commands: list[list[str]] = []
    told: list[int] = []

    def made(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        commands.append(command)
        told.append(len(logged))
        return subprocess.CompletedProcess(command, 0, "", "")

    def found(_: str) -> pwd.struct_passwd:
        if not commands:
            raise KeyError
        return someone

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwnam", found)
    monkeypatch.setattr("subprocess.run", made)
    with capture_logs() as logged:
        account = programs.server_account()

    assert account is someone
    assert [command[0] for command in commands] == ["useradd"]
    assert told == [1]
    assert logged[0]["log_level"] == "warning"
    assert logged[0]["account"] == commands[0][-1]
    assert "DATABASE_URL" in logged[0]["advice"]
