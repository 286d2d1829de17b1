"""Attacks of a tenant with an ordinary key, or of a client without one, on other tenants."""

import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from tests.attacks import graphs
from tests.attacks.target import Target

_SECONDS = 8.0
"""Seconds for which requests of the other tenant are measured, before and during an attack."""
_CLIENTS = 50
_PAUSE_SECONDS = 0.02
_READ_BYTES_PER_SECOND = 9216
_BEARER = b"Authorization: Bearer %s\r\n"


def _median_ms(tenant: Target, seconds: float = _SECONDS) -> float:
    """Return the median latency of a list of runs in milliseconds; each request must succeed."""
    until, took = time.monotonic() + seconds, []
    while time.monotonic() < until:
        began = time.monotonic()
        answer = tenant.ask("GET", "/runs?limit=5")
        took.append((time.monotonic() - began) * 1000)
        if not answer.is_success:
            raise SystemExit(f"another tenant got HTTP {answer.status_code}")
        time.sleep(_PAUSE_SECONDS)
    return statistics.median(took)


@contextmanager
def _repeated(act: Callable[[], object], *, threads: int) -> Iterator[None]:
    """Repeat an act during the block, in threads of a separate process."""
    process = get_context("fork").Process(target=_repeat, args=(act, threads), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()


def _repeat(act: Callable[[], object], threads: int) -> None:
    def repeat() -> None:
        while True:
            with suppress(Exception):
                act()

    for _ in range(threads - 1):
        threading.Thread(target=repeat, daemon=True).start()
    repeat()


def _compared(target: Target, attack: Callable[[], Any], most: float = 2) -> str:
    """Measure another tenant before and during an attack, which is a context manager.

    ``most`` is the allowed factor for its request time. It is more than two where the attacker's
    requests keep the process busy, because all tenants share one event loop.
    """
    other = target.as_tenant("other")
    before = _median_ms(other)
    with attack():
        time.sleep(2)
        during = _median_ms(other)
    said = f"p50 of another tenant {before:.1f} ms before, {during:.1f} ms during"
    if during > most * before + 1:
        raise SystemExit(said)
    return said


def wrong_credentials(target: Target) -> str:
    """Try keys that do not exist, on 50 connections."""

    def guess() -> None:
        key = f"cwk_{secrets.token_hex(8)}_{secrets.token_hex(32)}"
        replace(target, key=key).ask("GET", "/runs")

    return _compared(target, lambda: _repeated(guess, threads=_CLIENTS))


def slow_readers(target: Target) -> str:
    """Read a large document at 9 KB a second on half of the connections."""
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def opened(count: int) -> list[socket.socket]:
        """Open connections one by one, each after the previous one is answered."""
        connections = []
        for _ in range(count):
            connections.append(target.connect(ask))
            connections[-1].recv(1, socket.MSG_PEEK)
        return connections

    @contextmanager
    def reading() -> Iterator[None]:
        with ThreadPoolExecutor(_CLIENTS) as clients, ExitStack() as stack:
            opening = clients.map(opened, [1000 // _CLIENTS] * _CLIENTS)
            connections = [stack.enter_context(each) for several in opening for each in several]

            def read() -> None:
                began = time.monotonic()
                for connection in connections:
                    with suppress(OSError):
                        connection.recv(_READ_BYTES_PER_SECOND, socket.MSG_DONTWAIT)
                time.sleep(max(0.0, 1 - (time.monotonic() - began)))

            with _repeated(read, threads=1):
                yield

    return _compared(target, reading)


def many_filters(target: Target) -> str:
    """List runs with 1,500 filters, on ten connections."""
    attacker = target.as_tenant("attacker")
    query = "&".join(f"metadata.{number:x}=1" for number in range(1500))

    def listed() -> None:
        attacker.ask("GET", f"/runs?limit=1&{query}")

    return _compared(target, lambda: _repeated(listed, threads=10))


def near_misses(target: Target) -> str:
    """Send long prompts full of partial telephone numbers."""
    attacker = target.as_tenant("attacker")
    step = {"type": "llm", "data": {"prompt": ("004 4 " * 4000)[:19_000] + "${default}"}}
    data = {"max_parallel": 8, "step": step}
    graph = {"steps": [{"id": "m", "type": "map", "data": data}], "edges": []}
    fields = {"inputs": {"default": list(range(20))}, "budget": {"max_seconds": 5}}
    return _compared(target, lambda: _repeated(lambda: attacker.run(graph, **fields), threads=2))


def costly_conditions(target: Target) -> str:
    """Let a router search a long list for an item, 200 times."""
    attacker = target.as_tenant("attacker")
    condition = {"path": "default", "op": "contains", "value": -1}
    when = {"any": [{"any": [condition] * 100}] * 2}
    data = {"routes": [{"when": when, "to": "a"}], "otherwise": "b"}
    graph = {"steps": [{"id": "r", "type": "router", "data": data}], "edges": []}
    fields = {"inputs": {"default": [0] * 20_000}, "budget": {"max_seconds": 2}}
    return _compared(target, lambda: _repeated(lambda: attacker.run(graph, **fields), threads=2), 8)


def doubling_schema(target: Target) -> str:
    """Send a schema for an approval that doubles with each of 60 references."""
    answer = target.as_tenant("attacker").ask(
        "POST", "/runs", json={"kind": "graph", "graph": graphs.doubling_schema(60)}
    )
    if answer.is_success:
        raise SystemExit("the schema was accepted")
    return f"HTTP {answer.status_code}"


def _approval(tenant: Target) -> str:
    """Return the ID of a run that waits."""
    step = {"id": "a", "type": "approval", "data": {"message": "?"}}
    body = {"kind": "graph", "graph": {"steps": [step], "edges": []}}
    return str(tenant.ask("POST", "/runs", json=body).json()["run_id"])


def many_streams(target: Target) -> str:
    """Open as many event streams as the limit allows."""
    attacker, other = target.as_tenant("attacker"), target.as_tenant("other")
    opened = []
    for tenant, count in ((attacker, 5), (other, 1)):
        head = b"GET /runs/%s/events HTTP/1.1\r\nHost: localhost\r\n" % _approval(tenant).encode()
        asked = head + _BEARER % tenant.key.encode() + b"\r\n"
        opened += [tenant.connect(asked) for _ in range(count)]
        time.sleep(0.5)
    said = opened[-1].recv(12)
    for connection in opened:
        connection.close()
    if not said.endswith(b"200"):
        raise SystemExit(f"another tenant got {said!r}")
    return "another tenant has a stream"


def slow_runs(target: Target) -> str:
    """Start six runs with a slow model, where four run at once."""
    attacker, other = target.as_tenant("attacker"), target.as_tenant("other")
    step = {"id": "q", "type": "llm", "data": {"prompt": "ATTACK-SLOW"}}
    body = {"kind": "graph", "graph": {"steps": [step], "edges": []}}
    for _ in range(6):
        attacker.ask("POST", "/runs", json=body)
    began = time.monotonic()
    said = other.run(graphs.repeat_input("default"), inputs={"default": [1]})
    if time.monotonic() - began > 5:
        raise SystemExit(said)
    return said
