"""The environments of the sides: this project's own, and a separate one for every peer.

A peer is installed at a pinned version into a virtual environment below ``.bench``, so its
dependencies never mix with those of this project. Each side runs as a worker: a process that reads
a question as a line of JSON, measures once, and answers with the result (``answering.py``).
"""

import asyncio
import fcntl
import json
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
_UV: Final = Path(sys.executable).parent / "uv"
_ENVIRONMENTS: Final = ROOT / ".bench" / "environments"
_LINE_BYTES: Final = 64 * 2**20
_GRACE_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python interpreter with its installed packages."""

    python: Path
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of its processes, in addition to those of this process."""


def own_environment() -> Environment:
    """Return the environment of this process."""
    return Environment(Path(sys.executable))


async def has_python(version: str) -> bool:
    """Return whether a Python of this version is installed."""
    find = ("python", "find", "--no-python-downloads", version)
    process = await asyncio.create_subprocess_exec(_UV, *find, stdout=DEVNULL, stderr=DEVNULL)
    return await process.wait() == 0


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block, so that one process at a time installs into it.

    The folder does not need to exist.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def peer_environment(
    *requirements: str, python: str = sys.executable, without: Sequence[str] = ()
) -> Environment:
    """Return an environment with pinned requirements, created on first use.

    ``python`` is an interpreter or the version of an installed one. ``without`` names dependencies
    that are not installed.

    Raises:
        RuntimeError: The environment could not be created.
    """
    digest = sha256("\n".join(requirements).encode()).hexdigest()[:8]
    name = requirements[0].split("==")[0].split("[")[0]
    home = _ENVIRONMENTS / f"{name}-{digest}"
    program = home / "bin" / "python"
    with ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, locked(home))
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            await _uv("venv", "--quiet", "--python", python, str(home))
            excluded = home / "without.txt"
            excluded.write_text("".join(f"{each}; sys_platform == 'none'\n" for each in without))
            options = ("--quiet", "--python", str(program), "--override", str(excluded))
            await _uv("pip", "install", *options, *requirements)
            (home / "complete").touch()
    return Environment(program)


class Worker:
    """A side's process that measures on request; start it with ``worker``."""

    def __init__(self, process: Process, script: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._script = script

    async def ask(self, question: str, **arguments: object) -> Any:
        """Return the worker's answer to one question.

        Raises:
            RuntimeError: The worker has died; its output is on standard error.
        """
        line = json.dumps({"question": question, "arguments": arguments})
        self._stdin.write(line.encode() + b"\n")
        await self._stdin.drain()
        answer = await self._stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker {self._script} died of {question} {arguments}")
        return json.loads(answer)

    async def stop(self) -> None:
        """End the process; kill it if it does not end in time."""
        self._stdin.close()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def worker(
    environment: Environment, script: str, arguments: Sequence[str] = ()
) -> AsyncIterator[Worker]:
    """Run a module of ``bench.sides`` as a worker during the block."""
    path = ROOT / "bench" / "sides" / f"{script}.py"
    process = await asyncio.create_subprocess_exec(
        *(str(environment.python), str(path), *arguments),
        stdin=PIPE,
        stdout=PIPE,
        limit=_LINE_BYTES,
        env={**os.environ, **environment.variables, "PYTHONPATH": str(ROOT)},
    )
    started = Worker(process, script)
    try:
        yield started
    finally:
        await started.stop()


async def _uv(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(_UV, *arguments)
    if await process.wait() != 0:
        raise RuntimeError(f"failed: uv {' '.join(arguments)}")
