"""The feature ``external``: runs of agents that run outside of the service."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request

from caseworker.features.external import http
from caseworker.features.external.children import PARENT_ENDED, Children
from caseworker.features.external.clients import KEY_PREFIXES
from caseworker.features.external.key_sessions import caller_with, parsed_key
from caseworker.features.external.key_use import PostgresKeyUse
from caseworker.features.external.kind import Access
from caseworker.features.external.old_sessions import drop_sessions
from caseworker.features.external.owners import Owners
from caseworker.features.external.postgres import (
    PostgresAttempts,
    PostgresStandingKeys,
    key_hash,
)
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.standing import StandingKeys
from caseworker.features.external.step_keys import KEY_PREFIX
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.platform.caller import Caller, InvalidCredentialError, KeyScope, with_implied
from caseworker.platform.http.forwarding import Address, Forwarder
from caseworker.platform.http.request import RunKeys, base_url_of
from caseworker.runs.http.fields import ExternalAccess
from caseworker.runs.run import Run
from caseworker.runs.service import RunService
from caseworker.settings.schema import ServerSettings


@dataclass(frozen=True, slots=True)
class AttemptKeys:
    """Issues the keys of attempts, and identifies the callers that send them."""

    attempts: PostgresAttempts
    standing_keys: PostgresStandingKeys
    sessions: Sessions
    server: ServerSettings

    async def open(self, run: Run, request: Request, *, renew: bool) -> Mapping[str, Any]:
        """Open an attempt of a run; see :class:`ExternalAccess`."""
        key = KEY_PREFIX + secrets.token_hex(32)
        attempt = await self.attempts.open(run.key, key_hash(key), renew=renew)
        if (session := self.sessions.get(run.key)) is not None:
            session.touch()
            session.attempts.note_opened(attempt)
        base_url = self.server.public_url or base_url_of(request, self.server.trusted_proxies)
        paths = self.sessions.addresses
        urls = {name: base_url.rstrip("/") + path for name, path in paths.items()}
        access = Access(key=key, **urls, expires_at=run.request.deadline)
        return {"attempt": attempt, "access": access}

    async def caller_of(self, key: str, run_id: str | None) -> Caller:
        """Return the caller with the key of an attempt, or with a standing key.

        ``run_id`` is the run that the request reads.

        Raises:
            InvalidCredentialError: the key is unknown.
        """
        if (parsed := parsed_key(key)) is not None:
            return caller_with(*(await self.standing_keys.reader(*parsed, run_id) or (None, None)))
        state = await self.attempts.find(key_hash(key))
        if state is None:
            raise InvalidCredentialError
        scopes = with_implied([KeyScope.RUN] if state.attempt == state.newest else [])
        key_run = state.key.run_id
        return Caller(state.key.tenant, f"run {key_run}", scopes, run_id=key_run)


def open_external(parts: Parts) -> Opened:
    """Build the store of attempts, and the function that opens them."""
    sessions = parts.service(Sessions)
    stale_seconds = parts.settings.worker.stale_after_seconds
    attempts = PostgresAttempts(parts.engines.work, stale_seconds=stale_seconds)
    if (address := parts.services.get(Address)) is not None:
        sessions.secret = address.secret
    sessions.objects.record = attempts.note_objects
    sessions.objects.tokens_of = attempts.known_objects
    standing_keys = PostgresStandingKeys(parts.engines.work, usual=parts.limits.quota)
    keys = AttemptKeys(attempts, standing_keys, sessions, parts.settings.server)
    forwarder = Forwarder()
    owners = Owners(
        sessions=sessions,
        attempts=attempts,
        runs=parts.service(RunService),
        forwarder=forwarder,
        address=address,
    )
    key_use = PostgresKeyUse(parts.engines.work)
    standing = StandingKeys(
        sessions=sessions,
        owners=owners,
        keys=standing_keys,
        usual_models=parts.limits.quota.models,
        count_refused=key_use.count_refused,
    )
    children = Children(sessions=sessions, runs=parts.service(RunService), owners=owners)
    access = ExternalAccess(accepted=children.accepted, opened=keys.open)
    run_keys = RunKeys(KEY_PREFIXES, keys.caller_of)
    services = [attempts, standing, access, run_keys, owners, key_use]

    async def close() -> None:
        await forwarder.aclose()
        await key_use.aclose()

    return Opened(services=services, close=close)


EXTERNAL: Final = Feature(
    name="external",
    routes=[*http.router.routes, *http.gateway_router.routes, *http.keys.routes],
    errors=http.ERRORS,
    problems=[*http.PROBLEMS, PARENT_ENDED],
    tables=["external_attempts", "external_objects", "key_sessions"],
    retention={"runs": drop_sessions},
    open=open_external,
)
