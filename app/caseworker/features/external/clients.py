"""The clients of the gateway: which run and which attempt the key of a request identifies."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from caseworker.core.budget.stops import HandOver
from caseworker.features.access.agent_keys import AGENT_PREFIX
from caseworker.features.external.attempts import AttemptKey, SupersededError
from caseworker.features.external.client_requests import AnsweredError, content_of, enter
from caseworker.features.external.end import RunEndedError
from caseworker.features.external.key_sessions import UnknownKeyError, parsed_key
from caseworker.features.external.owners import NOT_OWNED, Owners
from caseworker.features.external.postgres import key_hash
from caseworker.features.external.session import GatewaySession
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.standing import StandingKeys
from caseworker.features.external.step_keys import KEY_PREFIX
from caseworker.models.run_models import RunModels
from caseworker.platform.caller import InvalidCredentialError
from caseworker.platform.http.problems import ProblemError
from caseworker.platform.http.request import (
    ApiRequest,
    HttpContext,
    shown_credential,
    shown_run_key,
    wait_connected,
)
from caseworker.runs.run import TERMINAL

KEY_PREFIXES: Final = (KEY_PREFIX, AGENT_PREFIX)
"""Beginnings of the keys of runs, and of standing keys."""


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request: the run whose calls it makes, and the key of its attempt."""

    session: GatewaySession
    key: AttemptKey | None = None
    """None for the code of a step of this process, which has no attempts."""
    refusal: Exception | None = None
    """Why a standing key may not open the run of the session, which is a draft; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Identifies the clients of the gateway of a process."""

    sessions: Sessions
    owners: Owners
    standing_keys: StandingKeys

    async def identify(self, request: ApiRequest, *, drafts: bool = False) -> Client:
        """Return the client that the key of a request identifies; its run takes calls.

        A standing key opens a run if its session has none. If ``drafts``, it gets the draft of one,
        which is not stored.

        Raises:
            ProblemError: the tenant has too many concurrent requests, or no process owns the run.
            AnsweredError: another process owns the run, and has answered the request.
            RunEndedError: the run has ended or was stopped.
            SupersededError: a later attempt was opened.
            UnknownKeyError: the key is unknown.
            SessionRefusedError: the session of a standing key may not open a run.
        """
        credential = _credential_of(request)
        if credential and (parsed := parsed_key(credential)) is not None:
            try:
                sessions = self.standing_keys
                opened, refusal = await sessions.session_of(request, *parsed, drafts=drafts)
                return Client(opened, refusal=refusal)
            except UnknownKeyError:
                raise await self._refusal_of_key(request, None) from None
        if credential and (session := self.sessions.with_key(credential)) is not None:
            await enter(request, session.key.tenant)
            if isinstance(session.stop, HandOver):
                raise ProblemError(NOT_OWNED)  # the next owner executes the step with another key
            if session.stop is not None:
                raise RunEndedError(session.stop)
            return Client(session)
        attempts = self.owners.attempts
        key = await AttemptKey.read(attempts, key_hash(credential)) if credential else None
        if key is None:
            raise await self._refusal_of_key(request, credential)
        run = key.state.key
        await enter(request, run.tenant)
        _require_current(key)
        if self.sessions.is_owned_elsewhere(run):
            response = await self.owners.answer(request, await content_of(request), run)
            if response is not None:
                raise AnsweredError(response)
            await key.reread()
            _require_current(key)
        if (session := self.sessions.get(run)) is None:
            raise RunEndedError(self.sessions.stop_of(run))
        session.require_open()
        return Client(session, key)

    async def models(self, request: ApiRequest) -> RunModels:
        """Return the models that the client may call; a standing key opens no run for it.

        Raises the errors of :meth:`identify`.
        """
        credential = _credential_of(request)
        if credential and (parsed := parsed_key(credential)) is not None:
            try:
                return await self.standing_keys.models_of(request, *parsed)
            except UnknownKeyError:
                raise await self._refusal_of_key(request, None) from None
        return (await self.identify(request)).session.models

    async def _refusal_of_key(self, request: ApiRequest, credential: str | None) -> Exception:
        """Return the refusal of a key that no attempt has.

        If another process has made it for one of its steps, that process answers the request.
        """
        if credential and (maker := await self.owners.maker_of(credential)) is not None:
            tenant, owner = maker
            await enter(request, tenant)
            content = await content_of(request)
            return AnsweredError(await self.owners.answer_step(request, content, owner))
        shared: HttpContext = request.app.state.shared
        await wait_connected(request, shared.authentication.refusal_delay())
        return UnknownKeyError()


def _require_current(key: AttemptKey) -> None:
    """Raise an error if the run of a key has ended, or a later attempt was opened."""
    if key.state.status in TERMINAL:
        raise RunEndedError(key.state.stop)
    if key.state.attempt < key.state.newest:
        raise SupersededError


def _credential_of(request: Request) -> str | None:
    """Return the key that a request contains, as a bearer token or as ``x-api-key``.

    None means that it contains none, or a malformed one.
    """
    with suppress(InvalidCredentialError):
        return shown_credential(request) or shown_run_key(request, KEY_PREFIXES)
    return None
