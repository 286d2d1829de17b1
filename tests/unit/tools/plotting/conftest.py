"""Fixtures of the tests of pictures."""

from collections.abc import AsyncIterator

import pytest_asyncio

from caseworker_cases.tools.plotting.renderer import Renderer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer() -> AsyncIterator[Renderer]:
    """Yield a renderer whose process lives during the tests of a module, on their event loop."""
    renderer = Renderer()
    yield renderer
    await renderer.aclose()
