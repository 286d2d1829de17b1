"""The chaos world: processes of the service, a database, a provider, and proxies in between."""

import asyncio
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.chaos.database import ChaosDatabase
from tests.support.database import proxied, upstream_of
from tests.support.fake_provider.client import FakeProvider
from tests.support.fault_proxy import FaultProxy
from tests.support.processes import ChildFailedError, ChildProcess, run_caseworker
from tests.support.service import ServiceProcess, model_settings
from tests.support.usage_oracle import PRICES, settings_of_prices

HEARTBEAT_SECONDS = 0.5
STALE_SECONDS = 3.0
MODEL_SECONDS = 2.0
"""The timeout of a model attempt in seconds; a provider that hangs is then abandoned."""
PROGRAMS = (("serve",), ("serve", "--no-worker"), ("worker",), ("worker",))
CUT_WITHIN_BYTES = 4000
"""The maximum number of bytes after which a stream of events is cut."""
READY_SECONDS = 240.0
"""How long processes may take to be ready on a busy machine, in seconds."""
_NOWHERE = ("127.0.0.1", 9)


@dataclass(frozen=True, slots=True)
class Interval:
    """A fault of a process, or of the database for all processes (``pid`` 0)."""

    kind: str
    pid: int
    began: float
    ended: float
    """Measured with ``time.monotonic()``."""

    @property
    def froze(self) -> bool:
        """Whether the process was frozen; it may then still send a call that had been permitted."""
        return self.kind.startswith("frozen")


@dataclass(slots=True)
class Chronicle:
    """A record of the faults; the oracles use it to excuse a process."""

    happened: Counter[str] = field(default_factory=Counter)
    intervals: list[Interval] = field(default_factory=list)
    lags: list[tuple[float, float]] = field(default_factory=list)
    """When and by how much this process was delayed; other processes may have been too."""

    def add(self, kind: str, began: float, *, pid: int = 0) -> None:
        """Record a fault that has just ended."""
        self.intervals.append(Interval(kind, pid, began, time.monotonic()))

    def between(self, began: float, ended: float) -> list[Interval]:
        """Return the faults that overlap a time."""
        return [one for one in self.intervals if one.began <= ended and one.ended >= began]

    def lag(self, began: float, ended: float) -> float:
        """Return the largest delay of this process in a time."""
        return max((late for at, late in self.lags if began <= at <= ended), default=0.0)


class Slot:
    """A slot for one process; its successors keep the same addresses."""

    def __init__(self, program: Sequence[str], number: int, world: "ChaosWorld") -> None:
        self._program, self._world = program, world
        self.name = f"{'-'.join(program)}-{number}"
        self.serves = program[0] == "serve"
        self._process: ServiceProcess | None = None
        self.pids: list[int] = []
        self.up = asyncio.Event()
        self.busy = False
        """Whether a fault is in progress for it."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Start its proxies."""
        upstreams = upstream_of(self._world.database.url), _NOWHERE, _NOWHERE
        self.database, self.requests, self.streams = self.proxies = [
            await stack.enter_async_context(FaultProxy(upstream, seed=self._world.seed))
            for upstream in upstreams
        ]
        self.streams.cut_each_within(CUT_WITHIN_BYTES)

    @property
    def child(self) -> ChildProcess:
        """The running process."""
        assert self._process is not None, "there is none"
        return self._process.child

    @property
    def pid(self) -> int:
        """Process ID of the worker, the last one that was ready; 0 before the first."""
        return self.pids[-1] if self.pids else 0

    async def start(self) -> None:
        """Start a process; if it exits because its database is down, retry without faults."""
        command, *options = self._program
        url = proxied(self._world.database.url, self.database)
        began, peace = time.monotonic(), AsyncExitStack()
        async with peace:
            while not self.up.is_set():
                self._process = ServiceProcess(
                    url, *options, command=command, settings=self._world.settings, name=self.name
                )
                try:
                    await self._process.start()
                    self.up.set()
                except ChildFailedError:
                    self.close()
                    await peace.aclose()
                    await peace.enter_async_context(self._world.at_rest)
        self.pids.append(self.child.worker_pid)
        self._world.chronicle.add(f"started {self.name}", began, pid=self.pid)
        if self.serves:
            assert self._process is not None
            host, port = self._process.url.removeprefix("http://").split(":")
            for proxy in (self.requests, self.streams):
                proxy.lead_to((host, int(port)))

    def close(self) -> None:
        """Save the log of the process, and end it."""
        self.up.clear()
        if self._process is not None:
            log = self._world.folder / f"{self.name}.{self.pid}.log"
            log.write_text(self.child.stderr)
            self.child.close()
            self._process = None

    @property
    def gave_up(self) -> bool:
        """Whether the process has exited without a request."""
        return self.up.is_set() and not self.busy and self.child.exit_code is not None


class ChaosWorld:
    """The whole chaos world: ``async with ChaosWorld(seed, folder) as world``.

    ``faults`` are the faults to run, by default all; ``no_disks`` is the reason if the database
    cannot
    have separate disks.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        faults: Collection[str] = (),
        broken: str | None = None,
        no_disks: str = "",
    ) -> None:
        self.seed, self.folder, self.faults, self.no_disks = seed, folder, faults, no_disks
        self.chronicle = Chronicle()
        self.database = ChaosDatabase(disks=not no_disks)
        self.provider = FakeProvider("tests.chaos.weather", "--seed", str(seed))
        self.slots: list[Slot] = []
        self.replacing = asyncio.TaskGroup()
        """Replaces exited processes during the storm."""
        self.at_rest = asyncio.Lock()
        """Held during a fault of the database, and by code that needs a time without one."""
        self.deaf = asyncio.Event()
        """Set while no process gets notifications; cancellation then relies on barriers."""
        self.looked: Counter[str] = Counter()
        """How often each kind of check was made during the storm."""
        self.problems: defaultdict[str, list[str]] = defaultdict(list)
        """The problems of these checks, by the same names."""
        self._broken = broken
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as group:  # each start takes seconds of imports
                group.create_task(asyncio.to_thread(run_caseworker, "--help", env={}))
                group.create_task(self._stack.enter_async_context(self.provider))
                group.create_task(self._stack.enter_async_context(self.database))
            self._stack.callback(self.database.keep_log, self.folder)
            self.settings = chaos_settings(self.provider, self._broken)
            self.slots = [Slot(program, number, self) for number, program in enumerate(PROGRAMS)]
            for slot in self.slots:
                self._stack.callback(slot.close)
                await slot.open(self._stack)
            async with asyncio.timeout(READY_SECONDS), asyncio.TaskGroup() as group:
                for slot in self.slots:
                    group.create_task(slot.start())
            watching = asyncio.create_task(self._watch_lags())
            self._stack.callback(watching.cancel)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def look(self, what: str, problem: str | None = None) -> None:
        """Count a check, and record its problem, if any."""
        self.looked[what] += 1
        if problem is not None:
            self.problems[what].append(problem)

    @property
    def replicas(self) -> list[Slot]:
        """The slots of processes that serve the API."""
        return [slot for slot in self.slots if slot.serves]

    async def running(self, at_least: int) -> list[Slot]:
        """Wait for ``at_least`` ready processes, and return their slots."""
        async with asyncio.timeout(READY_SECONDS):
            while len(found := [slot for slot in self.slots if slot.up.is_set()]) < at_least:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found

    def on_all(self, change: Callable[[FaultProxy], object]) -> None:
        """Call a function for the database proxies of all processes."""
        for slot in self.slots:
            change(slot.database)

    async def _watch_lags(self) -> None:
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(0.02)
            woken = time.monotonic()
            if (late := woken - asleep - 0.02) > 0.005:
                self.chronicle.lags.append((woken, late))


def chaos_settings(provider: FakeProvider, broken: str | None) -> dict[str, str]:
    """Return settings with short timeouts; models have a price and a fallback."""
    fallback = {
        "provider": "openai",
        "base_url": provider.openai_url,
        "model": "fake-fallback",
        "timeout_seconds": MODEL_SECONDS,
        **{f"price_per_million_{kind}_usd": float(price) for kind, price in PRICES.items()},
    }
    return {
        **model_settings(provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        **settings_of_prices("MODELS_BIG"),
        "MODELS_SMALL_FALLBACKS": json.dumps([fallback]),
        "MODELS_SMALL_TIMEOUT_SECONDS": str(MODEL_SECONDS),
        "MODELS_BIG_TIMEOUT_SECONDS": str(MODEL_SECONDS),
        "RETRY_BASE_SECONDS": "0.02",
        "WORKER_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
        "WORKER_STALE_AFTER_SECONDS": str(STALE_SECONDS),
        "TOOLS_PLUGINS": "tests.chaos.tools:Again,tests.chaos.tools:Once",
        "CHAOS_PROVIDER": provider.url,
        "CHAOS_BROKEN": broken or "",
        "PYTHONPATH": os.getcwd(),
    }


def drawn(seed: int, what: str) -> random.Random:
    """Return an independent random generator for a part of the world."""
    return random.Random(f"{seed} {what}")
