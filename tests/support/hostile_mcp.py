"""An MCP server over stdio that misbehaves on demand.

Start it with ``python -m tests.support.hostile_mcp LOG``. It is written without an SDK, because no
SDK allows such invalid messages. It uses the handshake of 2025-06-18. It writes a line to the file
LOG whenever it starts, is cancelled, or ends because its stdin was closed. It omits the tools in
the variable WITHOUT from its list.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.canaries import planted

NESTED: dict[str, Any] = {"type": "object"}
for _ in range(80):
    NESTED = {"type": "object", "properties": {"in": NESTED}}

READS = {"readOnlyHint": True}
ANYTHING = {"type": "object"}


def tool(name: str, schema: Any = ANYTHING, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, **more}


TOOLS: list[dict[str, Any]] = [
    tool(
        "echo",
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        annotations=READS,
    ),
    tool("env", annotations=READS),
    tool(
        "either",
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    ),
    tool("crash"),
    tool("crash_reading", annotations=READS),
    tool("crash_first", annotations=READS),
    tool("crash_first_writing"),
    tool("quit"),
    tool("close_input"),
    tool("close_output"),
    tool("report"),
    tool("report_forever"),
    tool("hang"),
    tool("deaf"),
    tool("detach"),
    tool("endless"),
    tool("chatter"),
    tool("large"),
    tool("large_last"),
    tool("nonsense"),
    tool("refuse"),
    tool("confide"),
    tool("unstorable"),
    tool("surrogates"),
    tool("change"),
    tool("lie_type", {"type": "object", "properties": {"a": {"type": "whatever"}}}),
    tool("lie_reference", {"type": "object", "$ref": "https://elsewhere.example/schema"}),
    tool("lie_depth", NESTED),
    tool("lie_size", {"type": "object", "description": "x" * 100_000}),
    tool("lie_nul", {"type": "object", "description": "\x00"}),
    tool("bad name\n"),
    {"name": "malformed_schema", "description": "Has none."},
    tool("malformed_type", "object"),
    tool("malformed_hints", annotations="reads"),
    {"name": 7, "inputSchema": ANYTHING},
    {"name": None, "inputSchema": ANYTHING},
    tool("long", description="y\x00" * 50_000),
]


class Server:
    def __init__(self, path: Path) -> None:
        self.path = path
        without = os.environ.get("WITHOUT", "").split(",")
        self.tools = [each for each in TOOLS if each["name"] not in without]
        self.lock = threading.Lock()
        self.token: Any = None
        """Progress token of the newest call."""

    def log(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def send(self, **message: Any) -> None:
        with self.lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def text(self, number: int, text: str, **more: Any) -> None:
        self.send(id=number, result={"content": [{"type": "text", "text": text}], **more})

    def run(self) -> None:
        self.log(f"start {os.getpid()}")
        for line in sys.stdin:
            message = json.loads(line)
            method, number = message.get("method"), message.get("id")
            params = message.get("params") or {}
            if method == "initialize":
                capabilities = {"tools": {"listChanged": True}}
                info = {"name": "hostile", "version": "1"}
                self.send(
                    id=number,
                    result={
                        "protocolVersion": "2025-06-18",
                        "capabilities": capabilities,
                        "serverInfo": info,
                    },
                )
            elif method == "tools/list":
                # An empty text is a cursor, too; the one behind the last page never ends.
                first, rest = self.tools[:2], self.tools[2:]
                page = first if params.get("cursor") is None else rest
                self.send(id=number, result={"tools": page, "nextCursor": ""})
            elif method == "tools/call":
                self.token = params.get("_meta", {}).get("progressToken")
                self.call(params["name"], params.get("arguments") or {}, number)
            elif method == "notifications/cancelled":
                self.log(f"cancelled {params.get('requestId')}")
            elif number is not None:
                self.send(id=number, error={"code": -32601, "message": "Method not found"})
        self.log("stdin closed")

    def call(self, name: str, args: dict[str, Any], number: int) -> None:
        self.log(f"call {name}")
        match name:
            case "echo":
                self.text(number, args["text"])
            case "env":
                self.text(number, json.dumps(dict(os.environ)))
            case "crash" | "crash_reading":
                sys.stderr.write("kaput\n")
                sys.stderr.flush()
                os._exit(3)
            case "crash_first" | "crash_first_writing":
                if self.path.read_text().count(f"call {name}\n") == 1:
                    os._exit(3)
                self.text(number, f"did {name}")
            case "quit":
                self.text(number, f"did {name}")
                os._exit(0)
            case "close_input" | "close_output":
                self.text(number, f"did {name}")
                os.close(0 if name == "close_input" else 1)
                time.sleep(600)
            case "report" | "report_forever":
                reports = 0
                while name == "report_forever" or reports < 8:
                    reports += 1
                    time.sleep(0.4)
                    params = {"progressToken": self.token, "progress": reports, "total": 8}
                    self.send(method="notifications/progress", params=params)
                self.text(number, f"did {name}")
            case "hang":
                return
            case "deaf":
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                time.sleep(600)
            case "detach":
                sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
                child = subprocess.Popen(sleep, start_new_session=True)
                self.text(number, str(child.pid))
            case "endless":
                while True:
                    sys.stdout.write("x" * 65536)
            case "chatter":
                while True:
                    self.send(method="notifications/message", params={"level": "info", "data": 1})
            case "large":
                self.text(number, "z" * 3_000_000)
            case "large_last":
                result = json.dumps({"content": [{"type": "text", "text": "z" * 3_000_000}]})
                sys.stdout.write(f'{{"result":{result},"jsonrpc":"2.0","id":{number}}}\n')
                sys.stdout.flush()
            case "nonsense":
                self.send(id=number, result={"content": 7})
            case "refuse":
                self.text(number, "I will not.", isError=True)
            case "confide":
                self.confide(number, args["how"], planted(f"mcp {args['how']}").text)
            case "unstorable":
                self.text(number, "a\x00b", structuredContent={"a": 1, "error": "no error"})
            case "surrogates":
                structured = {"a\udc00": ["\ud800", "\U0001f600"]}
                self.text(number, "a\ud800", structuredContent=structured)
            case "change":
                self.tools = [each for each in self.tools if each["name"] != "hang"]
                self.tools.append(tool("new"))
                self.send(method="notifications/tools/list_changed")
                self.text(number, "changed")
            case _:
                self.text(number, f"did {name}")

    def confide(self, number: int, how: str, text: str) -> None:
        """Answer with canaries, fail with them, or break the call with them."""
        if how == "break":
            self.send(id=number, error={"code": -32000, "message": text, "data": text})
        else:
            self.text(number, text, isError=how == "fail")
        sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    Server(Path(sys.argv[1])).run()
