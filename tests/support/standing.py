"""Standing keys as their holders use them: a base URL, a key, and perhaps the name of a session."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from tests.support.external import OPENAI, OVERLOADED, Api


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of a standing key, as a client of one process."""

    http: httpx.AsyncClient
    key: Mapping[str, Any]
    """The key as it was created."""
    session: str | None = None
    api: Api = OPENAI

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request."""
        name = {} if self.session is None else {"x-caseworker-run": self.session}
        return {"Authorization": f"Bearer {self.key['key']}", **name}

    def at(self, http: httpx.AsyncClient) -> "Holder":
        """Return the holder as a client of another process."""
        return replace(self, http=http)

    def named(self, session: str | None) -> "Holder":
        """Return the holder in another session."""
        return replace(self, session=session)

    async def ask(
        self, text: str = "Hello", *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """Send one request to the gateway."""
        body = self.api.body(text, **fields)
        sent = {**self.headers, **(headers or {})}
        return await self.http.post(self.api.path, json=body, headers=sent)

    async def ask_until_owned(self, text: str, **fields: Any) -> httpx.Response:
        """Send a request until a process owns the run; on a slow machine this takes longer."""
        while (reply := await self.ask(text, **fields)).status_code == OVERLOADED:
            assert reply.headers["retry-after"] == "1"
        return reply


async def create_key(http: httpx.AsyncClient, operator: str, **fields: Any) -> Holder:
    """Create a standing key without limits, except for those in ``fields``."""
    body = {"kind": "agent", "budget": None, "budget_per_day": None, **fields}
    created = await http.post("/keys", json=body, headers={"Authorization": f"Bearer {operator}"})
    return Holder(http=http, key=created.raise_for_status().json())
