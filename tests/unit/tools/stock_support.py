"""Shared parts of the stock tools' tests: the packaged prices, read without the product."""

import csv
import gzip
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import caseworker_cases.stocks
from caseworker.tools.artifacts import ArtifactTooLargeError, SavedArtifact, artifact_name
from caseworker.tools.ports import ToolContext
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.stocks.prices import PriceSeries
from caseworker_cases.tools.plotting.composing import Picture
from caseworker_cases.tools.plotting.renderer import Renderer

DATA = Path(caseworker_cases.stocks.__path__[0], "data", "stocks.csv.gz")
PRICES = PackagedPrices()


@cache
def _all_rows() -> tuple[dict[str, str], ...]:
    with gzip.open(DATA, "rt", encoding="ascii") as file:
        return tuple(csv.DictReader(file))


def csv_rows(symbol: str, start: str = "0", end: str = "9") -> list[dict[str, str]]:
    """Return the rows of the packaged file, read without product code."""
    return [row for row in _all_rows() if row["Ticker"] == symbol and start <= row["Date"] <= end]


def closes(symbol: str, start: str = "0", end: str = "9") -> list[float]:
    """Return the adjusted closes of the packaged file."""
    return [float(row["Adj Close"]) for row in csv_rows(symbol, start, end)]


@dataclass
class MemorySink:
    """A sink that stores files in memory and equal bytes once."""

    max_bytes: int = 5_000_000
    files: dict[str, bytes] = field(default_factory=dict)

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Store a file; see ArtifactSink."""
        if len(data) > self.max_bytes:
            raise ArtifactTooLargeError(self.max_bytes)
        known = [name for name, kept in self.files.items() if kept == data]
        name = known[0] if known else artifact_name(name_stem, len(self.files) + 1, media_type)
        self.files[name] = data
        return SavedArtifact(
            name=name,
            media_type=media_type,
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )


class BlankRenderer(Renderer):
    """A renderer without a process, for tests that ignore the picture."""

    async def render(self, picture: Picture, max_bytes: int) -> bytes:
        """Return fixed bytes."""
        return f"{picture.kind} of {len(picture.days)} days".encode()


class BrokenSource:
    """A live source whose connection fails with a key in the message."""

    external = True

    async def daily(self, symbol: str, start: date | None, end: date | None) -> PriceSeries:
        """Fail like a library."""
        raise OSError("connect to https://prices.example/?key=canary-key failed")


def context(sink: Any = None) -> ToolContext:
    """Return the context of a run."""
    return ToolContext(
        run_id="run-1",
        timezone="UTC",
        now=datetime(2025, 1, 15, tzinfo=UTC),
        artifacts=sink,
    )
