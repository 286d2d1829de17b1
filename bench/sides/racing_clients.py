"""Sends the same streamed model call many times in parallel and counts the answers by status."""

import asyncio
from collections import Counter
from typing import Any

import httpx

from bench.answering import answer


async def _send(client: httpx.AsyncClient, url: str, body: dict[str, Any], leaves: bool) -> str:
    async with client.stream("POST", url, json=body) as reply:
        if leaves and reply.status_code == 200:
            async for line in reply.aiter_lines():
                if '"content":" ' in line.replace('": ', '":'):
                    return "cancelled"
        text = (await reply.aread()).decode()
    if reply.status_code == 200 and body.get("stream") and "data: [DONE]" not in text:
        return "interrupted"
    return str(reply.status_code)


async def _race(
    url: str, headers: dict[str, str], body: dict[str, Any], calls: int, *, leaves: bool = False
) -> list[str]:
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(headers=headers, trust_env=False, timeout=120, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        sent = [group.create_task(_send(client, url, body, leaves)) for _ in range(calls)]
        await asyncio.wait(sent)
    return [each.result() for each in sent]


def race(**arguments: Any) -> dict[str, int]:
    """Return how many of ``calls`` parallel calls ended with each status.

    With ``leaves``, each client disconnects after the first text of its reply.
    """
    return Counter(asyncio.run(_race(**arguments)))


if __name__ == "__main__":
    answer({"race": race})
