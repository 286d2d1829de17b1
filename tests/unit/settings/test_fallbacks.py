"""Models that stand in for others, as they are configured."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from app.settings.cases import ModelSettings
from app.settings.loader import load_settings

TWO = """
models:
  small:
    provider: offline
    fallbacks:
      - {model: gpt-5-mini}
      - {provider: openai, model: qwen3, base_url: "http://127.0.0.1:11434/v1"}
"""


def fallbacks(
    cwd: Path, text: str, environ: Mapping[str, str] | None = None
) -> tuple[ModelSettings, ...]:
    """Load with ``text`` as the config.yaml and return the small tier's fallbacks."""
    (cwd / "config.yaml").write_text(text, encoding="utf-8")
    return load_settings(environ or {}, cwd).settings.models.small.fallbacks


def problem(cwd: Path, text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the one line that stops start-up."""
    with pytest.raises(SettingsError) as caught:
        fallbacks(cwd, text, environ)
    return str(caught.value)


def test_a_tier_has_no_fallbacks_unless_they_are_listed(tmp_path: Path) -> None:
    """Nobody's prompt goes where it was not told to go."""
    assert fallbacks(tmp_path, "") == ()


def test_fallbacks_keep_their_order_and_have_the_keys_of_a_tier(tmp_path: Path) -> None:
    """What is left out takes the default of a tier."""
    first, second = fallbacks(tmp_path, TWO, {"OPENAI_API_KEY": "k"})

    assert (first.chosen_provider, first.chosen_model) == ("openai", "gpt-5-mini")
    assert (second.chosen_provider, second.base_url) == ("openai", "http://127.0.0.1:11434/v1")
    assert first.timeout_seconds == 30


def test_a_key_reaches_its_own_provider_alone(tmp_path: Path) -> None:
    """The usual variable goes to the provider itself, not to an endpoint of one's own."""
    first, second = fallbacks(tmp_path, TWO, {"OPENAI_API_KEY": "usual"})

    assert first.api_key is not None
    assert first.api_key.get_secret_value() == "usual"
    assert second.api_key is None


@pytest.mark.parametrize("prefix", ["", "CASEWORKER_"])
def test_each_fallback_has_a_variable_for_its_key(tmp_path: Path, prefix: str) -> None:
    """Counted from one; it is closer than the usual one."""
    environ = {
        "OPENAI_API_KEY": "usual",
        f"{prefix}MODELS_SMALL_FALLBACKS_1_API_KEY": "one",
        f"{prefix}MODELS_SMALL_FALLBACKS_2_API_KEY": "two",
    }

    keys = [fallback.api_key for fallback in fallbacks(tmp_path, TWO, environ)]

    assert [key and key.get_secret_value() for key in keys] == ["one", "two"]
    assert load_settings(environ, tmp_path).warnings == ()


@pytest.mark.req("002/15.2")
def test_the_environment_overrides_the_list_as_a_whole(tmp_path: Path) -> None:
    """Written as JSON, where a key may stand as well."""
    environ = {
        "MODELS_SMALL_FALLBACKS": '[{"provider": "anthropic", "model": "claude", "api_key": "k"}]'
    }

    (only,) = fallbacks(tmp_path, TWO, environ)

    assert (only.chosen_provider, only.chosen_model) == ("anthropic", "claude")


@pytest.mark.req("002/15.3", "002/15.4")
@pytest.mark.parametrize(
    ("written", "line"),
    [
        (
            "x",
            'config.yaml: models.small.fallbacks: must be a list (got "x")',
        ),
        (
            "[gpt-5]",
            "config.yaml: models.small.fallbacks item 1: must be a section with keys and values: "
            + ", ".join(ModelSettings.model_fields),
        ),
        (
            "[{provider: offline}, {provider: recorded, model: m}]",
            "config.yaml: models.small.fallbacks item 2: recording: must name a file, since the"
            " provider is recorded",
        ),
        (
            "[{provider: openai, model: x}]",
            "config.yaml: models.small.fallbacks item 1: provider: openai needs OPENAI_API_KEY in"
            " the environment, or a base_url that needs no key",
        ),
        (
            "[{base_url: 'http://127.0.0.1:1/v1'}]",
            "config.yaml: models.small.fallbacks item 1: model: must name a model, since the"
            " provider is openai",
        ),
        (
            "[{provider: offline, price_per_million_cached_usd: 1}]",
            "config.yaml: models.small.fallbacks item 1: price_per_million_cached_usd: must be"
            " given together with the other prices",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_item(tmp_path: Path, written: str, line: str) -> None:
    """One line with the place, the item, the key and what is allowed."""
    text = f"models: {{small: {{fallbacks: {written}}}}}"

    assert problem(tmp_path, text) == line


def test_an_unknown_key_of_a_fallback_is_named(tmp_path: Path) -> None:
    """Fallbacks have none of their own."""
    line = problem(tmp_path, "models: {small: {fallbacks: [{modell: x}]}}")

    assert line.startswith(
        "config.yaml: models.small.fallbacks item 1: modell: unknown key; did you mean model?"
    )


def test_a_key_in_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """Files get copied, committed and mailed."""
    line = problem(tmp_path, "models: {big: {fallbacks: [{model: x, api_key: hunter2}]}}")

    assert line.endswith("set MODELS_BIG_FALLBACKS_1_API_KEY")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    "written",
    [
        '[{"model": "x", "api_key": {"k": "hunter2"}}]',
        '[{"model": "x", "timeout_seconds": -1, "api_key": "hunter2"}]',
        '[{"api_key": "hunter2"}]',
        '[{"api_key": "hunter2"}',
        '{"api_key": "hunter2"}',
    ],
)
def test_no_message_about_a_variable_repeats_the_key_in_it(tmp_path: Path, written: str) -> None:
    """Whatever else is wrong with it."""
    line = problem(tmp_path, "", {"MODELS_SMALL_FALLBACKS": written})

    assert line.startswith("MODELS_SMALL_FALLBACKS")
    assert "hunter2" not in line
