"""Keeps a conversation within the agent's token limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caseworker.engine.context import FlowContext
from caseworker.engine.events import CONVERSATION_SUMMARISED, CONVERSATION_TRIMMED
from caseworker.models.gateway import LogicalCall, ModelGateway
from caseworker.models.ports import Incomplete, Message, ToolDefinition
from caseworker.nodes.agent import requests
from caseworker.nodes.agent.activity import TurnActivity
from caseworker.nodes.agent.conversation import (
    Conversation,
    ConversationTooLongError,
    Cut,
    plain_messages,
)
from caseworker.nodes.agent.definition import ConversationSpec


@dataclass(frozen=True, slots=True)
class Shortening:
    """Trims or summarises one agent's conversation."""

    context: FlowContext
    spec: ConversationSpec
    conversation: Conversation
    tools: Sequence[ToolDefinition]
    """Tools offered to the model; their definitions also count towards the token limit."""

    async def fit(
        self, number: int, activity: TurnActivity, options: Mapping[str, Any], *, last: bool
    ) -> None:
        """Trim the conversation to the token limit; emit an event if messages were dropped.

        Messages are not summarised before the ``last`` turn, because that turn needs the last
        permitted call. ``options`` holds the model, its options and the seed for the call that
        summarises.

        Raises:
            ConversationTooLongError: the limit is exceeded and the policy is
                ``refuse``.
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
        summary = await self._summary(cut, number, options) if summarises else None
        about: dict[str, Any] = {}
        if isinstance(summary, Incomplete):
            about, summary = {"summary_incomplete": summary.value}, None
        conversation.replace(cut, summary)
        about |= {
            "messages": len(cut.messages_dropped),
            "tokens_before": cut.tokens_before,
            "tokens_after": cut.tokens_after,
        }
        kind = CONVERSATION_TRIMMED if summary is None else CONVERSATION_SUMMARISED
        activity.noted(kind, about)
        notes = {f"{kind}.turn_{number}": about["messages"]}
        self.context.run.trace.annotate(self.context.trace_parent, notes)

    async def _summary(
        self, cut: Cut, number: int, options: Mapping[str, Any]
    ) -> Message | Incomplete:
        """Return a summary of the dropped messages, or why it is incomplete."""
        text = "\n\n".join(
            f"{one.role}: {one.content}" for one in plain_messages(cut.messages_dropped)
        )
        call = LogicalCall(
            key=f"turn/{number}/summary",
            name="summary",
            messages=(
                Message(role="system", content=requests.SUMMARY_REQUEST),
                Message(role="user", content=text),
            ),
            **options,
        )
        completion = await self.context.service(ModelGateway).complete(self.context, call)
        if completion.incomplete is not None:
            return completion.incomplete
        summary = f"Summary of what was said before: {completion.text}"
        return Message(role="user", content=summary)
