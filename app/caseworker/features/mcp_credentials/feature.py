"""The feature ``mcp_credentials``: credentials of tenants for MCP servers."""

from typing import Final

from caseworker.features.feature import Feature
from caseworker.features.mcp_credentials import http

MCP_CREDENTIALS: Final = Feature(
    name="mcp_credentials",
    routes=http.router.routes,
    errors=http.ERRORS,
    problems=[http.CREDENTIALS_NOT_FOUND],
    tables=["mcp_credentials"],
)
