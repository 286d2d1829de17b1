"""The defaults and allowed values of the settings, and the example file generated from them."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tzlocal
import yaml
from pydantic import ValidationError

from caseworker.settings.loader import load_settings
from caseworker.settings.models import SmallModelSettings, TierSettings
from caseworker.settings.schema import Settings
from caseworker.settings.values import keys_of, variable_of
from tests.support.config_example import render_example

EXAMPLE = Path(__file__).parents[3] / "config.yaml.example"


@pytest.mark.req("002/2.1", "002/2.2", "002/2.3", "002/2.4", "002/17.3", "002/17.4", "002/24.2")
def test_the_defaults_are_those_of_the_requirements() -> None:
    """The defaults equal those of the source document."""
    settings = Settings()

    assert settings.budget.limits.max_llm_calls_small == 6
    assert settings.budget.limits.max_llm_calls_big == 2
    assert settings.budget.limits.max_tool_calls == 6
    assert settings.budget.limits.max_seconds == 60
    assert settings.flags.mode == "hrm_small_then_escalate"
    assert settings.flags.escalate_when == "fail_or_budget"
    assert settings.flags.max_input_chars == 8192
    assert settings.act.max_steps == 3
    assert settings.act.min_improvement == 0.01
    assert settings.act.no_progress_patience == 1
    assert (settings.retry.max_retries, settings.retry.base_seconds) == (2, 0.5)
    assert (settings.retry.factor, settings.retry.jitter) == (2, 0.2)


def test_every_run_has_ceilings_that_can_be_raised_or_taken_away() -> None:
    """A run without a budget is limited in tokens, time, steps, calls and money."""
    settings = Settings()

    assert settings.budget.limits.max_tokens is None
    assert settings.budget.limits.max_cost_usd is None
    ceiling = settings.admission.limits
    assert None not in (ceiling.max_tokens, ceiling.max_seconds, ceiling.max_steps)
    assert None not in (ceiling.max_api_calls, ceiling.max_cost_usd, ceiling.max_tool_calls)
    unlimited = Settings(admission={"max_steps": None}).admission
    assert unlimited.limits.max_steps is None


def test_the_default_ceiling_of_cost_refuses_no_unknown_price_but_a_set_one_does() -> None:
    """The default cost limit allows models without a price; a configured limit refuses them."""
    assert not Settings().admission.requires_prices
    assert Settings(admission={"max_cost_usd": 10}).admission.requires_prices


def test_defaults_read_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the loader reads the environment."""
    monkeypatch.setenv("SERVER_PORT", "1")
    monkeypatch.setenv("CASEWORKER_SERVER_PORT", "1")

    assert Settings().server.port == 8080


def test_settings_cannot_be_changed() -> None:
    """Validated settings are immutable."""
    with pytest.raises(ValidationError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "many"])
@pytest.mark.parametrize("key", ["max_seconds", "max_tool_calls", "max_cost_usd", "max_tokens"])
def test_a_limit_is_null_or_a_finite_number_from_zero(key: str, value: Any) -> None:
    """Null means unlimited, and zero allows nothing."""
    for allowed in (None, 0):
        Settings.model_validate({"budget": {key: allowed}})
    with pytest.raises(ValidationError):
        Settings.model_validate({"budget": {key: value}})


@pytest.mark.req("002/24.1", "002/24.2", "002/24.4")
def test_each_mode_has_its_own_number_of_rounds() -> None:
    """The loop has three rounds by default, the fallback at most one."""
    act = Settings().act
    assert (act.max_steps, act.max_steps_fallback_only) == (3, 1)

    for allowed in (0, 1):
        Settings.model_validate({"act": {"max_steps_fallback_only": allowed}})
    with pytest.raises(ValidationError):
        Settings.model_validate({"act": {"max_steps_fallback_only": 2}})


@pytest.mark.req("002/17.2", "002/17.3")
def test_modes_and_rules_of_escalation_are_those_of_the_requirements_and_no_others() -> None:
    """The names equal those of the requirements."""
    for allowed in ("hrm_small_then_escalate", "fallback_only"):
        Settings.model_validate({"flags": {"mode": allowed}})
    for allowed in ("fail", "fail_or_budget"):
        Settings.model_validate({"flags": {"escalate_when": allowed}})
    for wrong in ({"mode": "big_only"}, {"escalate_when": "never"}, {"mode": None}):
        with pytest.raises(ValidationError):
            Settings.model_validate({"flags": wrong})


def test_without_a_key_the_built_in_planner_answers() -> None:
    """Without a key the built-in planner answers, so a new installation needs no provider."""
    models = Settings().models

    assert (models.small.chosen_provider, models.small.chosen_model) == ("offline", "offline")


@pytest.mark.req("002/1.1")
@pytest.mark.parametrize("where", [{"api_key": "k"}, {"base_url": "http://127.0.0.1:11434/v1"}])
def test_a_key_or_an_endpoint_chooses_the_provider(where: dict[str, str]) -> None:
    """A self-hosted endpoint may need no key."""
    small = SmallModelSettings.model_validate(where)
    big = TierSettings.model_validate(where)

    assert (small.chosen_provider, small.chosen_model) == ("openai", "gpt-5-nano")
    assert (big.chosen_provider, big.chosen_model) == ("openai", "gpt-5")


def test_a_secret_is_not_in_what_settings_print() -> None:
    """Neither the text nor the dump of the settings shows keys and passwords."""
    settings = Settings.model_validate(
        {
            "models": {"small": {"api_key": "hunter2"}},
            "database": {"url": "postgres://u:hunter2@h/x"},
        }
    )

    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.model_dump())
    assert "hunter2" not in settings.model_dump_json()
    assert settings.database.url is not None
    assert settings.database.url.get_secret_value() == "postgresql://u:hunter2@h/x"


@pytest.mark.parametrize(
    ("jwt", "problem"),
    [
        ({"audience": "me", "jwks_url": "https://login.example/jwks"}, "issuer: required"),
        ({"jwks_file": "keys.json"}, "issuer: required"),
        ({"issuer": "x", "jwks_url": "https://login.example/jwks"}, "audience: required"),
        ({"issuer": "x", "audience": "me"}, "jwks_url: set jwks_url or"),
        ({"jwks_url": "http://localhost:1@login.example/"}, "must be an https URL"),
        ({"jwks_url": "https://"}, "must be an https URL"),
    ],
)
def test_half_of_an_issuer_of_tokens_is_refused(jwt: dict[str, str], problem: str) -> None:
    """With half a configuration, the service would accept callers without tokens."""
    with pytest.raises(ValidationError, match=problem):
        Settings.model_validate({"auth": {"jwt": jwt}})


def test_no_two_keys_share_a_name_in_the_environment() -> None:
    """Every key can be set by a variable."""
    variables = [variable_of(path) for path, _ in keys_of(Settings)]

    assert len(variables) == len(set(variables)) > 50


def test_every_key_is_described() -> None:
    """In config.yaml.example, which is generated, a sentence precedes every key."""
    for before, line in pairwise(render_example().splitlines()):
        if line and not line.lstrip().startswith("#"):
            assert re.search(r"# .*\.$", before), line


@pytest.mark.req("002/25.1")
def test_the_zone_is_the_systems_unless_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone is the system's unless one is configured."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        tzlocal.reload_localzone()  # it is read once in the life of a process
        zone = Settings().flags.zone_name
    tzlocal.reload_localzone()

    assert zone == "Asia/Tokyo"
    configured = Settings.model_validate({"flags": {"timezone": "Europe/Berlin"}})
    assert configured.flags.zone_name == "Europe/Berlin"


@pytest.mark.req("002/17.5", "002/15.5", "002/24.3")
def test_the_example_states_every_default_and_nothing_else() -> None:
    """Regenerate it: `python -m tests.support.config_example > config.yaml.example`."""
    assert EXAMPLE.read_text(encoding="utf-8") == render_example()


def test_the_example_loads_as_the_defaults(tmp_path: Path) -> None:
    """A copy of the example changes nothing."""
    (tmp_path / "config.yaml").write_text(EXAMPLE.read_text(encoding="utf-8"))

    assert load_settings({}, tmp_path).settings == Settings()


def test_every_key_stands_in_the_example_but_secrets() -> None:
    """Secrets are listed in a comment with their variable."""
    text = EXAMPLE.read_text(encoding="utf-8")
    written = yaml.safe_load(text)

    for path, _ in keys_of(Settings):
        place = written
        for section in path[:-1]:
            place = place[section]
        assert (path[-1] in place) is (path[-1] != "api_key"), path
        assert path[-1] in place or variable_of(path) in text


def test_free_fields_are_paths_that_no_table_decides() -> None:
    """A priced field would stay refused, and a mistake would have no effect."""
    free = {"chat_completions": ("foo", "messages[].bar"), "messages": ("tools[]<new_tool>",)}
    assert Settings(gateway={"free_fields": free}).gateway.free_fields == free

    for api, path, problem in (
        ("chat_completions", "service_tier", "is listed as free"),
        ("chat_completions", "plugins", "is listed as priced"),
        ("chat_completions", "extra_body.background", "is listed as refused"),
        ("chat_completions", "metadata.foo", "is listed as free"),
        ("messages", "tools[]<code_execution_20250825>", "is listed as priced"),
        ("responses", "input[0].foo", "not a path"),
        ("completions", "foo", "Input should be"),
    ):
        with pytest.raises(ValidationError, match=problem):
            Settings(gateway={"free_fields": {api: (path,)}})
