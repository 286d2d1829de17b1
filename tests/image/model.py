"""A model endpoint that holds its replies; a container of the image runs this file.

A prompt such as ``killed: first 2`` is answered once its gate, the part before the number, is
open. ``GET /prompts`` returns all prompts in the order of their arrival, and ``POST /open`` opens
the gate that its body names.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8000
arrivals: list[str] = []
gates: set[str] = set()
changed = threading.Condition()


class Handler(BaseHTTPRequestHandler):
    """Answers chat completions of one turn."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Return the prompts."""
        self.reply(arrivals)

    def do_POST(self) -> None:
        """Open a gate, or answer a prompt once its gate is open."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/open":
            with changed:
                gates.add(body)
                changed.notify_all()
            self.reply(None)
            return
        prompt: str = json.loads(body)["messages"][-1]["content"]
        with changed:
            arrivals.append(prompt)
            changed.wait_for(lambda: prompt.rpartition(" ")[0] in gates)
        message = {"role": "assistant", "content": f"Answer to {prompt}."}
        self.reply(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": "held",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
            }
        )

    def reply(self, value: Any) -> None:
        """Send a value as JSON."""
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
