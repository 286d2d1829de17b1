"""Chat in a thread: ask two questions, then edit the second one, which creates a branch."""

from typing import Any

import httpx
from caseworker_client import StreamedText
from local_service import connected

AGENT = {
    "name": "guide",
    "prompt": {"system": "Answer in one short sentence."},
    "model": {"temperature": 0, "max_output_tokens": 40},
}

with (
    connected(recording="chat.jsonl") as client,
    httpx.Client(base_url=client.settings.base_url) as http,
):

    def post(path: str, body: dict[str, Any]) -> Any:
        """POST a body and return the JSON response."""
        return http.post(path, json=body).raise_for_status().json()

    def show_answer(turn: Any) -> None:
        """Print the user message, and the answer once it is complete."""
        text = StreamedText()
        for event in client.stream_events(turn["run"]["run_id"]):
            text.add(event)
        print(f"user: {turn['user']['content']}\nassistant: {text.content}")

    thread = f"/threads/{post('/threads', {'agent': AGENT})['thread_id']}/messages"
    show_answer(post(thread, {"content": "What is the capital of France?"}))
    second = post(thread, {"content": "And of Italy?"})
    show_answer(second)
    edited = f"{thread}/{second['user']['message_id']}/edit"
    show_answer(post(edited, {"content": "And which river flows through it?"}))
    for leaf in (second, None):
        chosen = {"leaf": second["assistant"]["message_id"]} if leaf else {}
        branch = http.get(thread, params=chosen).raise_for_status().json()["messages"]
        print("branch:", " / ".join(message["content"] for message in branch))
