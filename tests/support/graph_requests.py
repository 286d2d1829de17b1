"""Requests about graphs, and access to their problems."""

from typing import Any

import httpx


async def register(client: httpx.AsyncClient, name: str, graph: dict[str, Any]) -> httpx.Response:
    """Register a graph under a name."""
    return await client.post("/graphs", json={"name": name, "graph": graph})


def problem_of(answer: httpx.Response) -> str:
    """Return the last part of a problem's type."""
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).rpartition(":")[2]


def fields(answer: httpx.Response) -> list[str]:
    """Return the invalid fields of a request."""
    assert (answer.status_code, problem_of(answer)) == (422, "invalid-request")
    return [error["field"] for error in answer.json()["errors"]]


def field_messages(answer: httpx.Response) -> dict[str, str]:
    """Return the messages about the invalid fields of a request, by field."""
    return dict(zip(fields(answer), (e["message"] for e in answer.json()["errors"]), strict=True))
