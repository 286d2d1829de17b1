"""How floors and peers are served: by uvicorn, as this service is; it imports nothing of it."""

from typing import Any

import uvicorn


class Server(uvicorn.Server):
    """Says where it listens."""

    async def startup(self, sockets: Any = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"listens on http://{host}:{port}", flush=True)


def serve(app: Any) -> None:
    """Serve an application on any free port until the process is ended."""
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
