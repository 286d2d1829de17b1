"""docs/limits.md lists everything of limited size that tenants share, with the share of a tenant.

A new semaphore, queue, cache or pool fails this test until it has a row in the table, or a reason
why tenants do not share it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import caseworker
import caseworker_cases

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "limits.md"
SOURCES: Final = [Path(each.__path__[0]) for each in (caseworker, caseworker_cases)]
POTS: Final = re.compile(
    r"(Bounded)?Semaphore|R?Lock|Condition|(Lifo|Priority|Simple)?Queue|(Thread|Process)Pool\w+"
    r"|CapacityLimiter|Limits|TCPConnector|(Async)?ConnectionPool|create_async_engine"
    r"|(LRU|LFU|TTL|TLRU)Cache|lru_cache|BatchSpanProcessor|_Bare|Fair(Slots|Queue|Threads)"
    r"|CallThreads|BlockingPool|Shares|EventStreams|BodyMemory|PacedThread"
    r"|(Run|Step)Slots|LoopTurns|GroupCommit|BackgroundQueue"
)
"""Names of functions and classes that create something of limited size."""

OF_ONE: Final = "used by one run, one caller or the service alone"
UNLIMITED: Final = "created without a limit"
ONCE: Final = "held once, while something is loaded"
CACHES: Final = "definitions, prepared graphs, offers of tools and other caches"
PART: Final = "part of a pool that has a row"
SUMS: Final = "requests to `GET /spend` by metadata; others to it and to `GET /statistics`"
SHARED: Final = {
    "caseworker/core/budget/usage.py RLock": OF_ONE,
    "caseworker/core/trace/execution_graph.py RLock": OF_ONE,
    "caseworker/engine/cancellation.py RLock": OF_ONE,
    "caseworker/engine/context.py StepSlots": "steps of a run",
    "caseworker/engine/concurrency.py FairSlots": "persistent node of a plugin",
    "caseworker/engine/concurrency.py LoopTurns": OF_ONE,
    "caseworker/faces/mcp_server/endpoint.py Lock": ONCE,
    "caseworker/features/access/authentication.py TLRUCache": "results of authentication",
    "caseworker/features/access/authentication.py TTLCache": "results of authentication",
    "caseworker/features/access/tokens.py Lock": ONCE,
    "caseworker/features/external/attempts.py Lock": OF_ONE,
    "caseworker/features/external/sessions.py TTLCache": (
        "ends of external runs that a process remembers"
    ),
    "caseworker/gateway/admission.py PacedThread": (
        "redaction of long texts, and reading of long gateway bodies"
    ),
    "caseworker/features/external/tools.py Lock": OF_ONE,
    "caseworker/features/spend/postgres/spend.py FairSlots": SUMS,
    "caseworker/features/telemetry/span_export.py _Bare": "spans that wait for their export",
    "caseworker/features/telemetry/process_metrics.py Lock": OF_ONE,
    "caseworker/features/webhooks/feature.py BackgroundQueue": "webhook attempts",
    "caseworker/features/webhooks/sender.py FairThreads": (
        "threads that resolve the host names of webhooks"
    ),
    "caseworker/features/webhooks/sender.py Limits": PART,
    "caseworker/main/features.py EventStreams": "event streams",
    "caseworker/main/loop_watch.py Lock": OF_ONE,
    "caseworker/main/process.py BlockingPool": (
        "threads for functions of blocking steps and code agents"
    ),
    "caseworker/main/process.py CallThreads": (
        "threads for synchronous tools and calls of code agents"
    ),
    "caseworker/main/process.py PacedThread": (
        "reading and checking of large bodies, graphs and maps"
    ),
    "caseworker/main/process.py Semaphore": "claims of runs",
    "caseworker/models/gateway.py PacedThread": (
        "redaction of long texts, and reading of long gateway bodies"
    ),
    "caseworker/models/wires/endpoint.py FairSlots": "calls to a model endpoint",
    "caseworker/models/wires/transport.py TCPConnector": UNLIMITED,
    "caseworker/nodes/function.py FairThreads": PART,
    "caseworker/nodes/subgraph.py PacedThread": OF_ONE,
    "caseworker/platform/fair_threads.py FairQueue": PART,
    "caseworker/platform/fair_threads.py FairSlots": PART,
    "caseworker/platform/fair_threads.py FairThreads": "threads for work that takes CPU time",
    "caseworker/platform/fair_threads.py RLock": PART,
    "caseworker/platform/http/application.py BodyMemory": "memory for bodies",
    "caseworker/platform/http/application.py Lock": ONCE,
    "caseworker/platform/http/application.py Shares": "requests in progress",
    "caseworker/platform/http/forwarding.py LRUCache": OF_ONE,
    "caseworker/platform/http/forwarding.py Limits": UNLIMITED,
    "caseworker/platform/http/request.py FairSlots": PART,
    "caseworker/platform/postgres/engines.py FairSlots": (
        "database connections for requests and runs"
    ),
    "caseworker/platform/postgres/engines.py Lock": OF_ONE,
    "caseworker/platform/postgres/engines.py create_async_engine": UNLIMITED,
    "caseworker/platform/postgres/group_commit.py FairQueue": PART,
    "caseworker/runs/execute/executor.py LoopTurns": "event loop, for steps that never wait",
    "caseworker/runs/execute/executor.py RunSlots": "run slots",
    "caseworker/runs/execute/executor.py Semaphore": "releases of runs at the end of a process",
    "caseworker/runs/execute/executor.py StepSlots": "steps of a run",
    "caseworker/features/definitions/postgres.py GroupCommit": (
        "commits of the journal and of accepted runs, look-ups of definitions"
    ),
    "caseworker/runs/journal/postgres.py GroupCommit": (
        "commits of the journal and of accepted runs, look-ups of definitions"
    ),
    "caseworker/runs/execute/queue.py AsyncConnectionPool": OF_ONE,
    "caseworker/runtime_api/execution.py BlockingPool": OF_ONE,
    "caseworker/runtime_api/execution.py StepSlots": OF_ONE,
    "caseworker/runtime_api/graph.py Queue": OF_ONE,
    "caseworker/tools/dispatch.py PacedThread": (
        "redaction of long texts, and reading of long gateway bodies"
    ),
    "caseworker/tools/http_tool.py Limits": UNLIMITED,
    "caseworker/tools/mcp/http.py Limits": UNLIMITED,
    "caseworker_cases/stocks/packaged.py Lock": ONCE,
    "caseworker_cases/stocks/tiingo.py FairSlots": "requests to the price source",
    "caseworker_cases/stocks/tiingo.py Limits": PART,
    "caseworker_cases/stocks/tiingo.py TTLCache": CACHES,
    "caseworker_cases/tools/plotting/renderer.py FairSlots": "drawing process of charts",
}
"""The row of each pool in the table, or why it needs none."""
NO_CALL: Final = frozenset(
    {
        "connections of a process without an authenticated request",
        "401 responses",
        "database connections for cancel requests and readiness",
        "queue of runs, of all processes",
        "runs with a future `start_at`, of all processes",
        "cancel requests for runs that do not exist",
        "external runs",
        "schedules that fire",
        "rate limit of a model, of all processes",
        "MCP servers that are called with the credentials of tenants",
    }
)
"""Rows of counters and of SQL, which this test cannot find."""


def pots() -> Iterator[str]:
    """Yield the module and the name of each call that creates something of limited size."""
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            if "cli" not in path.relative_to(source).parts:  # commands serve one user
                names = created_in(ast.parse(path.read_text()))
                yield from (f"{path.relative_to(source.parent)} {name}" for name in names)


def created_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the calls and the default factories that create a pool."""
    for node in ast.walk(tree):
        made = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.keyword) and node.arg == "default_factory":
            made = node.value
        if made is not None and POTS.fullmatch(name := called(made)):
            yield name


def called(function: ast.expr) -> str:
    """Return the last name of a called function, without its type arguments."""
    while isinstance(function, ast.Subscript):
        function = function.value
    return str(getattr(function, "attr", getattr(function, "id", "")))


def rows() -> dict[str, str]:
    """Return the shares of a tenant in the table, by row."""
    section = PAGE.read_text().partition("\n## Shared by tenants\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]*)\| [^|]+ \|$", section, re.MULTILINE)
    return {name: share.strip() for name, share in cells if name != "what"}


def test_everything_that_tenants_share_is_listed() -> None:
    """Each pool has a row or a reason, and each row a pool."""
    found = set(pots())
    caches = {each for each in found if each.endswith((" LRUCache", " lru_cache"))}

    assert found - caches - SHARED.keys() == set(), "add a row to docs/limits.md, and name it here"
    assert SHARED.keys() - found == set()
    reasons = {OF_ONE, UNLIMITED, ONCE, PART}
    assert set(SHARED.values()) - reasons | NO_CALL == rows().keys()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a = asyncio.Queue[int](maxsize=3)", "Queue"),
        ("b: C = field(default_factory=threading.RLock)", "RLock"),
        ("self.c = [LRUCache[str, int](9)]", "LRUCache"),
        ("@lru_cache(9)\ndef d(): pass", "lru_cache"),
    ],
)
def test_a_new_pool_is_noticed(text: str, name: str) -> None:
    """Also one that is an attribute, has type arguments, or is a default."""
    assert list(created_in(ast.parse(text))) == [name]
