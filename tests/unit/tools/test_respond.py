"""The tool that only answers."""

import pytest

from app.tools.ports import ToolContext
from app.tools.respond import MAX_ANSWER_CHARS, Respond


@pytest.mark.req("002/5.5")
async def test_an_answer_is_handed_on_as_it_is(context: ToolContext) -> None:
    """Not trimmed, not interpreted."""
    assert await Respond().run({"answer": " 42 ${x} "}, context) == {"answer": " 42 ${x} "}


@pytest.mark.req("002/5.5")
@pytest.mark.parametrize("args", [{}, {"answer": ""}, {"answer": "  \n"}, {"answer": 42}])
async def test_no_answer_is_a_failure(args: dict[str, object], context: ToolContext) -> None:
    """A blank answer would end a case with nothing."""
    result = await Respond().run(args, context)

    assert result["code"] == "invalid_arguments"


async def test_an_answer_has_a_limit(context: ToolContext) -> None:
    """One character more is refused."""
    fits = await Respond().run({"answer": "x" * MAX_ANSWER_CHARS}, context)
    refused = await Respond().run({"answer": "x" * (MAX_ANSWER_CHARS + 1)}, context)

    assert "answer" in fits
    assert "error" in refused
