"""Replies of the Responses API, and the objects that replies name."""

import json
from typing import Any

from caseworker.gateway.dialects.offered import objects_in
from caseworker.models.ports import Incomplete, ModelReply
from caseworker.models.wires.reply_body import ReplyBody
from caseworker.models.wires.responses import ResponseReply

MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "content": [
        {
            "type": "output_text",
            "text": "Here it is.",
            "annotations": [{"file_id": "cfile_1", "container_id": "cntr_1"}, {"url": "x"}],
        }
    ],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "add", "arguments": "{}"}
ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_2"},
    MESSAGE,
    CALL,
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "b", "name": "run", "input": "ls"},
    {"type": "local_shell_call", "id": "ls_1", "call_id": "c", "action": {"command": ["ls"]}},
]
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "model": "m-1",
    "status": "completed",
    "error": None,
    "output": ITEMS,
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
    },
}


def _read(*documents: Any) -> ModelReply | None:
    answer = ResponseReply("asked", "openai")
    for document in documents:
        answer.add(document)
    answer.prose.end()
    return answer.reply()


def test_a_whole_response_is_read() -> None:
    """Calls with a ``call_id`` are those that the client executes."""
    reply = _read(RESPONSE)

    assert reply is not None
    assert (reply.text, reply.thinking, reply.model) == ("Here it is.", "Hm.", "m-1")
    calls = [(call.id, call.name, call.arguments) for call in reply.tool_calls]
    assert calls == [
        ("a", "add", "{}"),
        ("b", "run", "ls"),
        ("c", "local_shell_call", '{"command": ["ls"]}'),
    ]
    usage = reply.usage
    assert usage is not None
    counts = (usage.tokens_in, usage.tokens_out, usage.tokens_cached, usage.tokens_reasoning)
    assert counts == (9, 5, 4, 2)
    assert reply.incomplete is None


def test_the_texts_of_a_response_are_received_once() -> None:
    """The maximum of a reply is computed from them; the last event of a stream repeats them."""
    whole, streamed = ResponseReply("asked", "openai"), ResponseReply("asked", "openai")
    whole.add(RESPONSE)
    for item in ITEMS:
        streamed.add({"type": "response.output_item.done", "item": item})
    streamed.add({"type": "response.completed", "response": RESPONSE})

    assert "Here it is." in "".join(whole.received)
    assert "".join(streamed.received) == "".join(whole.received)


def test_a_stream_whose_last_event_has_no_items_is_read_from_its_items() -> None:
    """Some endpoints send the items only once."""
    items = [{"type": "response.output_item.done", "item": each} for each in ITEMS]

    last = {"type": "response.completed", "response": {**RESPONSE, "output": []}}

    assert _read(*items) is None
    assert _read(*items, last) == _read(RESPONSE)


def test_an_incomplete_response_and_a_refusal_are_marked() -> None:
    """The reason is that of the response."""
    cut = {
        **RESPONSE,
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    part = {"type": "refusal", "refusal": "No."}
    refused = {**RESPONSE, "output": [{"type": "message", "content": [part]}]}

    found = [_read({"type": "response.incomplete", "response": cut}), _read(refused)]

    assert [each and each.incomplete for each in found] == [Incomplete.LENGTH, Incomplete.REFUSAL]


def test_odd_responses_are_read() -> None:
    """A field of another type never fails the reading."""
    odds: list[Any] = [None, 7, "x", [], {}, [None], [{"type": None, "content": [{"text": 7}]}]]
    for odd in odds:
        names = ("output", "usage", "incomplete_details", "status", "model", "id")
        for name in names:
            _read({"type": "response.completed", "response": {**RESPONSE, name: odd}})
        for name in ("content", "summary", "arguments", "name", "call_id", "type"):
            _read({**RESPONSE, "output": [{**MESSAGE, name: odd}, {**CALL, name: odd}]})
        for name in ("response", "container", "content", "delta", "output"):
            list(objects_in({**RESPONSE, name: odd}))


def test_the_last_event_ends_the_stream_even_if_another_one_follows() -> None:
    """Some endpoints send the marker of chat completions afterwards."""
    body = ReplyBody()
    last = json.dumps({"type": "response.completed", "response": RESPONSE})

    found = list(body.feed(f"event: response.completed\ndata: {last}\n\n".encode()))
    after = list(body.feed(b"data: [DONE]\n\n"))

    assert (len(found), body.is_done, after) == (1, True, [])


def test_the_objects_that_a_reply_names_are_found_in_both_apis() -> None:
    """Arguments that a model writes, and repeated fields of the request, are left out."""
    ids = ["resp_1", "rs_1", "ci_1", "cntr_2", "msg_1", "cfile_1", "cntr_1", "fc_1", "ct_1", "ls_1"]
    stolen = {"metadata": {"file_id": "f"}, "tools": [{"file_ids": ["f"]}], "conversation": "c"}
    run = {"type": "tool_use", "id": "t", "name": "run", "input": {"file_id": "f"}}
    output = {"type": "code_execution_output", "file_id": "file_1"}
    result = {"type": "code_execution_tool_result", "content": {"content": [output]}}

    message = {"type": "message", "container": {"id": "container_1"}, "content": [run, result]}
    delta = {"type": "message_delta", "delta": {"container": {"id": "container_1"}}}
    block = {"type": "content_block_start", "content_block": result}

    def named(document: dict[str, Any]) -> list[Any]:
        return [each for each in objects_in(document) if each]

    assert named({**RESPONSE, **stolen}) == ids
    assert named({"type": "response.completed", "response": {**RESPONSE, **stolen}}) == ids
    assert named(message) == ["container_1", "file_1"]
    spoken = {"choices": [{"message": {"audio": {"id": "audio_1"}}}, {"delta": {"audio": None}}]}
    assert named(spoken) == ["audio_1"]
    assert (named(delta), named(block)) == (["container_1"], ["file_1"])
