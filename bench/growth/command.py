"""``python -m bench growth``: finds routes and loops that slow down as the number of runs grows."""

import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer

from bench.growth import loops, restored
from bench.growth.fill import BOOTSTRAP, LARGE, SMALL, filled_database
from bench.growth.measuring import Line, measure
from bench.growth.routes import Case, Place, reads, samples, unmeasured, writes
from bench.growth.table import summary, table
from bench.machine import this_machine
from bench.servers import asking, models, service
from caseworker.platform.postgres.embedded import EmbeddedPostgres

SIZES: Final = (10_000, 1_000_000)
QUICK: Final = (2_000, 50_000)
REPEATS: Final = 2


@dataclass(frozen=True, slots=True)
class Filled:
    """A filled database."""

    size: int
    url: str


def main(
    sizes: Annotated[str, typer.Option(help="Numbers of runs, for example 10000,1000000.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help=f"Sizes {QUICK}, shorter chats.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the databases here, and use them again.")
    ] = None,
    parts: Annotated[
        str, typer.Option(help="What to measure: routes, loops, chats, or several of them.")
    ] = "routes,loops,chats",
    only: Annotated[
        str, typer.Option(help="Only routes whose title contains a match of this pattern.")
    ] = "",
    turns: Annotated[int, typer.Option(help="Turns of a chat.")] = 500,
    check: Annotated[
        bool,
        typer.Option("--check", help="Send each request three times, only to find failing ones."),
    ] = False,
    without_statistics: Annotated[
        bool,
        typer.Option("--restored", help="Compare a database without statistics with itself."),
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
) -> None:
    """Fill two databases, measure every route and loop on both, and list those that are not flat.

    Exits with 1 if a request fails, or if a line takes more than twice as long on the large
    database.
    """
    chosen = tuple(map(int, sizes.split(","))) if sizes else (QUICK if quick else SIZES)
    print({**this_machine()}, file=sys.stderr)
    with ExitStack() as stack:
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="growth-")))
        home.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(EmbeddedPostgres(home / "data")).start()
        filled = [asyncio.run(_filled(server, size)) for size in chosen]
        if without_statistics:
            lines = asyncio.run(_restored(filled[-1], only))
            heads = ("after ANALYZE", "without statistics")
        else:
            effort = Effort(tuple(parts.split(",")), only, 100 if quick else turns, brief=check)
            lines = asyncio.run(_compare(filled[0], filled[-1], effort))
            heads = (f"{filled[0].size:,}", f"{filled[-1].size:,}")
    text = f"{table(lines, heads)}\n\n{summary(lines)}\n"
    print(text)
    if output:
        output.write_text(text)
    if any(line.failed if check else not line.is_flat for line in lines):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Effort:
    """What to measure."""

    parts: Sequence[str]
    only: str
    turns: int
    brief: bool
    """Whether each request is sent only three times."""


async def _filled(server: str, size: int) -> Filled:
    return Filled(size, await filled_database(server, f"growth_{size}", size))


async def _compare(small: Filled, large: Filled, effort: Effort) -> list[Line]:
    lines: list[Line] = []
    sides = [small.url, large.url]
    if "loops" in effort.parts:
        lines += await loops.start(sides, brief=effort.brief)
    if "routes" in effort.parts:
        lines += await _routes(sides, effort)
    if "loops" in effort.parts:
        async with _both(sides) as both:
            lines += await loops.with_service(
                sides, [each[LARGE] for each in both], brief=effort.brief
            )
        lines += await loops.without_service(sides, brief=effort.brief)
    if "chats" in effort.parts:
        async with serving(large.url) as side:
            lines += [await loops.chat(side[tenant], effort.turns) for tenant in (LARGE, SMALL)]
    return lines


async def _routes(sides: Sequence[str], effort: Effort) -> list[Line]:
    """Measure all routes; those that are not flat are measured again, and the better line counts.

    On a busy machine, a single measurement of hundreds of routes has outliers.
    """
    async with _both(sides) as both:
        cases = await _cases(both[0][LARGE], effort.only)
        lines = await measure(cases, *both, brief=effort.brief)
    for _ in range(0 if effort.brief else REPEATS):
        titles = {line.title for line in lines if not line.is_flat and not line.failed}
        again = [case for case in cases if titles & set(case.titles)]
        if not again:
            break
        async with _both(sides) as both:
            repeated = {line.title: line for line in await measure(again, *both)}
        lines = [better(line, repeated.get(line.title)) for line in lines]
    return lines


def better(line: Line, repeated: Line | None) -> Line:
    """Return the repeated line if it is flat or failed; a failure is never replaced."""
    if repeated is None or line.is_flat or line.failed:
        return line
    return repeated if repeated.failed or (repeated.sides and repeated.is_flat) else line


@asynccontextmanager
async def _both(sides: Sequence[str]) -> AsyncIterator[list[dict[str, Place]]]:
    """Run a service on each database."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(url)) for url in sides]


async def _restored(filled: Filled, only: str) -> list[Line]:
    async def measured() -> list[Line]:
        async with serving(filled.url) as side:
            lines = await measure(await _cases(side[LARGE], only), side, side)
        return lines if only else lines + await loops.without_service([filled.url, filled.url])

    return await restored.compare(filled.url, measured)


async def _cases(place: Place, only: str) -> list[Case]:
    document: dict[str, Any] = openapi(place.address)
    cases = [*reads(document), *writes()]
    for missing in unmeasured(document, cases):
        print(f"not measured: {missing}", file=sys.stderr)
    return [case for case in cases if re.search(only, case.title)]


def openapi(address: str) -> dict[str, Any]:
    """Return the OpenAPI document of a service."""
    headers = {"authorization": f"Bearer {BOOTSTRAP}"}
    document: dict[str, Any] = httpx.get(f"{address}/openapi.json", headers=headers).json()
    return document


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[dict[str, Place]]:
    """Run the service on a filled database; yield the place of each measured tenant."""
    async with models() as asked:
        settings = {
            **asking(asked),
            "AUTH_BOOTSTRAP_KEY": BOOTSTRAP,
            "RETENTION_SWEEP_SECONDS": "86400",
            # The largest tenant of a million runs has more than the defaults permit.
            "ADMISSION_MAX_SCHEDULES": "100000",
            "QUOTAS_MAX_DEFINITIONS": "100000",
        }
        async with service(url, settings=settings) as address:
            yield places(url, address)


def places(url: str, address: str) -> dict[str, Place]:
    """Return the places of both measured tenants of a service, with new keys."""
    return {
        tenant: Place(
            url=url,
            address=address,
            tenant=tenant,
            key=_key(address, tenant),
            operator=BOOTSTRAP,
            samples=samples(url, tenant),
        )
        for tenant in (LARGE, SMALL)
    }


def _key(address: str, tenant: str) -> str:
    headers = {"authorization": f"Bearer {BOOTSTRAP}"}
    body = {"name": "bench", "tenant": tenant, "scopes": ["run", "admin"]}
    created = httpx.post(f"{address}/keys", json=body, headers=headers).raise_for_status()
    return str(created.json()["key"])
