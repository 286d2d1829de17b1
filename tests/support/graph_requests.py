"""Asking the API about graphs, and reading its problems."""

from typing import Any

import httpx


async def register(client: httpx.AsyncClient, name: str, graph: dict[str, Any]) -> httpx.Response:
    """Register a graph under a name."""
    return await client.post("/graphs", json={"name": name, "graph": graph})


def problem_of(answer: httpx.Response) -> str:
    """The last word of a problem's type."""
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).rpartition(":")[2]


def fields(answer: httpx.Response) -> list[str]:
    """The fields at fault of a request that is not valid."""
    assert (answer.status_code, problem_of(answer)) == (422, "invalid-request")
    return [error["field"] for error in answer.json()["errors"]]
