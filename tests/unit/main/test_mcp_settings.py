"""Configuration of MCP servers and its error messages."""

import json
from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from caseworker.main.agents import build_tools
from caseworker.main.commands import check_configuration
from caseworker.main.configuration import StartupError
from caseworker.main.plugins import Toolbox
from caseworker.settings.loader import load_settings
from caseworker.settings.schema import Settings


def loaded(text: str, tmp_path: Path, **environ: str) -> Settings:
    path = tmp_path / "config.yaml"
    path.write_text(f"tools:\n  mcp:\n    servers: {text}\n")
    return load_settings(environ, tmp_path).settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{a: {}}", "set either command or url"),
        ("{a: {command: x, url: 'http://x'}}", "set either command or url"),
        ("{a: {comand: x}}", "did you mean command?"),
        ("{a: {command: x, headers: {A: B}}}", "headers: allowed only with url"),
        ("{a: {url: 'http://x', env: [A]}}", "args and env are allowed only with command"),
        ("{a: {command: x, env: ['A=B']}}", "the name of an environment variable"),
        ("{'a.b': {command: x}}", "a.b"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    """The error message names the server and the required change."""
    with pytest.raises(SettingsError, match=r"tools\.mcp\.servers") as refused:
        loaded(text, tmp_path)

    assert said in str(refused.value)


def test_a_variable_that_is_not_set_stops_the_start(tmp_path: Path) -> None:
    """A missing environment variable of a server stops the start."""
    settings = loaded("{a: {command: x, env: [MCP_KEY_THAT_IS_NOT_SET]}}", tmp_path)

    with pytest.raises(StartupError, match=r"servers\.a: .*MCP_KEY_THAT_IS_NOT_SET"):
        Toolbox(settings.tools)


def test_tools_of_servers_can_be_allowed_and_denied_by_their_full_names(tmp_path: Path) -> None:
    """Tools of a server are allowed and denied by full name, without starting the server."""
    settings = loaded("{a: {command: x, allow: [one, two]}}", tmp_path)
    tools = settings.tools.model_copy(update={"deny": ("a.two",)})
    settings = settings.model_copy(update={"tools": tools})
    toolbox = Toolbox(settings.tools)

    dispatch = build_tools(settings, toolbox.tools, toolbox.servers)

    assert dispatch.servers == ["a"]
    assert "a.one" in dispatch
    assert "calculator" in dispatch
    assert not any(name in dispatch for name in ("a.two", "a.three", "b.one", "a.", "a"))


def test_a_check_of_the_configuration_knows_the_tools_of_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The configuration check accepts tools of configured servers in tools.deny."""
    monkeypatch.setenv("TOOLS_MCP_SERVERS", json.dumps({"web": {"command": "x"}}))
    monkeypatch.setenv("TOOLS_DENY", '["web.echo"]')
    monkeypatch.setenv("RETENTION_RUNS_DAYS", "30")
    monkeypatch.setenv("RETENTION_THREADS_DAYS", "30")

    assert check_configuration(load=True).warnings == ()

    monkeypatch.setenv("TOOLS_DENY", '["net.echo"]')
    with pytest.raises(StartupError, match=r"unknown tool 'net\.echo'"):
        check_configuration(load=True)


def test_the_environment_holds_servers_as_json(tmp_path: Path) -> None:
    """MCP servers can be configured as JSON in an environment variable."""
    text = json.dumps({"time": {"command": "uvx", "args": ["mcp-server-time"]}})

    settings = load_settings({"TOOLS_MCP_SERVERS": text}, tmp_path).settings

    assert settings.tools.mcp.servers["time"].args == ("mcp-server-time",)
