"""Tools that end their process in different ways, and one that does not."""

import ctypes
import mmap
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caseworker import ToolContext, tool
from caseworker.nodes.node_type import NodeType
from caseworker.nodes.strict_parsing import StepData
from caseworker.tools.ports import ToolResult, ToolSpec
from tests.support.noting_tool import NOTES

OPEN = ".open"
"""Suffix of the file next to the notes, after which the tool ``pause`` ends."""


def _note(context: ToolContext, name: str) -> None:
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{context.run_id} {name}\n")


@tool
def segfault(context: ToolContext) -> None:
    """Read address 0."""
    _note(context, "segfault")
    ctypes.string_at(0)


@tool
def abort(context: ToolContext) -> None:
    """Abort."""
    _note(context, "abort")
    os.abort()


@tool
async def bus_error(context: ToolContext) -> None:
    """Read a page of a file that has become shorter."""
    _note(context, "bus_error")
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        page[0]


@tool
def divide(context: ToolContext) -> None:
    """Divide by zero in C."""
    _note(context, "divide")
    ctypes.CDLL(None).div(1, 0)


@tool
def leave(context: ToolContext) -> None:
    """Exit with code 0."""
    _note(context, "leave")
    os._exit(0)


@tool
async def leave_with_3(context: ToolContext) -> None:
    """Exit with code 3."""
    _note(context, "leave_with_3")
    os._exit(3)


@tool(idempotent=False)
def leave_once(context: ToolContext) -> None:
    """Exit at once; the call must not be repeated."""
    _note(context, "leave_once")
    os._exit(1)


@tool(timeout_seconds=0.2)
def late_segfault(context: ToolContext) -> None:
    """Read address 0 after the call has timed out."""
    _note(context, "late_segfault")
    time.sleep(1)
    ctypes.string_at(0)


@tool(timeout_seconds=60)
def hog(context: ToolContext) -> None:
    """Take memory until the kernel ends it."""
    _note(context, "hog")
    held = []
    while True:
        held.append(b"x" * (16 << 20))


@tool
def kill(context: ToolContext) -> None:
    """Kill the process with SIGKILL, the first two times."""
    _note(context, "kill")
    if Path(os.environ[NOTES]).read_text().count(f"{context.run_id} kill\n") <= 2:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


@tool(idempotent=False, external=True)
def once(context: ToolContext) -> str:
    """Do something that must not be repeated."""
    _note(context, "once")
    time.sleep(0.05)
    return "done"


@tool(timeout_seconds=60)
def take_20_seconds(context: ToolContext) -> str:
    """Take 20 seconds."""
    _note(context, "take_20_seconds")
    time.sleep(20)
    return "done"


@tool(timeout_seconds=150)
def pause(context: ToolContext) -> str:
    """Wait until the test opens the gate."""
    _note(context, "pause")
    while not Path(os.environ[NOTES] + OPEN).exists():
        time.sleep(0.02)
    return "done"


class DeadlyTool:
    """A tool without the decorator that aborts."""

    spec = ToolSpec(
        name="deadly",
        description="Aborts.",
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Abort; see Tool."""
        os.abort()


class DeadlyNode:
    """A node of a plugin that aborts."""

    async def execute(self, data: Any, inputs: Mapping[str, Any], context: Any) -> Any:
        """Abort; see Node."""
        os.abort()


def deadly_type() -> NodeType:
    """Return a step type whose steps end the process."""
    return NodeType(name="deadly_step", description="Aborts.", node=DeadlyNode(), data=StepData)


async def deadly_agent(context: Any) -> None:
    """Abort between two awaits."""
    await context.step("before", lambda: 1)
    os.abort()


def deadly_sync_agent(context: Any) -> None:
    """Read address 0, in a thread."""
    context.step("before", lambda: 1)
    ctypes.string_at(0)
