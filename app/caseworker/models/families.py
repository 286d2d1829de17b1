"""Facts about families of models that bound the price of a call: sizes, images, tokenizers.

Sources, read on 2026-11-29: the model lists of the vendors as LiteLLM 1.110 packages them
(output and context), the vendors' pages about images, and ctok 1.3.0 (tokenizers of Claude, counted
on 107 files of prose, Python, JavaScript and C). The setting of a model replaces a fact.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

UNKNOWN_OUTPUT_TOKENS: Final = 32_768
UNKNOWN_CONTEXT_TOKENS: Final = 1_048_576
UNKNOWN_IMAGE_TOKENS: Final = 50_000

ImageTokens = Callable[[int, int], int]
"""Function that returns the tokens of an image with a width and a height in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts that the models of a family share."""

    output_tokens: int = UNKNOWN_OUTPUT_TOKENS
    """Largest output of a reply."""
    context_tokens: int = UNKNOWN_CONTEXT_TOKENS
    """Largest input of a request."""
    tokenizer_factor: float = 1.5
    """Tokens of a text, as a multiple of those of o200k_base."""
    median_factor: float | None = None
    """The same at the median, for texts that were received; None if it is not measured."""
    image_tokens: ImageTokens | None = None
    """Rule for images; None if it is not published."""
    largest_image_tokens: int = UNKNOWN_IMAGE_TOKENS
    frame_tokens: int = 64
    """Tokens that the provider adds to each request."""
    tools_frame_tokens: int = 128
    """Tokens that the provider adds to a request with tools."""
    writes_cache: bool = False
    """Whether the provider charges for cache writes that no client requests."""


def _tiles(base: int, tile: int) -> ImageTokens:
    """OpenAI: fit into 2048 pixels, shrink the short side to 768, count tiles of 512 pixels."""

    def tokens(width: int, height: int) -> int:
        scale = min(1.0, 2048 / max(width, height))
        scale = min(scale, 768 / min(width, height)) if min(width, height) > 0 else scale
        across, down = math.ceil(width * scale / 512), math.ceil(height * scale / 512)
        return base + tile * max(1, across) * max(1, down)

    return tokens


def _patches(factor: float, largest: int, side: int = 32) -> ImageTokens:
    """Count patches of ``side`` pixels, at most ``largest``, each of ``factor`` tokens."""

    def tokens(width: int, height: int) -> int:
        patches = math.ceil(width / side) * math.ceil(height / side)
        return math.ceil(factor * min(patches, largest)) + 3

    return tokens


def _area(pixels_per_token: int, longest: int, largest: int) -> ImageTokens:
    """Anthropic: shrink the long side to ``longest`` pixels, count the area."""

    def tokens(width: int, height: int) -> int:
        scale = min(1.0, longest / max(width, height))
        return min(largest, math.ceil(width * scale * height * scale / pixels_per_token) + 8)

    return tokens


def _gemini(width: int, height: int) -> int:
    """258 tokens for each tile; 1,120 at the default resolution of newer models."""
    unit = max(256, min(768, math.floor(min(width, height) / 1.5)))
    return max(1_120, 258 * math.ceil(width / unit) * math.ceil(height / unit))


_OPENAI: Final = Family(
    output_tokens=128_000,
    context_tokens=400_000,
    tokenizer_factor=1.0,
    image_tokens=_patches(1.2, 10_000),
    largest_image_tokens=12_003,
)
_CLAUDE: Final = Family(
    output_tokens=64_000,
    context_tokens=1_000_000,
    tokenizer_factor=1.4,
    median_factor=1.15,
    image_tokens=_area(750, 1_568, 1_640),
    largest_image_tokens=1_640,
    tools_frame_tokens=850,
)
_GEMINI: Final = Family(
    output_tokens=65_536,
    context_tokens=1_048_576,
    tokenizer_factor=1.15,
    image_tokens=_gemini,
    largest_image_tokens=10_320,
)
_TILED: Final = replace(_OPENAI, image_tokens=_tiles(85, 170), largest_image_tokens=1_445)
_MISTRAL: Final = Family(
    output_tokens=262_144,
    context_tokens=262_144,
    tokenizer_factor=1.35,
    image_tokens=_patches(1.1, 4_096, 16),
    largest_image_tokens=4_509,
)

_FAMILIES: Final = tuple(
    (re.compile(rf"(?:^|[/.:])(?:{form})"), family)
    for form, family in (
        (r"gpt-4o-mini", replace(
            _TILED, output_tokens=16_384, context_tokens=128_000,
            image_tokens=_tiles(2_833, 5_667), largest_image_tokens=48_169)),
        (r"gpt-4o|chatgpt-4o", replace(_TILED, output_tokens=16_384, context_tokens=128_000)),
        (r"gpt-4\.1-(mini|nano)", replace(
            _OPENAI, output_tokens=32_768, context_tokens=1_047_576,
            image_tokens=_patches(2.46, 1_536), largest_image_tokens=3_782)),
        (r"gpt-4\.1|gpt-4\.5", replace(_TILED, output_tokens=32_768, context_tokens=1_047_576)),
        (r"gpt-(3|4)", replace(
            _TILED, output_tokens=16_384, context_tokens=128_000, tokenizer_factor=1.1)),
        (r"gpt-5(\.\d)?-pro", replace(_OPENAI, output_tokens=272_000, context_tokens=1_050_000)),
        (r"gpt-5(\.\d)?-chat", replace(_TILED, output_tokens=16_384, context_tokens=128_000)),
        (r"gpt-5(\.[1-3])?(-codex.*|-20.*)?$", replace(
            _OPENAI, image_tokens=_tiles(85, 170), largest_image_tokens=1_445)),
        (r"gpt-5-(mini|nano)", replace(
            _OPENAI, image_tokens=_patches(2.46, 1_536), largest_image_tokens=3_782)),
        (r"gpt-5\.[0-5]", replace(_OPENAI, context_tokens=1_050_000)),
        (r"gpt-([6-9]|5\.[6-9])", replace(
            _OPENAI, context_tokens=1_050_000, writes_cache=True)),
        (r"gpt-oss", replace(_OPENAI, output_tokens=131_072, context_tokens=131_072)),
        (r"o[134](-|$)", replace(
            _TILED, output_tokens=100_000, context_tokens=200_000,
            image_tokens=_patches(1.72, 1_536), largest_image_tokens=2_645)),
        (r"claude-(3|instant|2)", replace(_CLAUDE, context_tokens=200_000)),
        (r"claude-(opus|sonnet|haiku)-4-[0-5]|claude-(opus|sonnet)-4(-20|$)", replace(
            _CLAUDE, context_tokens=1_000_000)),
        (r"claude-(opus|sonnet)-4-6", replace(_CLAUDE, output_tokens=128_000)),
        (r"claude", replace(
            _CLAUDE, output_tokens=128_000, tokenizer_factor=1.85, median_factor=1.5,
            image_tokens=_area(750, 2_576, 4_840), largest_image_tokens=4_840)),
        (r"gemini-4", replace(_GEMINI, output_tokens=1_048_576)),
        (r"gemini", _GEMINI),
        (r"gemma", replace(_GEMINI, output_tokens=32_768, context_tokens=262_144)),
        (r"grok", Family(
            output_tokens=131_072, context_tokens=2_000_000, tokenizer_factor=1.2,
            image_tokens=lambda width, height: 1_792, largest_image_tokens=1_792)),
        (r"deepseek", Family(
            output_tokens=393_216, context_tokens=1_048_576, tokenizer_factor=1.15)),
        (r"kimi|moonshot", Family(
            output_tokens=1_048_576, context_tokens=1_048_576, tokenizer_factor=1.15)),
        (r"glm", Family(
            output_tokens=131_072, context_tokens=1_048_576, tokenizer_factor=1.2)),
        (r"mistral-large-4", replace(
            _MISTRAL, output_tokens=1_048_576, context_tokens=1_048_576)),
        (r"(mi|mini|pix|vox|dev|code|magi)s?tral|mistral", _MISTRAL),
        (r"qwen|qwq", Family(
            output_tokens=131_072, context_tokens=1_000_000, tokenizer_factor=1.15,
            image_tokens=_patches(1.1, 16_384, 28), largest_image_tokens=18_026)),
        (r"llama", Family(
            output_tokens=131_072, context_tokens=1_048_576, tokenizer_factor=1.15)),
        (r"command", Family(
            output_tokens=64_000, context_tokens=256_000, tokenizer_factor=1.2)),
    )
)  # fmt: skip
"""Families by the beginning of a model's name or of a part of it; the first match counts."""

UNKNOWN: Final = Family()


@lru_cache(maxsize=1024)
def family_of(model: str) -> Family:
    """Return the family of a model; prefixes such as ``anthropic/`` and ``ft:`` do not matter."""
    name = model.lower()
    return next((family for form, family in _FAMILIES if form.search(name)), UNKNOWN)
