"""All places of the HTTP API that accept a text from the caller."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_from_bytes

from tests.support.raw_client import Ask

Graph = dict[str, Any]


def graph_of(step: dict[str, Any]) -> Graph:
    """Return a graph of one step."""
    return {"steps": [step], "edges": []}


TOOL = {"type": "tool", "data": {"tool": "calculator", "args": {"expression": "1"}}}
GRAPH = graph_of({"id": "s", **TOOL})
ASKING = graph_of(
    {"id": "s", "type": "approval", "data": {"message": "m", "changes": {"type": "object"}}}
)
LATER = (datetime.now(UTC) + timedelta(days=1)).isoformat()
"""A start time in the future, for runs that must not start: they would call random addresses."""

APPROVAL = "/runs/asking/approvals/{approval}"
BODIES = (
    *(("POST", path) for path in ("/graphs", "/agents", "/threads", "/keys", "/graphs/validate")),
    *(("POST", path) for path in ("/runs/cancel", "/webhooks/secret", "/threads/t/messages")),
    *(("POST", path) for path in (APPROVAL, "/runs/known/cancel", "/schedules/x/run")),
    *(("PUT", path) for path in ("/schedules/x", "/quotas/x")),
)
"""Routes that accept a JSON document, other than ``POST /runs``."""
FRAMES = (
    '{"input": "x", "metadata": {"a": %s}}',
    '{"input": %s}',
    '{"kind": "graph", "graph": %s}',
    '{"kind": "agent", "agent": %s, "input": "x"}',
    '{"kind": "graph", "graph": ' + json.dumps(ASKING) + ', "inputs": {"default": %s}}',
)
"""Run requests with a place for a JSON document."""


def asks_of(document: bytes, approval: str) -> list[Ask]:
    """Return all requests that contain a JSON document, except as the whole body of a run."""
    framed = [
        Ask("POST", "/runs", before.encode() + document + after.encode())
        for before, _, after in (frame.partition("%s") for frame in FRAMES)
    ]
    sent = [Ask(method, path.format(approval=approval), document) for method, path in BODIES]
    return framed + sent


def _run(**fields: Any) -> tuple[str, str, Any]:
    return "POST", "/runs", {"input": "x", **fields}


def _graph_run(**fields: Any) -> tuple[str, str, Any]:
    return "POST", "/runs", {"kind": "graph", "graph": GRAPH, **fields}


def _agent(**fields: Any) -> Any:
    return {"agent": {"name": "a", "prompt": {"system": "x"}, "tools": [], **fields}}


def _shown(text: str) -> Graph:
    data = {"message": text, "arguments": {"a": text}}
    return graph_of({"id": text, "type": "approval", "data": data})


_ACCEPT = {"Accept": b"application/json"}
IN_BODIES: Mapping[str, Callable[[str], tuple[str, str, Any]]] = {
    "input": lambda s: _run(input=s),
    "run id": lambda s: _run(run_id=s),
    "metadata": lambda s: _run(metadata={s: s}),
    "concurrency key": lambda s: _run(concurrency_key=s),
    "timezone": lambda s: _run(timezone=s),
    "webhook": lambda s: _run(webhook={"url": s}, start_at=LATER),
    "webhook's host": lambda s: _run(webhook={"url": f"https://{s}"}, start_at=LATER),
    "expectations": lambda s: _run(gold_answer=s, expected_tools=[s]),
    "moments": lambda s: _run(deadline=s, start_at=s),
    "deadline": lambda s: _run(deadline=s),
    "unknown field": lambda s: _run(**{s: s}),
    "kind": lambda s: ("POST", "/runs", {"kind": s, "input": "x"}),
    "inputs of a graph": lambda s: _graph_run(inputs={s: s}),
    "value of a graph": lambda s: _graph_run(graph=ASKING, inputs={"default": s}),
    "graph": lambda s: _graph_run(graph=_shown(s)),
    "graph's name": lambda s: _graph_run(graph={"name": s}),
    "source": lambda s: ("POST", "/runs", {"from": {"run_id": s, "until": s}}),
    "source's node": lambda s: ("POST", "/runs", {"from": {"run_id": "known", "until": s}}),
    "new graph": lambda s: ("POST", "/graphs", {"name": s, "graph": GRAPH, "description": s}),
    "description": lambda s: ("POST", "/graphs", {"name": "g", "graph": GRAPH, "description": s}),
    "new agent": lambda s: ("POST", "/agents", _agent(name=s, prompt={"system": s}, tools=[s])),
    "prompt": lambda s: ("POST", "/agents", _agent(prompt={"system": s}, description=s)),
    "new thread": lambda s: ("POST", "/threads", {"thread_id": s, "graph": GRAPH}),
    "title": lambda s: ("POST", "/threads", {"graph": GRAPH, "title": s, "metadata": {s: s}}),
    "message": lambda s: ("POST", "/threads/t/messages", {"content": s}),
    "decision": lambda s: ("POST", APPROVAL, {"decision": s, "reason": s}),
    "refusal": lambda s: ("POST", "/runs/asking/approvals/z", {"decision": "refuse", "reason": s}),
    "schedule": lambda s: (
        *("PUT", "/schedules/x"),
        {"cron": s, "timezone": s, "run": {"input": s}},
    ),
    "zone of a schedule": lambda s: (
        *("PUT", "/schedules/x"),
        {"cron": "0 0 1 1 *", "timezone": s, "run": {"input": s}},
    ),
    "run of a schedule": lambda s: (
        *("PUT", "/schedules/x"),
        {"cron": "0 0 1 1 *", "run": {"input": s, "metadata": {"a": s}}},
    ),
    "key": lambda s: ("POST", "/keys", {"name": s}),
    "key's tenant": lambda s: ("POST", "/keys", {"name": "k", "tenant": s, "scopes": [s]}),
    "cancel of many": lambda s: ("POST", "/runs/cancel", {"metadata": {"no": s}, "reason": s}),
    "cancel": lambda s: ("POST", "/runs/known/cancel", {"reason": s}),
}
IN_PATHS = (
    *("/runs/%s", "/runs/%s/trace", "/runs/%s/events", "/runs/%s/calls/%s", "/runs/known/calls/%s"),
    *("/runs/%s/artifacts", "/runs/known/artifacts/%s", "/runs/known/trace?format=%s"),
    *("/runs?cursor=%s", "/runs?metadata.%s=%s", "/runs?created_after=%s", "/runs?status=%s"),
    *("/runs?%s", "/runs?limit=%s", "/runs?agent=%s", "/approvals?cursor=%s", "/runs/%s/approvals"),
    *("/graphs/%s", "/graphs?cursor=%s", "/graphs/g/versions/%s", "/graphs/%s/versions"),
    *("/agents/%s", "/agents?cursor=%s", "/threads/%s", "/threads?cursor=%s"),
    *("/threads/%s/messages", "/threads/t/messages?leaf=%s", "/schedules/%s"),
    *("/schedules?cursor=%s", "/webhooks/deliveries?cursor=%s", "/webhooks/deliveries/%s"),
    *("/webhooks/deliveries?run_id=%s", "/quotas/%s", "/keys?tenant=%s"),
    *("/runs/known/events?after=%s", "/%s", "/docs/%s", "/ui/%s"),
)
DELETED = ("/runs/known?reason=%s", "/runs/%s", "/graphs/%s", "/threads/%s", "/keys/%s")
IN_HEADERS = (
    *("Idempotency-Key", "Prefer", "Last-Event-ID", "X-Request-ID", "traceparent", "Host"),
    *("Authorization", "Content-Type", "Content-Encoding", "Accept", "Forwarded"),
)


def places(text: str, approval: str) -> list[Ask]:
    """Return a request for every place that accepts a text; their number is constant."""
    raw = text.encode("utf-8", "surrogatepass")
    quoted = quote_from_bytes(raw, safe="")
    line = raw.replace(b"\r", b"").replace(b"\n", b"")  # else it would be several
    made = [make(text) for make in IN_BODIES.values()]
    return [
        *(
            Ask(method, path.format(approval=approval), json.dumps(body).encode())
            for method, path, body in made
        ),
        *(Ask("GET", path.replace("%s", quoted), headers=_ACCEPT) for path in IN_PATHS),
        *(Ask("DELETE", path.replace("%s", quoted)) for path in DELETED),
        *(Ask("POST", "/runs", b'{"input": "x"}', {name: line}) for name in IN_HEADERS),
    ]
