"""The faults of the chaos, of processes and of the database, in an order drawn from a seed.

Each fault is a function that starts it, ends it, and returns whether it occurred. A promise breaks
rarely by the fault alone, but by its moment. Therefore processes are killed and frozen while they
have a run with recorded calls, or a call that must not be repeated.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tests.chaos.world import HEARTBEAT_SECONDS, STALE_SECONDS, ChaosWorld, Slot, drawn
from tests.support.fault_proxy import FaultProxy
from tests.support.processes import ChildFailedError

Fault = Callable[[ChaosWorld, random.Random], Awaitable[bool]]

HOT_WRITES = (b'"claimed"', b'"fence"', b"COMMIT")
"""Text that occurs only in these statements: an acceptance, an owner's write, a commit."""
READY = b"Z\x00\x00\x00\x05I"
"""The server's message that a statement has finished outside a transaction."""
LOST = "answers_dropped"
DISK_FULL, WAL_DISK_FULL = "disk full", "WAL disk full"
AWAY_SECONDS = 1.3 * STALE_SECONDS
MOMENT_SECONDS = 4.0
"""How long to wait for the moment of a fault, in seconds."""
TERM_SECONDS = 15.0
"""How long a process may take to exit after SIGTERM, with or without a database, in seconds."""

_OWNERS = """
SELECT worker_id FROM runs WHERE status = 'running' AND cancel_requested_at IS NULL AND EXISTS (
    SELECT FROM journal j WHERE j.tenant_id = runs.tenant_id AND j.run_id = runs.run_id AND {})
ORDER BY claimed_at DESC
"""
ANY_MOMENT = ""
BETWEEN_TURNS = _OWNERS.format("j.outcome = 'result' AND call_key LIKE 'a%/turn/%'")
BETWEEN_CALLS = _OWNERS.format("j.status = 'success' AND node->>'kind' = 'llm'")
IN_A_CALL = _OWNERS.format("j.status IN ('created', 'running') AND node->>'name' = 'once'")
"""Selects the workers that have such a run."""


def _of_process(
    kind: str,
    moment: str,
    do: Callable[[ChaosWorld, Slot, random.Random], Awaitable[bool]],
) -> Fault:
    """Return a fault of a process, which is chosen at its moment and replaced if it has exited."""

    async def fault(world: ChaosWorld, chance: random.Random) -> bool:
        slot = await _target(world, chance, moment)
        if slot is None:
            return False
        slot.busy, child, pid, began = True, slot.child, slot.pid, time.monotonic()
        try:
            return await do(world, slot, chance)
        finally:
            slot.busy = False
            world.chronicle.add(kind, began, pid=pid)
            if child.exit_code is not None:
                slot.close()
                world.replacing.create_task(slot.start())

    return fault


def _of_database(kind: str, do: Fault) -> Fault:
    """Return a fault that affects all processes."""

    async def fault(world: ChaosWorld, chance: random.Random) -> bool:
        async with world.at_rest:
            began = time.monotonic()
            happened = await do(world, chance)
            world.chronicle.add(kind, began)
            return happened

    return fault


async def _target(world: ChaosWorld, chance: random.Random, moment: str) -> Slot | None:
    """Return a process at its moment, or None; other processes can recover its runs."""
    running = await world.running(len(world.slots) - 1)
    until = time.monotonic() + MOMENT_SECONDS
    while moment and time.monotonic() < until:
        for (worker_id,) in await world.database.asked(moment):
            for slot in running:
                if slot.up.is_set() and slot.pid == int(worker_id.rsplit("-", 2)[1]):
                    return slot
        await asyncio.sleep(0.02)
    return None if moment else chance.choice(running)


async def _kill(world: ChaosWorld, slot: Slot, chance: random.Random) -> bool:
    """Kill the process with ``kill -9``."""
    slot.child.kill()
    return True


async def _terminate(world: ChaosWorld, slot: Slot, chance: random.Random) -> bool:
    """Send SIGTERM; the process must exit in time with a regular code."""
    try:
        code = await slot.child.terminate(timeout_seconds=TERM_SECONDS)
        problem = None if code == 0 else f"it ended with {code}"
    except ChildFailedError:
        problem = f"it had not ended after {TERM_SECONDS} s"
        slot.child.kill()
    world.look("ends", problem and f"{slot.name} was told to end: {problem}")
    return True


async def _freeze(world: ChaosWorld, slot: Slot, chance: random.Random) -> bool:
    """Send SIGSTOP for a time too short for other processes to recover its runs."""
    slot.child.freeze()
    await asyncio.sleep(0.4 * STALE_SECONDS)
    slot.child.thaw()
    return True


async def _freeze_until_taken_over(world: ChaosWorld, slot: Slot, chance: random.Random) -> bool:
    """Freeze a process until another one executes one of its runs, then resume it."""
    async with world.at_rest:  # an outage of the database would extend the timeout
        return await _frozen_until_taken_over(world, slot)


async def _frozen_until_taken_over(world: ChaosWorld, slot: Slot) -> bool:
    own = f"worker_id LIKE '%-{slot.pid}-%'"
    owned = await world.database.asked(f"SELECT run_id FROM runs WHERE {own}")  # noqa: S608
    if not owned:
        return False
    names = ",".join(f"'{run_id}'" for (run_id,) in owned)
    slot.child.freeze()
    until, taken = time.monotonic() + 4 * STALE_SECONDS, False
    while not taken and time.monotonic() < until:
        elsewhere = f"run_id IN ({names}) AND status = 'running' AND NOT {own}"
        taken = bool(await world.database.asked(f"SELECT 1 FROM runs WHERE {elsewhere}"))  # noqa: S608
        await asyncio.sleep(0.02)
    slot.child.thaw()
    return taken


async def _part(world: ChaosWorld, slot: Slot, chance: random.Random) -> bool:
    """Cut off a single process from the database."""
    slot.database.refuse()
    slot.database.cut()
    await asyncio.sleep(chance.uniform(0.2, 1.5 * STALE_SECONDS))
    slot.database.refuse(False)
    await asyncio.sleep(0.3)
    return True


def _for_a_while(
    begin: Callable[[FaultProxy], object],
    end: Callable[[FaultProxy], object],
    *seconds: float,
    counted: str = "",
) -> Fault:
    """Return a fault of all connections that lasts between the given numbers of seconds.

    It occurred if ``counted``, a counter of the proxies, has grown, or if connections were open.
    """

    def harm(world: ChaosWorld) -> int:
        proxies = [slot.database for slot in world.slots]
        return sum(getattr(each.counts, counted, each.open_connections) for each in proxies)

    async def fault(world: ChaosWorld, chance: random.Random) -> bool:
        before = harm(world) if counted else 0
        world.on_all(begin)
        await asyncio.sleep(chance.uniform(*seconds))
        happened = harm(world) > before
        world.on_all(end)
        return happened

    return fault


def _refuse(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.cut()


def _leave_unanswered(proxy: FaultProxy) -> None:
    """Close the connection after the server has executed the request, before its answer."""
    for request in HOT_WRITES:
        proxy.lose_answer(request, READY)


def _deafen(proxy: FaultProxy) -> None:
    """Break only the connections that listen for notifications."""
    proxy.cut()
    for _ in range(30):
        proxy.lose_answer(b"LISTEN", b"LISTEN")


async def _hear_nothing(world: ChaosWorld, chance: random.Random) -> bool:
    """Suppress notifications while customers cancel running runs."""
    world.deaf.set()
    try:
        return await _NOTHING_HEARD(world, chance)
    finally:
        world.deaf.clear()


_NOTHING_HEARD = _for_a_while(_deafen, FaultProxy.lose_none, 3, 3, counted=LOST)


async def _read_only(world: ChaosWorld, chance: random.Random) -> bool:
    """Refuse writes until all processes have missed their heartbeats for the stale time.

    This fault runs in turn with those of processes, because all processes must be running.
    """
    await world.running(len(world.slots))
    async with world.at_rest:
        began = time.monotonic()
        happened = await world.database.read_only(True)
        await asyncio.sleep(chance.uniform(1.6, 2) * STALE_SECONDS)
        await world.database.read_only(False)
        world.chronicle.add("read only", began)
        await asyncio.sleep(2 * HEARTBEAT_SECONDS)  # no other fault may hide the result
    return happened


async def _exhaust(world: ChaosWorld, chance: random.Random) -> bool:
    """Let other clients take all connections of the server."""
    return await world.database.exhaust(seconds=chance.uniform(1, 3))


async def _fill_data(world: ChaosWorld, chance: random.Random) -> bool:
    """Allow reads and updates in place, but no growth of the data."""
    return await world.database.fill_data(seconds=chance.uniform(1.5, 3))


async def _fill_wal(world: ChaosWorld, chance: random.Random) -> bool:
    """Let the server crash; it cannot restart without disk space."""
    return await world.database.fill_wal(seconds=chance.uniform(0.5, 2))


OF_PROCESSES: Mapping[str, Fault] = {
    kind: _of_process(kind, moment, do)
    for kind, moment, do in (
        ("killed between turns", BETWEEN_TURNS, _kill),
        ("killed in a call", IN_A_CALL, _kill),
        ("terminated", ANY_MOMENT, _terminate),
        ("frozen for a moment", ANY_MOMENT, _freeze),
        ("frozen until taken over", BETWEEN_CALLS, _freeze_until_taken_over),
        ("partitioned", BETWEEN_CALLS, _part),
    )
} | {"read only": _read_only}
OF_DATABASE: Mapping[str, Fault] = {
    kind: _of_database(kind, do)
    for kind, do in (
        ("cut", _for_a_while(FaultProxy.cut, FaultProxy.lose_none, 0, 0.1, counted="cut")),
        ("refused", _for_a_while(_refuse, FaultProxy.heal, 0.5, AWAY_SECONDS, counted="refused")),
        ("silent", _for_a_while(FaultProxy.silence, FaultProxy.resume, 0.5, AWAY_SECONDS)),
        ("slow", _for_a_while(lambda proxy: proxy.delay(0.15), lambda proxy: proxy.delay(0), 1, 2)),
        (
            "commits unanswered",
            _for_a_while(_leave_unanswered, FaultProxy.lose_none, 1, 2, counted=LOST),
        ),
        ("nothing heard", _hear_nothing),
        ("postmaster killed", lambda world, _: world.database.kill()),
        ("backends terminated", lambda world, _: world.database.terminate_backends()),
        ("connections exhausted", _exhaust),
        (DISK_FULL, _fill_data),
        (WAL_DISK_FULL, _fill_wal),
    )
}


async def storm(world: ChaosWorld, seconds: float) -> None:
    """Run the faults of processes and of the database in parallel until the time is over."""
    began = time.monotonic()
    async with world.replacing, asyncio.TaskGroup() as group:
        for sort, faults in (("processes", OF_PROCESSES), ("database", OF_DATABASE)):
            chosen = {kind: do for kind, do in faults.items() if kind in chosen_for(world)}
            group.create_task(_in_turn(world, chosen, drawn(world.seed, sort), began, seconds))


def chosen_for(world: ChaosWorld) -> Sequence[str]:
    """Return the requested faults that are possible here."""
    every = (*OF_PROCESSES, *OF_DATABASE)
    left = left_out(world)
    return [kind for kind in every if kind in (world.faults or every) and kind not in left]


def left_out(world: ChaosWorld) -> Mapping[str, str]:
    """Return the faults that are impossible here, and why."""
    return dict.fromkeys((DISK_FULL, WAL_DISK_FULL), world.no_disks) if world.no_disks else {}


async def _in_turn(
    world: ChaosWorld,
    faults: Mapping[str, Fault],
    chance: random.Random,
    began: float,
    seconds: float,
) -> None:
    while time.monotonic() - began <= seconds:
        if not faults:
            await asyncio.sleep(1)
        for kind in chance.sample(sorted(faults), len(faults)):
            await asyncio.sleep(chance.uniform(0.3, 1.2))
            if time.monotonic() - began > seconds:
                return
            world.chronicle.happened[kind] += await faults[kind](world, chance)


async def healed(world: ChaosWorld) -> None:
    """End every fault and wait for the database."""
    for slot in world.slots:
        for proxy in slot.proxies:
            proxy.heal()
    await world.provider.release()


async def ended_in_order(world: ChaosWorld) -> None:
    """Terminate all processes."""
    async with asyncio.TaskGroup() as group:
        for slot in world.slots:
            if slot.gave_up:
                world.look("ends", f"{slot.name} had ended by itself")
            else:
                group.create_task(_terminate(world, slot, random.Random()))
