"""The feature ``gateway``: model calls and tool calls of external runs."""

import os
from pathlib import Path
from typing import Final

from caseworker.features.external.owners import Owners
from caseworker.features.external.sessions import Sessions
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.gateway.admission import Admission
from caseworker.gateway.dialects.mcp import MCP
from caseworker.gateway.dialects.offered import DIALECTS
from caseworker.gateway.free_fields import FieldsOf, FreeFields
from caseworker.gateway.routes import ROUTES
from caseworker.gateway.serve import Gateway
from caseworker.settings.loader import load_settings, settings_file
from caseworker.settings.schema import Settings


def open_gateway(parts: Parts) -> Opened:
    """Build the gateway of a process."""
    sessions, settings = parts.service(Sessions), parts.settings.gateway
    gateway = Gateway(
        sessions=sessions,
        owners=parts.service(Owners),
        admission=Admission(_free_fields(parts.settings), sessions.objects),
        linger_seconds=settings.linger_seconds,
        max_body_bytes=settings.max_body_kb * 1024,
    )
    bases = {f"{each.provider}_base_url": f"/gateway{each.base}" for each in DIALECTS}
    sessions.addresses = {**bases, "mcp_url": f"/gateway{MCP.path}"}
    sessions.reply = gateway.reply_to_step
    return Opened(services=[gateway])


def _free_fields(settings: Settings) -> FreeFields:
    folder = Path.cwd()

    def read() -> FieldsOf:
        return load_settings(os.environ, folder).settings.gateway.free_fields

    file = settings_file(os.environ, folder)
    return FreeFields(settings.gateway.free_fields, file, read)


GATEWAY: Final = Feature(name="gateway", routes=ROUTES, open=open_gateway)
