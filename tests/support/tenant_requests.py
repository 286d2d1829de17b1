"""Requests of a tenant to every resource that the service keeps by tenant.

``{their …}`` stands for a resource of another tenant: its name, its key ID or its message ID. If
there is no other tenant, it names a missing resource.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from hypothesis import strategies as st

from tests.support.tenants import Tenants

Request = tuple[str, str, Any, dict[str, str]]

GRAPH: dict[str, Any] = {
    "steps": [
        {"id": "s", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "1"}}}
    ],
    "edges": [],
}
GRAPHS = (GRAPH, {**GRAPH, "max_parallel": 2})
IDS = ("x", "y")
APPROVAL, CALL, FILE, NODE = "asked", "called", "drawing.png", "n000001"
DELIVERY = {
    "x": "00000000-0000-4000-8000-00000000000a",
    "y": "00000000-0000-4000-8000-00000000000b",
}
PLANTED = "PLANT"
"""The pseudo method for rows that only an execution would create: they are inserted directly."""

_OF_RUN = "FROM runs WHERE tenant_id = %(tenant)s AND run_id = %(run)s AND request IS NOT NULL"
_PLANTS = tuple(
    f"INSERT INTO {table} SELECT {values} {_OF_RUN} ON CONFLICT DO NOTHING"
    for table, values in (
        (
            "artifacts (tenant_id, run_id, name, slot, media_type, size_bytes, sha256, data)",
            "tenant_id, run_id, %(file)s, '1', 'image/png', 1, repeat('0', 64), '\\x00'",
        ),
        (
            "approvals (tenant_id, run_id, approval_id, node_id, call_key, subject, message,"
            " arguments, expires_at)",
            "tenant_id, run_id, %(approval)s, 'n', 'k', 's', tenant_id, '{}', now() + '1 h'",
        ),
        (
            "approvals (tenant_id, run_id, approval_id, node_id, call_key, subject, message,"
            " arguments, expires_at, author)",
            "tenant_id, run_id, %(call)s, 'n', 'c', 's', '', '{}', now() + '1 h', 'client'",
        ),
        (
            "webhook_deliveries (tenant_id, delivery_id, run_id, type, url, status, due_at)",
            "tenant_id, %(delivery)s, run_id, 'run.completed', 'https://x', 'dead', NULL",
        ),
        (
            "events (tenant_id, run_id, seq, type, data)",
            "tenant_id, run_id, 1000, 'planted', '{}'",
        ),
    )
)

_THEIRS = """SELECT message_id FROM messages theirs WHERE tenant_id = %s AND thread_id = %s
    AND NOT EXISTS (SELECT FROM messages WHERE tenant_id = %s AND message_id = theirs.message_id)
    ORDER BY seq LIMIT 1"""


def plant(connection: psycopg.Connection[Any], tenant: str, run: str) -> None:
    """Give a run a file, an approval, an event and a dead delivery."""
    places = {"tenant": tenant, "run": run, "file": FILE, "approval": APPROVAL, "call": CALL}
    for statement in _PLANTS:
        connection.execute(statement, {**places, "delivery": DELIVERY[run]})


def changes(one: str, other: str, headers: dict[str, str], graph: dict[str, Any]) -> list[Request]:
    """Return requests that change resources with names that several tenants use."""
    inline = {"kind": "graph", "graph": graph, "run_id": one, "metadata": {"of": one}}
    by_name = {"kind": "graph", "graph": {"name": one}}
    hook = {**inline, "webhook": {"url": "https://example.com/hook"}}
    agent = {"name": one, "prompt": {"system": one}, "tools": []}
    schedule = {"cron": "0 0 1 1 *", "run": {"kind": "graph", "graph": graph}}
    message = f"/threads/{one}/messages/{{their message of {one}}}"
    return [
        (PLANTED, one, None, {}),
        ("POST", "/runs", inline, headers),
        ("POST", "/runs", hook, {}),
        ("POST", "/runs", {**by_name, "run_id": other}, headers),
        ("POST", "/runs", {"from": {"run_id": one}, "run_id": other}, {}),
        ("DELETE", f"/runs/{one}", None, {}),
        ("POST", f"/runs/{one}/cancel", None, {}),
        ("POST", "/runs/cancel", {"metadata": {"of": one}}, {}),
        ("POST", "/erasures", {"metadata": {"of": one}}, {}),
        ("POST", f"/runs/{one}/finish", {"output": 1}, {}),
        ("POST", f"/runs/{one}/heartbeat", None, {}),
        ("DELETE", f"/runs/{one}/record", None, {}),
        ("POST", f"/runs/{one}/approvals/{APPROVAL}", {"decision": "approve"}, {}),
        ("POST", f"/runs/{one}/calls/{CALL}/result", {"output": one}, {}),
        ("POST", "/graphs", {"name": one, "graph": graph}, {}),
        ("DELETE", f"/graphs/{one}", None, {}),
        ("DELETE", f"/graphs/{one}/versions/1", None, {}),
        ("POST", "/agents", {"agent": agent}, {}),
        ("DELETE", f"/agents/{one}", None, {}),
        ("DELETE", f"/agents/{one}/versions/1", None, {}),
        ("POST", "/threads", {"thread_id": one, "graph": graph}, {}),
        ("POST", f"/threads/{one}/messages", {"content": other, "run_id": other}, headers),
        ("POST", f"/threads/{one}/messages", {"content": other}, {}),
        ("POST", f"{message}/edit", {"content": "z"}, {}),
        ("POST", f"{message}/retry", None, {}),
        ("POST", f"{message}/continue", None, {}),
        ("POST", f"/threads/{one}/cancel", None, {}),
        ("DELETE", f"/threads/{one}", None, {}),
        ("POST", "/keys", {"name": one, "scopes": ["read"]}, {}),
        ("POST", "/keys/{their key}/rotate", {"overlap_seconds": 0}, {}),
        ("DELETE", "/keys/{their key}", None, {}),
        ("PUT", "/quotas/{their name}", {"max_queued": 0}, {}),
        ("DELETE", "/quotas/{their name}", None, {}),
        ("PUT", f"/mcp-credentials/{one}", {"headers": {"X-Tenant": one}}, {}),
        ("DELETE", f"/mcp-credentials/{one}", None, {}),
        ("PUT", f"/schedules/{one}", schedule, {}),
        ("POST", f"/schedules/{one}/pause", None, {}),
        ("POST", f"/schedules/{one}/resume", None, {}),
        ("POST", f"/schedules/{one}/run", None, {}),
        ("DELETE", f"/schedules/{one}", None, {}),
        ("POST", "/webhooks/secret", None, {}),
        ("POST", "/webhooks/test", {"url": "http://127.0.0.1/"}, {}),
        ("POST", f"/webhooks/deliveries/{DELIVERY[one]}/redeliver", None, {}),
    ]


def looks() -> Iterator[Request]:
    """Yield requests that read all resources."""
    for path in (
        "/statistics?period=day",
        *("/runs", "/runs?status=cancelled", "/runs?metadata.of=x", "/approvals", "/threads"),
        *("/graphs", "/agents", "/schedules", "/keys", "/quotas", "/quotas/{their name}"),
        *("/keys/{their key}", "/keys/{their key}/sessions"),
        *("/webhooks/secret", "/webhooks/deliveries", "/webhooks/deliveries?status=dead"),
        *("/mcp-credentials", "/whoami", "/audit"),
        *("/spend?group_by=tenant", "/spend?group_by=model"),
    ):
        yield ("GET", path, None, {})
    of_one = (
        *("/runs/{}", "/runs/{}/trace", "/runs/{}/artifacts", f"/runs/{{}}/artifacts/{FILE}"),
        *("/runs/{}/approvals", "/runs/{}/calls", f"/runs/{{}}/calls/{NODE}", "/runs/{}/events"),
        *("/graphs/{}", "/graphs/{}/versions", "/graphs/{}/versions/1"),
        *("/agents/{}", "/agents/{}/versions", "/agents/{}/versions/1"),
        *("/threads/{}", "/threads/{}/messages?tree=true", "/schedules/{}"),
    )
    for one in IDS:
        for path in of_one:
            yield ("GET", path.format(one), None, {"accept": "application/json"})
        yield ("HEAD", f"/runs/{one}/artifacts/{FILE}", None, {})
        yield ("GET", f"/webhooks/deliveries/{DELIVERY[one]}", None, {})


@st.composite
def stories(draw: st.DrawFn) -> Sequence[tuple[bool, Request]]:
    """Return a sequence of changes by a tenant (true) and by another tenant."""
    told = []
    for _ in range(draw(st.integers(4, 20))):
        headers = draw(st.sampled_from([{}, {"idempotency_key": "k"}]))
        one, other = draw(st.sampled_from(IDS)), draw(st.sampled_from(IDS))
        of_these = changes(one, other, headers, draw(st.sampled_from(GRAPHS)))
        told.append((draw(st.booleans()), draw(st.sampled_from(of_these))))
    return told


def resolved_path(
    path: str,
    tenants: Tenants,
    connection: psycopg.Connection[Any],
    *,
    mine: str,
    other: str | None,
) -> str:
    """Return a path with names of the other tenant's resources, or of missing ones.

    Message IDs are derived from thread and run, so two tenants may have the same ones.
    """
    if "{their" not in path:
        return path
    key, message = "0" * 16, "absent"
    thread = path.split("/")[2]
    if other is not None:
        key = tenants.keys[other].split("_")[1] if other in tenants.keys else key
        found = connection.execute(_THEIRS, (other, thread, mine)).fetchone()
        message = message if found is None else found[0]
    path = path.replace("{their key}", key).replace("{their name}", other or "nobody")
    return path.replace(f"{{their message of {thread}}}", message)
