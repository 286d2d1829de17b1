"""The drawing process: limited, killable, and ended when idle."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.plotting.composing import Format
from caseworker_cases.tools.plotting.drawing import drawn
from caseworker_cases.tools.plotting.renderer import WORKER, Renderer
from caseworker_cases.tools.plotting.worker import MAX_MEMORY_BYTES
from tests.unit.tools.plotting.pictures import CANDLES, LINE

pytestmark = pytest.mark.asyncio(loop_scope="module")
CAP = 5_000_000


def pid_of(renderer: Renderer) -> int:
    """Return the drawing process's ID."""
    assert renderer.pid is not None
    return renderer.pid


async def ended(pid: int) -> None:
    """Wait for the end of a process without reaping it."""
    gone, loop = asyncio.Event(), asyncio.get_running_loop()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, gone.set)
    await gone.wait()
    loop.remove_reader(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("form", Format)
async def test_the_process_draws_what_is_drawn_here(renderer: Renderer, form: Format) -> None:
    """The bytes do not depend on the process or on earlier pictures."""
    picture = replace(LINE, format=form)
    await renderer.render(CANDLES, CAP)

    assert await renderer.render(picture, CAP) == drawn(picture, CAP)


async def test_one_process_draws_one_picture_after_another(renderer: Renderer) -> None:
    """Each concurrent caller gets its own picture."""
    await renderer.render(LINE, CAP)
    pid = pid_of(renderer)
    pictures = [replace(LINE, title=f"title {at}") for at in range(4)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(renderer.render(picture, CAP)) for picture in pictures]

    assert [task.result() for task in tasks] == [drawn(picture, CAP) for picture in pictures]
    assert renderer.pid == pid


@pytest.mark.req("002/23.3")
async def test_a_picture_that_is_too_large_ends_in_the_process(renderer: Renderer) -> None:
    """The picture is not sent back, and the process continues."""
    await renderer.render(LINE, CAP)
    pid = pid_of(renderer)

    with pytest.raises(ToolRefusedError, match="1,000 bytes") as refused:
        await renderer.render(LINE, 1000)

    assert refused.value.code == "too_large"
    assert (await renderer.render(LINE, CAP)).startswith(b"\x89PNG")
    assert renderer.pid == pid


async def test_a_picture_that_hangs_is_killed_and_the_next_one_is_drawn(
    renderer: Renderer,
) -> None:
    """The test freezes the process, like an infinite loop."""
    await renderer.render(LINE, CAP)
    stuck = pid_of(renderer)
    os.kill(stuck, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):  # the caller is cancelled
            await renderer.render(LINE, CAP)

    assert (await renderer.render(LINE, CAP)).startswith(b"\x89PNG")
    assert pid_of(renderer) != stuck


async def test_drawing_has_a_time_limit_of_its_own() -> None:
    """The agent gets an error, and no process is left."""
    before = set(psutil.Process().children())
    renderer = Renderer(timeout_seconds=0.05)  # shorter than the start of the process
    try:
        with pytest.raises(ToolRefusedError) as refused:
            await renderer.render(LINE, CAP)
        assert refused.value.code == "timeout"
        assert renderer.pid is None
    finally:
        await renderer.aclose()
    assert set(psutil.Process().children()) == before


async def test_a_process_that_dies_is_replaced_within_the_same_call(renderer: Renderer) -> None:
    """Drawing has no side effects, so it is repeated."""
    await renderer.render(LINE, CAP)
    frozen = pid_of(renderer)
    os.kill(frozen, signal.SIGSTOP)
    task = asyncio.create_task(renderer.render(LINE, CAP))
    await asyncio.wait({task}, timeout=0.3)
    os.kill(frozen, signal.SIGKILL)

    assert (await task).startswith(b"\x89PNG")
    assert pid_of(renderer) != frozen


async def test_an_idle_process_ends_by_itself_and_comes_back() -> None:
    """An idle service needs no memory for drawing."""
    renderer = Renderer(idle_seconds=0.05)
    try:
        await renderer.render(LINE, CAP)
        gone = pid_of(renderer)
        await ended(gone)
        assert (await renderer.render(LINE, CAP)).startswith(b"\x89PNG")
        assert renderer.pid != gone
    finally:
        await renderer.aclose()


async def test_the_process_knows_no_secret_has_little_memory_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The drawing process inherits no environment; after closing, no process or folder is left."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key")
    renderer = Renderer()
    await renderer.render(LINE, CAP)
    process = psutil.Process(pid_of(renderer))
    folder = process.cwd()
    assert "canary" not in str(process.environ())
    if sys.platform == "linux":
        assert process.rlimit(psutil.RLIMIT_AS) == (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES)

    await renderer.aclose()

    assert not process.is_running()
    assert not os.path.exists(folder)  # noqa: ASYNC240 - it takes no time
    with pytest.raises(ToolRefusedError):
        await renderer.render(LINE, CAP)


async def test_the_process_ends_when_its_parent_is_gone() -> None:
    """A killed parent closes the input of the process, which then exits."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", WORKER), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    async with asyncio.timeout(150):
        written, _ = await process.communicate(b"")

    assert (process.returncode, written) == (0, b"")
