"""Finds the process that owns an external run, and has it answer the run's requests.

A run without a process, because its owner has died, is taken by the first process that receives a
request for it.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from fastapi import Request, Response

from caseworker.features.external.postgres import PostgresAttempts
from caseworker.features.external.session import Sessions
from caseworker.platform.http.forwarding import (
    FORWARDED,
    Address,
    BrokenOffError,
    Forwarder,
    UnreachableError,
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
    retry_after_seconds=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Has requests answered by the processes that own their runs."""

    sessions: Sessions
    attempts: PostgresAttempts
    runs: RunService
    forwarder: Forwarder
    own: Address | None
    """Address of this process; None if it owns no runs."""

    async def answer(self, request: Request, content: bytes, key: RunKey) -> Response | None:
        """Have the owner of a run answer a request with the body ``content``.

        Returns None if this process owns the run, or the run has ended. A queued child is taken by
        the process that owns its nearest ancestor.

        Raises:
            ProblemError: no process owns the run, or its owner cannot be reached.
            ClientDisconnect: the client is gone.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + RECOVERY_SECONDS
        while True:
            state, line = await self.attempts.owner_of(key), [key]
            if state.status in TERMINAL or self.sessions.get(key) is not None:
                return None
            if clock() > until:
                raise ProblemError(NOT_OWNED)
            while state.status is RunStatus.QUEUED and state.parent is not None:
                line.append(RunKey(key.tenant, state.parent))
                state = await self.attempts.owner_of(line[-1])
            is_here = self.sessions.get(line[-1]) is not None
            if len(line) > 1 and (is_here or state.status in ENDED):
                await self.runs.take(line[-2])
            elif state.status is RunStatus.QUEUED:
                await self.runs.take(line[-1])
            elif state.address is not None and state.address != self.own:
                if request.scope.get(FORWARDED):
                    raise ProblemError(NOT_OWNED)
                try:
                    response = await self._forwarded(request, content, line[-1], state.address)
                    if response is not None:
                        return response
                    until = clock() + RECOVERY_SECONDS
                except UnreachableError:
                    pass  # it may have died a moment ago
                except BrokenOffError:
                    raise ProblemError(NOT_OWNED) from None
            await self.sessions.get_within(key, LOOK_SECONDS)

    async def _forwarded(
        self, request: Request, content: bytes, key: RunKey, owner: Address
    ) -> Response | None:
        """Have the owner of a run answer a request; None if it hangs and loses the run.

        Raises as :meth:`Forwarder.forward`.
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
        return await self._sent(request, content, await self.attempts.any_owner())

    async def answer_step(self, request: Request, content: bytes, key: RunKey) -> Response:
        """Have the owner of a run answer a request with the key of one of its steps.

        Raises:
            ProblemError: no other process owns the run, or its owner cannot be reached.
        """
        owner = (await self.attempts.owner_of(key)).address
        return await self._sent(request, content, None if owner == self.own else owner)

    async def _sent(self, request: Request, content: bytes, address: Address | None) -> Response:
        if address is None or request.scope.get(FORWARDED):
            raise ProblemError(NOT_OWNED)
        try:
            return await self.forwarder.forward(request, content, address)
        except (UnreachableError, BrokenOffError):
            raise ProblemError(NOT_OWNED) from None
