"""Environments of other projects' packages, which several test processes may need at once."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from bench import environments
from bench.environments import peer_environment
from tests.support import npm_packages
from tests.support.npm_packages import installed_packages

USERS = 4


async def test_an_environment_that_several_processes_need_is_created_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All other processes wait for it."""
    commands: list[str] = []

    async def uv(*arguments: str) -> None:
        commands.append(arguments[0])
        await asyncio.sleep(0)  # the others run
        if arguments[0] == "venv":
            os.mkdir(arguments[-1])  # fails if another one creates it

    monkeypatch.setattr(environments, "_ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(environments, "_uv", uv)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(peer_environment("peer==1")) for _ in range(USERS)]

    assert commands == ["venv", "pip"]
    assert len({each.result().python for each in tasks}) == 1


def test_npm_packages_that_several_processes_need_are_installed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All other processes wait for the end of the installation."""
    installations: list[Path] = []
    (tmp_path / "package-lock.json").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    all_start = Barrier(USERS)

    def install(target: Path, _: Path) -> None:
        installations.append(target)
        target.mkdir()  # fails if another one installs
        (target / "installed").touch()

    def use(_: int) -> Path:
        all_start.wait()
        return installed_packages(tmp_path)

    monkeypatch.setattr(npm_packages, "_install", install)
    with ThreadPoolExecutor(USERS) as pool:
        folders = set(pool.map(use, range(USERS)))

    assert len(installations) == 1
    assert folders == {installations[0] / "node_modules"}
