"""The Model Context Protocol, by which a client calls the tools of its run."""

from collections.abc import Mapping
from typing import Any, Final

from caseworker.gateway.dialects.chat_completions import openai_models
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.gateway.refusals import Refusal
from caseworker.models.fields.table import Table

STOPPED: Final = -32000
"""Error code of JSON-RPC for errors that a server defines; ``data.code`` is its own code."""


def error_data(refusal: Refusal) -> Mapping[str, str]:
    """Return the field ``data`` of a JSON-RPC error."""
    return {"code": refusal.code, **refusal.period}


def _error(refusal: Refusal) -> Mapping[str, Any]:
    error = {"code": STOPPED, "message": refusal.message, "data": error_data(refusal)}
    return {"jsonrpc": "2.0", "id": None, "error": error}


MCP: Final = Dialect(
    provider="mcp",
    base="/mcp",
    path="/mcp",
    models_path="",
    fields=Table("mcp"),
    limit_fields=(),
    error=_error,
    models=openai_models,
)
"""Dialect of the endpoint through which a client calls the tools of its run. It calls no model."""
