"""Fixtures that need real parts."""

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.database import TestServer, open_server

for name, examples in (("usual", 30), ("thorough", 300)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("usual")
"""A slow machine is no failure; `--hypothesis-profile thorough` tries ten times as much."""


def pytest_collection() -> None:
    """Nothing that is collected becomes garbage: do not look for any meanwhile."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the viewer's tests: the first worker starts with them, and nobody steals them.

    They share a browser and a service, which no other worker then has to start. The long ones
    come last.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is not None)
    items.sort(key=lambda item: "/viewer/" not in item.path.as_posix())


UNTIL = float(os.environ.get("TEST_UNTIL", "inf"))
"""Until when long tests may begin, in seconds since 1970."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what is long where there is no time for it any more."""
    if time.time() > UNTIL and item.get_closest_marker("long"):
        pytest.skip("TEST_UNTIL has passed")


def pytest_collection_finish() -> None:
    """Keep what was collected out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """What is logged in this process is written plainly: pictures of tracebacks take long."""
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestServer]:
    """The Postgres server of this test session; its folder is not one that pytest clears away."""
    with (
        tempfile.TemporaryDirectory(prefix="caseworker-pg-") as folder,
        open_server(Path(folder) / "data", synced=False) as server,
    ):
        yield server


@pytest.fixture
def database_url(postgres: TestServer) -> Iterator[str]:
    """A fresh, migrated database."""
    with postgres.database() as url:
        yield url


@pytest.fixture
def database_folder() -> Iterator[Path]:
    """A folder for a database of a test's own.

    Not below pytest's, which every session that starts closes to other accounts again: run as
    root, the embedded database has an account of its own.
    """
    with tempfile.TemporaryDirectory(prefix="caseworker-pg-") as folder:
        yield Path(folder)
