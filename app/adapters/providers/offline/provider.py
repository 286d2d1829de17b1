"""The provider that plans without a model."""

import json

from app.adapters.providers.offline.planner import Plan, plan
from app.adapters.providers.offline.prompt import PlanningPrompt, UnreadablePromptError
from app.llm.messages import ModelReply, ModelRequest, TokenUsage


class OfflineProvider:
    """A ModelProvider that really reads the question; it needs no key, network or model.

    The last user message is a JSON document with ``question``, ``today``, ``tools`` and, after a
    first try, ``evidence`` and ``failure``. The reply is a JSON plan ``{"actions": [{"tool",
    "args"}]}``, or ``{"cannot": why}`` for anything that was not understood to the last word. The
    same prompt always gets the same reply. It counts no tokens, because it has none.
    """

    name = "offline"
    external = False

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Plan; ``model`` is only repeated, as there is one planner under every name."""
        return ModelReply(
            text=json.dumps(_planned(request)),
            model=model,
            usage=TokenUsage(tokens_in=0, tokens_out=0),
            finish_reason="stop",
        )

    async def aclose(self) -> None:
        """Close nothing: there is no connection."""


def _planned(request: ModelRequest) -> Plan:
    try:
        return plan(PlanningPrompt.of(request.messages))
    except UnreadablePromptError as error:
        return {"cannot": f"I do not understand the prompt: {error}."}
