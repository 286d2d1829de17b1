"""A client that returns the raw JSON of the service, for tests of that JSON."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self

import httpx
from caseworker_client import AsyncCaseworkerClient, RetryPolicy


class JsonClient:
    """Sends each request once and returns the answer as JSON values."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url
        self._typed = AsyncCaseworkerClient(
            url,
            timeout_seconds=timeout_seconds,
            retry=RetryPolicy(attempts=1),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._typed.close()

    async def post_run(
        self, body: Mapping[str, Any], *, wait_seconds: int = 0, idempotency_key: str | None = None
    ) -> dict[str, Any]:
        """Post a run; wait for its end for up to ``wait_seconds``."""
        run = await self._typed.create_run(
            body, wait_seconds=wait_seconds, idempotency_key=idempotency_key
        )
        return run.as_json()

    async def run_graph(
        self,
        graph: Mapping[str, Any],
        *,
        inputs: Mapping[str, Any] | None = None,
        wait_seconds: int = 0,
        **fields: Any,
    ) -> dict[str, Any]:
        """Post a run of a graph; ``fields`` are other fields of the body."""
        run = await self._typed.run_graph(graph, inputs=inputs, wait_seconds=wait_seconds, **fields)
        return run.as_json()

    async def get_run(self, run_id: str) -> dict[str, Any]:
        """Return a run."""
        return (await self._typed.get_run(run_id)).as_json()

    async def list_runs(self) -> dict[str, Any]:
        """Return the first page of runs."""
        return (await self._typed.list_runs()).as_json()

    async def cancel_run(self, run_id: str, *, reason: str | None = None) -> dict[str, Any]:
        """Cancel a run; return the receipt."""
        return (await self._typed.cancel_run(run_id, reason=reason)).as_json()

    async def answer_call(self, run_id: str, call_id: str, output: Any) -> dict[str, Any]:
        """Answer a call of a client's tool."""
        return (await self._typed.answer_call(run_id, call_id, output)).as_json()

    async def trace(self, run_id: str) -> dict[str, Any]:
        """Return the trace of a run."""
        return (await self._typed.get_trace(run_id)).as_json()

    async def explain(self, run_id: str) -> str:
        """Return the trace of a run as text."""
        return await self._typed.explain_run(run_id)

    async def events(self, run_id: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a run until it has ended."""
        async with aclosing(self._typed.stream_events(run_id)) as events:
            async for event in events:
                yield event.as_json()

    async def artifact(self, run_id: str, name: str) -> bytes:
        """Return the bytes of a file of a run."""
        return await self._typed.get_artifact(run_id, name)

    async def register_graph(self, name: str, graph: Mapping[str, Any]) -> dict[str, Any]:
        """Register a graph."""
        return (await self._typed.register_graph(name, graph)).as_json()

    async def delete_graph(self, name: str) -> None:
        """Delete all versions of a graph."""
        await self._typed.delete_graph(name)
