"""Every operation of the OpenAPI document, tried with the key of a run."""

import re

import httpx

METHODS = {"get", "head", "put", "post", "patch", "delete"}

BODIES = {
    "POST /runs": {"kind": "external"},
    "POST /runs/{run_id}/finish": {"output": 1},
    "POST /runs/cancel": {"metadata": {"team": "a"}},
    "POST /keys": {"name": "more", "scopes": ["admin"]},
}


async def operations(http: httpx.AsyncClient) -> list[str]:
    """Return all operations of the OpenAPI document, as ``GET /runs/{run_id}``."""
    paths = (await http.get("/openapi.json")).json()["paths"]
    return [
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method in methods
        if method in METHODS
    ]


async def tried(http: httpx.AsyncClient, operation: str, run_id: str) -> int:
    """Return the status of an operation; all its names but that of the run name nothing."""
    method, path = operation.split(" ")
    path = re.sub(r"\{\w+\}", "1", path.replace("{run_id}", run_id))
    body = BODIES.get(operation, {}) if method in ("POST", "PUT", "PATCH") else None
    accept = {"Accept": "application/json"}
    return (await http.request(method, path, json=body, headers=accept)).status_code
