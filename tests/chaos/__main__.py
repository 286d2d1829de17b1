"""Check the service's promises while everything fails: ``python -m tests.chaos --seconds 600``.

Prints the promises, how often each was checked, and each violation. The exit code is 1 if a
promise was broken, 3 if a promise could not be checked, and 2 if all promises held but a fault
did not occur. With ``--broken`` it is 1 only if a broken promise depends on the removed safeguard.
``--broken all`` runs every variant, and the exit code is 0 if each one was detected.
"""

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tests.chaos.broken import VARIANTS
from tests.chaos.customers import Customers
from tests.chaos.disks import own_mounts
from tests.chaos.evidence import Evidence
from tests.chaos.faults import OF_DATABASE, OF_PROCESSES, ended_in_order, healed, storm
from tests.chaos.findings import Findings
from tests.chaos.watch import Watch
from tests.chaos.world import ChaosWorld

BROKEN, RARE, UNCHECKED = 1, 2, 3
"""Exit codes: a promise was broken, a fault did not occur, a promise could not be checked."""
SETTLE_SECONDS = 40.0
"""The time for all runs to end after the storm, in seconds; a run lost twice waits for 5 s."""
BROKEN_SETTLE_SECONDS = 12.0
"""The same for a broken variant, whose runs may never end."""


async def chaos(world: ChaosWorld, seconds: float, lanes: int, settle_seconds: float) -> Findings:
    """Run customers through a storm, end all faults, and check the promises."""
    times = [time.monotonic()]
    async with world:
        times.append(time.monotonic())
        customers, watch = Customers(world, lanes=lanes), Watch(world)
        looking = asyncio.create_task(watch.look_on())
        working = asyncio.create_task(customers.work())
        await storm(world, seconds)
        times.append(time.monotonic())
        customers.close()
        await healed(world)
        with suppress(TimeoutError):
            async with asyncio.timeout(settle_seconds):
                await working
        times.append(time.monotonic())
        looking.cancel()
        await ended_in_order(world)
        times.append(time.monotonic())
        parts = ("to start", "of storm", "to settle", "to end")
        took = [later - earlier for earlier, later in pairwise(times)]
        evidence = await Evidence.gathered(world, customers, watch)
        return Findings(evidence, dict(zip(parts, took, strict=True)))


def _main() -> int:
    kinds = (*OF_PROCESSES, *OF_DATABASE)
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--lanes", type=int, default=12, help="customers at work at once")
    parser.add_argument("--faults", nargs="+", choices=kinds, default=(), help="those alone")
    parser.add_argument("--broken", choices=("all", *VARIANTS), help="see tests/chaos/broken.py")
    parser.add_argument("--keep", type=Path, help="the folder for logs")
    arguments = parser.parse_args()
    if arguments.broken == "all":
        return _every_variant(arguments.seed)
    variant = VARIANTS.get(arguments.broken)
    seconds = arguments.seconds or (variant.seconds if variant else 60)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="caseworker-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"chaos: seed {arguments.seed}, {seconds:g} s", flush=True)  # noqa: T201
    if variant:
        variant.apply()  # has no effect here, but fails if it no longer applies
    world = ChaosWorld(
        arguments.seed,
        folder,
        faults=arguments.faults or (variant.faults if variant else ()),
        broken=arguments.broken,
        no_disks=own_mounts(),
    )
    settle_seconds = BROKEN_SETTLE_SECONDS if variant else SETTLE_SECONDS
    findings = asyncio.run(chaos(world, seconds, arguments.lanes, settle_seconds))
    chronicle = sorted(world.chronicle.intervals, key=lambda one: one.began)
    (folder / "chronicle.txt").write_text("\n".join(map(str, chronicle)))
    print(findings.table())  # noqa: T201
    broken = sorted(findings.broken_rows, key=int)
    if variant:
        print(f"{arguments.broken}: rows {', '.join(broken)} are broken")  # noqa: T201
        return BROKEN if variant.rows.intersection(broken) else RARE
    if broken:
        print(f"logs: {folder}")  # noqa: T201
        return BROKEN
    if arguments.keep is None:
        shutil.rmtree(folder)
    return _proof(findings)


def _proof(findings: Findings) -> int:
    """Print missing faults and unchecked promises, and return the exit code."""
    if findings.absent:
        print(f"This did not happen: {', '.join(findings.absent)}")  # noqa: T201
    if findings.unchecked:
        print(f"It proves nothing of this: {', '.join(findings.unchecked)}")  # noqa: T201
    return UNCHECKED if findings.unchecked else RARE if findings.absent else 0


def _every_variant(seed: int) -> int:
    """Run one storm per variant; print a table of the rows that detected it."""
    lines, missed = ["| variant | rows that saw it |", "|---|---|"], 0
    for name, variant in VARIANTS.items():
        command = (sys.executable, "-m", "tests.chaos", "--broken", name, "--seed", str(seed))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout.splitlines()
        told = next((line for line in said if line.startswith(f"{name}: rows ")), "it broke off")
        rows = told.removeprefix(f"{name}: rows ").removesuffix(" are broken")
        is_seen = bool(variant.rows.intersection(rows.split(", ")))
        missed += not is_seen
        lines.append(f"| {name} | {rows} |")
        seen = "seen" if is_seen else f"not seen by {', '.join(sorted(variant.rows, key=int))}"
        print(f"{name}: {seen} ({rows})", flush=True)  # noqa: T201
    print("\n".join(lines))  # noqa: T201
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(_main())
