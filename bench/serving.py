"""Serves floors and peers by uvicorn, like this service, without importing it."""

from typing import Any

import uvicorn


class Server(uvicorn.Server):
    """Prints its address once it listens."""

    async def startup(self, sockets: Any = None) -> None:
        """Start, then print the address."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"listens on http://{host}:{port}", flush=True)


def serve(app: Any) -> None:
    """Serve an application on a free port until the process ends."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
    Server(config).run()
