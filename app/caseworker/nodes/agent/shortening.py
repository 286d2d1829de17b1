"""Leaves out of a conversation what does not fit into the window of an agent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caseworker.engine.context import FlowContext
from caseworker.engine.events import CONVERSATION_SUMMARISED, CONVERSATION_TRIMMED
from caseworker.llm.gateway import ModelGateway
from caseworker.llm.ports import Incomplete, Message, ToolDefinition
from caseworker.nodes.agent import requests
from caseworker.nodes.agent.activity import TurnActivity
from caseworker.nodes.agent.conversation import Conversation, ConversationTooLongError, Cut, plain
from caseworker.nodes.agent.definition import ConversationSpec


@dataclass(frozen=True, slots=True)
class Shortening:
    """Keeps the conversation of one agent inside its window."""

    context: FlowContext
    spec: ConversationSpec
    conversation: Conversation
    tools: Sequence[ToolDefinition]
    """What the model is offered, which takes a part of the window."""
    asked: Callable[[], Mapping[str, Any]]
    """Returns how the model is asked for a summary."""

    async def fit(self, number: int, activity: TurnActivity, *, last: bool) -> None:
        """Leave out of a conversation what does not fit into the window, and say so.

        Before the ``last`` turn, which needs the last call, nothing is summarised.
        """
        spec, conversation = self.spec, self.conversation
        if spec.max_tokens is None:
            return
        cut = conversation.cut(spec.max_tokens, self.tools)
        if cut is None:
            return
        if spec.policy == "refuse":
            raise ConversationTooLongError(cut.tokens_before, spec.max_tokens)
        summarises = spec.policy == "summarise" and not last
        summary = await self._summary(cut, number) if summarises else None
        about: dict[str, Any] = {}
        if isinstance(summary, Incomplete):
            about, summary = {"summary_incomplete": summary.value}, None
        conversation.replace(cut, summary)
        about |= {
            "messages": len(cut.left_out),
            "tokens_before": cut.tokens_before,
            "tokens_after": cut.tokens_after,
        }
        kind = CONVERSATION_TRIMMED if summary is None else CONVERSATION_SUMMARISED
        activity.noted(kind, about)
        shown = {f"{kind}.turn_{number}": about["messages"]}
        self.context.run.trace.annotate(self.context.trace_parent, shown)

    async def _summary(self, cut: Cut, number: int) -> Message | Incomplete:
        """Return a summary of what was cut, or why it is not complete."""
        said = "\n\n".join(f"{one.role}: {one.content}" for one in plain(cut.left_out))
        completion = await self.context.service(ModelGateway).complete(
            self.context,
            key=f"turn/{number}/summary",
            name="summary",
            messages=(
                Message(role="system", content=requests.SUMMARY_REQUEST),
                Message(role="user", content=said),
            ),
            **self.asked(),
        )
        if completion.incomplete is not None:
            return completion.incomplete
        told = f"Summary of what was said before: {completion.text}"
        return Message(role="user", content=told)
