"""Files of a project that cannot be read: they stop nothing, or the start with one line."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from caseworker.main.commands import check_configuration
from caseworker.main.development import _changes
from caseworker.main.errors import StartupError
from caseworker.main.project import use_dotenv
from caseworker.main.service_address import STANDING_KEY, service_address


def test_a_link_to_itself_and_a_virtual_environment_are_not_watched(tmp_path: Path) -> None:
    """A file that cannot be read must not end the service."""
    (tmp_path / "link.py").symlink_to("link.py")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    changed = _changes(tmp_path)

    (tmp_path / "env" / "a.py").touch()
    (tmp_path / "tools.py").touch()

    changes = iter(changed, "")
    assert next(changes) == "tools.py"


@pytest.mark.parametrize("content", [b"A=\xe4secret", b"A=sec\0ret"])
def test_an_unreadable_env_file_stops_the_start_with_one_line(
    content: bytes, tmp_path: Path
) -> None:
    """The message shows nothing of the file."""
    (tmp_path / "caseworker.yaml").touch()
    (tmp_path / ".env").write_bytes(content)

    with pytest.raises(StartupError, match=r"^\.env cannot be read: \w+$"):
        use_dotenv(tmp_path)


def test_an_unreadable_configuration_is_reported_by_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that only needs the address of the service does not end with a traceback."""

    def unreadable(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", unreadable)

    assert service_address().url.startswith("http://")


SHELL_KEY, PROJECT_KEY = "cwk_of-the-shell", "cwk_of-the-project"
ELSEWHERE, HERE = "http://elsewhere.test", "http://here.test"
OF_PROJECT = f"CASEWORKER_API_KEY={PROJECT_KEY}"
NO_KEY: dict[str, str] = {}
WITH_KEY = {"CASEWORKER_API_KEY": SHELL_KEY}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A working directory, an environment, and the address that they give."""

    variables: Mapping[str, str]
    option: str | None = None
    """Value of ``--url``."""
    yaml: str = ""
    dotenv: str = ""
    url: str
    key: str
    withheld: str | None = None


FOLDERS = {
    "a URL of a foreign .env": Folder(
        variables=WITH_KEY,
        dotenv=f"CASEWORKER_URL={ELSEWHERE}",
        url=ELSEWHERE,
        key="",
        withheld="the environment",
    ),
    "a URL and a key of .env": Folder(
        variables=WITH_KEY,
        dotenv=f"CASEWORKER_URL={ELSEWHERE}\n{OF_PROJECT}",
        url=ELSEWHERE,
        key=PROJECT_KEY,
    ),
    "a host and a port of the file": Folder(
        variables=WITH_KEY,
        yaml="server: {host: elsewhere.test, port: 80}",
        url=f"{ELSEWHERE}:80",
        key="",
        withheld="the environment",
    ),
    "a host of .env": Folder(
        variables=WITH_KEY,
        dotenv="SERVER_HOST=elsewhere.test",
        url=f"{ELSEWHERE}:8080",
        key="",
        withheld="the environment",
    ),
    "a prefixed port of .env beside a host of the shell": Folder(
        variables={**WITH_KEY, "SERVER_HOST": "here.test"},
        dotenv="CASEWORKER_SERVER_PORT=81",
        url=f"{HERE}:81",
        key="",
        withheld="the environment",
    ),
    "a port of the file and a key of .env": Folder(
        variables=NO_KEY,
        yaml="server: {port: 81}",
        dotenv=OF_PROJECT,
        url="http://127.0.0.1:81",
        key=PROJECT_KEY,
    ),
    "an option": Folder(
        variables=WITH_KEY,
        option=HERE,
        dotenv=f"CASEWORKER_URL={ELSEWHERE}\n{OF_PROJECT}",
        url=HERE,
        key=SHELL_KEY,
    ),
    "an option without a key in the shell": Folder(
        variables=NO_KEY,
        option=HERE,
        dotenv=OF_PROJECT,
        url=HERE,
        key="",
        withheld=".env",
    ),
    "a URL of the shell": Folder(
        variables={**WITH_KEY, "CASEWORKER_URL": HERE},
        dotenv=OF_PROJECT,
        url=HERE,
        key=SHELL_KEY,
    ),
    "a port of the shell": Folder(
        variables={**WITH_KEY, "SERVER_PORT": "81"},
        url="http://127.0.0.1:81",
        key=SHELL_KEY,
    ),
    "nothing configured": Folder(variables=WITH_KEY, url="http://127.0.0.1:8080", key=SHELL_KEY),
    "only a key of .env": Folder(
        variables=NO_KEY, dotenv=OF_PROJECT, url="http://127.0.0.1:8080", key=PROJECT_KEY
    ),
    "a foreign key beside that of the shell": Folder(
        variables=WITH_KEY, dotenv=OF_PROJECT, url="http://127.0.0.1:8080", key=SHELL_KEY
    ),
}


NAMED = "${CASEWORKER_API_KEY}"
FOLDERS |= {
    "a key of .env that names the shell's": Folder(
        variables=WITH_KEY,
        dotenv=f"CASEWORKER_URL={ELSEWHERE}\nCASEWORKER_API_KEY={NAMED}",
        url=ELSEWHERE,
        key=NAMED,
    ),
    "a quoted key of .env with a default": Folder(
        variables=WITH_KEY,
        dotenv=f'CASEWORKER_URL={ELSEWHERE}\nCASEWORKER_API_KEY="{NAMED[:-1]}:-none}}"',
        url=ELSEWHERE,
        key=f"{NAMED[:-1]}:-none}}",
    ),
    "a path that names the shell's key": Folder(
        variables=WITH_KEY,
        dotenv=f"CASEWORKER_URL={ELSEWHERE}/{NAMED}",
        url=f"{ELSEWHERE}/{NAMED}",
        key="",
        withheld="the environment",
    ),
    "a host that names the shell's key": Folder(
        variables=WITH_KEY,
        dotenv=f"CASEWORKER_URL=http://{NAMED}.test",
        url=f"http://{NAMED}.test",
        key="",
        withheld="the environment",
    ),
    "a variable of .env that names another of it": Folder(
        variables=WITH_KEY,
        dotenv=f"MINE={NAMED}\nCASEWORKER_URL={ELSEWHERE}/${{MINE}}",
        url=f"{ELSEWHERE}/${{MINE}}",
        key="",
        withheld="the environment",
    ),
}


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_a_key_goes_only_to_a_url_from_the_same_source(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a foreign folder neither get the user's key nor replace it."""
    (tmp_path / "caseworker.yaml").write_text(folder.yaml)
    (tmp_path / ".env").write_text(folder.dotenv)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(folder.variables))

    address = service_address(folder.option)

    assert (address.url, address.api_key) == (folder.url, folder.key)
    assert address.withheld == folder.withheld
    assert os.environ == folder.variables, "the variables of .env reached the environment"


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_a_standing_key_goes_only_to_a_url_from_the_same_source(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`caseworker exec --key` sends it as other commands send an API key."""

    def renamed(text: str) -> str:
        return text.replace("CASEWORKER_API_KEY", STANDING_KEY)

    (tmp_path / "caseworker.yaml").write_text(renamed(folder.yaml))
    (tmp_path / ".env").write_text(renamed(folder.dotenv))
    monkeypatch.chdir(tmp_path)
    variables = {renamed(name): value for name, value in folder.variables.items()}
    monkeypatch.setattr(os, "environ", variables)

    address = service_address(folder.option, STANDING_KEY)

    expected = renamed(folder.url), renamed(folder.key), folder.withheld
    assert (address.url, address.api_key, address.withheld) == expected


def test_a_file_that_the_shell_names_is_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user chose it, as with ``--url``."""
    named = tmp_path / "named.yaml"
    named.write_text("server: {host: here.test, port: 81}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**WITH_KEY, "CASEWORKER_CONFIG": str(named)})

    address = service_address()

    assert (address.url, address.api_key) == (f"{HERE}:81", SHELL_KEY)


@pytest.mark.parametrize("named", ["named.yaml", "./named.yaml", "sub/../named.yaml"])
def test_a_relative_path_in_the_shell_is_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Each working directory has another file of that name."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "named.yaml").write_text("server: {host: here.test, port: 81}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**WITH_KEY, "CASEWORKER_CONFIG": named})

    address = service_address()

    assert (address.url, address.api_key) == (f"{HERE}:81", "")
    assert address.withheld == "the environment"


def test_a_check_of_the_configuration_executes_no_code_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only ``--load`` imports the plugins that a configuration names."""
    (tmp_path / "caseworker.yaml").write_text("tools: {plugins: ['planted:tool']}")
    (tmp_path / "planted.py").write_text("open('executed', 'w')\nraise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)

    check_configuration()

    assert not (tmp_path / "executed").exists()
    assert sys.path == path


PARCELS = """
from caseworker import tool

@tool
def parcel_price(weight_kg: float) -> dict:
    \"\"\"Returns a price.\"\"\"
    return {"value": 5}
"""


@pytest.mark.parametrize(
    ("plugins", "fields", "problem"),
    [
        ("parcels:parcel_price", "tools: [parcel_price]", ""),
        ("", "tools: [parcel_price]", "tools.0: No permitted tool is named 'parcel_price'"),
        ("", "tools: [calculater]", "Did you mean 'calculator'?"),
        ("", "tools: [{mcp: files}]", "tools.0.mcp: No MCP server 'files' is configured."),
        ("", "model: {name: no-such}", "model.name: "),
        ("", "code: no-such", "code: No code agent 'no-such' is installed."),
        ("", "tools: [{agent: {name: other}}]", ""),
    ],
)
def test_a_check_with_load_examines_the_agents_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: str, fields: str, problem: str
) -> None:
    """The message is that of the start, and names the setting that adds a tool."""
    plugins = f"tools: {{plugins: ['{plugins}']}}" if plugins else ""
    (tmp_path / "caseworker.yaml").write_text(f"agents: {{folder: agents}}\n{plugins}")
    (tmp_path / "parcels.py").write_text(PARCELS)
    (tmp_path / "agents").mkdir()
    prompt = "{}" if fields.startswith("code") else "{system: s}"
    (tmp_path / "agents" / "one.yaml").write_text(f"name: one\nprompt: {prompt}\n{fields}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    if not problem:
        check_configuration(load=True)
        return
    with pytest.raises(StartupError) as refused:
        check_configuration(load=True)

    assert str(refused.value).startswith("agents.folder: one.yaml: ")
    assert problem in str(refused.value)
    assert ("tools.plugins" in str(refused.value)) is ("permitted tool" in str(refused.value))
