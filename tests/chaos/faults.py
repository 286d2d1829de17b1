"""What goes wrong in the chaos: faults of processes and of the database, in an order a seed draws.

Each kind is a function that does it, sees that it did happen, and ends it again.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping

from tests.chaos.world import STALE_SECONDS, Slot, World, drawn
from tests.support.processes import ChildFailedError

Fault = Callable[[World, random.Random], Awaitable[bool]]
"""Does it, ends it, and returns whether it was one."""

HOT_WRITES = (b'"claimed"', b'"fence"', b"COMMIT")
"""What only these hold: an acceptance, a write of an owner, the end of a transaction."""
READY = b"Z\x00\x00\x00\x05I"
"""How the server says that all of it is done."""
TERM_SECONDS = 15.0
"""How long a process may take to end that was told to, database or not."""


async def _on_process(
    world: World, chance: random.Random, kind: str, do: Callable[[Slot], Awaitable[None]]
) -> bool:
    """Do something to a process that executes or serves, and replace it if it is gone then."""
    slot = chance.choice(await world.running())
    assert slot.process is not None
    slot.busy, pid, began = True, slot.process.child.pid, time.monotonic()
    try:
        await do(slot)
    finally:
        slot.busy = False
    world.chronicle.add(kind, began, pid=pid)
    if slot.process.child.exit_code is not None:
        slot.close()
        world.replacing.create_task(slot.start())
    return True


async def killed(world: World, chance: random.Random) -> bool:
    """``kill -9``."""

    async def kill(slot: Slot) -> None:
        assert slot.process is not None
        slot.process.child.kill()

    return await _on_process(world, chance, "killed", kill)


async def terminated(world: World, chance: random.Random) -> bool:
    """SIGTERM; it must end in time, with an orderly code, whatever the database does."""

    async def terminate(slot: Slot) -> None:
        assert slot.process is not None
        await _told_to_end(world, slot)

    return await _on_process(world, chance, "terminated", terminate)


async def _told_to_end(world: World, slot: Slot) -> None:
    assert slot.process is not None
    try:
        code = await slot.process.child.terminate(timeout_seconds=TERM_SECONDS)
        problem = "" if code == 0 else f"it ended with {code}"
    except ChildFailedError:
        problem = f"it had not ended after {TERM_SECONDS} s"
        slot.process.child.kill()
    if problem:
        world.problems.append(f"{slot.name} was told to end: {problem}")


def _frozen(kind: str, seconds: float) -> Fault:
    async def freeze(world: World, chance: random.Random) -> bool:
        async def stand_still(slot: Slot) -> None:
            assert slot.process is not None
            slot.process.child.freeze()
            await asyncio.sleep(seconds)
            slot.process.child.thaw()

        return await _on_process(world, chance, kind, stand_still)

    return freeze


async def partitioned(world: World, chance: random.Random) -> bool:
    """One process alone loses the database, and cannot know that the others have not."""

    async def part(slot: Slot) -> None:
        slot.database.refuse()
        slot.database.cut()
        await asyncio.sleep(chance.uniform(0.2, 1.5 * STALE_SECONDS))
        slot.database.refuse(False)
        await asyncio.sleep(0.3)

    return await _on_process(world, chance, "partitioned", part)


async def cut(world: World, chance: random.Random) -> bool:
    """Every connection to the database drops."""
    return sum(slot.database.cut() for slot in world.slots) > 0


async def refused(world: World, chance: random.Random) -> bool:
    """Nobody can connect to the database for a while."""
    world.on_all(lambda proxy: proxy.refuse())
    world.on_all(lambda proxy: proxy.cut())
    await asyncio.sleep(chance.uniform(0.5, 1.5 * STALE_SECONDS))
    world.on_all(lambda proxy: proxy.refuse(False))
    return sum(slot.database.counts.refused for slot in world.slots) > 0


async def silent(world: World, chance: random.Random) -> bool:
    """Connections stay open, and nothing comes through."""
    world.on_all(lambda proxy: proxy.silence())
    await asyncio.sleep(chance.uniform(0.5, 1.5 * STALE_SECONDS))
    world.on_all(lambda proxy: proxy.resume())
    return sum(slot.database.open_connections for slot in world.slots) > 0


async def slow(world: World, chance: random.Random) -> bool:
    """Everything between the service and its database takes up to some hundred milliseconds."""
    seconds = chance.choice((0.02, 0.1, 0.2))
    world.on_all(lambda proxy: proxy.delay(seconds))
    await asyncio.sleep(2)
    world.on_all(lambda proxy: proxy.delay(0))
    return True


async def commits_unanswered(world: World, chance: random.Random) -> bool:
    """The server has done what it was asked, and the connection is gone before it says so."""
    before = _dropped(world)
    for slot in world.slots:
        for request in HOT_WRITES:
            slot.database.lose_answer(request, READY)
    await asyncio.sleep(1.5)
    world.on_all(lambda proxy: proxy.lose_none())
    return _dropped(world) > before


def _dropped(world: World) -> int:
    return sum(slot.database.counts.answers_dropped for slot in world.slots)


async def restarted(world: World, chance: random.Random) -> bool:
    """``pg_ctl -m immediate``: the server crashes, and recovers from its log."""
    before = world.database.server_pid
    await world.database.restart("immediate")
    return world.database.server_pid not in (None, before)


async def read_only(world: World, chance: random.Random) -> bool:
    """The database answers, and takes no writes."""
    happened = await world.database.read_only(True)
    await asyncio.sleep(chance.uniform(0.5, 2 * STALE_SECONDS))
    await world.database.read_only(False)
    return happened


async def disk_full(world: World, chance: random.Random) -> bool:
    """No file of the database can grow; the server may end of it."""
    happened = await world.database.fill_disk()
    await asyncio.sleep(chance.uniform(0.5, 2 * STALE_SECONDS))
    await world.database.empty_disk()
    return happened


async def no_connection_left(world: World, chance: random.Random) -> bool:
    """Somebody else holds every connection that the server has."""
    world.on_all(lambda proxy: proxy.cut())
    async with world.database.exhausted() as refused:
        await asyncio.sleep(chance.uniform(0.5, STALE_SECONDS))
    return refused


OF_PROCESSES: Mapping[str, Fault] = {
    "killed": killed,
    "killed again": killed,
    "terminated": terminated,
    "frozen for a moment": _frozen("frozen for a moment", 0.4 * STALE_SECONDS),
    "frozen for long": _frozen("frozen for long", 2 * STALE_SECONDS),
    "partitioned": partitioned,
}
OF_DATABASE: Mapping[str, Fault] = {
    "cut": cut,
    "refused": refused,
    "silent": silent,
    "slow": slow,
    "commits unanswered": commits_unanswered,
    "restarted": restarted,
    "read only": read_only,
    "disk full": disk_full,
    "no connection left": no_connection_left,
}


async def storm(world: World, seconds: float) -> None:
    """Do faults of both sorts side by side until the time is up, each kind at least once."""
    until = time.monotonic() + seconds
    async with world.replacing, asyncio.TaskGroup() as group:
        group.create_task(_in_turn(world, OF_PROCESSES, "processes", until))
        group.create_task(_in_turn(world, OF_DATABASE, "database", until))


async def _in_turn(world: World, faults: Mapping[str, Fault], sort: str, until: float) -> None:
    chance = drawn(world.seed, sort)
    done: set[str] = set()
    while time.monotonic() < until or done != set(faults):
        deck = sorted(faults)
        chance.shuffle(deck)
        for kind in deck:
            if time.monotonic() >= until and kind in done:
                continue
            await asyncio.sleep(chance.uniform(0.1, 1.0))
            began = time.monotonic()
            happened = await faults[kind](world, chance)
            world.chronicle.happened[kind] += happened
            if sort == "database":
                world.chronicle.add(kind, began)
            done.add(kind)


async def healed(world: World) -> None:
    """End every fault; the database is there again."""
    for slot in world.slots:
        for proxy in (slot.database, slot.requests, slot.streams):
            proxy.heal()
    await world.database.empty_disk()
    await world.provider.release()


async def ended_in_order(world: World) -> None:
    """Tell every process to end."""
    async with asyncio.TaskGroup() as group:
        for slot in world.slots:
            if slot.gave_up:
                world.problems.append(f"{slot.name} had ended by itself")
            else:
                group.create_task(_told_to_end(world, slot))
