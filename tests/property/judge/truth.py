"""Counts and prices of a body at a provider, from the published rules of the vendors.

Text: a common English word with its space is one token, up to three digits or signs are one, and
anything else is one token a byte, which is the most that a byte-level tokenizer makes of it.

Images: OpenAI's tiles of 512 pixels (platform.openai.com/docs/guides/images-vision) and Anthropic's
pixels over 750 (docs.claude.com/en/docs/build-with-claude/vision). Frames of messages and tools:
OpenAI's cookbook "How to count tokens", and the table of system prompt tokens in Anthropic's
"Tool use". All read 2026-11-29.
"""

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

CHAT: Final = "/chat/completions"
RESPONSES: Final = "/responses"
MESSAGES: Final = "/v1/messages"

_TOKEN: Final = re.compile(
    r" ?[A-Za-z]{1,12}(?![A-Za-z])|\d{1,3}| ?[!-/:-@\[-`{-~]{1,3}|[ \t\r\n]+|.", re.DOTALL
)
_LONG: Final = re.compile(r"[A-Za-z0-9+/]{40,}")
"""Text without words, such as base64."""


def tokens(text: str) -> int:
    """Return the tokens of a text."""
    counted = sum(len(long) for long in _LONG.findall(text))
    for token in _TOKEN.findall(_LONG.sub("", text)):
        counted += 1 if token.isascii() else len(token.encode("utf-8", "surrogatepass"))
    return counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The rules of one model."""

    alias: str
    provider: str
    model: str
    usd_in: Decimal = Decimal(1)
    """Price of a million input tokens in US dollars; ``usd_out`` and ``usd_cached`` too."""
    usd_out: Decimal = Decimal(8)
    usd_cached: Decimal = Decimal("0.1")
    max_output_tokens: int = 4096
    context_tokens: int
    tile_tokens: tuple[int, int] | None = None
    """Tokens of an image, and of each of its tiles of 512 pixels; None counts pixels."""
    pixels_per_token: int = 750
    longest_side: float = math.inf
    """Pixels to which the model shrinks the longer side of an image."""
    largest_image: int
    """Tokens of the largest image that the model takes."""
    page_tokens: int
    """Tokens of the image of one page of a document."""
    streams: bool = True


FAMILIES: Final = {
    each.alias: each
    for each in (
        Family(
            alias="tiles",
            provider="openai",
            model="gpt-4o",
            context_tokens=128_000,
            tile_tokens=(85, 170),
            largest_image=85 + 8 * 170,
            page_tokens=1_105,
        ),
        Family(
            alias="mini",
            provider="openai",
            model="gpt-4o-mini",
            context_tokens=128_000,
            tile_tokens=(2833, 5667),
            largest_image=2833 + 8 * 5667,
            page_tokens=36_835,
        ),
        Family(
            alias="local",
            provider="openai",
            model="own-vision-8b",
            context_tokens=128_000,
            pixels_per_token=400,
            largest_image=50_000,
            page_tokens=2_000,
        ),
        Family(
            alias="sonnet",
            provider="anthropic",
            model="claude-sonnet-4-5",
            context_tokens=200_000,
            longest_side=1_568,
            largest_image=1_600,
            page_tokens=1_600,
        ),
        Family(
            alias="plain",
            provider="openai",
            model="own-text-8b",
            context_tokens=32_000,
            largest_image=50_000,
            page_tokens=2_000,
            streams=False,
        ),
    )
}
OF_MODEL: Final = {each.model: each for each in FAMILIES.values()}

CACHE_WRITE: Final = Decimal("1.25")
CACHE_WRITE_1H: Final = Decimal(2)
TOOLS_TOKENS: Final = {CHAT: 12, RESPONSES: 12, MESSAGES: 346}
"""Tokens that the provider adds to a prompt with tools."""
TOOL_TOKENS: Final = 8
MESSAGE_TOKENS: Final = 4
PROMPT_TOKENS: Final = 3
OWN_TOOLS: Final = {"bash_20250124": 245, "text_editor_20250728": 700}
"""Tokens of the tools that Anthropic defines and the client executes."""
SEARCH_USD: Final = Decimal("0.01")
SEARCH_TOKENS: Final = 8_000
SEARCH_SECONDS: Final = 0.5
SEARCHES: Final = 12
"""Searches of a call whose uses nothing limits."""
UNKNOWN_USD: Final = Decimal(1)
"""Cost of a field that no vendor documents."""
UNKNOWN_ID_TOKENS: Final = 100_000

_FREE_TEXT: Final = """
model messages input stream stream_options max_tokens max_completion_tokens temperature
max_output_tokens n system instructions tools tool_choice thinking reasoning reasoning_effort
previous_response_id metadata user stop stop_sequences seed top_p top_k response_format store
logprobs parallel_tool_calls presence_penalty frequency_penalty verbosity truncation text
include cache_control max_tool_calls service_tier background modalities logit_bias prompt
best_of web_search_options search_parameters models prediction speed extra_body prompt_cache_key
safety_identifier inference_geo context_management
"""
_FREE: Final = frozenset(re.findall(r"\w+", _FREE_TEXT))
_TIERS: Final = {"priority": Decimal(2), "fast": Decimal(6)}


@dataclass(slots=True)
class Bill:
    """The bill for the input of one request, before a token is generated."""

    tokens_in: int = 0
    factor: Decimal = Decimal(1)
    """Factor of all prices, for other tiers and models."""
    extra_usd: Decimal = Decimal(0)
    """Fees of the tools that the provider executes, and of unknown fields."""
    choices: int = 1
    searches: int = 0
    """Searches that the provider makes before it writes; each has a fee and input tokens."""
    billed_out: int = 0
    """Output tokens that are billed and never appear in a reply."""
    is_unusual: bool = False
    """Whether a text has more tokens than a near bound may assume."""
    reasons: list[str] = field(default_factory=list)
    """Names of what costs more than the text."""

    def add_text(self, text: str) -> int:
        """Count a text."""
        counted = tokens(text)
        self.tokens_in += counted
        self.is_unusual |= counted > len(text.encode("utf-8", "surrogatepass")) / 3 + 8
        self.is_unusual |= not text.isascii() or _LONG.search(text) is not None
        return counted

    @property
    def is_hidden(self) -> bool:
        """Whether it costs something that its text does not show."""
        return bool(self.extra_usd or self.factor != 1 or self.searches or self.billed_out)

    def add(self, reason: str, tokens_in: int) -> None:
        """Count tokens for a reason."""
        self.tokens_in += tokens_in
        self.reasons.append(reason)


class Books:
    """The records of a provider: the responses, their tokens, and whether these are unusual."""

    def __init__(self) -> None:
        self.responses: dict[str, tuple[int, bool]] = {}

    def bill(self, path: str, body: Mapping[str, Any], family: Family) -> Bill:
        """Count the input of a request."""
        reader = _Reader(path, body, family, self.responses)
        return reader.bill


class _Reader:
    """Reads one body."""

    def __init__(
        self,
        path: str,
        body: Mapping[str, Any],
        family: Family,
        responses: Mapping[str, tuple[int, bool]],
    ) -> None:
        self.bill = Bill()
        self._family = family
        self._responses = responses
        self._path = path
        self._body = body
        self.bill.tokens_in += PROMPT_TOKENS
        for name in ("system", "instructions"):
            if body.get(name) is not None:
                self._message({"content": body[name]})
        items = body.get("messages") if path != RESPONSES else body.get("input")
        for item in items if isinstance(items, list) else [{"content": items}]:
            self._message(item)
        self._tools()
        for name, value in body.items():
            if value is not None:
                self._field(name, value)

    def _message(self, message: Any) -> None:
        bill = self.bill
        bill.tokens_in += MESSAGE_TOKENS
        if isinstance(message, str):
            bill.add_text(message)
            return
        kind = message.get("type")
        if kind == "function_call":
            bill.add_text(message["name"] + message["arguments"])
            bill.tokens_in += TOOL_TOKENS
        if kind == "function_call_output":
            self._content(message["output"])
        for call in message.get("tool_calls") or ():
            function = call["function"]
            bill.add_text(function["name"] + function["arguments"])
            bill.tokens_in += TOOL_TOKENS
        self._content(message.get("content"))

    def _content(self, content: Any) -> None:
        if isinstance(content, str):
            self.bill.add_text(content)
        elif isinstance(content, list):
            for part in content:
                self._part(part)

    def _part(self, part: Mapping[str, Any]) -> None:
        match part.get("type"):
            case "text" | "input_text" | "output_text":
                self.bill.add_text(part["text"])
            case "image_url":
                image = part["image_url"]
                self._image(image["url"], image.get("detail"))
            case "input_image":
                self._image(str(part.get("image_url") or part["file_id"]), part.get("detail"))
            case "image":
                self._image(_source(part["source"]), None)
            case "file":
                file = part["file"]
                self._document(str(file.get("file_data") or file["file_id"]))
            case "input_file":
                named = part.get("file_data") or part.get("file_url") or part["file_id"]
                self._document(str(named))
            case "document" if part["source"]["type"] == "text":
                self.bill.add_text(part["source"]["data"])
                self.bill.reasons.append("document text")
            case "document":
                self._document(_source(part["source"]))
            case "tool_use":
                written = part["name"] + json.dumps(part["input"])
                self.bill.add_text(written)
                self.bill.tokens_in += TOOL_TOKENS
            case "tool_result":
                self.bill.tokens_in += TOOL_TOKENS
                self._content(part["content"])
            case "thinking":
                self.bill.add_text(part["thinking"])

    def _image(self, named: str, detail: str | None) -> None:
        if not named.startswith("data:"):
            size = re.search(r"(\d+)x(\d+)", named)
            width, height = (int(size[1]), int(size[2])) if size else (4096, 4096)
            self.bill.add("image url" if size else "image id", self._pixels(width, height, detail))
            return
        width, height = image_size(base64.b64decode(named.partition(",")[2]))
        self.bill.add("image data", self._pixels(width, height, detail))

    def _pixels(self, width: int, height: int, detail: str | None) -> int:
        family = self._family
        if family.tile_tokens is not None:
            base, tile = family.tile_tokens
            if detail == "low":
                return base
            shrink = min(1.0, 2048 / max(width, height))
            shrink *= min(1.0, 768 / (min(width, height) * shrink))
            tiles = math.ceil(width * shrink / 512) * math.ceil(height * shrink / 512)
            return base + tile * min(tiles, 8)
        shrink = min(1.0, family.longest_side / max(width, height))
        tokens = math.ceil(width * height * shrink**2 / family.pixels_per_token)
        return min(family.largest_image, tokens)

    def _document(self, named: str) -> None:
        if not named.startswith("data:"):
            size = re.search(r"tokens-(\d+)", named)
            size_tokens = int(size[1]) if size else UNKNOWN_ID_TOKENS
            most = self._family.context_tokens
            self.bill.add("document url" if size else "document id", min(most, size_tokens))
            return
        content = base64.b64decode(named.partition(",")[2])
        pages = content.count(b"/Type/Page")
        text = content.decode("latin-1").partition("stream\n")[2].rpartition("endstream")[0]
        reason = "document pages" if pages > len(content) // 500 else "document data"
        self.bill.add(reason, min(100, pages) * self._family.page_tokens + tokens(text))

    def _tools(self) -> None:
        bill, tools = self.bill, self._body.get("tools") or []
        if tools:
            bill.tokens_in += TOOLS_TOKENS[self._path]
        for tool in tools:
            kind = str(tool.get("type") or ("custom" if "input_schema" in tool else ""))
            if "search" in kind or "googleSearch" in tool:
                limits = (tool.get("max_uses"), self._body.get("max_tool_calls"))
                self._search(min((n for n in limits if n is not None), default=SEARCHES))
            elif kind in ("code_interpreter", "file_search", "mcp"):
                bill.extra_usd += UNKNOWN_USD
                bill.reasons.append("provider tool")
            elif kind in OWN_TOOLS:
                bill.add("vendor tool", OWN_TOOLS[kind])
            else:
                bill.add_text(json.dumps(tool))
                bill.tokens_in += TOOL_TOKENS

    def _search(self, uses: int) -> None:
        self.bill.searches = uses
        self.bill.reasons.append("search")

    def _field(self, name: str, value: Any) -> None:
        bill = self.bill
        match name:
            case "n":
                bill.choices *= value
                bill.reasons += ["choices"] if value > 1 else []
            case "best_of":
                bill.choices = max(bill.choices, value)
                bill.reasons.append("best_of")
            case "service_tier" | "speed":
                bill.factor *= _TIERS.get(value, Decimal(1))
                bill.reasons += ["tier"] if value in _TIERS else []
            case "models":
                bill.factor *= 10
                bill.reasons.append("other models")
            case "prediction":
                bill.billed_out += tokens(value["content"])
                bill.reasons.append("prediction")
            case "web_search_options" | "search_parameters":
                self.bill.extra_usd += SEARCH_USD
                self.bill.reasons.append("chat search")
            case "extra_body":
                for inner, each in value.items():
                    self._field(inner, each)
            case "previous_response_id":
                counted, is_unusual = self._responses.get(value, (UNKNOWN_ID_TOKENS, False))
                self.bill.add("reference", counted)
                self.bill.is_unusual |= is_unusual
            case "prompt":
                self.bill.add("stored prompt", UNKNOWN_ID_TOKENS)
            case _ if name not in _FREE:
                bill.extra_usd += UNKNOWN_USD
                bill.reasons.append("unknown field")


def _source(source: Mapping[str, Any]) -> str:
    if source["type"] == "base64":
        return f"data:{source['media_type']};base64,{source['data']}"
    return str(source.get("url") or source.get("file_id"))


def image_size(content: bytes) -> tuple[int, int]:
    """Return width and height of a PNG or JPEG by its bytes, whatever it is called."""
    if content.startswith(b"\x89PNG"):
        return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
    return next(_frames(content), (4096, 4096))


def _frames(content: bytes) -> Iterator[tuple[int, int]]:
    at = 2
    while at + 9 < len(content):
        marker, size = content[at + 1], int.from_bytes(content[at + 2 : at + 4])
        if 0xC0 <= marker <= 0xC2:
            height = int.from_bytes(content[at + 5 : at + 7])
            yield int.from_bytes(content[at + 7 : at + 9]), height
        at += 2 + size


def cached_seconds(body: Mapping[str, Any]) -> int:
    """Return for how long the provider caches the prompt; 0 if it is not asked to."""
    text = json.dumps(body)
    if '"cache_control": {' not in text:
        return 0
    return 3600 if '"ttl": "1h"' in text else 300
