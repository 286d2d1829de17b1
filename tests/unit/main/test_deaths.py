"""How processes die: which deaths count, and how often the kernel has killed one for its memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from caseworker.main.deaths import OutOfMemoryKills
from caseworker.platform.code_table import SLOTS, CodeTable, ExecutedCode

WAYS = """
import ctypes, json, mmap, os, signal, sys, tempfile
from caseworker.main.deaths import death_of
from caseworker.platform.code_table import CodeTable, ExecutedCode

def bus():
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        page[0]

def ends_by(number):
    return lambda: os.kill(os.getpid(), number)

def told_to_end():
    table.end()
    os._exit(0)

WAYS = {
    "null pointer": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "page behind the end": bus,
    "division by zero": lambda: ctypes.CDLL(None).div(1, 0),
    "illegal instruction": ends_by(signal.SIGILL),
    "exit code 0": lambda: os._exit(0),
    "exit code 3": lambda: os._exit(3),
    "exit of C": lambda: ctypes.CDLL(None)._exit(4),
    "told to end": told_to_end,
    "kill -9": ends_by(signal.SIGKILL),
    "kill -9 for memory": ends_by(signal.SIGKILL),
    "terminated": ends_by(signal.SIGTERM),
    "hung up": ends_by(signal.SIGHUP),
}
seen = {}
for name, die in WAYS.items():
    table = CodeTable()
    if (pid := os.fork()) == 0:
        table.worker_id = "w1"
        with table.executing(ExecutedCode("t", "r0", "ended")):
            pass
        with table.executing(ExecutedCode("t", "r1", "f")):
            with table.executing(ExecutedCode("t", "r1", "f")):
                die()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    death = death_of(table, code, out_of_memory="memory" in name)
    seen[name] = death and [death.worker_id, death.cause, death.runs]
print(json.dumps(seen))
"""
"""Forks a process for each way to die, and reads its table afterwards."""

CAUSES = {
    "null pointer": "SIGSEGV",
    "abort": "SIGABRT",
    "page behind the end": "SIGBUS",
    "division by zero": "SIGFPE",
    "illegal instruction": "SIGILL",
    "exit code 0": "exit code 0",
    "exit code 3": "exit code 3",
    "exit of C": "exit code 4",
    "told to end": None,
    "kill -9": None,
    "kill -9 for memory": "out of memory",
    "terminated": None,
    "hung up": None,
}


def test_only_a_death_whose_cause_is_known_counts_against_the_code_it_interrupted() -> None:
    """Code that had ended before is not blamed."""
    command = [sys.executable, "-c", WAYS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    seen = json.loads(ended.stdout)

    runs = [{"tenant_id": "t", "run_id": "r1", "calls": ["f"]}]
    assert seen == {way: cause and ["w1", cause, runs] for way, cause in CAUSES.items()}


@pytest.mark.parametrize("written", [b"\xff\xfe", b"[1", b'["t"]', b"{}", b"7", b"\0" * 9])
def test_an_entry_that_faulty_code_has_overwritten_is_left_out(written: bytes) -> None:
    """The memory is shared with the code whose fault ended the process."""
    table, sound = CodeTable(), ExecutedCode("t", "r2", "g")
    with table.executing(ExecutedCode("t", "r1", "f")), table.executing(sound):
        text = len(written).to_bytes(2, "little") + written
        table._memory[: len(text)] = text
        assert table.codes == [sound]


V2, V1 = "memory.events", "memory.oom_control"


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("0::/", V2),
        ("0::/system.slice/caseworker.service", f"system.slice/caseworker.service/{V2}"),
        ("0::/kubepods/pod1/abc", V2),
        ("0::/../other", V2),
        ("1:name=systemd:/a\n0::/a", f"unified/a/{V2}"),
        ("4:memory:/docker/abc\n1:cpu:/x\n0::/", f"memory/docker/abc/{V1}"),
        ("4:cpu,memory:/docker/abc", f"memory/{V1}"),
    ],
)
def test_kills_for_lack_of_memory_are_counted_in_each_layout(
    tmp_path: Path, cgroup: str, file: str
) -> None:
    """The file is that of the group, also in a container that sees another path than the host."""
    (tmp_path / "cgroup").write_text(cgroup + "\n")
    counts = tmp_path / "mounts" / file
    counts.parent.mkdir(parents=True)
    counts.write_text("oom 7\noom_kill 2\noom_group_kill 0\n")
    kills = OutOfMemoryKills(tmp_path, tmp_path / "mounts")
    before = kills.recent
    counts.write_text("oom 9\noom_kill 4\noom_group_kill 0\n")
    kills.look()

    assert (before, kills.recent) == (0, 2)
    kills.attribute()
    assert kills.recent == 1
    counts.unlink()
    kills.look()
    assert kills.recent == 1


@pytest.mark.parametrize("cgroup", ["", "0::/", "4:memory:/a", "3:cpu:/a"])
def test_without_a_readable_count_no_kill_is_known(tmp_path: Path, cgroup: str) -> None:
    """Such as on a machine without control groups, or outside of Linux."""
    if cgroup:
        (tmp_path / "cgroup").write_text(cgroup)
    kills = OutOfMemoryKills(tmp_path, tmp_path / "mounts")
    kills.look()

    assert kills.recent == 0


@pytest.mark.parametrize("name", ["f", "ä" * 100, "\0" * 100, '"\\' * 50, "\ud800", "長" * 100])
def test_any_name_of_a_function_can_be_read(name: str) -> None:
    """Names are written as JSON in UTF-8; characters without UTF-8 are replaced."""
    table, code = CodeTable(), ExecutedCode("t" * 64, "r" * 64, name)
    with table.executing(code):
        (read,) = table.codes

    assert (read.tenant, read.run_id) == (code.tenant, code.run_id)
    assert read.name == name.encode("utf-8", "replace").decode()
    assert table.codes == []


def test_more_code_than_the_table_holds_is_executed_all_the_same() -> None:
    """It is only not recorded, and slots are reused."""
    table, ended = CodeTable(), list[ExecutedCode]()
    table.ended = ended.append
    blocks = [table.executing(ExecutedCode("t", f"r{n}", "f")) for n in range(SLOTS + 1)]
    for block in blocks:
        block.__enter__()
    assert len(table.codes) == SLOTS
    for block in blocks:
        block.__exit__(None, None, None)
    assert (table.codes, len(ended)) == ([], SLOTS)
    with table.executing(ExecutedCode("t", "again", "f")):
        assert [code.run_id for code in table.codes] == ["again"]
