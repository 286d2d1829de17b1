"""A supervisor under system failures, each in its own process."""

import subprocess
import sys

import pytest

FEW_PROCESSES = """
import os, signal
from caseworker.main.supervisor import ProcessSupervisor

fork, forks = os.fork, []

def scarce():
    forks.append(None)
    if len(forks) == 2:
        raise BlockingIOError("no more processes")
    return fork()

def serve(place):
    place.answers()
    if len(forks) == 1:
        os._exit(1)
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()

os.fork = scarce
ProcessSupervisor(("127.0.0.1", 0), count=1, serve=serve).run(grace_seconds=20)
print(len(forks), "forks")
"""
"""The only process dies, and the first attempt to start another one fails."""

DIES_EARLY = """
import os, signal, time
from caseworker.main.supervisor import ProcessSupervisor

parent_of_child, supervisor = os.getppid, os.getpid()

def parent():
    if parent_of_child() == supervisor:
        os.kill(supervisor, signal.SIGKILL)
    while parent_of_child() == supervisor:
        time.sleep(0.001)
    return parent_of_child()

def serve(place):
    place.answers()
    time.sleep(60)

os.getppid = parent
ProcessSupervisor(("127.0.0.1", 0), count=1, serve=serve).run(grace_seconds=20)
"""
"""The supervisor is killed before its child reads the parent's process ID."""


@pytest.mark.parametrize(("script", "shown"), [(FEW_PROCESSES, "3 forks\n"), (DIES_EARLY, "")])
def test_processes_are_neither_given_up_nor_left_behind(script: str, shown: str) -> None:
    """A failed fork is retried, and no child outlives its supervisor and holds its output open."""
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert ended.stdout.endswith(shown)
