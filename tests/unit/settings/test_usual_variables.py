"""The variables that providers' own clients read, and which of them serve what."""

from pathlib import Path

import pytest

from tests.unit.settings.test_loader import load


def test_the_usual_variables_of_providers_serve_both_tiers(tmp_path: Path) -> None:
    """A key alone is enough to leave the built-in planner."""
    models = load(tmp_path, environ={"OPENAI_API_KEY": "k"}).settings.models

    assert models.small.chosen_model == "gpt-5-nano"
    assert models.big.chosen_model == "gpt-5"
    assert models.small.api_key is not None
    assert models.small.api_key.get_secret_value() == "k"


@pytest.mark.parametrize(
    ("text", "environ", "provider", "key"),
    [
        ("", {}, "packaged", None),
        ("", {"TIINGO_API_KEY": "usual"}, "tiingo", "usual"),
        ("", {"TIINGO_API_KEY": "usual", "TOOLS_PRICES_API_KEY": "own"}, "tiingo", "own"),
        ("tools: {prices: {provider: packaged}}", {"TIINGO_API_KEY": "usual"}, "packaged", None),
        (
            "tools: {prices: {base_url: 'https://proxy.example'}}",
            {"TIINGO_API_KEY": "usual"},
            "packaged",
            None,
        ),
    ],
)
def test_a_key_is_enough_to_ask_a_live_provider_of_prices(
    tmp_path: Path, text: str, environ: dict[str, str], provider: str, key: str | None
) -> None:
    """Its usual variable goes to the provider itself, not to another server."""
    prices = load(tmp_path, text, environ).settings.tools.prices

    assert prices.chosen_provider == provider
    assert (prices.api_key.get_secret_value() if prices.api_key else None) == key


def test_the_closer_variable_wins_over_the_usual_one(tmp_path: Path) -> None:
    """One tier may have a provider, an endpoint and a key of its own."""
    models = load(
        tmp_path,
        "models: {small: {base_url: 'http://127.0.0.1:11434/v1'}, big: {provider: anthropic,"
        " model: claude}}",
        {
            "OPENAI_API_KEY": "shared",
            "OPENAI_BASE_URL": "http://elsewhere/v1",
            "MODELS_SMALL_API_KEY": "own",
            "ANTHROPIC_API_KEY": "other",
        },
    ).settings.models

    assert models.small.base_url == "http://127.0.0.1:11434/v1"
    assert models.small.api_key is not None
    assert models.small.api_key.get_secret_value() == "own"
    assert models.big.base_url is None
    assert models.big.api_key is not None
    assert models.big.api_key.get_secret_value() == "other"


def test_the_offline_provider_ignores_keys(tmp_path: Path) -> None:
    """Said is said."""
    models = load(
        tmp_path, "models: {small: {provider: offline}}", {"OPENAI_API_KEY": "k"}
    ).settings.models

    assert models.small.chosen_provider == "offline"
    assert models.small.api_key is None
