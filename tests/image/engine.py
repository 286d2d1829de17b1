"""Runs a Compose file with Docker or Podman."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ENGINES = ("docker", "podman")
COMMAND_SECONDS = 1800
"""Time for a command; a build that downloads all packages is the longest."""


class NoEngineError(Exception):
    """No container engine can start a Compose file here; the message is one line with reasons."""


class CheckError(Exception):
    """A check failed; the message names it."""


def find_engine() -> str:
    """Return the command of the first engine that answers and has Compose.

    Raises:
        NoEngineError: there is none.
    """
    reasons = []
    for engine in ENGINES:
        if (reason := _reason_against(engine)) is None:
            return engine
        reasons.append(f"{engine}: {reason}")
    raise NoEngineError(f"no container engine with Compose; {'; '.join(reasons)}")


def _reason_against(engine: str) -> str | None:
    """Return why an engine cannot start a Compose file; None if it can."""
    if shutil.which(engine) is None:
        return "not installed"
    for command in ([engine, "ps"], [engine, "compose", "ls"]):
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            lines = (tried.stderr or tried.stdout).split("\n\n")[0].split()
            return f"`{' '.join(command)}`: {' '.join(lines) or f'exit code {tried.returncode}'}"
    return None


@dataclass(frozen=True, slots=True)
class Project:
    """The containers of one Compose file, under a project name of their own."""

    engine: str
    name: str
    file: Path

    def compose(self, *arguments: str) -> str:
        """Execute a Compose command and return its output.

        Raises:
            CheckError: the command failed.
        """
        return run(self._compose(*arguments))

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Compose command without waiting for its end."""
        return subprocess.Popen(self._compose(*arguments), stderr=subprocess.DEVNULL)

    def _compose(self, *arguments: str) -> list[str]:
        return [self.engine, "compose", "-p", self.name, "-f", str(self.file), *arguments]

    def configuration(self) -> dict[str, Any]:
        """Return the Compose file as Compose reads it, with absolute paths."""
        content: dict[str, Any] = yaml.safe_load(self.compose("config"))
        return content

    def containers(self, *services: str) -> list[Mapping[str, Any]]:
        """Return the engine's description of each container of the services."""
        ids = self.compose("ps", "--all", "--quiet", *services).split()
        found: list[Mapping[str, Any]] = json.loads(run([self.engine, "inspect", *ids]))
        return found

    def addresses(self, service: str, port: int) -> list[str]:
        """Return the URL of a container's port, for each container of a service."""
        return [
            f"http://127.0.0.1:{each['NetworkSettings']['Ports'][f'{port}/tcp'][0]['HostPort']}"
            for each in self.containers(service)
        ]

    def python(self, service: str, code: str) -> Iterator[str]:
        """Execute a program in each container of a service; yield its outputs."""
        for each in self.containers(service):
            yield run([self.engine, "exec", each["Id"], "python", "-c", code])


def run(command: Sequence[str]) -> str:
    """Execute a command and return its output.

    Raises:
        CheckError: it failed, and the message ends with its error output; or it was too slow.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"{' '.join(command)}: not within {COMMAND_SECONDS} seconds") from None
    if done.returncode != 0:
        raise CheckError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout
