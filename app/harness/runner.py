"""Runs the cases of a data set against the service, several at a time."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from app.client import ApiError, ServiceUnreachableError
from app.harness.dataset import EvalCase, Mode
from app.harness.trials import Service, Trial

_LONGEST_WAIT_SECONDS = 20
_LAST_SECONDS = 10
"""How long an interrupted evaluation waits for the end of the runs that it has cancelled."""
_REFUSALS = frozenset({400, 413, 422})
_OVERLOAD = frozenset({429, 502, 503, 504})

Finished = Callable[[Trial], None]
"""Told each trial as soon as it has ended, in whatever order they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the cases are run."""

    mode: Mode | None = None
    """For cases that name none; None leaves it to the service."""
    seed: int | None = None
    repeat: int = 1
    concurrency: int = 4
    timeout_seconds: float = 120.0
    """How long one case may take before it is cancelled and counted as an error."""
    sends_gold: bool = True
    """Whether the service's verifier is given the gold answers (seed 002, 9.1). Without them it
    has to do with what a caller without the answer has."""


class Runner:
    """Posts cases and waits for them. A lost answer is asked for again under the same run id."""

    def __init__(
        self,
        service: Service,
        options: RunOptions,
        *,
        evaluation_id: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Run cases under ids that begin with ``evaluation_id``, at most 48 characters."""
        self._sleep = sleep
        self._service = service
        self._options = options
        self._evaluation_id = evaluation_id
        self._under_way: set[str] = set()
        self._interrupted = False

    async def run(self, cases: Sequence[EvalCase], finished: Finished) -> None:
        """Run every case as often as wanted; what ``finished`` raises ends it.

        However it ends, the runs under way are cancelled. The trials whose runs were cut off like
        this are not told: they say nothing about the service.

        Raises:
            CancelledError: it was interrupted.
        """
        jobs = iter(
            [
                (number, case, repeat)
                for number, case in enumerate(cases, 1)
                for repeat in range(1, self._options.repeat + 1)
            ]
        )
        lanes = asyncio.create_task(self._lanes(jobs, finished), name="lanes")
        try:
            # The requests of the lanes outlive a cancellation: those of a run that is cancelled
            # on the service come to their end, and none is torn in the middle of its transaction.
            await asyncio.shield(lanes)
        except BaseException:
            await self._interrupt(lanes)
            raise

    async def _interrupt(self, lanes: asyncio.Task[None]) -> None:
        """Cancel what is under way on the service, then end the lanes."""
        self._interrupted = True
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                async with asyncio.TaskGroup() as stops:
                    for run_id in self._under_way:
                        stops.create_task(self._stop(run_id, "The evaluation was interrupted."))
                await asyncio.wait({lanes})
        except TimeoutError:
            lanes.cancel()
            await asyncio.wait({lanes})
        finally:
            lanes.cancel()

    async def _lanes(self, jobs: Iterator[tuple[int, EvalCase, int]], finished: Finished) -> None:
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(self._options.concurrency):
                    lanes.create_task(self._lane(jobs, finished))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _lane(self, jobs: Iterator[tuple[int, EvalCase, int]], finished: Finished) -> None:
        for number, case, repeat in jobs:
            if self._interrupted:
                return
            run_id = f"{self._evaluation_id}-{number:04}-{repeat}"
            self._under_way.add(run_id)
            trial = await self._trial(case, repeat, run_id)
            self._under_way.remove(run_id)
            if not (self._interrupted and _is_cut_off(trial)):
                finished(trial)

    async def _trial(self, case: EvalCase, repeat: int, run_id: str) -> Trial:
        began = time.monotonic()
        trial = Trial(case=case, repeat=repeat, run_id=run_id)
        try:
            run = await self._ended(self._body(case, repeat, run_id))
            trial = replace(trial, seconds=time.monotonic() - began, run=run)
            if run is None:
                return replace(trial, error=self._too_long())
            return replace(trial, trace=await self._service.trace(run_id))
        except ApiError as error:
            told = f"{error.status}: {error}"
            if error.status in _REFUSALS and _is_about_input(error.problem):
                return replace(trial, seconds=time.monotonic() - began, refusal=told)
        except ServiceUnreachableError as error:
            told = str(error)
        return replace(trial, seconds=trial.seconds or time.monotonic() - began, error=told)

    async def _ended(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the finished run, or None, and cancel it, if it takes too long."""
        until = time.monotonic() + self._options.timeout_seconds
        while (left := until - time.monotonic()) > 0:
            run = await self._posted(body, min(_LONGEST_WAIT_SECONDS, math.ceil(left)))
            if run["finished_at"] is not None:
                return run
        await self._stop(body["run_id"], "The evaluation waited long enough.")
        return None

    async def _posted(self, body: Mapping[str, Any], wait_seconds: int) -> dict[str, Any]:
        again = AsyncRetrying(
            sleep=self._sleep,
            retry=retry_if_exception(_is_passing),
            wait=wait_exponential(0.25, max=5),
            stop=stop_after_attempt(6),
            reraise=True,
        )
        return await again(self._service.post_run, body, wait_seconds=wait_seconds)

    async def _stop(self, run_id: str, reason: str) -> None:
        try:
            await self._service.cancel_run(run_id, reason=reason)
        except (ApiError, ServiceUnreachableError):
            return  # nothing more can be done about it from here

    def _too_long(self) -> str:
        return f"it did not end within {self._options.timeout_seconds:g} seconds"

    def _body(self, case: EvalCase, repeat: int, run_id: str) -> dict[str, Any]:
        wanted = {
            "gold_answer": case.gold_answer if self._options.sends_gold else None,
            "expected_tools": list(case.expected_tools) or None,
            "mode": case.mode or self._options.mode,
            "seed": self._options.seed,
            "timezone": case.timezone,
        }
        return {
            "run_id": run_id,
            "input": case.input,
            **{name: value for name, value in wanted.items() if value is not None},
            "metadata": {"evaluation": self._evaluation_id, "case": case.id, "repeat": repeat},
        }


def _is_cut_off(trial: Trial) -> bool:
    return trial.error is not None or (trial.run or {}).get("status") == "cancelled"


def _is_about_input(problem: Mapping[str, Any]) -> bool:
    errors = problem.get("errors") or []
    return bool(errors) and all(error.get("field") == "input" for error in errors)


def _is_passing(error: BaseException) -> bool:
    """Tell whether a failure may be over in a moment."""
    if isinstance(error, ApiError):
        return error.status in _OVERLOAD
    return isinstance(error, ServiceUnreachableError)
