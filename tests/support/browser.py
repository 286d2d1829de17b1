"""A real browser, if this machine has one."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

_NAMES = (
    *("chromium-headless-shell", "chromium", "chromium-browser"),
    *("google-chrome", "google-chrome-stable"),
)
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
_START_MS = 600_000


def program() -> str:
    """Return the path of a browser; skip the test if none is installed.

    ``BROWSER_PROGRAM`` names a browser with a different name.
    """
    found = os.environ.get("BROWSER_PROGRAM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"no browser is installed here: none of {', '.join(_NAMES)}")
    return found


@asynccontextmanager
async def opened_browser() -> AsyncIterator[Browser]:
    """Return a running browser."""
    path = program()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=_FLAGS, timeout=_START_MS
        )
        yield browser
        await browser.close()
