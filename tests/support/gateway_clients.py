"""The clients of a gateway with the key of one external run."""

import json
from typing import Any

import anthropic
import httpx2
import openai


class External:
    """An external run and the clients of its gateway."""

    def __init__(self, http: httpx2.AsyncClient, run: dict[str, Any]) -> None:
        self.http, self.run_id, self.access = http, run["run_id"], run["access"]
        key = self.access["key"]
        self._credential = {"authorization": f"Bearer {key}"}
        self.openai = openai.AsyncOpenAI(
            base_url=self.access["openai_base_url"], api_key=key, http_client=http
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=self.access["anthropic_base_url"], api_key=key, http_client=http
        )

    async def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request with the key of the run."""
        return await self.http.request(method, path, headers=self._credential, **options)

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """Post a raw body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **self._credential, **headers}
        return await self.http.post(path, content=content, headers=sent)

    async def usage(self) -> dict[str, Any]:
        """Return the usage of the run."""
        usage: dict[str, Any] = (await self.ask("GET", f"/runs/{self.run_id}")).json()["usage"]
        return usage
