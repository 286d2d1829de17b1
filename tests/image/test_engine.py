"""`make image-check` without a container engine: it fails with one line that gives the reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DAEMON = "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is it running?"


def engine(folder: Path, name: str, script: str) -> None:
    """Install a program that answers like a container engine."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def image_check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the check where only the programs of a folder are installed."""
    return subprocess.run(
        [sys.executable, "-m", "tests.image"],
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("engines", "reasons"),
    [
        ({}, ["docker: not installed", "podman: not installed"]),
        (
            {"docker": f"echo '{DAEMON}' >&2; exit 1"},
            [f"docker: `docker ps`: {DAEMON}", "podman: not installed"],
        ),
        (
            {"docker": "[ $1 = ps ] || { echo 'unknown command: compose' >&2; exit 1; }"},
            ["docker: `docker compose ls`: unknown command: compose"],
        ),
        (
            {
                "docker": "exit 1",
                "podman": "printf 'Error: no\\nstorage\\n\\nSee help.\\n'; exit 125",
            },
            ["docker: `docker ps`: exit code 1", "podman: `podman ps`: Error: no storage"],
        ),
    ],
)
def test_one_line_names_why_no_engine_can_be_used(
    tmp_path: Path, engines: dict[str, str], reasons: list[str]
) -> None:
    """Each engine has its own reason: not installed, not running, or without Compose."""
    for name, script in engines.items():
        engine(tmp_path, name, script)
    checked = image_check(tmp_path)

    assert checked.returncode == 1
    assert checked.stdout == ""
    [line] = checked.stderr.splitlines()
    assert line.startswith("image-check: no container engine with Compose; ")
    assert [reason for reason in reasons if reason not in line] == []


def test_a_check_that_fails_names_itself(tmp_path: Path) -> None:
    """An engine that can read no Compose file ends the check with its message."""
    engine(
        tmp_path,
        "docker",
        "case \"$*\" in *config) echo 'services must be a mapping' >&2; exit 15;; esac",
    )
    checked = image_check(tmp_path)

    assert checked.returncode == 1
    assert "docker-compose.yml config: exit code 15" in checked.stderr
    assert checked.stderr.endswith("services must be a mapping\n\n")
