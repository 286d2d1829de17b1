"""The requests whose time is compared: every route of the OpenAPI document, with each filter."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, repeat
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx
import psycopg

from bench.growth.fill import LARGE, SMALL
from bench.growth.originals import AGENT, GRAPH, schedule
from bench.load import Request

_ONE_STEP: Final = {
    "steps": [
        {
            "id": "sum",
            "type": "tool",
            "data": {"tool": "calculator", "args": {"expression": "1 + 1"}},
        }
    ],
    "edges": [],
}
_RUN: Final = {"kind": "graph", "graph": _ONE_STEP, "input": "1"}
_EXPECT: Final = (200, 201, 202, 204)
COMPLETED: Final[Mapping[str, Any]] = {
    "wait": 30,
    "expect": (200,),
    "holds": b'"status":"completed"',
}
"""Options of a request that waits until a run is completed."""

UNMEASURED: Final = {
    "PUT /mcp-credentials/{server}": "needs a configured MCP server",
    "DELETE /mcp-credentials/{server}": "needs a configured MCP server",
    "POST /webhooks/test": "sends a request to another server",
    "POST /webhooks/deliveries/{delivery_id}/redeliver": "sends a request to another server",
    "DELETE /agents/{name}/versions/{version}": "changes rows like DELETE /agents/{name}",
    "DELETE /graphs/{name}/versions/{version}": "changes rows like DELETE /graphs/{name}",
    **dict.fromkeys(
        (
            "POST /gateway/openai/v1/chat/completions/reserve",
            "POST /gateway/openai/v1/responses/reserve",
            "POST /gateway/openai/v1/embeddings/reserve",
            "POST /gateway/anthropic/v1/messages/reserve",
        ),
        "reads the rows that a call of the gateway reads",
    ),
    "GET /gateway/usage": "needs a standing key",
    "GET /keys/{key_id}": "reads the rows of a month, of one account",
    "GET /keys/{key_id}/sessions": "the database has no standing keys; see tests.integration.plans",
    "POST /runs/{run_id}/calls/{call_id}/result": "changes rows like a decision on an approval",
    "GET /healthz": "reads no table that grows",
    "GET /metrics": "has its own port with several processes",
    "HEAD /runs/{run_id}/artifacts/{name}": "is the GET without its body",
}
"""Routes that are not measured, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A running service on a filled database, as the caller of one tenant sees it."""

    url: str
    """URL of the database."""
    address: str
    tenant: str
    key: str
    operator: str
    """Key of the operator."""
    samples: Mapping[str, str]
    """Values of path parameters."""

    def request(self, method: str, path: str, body: Any = None, **others: Any) -> Request:
        """Return a request with the key of the tenant."""
        key, wait = others.pop("key", self.key), others.pop("wait", 0)
        prefer = f"Prefer: wait={wait}\r\n" if wait else ""
        return Request(
            method=method,
            path=path,
            body=b"" if body is None else json.dumps(body).encode(),
            headers=f"Authorization: Bearer {key}\r\n{prefer}",
            expect=others.pop("expect", _EXPECT),
            **others,
        )

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement with the placeholder ``%(tenant)s``."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement, {"tenant": self.tenant}).fetchall()


Requests = Callable[[Place], Iterator[Request]]
"""Returns the requests of a case; each is sent once."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    title: str
    requests: Requests
    tenants: Sequence[str] = (LARGE,)

    @property
    def titles(self) -> list[str]:
        """The title for each tenant."""
        return [f"{self.title} ({tenant})" for tenant in self.tenants]


_SAMPLES: Final = f"""
SELECT
    (SELECT run_id FROM runs WHERE tenant_id = %(tenant)s AND kind = 'agent'
        AND status = 'completed' ORDER BY created_at DESC OFFSET 2 LIMIT 1) AS run_id,
    (SELECT thread_id FROM threads WHERE tenant_id = %(tenant)s
        ORDER BY created_at DESC OFFSET 2 LIMIT 1) AS thread_id,
    (SELECT delivery_id FROM webhook_deliveries WHERE tenant_id = %(tenant)s
        ORDER BY created_at DESC LIMIT 1) AS delivery_id,
    (SELECT run_id FROM artifacts WHERE tenant_id = %(tenant)s LIMIT 1) AS artifact_run,
    (SELECT name FROM schedules WHERE tenant_id = %(tenant)s LIMIT 1) AS schedule,
    '{AGENT}' AS agent, '{GRAPH}' AS graph, %(tenant)s::text AS tenant
"""  # noqa: S608 - constants of this project

_FILTERS: Final[Mapping[str, Mapping[str, str]]] = {
    "GET /runs": {"status": "failed", "kind": "external", "agent": AGENT},
    "GET /webhooks/deliveries": {"status": "dead"},
    "GET /audit": {"action": "agent.registered"},
    "GET /runs/{run_id}/events": {"after": "5"},
    "GET /runs/{run_id}/trace": {"payloads": "true", "format": "otlp"},
    "GET /statistics": {"period": "day"},
}
_USUAL: Final = {
    "created_after": "a_week_ago",
    "created_before": "a_month_ago",
    "after": "a_week_ago",
    "before": "a_month_ago",
    "thread_id": "thread_id",
    "run_id": "run_id",
}
"""Samples that are the values of filters."""
_SKIPPED: Final = {"limit", "cursor", "leaf", "tree", "reason", "tenant", "group_by"}
_MORE: Final[Mapping[str, Sequence[str]]] = {
    "GET /runs": (
        "status=failed&agent=clerk",
        "status=halted&agent=clerk",
        "metadata.source=mail&kind=external",
        "metadata.customer=c-7",
        "metadata.source=mail",
        "metadata.customer=c-7&status=failed",
    ),
    "GET /spend": (
        "group_by=agent",
        *(f"group_by={key}&after={{a_month_ago}}" for key in ("agent", "model", "metadata.source")),
        "group_by=model&period=day&after={a_month_ago}",
    ),
    "GET /threads/{thread_id}/messages": ("tree=true",),
    "GET /statistics": ("period=hour",),
}


def samples(url: str, tenant: str) -> Mapping[str, str]:
    """Return values of path parameters for a tenant, from its newest rows, if it has any."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(_SAMPLES, {"tenant": tenant})
        names = [column.name for column in cursor.description or ()]
        found = dict(zip(names, cursor.fetchone() or (), strict=True))
    found |= {"node_id": "n000003", "a_week_ago": _days_ago(7), "a_month_ago": _days_ago(30)}
    return {name: str(value) for name, value in found.items() if value is not None}


def reads(document: Mapping[str, Any]) -> Iterator[Case]:
    """Yield each GET of an OpenAPI document: as it is, with each filter, and its second page."""
    for path, operations in document["paths"].items():
        title = f"GET {path}"
        if "get" not in operations or title in UNMEASURED:
            continue
        names = {
            each["name"]
            for each in operations["get"].get("parameters", ())
            if each["in"] == "query"
        }
        both = (LARGE, SMALL)
        bare = [""] if "group_by" not in names else []
        for query in (*bare, *_filters(title, names), *_MORE.get(title, ())):
            yield Case(f"{title}{'?' * bool(query)}{query}", _get(path, query), both)
        if "cursor" in names:
            yield Case(f"{title}, second page", _second_page(path), (LARGE,))


def _filters(title: str, names: set[str]) -> Iterator[str]:
    values = _FILTERS.get(title, {})
    for name in sorted(names - _SKIPPED):
        if name in values:
            yield f"{name}={values[name]}"
        elif name in _USUAL and "group_by" not in names:
            yield f"{name}={{{_USUAL[name]}}}"


def _days_ago(days: int) -> str:
    return f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


def _filled(place: Place, text: str) -> str:
    """Replace the parameters of a path or query."""
    values = dict(place.samples)
    head = text.split("/")[1] if text.startswith("/") else ""
    values["name"] = values.get(head.rstrip("s"), "{name}")
    values["version"] = "1"
    if "artifacts" in text:
        values |= {"run_id": values.get("artifact_run", "{run_id}"), "name": "report.md"}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value if "{" in value else quote(value))
    return text


def _get(path: str, query: str) -> Requests:
    def requests(place: Place) -> Iterator[Request]:
        target = _filled(place, path)
        key = place.operator if path in ("/quotas", "/quotas/{tenant}") else place.key
        if query:
            target += "?" + _filled(place, query)
        return iter(()) if "{" in target else repeat(place.request("GET", target, key=key))

    return requests


def _second_page(path: str) -> Requests:
    def requests(place: Place) -> Iterator[Request]:
        answer = httpx.get(
            place.address + _filled(place, path),
            params={"limit": "5"},
            headers={"authorization": f"Bearer {place.key}"},
            timeout=60,
        ).json()
        if (cursor := answer["next_cursor"]) is None:
            return iter(())
        return repeat(
            place.request("GET", f"{_filled(place, path)}?limit=5&cursor={quote(cursor)}")
        )

    return requests


def _each(statement: str, request: Callable[[Place, Any], Request]) -> Requests:
    """Return requests for the rows of a statement, one each."""

    def requests(place: Place) -> Iterator[Request]:
        return (request(place, row) for row in place.rows(statement))

    return requests


def _repeated(method: str, path: str, body: Any = None, **others: Any) -> Requests:
    def requests(place: Place) -> Iterator[Request]:
        target = _filled(place, path)
        return iter(()) if "{" in target else repeat(place.request(method, target, body, **others))

    return requests


_AT_ONCE: Final = 40
_QUEUED: Final = """
SELECT run_id FROM runs WHERE tenant_id = %(tenant)s AND status = 'queued'
ORDER BY created_at LIMIT 40
"""
_ENDED: Final = """
SELECT run_id FROM runs WHERE tenant_id = %(tenant)s AND status = 'completed' AND kind = 'agent'
ORDER BY created_at LIMIT 40
"""
_PENDING: Final = """
SELECT run_id, approval_id FROM approvals WHERE tenant_id = %(tenant)s AND decision IS NULL
ORDER BY requested_at DESC LIMIT 40
"""
_THREADS: Final = """
SELECT thread_id, (array_agg(message_id ORDER BY seq DESC) FILTER (WHERE role = 'user'))[1],
    (array_agg(message_id ORDER BY seq DESC) FILTER (WHERE role = 'assistant'))[1]
FROM messages WHERE tenant_id = %(tenant)s AND thread_id IN (
    SELECT thread_id FROM threads t WHERE tenant_id = %(tenant)s AND EXISTS (
        SELECT FROM messages m WHERE m.tenant_id = t.tenant_id AND m.thread_id = t.thread_id
    ) ORDER BY created_at DESC OFFSET 10 LIMIT 40
) GROUP BY thread_id
"""
_AGENT_RUN: Final = {"kind": "agent", "agent": {"name": AGENT}, "input": "How much is 1 + 1?"}


def writes() -> Iterator[Case]:
    """Yield the requests that change something."""
    both = (LARGE, SMALL)
    yield Case("POST /runs, accepted", _repeated("POST", "/runs", _RUN), both)
    yield Case("POST /runs, until completed", _repeated("POST", "/runs", _RUN, **COMPLETED), both)
    yield Case(
        "POST /runs, agent until completed", _repeated("POST", "/runs", _AGENT_RUN, **COMPLETED)
    )
    yield Case(
        "POST /runs, fork of an ended run",
        _each(_ENDED, lambda at, row: at.request("POST", "/runs", {"from": {"run_id": row[0]}})),
    )
    yield Case(
        "DELETE /runs/{run_id}, of a queued run",
        _each(
            _QUEUED,
            lambda at, row: at.request(
                "DELETE", f"/runs/{row[0]}", holds=b'"status":"cancelled","already_finished":false'
            ),
        ),
    )
    yield Case(
        "POST /runs/{run_id}/cancel, before the run exists",
        lambda at: (at.request("POST", f"/runs/{uuid4()}/cancel") for _ in count()),
    )
    for name, body in {
        "metadata": {"metadata": {"customer": "c-7"}},
        "metadata and status": {"metadata": {"source": "mail"}, "status": "running"},
        "agent": {"agent": "nobody"},
        "kind and time": {"kind": "external", "created_after": _days_ago(1)},
    }.items():
        yield Case(f"POST /runs/cancel, by {name}", _repeated("POST", "/runs/cancel", body))
    yield Case(
        "DELETE /runs/{run_id}/record",
        _each(_ENDED, lambda at, row: at.request("DELETE", f"/runs/{row[0]}/record")),
    )
    yield Case(
        "POST /runs/{run_id}/approvals/{approval_id}",
        _each(
            _PENDING,
            lambda at, row: at.request(
                "POST", f"/runs/{row[0]}/approvals/{row[1]}", {"decision": "approve"}
            ),
        ),
    )
    yield Case("POST /runs/{run_id}/heartbeat", lambda at: _of_external_run(at, "heartbeat"))
    yield Case("POST /runs/{run_id}/finish", lambda at: _of_external_run(at, "finish"))
    yield from _thread_writes()
    yield from _other_writes()


def _of_external_run(place: Place, act: str) -> Iterator[Request]:
    for _ in range(_AT_ONCE):
        run = _created(place, "/runs", {"kind": "external"})
        path = f"/runs/{run['run_id']}/{act}"
        body = {"output": "done"} if act == "finish" else None
        yield place.request("POST", path, body, key=run["access"]["key"])


def _created(place: Place, path: str, body: Any, *, key: str = "", method: str = "POST") -> Any:
    """Create something for the next request, outside of the measured time."""
    headers = {"authorization": f"Bearer {key or place.key}"}
    sent = httpx.request(method, place.address + path, json=body, headers=headers, timeout=60)
    return sent.raise_for_status().json()


def _thread_writes() -> Iterator[Case]:
    thread = {"agent": {"name": AGENT}}
    yield Case("POST /threads", _repeated("POST", "/threads", thread), (LARGE, SMALL))
    turn = {"content": "How much is 1 + 1?"}
    for act, at, body in (
        ("", None, turn),
        ("/{message_id}/edit", 1, turn),
        ("/{message_id}/retry", 2, {}),
        ("/{message_id}/continue", 2, {}),
    ):
        yield Case(
            f"POST /threads/{{thread_id}}/messages{act}, until completed",
            _each(
                _THREADS,
                lambda place, row, act=act, at=at, body=body: place.request(  # type: ignore[misc]
                    "POST",
                    f"/threads/{row[0]}/messages" + act.replace("{message_id}", str(row[at or 0])),
                    body,
                    **COMPLETED,
                ),
            ),
        )
    yield Case("POST /threads/{thread_id}/cancel", _repeated("POST", "/threads/{thread_id}/cancel"))
    yield Case(
        "DELETE /threads/{thread_id}",
        _each(_THREADS, lambda at, row: at.request("DELETE", f"/threads/{row[0]}")),
    )


def _other_writes() -> Iterator[Case]:
    agent = {"name": "new", "prompt": "Answer."}
    quota = {"max_running": 1000}
    simple: Sequence[tuple[str, str, Any]] = (
        ("POST", "/graphs/validate", {"graph": _ONE_STEP}),
        ("POST", "/webhooks/secret", {}),
        ("POST", "/schedules/{name}/pause", None),
        ("POST", "/schedules/{name}/resume", None),
        ("POST", "/schedules/{name}/run", None),
        ("POST", "/erasures", {"metadata": {"customer": "nobody"}}),
    )
    for method, path, body in simple:
        yield Case(f"{method} {path}", _repeated(method, path, body))
    for path in ("/keys", "/agents", "/graphs", "/schedules/{name}", "/quotas/{tenant}"):
        yield from _life_of(
            path,
            {
                "/keys": {"name": "new"},
                "/agents": {"agent": agent},
                "/graphs": {"name": "new", "graph": _ONE_STEP},
                "/schedules/{name}": schedule(_RUN),
                "/quotas/{tenant}": quota,
            }[path],
        )


def _life_of(path: str, body: Any) -> Iterator[Case]:
    """Yield the creation and the deletion of something, and the rotation of a key."""
    method = "PUT" if "{" in path else "POST"
    one = path if "{" in path else path + ("/{key_id}" if path == "/keys" else "/{name}")

    def new(place: Place) -> tuple[str, str, Any, str]:
        name = f"new-{uuid4().hex}"
        key = place.operator if path == "/quotas/{tenant}" else place.key
        target = path.split("{")[0] + (name if "{" in path else "")
        return name, target, json.loads(json.dumps(body).replace('"new"', f'"{name}"')), key

    def creations(place: Place) -> Iterator[Request]:
        for _ in count():
            _, target, sent, key = new(place)
            yield place.request(method, target, sent, key=key)

    def existing(place: Place) -> Iterator[tuple[str, str]]:
        for _ in count():
            name, target, sent, key = new(place)
            created = _created(place, target, sent, key=key, method=method)
            yield f"{one.split('{')[0]}{created.get('key_id', name)}", key

    yield Case(f"{method} {path}", creations)
    if path == "/keys":
        yield Case(
            "POST /keys/{key_id}/rotate",
            lambda at: (at.request("POST", f"{each}/rotate", {}) for each, _ in existing(at)),
        )
    yield Case(
        f"DELETE {one}",
        lambda at: (at.request("DELETE", each, key=key) for each, key in existing(at)),
    )


def unmeasured(document: Mapping[str, Any], cases: Sequence[Case]) -> list[str]:
    """Return the operations of an OpenAPI document that neither a case nor ``UNMEASURED`` names."""
    named = {case.title.split("?")[0].split(",")[0] for case in cases} | UNMEASURED.keys()
    operations = [
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if method != "parameters"
    ]
    return [each for each in operations if each not in named]
