"""An event loop with seeded randomness and virtual time.

Every step of the loop runs one ready callback chosen by the seed, so each seed gives another order
that a busy machine might produce. When no callback is ready, the clock jumps to the next timer. The
same seed repeats the same steps: always within one process, and across processes with the same
``PYTHONHASHSEED``.

It has no sockets, threads or signals, so the code under test uses in-memory ports. A function given
to an executor (``asyncio.to_thread``) runs as a single step.
"""

import asyncio
import gc
import hashlib
import heapq
import random
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Arguments = TypeVarTuple("Arguments")

MAX_STEPS = 1_000_000

Interrupt = Callable[[], object]


class Deadlock(Exception):  # noqa: N818
    """Every task waits for another task and no timer is set; the message lists where they wait."""


class EndlessStory(Exception):  # noqa: N818
    """The loop exceeded its limit of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story(Generic[T]):
    """The result of one seed."""

    result: T
    seed: int
    steps: int
    """Steps until the main coroutine ended."""
    digest: str
    """A hash of every step's choice, time and callback; equal for the same story."""
    virtual_seconds: float
    leftover: tuple[str, ...]
    """Coroutines of tasks that were still alive at the end and were then cancelled."""


class Scenario(Protocol[T_co]):
    """A self-contained scenario, played once, that can be interrupted from outside."""

    async def play(self) -> T_co:
        """Run the scenario under test."""
        ...

    def interrupt(self) -> object:
        """Interrupt now: cancel a run, fail a port; a returned coroutine becomes a task."""
        ...


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    seed: int,
    *,
    interrupt: Interrupt | None = None,
    before_step: int = 0,
    max_steps: int = MAX_STEPS,
) -> Story[T]:
    """Run ``main`` to its end under one seed.

    ``interrupt`` is called once, before the step ``before_step`` (0 is the first). A raised
    exception carries a note with the seed and the step.

    Raises:
        Deadlock: No callback or timer is left.
        EndlessStory: ``max_steps`` were not enough.
    """
    loop = SeededLoop(seed, max_steps=max_steps)
    if interrupt is not None:
        loop.interrupt_before(before_step, interrupt)
    with _no_garbage_collection(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(_told(loop, main))
        except BaseException as error:
            error.add_note(f"seed {seed}, step {loop.steps}, {loop.time():g} virtual seconds")
            raise


def play(main: Callable[[], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run ``main`` under one seed, require that no task is left, and return its result."""
    story = run(main, seed)
    assert story.leftover == (), f"seed {seed}: {story.leftover}"
    return story.result


def now() -> float:
    """Return the virtual seconds since the loop was made."""
    return asyncio.get_running_loop().time()


async def deaf(seconds: float) -> None:
    """Sleep, and ignore every cancellation."""
    until = now() + seconds
    while now() < until:
        try:
            await asyncio.sleep(until - now())
        except asyncio.CancelledError:
            continue


def interrupted_everywhere(
    scenario: Callable[[], Scenario[T]], seed: int
) -> Iterator[tuple[int, Story[T]]]:
    """Play a scenario without interruption, and then once for every step, interrupted before it.

    Yields the step and the result; -1 is the uninterrupted one. An interruption can change the
    later steps; the iteration ends when a scenario is over before its interruption.
    """
    yield -1, run(scenario().play, seed)
    for step in count():
        world = scenario()
        struck: list[int] = []
        story = run(world.play, seed, interrupt=_noting(world, struck), before_step=step)
        if not struck:
            return
        yield step, story


def _noting(world: Scenario[Any], struck: list[int]) -> Interrupt:
    def strike() -> object:
        struck.append(1)
        return world.interrupt()

    return strike


async def _told(loop: "SeededLoop", main: Callable[[], Coroutine[Any, Any, T]]) -> Story[T]:
    try:
        result = await main()
    finally:
        loop.disarm()
    current = asyncio.current_task()
    others = sorted(_name_of(task) for task in asyncio.all_tasks() if task is not current)
    return Story(
        result=result,
        seed=loop.seed,
        steps=loop.steps,
        digest=loop.digest(),
        virtual_seconds=loop.time(),
        leftover=tuple(others),
    )


class SeededTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks iterate equally in every run."""

    def __init__(self, *arguments: Any, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


class SeededLoop(asyncio.BaseEventLoop):
    """The loop behind :func:`run`.

    It only replaces how ``BaseEventLoop`` chooses its next step: ``_ready`` and ``_scheduled`` are
    the callback queue and the timer heap of every asyncio loop.
    """

    _ready: Any
    _scheduled: Any

    def __init__(self, seed: int, *, max_steps: int = MAX_STEPS) -> None:
        super().__init__()
        self.seed = seed
        self.steps = 0
        self._max_steps = max_steps
        self._random = random.Random(seed)
        self._now = 0.0
        self._story = hashlib.sha256()
        self._interrupts: dict[int, Interrupt] = {}
        self._cancel_requests: list[asyncio.Task[Any]] = []
        self._numbers = count(1)
        self.set_task_factory(self._number_task)

    def interrupt_before(self, step: int, interrupt: Interrupt) -> None:
        """Call ``interrupt`` before a step; a coroutine that it returns becomes a task."""
        self._interrupts[step] = interrupt

    def disarm(self) -> None:
        """Remove pending interrupts, because the scenario is over."""
        self._interrupts.clear()

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now

    def digest(self) -> str:
        """Return a hash of the steps so far."""
        return self._story.hexdigest()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        """Run a blocking function as a step of this loop."""
        future = self.create_future()
        self.call_soon(_finish, future, func, args)
        return future

    def _number_task(self, loop: Any, coroutine: Any, **options: Any) -> SeededTask:
        return SeededTask(coroutine, loop=loop, number=next(self._numbers), **options)

    def _run_once(self) -> None:
        if self.steps >= self._max_steps:
            self._max_steps *= 2  # the tasks are cancelled next, which takes steps as well
            raise EndlessStory(f"{self.steps} steps, and no end")
        self._strike()
        self._wake_due_timers()
        choice = self._random.randrange(len(self._ready))
        handle = self._ready[choice]
        del self._ready[choice]
        self.steps += 1
        if not handle._cancelled:
            self._record(choice, handle)
            handle._run()

    def _strike(self) -> None:
        interrupt = self._interrupts.pop(self.steps, None)
        if interrupt is not None and asyncio.iscoroutine(cancel_request := interrupt()):
            self._cancel_requests.append(self.create_task(cancel_request))

    def _wake_due_timers(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready:
            if not self._scheduled:
                raise Deadlock(self._where_everybody_waits())
            self._now = max(self._now, self._scheduled[0]._when)
        while self._scheduled and self._scheduled[0]._when <= self._now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            self._ready.append(timer)

    def _record(self, choice: int, handle: asyncio.Handle) -> None:
        line = f"{choice} {self._now!r} {_label(handle)}\n"
        self._story.update(line.encode())

    def _where_everybody_waits(self) -> str:
        lines = [
            f"  {_name_of(task)} waits at {_place_of(task)}" for task in asyncio.all_tasks(self)
        ]
        return "Nothing is ready and no timer is set:\n" + "\n".join(sorted(lines))

    def _process_events(self, _events: Any) -> None:
        """Ignore file events; this loop watches no files."""

    def _write_to_self(self) -> None:
        """Do nothing; this loop has no selector to wake."""


def _finish(future: asyncio.Future[Any], func: Callable[..., Any], arguments: Any) -> None:
    if future.cancelled():
        return
    try:
        future.set_result(func(*arguments))
    except Exception as error:
        future.set_exception(error)


def _label(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return _name_of(owner)
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _name_of(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    return str(getattr(coroutine, "__qualname__", type(coroutine).__qualname__))


def _place_of(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack()
    if not stack:
        return "an unknown place"
    return f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, because finalizers may schedule callbacks at random moments."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
