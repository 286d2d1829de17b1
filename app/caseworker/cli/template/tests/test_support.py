"""The agent with its tool, and a model that follows a script."""

import asyncio
from pathlib import Path

import yaml
from shop import order_status

from caseworker import ModelReply, TokenUsage, ToolCall, run_agent

AGENT = yaml.safe_load((Path(__file__).parents[1] / "agents" / "support.yaml").read_text("utf-8"))


class ScriptedModel:
    name, external = "scripted", False

    def __init__(self, *replies):
        self.replies = list(replies)

    async def complete(self, model, request):
        return self.replies.pop(0)

    async def aclose(self):
        pass


def reply(text="", *calls):
    return ModelReply(
        text=text, model="scripted", usage=TokenUsage(tokens_in=1, tokens_out=1), tool_calls=calls
    )


def test_the_agent_looks_up_the_order():
    model = ScriptedModel(
        reply("", ToolCall(id="1", name="order_status", arguments='{"order_id": 1042}')),
        reply("It has been shipped."),
    )
    result = asyncio.run(
        run_agent(
            AGENT,
            input="Where is order 1042?",
            provider=model,
            model="scripted",
            tools=[order_status],
        )
    )
    assert result.output == "It has been shipped."
    assert '"shipped"' in result.messages[-2]["content"]
