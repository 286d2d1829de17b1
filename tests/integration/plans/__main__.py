"""Write ``statements.toml``: ``python -m tests.integration.plans``."""

import asyncio
import tempfile
from pathlib import Path

import psycopg

from tests.integration.plans.entries import STATEMENTS, names_of, written
from tests.integration.plans.probe import Probe
from tests.integration.plans.scenario import play, scenario
from tests.support.database import open_server
from tests.support.fake_provider.client import FakeProvider


async def _sent_on(url: str) -> str:
    probe = Probe()
    with psycopg.connect(url, autocommit=True) as connection:
        names = names_of(connection)
    with probe.watching():
        async with FakeProvider() as provider, scenario(url, provider) as told:
            await play(told, probe, "small")
    return written(probe.sent, names)


def _main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="caseworker-pg-") as folder,
        open_server(Path(folder) / "data", synced=False) as server,
        server.database() as url,
    ):
        STATEMENTS.write_text(asyncio.run(_sent_on(url)))


if __name__ == "__main__":
    _main()
