"""What the tests of the pictures share."""

from collections.abc import AsyncIterator

import pytest_asyncio

from caseworker_cases.tools.plotting.renderer import Renderer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer() -> AsyncIterator[Renderer]:
    """A renderer whose process lives as long as the tests of a module, on their loop."""
    renderer = Renderer()
    yield renderer
    await renderer.aclose()
