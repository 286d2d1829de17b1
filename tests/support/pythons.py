"""Runs the unit tests under every supported Python on this machine.

Each Python gets its own environment in ``.venv-pythons``, made by uv from the lock. Only packages
are downloaded: a missing interpreter is reported as not run. Interpreters of pyenv are found even
if inactive. ``python -m tests.support.pythons -k budget`` passes options to pytest.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SUPPORTED: Final = ("3.11", "3.12", "3.13", "3.14")

IMPORT_ALL: Final = """
import importlib, pkgutil, caseworker
names = [module.name for module in pkgutil.walk_packages(caseworker.__path__, "caseworker.")]
for name in names:
    if name != "caseworker.__main__":
        importlib.import_module(name)
print(f"{len(names)} modules imported")
"""


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of this version; None if it is not installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [str(each) for each in sorted(pyenv.glob("versions/*/bin"))]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    asked = ["uv", "python", "find", "--system", "--no-project", "--no-python-downloads", version]
    found = subprocess.run(asked, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def passes(version: str, found: str, options: Sequence[str]) -> bool:
    """Return whether all modules can be imported and the unit tests pass."""
    folder = ROOT / ".venv-pythons" / version
    synced = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder), "UV_PYTHON": found}
    python = str(folder / "bin" / "python")
    steps: Sequence[Sequence[str]] = (
        ("uv", "sync", "--locked", "--all-extras", "--quiet"),
        (python, "-c", IMPORT_ALL),
        (python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests/unit", *options),
    )
    return all(subprocess.run(step, env=synced, cwd=ROOT).returncode == 0 for step in steps)


def main() -> int:
    """Run all interpreters; return 1 if one failed or none was found."""
    outcomes: dict[str, str] = {}
    for version in SUPPORTED:
        if (found := interpreter(version)) is None:
            outcomes[version] = "not run: this machine has none"
            continue
        sys.stdout.write(f"\n-- Python {version}: {found}\n")
        sys.stdout.flush()
        outcomes[version] = "passed" if passes(version, found, sys.argv[1:]) else "FAILED"
    sys.stdout.write("\n" + "".join(f"Python {each}: {how}\n" for each, how in outcomes.items()))
    ran = [how for how in outcomes.values() if not how.startswith("not run")]
    return 0 if ran and "FAILED" not in ran else 1


if __name__ == "__main__":
    sys.exit(main())
