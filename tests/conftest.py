"""Fixtures that need real parts."""

import fcntl
import gc
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

# Failed assertions in the modules that tests share show their values, as those in tests do.
pytest.register_assert_rewrite(
    *(f"tests.{folder}" for folder in ("acceptance", "contract", "integration", "property")),
    *("tests.support", "tests.unit", "tests.viewer"),
)

from tests.support.api import Api, client_of  # noqa: E402 - after the call above
from tests.support.database import TestServer, delete_rows, open_server  # noqa: E402 - after the call above
from tests.support.summary import Summary  # noqa: E402 - after the call above

settings.register_profile(
    "fast",
    derandomize=True,
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "proofs", settings.get_profile("fast"), derandomize=False, max_examples=300, print_blob=True
)
settings.load_profile("fast")


def pytest_configure(config: pytest.Config) -> None:
    """Report what a run proved and cost."""
    config.pluginmanager.register(Summary(), "summary")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, of which there is none, and compile modules once.

    In a new environment compiling takes two thirds of the CPU seconds of a collection. The xdist
    workers start together: the first one collects and compiles, then all others do it at once.
    """
    gc.disable()
    with (Path(sys.prefix) / ".collecting").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the viewer's tests: the first worker starts with them, and no other steals them.

    They share a browser and a service, which no other worker then has to start.
    """
    items.sort(key=lambda item: "/viewer/" not in item.path.as_posix())


def pytest_collection_finish() -> None:
    """Keep what was collected out of every later collection of garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """What is logged in this process is written plainly: pictures of tracebacks take long."""
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])


@pytest.fixture
def collect_garbage() -> Callable[[], int]:
    """Collects the garbage of this test: that of all tests before would take half a second."""
    gc.freeze()
    return gc.collect


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


@pytest.fixture(scope="module")
def module_database_url(postgres: TestServer) -> Iterator[str]:
    """A migrated database for a whole module."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="module")
def module_database(module_database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to the database of the module, past the service."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_api(module_database_url: str) -> AsyncIterator[Api]:
    """A process that serves requests; the tests of a module share its connections."""
    api = Api(module_database_url)
    async with api.opened():
        yield api


@pytest.fixture
def api(open_api: Api, module_database: psycopg.Connection) -> Api:
    """The process of this module, on a database without rows."""
    delete_rows(module_database)
    return open_api


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the same machine, without a credential."""
    async with client_of(api.app()) as client:
        yield client


@pytest.fixture
def database_folder() -> Iterator[Path]:
    """A folder for a database of a test's own.

    Not below pytest's, which every session that starts closes to other accounts again: run as
    root, the embedded database has an account of its own.
    """
    with tempfile.TemporaryDirectory(prefix="caseworker-pg-") as folder:
        yield Path(folder)
