"""Everything that a service shows or stores, as texts in which a secret could leak."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
from psycopg import sql

PAYLOAD = frozenset({"answer", "evidence", "outputs"})
"""The fields of a result that its caller requested."""


@dataclass(frozen=True, slots=True)
class Surface:
    """One named text."""

    name: str
    text: str


def columns_of(database_url: str) -> Iterator[Surface]:
    """Yield every value of every table, named ``table.column``."""
    with psycopg.connect(database_url) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        ).fetchall()
        for (table,) in tables:
            query = sql.SQL("SELECT to_jsonb(row) FROM {} AS row").format(sql.Identifier(table))
            for (row,) in connection.execute(query).fetchall():
                for column, value in row.items():
                    if value is not None:
                        yield Surface(f"{table}.{column}", plain(value))


async def views_of(http: httpx.AsyncClient, run_id: str) -> list[Surface]:
    """Return all views of a run, without the payload that its caller sent or requested."""
    run = (await http.get(f"/runs/{run_id}")).json()
    shown = [Surface("run", plain(without_payload(run)))]
    json_only = {"Accept": "application/json"}
    for name, path, headers in (
        ("trace", f"/runs/{run_id}/trace", {}),
        ("payloads", f"/runs/{run_id}/trace?payloads=true", {}),
        ("explain", f"/runs/{run_id}/trace?format=explain", {}),
        ("event page", f"/runs/{run_id}/events", json_only),
        ("event stream", f"/runs/{run_id}/events", {"Accept": "text/event-stream"}),
        ("receipt", "", {}),
    ):
        if path:
            answer = await http.get(path, headers=headers)
        else:
            answer = await http.delete(f"/runs/{run_id}")
        assert answer.is_success, (name, answer.text)
        shown.append(Surface(name, answer.text))
        if name == "trace":
            for node_id in answer.json()["snapshot"]["nodes"]:
                call = await http.get(f"/runs/{run_id}/calls/{node_id}")
                assert call.is_success, call.text
                shown.append(Surface("call", call.text))
    return shown


def without_payload(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the view of a run without echoed input and without the payload of its result."""
    shown = {name: run[name] for name in run if name not in ("metadata", "concurrency_key")}
    result = shown.get("result") or {}
    return {**shown, "result": {name: result[name] for name in result if name not in PAYLOAD}}


def plain(value: Any) -> str:
    """Return a JSON value as text without escapes that could hide a canary."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
