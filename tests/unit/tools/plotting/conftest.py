"""What the tests of the pictures share."""

from collections.abc import Iterator

import pytest

from app.tools.plotting.renderer import Renderer


@pytest.fixture(scope="package")
def renderer() -> Iterator[Renderer]:
    """A renderer whose process lives as long as the tests of this package."""
    renderer = Renderer()
    yield renderer
    renderer.close()
