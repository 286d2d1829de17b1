"""Requests with a standing key: the run that their session has open, or opens."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from caseworker.core.budget.accounts import TENANT, AccountLimit
from caseworker.engine.supervision import forget_failure
from caseworker.features.external.client_requests import (
    ON_REFUSAL,
    AnsweredError,
    content_of,
    enter,
)
from caseworker.features.external.end import RunEndedError
from caseworker.features.external.key_sessions import (
    MAX_SESSION_CHARS,
    UNNAMED,
    SessionRefusedError,
    SessionState,
    StandingKey,
    UnknownKeyError,
    hash_of_session,
    may_name_session,
    session_in_body,
    session_in_headers,
)
from caseworker.features.external.kind import ExternalBody
from caseworker.features.external.owners import NOT_OWNED, RECOVERY_SECONDS, Owners
from caseworker.features.external.postgres import PostgresStandingKeys
from caseworker.features.external.session import GatewaySession, StandingClient
from caseworker.features.external.sessions import Sessions, session_of_draft
from caseworker.models.gateway import ModelGateway
from caseworker.models.run_models import RunModels
from caseworker.platform.http.bodies import is_unicode
from caseworker.platform.http.problems import ProblemError
from caseworker.platform.http.request import ApiRequest
from caseworker.platform.logs.redaction import redact_text
from caseworker.runs.errors import (
    ExecutesNothingError,
    ExternalRunsFullError,
    GraphRefusedError,
    IdempotencyMismatchError,
    QueueFullError,
    QuotaExceededError,
    RunConflictError,
)
from caseworker.runs.http.kinds import Admissions
from caseworker.runs.kinds import EXTERNAL_STEP, KINDS, accounts_of
from caseworker.runs.run import NewRun, RunKey, RunKind
from caseworker.runs.service import new_run_id

REFUSALS: Final = (
    *(ExternalRunsFullError, QueueFullError, QuotaExceededError),
    *(GraphRefusedError, IdempotencyMismatchError, RunConflictError),
)
"""Errors of a run that is not accepted, which have the form of the client's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingKeys:
    """Finds or opens the runs of the sessions of standing keys."""

    sessions: Sessions
    owners: Owners
    keys: PostgresStandingKeys
    usual_models: Sequence[str] | None
    """The models of tenants without a quota of their own; None is all."""
    count_refused: Callable[[str, str, str], None]
    """Counts a refused call of a session, given its tenant, account and hash."""
    _opening: dict[tuple[str, str], asyncio.Task[SessionState]] = field(default_factory=dict)
    """Openings of runs in progress, by account and session. All requests of a session wait for one,
    so that a burst of them costs a few queries."""

    async def session_of(
        self, request: ApiRequest, key_id: str, sha256: bytes, *, drafts: bool = False
    ) -> tuple[GatewaySession, Exception | None]:
        """Return the session of a request with a standing key; open a run if it has none.

        If ``drafts``, return the draft of a run instead of opening one, and why the session may not
        open it, if so: a RunEndedError or SessionRefusedError.

        Raises:
            UnknownKeyError: the key does not work.
            RunEndedError: the session has ended.
            SessionRefusedError: the session may not open a run, or its name is invalid.
            ProblemError: no process may own another run of the tenant, or none owns the run.
            AnsweredError: another process owns the run, and has answered the request.
        """
        name = session_in_headers(request.headers)
        read = hash_of_session(name)
        key, state = await self._current(key_id, sha256, read)
        await enter(request, key.tenant)
        if (
            name is None
            and request.method == "POST"
            and may_name_session(await content_of(request))
        ):
            parse = partial(request.parsed, await content_of(request), is_unicode)
            name = session_in_body(await request.computed(parse))
        session, until = hash_of_session(name), time.monotonic() + RECOVERY_SECONDS
        refused = partial(self.count_refused, key.tenant, key.account, session)
        request.scope[ON_REFUSAL] = refused
        if session != read:
            key, state = await self._current(key_id, sha256, session)
        while time.monotonic() < until:
            if not state.is_open:
                if drafts:
                    return await self._draft(request, key, name, state)
                state = await self._opened(request, key, name, state)
            run = RunKey(key.tenant, state.run_id or "")
            if state.is_here:
                await self.sessions.get_within(run, RECOVERY_SECONDS)
            if self.sessions.is_owned_elsewhere(run):
                response = await self.owners.answer(request, await content_of(request), run)
                if response is not None:
                    raise AnsweredError(response)
            opened = self.sessions.get(run)
            if opened is not None and (opened.is_open or opened.stop is not None):
                opened.require_open()
                return opened, None
            # The run ends at this moment; the session opens another one, unless it has ended too.
            await self.owners.runs.wait(run, seconds=RECOVERY_SECONDS)
            key, state = await self._current(key_id, sha256, session)
        raise ProblemError(NOT_OWNED)

    async def limits(self, session: GatewaySession) -> Sequence[AccountLimit]:
        """Return the limits of the accounts above the run of a session."""
        return await self.keys.limits(session.key.tenant, session.accounts)

    async def models_of(self, request: ApiRequest, key_id: str, sha256: bytes) -> RunModels:
        """Return the models that a standing key may call; this opens no run.

        Raises:
            UnknownKeyError: the key does not work.
            ProblemError: the tenant has too many concurrent requests.
        """
        key, _ = await self._current(key_id, sha256, UNNAMED)
        await enter(request, key.tenant)
        tenant = await self.keys.models_of(key.tenant, self.usual_models)
        table = request.service(ModelGateway).table.restricted(tenant)
        return RunModels(lambda: table, key.terms.models)

    async def _current(
        self, key_id: str, sha256: bytes, session: str
    ) -> tuple[StandingKey, SessionState]:
        """Return a key and the newest run of one of its sessions.

        Raises:
            UnknownKeyError: the key does not work.
        """
        if (current := await self.keys.find(key_id, sha256, session)) is None:
            raise UnknownKeyError
        return current

    async def _draft(
        self, request: ApiRequest, key: StandingKey, name: str | None, state: SessionState
    ) -> tuple[GatewaySession, Exception | None]:
        """Return the run that a session would open, which is not stored, and why it may not.

        Raises:
            ProblemError: a model of the key is not configured any more.
            AnsweredError: this process executes no runs, and another one has answered the request.
        """
        session, admissions = hash_of_session(name), request.service(Admissions)
        new = await run_of_session(admissions, key, new_run_id(), name, None)
        limits = await self.keys.limits(key.tenant, accounts_of(new.request))
        models = await self.keys.models_of(key.tenant, self.usual_models)
        has_quota = any(each.account == TENANT for each in limits)
        run_request = replace(
            new.request,
            models=None if models is None else tuple(models),
            requires_prices=new.request.requires_prices or has_quota,
        )
        try:
            context = self.owners.runs.draft(replace(new, request=run_request))
        except ExecutesNothingError:
            response = await self.owners.create(request, await content_of(request))
            raise AnsweredError(response) from None
        return session_of_draft(run_request, context), await self.refusal(key, session, state)

    async def refusal(
        self, key: StandingKey, session: str, state: SessionState
    ) -> Exception | None:
        """Return why a session may not open a run now; None if it may."""
        if (stop := state.refusal(session)) is not None:
            return RunEndedError(stop)
        try:
            await self.keys.require_capacity(key, session, is_new=state.run_id is None)
        except SessionRefusedError as error:
            return error
        return None

    async def _opened(
        self, request: ApiRequest, key: StandingKey, name: str | None, state: SessionState
    ) -> SessionState:
        """Return the open run of a session; open one if it has none.

        Raises:
            UnknownKeyError, RunEndedError, SessionRefusedError: as for :meth:`session_of`.
            ProblemError: no process may own another run of the tenant.
            AnsweredError: this process executes no runs, and another one has answered the request.
        """
        session = hash_of_session(name)
        if (stop := state.refusal(session)) is not None:
            raise RunEndedError(stop)
        place = key.account, session
        if (opening := self._opening.get(place)) is None:
            user_agent = request.headers.get("user-agent")
            work = self._open(request.service(Admissions), key, name, user_agent)
            opening = self._opening[place] = asyncio.create_task(work, name="session")
            opening.add_done_callback(lambda _: self._opening.pop(place, None))
            opening.add_done_callback(forget_failure)
        try:
            return await asyncio.shield(opening)
        except ExecutesNothingError:
            response = await self.owners.create(request, await content_of(request))
            raise AnsweredError(response) from None
        except REFUSALS as error:
            raise request.problem_of(error) from None

    async def _open(
        self, admissions: Admissions, key: StandingKey, name: str | None, user_agent: str | None
    ) -> SessionState:
        """Open a run of a session, unless it has one; return it."""
        session = hash_of_session(name)
        reserved = await self.keys.open(key, session, new_run_id())
        if reserved is None:
            raise UnknownKeyError
        if (stop := reserved.refusal(session)) is not None:
            raise RunEndedError(stop)
        if reserved.is_open or reserved.run_id is None:
            return reserved
        new = await run_of_session(admissions, key, reserved.run_id, name, user_agent)
        accepted = await self.owners.runs.accept(new)
        run = accepted.run
        return SessionState(run_id=run.key.run_id, status=run.status, is_here=accepted.created)


async def run_of_session(
    admissions: Admissions,
    key: StandingKey,
    run_id: str,
    session: str | None,
    user_agent: str | None,
) -> NewRun:
    """Return the run that a session opens; ``session`` is its name.

    Raises:
        ProblemError: a model of the key is not configured any more.
    """
    terms = key.terms
    body = ExternalBody(
        kind="external",
        run_id=run_id,
        name=key.name,
        models=terms.models,
        idle_seconds=terms.idle_seconds,
        replay=False,
    )
    # The hash equals that of no request, so that no other caller can open an attempt of the run.
    new = await admissions[RunKind.EXTERNAL].new_run(body, key.tenant, f"session {run_id}")
    request = new.request
    settings = (request.graph or {})["steps"][0]["data"][EXTERNAL_STEP]
    client = StandingClient(
        account=key.account,
        session=hash_of_session(session),
        key_id=key.key_id,
        conversation=None if session is None else redact_text(session),
        user_agent=None if user_agent is None else redact_text(user_agent[:MAX_SESSION_CHARS]),
    )
    request = replace(
        request,
        graph=KINDS[RunKind.EXTERNAL].graph_of({**settings, "client": client.model_dump()}),
        # The session may be in use for days; it ends by its idle time.
        budget=replace(request.budget, max_time_seconds=None),
        requires_prices=request.requires_prices or terms.limits_cost,
    )
    return replace(new, request=request)
