"""Open WebUI, a chat front end of another project, and its user in a browser."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

from playwright.async_api import Browser, Locator, Page

from bench.environments import peer_environment
from tests.support.peer_servers import served

PACKAGE: Final = "open-webui==0.12.4"
HEAVY: Final = ("torch", "triton")
"""Dependencies of its local models, of several gigabytes, which a chat does not need."""
WAIT_MS: Final = 120_000


@asynccontextmanager
async def open_webui(base_url: str, folder: Path) -> AsyncIterator[str]:
    """Run Open WebUI without users, on the models of an endpoint; yield its address."""
    environment = await peer_environment(PACKAGE, without=HEAVY)
    settings = {
        "DATA_DIR": str(folder),
        "OPENAI_API_BASE_URL": base_url,
        "OPENAI_API_KEY": "unused",
        "DEFAULT_MODEL_METADATA": json.dumps({"capabilities": {"builtin_tools": False}}),
        "FROM_INIT_PY": "true",
        "WEBUI_AUTH": "false",
        "WEBUI_SECRET_KEY": "of-a-test",
        "OFFLINE_MODE": "true",
        "ENABLE_OLLAMA_API": "false",
        "RAG_EMBEDDING_ENGINE": "openai",
    }
    app, path = "open_webui.main:app", "/health"
    async with served(environment, app, path, settings=settings, folder=folder) as url:
        yield url


class Chatter:
    """A person who chats in a browser."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.set_default_timeout(WAIT_MS)

    @classmethod
    @asynccontextmanager
    async def opened(cls, browser: Browser, url: str) -> AsyncIterator[Self]:
        """Yield a person who has opened the front end and closed its news."""
        context = await browser.new_context(viewport={"width": 1200, "height": 800})
        chatter = cls(await context.new_page())
        await chatter.page.goto(url)
        await chatter.page.get_by_text("Okay, Let's Go!").click()
        yield chatter
        await context.close()

    async def new_chat(self) -> None:
        """Leave the chat for an empty one."""
        await self.page.get_by_label("New Chat").first.click()

    async def models(self) -> list[str]:
        """Open the list of models and return it."""
        await self.page.locator('button[id^="model-selector"]').first.click()
        await self._models.first.wait_for()
        return [text.strip() for text in await self._models.all_inner_texts()]

    async def choose(self, model: str) -> None:
        """Choose a model in the open list."""
        await self._models.filter(has_text=model).first.click()

    async def say(self, text: str) -> None:
        """Send a message."""
        await self.page.locator("#chat-input").click()
        await self.page.keyboard.type(text)
        await self.page.keyboard.press("Enter")

    async def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.page.get_by_text(text).first.wait_for()

    async def stop(self) -> None:
        """Press the button that stops the answer."""
        await self.page.get_by_role("button", name="Stop").click()

    @property
    def _models(self) -> Locator:
        return self.page.get_by_role("option")
