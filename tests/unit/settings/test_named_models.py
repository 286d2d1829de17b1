"""Named models: their tiers and fallbacks, their keys, and invalid configurations."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import SettingsError

from caseworker.settings.models import ModelsSettings
from tests.unit.settings.loading import load

pytestmark = pytest.mark.req("cw/14.named")

OWN = 'provider: openai, base_url: "http://127.0.0.1:1/v1", model: m'
TWO = f"named: {{fast: {{{OWN}, fallbacks: [slow]}}, slow: {{provider: anthropic, model: c}}}}"


def models(cwd: Path, text: str, **environ: str) -> ModelsSettings:
    return load(cwd, f"models: {{{text}}}", environ).settings.models


def chains(found: ModelsSettings) -> dict[str, list[str]]:
    return {name: list(chain) for name, chain in found.chains().items()}


def test_names_and_tiers_lead_to_models_and_their_fallbacks(tmp_path: Path) -> None:
    """A tier without a model is left out, and the built-in planner is not added."""
    found = models(tmp_path, f"{TWO}, small: {{use: fast}}", MODELS_NAMED_SLOW_API_KEY="k")

    assert chains(found) == {
        "small": ["named.fast", "named.slow"],
        "fast": ["named.fast", "named.slow"],
        "slow": ["named.slow"],
    }


def test_a_key_comes_from_a_variable_of_the_name_or_of_the_provider(tmp_path: Path) -> None:
    """The endpoint of another server never gets the provider's key."""
    shared = {"ANTHROPIC_API_KEY": "theirs", "OPENAI_API_KEY": "o"}

    found = models(tmp_path, TWO, **shared).named
    own = models(tmp_path, TWO, **shared, CASEWORKER_MODELS_NAMED_SLOW_API_KEY="own").named

    assert found["fast"].api_key is None
    assert [str(each["slow"].api_key.get_secret_value()) for each in (found, own)] == [  # type: ignore[union-attr]
        *("theirs", "own"),
    ]
    assert "own" not in repr(own)


def test_the_environment_may_hold_all_named_models(tmp_path: Path) -> None:
    """The variable is JSON and may contain keys."""
    named = '{"fast": {"provider": "openai", "model": "m", "api_key": "sk-1"}}'

    found = models(tmp_path, "", MODELS_NAMED=named, MODELS_SMALL_USE="fast")

    assert chains(found) == {"small": ["named.fast"], "fast": ["named.fast"]}


def named(**models: str) -> str:
    return "named: {" + ", ".join(f"{name}: {{{text}}}" for name, text in models.items()) + "}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            named(fast=f"{OWN}, fallbacks: [nope]"),
            "named.fast.fallbacks.1: unknown model",
        ),
        (named(fast=f"{OWN}, fallbacks: [big]"), "named.fast.fallbacks.1: unknown model 'big'"),
        (
            named(a=f"{OWN}, fallbacks: [b]", b=f"{OWN}, fallbacks: [a]"),
            "named.b.fallbacks.1: circular reference: a -> b -> a",
        ),
        (
            named(a=f"{OWN}, fallbacks: [small]") + ", small: {use: a}",
            "named.a.fallbacks.1: circular reference: small -> a -> small",
        ),
        (named(small=OWN), "named.small: this name is reserved for a tier"),
        (named(Fast=OWN), "named.Fast: a name has 1 to 64 of the characters a-z 0-9 . _ -"),
        ('named: {"a-b": {' + OWN + '}, "a.b": {' + OWN + "}}", "named.a.b: this name and a-b"),
        ("small: {use: fast}", "small.use: unknown model 'fast' (models.named: none)"),
        (
            named(fast=OWN) + ", small: {use: fast, model: x}",
            "small.use: replaces the other keys; remove model",
        ),
        (
            named(fast="provider: offline, model: m"),
            "named.fast.provider: offline supports only cases",
        ),
        (named(fast="provider: anthropic, model: m"), "named.fast.provider: anthropic requires"),
        (named(fast=OWN.replace("model: m", "")), "named.fast.model: required"),
        (named(fast=f"{OWN}, capabilities: [see]"), "named.fast.capabilities.1: must be 'image'"),
        (
            named(fast=f"{OWN}, api_key: k"),
            "named.fast.api_key: secrets are read from the environment",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, line: str) -> None:
    """The error is one line with the key."""
    with pytest.raises(SettingsError) as refused:
        models(tmp_path, text)

    assert str(refused.value).startswith(f"config.yaml: models.{line}")


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("CASEWORKER_MODELS_NAMED_SLOWW_API_KEY", "MODELS_NAMED_SLOW_API_KEY"),
        ("CASEWORKER_MODELS_SMALL_FALLBACKS_1_API_KEY", "unknown setting"),
    ],
)
def test_a_key_of_a_model_that_is_not_configured_is_refused(
    tmp_path: Path, variable: str, line: str
) -> None:
    """With a misspelt name, a model would have no key."""
    environ: dict[str, Any] = {variable: "k", "MODELS_NAMED_SLOW_API_KEY": "k"}
    with pytest.raises(SettingsError, match=line):
        models(tmp_path, TWO, **environ)


@pytest.mark.parametrize("variable", ["MODELS_NAMED", "MODELS_SMALL_FALLBACKS"])
def test_broken_json_that_may_hold_a_key_is_not_shown(tmp_path: Path, variable: str) -> None:
    """Not even the start of the value is shown."""
    environ = {variable: '[{"api_key": "own-secret-1'}
    with pytest.raises(SettingsError) as refused:
        models(tmp_path, "", **environ)

    assert "its value is not shown" in str(refused.value)
    assert "own-secret" not in str(refused.value)


def test_a_quota_names_configured_models_alone(tmp_path: Path) -> None:
    """A quota for a misspelt model would have no effect."""
    text = f"models: {{{TWO}}}\nquotas: {{models: [fast, nope]}}"
    with pytest.raises(SettingsError, match=r"quotas\.models\.2: unknown model"):
        load(tmp_path, text, {"ANTHROPIC_API_KEY": "k"})


def test_web_search_has_the_price_of_its_provider_unless_the_model_sets_another(
    tmp_path: Path,
) -> None:
    """Null removes a price, and other tools can be priced."""
    tool = "{usd_per_use: 0.5, tokens_per_use: 9, max_uses: 2}"
    text = (
        "named: {a: {base_url: 'http://127.0.0.1:1', model: m},"
        " b: {provider: stub, model: m},"
        f" c: {{base_url: 'http://127.0.0.1:1', model: m, provider_tools: {{mcp: {tool}}}}},"
        " d: {base_url: 'http://127.0.0.1:1', model: m, provider_tools: {web_search: null}}}"
    )
    named = models(tmp_path, text).named

    found = {name: dict(each.chosen_provider_tools) for name, each in named.items()}
    assert found["a"].keys() == {"web_search", "web_search_preview", "tool_search"}
    assert (found["a"]["web_search"].usd_per_use, found["a"]["web_search"].max_uses) == (
        Decimal("0.01"),
        5,
    )
    assert found["b"] == {}
    assert found["c"].keys() == {*found["a"], "mcp"}
    assert (found["c"]["mcp"].tokens_per_use, found["c"]["mcp"].max_uses) == (9, 2)
    assert "web_search" not in found["d"]
