"""The test's side of the fake provider: it starts and scripts it, and reads its record."""

import ssl
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.fake_provider.arrivals import Arrival
from tests.support.fake_provider.script import Step
from tests.support.processes import ChildProcess

_WAIT_SECONDS = 120.0
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # spares every call the loading of roots


class FakeProvider:
    """A running fake provider: ``async with FakeProvider() as provider``.

    No connection is kept between calls, so tests with different event loops can share one provider.
    """

    def __init__(self, *program: str) -> None:
        """``program`` is an alternative module with the same interface, and its arguments."""
        self._child = ChildProcess.python(
            "-m", *(program or ("tests.support.fake_provider",)), name="provider"
        )
        self._url: str | None = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def start(self) -> Self:
        """Start the process and wait until it listens."""
        self._child.start()
        self._url = (await self._child.json_line("url"))["url"]
        return self

    def stop(self) -> None:
        """End the process."""
        self._child.close()

    @property
    def process(self) -> ChildProcess:
        """The process, for tests that freeze or kill it."""
        return self._child

    @property
    def url(self) -> str:
        """The address; also the base URL for Anthropic clients."""
        assert self._url is not None, "start the provider first"
        return self._url

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.url}/v1"

    async def script(
        self,
        marker: str,
        steps: Sequence[Step],
        *,
        model: str | None = None,
        repeat_last: bool = False,
    ) -> None:
        """Treat prompts that contain ``marker`` with these steps, in order."""
        document = {
            "marker": marker,
            "model": model,
            "repeat_last": repeat_last,
            "steps": [asdict(step) for step in steps],
        }
        await self._call("POST", "/control/script", json=document)

    async def answer_by_default(self, step: Step) -> None:
        """Treat every prompt without a script with this step."""
        await self._call("POST", "/control/default", json=asdict(step))

    async def limit(self, *, burst: float, per_second: float) -> None:
        """Answer 429 to requests beyond ``burst`` at once and ``per_second`` afterwards."""
        await self._call("POST", "/control/rate", json={"burst": burst, "per_second": per_second})

    async def release(self) -> None:
        """Answer the requests that hang now."""
        await self._call("POST", "/control/release")

    async def reset(self) -> None:
        """Clear scripts and arrivals, and release hanging requests."""
        await self._call("POST", "/control/reset")

    async def arrivals(self, containing: str = "", *, bodies: bool = False) -> list[Arrival]:
        """Return the requests whose prompt contains a text, oldest first; bodies are optional."""
        return await self._arrivals(containing=containing, bodies=str(bodies).lower())

    async def wait_for_arrivals(
        self,
        count: int,
        containing: str = "",
        *,
        ended: bool = False,
        timeout_seconds: float = _WAIT_SECONDS,
    ) -> list[Arrival]:
        """Wait until ``count`` matching requests have arrived, or with ``ended`` until they end.

        Raises:
            TimeoutError: Fewer requests arrived in time.
        """
        return await self._arrivals(
            containing=containing,
            ended=str(ended).lower(),
            at_least=str(count),
            timeout_seconds=str(timeout_seconds),
        )

    async def count(
        self, containing: str, *, at_least: int = 0, timeout_seconds: float = _WAIT_SECONDS
    ) -> int:
        """Return the number of matching requests once it reaches ``at_least``.

        Raises:
            TimeoutError: Fewer requests arrived in time.
        """
        query = {"containing": containing, "at_least": str(at_least), "counted": "true"}
        query["timeout_seconds"] = str(timeout_seconds)
        answer = await self._call("GET", "/control/arrivals", params=query)
        if not answer["reached"]:
            raise TimeoutError(f"{answer['count']} arrivals instead of {at_least}")
        return int(answer["count"])

    async def _arrivals(self, **query: str) -> list[Arrival]:
        answer = await self._call("GET", "/control/arrivals", params=query)
        arrivals = [Arrival(**entry) for entry in answer["arrivals"]]
        if "at_least" in query and not answer["reached"]:
            raise TimeoutError(f"{len(arrivals)} arrivals instead of {query['at_least']}")
        return arrivals

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=self.url, trust_env=False, verify=_NO_TLS, limits=limits, timeout=200
        ) as client:
            response = await client.request(method, path, **options)
            response.raise_for_status()
            document: dict[str, Any] = response.json()
            return document
