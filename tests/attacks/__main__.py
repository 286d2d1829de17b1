"""Attacks the service with one attack after another and prints the effect of each.

``python -m tests.attacks [NAME ...]`` starts a service for each attack, with a memory limit. It
exits with 1 if an attack ended the process, blocked its answers, exceeded the memory limit, or
stopped a run of another caller.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
from pathlib import Path

import psutil

from tests.attacks.measuring import Measured, Watch
from tests.attacks.programs import PROGRAMS
from tests.attacks.target import Target
from tests.support.database import TestServer, open_server
from tests.support.fake_provider.client import FakeProvider
from tests.support.processes import ChildFailedError, ChildProcess
from tests.support.service import ServiceProcess, model_settings
from tests.support.tenants import OPERATOR_KEY

MEMORY_MB = 2048
"""The memory limit of the service in MiB; its database is a separate process."""
LATENCY_MS = 250
"""The highest allowed latency of /healthz in milliseconds."""
_ATTACK_SECONDS = 150


async def attacked(name: str, postgres: TestServer, provider: FakeProvider) -> Measured:
    """Make one attack on a new service."""
    program = PROGRAMS[name]
    await provider.reset()
    for marker, step in program.replies.items():
        await provider.script(marker, [step], repeat_last=True)
    settings = {**model_settings(provider.openai_url), "SERVER_MAX_CONNECTIONS": "2000"}
    key = "" if program.settings is None else OPERATOR_KEY
    if key:
        settings |= {"AUTH_BOOTSTRAP_KEY": key, **(program.settings or {})}
    with postgres.database() as url:
        async with ServiceProcess(url, settings=settings, name="attacked") as service:
            limit = (MEMORY_MB << 20, MEMORY_MB << 20)
            psutil.Process(service.child.worker_pid).rlimit(resource.RLIMIT_DATA, limit)
            with Watch(service.url, service.child.worker_pid) as watch:
                remark, succeeded = await _attack(name, service.url, key)
            others = await asyncio.to_thread(_serves, Target(service.url, key))
            alive = service.child.exit_code is None
            return Measured(
                name=name,
                health=watch.health(),
                alive=alive,
                others_go_on=others,
                harmless=succeeded,
                remark=remark,
            )


async def _attack(name: str, url: str, key: str) -> tuple[str, bool]:
    """Run an attack in a separate process; return its remark, and whether it reports success."""
    arguments = ("-m", "tests.attacks.programs", name, url, key)
    with ChildProcess.python(*arguments, name="attack") as attack:
        try:
            code = await attack.wait(timeout_seconds=_ATTACK_SECONDS)
        except ChildFailedError:
            return f"went on for {_ATTACK_SECONDS} s", False
        said = attack.stdout if code == 0 else (attack.stderr.strip().splitlines() or ["?"])[-1]
        return said, code == 0


def _serves(target: Target) -> bool:
    """Return whether a run of another caller is accepted and completes."""
    graph = {"steps": [{"id": "a", "type": "llm", "data": {"prompt": "all well?"}}], "edges": []}
    try:
        return target.run(graph).startswith("completed")
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return False


async def attack_all(names: list[str], latency_ms: float) -> bool:
    """Run the attacks, print a table, and return whether all were harmless."""
    sys.stdout.write(Measured.HEADING)
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="caseworker-attacks-") as folder,
        open_server(Path(folder) / "data") as postgres,
    ):
        async with FakeProvider() as provider:
            for name in names:
                measured = await attacked(name, postgres, provider)
                found.append(measured.passes(latency_ms))
                sys.stdout.write(measured.row(latency_ms))
                sys.stdout.flush()
    return all(found)


def main() -> None:
    """Parse the command line and run the attacks."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS, []], help="default: all of them")
    parser.add_argument("--latency-ms", type=float, default=LATENCY_MS)
    given = parser.parse_args()
    sys.exit(not asyncio.run(attack_all(given.names or list(PROGRAMS), given.latency_ms)))


if __name__ == "__main__":
    main()
