"""A run that several processes execute in turn, because each of them is interrupted."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from caseworker.runs.run import NewRun, Run, RunRequest
from tests.support.crashing_wire import RefusingJournals
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import KEY, RunProcess, database, loop


@dataclass
class InterruptedRun(ABC):
    """One run, executed by as many processes as necessary."""

    seed: int
    losses: int = 1
    """The number of processes to interrupt."""
    store: MemoryRuns = field(init=False)
    processes: list[RunProcess] = field(default_factory=list)
    external_calls: list[tuple[str, int]] = field(default_factory=list)
    """Every external call, with the number of the process that made it."""
    ended_before: list[frozenset[str]] = field(default_factory=list)
    """The journal keys of finished calls at each start of a process."""
    interrupted: int = 0
    draining: list[asyncio.Task[None]] = field(default_factory=list)
    ended: bool = False
    final: Run = field(init=False)

    @abstractmethod
    def nodes(self) -> dict[str, Any]:
        """Return the catalog and the services of a process, as :class:`RunProcess` takes them."""

    def process(self) -> RunProcess:
        """Return another process that executes runs."""
        name = f"p{len(self.processes) + 1}"
        journals = RefusingJournals(self.store, f"{self.seed} {name}")
        process = RunProcess(store=self.store, name=name, journals=journals, **self.nodes())
        self.processes.append(process)
        return process

    async def execute_run(self, request: RunRequest, delay: Callable[[], float]) -> Run:
        """Execute a run to its end; later processes are interrupted after a delay."""
        self.store = database()
        await self.process().post(NewRun(key=KEY, request=request, request_hash="h"))
        while True:
            await self.processes[-1].executor.ended(KEY)
            found = await self.store.get(KEY)
            assert found is not None
            if found.finished:
                return found
            assert self.interrupted == len(self.processes), "nobody has interrupted it"
            calls = await self.store.calls(KEY)
            ended = (each.call_key for each in calls if each.outcome in ("result", "failure"))
            self.ended_before.append(frozenset(key for key in ended if key is not None))
            assert await self.process().take() is not None
            if self.interrupted < self.losses:
                loop().call_later(delay(), self.strike)

    def strike(self) -> None:
        """Stop the process that executes the run, gracefully or by a crash."""
        if self.ended or not self.processes or self.interrupted == len(self.processes):
            return
        process = self.processes[-1]
        if KEY not in process.executor.active:
            return
        self.interrupted += 1
        if (self.seed + self.interrupted) % 2:
            self.draining.append(asyncio.create_task(process.executor.drain(0)))
        else:
            self.store.lose(process.name)
            process.executor.lose(KEY)
