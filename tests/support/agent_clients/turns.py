"""An agent that keeps no state: it asks for its turns in order, each with the whole conversation.

Usage: ``turns.py URL KEY NAME TURNS STREAMED``. After each turn it prints a line
of JSON and waits for a line.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx


def answer(client: httpx.Client, body: dict[str, Any]) -> str:
    """Return the text of one reply, whose stream must be complete."""
    if not body["stream"]:
        reply = client.post("/chat/completions", json=body).raise_for_status().json()
        return str(reply["choices"][0]["message"]["content"])
    with client.stream("POST", "/chat/completions", json=body) as stream:
        return "".join(_pieces(stream.raise_for_status()))


def _pieces(stream: httpx.Response) -> Iterator[str]:
    for line in stream.iter_lines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        if data:
            choices = json.loads(data)["choices"]
            yield from (each["delta"].get("content") or "" for each in choices)
    raise RuntimeError("the stream has no end")


def main(url: str, key: str, name: str, turns: str, streamed: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    messages: list[dict[str, str]] = []
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=150) as client:
        for turn in range(1, int(turns) + 1):
            messages.append({"role": "user", "content": f"{name} turn {turn}"})
            body = {"model": "small", "messages": messages, "stream": streamed == "streamed"}
            messages.append({"role": "assistant", "content": answer(client, body)})
            sys.stdout.write(json.dumps({"turn": turn, "text": messages[-1]["content"]}) + "\n")
            sys.stdout.flush()
            sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
