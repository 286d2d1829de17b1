"""The stores of one process on a fresh database, and a connection that looks past them."""

from collections.abc import AsyncIterator

import pytest

from tests.support.stores import Oracle, Stores, open_oracle, open_stores


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[Stores]:
    """What one process holds of the database."""
    async with open_stores(database_url) as stores:
        yield stores


@pytest.fixture
async def oracle(database_url: str) -> AsyncIterator[Oracle]:
    """A connection of its own."""
    async with open_oracle(database_url) as oracle:
        yield oracle


@pytest.fixture
async def pair(database_url: str) -> AsyncIterator[tuple[Stores, Stores]]:
    """The stores of two processes on one database."""
    async with open_stores(database_url) as one, open_stores(database_url) as other:
        yield one, other
