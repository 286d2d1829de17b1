"""Output of the command line: texts of models on terminals, other encodings, full disks."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from caseworker_client import AsyncCaseworkerClient

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings

COMMAND = [sys.executable, "-c", "from caseworker.cli import main; main()"]
CONTROLS = [
    "\x1b]52;c;cm0gLXJm\x07",  # writes the clipboard
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[1;1H",
    "\x9b2J",  # the same with one character (C1)
    "\x9d0;title\x9c",
    "\x1bP+q\x1b\\",
    "\u202egnp.exe\u2066",
    "over\rwritten\b\b",
    "\x7f\x00\x07",
    "line\u2028line",
    "tag\U000e0041",
]
EVIL = f"before {' '.join(CONTROLS)} after"
MIXED = "Kosten: 5 € → 日本 👩‍💻"
FORBIDDEN = {*"\x00\x07\x08\x7f\x9b\x9c\x9d\u202e\u2066\u2028\U000e0041"}


def _proof(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.proof)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[ServiceProcess]:
    """Run a service with an agent and a thread whose texts would control a terminal."""
    await running_provider.script("(evil)", [Step(text=EVIL)], repeat_last=True)
    await running_provider.script("(mixed)", [Step(text=MIXED)], repeat_last=True)
    settings = model_settings(running_provider.openai_url)
    async with ServiceProcess(module_database_url, settings=settings) as running:
        async with AsyncCaseworkerClient(running.url) as client:
            agent: dict[str, Any] = {"name": "evil", "prompt": {"system": "s"}, "tools": []}
            await client.register_agent({**agent, "description": EVIL.replace("\x00", "")})
            for name in ("evil", "mixed"):
                text = f"1? ({name})"
                await client.create_run(
                    {"kind": "agent", "agent": {"name": "evil"}, "input": text, "run_id": name},
                    wait_seconds=30,
                )
            await client.create_thread(
                thread_id="t", agent={"name": "evil"}, title=EVIL.replace("\x00", "")
            )
        yield running


def at(service: ServiceProcess, **variables: str) -> dict[str, str]:
    return {**os.environ, "CASEWORKER_URL": service.url, "TERM": "xterm", **variables}


def on_terminal(service: ServiceProcess, *arguments: str) -> str:
    """Return the output of a command on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=at(service), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:  # the terminal has no writer any more
        pass
    os.close(ours)
    process.wait()
    return written.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        "agents run evil 1?(evil)",
        _proof("agents list"),
        _proof("agents show evil"),
        "watch evil",
        _proof("watch evil --json"),
        _proof("events evil"),
        _proof("events evil --json"),
        _proof("trace evil"),
        _proof("trace evil --explain"),
        _proof("trace evil --json"),
        _proof("runs --json"),
        _proof("threads list"),
        "threads send t 1?(evil)",
        _proof("threads show t"),
        _proof("threads show t --json"),
    ],
)
def test_no_text_of_a_run_controls_the_terminal(service: ServiceProcess, arguments: str) -> None:
    """Only the colors and the cursor of the command itself remain, and JSON stays valid."""
    written = on_terminal(service, *arguments.split())

    assert FORBIDDEN & {*written.replace("\r\n", "\n")} == set(), repr(written)
    assert not any(each in written for each in ("\x1b]", "\x1bP", "\x1b[2J", "\x1b[1;1H", "\x1b\\"))
    assert "evil" in written or "before" in written
    if "--json" in arguments:
        each_line = arguments.startswith(("watch", "events"))
        for document in written.splitlines() if each_line else [written]:
            json.loads(document)


def test_json_keeps_the_text_that_a_terminal_must_not_get(service: ServiceProcess) -> None:
    """The characters are escaped, not replaced."""
    on_terminal(service, "threads", "send", "t", "1?(evil)")
    (_, answer) = json.loads(on_terminal(service, "threads", "show", "t", "--json"))[-2:]

    assert answer["content"] == EVIL.replace("\x00", "\ufffd")  # the journal stores no NUL


@pytest.mark.parametrize(
    ("arguments", "encoding"),
    [
        ("trace mixed", "ascii"),
        *(
            _proof(arguments, encoding)
            for arguments in ("tools list", "watch mixed", "agents run evil 1?(mixed)", "--help")
            for encoding in ("utf-8", "latin-1", "ascii", "cp437", "utf-16")
        ),
    ],
)
def test_no_encoding_of_the_output_ends_a_command(
    service: ServiceProcess, arguments: str, encoding: str
) -> None:
    """Characters that cannot be encoded are replaced; the exit code is that of the run."""
    done = subprocess.run(
        [*COMMAND, *arguments.split()],
        env=at(service, PYTHONIOENCODING=encoding),
        capture_output=True,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", _proof("utf-8"), _proof("latin-1")])
def test_json_is_complete_in_every_encoding(service: ServiceProcess, encoding: str) -> None:
    """Characters that the encoding lacks are escaped."""
    done = subprocess.run(
        [*COMMAND, "threads", "show", "t", "--json"],
        env=at(service, PYTHONIOENCODING=encoding),
        capture_output=True,
    )
    listed = subprocess.run(
        [*COMMAND, "trace", "mixed", "--json"],
        env=at(service, PYTHONIOENCODING=encoding),
        capture_output=True,
    )

    json.loads(done.stdout.decode(encoding))
    assert json.loads(listed.stdout.decode(encoding))["run_id"] == "mixed"


@pytest.mark.parametrize(
    "arguments",
    [
        "runs",
        *map(_proof, ("tools list", "runs --json", "watch mixed", "trace mixed", "--version")),
    ],
)
def test_a_full_disk_is_reported_in_one_line(service: ServiceProcess, arguments: str) -> None:
    """Exit code 1 would mean that the run failed."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments.split()], env=at(service), stdout=full, stderr=subprocess.PIPE
        )

    assert done.returncode == 2
    assert done.stderr == b"Standard output cannot be written: No space left on device.\n"


@pytest.mark.parametrize(
    ("redirection", "code", "lines"),
    [
        (">&-", 2, 1),
        _proof(">/dev/full 2>/dev/full", 2, 0),
        _proof("2>&-", 0, 0),
        _proof("2>/dev/full", 0, 0),
        _proof("<&-", 0, 0),
    ],
)
def test_a_closed_or_full_stream_gives_no_traceback(
    service: ServiceProcess, redirection: str, code: int, lines: int
) -> None:
    """A command that need not write to standard error ignores that it cannot."""
    script = f'"$@" {redirection}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "runs"], env=at(service), capture_output=True
    )

    assert (done.returncode, len(done.stderr.splitlines())) == (code, lines), done.stderr


@pytest.mark.parametrize(
    "arguments", ["runs", *map(_proof, ("trace mixed --json", "tools list", "--help"))]
)
def test_a_reader_that_has_gone_ends_a_command_silently(
    service: ServiceProcess, arguments: str
) -> None:
    """The exit code is that of SIGPIPE, as for other programs."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, *arguments.split()], env=at(service), stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (141, b"")
