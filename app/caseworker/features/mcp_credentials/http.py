"""Admin routes for a tenant's credentials for MCP servers."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Path
from pydantic import AfterValidator, Field, StringConstraints

from caseworker.features.mcp_credentials.postgres import (
    EncryptionKeyMissingError,
    PostgresMcpCredentials,
)
from caseworker.platform.caller import KeyScope
from caseworker.platform.http.bodies import BodyModel, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import Errors, ProblemError, ProblemType, invalid
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.platform.validation import refusal

MAX_HEADERS: Final = 16
_OF_THE_PROTOCOL: Final = ("accept", "connection", "content-", "host", "mcp-", "transfer-encoding")


def _header(name: str) -> str:
    if name.lower().startswith(_OF_THE_PROTOCOL):
        raise refusal("The protocol sets this header itself.")
    return name.lower()


HeaderName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9-]+$", min_length=1, max_length=100),
    AfterValidator(_header),
]
HeaderValue = Annotated[
    str, StringConstraints(pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$", max_length=8192)
]
ServerPath = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$"),
    Path(description="Name of a configured MCP server that has a URL."),
]

ENCRYPTION_KEY_MISSING: Final = ProblemType(
    slug="encryption-key-missing",
    status=409,
    title="No encryption key is configured",
    detail="The service stores credentials only encrypted. Set SECRETS_ENCRYPTION_KEY.",
    explanation="The service stores credentials for MCP servers only encrypted, and no key is "
    "configured. The operator sets `SECRETS_ENCRYPTION_KEY` "
    "([mcp.md](mcp.md#credentials-of-tenants)).",
)
CREDENTIALS_NOT_FOUND: Final = ProblemType(
    slug="mcp-credentials-not-found",
    status=404,
    title="Credentials not found",
    detail="The tenant has no credentials for this server. GET /mcp-credentials lists all.",
    explanation="The tenant has no credentials for this MCP server. `GET /mcp-credentials` "
    "lists the servers for which it has some.",
)
ERRORS: Errors = {EncryptionKeyMissingError: ENCRYPTION_KEY_MISSING}

router = api_router("MCP credentials", prefix="/mcp-credentials")


class CredentialsBody(BodyModel):
    """The credentials of the caller's tenant for an MCP server."""

    headers: Annotated[dict[HeaderName, HeaderValue], Field(min_length=1, max_length=MAX_HEADERS)]
    """HTTP headers for the tenant's requests to the server, such as ``Authorization``. They replace
    configured headers of the same name."""


class CredentialsView(View):
    """Credentials for an MCP server, without their values."""

    server: str
    """Name of the server."""
    updated_at: datetime


class CredentialsList(View):
    """The credentials of a tenant, without their values, sorted by server."""

    credentials: list[CredentialsView]


@router.put(
    "/{server}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, ENCRYPTION_KEY_MISSING),
        204: {"description": "The credentials are stored."},
    },
)
@requires(KeyScope.ADMIN)
async def put_mcp_credentials(
    server: ServerPath, body: CredentialsBody, request: ApiRequest
) -> None:
    """Store the tenant's credentials for an MCP server, encrypted. They apply to the next call."""
    request.require_small()
    store = request.service(PostgresMcpCredentials)
    if server not in store.servers:
        raise invalid("server", "No MCP server with a URL has this name; see GET /tools.")
    await store.put(request.caller.tenant, server, body.headers)


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
@requires(KeyScope.ADMIN)
async def list_mcp_credentials(request: ApiRequest) -> CredentialsList:
    """List the MCP servers for which the tenant has credentials, without their values."""
    credentials = await request.service(PostgresMcpCredentials).find(request.caller.tenant)
    return CredentialsList(credentials=[CredentialsView(**each) for each in credentials])


@router.delete(
    "/{server}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        **answers(*EVERY_RUN_ROUTE, CREDENTIALS_NOT_FOUND),
        204: {"description": "The credentials are deleted."},
    },
)
@requires(KeyScope.ADMIN)
async def delete_mcp_credentials(server: ServerPath, request: ApiRequest) -> None:
    """Delete the tenant's credentials for an MCP server; its calls then use the configured ones."""
    store = request.service(PostgresMcpCredentials)
    if not await store.delete(request.caller.tenant, server):
        raise ProblemError(CREDENTIALS_NOT_FOUND)
