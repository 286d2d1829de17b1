"""Usage of an attempt whose provider did not send the final token counts.

All ways in which counts can be missing are settled here: a cancel, a deadline, a later attempt, a
stream that breaks off, a timeout, and a complete reply without counts. Such a call is charged

- its input: the provider's own counts if it sent some before the end, else the estimate;
- the received parts: answers, thinking and arguments of tool calls, of all choices;
- the seconds in which nothing was received, at the highest output speed of the model, for each
  choice.

The output counts at most its reservation. A lost process cannot know the received parts: its calls
keep the maximum, which the journal holds while they are in flight.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from caseworker.models.counts import is_possible
from caseworker.models.families import Family, family_of
from caseworker.models.ports import SendState, TokenUsage
from caseworker.models.tokens import near_tokens

_CHARS_PER_TOKEN: Final = 8
"""Characters of the received text that are examined for each reserved token: more than these have
no effect, because the charge is at most the reservation."""
CALL_TOKENS: Final = 40
"""Output tokens of a tool call in addition to its name and arguments; 20 to 50 in captures."""


def uncounted_usage(
    reserved: TokenUsage,
    state: SendState,
    *,
    texts: Iterable[str] = (),
    choices: int = 1,
    tokens_per_second: float,
    model: str,
) -> TokenUsage:
    """Return the usage of an attempt without final counts.

    ``reserved`` is its maximum; its input counts if the provider has counted none. ``texts`` are
    those of a complete reply, if ``state`` has not seen it arrive. ``tokens_per_second`` is that of
    one choice. ``model`` is its name at the provider.
    """
    reply = state.reply
    counted = None if reply is None else reply.counted(so_far=True)
    if counted is not None and not is_possible(counted):
        counted = None
    received = "".join(texts if reply is None else reply.received)
    received = received[: _CHARS_PER_TOKEN * reserved.tokens_out]
    silent = math.ceil(state.silent_seconds * tokens_per_second) * choices
    tokens_out = _tokens(received, family_of(model)) + silent
    tokens_out += CALL_TOKENS * (0 if reply is None else reply.received_calls)
    tokens_out = min(tokens_out, reserved.tokens_out)
    usage = reserved if counted is None else counted
    if counted is not None:
        tokens_out = max(tokens_out, counted.tokens_out)
    uses = dict(usage.provider_tool_uses)
    if reply is not None and reply.tool_uses:  # the provider read the results of its tools
        usage = replace(usage, tokens_in=max(usage.tokens_in, reserved.tokens_in))
        uses |= {name: max(n, uses.get(name, 0)) for name, n in reply.tool_uses.items()}
    return replace(usage, tokens_out=tokens_out, tokens_reasoning=0, provider_tool_uses=uses)


def _tokens(text: str, family: Family) -> int:
    """Return about how many tokens a text has; every word has one."""
    median = replace(family, tokenizer_factor=family.median_factor or family.tokenizer_factor)
    return max(near_tokens(text, median), len(text.split()))
