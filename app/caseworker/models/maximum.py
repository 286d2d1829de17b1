"""The maximum of a model call: bounds of its input and its output, for all wires and doors.

The **hard bound** of an input is one token for each UTF-8 byte of its text, plus the frames of the
provider, plus the maximum of its media. It always holds. The **near bound** estimates the text from
above; it is used where the hard bound does not fit into the budget.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, NamedTuple

from caseworker.engine.context import TokenRatio
from caseworker.models.client_bodies import ClientBody, items_in, parts_of
from caseworker.models.families import Family
from caseworker.models.fields.provider_tools import ProviderTool
from caseworker.models.fields.table import Part, Use
from caseworker.models.forms import StatedSchema
from caseworker.models.media import Size, audio_size, document_size, image_size
from caseworker.models.message_log import MessageLog
from caseworker.models.ports import ModelRequest, TokenUsage, ToolDefinition
from caseworker.models.pricing import Cost, json_text
from caseworker.models.tokens import TextTokens, utf8

_FRAME_TOKENS: Final = 8
"""Tokens that a provider adds to a message or a tool."""
_NEAR_FRAME_TOKENS: Final = 5
"""The usual number of them."""
_BUILT_IN_TOOL_TOKENS: Final = 1_250
"""Tokens by which a provider describes a tool that it defines itself. Anthropic: 735 for the
computer and 499 more in the system prompt, 700 for the text editor, 245 for the shell (prices,
2026-11-29)."""
_NEAR_EXECUTED_TOOL_TOKENS: Final = 250
"""The usual number of them for a tool that the provider executes, such as web search. No vendor
publishes it; it is that of Anthropic's smallest tool."""
_OF_CLIENT: Final = (None, "function", "custom", "namespace")
"""Types of tools that the request describes whole."""

_MEDIA: Final = (Use.IMAGE, Use.DOCUMENT, Use.AUDIO)
"""Uses of fields whose text is no text for the model."""
_HOUR_SECONDS: Final = 3600
_LOWEST_RATIO: Final = 0.5
_RATIO_MARGIN: Final = 1.04


class Bound(NamedTuple):
    """The maximum of an attempt, with one of the bounds of its input."""

    usage: TokenUsage
    cost: Cost | None
    """None if the price is unknown."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a request, as far as its maximum depends on it."""

    family: Family
    text_bytes: int
    """UTF-8 bytes of messages, tools and schemas, without media."""
    text: Callable[[], TextTokens]
    """Returns the estimate of that text."""
    frames: int
    """Number of messages and tools."""
    has_tools: bool = False
    built_in_tools: int = 0
    """Number of tools that the provider describes."""
    media: Size = Size(0, 0)  # noqa: RUF009 - immutable
    """Images, documents, arrays of tokens, and objects at the provider to which the request
    refers."""
    audio_tokens: int = 0
    fills_context: bool = False
    """Whether the provider may read as much as the context window holds."""
    choices: int = 1
    """Factor of the output."""
    passes: int = 1
    """How often the provider may read the prompt and write an output: twice to compact it."""
    cache_seconds: int = 0
    """Seconds for which the provider is asked to cache a part of the prompt; 0 if it is not."""
    tools: Sequence[ProviderTool] = ()
    """Tools that the provider executes."""

    @cached_property
    def hard_tokens(self) -> int:
        """The hard bound of the input tokens."""
        return self._input_tokens(self.text_bytes, _FRAME_TOKENS, self.media.hard)

    @cached_property
    def near_tokens(self) -> int:
        """The near bound of the input tokens, at most the hard one.

        It takes about 30 ms for a megabyte: compute it in a thread for long requests.
        """
        return min(self._near(self.near_text_tokens), self.hard_tokens)

    @cached_property
    def near_text_tokens(self) -> int:
        """The part of the near bound that estimates the text."""
        return self.text().near(self.family)

    @property
    def is_text(self) -> bool:
        """Whether its tokens depend on its text alone."""
        other_parts = (*self.media, self.audio_tokens, self.tools_tokens, self.fills_context)
        return not any(other_parts)

    def near_tokens_like(self, counted: TokenRatio) -> int:
        """Return the near bound, corrected by the provider's counts for earlier calls.

        These calls of the run had no media. Text beyond theirs is new, and is not corrected.
        """
        earlier = min(self.near_text_tokens, counted.near_tokens)
        new, ratio = self.near_text_tokens - earlier, max(_LOWEST_RATIO, counted.ratio)
        text_tokens = new + int(earlier * ratio * _RATIO_MARGIN)
        return min(self.near_tokens, self._near(text_tokens))

    def _near(self, text_tokens: int) -> int:
        tokens = self._input_tokens(text_tokens, _NEAR_FRAME_TOKENS, self.media.near)
        executed = min(self.built_in_tools, len(self.tools))
        saved = _BUILT_IN_TOOL_TOKENS - _NEAR_EXECUTED_TOOL_TOKENS
        return tokens - saved * executed * self.passes

    def _input_tokens(self, text_tokens: int, frame_tokens: int, media_tokens: int) -> int:
        family = self.family
        tokens = text_tokens + media_tokens + self.audio_tokens + self.tools_tokens
        tokens += frame_tokens * self.frames + family.frame_tokens
        tokens += family.tools_frame_tokens * self.has_tools
        tokens += _BUILT_IN_TOOL_TOKENS * self.built_in_tools
        if self.fills_context:
            tokens = max(tokens, family.context_tokens)
        return tokens * self.passes

    @property
    def tools_tokens(self) -> int:
        """Input tokens of the results of the provider's tools."""
        return sum(each.tokens_per_use * each.max_uses for each in self.tools)

    def _tool_uses(self) -> Mapping[str, int]:
        if not self.tools:
            return {}
        uses = Counter[str]()
        for each in self.tools:
            uses[each.name] += each.max_uses
        return uses

    def usage(self, tokens_in: int, tokens_out: int) -> TokenUsage:
        """Return the usage of an attempt at its highest price: all input is written to a cache."""
        written = tokens_in if self.cache_seconds or self.family.writes_cache else 0
        return TokenUsage(
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            tokens_cache_written=written,
            tokens_cache_written_1h=written if self.cache_seconds >= _HOUR_SECONDS else 0,
            tokens_audio_in=self.audio_tokens,
            provider_tool_uses=self._tool_uses(),
        )


def content_of_request(
    request: ModelRequest, family: Family, log: MessageLog | None = None
) -> Content:
    """Return the content of a request that the service wrote to a model of a family.

    ``log`` begins with the messages, if they are those of a log.
    """
    log = MessageLog(request.messages) if log is None else log
    size_bytes = log.size_bytes + sum(tool.form(_tool_bytes) for tool in request.tools)
    if request.json_schema is not None:
        size_bytes += len(utf8(_schema_text(request)))
    return Content(
        family=family,
        text_bytes=size_bytes,
        text=partial(_text_of_request, request, log),
        frames=len(request.messages) + len(request.tools) + 1,
        has_tools=bool(request.tools) or request.json_schema is not None,
    )


def _text_of_request(request: ModelRequest, log: MessageLog) -> TextTokens:
    rest = [json_text(extras) for message in request.messages if (extras := message.extras())]
    rest += [tool.form(_tool_text) for tool in request.tools]
    contents = log.text(len(request.messages))
    return contents.followed_by(f"\n{text}" for text in (*rest, _schema_text(request)))


def _schema_text(request: ModelRequest) -> str:
    schema = request.json_schema
    if schema is None:
        return ""
    return schema.text if isinstance(schema, StatedSchema) else json_text(dict(schema))


def _tool_text(tool: ToolDefinition) -> str:
    return json_text(tool.to_json())


def _tool_bytes(tool: ToolDefinition) -> int:
    return len(utf8(_tool_text(tool)))


def content_of_body(
    body: ClientBody,
    family: Family,
    *,
    largest_image_tokens: int,
) -> Content:
    """Return the content of a body that a client wrote for a model of a family."""
    by_use: dict[Use, list[Part]] = {use: [] for use in Use}
    for part in body.parts:
        by_use[part.use].append(part)
    sizes = [
        measure(each.value, each.holder, family, largest_image_tokens)
        for use, measure in ((Use.IMAGE, image_size), (Use.DOCUMENT, document_size))
        for each in by_use[use]
    ]
    referred = [body.references.get(each.value) for each in by_use[Use.REFERENCE]]
    sizes += [None if tokens is None else Size(tokens, tokens) for tokens in referred]
    sounds = [audio_size(each.value, each.holder) for each in by_use[Use.AUDIO]]
    media = [part.value for use in _MEDIA for part in by_use[use] if isinstance(part.value, str)]
    measured = [size for size in sizes if size is not None]
    tools = body.document.get("tools")
    kinds = [each.get("type") for each in parts_of(tools)] if tools else []
    return Content(
        family=family,
        text_bytes=max(0, body.written_bytes - sum(map(len, media))),
        text=lambda: TextTokens().followed_by(body.texts()),
        frames=len(body.item_hashes) + (len(tools) if isinstance(tools, list) else 0) + 1,
        has_tools=bool(tools),
        built_in_tools=sum(each not in _OF_CLIENT for each in kinds),
        media=Size(sum(size.hard for size in measured), sum(size.near for size in measured)),
        audio_tokens=sum(family.context_tokens if one is None else one.hard for one in sounds),
        fills_context=None in sizes or None in sounds,
        choices=math.prod(max(1, each.value) for each in by_use[Use.CHOICES]),
        passes=1 + len(by_use[Use.COMPACTION]),
        cache_seconds=body.caches_seconds,
        tools=body.provider_tools,
    )


def content_of_inputs(body: ClientBody, family: Family) -> Content:
    """Return the content of a body whose texts and arrays of tokens a model turns into vectors.

    A token counts as itself. The frame of a text is for the marks around it.
    """
    items = items_in(body.document, body.field)
    tokens = sum(len(each) for each in items if isinstance(each, array))
    inputs = [each for each in items if not isinstance(each, array)]
    texts = [each if isinstance(each, str) else json_text(each) for each in inputs]
    return Content(
        family=replace(family, frame_tokens=0, writes_cache=False),
        text_bytes=sum(len(utf8(text)) for text in texts),
        text=lambda: TextTokens().followed_by(texts),
        frames=len(texts),
        media=Size(tokens, tokens),
    )
