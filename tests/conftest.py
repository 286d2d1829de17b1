"""Fixtures that need real parts."""

from collections.abc import Iterator

import pytest

from tests.support.database import TestServer, open_server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """The Postgres server of this test session."""
    with open_server(tmp_path_factory.mktemp("pg") / "data") as server:
        yield server


@pytest.fixture
def database_url(postgres: TestServer) -> Iterator[str]:
    """A fresh, migrated database."""
    with postgres.database() as url:
        yield url
