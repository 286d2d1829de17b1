"""Sources of settings, and the one-line message for an invalid one."""

from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from caseworker.settings.schema import Settings
from tests.unit.settings.loading import load, problem


@pytest.mark.req("002/15.5", "002/17.4")
def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    """A fresh checkout starts with the defaults."""
    loaded = load(tmp_path)

    assert loaded.source is None
    assert loaded.warnings == ()
    assert loaded.settings.budget.limits.max_seconds == 60


@pytest.mark.req("002/15.1")
def test_the_file_sets_every_section_it_names(tmp_path: Path) -> None:
    """The requirement has five sections; an empty one sets nothing."""
    loaded = load(
        tmp_path,
        """
models: {small: {provider: offline}, big: {base_url: "http://127.0.0.1:1/v1", model: qwen3}}
budget: {max_seconds: 5}
act: {max_steps: 1}
verifier_thresholds: {pass_metric: 0.5}
flags: {mode: fallback_only, escalate_when: fail, timezone: Europe/Berlin}
server:
""",
    )

    settings = loaded.settings
    assert loaded.source == tmp_path / "config.yaml"
    assert settings.models.big.chosen_model == "qwen3"
    assert settings.budget.limits.max_seconds == 5
    assert settings.act.max_steps == 1
    assert settings.verifier_thresholds.pass_metric == 0.5
    assert settings.flags.mode == "fallback_only"
    assert settings.server.port == 8080


def test_a_named_file_takes_the_place_of_the_usual_one(tmp_path: Path) -> None:
    """Relative paths start from the working directory."""
    (tmp_path / "other.yaml").write_text("server: {port: 1234}")

    loaded = load(tmp_path, "server: {port: 1}", {"CASEWORKER_CONFIG": "other.yaml"})

    assert loaded.settings.server.port == 1234


def test_a_named_file_that_is_missing_stops_start_up(tmp_path: Path) -> None:
    """A named file must exist; the defaults are not used instead."""
    line = problem(tmp_path, "", {"CASEWORKER_CONFIG": "gone.yaml"})

    assert line == f"CASEWORKER_CONFIG: file not found: '{tmp_path / 'gone.yaml'}'"


@pytest.mark.req("002/15.2")
def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    """Variables are named after the path in capitals; the prefixed one wins."""
    loaded = load(
        tmp_path,
        "budget: {max_seconds: 1, max_tool_calls: 1}\nserver: {port: 1}",
        {
            "BUDGET_MAX_SECONDS": "2.5",
            "SERVER_PORT": "2",
            "CASEWORKER_SERVER_PORT": "3",
            "MODELS_SMALL_PROVIDER": "offline",
            "DATABASE_DATA_DIR": "/srv/pg",
            "WORKER_ENABLED": "false",
            "TOOLS_DENY": "plotter, stocks",
            "TOOLS_ALLOW": '["a"]',
            "BUDGET_MAX_LLM_CALLS_SMALL": "null",
        },
    )

    settings = loaded.settings
    assert settings.budget.limits.max_seconds == 2.5
    assert settings.budget.limits.max_tool_calls == 1
    assert settings.budget.limits.max_llm_calls_small is None
    assert settings.server.port == 3
    assert settings.database.data_dir == Path("/srv/pg")
    assert settings.worker.enabled is False
    assert settings.tools.deny == ("plotter", "stocks")
    assert settings.tools.allow == ("a",)
    assert loaded.warnings == ()


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    """Compose files pass unset variables as empty ones."""
    loaded = load(tmp_path, "server: {port: 7}", {"SERVER_PORT": "", "OPENAI_API_KEY": " "})

    assert loaded.settings.server.port == 7
    assert loaded.settings.models.small.chosen_provider == "offline"


@pytest.mark.req("002/15.3", "002/15.4", "002/23.5")
@pytest.mark.parametrize(
    ("text", "place", "allowed", "found"),
    [
        ("budget: {max_seconds: -5}", "budget.max_seconds", "0", "-5"),
        ("budget: {max_seconds: .nan}", "budget.max_seconds", "a finite number", "NaN"),
        ("budget: {max_tool_calls: true}", "budget.max_tool_calls", "integer", "true"),
        ("server: {port: null}", "server.port", "integer", "null"),
        ("server: {port: 65536}", "server.port", "65535", "65536"),
        ("budget: {wrap_up_reserve: 2}", "budget.wrap_up_reserve", "a final answer", "2"),
        ("flags: {mode: hrm}", "flags.mode", "'fallback_only'", '"hrm"'),
        ("flags: {timezone: Mars/X}", "flags.timezone", "timezone", '"Mars/X"'),
        ("tools: {deny: plotter}", "tools.deny", "a list", '"plotter"'),
        ("database: {data_dir: 5}", "database.data_dir", "valid path", "5"),
        ("tools: {deny: [1]}", "tools.deny.1", "string", "1"),
        (
            "models: {small: {price_per_million_in_usd: abc}}",
            "models.small.price_per_million_in_usd",
            "decimal",
            '"abc"',
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    tmp_path: Path, text: str, place: str, allowed: str, found: str
) -> None:
    """The line has the position, the key, the allowed values and the value found."""
    line = problem(tmp_path, text)

    assert line.startswith(f"config.yaml: {place}: ")
    assert allowed in line
    assert line.endswith(f" (got {found})")


@pytest.mark.req("002/15.3", "002/15.4", "002/23.5")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "act: {max_steps: 2}\nflags: {mode: fallback_only}",
            "config.yaml: act.max_steps: must be 0 or 1 while flags.mode is fallback_only",
        ),
        (
            "worker: {stale_after_seconds: 1}",
            "config.yaml: worker.stale_after_seconds: must be at least twice"
            " worker.heartbeat_seconds",
        ),
        (
            "artifacts: {max_run_mb: 1}",
            "config.yaml: artifacts.max_run_mb: must be at least artifacts.max_artifact_mb",
        ),
        (
            "models: {small: {provider: openai}}",
            "config.yaml: models.small.provider: openai requires OPENAI_API_KEY in the environment,"
            " or base_url",
        ),
        (
            "models: {big: {provider: anthropic}}",
            "config.yaml: models.big.provider: anthropic requires ANTHROPIC_API_KEY in the"
            " environment",
        ),
        (
            "trace:\n  payload: full\n",
            "config.yaml: trace.payload: unknown key; did you mean payloads?"
            " Allowed keys: payloads, max_payload_chars, max_shown_bytes",
        ),
        (
            "auth: anywhere",
            'config.yaml: auth: must be a section with keys and values (got "anywhere")',
        ),
        ("Server: {port: 1}", None),
    ],
)
def test_a_key_or_contradiction_that_does_not_fit_is_named(
    tmp_path: Path, text: str, line: str | None
) -> None:
    """The line has the position and the fix; keys in capitals are unknown."""
    found = problem(tmp_path, text)

    assert found == line or (line is None and "unknown key" in found)


@pytest.mark.parametrize("text", ["models: x", "models: {small: [1]}"])
def test_what_stands_in_the_place_of_a_section_is_refused_whatever_the_environment_sets(
    tmp_path: Path, text: str
) -> None:
    """A variable for the section does not hide the error."""
    line = problem(tmp_path, text, {"OPENAI_API_KEY": "k", "MODELS_SMALL_TEMPERATURE": "1"})

    assert "must be a section with keys and values" in line


@pytest.mark.req("002/15.3")
def test_an_unknown_section_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    """A typing error is easy to find."""
    line = problem(tmp_path, "bugdet: {max_seconds: 5}")

    assert line.startswith("config.yaml: bugdet: unknown key; did you mean budget?")
    assert "verifier_thresholds" in line


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("budget:\n  max_seconds: 1\n  max_seconds: 2\n", "duplicate key 'max_seconds'"),
        ("a: &x [1]\nb: *x\n", "aliases are not allowed"),
        ("budget: {<<: {max_seconds: 1}}", "budget.<<: unknown key"),
        ("1: 2", "1: unknown key"),
        ("a: !!python/object:os.system x", "line 1, column 4"),
        ("a: {" * 5000, "recursion"),
        ("budget: {max_tokens: " + "9" * 5000 + "}", "limit"),
        ("budget: {", "line 1"),
        ("\tbudget: 1", "line 1, column 1"),
        ("--- {}\n--- {}\n", "line 2"),
        ("- budget", "must be a section with keys and values"),
    ],
)
def test_a_file_that_is_not_plain_yaml_is_refused(tmp_path: Path, text: str, part: str) -> None:
    """The error is one line with the position, and parsing uses little memory and stack."""
    line = problem(tmp_path, text)

    assert line.startswith("config.yaml")
    assert part in line


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A folder of that name or invalid UTF-8 is rejected."""
    (tmp_path / "config.yaml").mkdir()
    assert problem(tmp_path) == f"config.yaml: file not found: '{tmp_path / 'config.yaml'}'"

    (tmp_path / "latin.yaml").write_bytes(b"server: {host: \xff}")
    assert "cannot be read" in problem(tmp_path, environ={"CASEWORKER_CONFIG": "latin.yaml"})


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("models: {small: {api_key: hunter2}}", "MODELS_SMALL_API_KEY"),
        (
            "models: {big: {fallbacks: [{model: x, api_key: hunter2}]}}",
            "MODELS_BIG_FALLBACKS_1_API_KEY",
        ),
        ("database: {url: 'postgresql://app:hunter2@db/x'}", "DATABASE_URL"),
        ("database: {url: 'postgresql://app@db/x?password=hunter2'}", "DATABASE_URL"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(
    tmp_path: Path, text: str, variable: str
) -> None:
    """Configuration files get copied, committed and mailed."""
    line = problem(tmp_path, text)

    assert line.endswith(f"secrets are read from the environment only; set {variable}")
    assert "hunter2" not in line
    load(tmp_path, "database: {url: 'postgresql://app@db:5432/x'}")  # a port is not a password


@pytest.mark.parametrize(
    "environ",
    [
        {"DATABASE_URL": "mysql://u:hunter2hunter2@h/x"},
        {"MODELS_SMALL_PROVIDER": "sk-hunter2hunter2"},
        {"MODELS_SMALL_BASE_URL": "https://u:hunter2hunter2@h/v1"},
    ],
)
def test_no_message_repeats_a_secret(tmp_path: Path, environ: dict[str, str]) -> None:
    """A secret under the wrong name is not repeated either."""
    assert "hunter2" not in problem(tmp_path, environ=environ)


@pytest.mark.req("002/15.3", "002/15.4")
def test_an_unknown_variable_stops_start_up_only_with_the_prefix(tmp_path: Path) -> None:
    """The environment contains variables of other programs."""
    environ = {
        "PATH": "/bin",
        "MODELS_DIR": "/models",
        "SERVER_NAME": "x",
        "SERVER_SOFTWARE": "y",
        "LOG_LEVEL": "debug",
        "TOOLS_DIR": "z",
        "LOGGING_CONFIG": "q",
    }
    assert load(tmp_path, environ=environ).warnings == ()

    line = problem(tmp_path, environ={"CASEWORKER_BUDGET_MAX_SECS": "5"})
    assert line == (
        "CASEWORKER_BUDGET_MAX_SECS: unknown setting; did you mean CASEWORKER_BUDGET_MAX_SECONDS?"
    )
    assert "config.yaml.example" in problem(tmp_path, environ={"CASEWORKER_XYZ": "1"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BUDGET_MAX_SECOND", "BUDGET_MAX_SECONDS"),
        ("SERVER_PROT", "SERVER_PORT"),
        ("DATABASE_URI", "DATABASE_URL"),
    ],
)
def test_a_near_miss_without_the_prefix_is_a_warning(tmp_path: Path, name: str, meant: str) -> None:
    """The variable may belong to another program."""
    loaded = load(tmp_path, environ={name: "5"})

    assert loaded.warnings == (f"{name}: not a setting; did you mean {meant}?",)


def test_a_service_link_in_a_settings_place_is_called_what_it_is(tmp_path: Path) -> None:
    """Kubernetes sets SERVER_PORT in every pod if a service is named "server"."""
    line = problem(tmp_path, environ={"SERVER_PORT": "tcp://10.0.0.1:80"})

    assert "service link" in line
    assert "CASEWORKER_SERVER_PORT" in line


def test_service_links_of_a_service_with_our_own_name_are_ignored(tmp_path: Path) -> None:
    """Most deployments have a service named "caseworker"."""
    loaded = load(
        tmp_path,
        environ={
            "CASEWORKER_SERVICE_HOST": "10.0.0.1",
            "CASEWORKER_SERVICE_PORT": "80",
            "CASEWORKER_SERVICE_PORT_HTTP": "80",
            "CASEWORKER_PORT": "tcp://10.0.0.1:80",
            "CASEWORKER_PORT_80_TCP_ADDR": "10.0.0.1",
        },
    )

    assert len(loaded.warnings) == 5
    assert all("service link" in warning for warning in loaded.warnings)


@pytest.mark.req("002/24.4")
def test_the_limits_of_a_mode_are_checked_wherever_they_come_from(tmp_path: Path) -> None:
    """The default of the other mode does not conflict."""
    fallback = {"FLAGS_MODE": "fallback_only"}

    assert load(tmp_path, environ=fallback).settings.act.max_steps == 3
    assert problem(tmp_path, environ={**fallback, "ACT_MAX_STEPS": "2"}).startswith(
        "ACT_MAX_STEPS: must be 0 or 1"
    )


@pytest.mark.parametrize("name", ["AUTH_BOOTSTRAP_KEY", "CASEWORKER_AUTH_BOOTSTRAP_KEY"])
@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_secret_of_the_service_stops_startup(
    tmp_path: Path, name: str, value: str
) -> None:
    """A missing secret would otherwise open the service without a warning."""
    with pytest.raises(SettingsError, match=f"{name}: the variable is empty"):
        load(tmp_path, environ={name: value})


def test_empty_keys_and_endpoints_of_providers_are_not_set_and_named_in_one_warning(
    tmp_path: Path,
) -> None:
    """Compose files pass unset variables as empty ones."""
    environ = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": "", "MODELS_BIG_API_KEY": " ", "EMPTY": ""}

    loaded = load(tmp_path, environ=environ)

    assert loaded.settings == Settings()
    assert loaded.warnings == (
        "MODELS_BIG_API_KEY, OPENAI_API_KEY, OPENAI_BASE_URL: empty, treated as not set",
    )
