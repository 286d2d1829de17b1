"""The variables that providers' own clients read, and which of them serve what."""

from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from tests.unit.settings.test_loader import load, problem


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
            {"TIINGO_API_KEY": "usual", "TOOLS_PRICES_API_KEY": "own"},
            "tiingo",
            "own",
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


@pytest.mark.parametrize("variable", ["TIINGO_API_KEY", "OPENAI_API_KEY", "TOOLS_PRICES_API_KEY"])
@pytest.mark.parametrize("key", ["canary-7c1e\n0d9b", "canary-\u201c7c1e0d9b\u201d"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(
    tmp_path: Path, variable: str, key: str
) -> None:
    """Clients would break with it, some of them quoting it, when it is too late."""
    with pytest.raises(SettingsError, match=f"^{variable}: must be a key of printable") as refusal:
        load(tmp_path, environ={variable: key})

    assert "7c1e" not in str(refusal.value)
    assert "0d9b" not in str(refusal.value)


def test_an_endpoint_needs_a_port_that_exists(tmp_path: Path) -> None:
    """Otherwise every request would fail as if the provider were away."""
    with pytest.raises(SettingsError, match=r"^TOOLS_PRICES_BASE_URL: must be an http"):
        load(tmp_path, environ={"TOOLS_PRICES_BASE_URL": "http://proxy.example:99999"})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "tools: {prices: {base_url: 'https://proxy.example'}}",
            "config.yaml: tools.prices.base_url: needs TOOLS_PRICES_API_KEY in the environment",
        ),
        (
            "tools: {prices: {provider: tiingo, base_url: 'https://proxy.example'}}",
            "config.yaml: tools.prices.base_url: needs TOOLS_PRICES_API_KEY in the environment",
        ),
    ],
)
def test_the_usual_key_of_prices_goes_to_no_other_server(
    tmp_path: Path, text: str, line: str
) -> None:
    """Nor does the service quietly answer from its packaged set then."""
    assert problem(tmp_path, text, {"TIINGO_API_KEY": "usual"}) == line


def test_a_live_provider_needs_a_key(tmp_path: Path) -> None:
    """It is named as its own variable."""
    assert problem(tmp_path, "tools: {prices: {provider: tiingo}}") == (
        "config.yaml: tools.prices.provider: tiingo needs TIINGO_API_KEY in the environment"
    )


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
