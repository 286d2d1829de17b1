"""Servers of other projects that are ASGI applications, each in its own environment."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.environments import Environment
from tests.support.processes import ChildProcess

_SERVE: Final = """
import json, socket, sys, uvicorn
listening = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"url": "http://127.0.0.1:%s" % listening.getsockname()[1]}), flush=True)
uvicorn.run(sys.argv[1], fd=listening.fileno())
"""


@asynccontextmanager
async def served(
    environment: Environment, app: str, path: str, *, settings: Mapping[str, str], folder: Path
) -> AsyncIterator[str]:
    """Run an application until the block ends; yield its address once ``path`` answers 200."""
    command = [str(environment.python), "-u", "-c", _SERVE, app]
    env = {**settings, "NO_PROXY": "*"}
    with ChildProcess(command, env=env, cwd=folder, name="peer-server") as child:
        url = str((await child.json_line("url"))["url"])
        await child.ready(url + path)
        yield url
