"""Tools that write down their calls; some of them end only once a test opens their gate."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from tests.support.noting_tool import NOTES

_TEXT: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["text"],
    "properties": {"text": {"type": "string", "maxLength": 100}},
}


def _spec(name: str, **about: Any) -> ToolSpec:
    return ToolSpec(name=name, description="For tests.", parameters=_TEXT, **about)


def _is_open(name: str) -> bool:
    return Path(f"{os.environ[NOTES]}.{name}").exists()


def _write(context: ToolContext, name: str, args: Mapping[str, Any]) -> None:
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{context.run_id}: {name} {args['text']}\n")


@dataclass
class Gate:
    """Ends once the file with the name of the notes and the text exists."""

    spec: ToolSpec = field(default_factory=lambda: _spec("gate", timeout_seconds=150.0))

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Wait for the file; see Tool."""
        _write(context, self.spec.name, args)
        while not _is_open(args["text"]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return {"opened": args["text"]}


@dataclass
class OuterGate(Gate):
    """A gate that counts as an effect outside of the process."""

    spec: ToolSpec = field(
        default_factory=lambda: _spec(
            "outer_gate", timeout_seconds=150.0, external=True, idempotent=False
        )
    )


@dataclass
class Breaks:
    """Fails at each call."""

    spec: ToolSpec = field(default_factory=lambda: _spec("breaks"))

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Fail; see Tool."""
        _write(context, self.spec.name, args)
        return {"error": "It broke.", "code": "broken"}


@dataclass
class Pays:
    """Needs an approval."""

    spec: ToolSpec = field(
        default_factory=lambda: _spec(
            "pays", external=True, idempotent=False, requires_approval=True
        )
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Write down the payment; see Tool."""
        _write(context, self.spec.name, args)
        return {"paid": args["text"]}


@dataclass
class Jots:
    """Returns at once."""

    spec: ToolSpec = field(default_factory=lambda: _spec("jots"))

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Write down the text; see Tool."""
        _write(context, self.spec.name, args)
        return {"jotted": args["text"]}


PLUGINS = [f"{__name__}:{kind.__name__}" for kind in (Gate, OuterGate, Breaks, Pays, Jots)]
