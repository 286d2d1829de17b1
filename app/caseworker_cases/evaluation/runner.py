"""Runs the cases of a data set against the service, with limited concurrency."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from caseworker_client import (
    ApiError,
    AsyncCaseworkerClient,
    RetryPolicy,
    Run,
    ServiceUnreachableError,
)

from caseworker_cases.evaluation.dataset import EvalCase, Mode
from caseworker_cases.evaluation.results import Trial

_LONGEST_WAIT_SECONDS = 20
_LAST_SECONDS = 10
"""How long an interrupted evaluation waits for its cancelled runs to end."""
_REFUSALS = frozenset({400, 413, 422})

RETRY = RetryPolicy(attempts=6)
"""Retry policy for the evaluation's API client, so that one lost response does not spoil a
trial."""

EvalProtocol = Literal["blind", "with_gold"]

Finished = Callable[[Trial], None]
"""Callback invoked with each trial as soon as it has finished, in order of completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options for running the cases."""

    mode: Mode | None = None
    """Mode for cases that set none; None uses the service's default."""
    seed: int | None = None
    repeat: int = 1
    concurrency: int = 4
    timeout_seconds: float = 120.0
    """Time limit for a case in seconds. When it expires, the run is cancelled and counted as an
    error."""
    protocol: EvalProtocol = "blind"
    """Whether the service's verifier receives the gold answers (``with_gold``) or not (``blind``).
    The evaluation compares answers with them in both cases."""


class Runner:
    """Starts a run for each case and waits for its end.

    If a response is lost, the request is repeated with the same run ID.
    """

    def __init__(
        self,
        service: AsyncCaseworkerClient,
        options: RunOptions,
        *,
        evaluation_id: str,
    ) -> None:
        """Create a runner; run IDs start with ``evaluation_id``, at most 25 characters."""
        self._service = service
        self._options = options
        self._evaluation_id = evaluation_id
        self._under_way: set[str] = set()
        self._interrupted = False

    async def run(self, cases: Sequence[EvalCase], finished: Finished) -> None:
        """Run every case as often as configured; stop at the first exception from ``finished``.

        Whenever this method exits, runs in progress are cancelled. Trials that this cuts off are
        not reported, because they say nothing about the service.

        Raises:
            CancelledError: the evaluation was interrupted.
        """
        jobs = iter(
            [(case, repeat) for case in cases for repeat in range(1, self._options.repeat + 1)]
        )
        workers = asyncio.create_task(self._workers(jobs, finished), name="workers")
        try:
            # Shield the workers from a cancellation: requests for runs that _interrupt() cancels
            # on the service can then finish, and none is aborted inside a transaction.
            await asyncio.shield(workers)
        except BaseException:
            await self._interrupt(workers)
            raise

    async def _interrupt(self, workers: asyncio.Task[None]) -> None:
        """Cancel the runs in progress on the service, then stop the workers."""
        self._interrupted = True
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                async with asyncio.TaskGroup() as stops:
                    for run_id in self._under_way:
                        stops.create_task(self._stop(run_id, "The evaluation was interrupted."))
                await asyncio.wait({workers})
        except TimeoutError:
            pass
        finally:
            workers.cancel()
            await asyncio.wait({workers})

    async def _workers(self, jobs: Iterator[tuple[EvalCase, int]], finished: Finished) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._options.concurrency):
                    workers.create_task(self._worker(jobs, finished))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _worker(self, jobs: Iterator[tuple[EvalCase, int]], finished: Finished) -> None:
        for case, repeat in jobs:
            if self._interrupted:
                return
            run_id = run_id_of(self._evaluation_id, case, repeat)
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
            trial = replace(
                trial, seconds=time.monotonic() - began, run=None if run is None else run.as_json()
            )
            if run is not None:
                return replace(trial, trace=(await self._service.get_trace(run_id)).as_json())
            cause = f"timed out after {self._options.timeout_seconds:g} seconds"
        except ApiError as error:
            cause = f"{error.status}: {error}"
            if error.status in _REFUSALS and _is_about_input(error):
                return replace(trial, seconds=time.monotonic() - began, refusal=cause)
        except ServiceUnreachableError as error:
            cause = str(error)
        return replace(trial, seconds=trial.seconds or time.monotonic() - began, error=cause)

    async def _ended(self, body: Mapping[str, Any]) -> Run | None:
        """Return the finished run; cancel it and return None if it exceeds the time limit."""
        until = time.monotonic() + self._options.timeout_seconds
        while (remaining := until - time.monotonic()) > 0:
            wait_seconds = min(_LONGEST_WAIT_SECONDS, math.ceil(remaining))
            run = await self._service.create_run(body, wait_seconds=wait_seconds)
            if run.ended:
                return run
        await self._stop(body["run_id"], "Evaluation timeout.")
        return None

    async def _stop(self, run_id: str, reason: str) -> None:
        try:
            await self._service.cancel_run(run_id, reason=reason)
        except (ApiError, ServiceUnreachableError):
            return  # best effort

    def _body(self, case: EvalCase, repeat: int, run_id: str) -> dict[str, Any]:
        fields = {
            "gold_answer": case.gold_answer if self._options.protocol == "with_gold" else None,
            "expected_tools": list(case.expected_tools) or None,
            "mode": case.mode or self._options.mode,
            "seed": self._options.seed,
            "timezone": case.timezone,
        }
        return {
            "run_id": run_id,
            "input": case.input,
            **{name: value for name, value in fields.items() if value is not None},
            "metadata": {"evaluation": self._evaluation_id, "case": case.id, "repeat": repeat},
        }


def run_id_of(evaluation_id: str, case: EvalCase, repeat: int) -> str:
    """Return the run ID of a trial.

    Recordings identify the trial across evaluations by the text after the first colon.
    """
    return f"{evaluation_id}:{case.id}" if repeat == 1 else f"{evaluation_id}:{case.id}:{repeat}"


def _is_cut_off(trial: Trial) -> bool:
    return trial.error is not None or (trial.run or {}).get("status") == "cancelled"


def _is_about_input(refused: ApiError) -> bool:
    return bool(refused.errors) and all(error.field == "input" for error in refused.errors)
