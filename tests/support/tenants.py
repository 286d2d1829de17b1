"""The service on a real database, and callers of several tenants."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import SecretStr

from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.settings.schema import AuthSettings, Settings

OPERATOR_KEY = "operator-" + "7" * 32
_VARYING = re.compile(
    r'"(?:request_id|[a-z_]+_(?:at|ms)|ts)": ?(?:"[^"]*"|null|-?[0-9.]+)'
    r'|"(?:key|key_id|actor_key_id|secret)": ?"[^"]*"|"target": ?"[0-9a-f]{16}"'
    r'|"stored_bytes": ?\d+'
    r"|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.]+Z"
)
"""Parts that differ between equal answers: generated IDs, times, and the space that these take."""


class Tenants:
    """Sends requests as callers of any tenant."""

    def __init__(self, client: httpx.AsyncClient, app: FastAPI) -> None:
        self.client = client
        self.app = app
        self.keys: dict[str, str] = {}

    async def ask(
        self, tenant: str, method: str, path: str, body: Any = None, **headers: str
    ) -> httpx.Response:
        """Send a request as an admin of a tenant, whose key is created on first use."""
        if tenant not in self.keys:
            self.keys[tenant] = await self._key_of(tenant)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        shown = {"Authorization": f"Bearer {self.keys[tenant]}", **named}
        return await self.client.request(method, path, json=body, headers=shown)

    async def _key_of(self, tenant: str) -> str:
        body = {"name": "robot", "scopes": ["admin"], "tenant": tenant}
        operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        made = await self.client.post("/keys", json=body, headers=operator)
        return str(made.json()["key"])


@asynccontextmanager
async def open_tenants(
    url: str, *, executes: bool = False, **sections: Any
) -> AsyncIterator[Tenants]:
    """Open the service on a database; its runs stay queued unless it ``executes``.

    ``sections`` are sections of the settings.
    """
    auth = AuthSettings(bootstrap_key=SecretStr(OPERATOR_KEY))
    settings = Settings(auth=auth, **sections)
    process = Process(settings, url, executes=executes)
    app = build_app(process)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        process.opened(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield Tenants(client, app)


def stable_answer(answer: httpx.Response, names: Mapping[str, str]) -> tuple[int, str]:
    """Return an answer without times and IDs; ``names`` are replaced."""
    text = answer.text
    if text and answer.headers.get("content-type", "").endswith("json"):
        shown = answer.json()
        if isinstance(shown, dict):
            shown.pop("analysis", None)  # which is about times
        text = json.dumps(shown, sort_keys=True)
    for name, shown in names.items():
        text = text.replace(name, shown)
    return answer.status_code, _VARYING.sub("*", text)
