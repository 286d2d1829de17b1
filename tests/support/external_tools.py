"""Tools of external runs, called by the SDK's client; they note their calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.support.external import Agent
from tests.support.noting_tool import NOTES, RELEASE, noted

PLUGINS = ("NotingTool", "HeldNotingTool")


class Notes:
    """The file in which the tools note their calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = {
            "TOOLS_PLUGINS": json.dumps([f"tests.support.noting_tool:{each}" for each in PLUGINS]),
            NOTES: str(path),
        }

    def of(self, agent: Agent) -> list[str]:
        """Return the texts that a run has noted."""
        start = f"{agent.run_id}: "
        return [line.removeprefix(start) for line in noted(self.path) if line.startswith(start)]

    async def wait_for(self, agent: Agent, text: str) -> None:
        """Wait until a call of the run has started."""
        await until(lambda: text in self.of(agent))

    def release(self) -> None:
        """Let all held calls end."""
        Path(f"{self.path}{RELEASE}").touch()


@asynccontextmanager
async def tools_of(agent: Agent, mode: str = "auto") -> AsyncIterator[Client]:
    """Connect the SDK's client with the key of a run."""
    headers = {"Authorization": f"Bearer {agent.key}"}
    url = str(agent.http.base_url.join("/gateway/mcp"))
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=150) as opened,
        Client(streamable_http_client(url, http_client=opened), mode=mode, cache=None) as client,
    ):
        yield client


async def code_of(call: Awaitable[Any]) -> str:
    """Return the code in the error of a call."""
    with pytest.raises(MCPError) as refused:
        await call
    return str(refused.value.data["code"])


async def until(is_true: Callable[[], object]) -> None:
    """Wait until another process has made ``is_true()`` true."""
    async with asyncio.timeout(150):
        while not is_true():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.01)


ENCRYPTION_KEY = "k" * 32
