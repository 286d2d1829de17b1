"""``python -m tests.support.fake_provider --port 0`` prints ``{"url": ...}`` and serves.

It ends when its stdin closes, so it never outlives the test that started it.
"""

import argparse
import asyncio
import json
import sys

from tests.support.fake_provider.server import Server


async def _serve(host: str, port: int) -> None:
    server, bound = await Server().listen(host, port)
    async with server:
        print(json.dumps({"url": f"http://{host}:{bound}"}), flush=True)  # noqa: T201
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def _main() -> None:
    parser = argparse.ArgumentParser(description="A model provider whose behaviour is scripted.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.host, arguments.port))


_main()
