"""Child runs: they share the remaining budget of an external run, and end with it."""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fastapi import Response

from caseworker.core.budget.stops import HandOver
from caseworker.features.external.kind import ExternalBody, ParentRun
from caseworker.features.external.owners import Owners
from caseworker.features.external.session import GatewaySession
from caseworker.features.external.sessions import Sessions
from caseworker.platform.caller import KeyScope
from caseworker.platform.http.problems import ProblemError, ProblemType, invalid
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.errors import ExecutesNothingError
from caseworker.runs.http.body import RunFields
from caseworker.runs.kinds import KINDS, parent_of
from caseworker.runs.ports import Accepted
from caseworker.runs.run import RunKey
from caseworker.runs.service import RunService

Accept = Callable[[RunFields, ApiRequest], Awaitable[Accepted]]

MAX_DEPTH: Final = 8
"""Maximum number of ancestors of a run."""

PARENT_ENDED: Final = ProblemType(
    slug="parent-ended",
    status=409,
    title="The parent has ended",
    detail="The parent of the run has ended or was stopped, so it can have no more children.",
    explanation="The parent of a child run has ended or was stopped. Nothing was stored. Start "
    "the run without a parent, or below another run.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """Lets the owners of external runs start their children."""

    sessions: Sessions
    runs: RunService
    owners: Owners

    async def accepted(
        self, body: RunFields, request: ApiRequest, accept: Accept
    ) -> Accepted | Response:
        """Accept a run with ``accept``, and have its parent, if it has one, record it.

        If another process must do so, return its response to the request.

        Raises:
            ProblemError: the run may not be accepted with this key or this parent.
        """
        if request.caller.run_id is not None or getattr(body, "parent", None) is not None:
            external_body = await self._with_parent(request, body)
            if isinstance(external_body, Response):
                return external_body
            body = external_body
        try:
            accepted = await accept(body, request)
        except ExecutesNothingError:
            return await self.owners.create(request, await request.body())
        if (parent := parent_of(accepted.run.request)) is None:
            return accepted
        # The parent records its child before the client gets the key of the child. A crash before
        # this leaves a child without a key, so it can cost nothing; the repeated request adopts it.
        child = accepted.run.key
        response = await self._record_child(request, RunKey(child.tenant, parent), child.run_id)
        return accepted if response is None else response

    async def _with_parent(self, request: ApiRequest, body: RunFields) -> ExternalBody | Response:
        """Return the body of a child run, with its parent; this process owns the parent.

        If another process owns the parent, return its response to the request.

        Raises:
            ProblemError: the parent does not exist, has ended, or may not have this child.
        """
        run_of_key = request.caller.run_id
        if not isinstance(body, ExternalBody):
            raise invalid("kind", "The key of a run only creates runs of kind external.")
        parent = run_of_key if body.parent is None else body.parent.run_id
        if parent is None or run_of_key not in (None, parent):
            raise invalid("parent.run_id", "The key of a run only creates children of this run.")
        await request.require_still(KeyScope.RUN)
        key = RunKey(request.caller.tenant, parent)
        run = await self.runs.get(key)
        if not KINDS[run.kind].is_external:
            raise invalid("parent.run_id", "The parent must be a run of kind external.")
        if run.finished:
            raise ProblemError(PARENT_ENDED)
        if self.sessions.is_owned_elsewhere(key):
            response = await self.owners.answer(request, await request.body(), key)
            if response is not None:
                return response
        if self._session(key).depth >= MAX_DEPTH:
            raise invalid("parent", f"A run has at most {MAX_DEPTH} ancestors.")
        return body.model_copy(update={"parent": ParentRun(run_id=parent)})

    async def _record_child(
        self, request: ApiRequest, parent: RunKey, run_id: str
    ) -> Response | None:
        """Record durably that a run becomes a child.

        If the parent was released, have its next owner do so: it gets the request with the ID of
        the child, which exists. Return its response.

        Raises:
            ProblemError: the parent has ended, or no process owns it.
        """
        content = json.dumps({**await request.json(), "run_id": run_id}).encode()
        while True:
            with suppress(HandOver):
                if not self.sessions.is_owned_elsewhere(parent):
                    await self._session(parent).adopt(run_id)
                    return None
            response = await self.owners.answer(request, content, parent)
            if response is not None:
                return response
            if not self.sessions.starts_calls(parent):
                raise ProblemError(PARENT_ENDED)

    def _session(self, key: RunKey) -> GatewaySession:
        session = self.sessions.get(key)
        if session is None or not session.is_open:
            raise ProblemError(PARENT_ENDED)
        return session
