"""Both clients behind one interface, so that one test covers both."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import httpx
from caseworker_client import AsyncCaseworkerClient, CaseworkerClient, RetryPolicy

Kind = Literal["sync", "async"]
Answering = Callable[[httpx.Request], httpx.Response]

_END = object()


class Caller:
    """Calls methods of a client by name; the blocking client runs in a thread."""

    def __init__(self, client: CaseworkerClient | AsyncCaseworkerClient) -> None:
        self.client = client

    async def do(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Return the result of a method."""
        if isinstance(self.client, CaseworkerClient):
            return await asyncio.to_thread(getattr(self.client, method), *arguments, **named)
        return await getattr(self.client, method)(*arguments, **named)

    async def each(self, method: str, *arguments: Any, **named: Any) -> AsyncGenerator[Any, None]:
        """Yield the items that a method iterates over."""
        found = getattr(self.client, method)(*arguments, **named)
        if isinstance(self.client, AsyncCaseworkerClient):
            async for value in found:
                yield value
            return
        while (value := await asyncio.to_thread(next, found, _END)) is not _END:
            yield value

    async def close(self) -> None:
        """Close the client."""
        if isinstance(self.client, CaseworkerClient):
            self.client.close()
        else:
            await self.client.close()


class Callers:
    """Opens clients of one kind."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._opened: list[Caller] = []

    def of(self, url: str, **options: Any) -> Caller:
        """Return a client of a service; it is closed at the end of the test."""
        made = {"sync": CaseworkerClient, "async": AsyncCaseworkerClient}[self._kind](
            url, **{"retry": RetryPolicy(pause_factor=0.2), "timeout_seconds": 30, **options}
        )
        self._opened.append(Caller(made))
        return self._opened[-1]

    def answered_by(self, answering: Answering, **options: Any) -> Caller:
        """Return a client whose requests a function answers, without pauses between retries."""
        retry = options.pop("retry", RetryPolicy(pause_factor=0))
        return self.of(
            "http://made.up", transport=httpx.MockTransport(answering), retry=retry, **options
        )

    async def close(self) -> None:
        """Close all clients."""
        for caller in self._opened:
            await caller.close()
