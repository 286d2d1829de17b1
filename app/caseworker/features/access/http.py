"""Routes for API keys: create, list, rotate and revoke."""

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated

from fastapi import Path, Query

from caseworker.features.access.authentication import Authentication
from caseworker.features.access.keys import KeyConflictError, KeyNotFoundError, Keys
from caseworker.features.access.views import (
    IssuedKeyView,
    KeyList,
    KeyQuery,
    KeyView,
    NewKeyBody,
    RotateKeyBody,
)
from caseworker.platform.caller import Caller, CredentialRequiredError, Scope
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import TENANT_REFUSED, Errors, ProblemType, invalid
from caseworker.platform.http.request import ApiRequest, api_router, requires

KEY_NOT_FOUND = ProblemType(
    slug="key-not-found",
    status=404,
    title="API key not found",
    detail="No API key has this ID. GET /keys lists all keys.",
)
KEY_CONFLICT = ProblemType(
    slug="key-conflict",
    status=409,
    title="API key cannot be rotated or created",
    detail="A rotated, revoked or expired key cannot be rotated, and a tenant can have at most "
    "1,000 active keys. GET /keys lists them.",
)

ERRORS: Errors = {KeyNotFoundError: KEY_NOT_FOUND, KeyConflictError: KEY_CONFLICT}

router = api_router("keys", prefix="/keys")

KeyId = Annotated[str, Path(description="ID of the API key.", pattern="^[0-9a-f]{16}$")]

_ASKED = (*EVERY_RUN_ROUTE, TENANT_REFUSED)
_FOUND = (*EVERY_RUN_ROUTE, KEY_NOT_FOUND)
_USUALLY = RotateKeyBody()


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses=answers(*_ASKED, *EVERY_BODY, KEY_CONFLICT),
)
@requires(Scope.ADMIN)
async def create_key(body: NewKeyBody, request: ApiRequest) -> IssuedKeyView:
    """Create a key; only this response contains its secret.

    The key belongs to the caller's tenant; the operator may name another tenant. Create the first
    key with the bootstrap key or on the command line.
    """
    if body.expires_at is not None and body.expires_at <= datetime.now(UTC):
        raise invalid("expires_at", "This must be in the future.")
    issued = await request.service(Keys).create(
        _known(request),
        name=body.name,
        scopes=frozenset(map(Scope, body.scopes)),
        tenant=body.tenant,
        expires_at=body.expires_at,
    )
    request.service(Authentication).forget()
    return IssuedKeyView.issued(issued)


@router.get("", responses=answers(*_ASKED))
@requires(Scope.ADMIN)
async def list_keys(query: Annotated[KeyQuery, Query()], request: ApiRequest) -> KeyList:
    """List the newest 1,000 keys of the tenant, newest first, without their secrets.

    The operator sees the keys of all tenants, or of the tenant given.
    """
    found = await request.service(Keys).list(_known(request), query.tenant)
    return KeyList(keys=[KeyView.of(each) for each in found])


@router.post(
    "/{key_id}/rotate",
    status_code=HTTPStatus.CREATED,
    responses=answers(*_FOUND, *EVERY_BODY, KEY_CONFLICT),
)
@requires(Scope.ADMIN)
async def rotate_key(
    key_id: KeyId, request: ApiRequest, body: RotateKeyBody = _USUALLY
) -> IssuedKeyView:
    """Create a key that replaces another one; the old key remains valid for a while.

    The new key has the name, the scopes and the lifetime of the old one, starting now.
    """
    overlap = timedelta(seconds=body.overlap_seconds)
    issued = await request.service(Keys).rotate(_known(request), key_id, overlap=overlap)
    request.service(Authentication).forget()
    return IssuedKeyView.issued(issued)


@router.delete("/{key_id}", responses=answers(*_FOUND))
@requires(Scope.ADMIN)
async def revoke_key(key_id: KeyId, request: ApiRequest) -> KeyView:
    """Revoke a key; every process rejects it within five seconds."""
    revoked = await request.service(Keys).revoke(_known(request), key_id)
    request.service(Authentication).forget()
    return KeyView.of(revoked)


def _known(request: ApiRequest) -> Caller:
    """Return the caller, who must have a credential to manage keys."""
    if request.caller.anonymous:
        raise CredentialRequiredError
    return request.caller
