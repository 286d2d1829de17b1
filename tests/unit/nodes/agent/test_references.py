"""Long texts of events that are stored once, by reference to their call."""

import pytest

from caseworker.engine.events import CONTENT_CHUNK, THINKING
from caseworker.nodes.agent.references import MIN_CHARS, key_in_event, part_in, whole_event_data
from tests.unit.nodes.agent.world import agent, asking, events, model_reply, scripted_agent, wants


@pytest.mark.parametrize("kind", [CONTENT_CHUNK, THINKING])
@pytest.mark.parametrize("chars", [1, MIN_CHARS - 1, MIN_CHARS, MIN_CHARS + 1])
def test_a_part_of_an_answer_is_stored_without_a_text_that_is_long(kind: str, chars: int) -> None:
    """A part of 100 characters refers to its call, and a reader gets the text from there."""
    text = "".join(chr(ord("a") + number % 26) for number in range(2 * chars))
    part = {"turn_number": 1, "offset": 3, "content": text[3 : 3 + chars]}
    stored = part_in("a/turn/1", part)

    assert ("content" in stored) is (chars < MIN_CHARS)
    named = None if chars < MIN_CHARS else "a/turn/1"
    assert key_in_event(kind, stored) == named
    if named:
        assert whole_event_data(kind, stored, {"text": text, "thinking": text}) == part


@pytest.mark.parametrize("chars", [MIN_CHARS - 1, MIN_CHARS])
async def test_arguments_and_results_of_tools_are_stored_once_if_they_are_long(chars: int) -> None:
    """Events with arguments or results of at least 100 characters refer to the stored call."""
    arguments, result = ('{"say": "%s"}', '{"said":"%s","times":1}')
    texts = [text % ("x" * (chars - len(text) + 2)) for text in (arguments, result)]
    calls = [wants("echo", say=text[text.index("x") : text.rindex("x") + 1]) for text in texts]
    here = scripted_agent(model_reply("", calls[0]), model_reply("", calls[1]), "Ok.")

    await here.run(asking(agent(tools=["echo"])), default="?")

    about = [data for kind, data in events(here) if kind.startswith("tool_")]
    named = [key_in_event(kind, data) for kind, data in events(here) if kind.startswith("tool_")]
    assert (named[0] is not None, named[3] is not None) == (chars >= MIN_CHARS,) * 2
    if chars < MIN_CHARS:
        assert (about[0]["tool_call"]["arguments"], about[3]["result"]) == tuple(texts)
