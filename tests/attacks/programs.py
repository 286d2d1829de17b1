"""Attacks on a service: each is one function that runs in a separate process.

``python -m tests.attacks.programs NAME URL [KEY]`` attacks the service at ``URL``, with the
operator's ``KEY``, and prints a remark.
"""

import random
import socket
import string
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.attacks import graphs, tenants
from tests.attacks.target import Target, open_connections
from tests.support.fake_provider.script import Step

_CHUNK = 1 << 20
_HALVES = (
    r'{"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,'
    r' "finish_reason": "stop", "message": {"role": "assistant", "content": "\ud800\u0000 b"}}]}'
)
"""A reply that contains lone surrogates."""


Attack = Callable[[Target], str]


@dataclass(frozen=True, slots=True)
class Program:
    """An attack and its prerequisites."""

    attack: Attack
    replies: Mapping[str, Step] = field(default_factory=dict)
    """Replies of the model provider to prompts with a marker."""
    settings: Mapping[str, str] | None = None
    """Environment variables of a service with keys; None is a service without keys."""


def _flood(target: Target, begun: bytes, chunk: bytes, megabytes: int) -> str:
    """Send one endless head."""
    with target.connect(begun) as connection:
        sent = 0
        try:
            while sent < megabytes:
                connection.sendall(chunk)
                sent += 1
        except OSError:
            return f"cut off after {sent} MB"
    return f"took all {megabytes} MB"


def long_header(target: Target) -> str:
    """Send one header of 60 MB."""
    return _flood(target, b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-A: ", b"a" * _CHUNK, 60)


def many_headers(target: Target) -> str:
    """Send three million headers."""
    chunk = (b"x-a: b\r\n" * (_CHUNK // 8 + 1))[:_CHUNK]
    return _flood(target, b"GET /healthz HTTP/1.1\r\nHost: a\r\n", chunk, 30)


def long_url(target: Target) -> str:
    """Send a URL of 60 MB."""
    return _flood(target, b"GET /", b"a" * _CHUNK, 60)


def _still_open(connections: list[socket.socket]) -> int:
    """Count the connections that the server has not closed."""
    left = 0
    for connection in connections:
        connection.settimeout(0.01)
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:
            left += 1
        except OSError:
            pass
    return left


def slow_heads(target: Target) -> str:
    """Leave 400 heads unfinished."""
    with open_connections(target, 400, b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-") as connections:
        time.sleep(15)
        return f"{_still_open(connections)} of 400 still open after 15 s"


def held_bodies(target: Target) -> str:
    """Send 300 bodies of 1.3 MB without their last bytes."""
    body = b'{"kind":"graph","graph":{"x":"' + b"a" * 1_290_000
    head = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    length = b"Content-Length: %d\r\n\r\n" % (len(body) + 100)
    with open_connections(target, 300, head + length + body) as connections:
        time.sleep(15)
        return f"{_still_open(connections)} of 300 still open after 15 s"


def unread_answers(target: Target) -> str:
    """Request documents on 200 connections, and read none of them."""
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4
    with open_connections(target, 200, ask) as connections:
        time.sleep(25)
        return f"{_still_open(connections)} of 200 still open after 25 s"


def foreign_host(target: Target) -> str:
    """Send requests of a foreign page whose host name resolves to this service."""
    headers = {"Host": "evil.example:8701", "Sec-Fetch-Site": "same-origin"}
    listed = target.ask("GET", "/runs", headers=headers)
    posted = target.ask("POST", "/runs", headers=headers, json={"input": "1+1?"})
    if listed.is_success or posted.is_success:
        raise SystemExit("served under a foreign name")
    return f"HTTP {listed.status_code} and {posted.status_code}"


def _ask_model(marker: str) -> Attack:
    step = {"id": "q", "type": "llm", "data": {"prompt": marker}}
    graph = {"steps": [step], "edges": []}
    return lambda target: target.run(graph, budget={"max_seconds": 6, "max_api_calls": 5})


def laughs(target: Target) -> str:
    """Join all handles of routers into one input repeatedly: 10^7 parts of 1 byte."""
    return target.run(graphs.laughs(7, 10), inputs={"default": "x"}, budget={"max_seconds": 5})


def laughs_wide(target: Target) -> str:
    """Do the same with 100 handles and 40 bytes."""
    limits = {"max_seconds": 3600, "max_steps": 50}
    return target.run(graphs.laughs(4, 100), inputs={"default": "x" * 40}, budget=limits)


def store(target: Target) -> str:
    """Let a map write one large value 1,400 times, and cancel it."""
    return _storing(target, 1400)


def store_unlimited(target: Target) -> str:
    """Fill the database from one request without a budget."""
    return _storing(target, 300)


def _storing(target: Target, count: int) -> str:
    chosen = random.Random(3).choices(string.ascii_letters + string.digits, k=200_000)
    inputs = {"default": [0] * count, "big": "".join(chosen)}
    run_id = f"store-{count}"
    said = target.run(graphs.repeat_input("big"), inputs=inputs, run_id=run_id)
    cancelled = target.ask("DELETE", f"/runs/{run_id}")
    until = time.monotonic() + 10
    while time.monotonic() < until:
        ended = target.ask("GET", f"/runs/{run_id}").json()["finished_at"]
        if ended is not None:
            return said
        time.sleep(0.2)
    raise SystemExit(f"{said}; DELETE answered {cancelled.status_code}, and the run goes on")


def deep(target: Target) -> str:
    """Make outputs of 256 and 1,100 levels, and read the results."""
    said = []
    for levels in (256, 1100):
        run_id = f"deep-{levels}"
        said.append(target.run(graphs.deep(levels), inputs={"default": 1}, run_id=run_id))
        for path in (f"/runs/{run_id}", f"/runs/{run_id}/trace", f"/runs/{run_id}/events", "/runs"):
            answer = target.ask("GET", path, headers={"Accept": "application/json"})
            if answer.status_code >= 500:
                raise SystemExit(f"GET {path} answers {answer.status_code}")
    return "; ".join(said)


def _patterns(count: int) -> Attack:
    def attack(target: Target) -> str:
        graph = graphs.patterns(count, repeated=90)
        began = time.monotonic()
        answer = target.ask("POST", "/graphs/validate", json={"graph": graph})
        return f"HTTP {answer.status_code} in {time.monotonic() - began:.1f} s"

    return attack


def listing(target: Target) -> str:
    """List runs whose results are large."""
    for _ in range(15):
        target.run(graphs.laughs(6, 10), inputs={"default": "x"})
    began = time.monotonic()
    answer = target.ask("GET", "/runs?limit=15")
    return f"{len(answer.content) >> 10} KB in {time.monotonic() - began:.1f} s"


def nested_maps(target: Target) -> str:
    """Run a map in a map in a map: 2,000^3 steps, without a budget."""
    inputs = {"list": [0] * 2000, "default": 1}
    body = {"kind": "graph", "run_id": "nested", "graph": graphs.nested_maps(), "inputs": inputs}
    target.ask("POST", "/runs", json=body)
    time.sleep(15)
    target.ask("DELETE", "/runs/nested")
    until = time.monotonic() + 20
    while (run := target.ask("GET", "/runs/nested").json())["finished_at"] is None:
        if time.monotonic() > until:
            raise SystemExit("the cancelled run goes on")
        time.sleep(0.2)
    return f"{run['status']} after {(run['usage'] or {}).get('steps')} steps"


PROGRAMS: Mapping[str, Program] = {
    "long-header": Program(long_header),
    "many-headers": Program(many_headers),
    "long-url": Program(long_url),
    "slow-heads": Program(slow_heads),
    "held-bodies": Program(held_bodies),
    "unread-answers": Program(unread_answers),
    "foreign-host": Program(foreign_host),
    "reply-compressed": Program(
        _ask_model("ATTACK-GZIP"), {"ATTACK-GZIP": Step(text="x" * 60_000_000, gzip=True)}
    ),
    "reply-long": Program(_ask_model("ATTACK-LONG"), {"ATTACK-LONG": Step(text="x" * 30_000_000)}),
    "reply-halves": Program(_ask_model("ATTACK-HALVES"), {"ATTACK-HALVES": Step(raw_body=_HALVES)}),
    "laughs": Program(laughs),
    "laughs-wide": Program(laughs_wide),
    "store": Program(store),
    "store-unlimited": Program(store_unlimited),
    "deep": Program(deep),
    "patterns": Program(_patterns(300)),
    "many-patterns": Program(_patterns(2000)),
    "listing": Program(listing),
    "nested-maps": Program(nested_maps),
    "wrong-credentials": Program(tenants.wrong_credentials, settings={}),
    "slow-readers": Program(tenants.slow_readers, settings={}),
    "many-filters": Program(tenants.many_filters, settings={}),
    "near-misses": Program(tenants.near_misses, settings={}),
    "costly-conditions": Program(tenants.costly_conditions, settings={}),
    "doubling-schema": Program(tenants.doubling_schema, settings={}),
    "many-streams": Program(tenants.many_streams, settings={"EVENTS_MAX_STREAMS": "5"}),
    "slow-runs": Program(
        tenants.slow_runs,
        {"ATTACK-SLOW": Step(text="ok", delay_seconds=12)},
        settings={"WORKER_MAX_RUNS": "4"},
    ),
}
"""Attacks by name; ``make attacks`` runs each of them."""


if __name__ == "__main__":
    sys.stdout.write(PROGRAMS[sys.argv[1]].attack(Target(*sys.argv[2:])))
