"""The clients of the gateway: which run and which attempt the key of a request identifies."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from fastapi import Request, Response

from caseworker.core.budget.stops import HandOver
from caseworker.features.external.attempts import AttemptKey, SupersededError
from caseworker.features.external.end import RunEndedError
from caseworker.features.external.owners import NOT_OWNED, Owners
from caseworker.features.external.postgres import key_hash
from caseworker.features.external.session import GatewaySession
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.step_keys import KEY_PREFIX
from caseworker.platform.caller import InvalidCredentialError
from caseworker.platform.fair_slots import TENANT
from caseworker.platform.http.bodies import VALUE_BYTES, memory_of
from caseworker.platform.http.deadline import DEADLINE
from caseworker.platform.http.problems import ProblemError
from caseworker.platform.http.request import (
    IDENTIFIED,
    RELEASES,
    ApiRequest,
    HttpContext,
    shown_credential,
    shown_run_key,
    wait_connected,
)
from caseworker.runs.run import TERMINAL

_COUNTED: Final = "caseworker.counted"
"""ASGI scope key of a request whose body was counted."""
VALUES: Final = "caseworker.value_bytes"
"""ASGI scope key of the bytes of memory for a value of the body."""


class AnsweredError(Exception):
    """Another process, which owns the run, has answered the request."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class UnknownKeyError(LookupError):
    """The key of a request is unknown."""


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request: the run whose calls it makes, and the key of its attempt."""

    session: GatewaySession
    key: AttemptKey | None = None
    """None for the code of a step of this process, which has no attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Identifies the clients of the gateway of a process."""

    sessions: Sessions
    owners: Owners

    async def identify(self, request: ApiRequest) -> Client:
        """Return the client that the key of a request identifies; its run takes calls.

        Raises:
            ProblemError: the tenant has too many concurrent requests, or no process owns the run.
            AnsweredError: another process owns the run, and has answered the request.
            RunEndedError: the run has ended or was stopped.
            SupersededError: a later attempt was opened.
            UnknownKeyError: the key is unknown.
        """
        credential = _credential_of(request)
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


async def enter(request: Request, tenant: str) -> None:
    """Acquire the request's slot of a tenant, once.

    From then on, the request may take as long as its model, but not wait for the database.

    Raises:
        ProblemError: the tenant has too many concurrent requests.
    """
    if "tenant" not in request.scope:
        shared: HttpContext = request.app.state.shared
        request.scope["tenant"] = tenant
        TENANT.set(tenant)
        request.scope.get(IDENTIFIED, bool)()
        await shared.connections.enter(tenant, request.scope)
        if (deadline := request.scope.get(DEADLINE)) is not None:
            deadline.count_only(shared.services[Sessions].stuck_seconds)


async def content_of(request: ApiRequest) -> bytes:
    """Return the body of a request.

    A long one, or one with many values, counts as one in transfer until its call has ended.

    Raises:
        ProblemError: it is too large, or all such bodies together are.
    """
    content, shared = await request.body(), request.app.state.shared
    if _COUNTED in request.scope:  # a request may be answered again, by the next owner
        return content
    value_bytes = request.scope.get(VALUES, VALUE_BYTES)
    request.scope[_COUNTED], memory_bytes = True, memory_of(content, value_bytes)
    if memory_bytes > shared.limits.max_body_bytes + shared.limits.max_graph_bytes:
        tenant = request.scope.get("tenant")
        request.scope[RELEASES].append(partial(shared.bodies.release, memory_bytes, tenant))
        shared.bodies.hold(memory_bytes, tenant)
    return content


def _credential_of(request: Request) -> str | None:
    """Return the key that a request contains, as a bearer token or as ``x-api-key``.

    None means that it contains none, or a malformed one.
    """
    with suppress(InvalidCredentialError):
        return shown_credential(request) or shown_run_key(request, KEY_PREFIX)
    return None
