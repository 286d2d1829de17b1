"""Child processes: heard, signalled, and gone afterwards."""

import signal

import psutil
import pytest

from tests.support.processes import ChildFailedError, ChildProcess

_TALKER = "import sys; print('starting'); print('{\"port\": 1}'); sys.stdin.read()"
_PARENT = (
    "import json, subprocess, sys; child = subprocess.Popen(['sleep', '60']);"
    "print(json.dumps({'child': child.pid})); child.wait()"
)


async def test_it_waits_for_the_line_that_says_where_the_child_listens() -> None:
    """Other lines are passed over; the child goes on running."""
    with ChildProcess.python("-c", _TALKER) as child:
        assert await child.json_line("port") == {"port": 1}
        assert child.exit_code is None


async def test_a_child_that_dies_early_is_reported_with_its_output() -> None:
    """Nobody waits for the deadline to learn why it failed."""
    with (
        ChildProcess.python("-c", "raise SystemExit('out of cheese')") as child,
        pytest.raises(ChildFailedError, match=r"ended with 1(.|\n)*out of cheese"),
    ):
        await child.json_line("port")


async def test_terminate_asks_and_kill_does_not() -> None:
    """Both return when the child is gone, and the exit code tells them apart."""
    stubborn = "import signal; signal.signal(15, lambda *_: exit(7)); print('{\"up\": 1}');"
    stubborn += "[signal.pause() for _ in range(9)]"
    with ChildProcess.python("-c", stubborn) as asked, ChildProcess.python("-c", stubborn) as shot:
        await asked.json_line("up")
        await shot.json_line("up")

        assert await asked.terminate() == 7
        shot.kill()
        assert shot.exit_code == -signal.SIGKILL


async def test_a_frozen_child_is_stopped_until_it_is_thawed() -> None:
    """SIGSTOP and SIGCONT reach it."""
    with ChildProcess.python("-c", _TALKER) as child:
        await child.json_line("port")
        child.freeze()
        assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED

        child.thaw()
        assert psutil.Process(child.pid).status() != psutil.STATUS_STOPPED


async def test_nothing_the_child_started_outlives_the_block() -> None:
    """Grandchildren end with it, even after it was killed."""
    with ChildProcess.python("-c", _PARENT) as child:
        grandchild = psutil.Process((await child.json_line("child"))["child"])
        child.kill()
        assert grandchild.is_running()

    psutil.wait_procs([grandchild], timeout=120)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


async def test_a_child_can_be_started_again() -> None:
    """Only what it said since then counts."""
    with ChildProcess.python("-c", "import os; print('{\"pid\": %d}' % os.getpid())") as child:
        first = await child.json_line("pid")
        await child.wait()
        child.start()

        assert await child.json_line("pid") != first
