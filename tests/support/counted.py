"""The test's side of the counting provider: it starts it, sets its replies and reads its counts."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx
from genai_prices import Usage, calc_price

from bench.environments import peer_environment
from tests.support.processes import ChildProcess

TOKENIZER = "bpe-openai==0.1.4"
_WAIT_SECONDS = 120.0


class CountingProvider:
    """A running counting provider: ``async with CountingProvider() as provider``."""

    _child: ChildProcess
    _url: str

    async def __aenter__(self) -> Self:
        environment = await peer_environment(TOKENIZER)
        (packages,) = environment.python.parents[1].glob("lib/*/site-packages")
        module = ("-m", "tests.support.counting_provider")
        env = {"PYTHONPATH": str(packages)}
        self._child = ChildProcess.python(*module, env=env, name="counting").start()
        self._url = (await self._child.json_line("url"))["url"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._child.close()

    @property
    def base_urls(self) -> Mapping[str, str]:
        """The base URL of each provider's API."""
        return {"openai": f"{self._url}/v1", "anthropic": self._url}

    async def plan(
        self,
        replies: Sequence[Mapping[str, Any]],
        *,
        tokens_per_second: float,
        first_seconds: float = 0,
    ) -> None:
        """Set the replies of the next calls, and clear the counts; the last reply is repeated."""
        plan = {
            "replies": replies,
            "tokens_per_second": tokens_per_second,
            "first_seconds": first_seconds,
        }
        async with self._client() as client:
            (await client.post("/plan", json=plan)).raise_for_status()

    async def calls(self, **until: int) -> list[dict[str, Any]]:
        """Return the counts of all calls, once ``ended`` calls ended, or one ``generated`` tokens.

        Each is a :class:`tests.support.counting_provider.Call` as JSON.
        """
        async with self._client() as client:
            answer = await client.get("/calls", params=until)
            calls: list[dict[str, Any]] = answer.raise_for_status().json()
            return calls

    async def count(self, body: Mapping[str, Any]) -> int:
        """Return the number of input tokens of a body of any dialect."""
        async with self._client() as client:
            answer = await client.post("/v1/messages/count_tokens", json=body)
            return int(answer.raise_for_status().json()["input_tokens"])

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self._url, trust_env=False, timeout=_WAIT_SECONDS)


def cost_of(provider: str, model: str, call: Mapping[str, Any]) -> float:
    """Return the list price of a call by the provider's counts, in dollars."""
    usage = Usage(
        input_tokens=call["tokens_in"],
        cache_read_tokens=call["tokens_cached"],
        cache_write_tokens=call["tokens_written"],
        cache_write_1h_tokens=call["tokens_written_1h"],
        output_tokens=round(call["tokens_out"]),
    )
    return float(calc_price(usage, model, provider_id=provider).total_price)
