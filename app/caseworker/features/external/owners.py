"""Finds the process that owns an external run, and has it answer the run's requests.

A run without a process, because its owner has died or shuts down, is taken by the first
process that receives a request for it. A process that shuts down or drains starts no calls: a
request waits there until the run is released, and is then forwarded to the next owner.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request, Response

from caseworker.features.external.postgres import OwnerState, PostgresAttempts
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.step_keys import is_made_with, run_of
from caseworker.platform.http.deadline import lift_deadline
from caseworker.platform.http.forwarding import (
    FORWARDED,
    Address,
    BrokenOffError,
    Forwarder,
    MisdirectedError,
    UnreachableError,
    mark_misdirected,
)
from caseworker.platform.http.problems import ProblemError, ProblemType
from caseworker.runs.run import TERMINAL, RunKey, RunStatus
from caseworker.runs.service import RunService

RECOVERY_SECONDS: Final = 5.0
"""Seconds that a request waits until a process owns its run and answers."""
HUNG_SECONDS: Final = 5.0
"""Seconds between two looks at who owns a run whose owner does not answer."""
LOOK_SECONDS: Final = 0.1
"""Seconds between two looks at who owns a run."""

ENDED: Final = frozenset({*TERMINAL, None})
"""Status of a run that has ended or was erased."""
NOT_OWNED: Final = ProblemType(
    slug="external-run-elsewhere",
    status=503,
    title="The process that owns the run cannot be reached",
    detail="Repeat the request. If the process has ended, another one will own the run.",
    explanation="The process that owns the external run cannot be reached, or none has owned it "
    "for five seconds, or the only process is shutting down. Send the same request again after "
    "`Retry-After` seconds.",
    retry_after_seconds=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Has requests answered by the processes that own their runs."""

    sessions: Sessions
    attempts: PostgresAttempts
    runs: RunService
    forwarder: Forwarder
    address: Address | None
    """Address of this process; None if it owns no runs."""

    async def answer(self, request: Request, content: bytes, key: RunKey) -> Response | None:
        """Have the owner of a run answer a request with the body ``content``.

        Returns None if this process may start calls of the run, or the run has ended. A queued
        child is taken by the process that owns its nearest ancestor.

        Raises:
            ProblemError: no process owns the run, or its owner cannot be reached.
            ClientDisconnect: the client is gone.
        """
        lift_deadline(request.scope)  # the owner has its own
        try:
            async with self.runs.answering():
                return await self._answer(request, content, key)
        except TimeoutError:  # this process ends
            raise _not_owned(request) from None

    async def _answer(self, request: Request, content: bytes, key: RunKey) -> Response | None:
        clock = asyncio.get_running_loop().time
        until = clock() + RECOVERY_SECONDS
        while True:
            state, line = await self.attempts.owner_of(key), [key]
            if state.status in TERMINAL or self.sessions.starts_calls(key):
                return None
            if clock() > until:
                raise _not_owned(request)
            while state.status is RunStatus.QUEUED and state.parent is not None:
                line.append(RunKey(key.tenant, state.parent))
                state = await self.attempts.owner_of(line[-1])
            if (owner := await self._other_owner(request, line, state)) is not None:
                if request.scope.get(FORWARDED):
                    raise _not_owned(request)
                try:
                    response = await self._forwarded(request, content, line[-1], owner)
                    if response is not None:
                        return response
                    until = clock() + RECOVERY_SECONDS
                except (UnreachableError, MisdirectedError):
                    # The process may have ended a moment ago, or is shutting down.
                    if await self.attempts.any_owner() is None:
                        raise _not_owned(request) from None
                except BrokenOffError:
                    raise ProblemError(NOT_OWNED) from None
            await self.sessions.get_within(key, LOOK_SECONDS)

    async def _other_owner(
        self, request: Request, line: Sequence[RunKey], state: OwnerState
    ) -> Address | None:
        """Return the other process that owns a run or will own it; else take the run here.

        ``line`` has the run and its ancestors up to the first that is not queued, whose state is
        ``state``.
        """
        is_here = state.address in (None, self.address) and self.sessions.get(line[-1]) is not None
        owner = None if is_here else state.address
        if not self.runs.accepts_runs and owner is None:
            heir = await self.attempts.any_owner(self.address)
            if heir is None:
                raise _not_owned(request)
            owner = None if is_here else heir
        elif len(line) > 1 and (is_here or state.status in ENDED):
            await self.runs.take(line[-2])
        elif state.status is RunStatus.QUEUED:
            await self.runs.take(line[-1])
        return None if owner == self.address else owner

    async def _forwarded(
        self, request: Request, content: bytes, key: RunKey, owner: Address
    ) -> Response | None:
        """Have the owner of a run answer a request; None if it hangs and loses the run.

        Raises:
            UnreachableError: no connection could be established.
            BrokenOffError: the connection was closed before the response.
            MisdirectedError: another process must handle the request.
            ClientDisconnect: the client of the request is gone.
        """
        sending = asyncio.ensure_future(self.forwarder.forward(request, content, owner))
        try:
            while not (await asyncio.wait((sending,), timeout=HUNG_SECONDS))[0]:
                if (await self.attempts.owner_of(key)).address != owner:
                    return None
            return sending.result()
        finally:
            sending.cancel()

    async def create(self, request: Request, content: bytes) -> Response:
        """Have a process that executes runs answer a request that creates a run.

        Raises:
            ProblemError: no such process can be reached.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + RECOVERY_SECONDS
        while not request.scope.get(FORWARDED) and clock() < until:
            if (address := await self.attempts.any_owner(self.address)) is None:
                break
            try:
                return await self.forwarder.forward(request, content, address)
            except (UnreachableError, MisdirectedError):  # that process ends
                await asyncio.sleep(LOOK_SECONDS)
            except BrokenOffError:
                break
        raise _not_owned(request)

    async def maker_of(self, key: str) -> tuple[str, Address] | None:
        """Return the tenant of a step's key and the other process that made it.

        None means that no other process has made the key for a step of a run that it owns.
        """
        if (run := run_of(key)) is None:
            return None
        owner = (await self.attempts.owner_of(run)).address
        # The same work if the run has no owner or does not exist: the time must not reveal it.
        is_genuine = is_made_with(key, "" if owner is None else owner.secret)
        if owner is None or owner == self.address or not is_genuine:
            return None
        return run.tenant, owner

    async def answer_step(self, request: Request, content: bytes, owner: Address) -> Response:
        """Have the process that made the key of a step answer a request.

        Raises:
            ProblemError: that process cannot be reached.
        """
        if request.scope.get(FORWARDED):
            raise ProblemError(NOT_OWNED)
        try:
            return await self.forwarder.forward(request, content, owner)
        except (UnreachableError, BrokenOffError, MisdirectedError):
            raise ProblemError(NOT_OWNED) from None


def _not_owned(request: Request) -> ProblemError:
    """Return the problem; the process that has forwarded the request tries another one."""
    mark_misdirected(request)
    return ProblemError(NOT_OWNED)
