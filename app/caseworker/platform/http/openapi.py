"""Add errors, headers and examples that routes do not declare to the OpenAPI document."""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from caseworker.platform.http.problems import (
    ANONYMOUS_REFUSED,
    BODY_TOO_LARGE,
    CREDENTIAL_REFUSED,
    CREDENTIAL_REQUIRED,
    HEAD_TOO_LARGE,
    HOST_REFUSED,
    INTERNAL,
    INVALID_REQUEST,
    MALFORMED_BODY,
    MALFORMED_REQUEST,
    MEDIA_TYPE,
    REQUEST_TIMEOUT,
    SCOPE_MISSING,
    TOO_MANY_BODIES,
    TOO_MANY_CONNECTIONS,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    ProblemType,
)

Responses = dict[int | str, dict[str, Any]]

PROBLEM_SCHEMA: Mapping[str, Any] = {
    "title": "Problem",
    "type": "object",
    "description": "An error (RFC 9457).",
    "required": ["type", "code", "title", "status", "detail", "request_id"],
    "properties": {
        "type": {
            "type": "string",
            "description": "URI of the error type; its page if `server.docs_url` is set.",
        },
        "code": {"type": "string", "description": "Stable identifier of the error type."},
        "title": {"type": "string"},
        "status": {"type": "integer", "description": "HTTP status code."},
        "detail": {"type": "string", "description": "The error, or how to resolve it."},
        "request_id": {"type": "string", "description": "ID of the request in the logs."},
        "errors": {
            "type": "array",
            "description": "The invalid fields.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {
                    "field": {"type": "string", "examples": ["budget.max_tokens"]},
                    "message": {"type": "string", "examples": ["This must be at least 0."]},
                },
            },
        },
        "quota": {
            "type": "object",
            "description": "Usage and limit of the exceeded quota.",
            "required": ["dimension", "used", "reserved", "requested", "limit"],
            "properties": {
                "dimension": {"type": "string", "examples": ["runs_per_minute"]},
                **{name: {"type": "number"} for name in ("used", "reserved", "requested", "limit")},
            },
        },
        "parts": {
            "type": "object",
            "description": "Readiness of each component of a service that is not ready.",
            "additionalProperties": {"type": "string"},
        },
    },
}

_NOT_DESCRIBED = "Successful Response"
"""The framework's placeholder for a response without a description."""

_REQUEST_ID_HEADER = {
    "X-Request-ID": {
        "description": "The request ID sent by the caller if valid, otherwise a generated one.",
        "schema": {"type": "string"},
    }
}
_CHALLENGE_HEADER = {
    "WWW-Authenticate": {
        "description": "Authentication challenge (RFC 6750).",
        "schema": {"type": "string"},
    }
}
SCOPE = "x-required-scope"
"""OpenAPI extension key that holds the scope required by an operation."""
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key (`cwk_...`) or a JSON Web Token from the configured issuer. The "
    "scopes `run` and `approve` include `read`; `admin` includes all scopes.",
}
_RETRY_HEADER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}

EVERY_CALLER = (
    CREDENTIAL_REQUIRED,
    CREDENTIAL_REFUSED,
    ANONYMOUS_REFUSED,
    SCOPE_MISSING,
    UNAVAILABLE,
)
"""Problem types that every authenticated route may return."""

EVERY_RUN_ROUTE = (*EVERY_CALLER, INVALID_REQUEST)
"""Problem types that every authenticated route with validated parameters may return."""

_EVERY_ROUTE = (MALFORMED_REQUEST, HOST_REFUSED, HEAD_TOO_LARGE, INTERNAL, TOO_MANY_CONNECTIONS)

EVERY_BODY = (
    MALFORMED_BODY,
    REQUEST_TIMEOUT,
    BODY_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    TOO_MANY_BODIES,
)
"""Problem types that every route with a request body may return."""


def answers(*kinds: ProblemType) -> Responses:
    """Return the OpenAPI response entries for the problem types that a route may return."""
    documented: Responses = {}
    for kind in sorted((*kinds, *_EVERY_ROUTE), key=lambda kind: kind.status):
        response = documented.setdefault(
            kind.status,
            {
                "description": kind.title,
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        if kind.title not in response["description"]:
            response["description"] += f"; {kind.title}"
        if kind.retry_after_seconds is not None:
            response["headers"] = _RETRY_HEADER
        if kind.challenge is not None:
            response["headers"] = _CHALLENGE_HEADER
    return documented


def operation_id(route: APIRoute) -> str:
    """Return the OpenAPI operation ID for a route.

    Generated clients derive method names from it.
    """
    return route.name


def describe(
    app: FastAPI,
    problems: Iterable[ProblemType],
    schemas: Mapping[str, Any],
    *,
    docs_url: str | None,
) -> None:
    """Make the application add the parts that all routes share to its OpenAPI document.

    ``problems`` are all problem types. ``schemas`` are additional schemas, for types without a
    pydantic model. ``docs_url`` is the base URL of the pages of problem types. The document is
    generated on the first request for it, in half a second.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(generate(), problems, schemas, docs_url)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign] # how FastAPI wants it extended


def _complete(
    document: dict[str, Any],
    problems: Iterable[ProblemType],
    more: Mapping[str, Any],
    docs_url: str | None,
) -> None:
    schemas = document["components"]["schemas"]
    document["components"]["securitySchemes"] = {"bearer": _BEARER}
    kinds = sorted(problems, key=lambda kind: (kind.status, kind.slug))
    listed = dict(PROBLEM_SCHEMA["properties"])
    listed["type"] = {**listed["type"], "enum": [kind.page(docs_url) for kind in kinds]}
    listed["code"] = {**listed["code"], "enum": [kind.slug for kind in kinds]}
    schemas.update(more)
    schemas["Problem"] = {**PROBLEM_SCHEMA, "properties": listed}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["summary"] = operation["description"].partition("\n")[0].rstrip(".")
            _optional_body(operation)
            _scoped(operation)
            for response in operation["responses"].values():
                response["headers"] = _REQUEST_ID_HEADER | response.get("headers", {})
                if response["description"] == _NOT_DESCRIBED:
                    response["description"] = _of_its_schema(response, schemas)


def _scoped(operation: dict[str, Any]) -> None:
    """Document the required scope of an operation, if any."""
    if SCOPE in operation:
        operation["security"] = [{"bearer": []}]
        operation["description"] += f"\n\nRequires the scope `{operation[SCOPE]}`."


def _optional_body(operation: dict[str, Any]) -> None:
    """Remove the default of an optional body: next to a ``$ref`` it would be ignored."""
    for media in operation.get("requestBody", {}).get("content", {}).values():
        media["schema"].pop("default", None)


def _of_its_schema(response: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the description of a response's schema."""
    [media] = response["content"].values()
    described: str = schemas[media["schema"]["$ref"].rpartition("/")[2]]["description"]
    return described
