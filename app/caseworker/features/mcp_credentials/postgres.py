"""Stores the credentials of tenants for MCP servers in Postgres, encrypted."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Table, Text

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.platform.sealing import fernet_of
from caseworker.runs.postgres.tables import INSTANT, metadata
from caseworker.tools.servers import ServerUnavailableError

mcp_credentials = Table(
    "mcp_credentials",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("sealed", Text, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
)

_PUT = """
INSERT INTO mcp_credentials (tenant_id, server, sealed) VALUES (%s, %s, %s)
ON CONFLICT (tenant_id, server)
DO UPDATE SET sealed = excluded.sealed, updated_at = clock_timestamp()
"""
_GET = "SELECT sealed FROM mcp_credentials WHERE tenant_id = %s AND server = %s"
_LIST = "SELECT server, updated_at FROM mcp_credentials WHERE tenant_id = %s ORDER BY server"
_DELETE = "DELETE FROM mcp_credentials WHERE tenant_id = %s AND server = %s"


class EncryptionKeyMissingError(Exception):
    """No key is configured that encrypts credentials, so none are stored."""


class PostgresMcpCredentials:
    """HTTP headers by tenant and server; every method reads and writes only the tenant's rows."""

    def __init__(self, pool: Pool, key: str | None, servers: Collection[str]) -> None:
        """``key`` encrypts the headers; None refuses to store any."""
        self._pool = pool
        self.servers = servers
        """Names of the servers that are called over HTTP."""
        self._fernet: Any = None if key is None else fernet_of(key)

    async def put(self, tenant: str, server: str, headers: Mapping[str, str]) -> None:
        """Store the headers of a tenant for a server; they replace earlier ones.

        Raises:
            EncryptionKeyMissingError: no key is configured.
        """
        if self._fernet is None:
            raise EncryptionKeyMissingError
        # The names are encrypted as well, so that a row is of no use for another tenant or server.
        content = json.dumps([tenant, server, dict(headers)]).encode()
        sealed = self._fernet.encrypt(content).decode()
        async with transaction(self._pool, tenant) as connection:
            await connection.exec_driver_sql(_PUT, (tenant, server, sealed))
            await record(connection, tenant, Act.CREDENTIALS_SET, server)

    async def find(self, tenant: str) -> Sequence[Mapping[str, Any]]:
        """Return name and time of the credentials of a tenant, sorted by server."""
        async with transaction(self._pool, tenant) as connection:
            rows = await connection.exec_driver_sql(_LIST, (tenant,))
            return [dict(row) for row in rows.mappings()]

    async def delete(self, tenant: str, server: str) -> bool:
        """Delete the headers of a tenant for a server; return whether there were any."""
        async with transaction(self._pool, tenant) as connection:
            if not (await connection.exec_driver_sql(_DELETE, (tenant, server))).rowcount:
                return False
            await record(connection, tenant, Act.CREDENTIALS_DELETED, server)
            return True

    async def headers_of(self, tenant: str, server: str) -> Mapping[str, str]:
        """Return the headers of a tenant for a server; empty if it has none.

        Raises:
            ServerUnavailableError: they cannot be read or decrypted.
        """
        try:
            async with transaction(self._pool, tenant) as connection:
                rows = await connection.exec_driver_sql(_GET, (tenant, server))
                sealed = rows.scalar_one_or_none()
        except StoreUnavailableError:
            message = f"The credentials for the server {server!r} cannot be read now."
            raise ServerUnavailableError(message) from None
        return {} if sealed is None else self._opened(tenant, server, sealed)

    def _opened(self, tenant: str, server: str, sealed: str) -> Mapping[str, str]:
        from cryptography.fernet import InvalidToken

        try:
            if self._fernet is None:
                raise InvalidToken
            *of, headers = json.loads(self._fernet.decrypt(sealed))
        except InvalidToken:
            of, headers = [], {}
        if of != [tenant, server]:
            message = (
                f"The credentials for the server {server!r} cannot be decrypted with"
                " secrets.encryption_key. Store them again."
            )
            raise ServerUnavailableError(message)
        return dict(headers)
