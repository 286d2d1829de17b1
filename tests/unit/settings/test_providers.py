"""The variables of each provider, and the fallbacks of a tier."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from caseworker.settings.models import ModelSettings
from tests.unit.settings.loading import load, problem

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
    """Return the small tier's fallbacks."""
    return load(cwd, text, environ).settings.models.small.fallbacks


def test_the_usual_variables_of_providers_serve_both_tiers(tmp_path: Path) -> None:
    """A key alone replaces the built-in planner."""
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
    """The usual variable is used only for the provider's own server."""
    prices = load(tmp_path, text, environ).settings.tools.prices

    assert prices.chosen_provider == provider
    assert (prices.api_key.get_secret_value() if prices.api_key else None) == key


@pytest.mark.parametrize("variable", ["TIINGO_API_KEY", "OPENAI_API_KEY", "TOOLS_PRICES_API_KEY"])
@pytest.mark.parametrize("key", ["canary-7c1e\n0d9b", "canary-\u201c7c1e0d9b\u201d"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(
    tmp_path: Path, variable: str, key: str
) -> None:
    """Clients would fail on it later, and some quote it in the error."""
    with pytest.raises(SettingsError, match=f"^{variable}: must be a key of printable") as refusal:
        load(tmp_path, environ={variable: key})

    assert "7c1e" not in str(refusal.value)
    assert "0d9b" not in str(refusal.value)


def test_an_endpoint_needs_a_port_that_exists(tmp_path: Path) -> None:
    """An endpoint with an impossible port is rejected at the start."""
    with pytest.raises(SettingsError, match=r"^TOOLS_PRICES_BASE_URL: Port out of range"):
        load(tmp_path, environ={"TOOLS_PRICES_BASE_URL": "http://proxy.example:99999"})


@pytest.mark.parametrize("url", ["http://127.0.0.1/v1?team=a", "http://127.0.0.1/v1#a"])
@pytest.mark.parametrize("variable", ["MODELS_SMALL_BASE_URL", "TOOLS_PRICES_BASE_URL"])
def test_an_endpoint_ends_where_paths_are_added_to_it(
    tmp_path: Path, url: str, variable: str
) -> None:
    """A path after a query would become part of the query."""
    with pytest.raises(SettingsError, match=f"^{variable}: must be a URL without a query"):
        load(tmp_path, environ={variable: url})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("base_url: 'https://proxy.example'", "TOOLS_PRICES_API_KEY"),
        ("provider: tiingo, base_url: 'https://proxy.example'", "TOOLS_PRICES_API_KEY"),
        ("provider: tiingo", "TIINGO_API_KEY"),
    ],
)
def test_the_usual_key_of_prices_goes_to_no_other_server(
    tmp_path: Path, text: str, key: str
) -> None:
    """The service does not fall back to its packaged data either."""
    environ = {"TIINGO_API_KEY": "usual"} if "base_url" in text else {}

    assert problem(tmp_path, f"tools: {{prices: {{{text}}}}}", environ) == (
        f"config.yaml: tools.prices.provider: tiingo requires {key} in the environment"
    )


def test_the_closer_variable_wins_over_the_usual_one(tmp_path: Path) -> None:
    """A tier may have its own provider, endpoint and key."""
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


def test_a_tier_has_no_fallbacks_unless_they_are_listed(tmp_path: Path) -> None:
    """A tier has only the configured fallbacks, so prompts go nowhere else."""
    assert fallbacks(tmp_path, "") == ()


def test_fallbacks_keep_their_order_and_have_the_keys_of_a_tier(tmp_path: Path) -> None:
    """Missing fields have the defaults of a tier."""
    first, second = fallbacks(tmp_path, TWO, {"OPENAI_API_KEY": "k"})

    assert (first.chosen_provider, first.chosen_model) == ("openai", "gpt-5-mini")
    assert (second.chosen_provider, second.base_url) == ("openai", "http://127.0.0.1:11434/v1")
    assert first.timeout_seconds == 30


def test_a_key_reaches_its_own_provider_alone(tmp_path: Path) -> None:
    """The usual variable is used for the provider's own server and not for another endpoint."""
    first, second = fallbacks(tmp_path, TWO, {"OPENAI_API_KEY": "usual"})

    assert first.api_key is not None
    assert first.api_key.get_secret_value() == "usual"
    assert second.api_key is None


@pytest.mark.parametrize("prefix", ["", "CASEWORKER_"])
def test_each_fallback_has_a_variable_for_its_key(tmp_path: Path, prefix: str) -> None:
    """Variables are numbered from one and win over the usual variable."""
    environ = {
        "OPENAI_API_KEY": "usual",
        f"{prefix}MODELS_SMALL_FALLBACKS_1_API_KEY": "one",
        f"{prefix}MODELS_SMALL_FALLBACKS_2_API_KEY": "two",
    }

    keys = [fallback.api_key for fallback in fallbacks(tmp_path, TWO, environ)]

    assert [key and key.get_secret_value() for key in keys] == ["one", "two"]
    assert load(tmp_path, environ=environ).warnings == ()


@pytest.mark.req("002/15.2")
def test_the_environment_overrides_the_list_as_a_whole(tmp_path: Path) -> None:
    """The list is JSON and may contain a key."""
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
            "config.yaml: models.small.fallbacks.1: must be a section with keys and values"
            ' (got "gpt-5")',
        ),
        (
            "[{provider: offline}, {provider: anthropic, model: m}]",
            "config.yaml: models.small.fallbacks.2.provider: anthropic requires"
            " ANTHROPIC_API_KEY in the environment",
        ),
        (
            "[{modell: x}]",
            "config.yaml: models.small.fallbacks.1.modell: unknown key; did you mean model? Allowed"
            f" keys: {', '.join(ModelSettings.model_fields)}",
        ),
        (
            "[{provider: openai, model: x}]",
            "config.yaml: models.small.fallbacks.1.provider: openai requires OPENAI_API_KEY in"
            " the environment, or base_url",
        ),
        (
            "[{base_url: 'http://127.0.0.1:1/v1'}]",
            "config.yaml: models.small.fallbacks.1.model: required because the provider is openai",
        ),
        (
            "[{provider: offline, price_per_million_cached_usd: 1}]",
            "config.yaml: models.small.fallbacks.1.price_per_million_in_usd: must be"
            " set together with price_per_million_out_usd",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_item(tmp_path: Path, written: str, line: str) -> None:
    """The error is one line with the position, item, key and allowed values."""
    text = f"models: {{small: {{fallbacks: {written}}}}}"

    assert problem(tmp_path, text) == line


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
    """The value is hidden, whatever else is wrong with the variable."""
    line = problem(tmp_path, "", {"MODELS_SMALL_FALLBACKS": written})

    assert line.startswith("MODELS_SMALL_FALLBACKS")
    assert "hunter2" not in line
