"""The feature ``external``: runs of agents that run outside of the service."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastapi import Request

from caseworker.features.external import gateway, http
from caseworker.features.external.children import PARENT_ENDED, Children
from caseworker.features.external.dialects import DIALECTS, MCP
from caseworker.features.external.free_fields import FieldsOf, FreeFields
from caseworker.features.external.gateway import GatewayLimits
from caseworker.features.external.owners import Owners
from caseworker.features.external.postgres import PostgresAttempts, sha256_of
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.step_keys import KEY_PREFIX
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.platform.caller import Caller, InvalidCredentialError, KeyScope, with_implied
from caseworker.platform.http.forwarding import Address, Forwarder
from caseworker.platform.http.request import RunKeys, base_url_of
from caseworker.runs.http.fields import ExternalAccess
from caseworker.runs.http.views import Access
from caseworker.runs.run import Run
from caseworker.runs.service import RunService
from caseworker.settings.loader import load_settings, settings_file
from caseworker.settings.schema import Settings


def open_external(parts: Parts) -> Opened:
    """Build the store of attempts, and the function that opens them."""
    sessions = parts.service(Sessions)
    stale_seconds = parts.settings.worker.stale_after_seconds
    attempts = PostgresAttempts(parts.engines.work, stale_seconds=stale_seconds)
    server = parts.settings.server
    if (address := parts.services.get(Address)) is not None:
        sessions.secret = address.secret
    sessions.objects.record = attempts.note_objects
    sessions.objects.tokens_of = attempts.known_objects
    sessions.free_fields = _free_fields(parts.settings)

    async def opened(run: Run, request: Request, *, renew: bool) -> Mapping[str, Any]:
        key = KEY_PREFIX + secrets.token_hex(32)
        attempt = await attempts.open(run.key, sha256_of(key), renew=renew)
        if (session := sessions.get(run.key)) is not None:
            session.touch()
            session.attempts.note_opened(attempt)
        base_url = server.public_url or base_url_of(request, server.trusted_proxies)
        root = f"{base_url.rstrip('/')}/gateway"
        urls = {f"{each.provider}_base_url": root + each.base for each in DIALECTS}
        ends = run.request.deadline
        access = Access(key=key, **urls, mcp_url=root + MCP.path, expires_at=ends)
        return {"attempt": attempt, "access": access}

    async def caller_of(key: str) -> Caller:
        state = await attempts.find(sha256_of(key))
        if state is None:
            raise InvalidCredentialError
        scopes = with_implied([KeyScope.RUN] if state.attempt == state.newest else [])
        run_id = state.key.run_id
        return Caller(state.key.tenant, f"run {run_id}", scopes, run_id=run_id)

    forwarder = Forwarder()
    owners = Owners(
        sessions=sessions,
        attempts=attempts,
        runs=parts.service(RunService),
        forwarder=forwarder,
        address=address,
    )
    children = Children(sessions=sessions, runs=parts.service(RunService), owners=owners)
    keys = RunKeys(KEY_PREFIX, caller_of)
    access = ExternalAccess(
        opened=opened,
        parented=children.parented,
        adopted=children.adopted,
        elsewhere=owners.create,
    )
    gateway_limits = GatewayLimits(
        linger_seconds=parts.settings.gateway.linger_seconds,
        max_body_bytes=parts.settings.gateway.max_body_kb * 1024,
    )
    services = [attempts, access, keys, owners, gateway_limits]
    return Opened(services=services, close=forwarder.aclose)


def _free_fields(settings: Settings) -> FreeFields:
    folder = Path.cwd()

    def read() -> FieldsOf:
        return load_settings(os.environ, folder).settings.gateway.free_fields

    file = settings_file(os.environ, folder)
    return FreeFields(settings.gateway.free_fields, file, read)


EXTERNAL: Final = Feature(
    name="external",
    routes=[*http.router.routes, *gateway.ROUTES],
    errors=http.ERRORS,
    problems=[*http.PROBLEMS, PARENT_ENDED],
    tables=["external_attempts", "external_objects"],
    open=open_external,
)
