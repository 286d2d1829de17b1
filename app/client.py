"""A client of the service's HTTP API."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

DEFAULT_TIMEOUT_SECONDS = 10.0
SILENCE_SECONDS: Final = 60.0
"""How long a stream of events may say nothing, although the service keeps it open by comments."""
_PAUSE_SECONDS: Final = 1.0
"""Before a stream that brought nothing is opened again."""
_ENDS: Final = frozenset({"run.completed", "run.failed", "run.halted", "run.cancelled"})


class ApiError(Exception):
    """The service refused; carries its problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(_message(status, problem))
        self.status = status
        self.problem = problem


class ServiceUnreachableError(Exception):
    """Nobody answers at the service's address."""


class CaseworkerClient:
    """Posts runs, stops them and looks at them.

    Every method raises :class:`ApiError` if the service refuses, and
    :class:`ServiceUnreachableError` if it does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Call the service at ``url``, or by a ``transport`` of the caller's."""
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._http = httpx.AsyncClient(
            base_url=self.url, timeout=timeout_seconds, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post_run(
        self, body: Mapping[str, Any], *, wait_seconds: int = 0, idempotency_key: str | None = None
    ) -> dict[str, Any]:
        """Post a run; wait for its end for up to ``wait_seconds``."""
        headers = {"Prefer": f"wait={wait_seconds}"} if wait_seconds else {}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        timeout = self._timeout_seconds + wait_seconds
        return await self._json("POST", "/runs", json=dict(body), headers=headers, timeout=timeout)

    async def run_graph(
        self,
        graph: Mapping[str, Any],
        *,
        inputs: Mapping[str, Any] | None = None,
        wait_seconds: int = 0,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Post a run of a graph, given itself or as ``{"name", "version"?}``.

        ``fields`` are others of the body, such as ``run_id``, ``budget`` and ``metadata``.
        """
        body = {"kind": "graph", "graph": dict(graph), "inputs": dict(inputs or {}), **fields}
        return await self.post_run(body, wait_seconds=wait_seconds, idempotency_key=idempotency_key)

    async def get_run(self, run_id: str) -> dict[str, Any]:
        """Return a run."""
        return await self._json("GET", f"/runs/{run_id}")

    async def list_runs(
        self, *, status: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> dict[str, Any]:
        """Return a page of runs, newest first."""
        chosen = {} if status is None else {"status": status}
        return await self._json("GET", "/runs", params=_page(limit, cursor) | chosen)

    async def events(self, run_id: str, *, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a run behind a number, once each, until it has ended.

        A stream that is cut off is opened again where it ended, as long as the service answers.
        """
        ended = False
        while not ended:
            seen = after
            async for event in self._stream(f"/runs/{run_id}/events", after):
                yield event
                after, ended = event["seq"], ended or event["type"] in _ENDS
            if after == seen and not ended:  # nothing came: it may have ended before ``after``
                page = await self._json(
                    "GET",
                    f"/runs/{run_id}/events",
                    params={"after": str(after), "limit": "1"},
                    headers={"Accept": "application/json"},
                )
                ended = page["next_after"] is None
                await asyncio.sleep(0 if ended else _PAUSE_SECONDS)

    async def _stream(self, path: str, after: int) -> AsyncIterator[dict[str, Any]]:
        """Yield what one stream of events brings until it ends or is cut off."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        opened = self._http.stream("GET", path, headers=headers, timeout=SILENCE_SECONDS)
        begun = False
        try:
            async with opened as answer:
                if answer.is_error:
                    await answer.aread()
                    raise ApiError(answer.status_code, _problem(answer))
                begun = True
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
        except httpx.TransportError as error:
            if not begun:
                raise ServiceUnreachableError(f"No answer from {self.url}: {error}") from error

    async def cancel_run(self, run_id: str, *, reason: str | None = None) -> dict[str, Any]:
        """Cancel a run, which need not exist yet; return the receipt."""
        params = {} if reason is None else {"reason": reason}
        return await self._json("DELETE", f"/runs/{run_id}", params=params)

    async def trace(self, run_id: str) -> dict[str, Any]:
        """Return the trace of a run."""
        return await self._json("GET", f"/runs/{run_id}/trace")

    async def explain(self, run_id: str) -> str:
        """Return the trace of a run as text for people."""
        answer = await self._send("GET", f"/runs/{run_id}/trace", params={"format": "explain"})
        return answer.text

    async def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        """Return the files that a run has made so far, without their bytes."""
        listed = await self._json("GET", f"/runs/{run_id}/artifacts")
        found: list[dict[str, Any]] = listed["artifacts"]
        return found

    async def artifact(self, run_id: str, name: str) -> bytes:
        """Return the bytes of a file that a run has made."""
        answer = await self._send("GET", f"/runs/{run_id}/artifacts/{quote(name, safe='')}")
        return answer.content

    async def service_version(self) -> str:
        """Return which version of the service answers."""
        document = await self._json("GET", "/openapi.json")
        return str(document["info"]["version"])

    async def models(self) -> dict[str, Any]:
        """Return the model of each tier, ``small`` and ``big``."""
        listed = await self._json("GET", "/models")
        tiers: dict[str, Any] = listed["models"]
        return tiers

    async def register_graph(
        self, name: str, graph: Mapping[str, Any], *, description: str | None = None
    ) -> dict[str, Any]:
        """Register a graph as the next version of its name; return the version."""
        body = {"name": name, "graph": dict(graph), "description": description}
        return await self._json("POST", "/graphs", json=body)

    async def validate_graph(self, graph: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether a graph could be run, and everything that is wrong with it."""
        return await self._json("POST", "/graphs/validate", json={"graph": dict(graph)})

    async def get_graph(self, name: str, version: int | None = None) -> dict[str, Any]:
        """Return a registered graph, its newest version unless one is given."""
        return await self._json("GET", _graph_path(name, version))

    async def list_graphs(self, *, limit: int = 50, cursor: str | None = None) -> dict[str, Any]:
        """Return a page of the newest versions of all registered graphs, by name."""
        return await self._json("GET", "/graphs", params=_page(limit, cursor))

    async def list_graph_versions(
        self, name: str, *, limit: int = 50, cursor: str | None = None
    ) -> dict[str, Any]:
        """Return a page of the versions of a registered graph, newest first."""
        path = f"{_graph_path(name)}/versions"
        return await self._json("GET", path, params=_page(limit, cursor))

    async def delete_graph(self, name: str, version: int | None = None) -> None:
        """Delete a registered graph: one version of it, or all."""
        await self._send("DELETE", _graph_path(name, version))

    async def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = await self._send(method, path, **options)
        body: dict[str, Any] = answer.json()
        return body

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise ServiceUnreachableError(f"No answer from {self.url}: {error}") from error
        if answer.is_error:
            raise ApiError(answer.status_code, _problem(answer))
        return answer


def _graph_path(name: str, version: int | None = None) -> str:
    path = f"/graphs/{quote(name, safe='')}"
    return path if version is None else f"{path}/versions/{version}"


def _page(limit: int, cursor: str | None) -> dict[str, str]:
    return {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})


def _problem(answer: httpx.Response) -> dict[str, Any]:
    try:
        problem = answer.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _message(status: int, problem: Mapping[str, Any]) -> str:
    parts = [
        str(part).rstrip(".") for part in (problem.get("title"), problem.get("detail")) if part
    ]
    lines = [f"{'. '.join(parts)}." if parts else f"The service answered {status}."]
    lines += [f"{each.get('field')}: {each.get('message')}" for each in problem.get("errors", ())]
    return "\n".join(lines)
