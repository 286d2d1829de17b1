"""A user of the viewer in a browser."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

from playwright.async_api import Browser, ConsoleMessage, Locator, Page

from tests.support.npm_packages import installed_packages

KEY = "k" * 64
Theme = Literal["light", "dark"]

_NPM = Path(__file__).parents[1] / "support" / "npm_axe"
_WAIT_MS = 300_000
_VIOLATIONS = """async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, nodes }) =>
        `${id}: ${nodes.slice(0, 3).map((one) => one.html).join(" | ")}`);
}"""


class Reader:
    """A browser page and the errors in its console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(_WAIT_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, browser: Browser, url: str, theme: Theme = "light", width: int = 1280
    ) -> AsyncIterator[Self]:
        """Yield a reader without a key."""
        size: Any = {"width": width, "height": 900}
        context = await browser.new_context(color_scheme=theme, viewport=size)
        yield cls(await context.new_page(), url.rstrip("/"))
        await context.close()

    @classmethod
    @asynccontextmanager
    async def signed_in(
        cls,
        browser: Browser,
        url: str,
        theme: Theme = "light",
        width: int = 1280,
        key: str = KEY,
    ) -> AsyncIterator[Self]:
        """Yield a reader whose tab has the key."""
        async with cls.opened(browser, url, theme, width) as reader:
            script = f"sessionStorage.setItem('caseworker.key', '{key}')"
            await reader.page.add_init_script(script)
            yield reader

    async def open(self, path: str) -> None:
        """Open a page of the viewer, and wait for its content."""
        await self.page.goto(self.url + path)
        await self.see("main h1")
        await self.picture(path)

    async def see(self, selector: str) -> Locator:
        """Return the first matching element once it is visible."""
        found = self.page.locator(selector).first
        await found.wait_for(state="visible")
        return found

    async def text(self, selector: str = "main") -> str:
        """Return the text of an element."""
        return await (await self.see(selector)).inner_text()

    async def barriers(self) -> list[str]:
        """Return the accessibility violations that axe-core finds."""
        axe = installed_packages(_NPM) / "axe-core" / "axe.min.js"
        await self.page.evaluate(axe.read_text(encoding="utf-8"))
        found: list[str] = await self.page.evaluate(_VIOLATIONS)
        return found

    async def picture(self, name: str) -> None:
        """Save a picture of the page if ``PICTURES`` names a folder."""
        if folder := os.environ.get("PICTURES"):
            file = name.strip("/").replace("/", "-").replace("?", "-") or "page"
            await self.page.screenshot(path=Path(folder) / f"{file}.png")

    def _note(self, message: ConsoleMessage) -> None:
        refused = any(f"a status of {status} " in message.text for status in (401, 422))
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(message.text)
