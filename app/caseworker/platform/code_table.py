"""The code of runs that a process is executing, in memory that it shares with its parent.

Native code may end a process at any moment: by a crash, by ``os._exit``, or because it needs more
memory than its container has. The parent then reads in the table of the dead process which runs
executed code at that moment. The memory outlives the process, and writing to it costs a few
microseconds per call.

Only code that runs in the process itself is recorded: functions of tools and of steps. A request to
a model, to a server or to another program cannot end the process.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from typing import Any, Final

SLOTS: Final = 4096
"""Maximum number of simultaneous entries; code beyond that is not recorded."""
_SLOT_BYTES: Final = 1024
_NAME_CHARS: Final = 100
_LENGTH_BYTES: Final = 2
_ENDING: Final = SLOTS * _SLOT_BYTES
"""Positions after the slots: a flag, another flag, and the ID of the worker."""
_SUSPECTS: Final = _ENDING + 1
_WORKER: Final = _ENDING + 2

Executing = Callable[[], AbstractContextManager[object]]
"""Returns a context manager that records code while its block runs."""


@dataclass(frozen=True, slots=True)
class ExecutedCode:
    """A function that a run executes."""

    tenant: str
    run_id: str
    name: str
    """Name of the tool, function or code agent, at most 100 characters."""


class CodeTable:
    """The functions that a process executes, and what its parent must know about it.

    The parent creates the table, and forks the process that writes to it.
    """

    def __init__(self) -> None:
        self._memory = mmap(-1, _ENDING + _SLOT_BYTES)  # pages that are not used take no memory
        self._free = list(range(SLOTS))[::-1]
        self.ended: Callable[[ExecutedCode], None] = lambda _: None
        """Called whenever a function has ended, in the thread that executed it."""

    @contextmanager
    def executing(self, code: ExecutedCode) -> Iterator[None]:
        """Record a function while the block runs."""
        try:
            slot = self._free.pop() * _SLOT_BYTES  # atomic, as threads use the table too
        except IndexError:
            yield
            return
        self._write(slot, [code.tenant, code.run_id, code.name])
        try:
            yield
        finally:
            self._memory[slot : slot + _LENGTH_BYTES] = bytes(_LENGTH_BYTES)
            self._free.append(slot // _SLOT_BYTES)
            self.ended(code)

    @property
    def codes(self) -> list[ExecutedCode]:
        """The functions that are being executed, or were when the process died."""
        slots = (self._read(slot * _SLOT_BYTES) for slot in range(SLOTS))
        return [ExecutedCode(*each) for each in slots if isinstance(each, list) and len(each) == 3]

    @property
    def worker_id(self) -> str | None:
        """ID of the worker that the process is; None if it executes no runs, or not yet."""
        worker_id: str | None = self._read(_WORKER)
        return worker_id

    @worker_id.setter
    def worker_id(self, worker_id: str) -> None:
        self._write(_WORKER, worker_id)

    @property
    def is_ending(self) -> bool:
        """Whether the process is shutting down, so that its exit is expected."""
        return bool(self._memory[_ENDING])

    def end(self) -> None:
        """Record that the process is shutting down."""
        self._memory[_ENDING] = 1

    @property
    def suspects_wait(self) -> bool:
        """Whether runs wait for a process in which they run alone."""
        return bool(self._memory[_SUSPECTS])

    @suspects_wait.setter
    def suspects_wait(self, wait: bool) -> None:
        self._memory[_SUSPECTS] = wait

    def _write(self, at: int, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        length = len(text).to_bytes(_LENGTH_BYTES, "little")
        start = at + _LENGTH_BYTES
        self._memory[start : start + len(text)] = text
        self._memory[at:start] = length  # last, so that a reader finds no half of an entry

    def _read(self, at: int) -> Any:
        start = at + _LENGTH_BYTES
        length = int.from_bytes(self._memory[at:start], "little")
        try:
            return json.loads(self._memory[start : start + length]) if length else None
        except ValueError:  # faulty code has written into this memory
            return None


def executing(services: Any, tenant: str, run_id: str, name: str) -> Executing:
    """Return what records a function of a run.

    ``services`` are those of the run, a mapping by type. Without a parent process there is no
    table, and nothing is recorded.
    """
    table: CodeTable | None = services.get(CodeTable)
    if table is None:
        return nullcontext
    return partial(table.executing, ExecutedCode(tenant, run_id, name[:_NAME_CHARS]))
