"""Requests that the real APIs refuse, with their error messages."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_MOST_ID_CHARS = 40
_AT_ROOT = ("anyOf", "oneOf", "allOf", "enum", "not")


def refused_by_openai(body: Mapping[str, Any]) -> str | None:
    """Return why Chat Completions refuse a request; None if they accept it."""
    return next(_openai_problems(body), None)


def refused_by_anthropic(body: Mapping[str, Any]) -> str | None:
    """Return why Messages refuse a request; None if they accept it."""
    return next(_anthropic_problems(body), None)


def _openai_problems(body: Mapping[str, Any]) -> Iterator[str]:
    for tool in body.get("tools") or ():
        function = tool["function"]
        schema = function.get("parameters") or {"type": "object"}
        if schema.get("type") != "object" or any(name in schema for name in _AT_ROOT):
            yield (
                f"Invalid schema for function '{function['name']}': schema must have type 'object'"
                " and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
            )
        if not _NAME.fullmatch(function["name"]):
            yield "Invalid 'tools[0].function.name': string does not match pattern."
    of_mistral = "mistral" in str(body.get("model"))
    waiting: list[str] = []
    for at, message in enumerate(body.get("messages") or ()):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a"
                    " preceeding message with 'tool_calls'."
                )
            waiting = [each for each in waiting if each != message["tool_call_id"]]
            continue
        if waiting:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages"
                " responding to each 'tool_call_id'. The following tool_call_ids did not have"
                f" response messages: {', '.join(waiting)}"
            )
        waiting = []
        for call in message.get("tool_calls") or ():
            if call["id"] in waiting:
                yield (
                    f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call['id']}'"
                    f" found in message[{at}].tool_calls"
                )
            if not call["id"] or len(call["id"]) > _MOST_ID_CHARS:
                yield (
                    f"Invalid 'messages[{at}].tool_calls[0].id': string too long. Expected a string"
                    f" with maximum length 40, but got a string with length {len(call['id'])}."
                )
            if of_mistral and not _MISTRAL_ID.fullmatch(call["id"]):
                yield (
                    f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9."
                )
            if not _NAME.fullmatch(call["function"]["name"]):
                yield (
                    f"Invalid 'messages[{at}].tool_calls[0].function.name': string does not match"
                    " pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
                )
            waiting.append(call["id"])
        if message["role"] == "assistant" and not (message.get("content") or waiting):
            yield "Assistant message must have either content or tool_calls, but not none."
    if waiting:
        yield "An assistant message with 'tool_calls' must be followed by tool messages."


def _anthropic_problems(body: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(body.get("max_tokens"), int):
        yield "max_tokens: Field required"
    for at, tool in enumerate(body.get("tools") or ()):
        own = tool.get("type", "custom") == "custom"  # other types are Anthropic's
        schema = tool["input_schema"] if own else {}
        if any(name in schema for name in ("anyOf", "oneOf", "allOf")):
            yield (
                f"tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or"
                " anyOf at the top level"
            )
    messages = body.get("messages") or []
    if not messages:
        yield "messages: at least one message is required"
    elif messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    used: set[str] = set()
    waiting: list[str] = []
    for at, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            yield f"messages.{at}: all messages must have non-empty content"
        results = [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"]
        for found in results:
            if found not in waiting:
                yield (
                    f"messages.{at}.content.0: unexpected `tool_use_id` found in `tool_result`"
                    f" blocks: {found}. Each `tool_result` block must have a corresponding"
                    " `tool_use` block in the previous message."
                )
        if missing := [each for each in waiting if each not in results]:
            yield (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks"
                f" immediately after: {', '.join(missing)}. Each `tool_use` block must have a"
                " corresponding `tool_result` block in the next message."
            )
        waiting = []
        for block in blocks:
            if block["type"] == "text" and not block["text"].strip():
                said = "contain non-whitespace text" if block["text"] else "be non-empty"
                yield f"messages: text content blocks must {said}"
            if block["type"] != "tool_use":
                continue
            if block["id"] in used:
                yield "messages: `tool_use` ids must be unique"
            if not _ID.fullmatch(block["id"]):
                yield (
                    f"messages.{at}.content.0.tool_use.id: String should match pattern"
                    " '^[a-zA-Z0-9_-]+$'"
                )
            if not _NAME.fullmatch(block["name"]):
                yield (
                    f"messages.{at}.content.0.tool_use.name: String should match pattern"
                    " '^[a-zA-Z0-9_-]{1,128}$'"
                )
            if not isinstance(block["input"], dict):
                yield f"messages.{at}.content.0.tool_use.input: Input should be a valid dictionary"
            used.add(block["id"])
            waiting.append(block["id"])
    if waiting:
        yield "messages: `tool_use` ids were found without `tool_result` blocks immediately after"
    last = messages[-1] if messages else {"role": "user"}
    if last["role"] == "assistant" and isinstance(last["content"], list):
        text = last["content"][-1].get("text", "")
        if text != text.rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"
