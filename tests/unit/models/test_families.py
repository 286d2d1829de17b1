"""What is assumed of models by their names; a change of the table must be made here as well."""

import pytest

from caseworker.models.families import UNKNOWN, family_of


@pytest.mark.parametrize(
    ("model", "output_tokens", "context_tokens", "tokenizer_factor", "largest_image_tokens"),
    [
        ("gpt-4o-mini", 16_384, 128_000, 1.0, 48_169),
        ("gpt-4o", 16_384, 128_000, 1.0, 1_445),
        ("chatgpt-4o-latest", 16_384, 128_000, 1.0, 1_445),
        ("gpt-4.1-mini", 32_768, 1_047_576, 1.0, 3_782),
        ("gpt-4.1", 32_768, 1_047_576, 1.0, 1_445),
        ("gpt-4-turbo", 16_384, 128_000, 1.1, 1_445),
        ("gpt-5-pro", 272_000, 1_050_000, 1.0, 12_003),
        ("gpt-5-chat-latest", 16_384, 128_000, 1.0, 1_445),
        ("gpt-5", 128_000, 400_000, 1.0, 1_445),
        ("gpt-5-mini", 128_000, 400_000, 1.0, 3_782),
        ("gpt-5.4", 128_000, 1_050_000, 1.0, 12_003),
        ("gpt-6", 128_000, 1_050_000, 1.0, 12_003),
        ("gpt-oss-120b", 131_072, 131_072, 1.0, 12_003),
        ("o3", 100_000, 200_000, 1.0, 2_645),
        ("claude-3-5-sonnet-latest", 64_000, 200_000, 1.4, 1_640),
        ("claude-sonnet-4-5", 64_000, 1_000_000, 1.4, 1_640),
        ("claude-opus-4-6", 128_000, 1_000_000, 1.4, 1_640),
        ("claude-opus-5", 128_000, 1_000_000, 1.85, 4_840),
        ("gemini-2.5-pro", 65_536, 1_048_576, 1.15, 10_320),
        ("gemini-4-pro", 1_048_576, 1_048_576, 1.15, 10_320),
        ("gemma-3", 32_768, 262_144, 1.15, 10_320),
        ("grok-4", 131_072, 2_000_000, 1.2, 1_792),
        ("deepseek-chat", 393_216, 1_048_576, 1.15, 50_000),
        ("kimi-k2", 1_048_576, 1_048_576, 1.15, 50_000),
        ("moonshot-v1", 1_048_576, 1_048_576, 1.15, 50_000),
        ("glm-4.6", 131_072, 1_048_576, 1.2, 50_000),
        ("mistral-large-4", 1_048_576, 1_048_576, 1.35, 4_509),
        ("codestral", 262_144, 262_144, 1.35, 4_509),
        ("qwen3-max", 131_072, 1_000_000, 1.15, 18_026),
        ("llama-4", 131_072, 1_048_576, 1.15, 50_000),
        ("command-a", 64_000, 256_000, 1.2, 50_000),
        ("somebody-else", 32_768, 1_048_576, 1.5, 50_000),
    ],
)
def test_the_name_of_a_model_decides_its_bounds(
    model: str,
    output_tokens: int,
    context_tokens: int,
    tokenizer_factor: float,
    largest_image_tokens: int,
) -> None:
    """The bounds of a call without a count follow from them."""
    family = family_of(model)

    assert family.output_tokens == output_tokens
    assert family.context_tokens == context_tokens
    assert family.tokenizer_factor == tokenizer_factor
    assert family.largest_image_tokens == largest_image_tokens


@pytest.mark.parametrize("prefix", ["openai/", "azure.", "ft:", "vendor/region/", "OPENAI/"])
def test_prefixes_of_a_name_do_not_matter(prefix: str) -> None:
    """Routers and clouds add them."""
    assert family_of(f"{prefix}gpt-4o-mini") is family_of("gpt-4o-mini")


@pytest.mark.parametrize("model", ["my-gpt-4o", "xo3", "notclaude"])
def test_a_name_within_a_word_is_unknown(model: str) -> None:
    """A model of another vendor may contain the letters."""
    assert family_of(model) is UNKNOWN
