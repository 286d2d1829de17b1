"""An agent's answer: its JSON Schema, its parsing, and the ``finish`` tool."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from caseworker.models.forms import json_in_reply
from caseworker.models.ports import ToolDefinition
from caseworker.nodes.agent.definition import FINISH, OutputSpec
from caseworker.nodes.reply_schema import ReplySchema, UnfitReplyError
from caseworker.nodes.templates import compact
from caseworker.platform.logs.redaction import redact_text

MISSING = "'{}' is missing: call the tool again with your final answer."
_FINISH = ToolDefinition(
    name=FINISH,
    description="Ends your work. Call it alone, once, with your final answer.",
    parameters={
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "Your final answer."}},
        "required": ["answer"],
        "additionalProperties": False,
    },
)


class OutputInvalidError(Exception):
    """An answer violates the schema of an agent whose output is strict."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's answer, with the outcome of its schema validation."""

    output: Any
    raw: str
    valid: bool | None
    """Whether the answer matches the required schema; None if no schema is required."""
    problem: str | None = None
    """Description of the schema violation; None if the answer violates no schema."""


class Output:
    """Parses an agent's answers."""

    def __init__(self, spec: OutputSpec | None) -> None:
        """Create a parser for the output of a definition; None accepts any text."""
        self._reader: ReplySchema | None = None if spec is None else spec.json_schema
        self.strict = spec is not None and spec.strict

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """JSON Schema of the answer; None if any text is accepted."""
        return None if self._reader is None else self._reader.schema

    @property
    def finish(self) -> ToolDefinition:
        """The ``finish`` tool, which takes the answer as its arguments."""
        if self.schema is None:
            return _FINISH
        return replace(_FINISH, parameters=self._parameters(self.schema))

    def _parameters(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        if schema.get("type") == "object":
            return schema
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        inner = {name: part for name, part in schema.items() if name not in shared}
        return {
            "type": "object",
            "properties": {"output": inner},
            "required": ["output"],
            "additionalProperties": False,
            **shared,
        }

    def of_text(self, text: str) -> Answer:
        """Parse a text answer."""
        return Answer(text, text, None) if self._reader is None else self._read(json_in_reply(text))

    def of_finish(self, args: Mapping[str, Any]) -> Answer | str:
        """Parse the arguments of ``finish``; return an error message if the answer is missing."""
        if self._reader is None:
            answer = args.get("answer")
            text = answer if isinstance(answer, str) else compact(answer)
            if answer in (None, {}, []) or not text.strip():
                return MISSING.format("answer")
            return Answer(text, text, None)
        if self._reader.schema.get("type") == "object":
            return self._read(compact(dict(args)))
        if "output" not in args:
            return MISSING.format("output")
        return self._read(compact(args["output"]))

    def _read(self, text: str) -> Answer:
        if self._reader is None:
            return self.of_text(text)
        try:
            return Answer(self._reader.read(text), text, True)
        except UnfitReplyError as unfit:
            return Answer(None, text, False, redact_text(str(unfit), max_chars=1000))

    def complaint(self, problem: str) -> str:
        """Return the message that asks the model for a new answer after a schema violation."""
        return (
            f"{problem} Answer again, with nothing but JSON that follows"
            f" {compact(dict(self.schema or {}))}"
        )
