"""A client of the service's HTTP API."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

DEFAULT_TIMEOUT_SECONDS = 10.0


class ApiError(Exception):
    """The service refused; carries its problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(_told(status, problem))
        self.status = status
        self.problem = problem


class ServiceUnreachableError(Exception):
    """Nobody answers at the service's address."""


class CaseworkerClient:
    """Posts runs, stops them and looks at them.

    Every method raises :class:`ApiError` if the service refuses, and
    :class:`ServiceUnreachableError` if it does not answer.
    """

    def __init__(self, url: str, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    async def get_run(self, run_id: str) -> dict[str, Any]:
        """Return a run."""
        return await self._json("GET", f"/runs/{run_id}")

    async def cancel_run(self, run_id: str, *, reason: str | None = None) -> dict[str, Any]:
        """Ask a run to stop; return the receipt."""
        params = {} if reason is None else {"reason": reason}
        return await self._json("DELETE", f"/runs/{run_id}", params=params)

    async def trace(self, run_id: str) -> dict[str, Any]:
        """Return the trace of a run."""
        return await self._json("GET", f"/runs/{run_id}/trace")

    async def explain(self, run_id: str) -> str:
        """Return the trace of a run as text for people."""
        answer = await self._send("GET", f"/runs/{run_id}/trace", params={"format": "explain"})
        return answer.text

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


def _problem(answer: httpx.Response) -> dict[str, Any]:
    try:
        problem = answer.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _told(status: int, problem: Mapping[str, Any]) -> str:
    told = [str(problem.get("detail") or problem.get("title") or f"The service answered {status}.")]
    told += [f"{error.get('field')}: {error.get('message')}" for error in problem.get("errors", ())]
    return "\n".join(told)
