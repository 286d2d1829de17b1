"""Mutation testing: ``python -m tests.mutants`` edits the source in one place and runs the tests.

A mutant swaps a comparison or a boolean operator, removes ``not``, replaces a return value, or
removes a call whose result is not used. A seed draws the mutants. Each one runs in a copy of the
working tree: first the tests that import its module, nearest first, then the property tests of its
package. It is killed if a test fails, or if a test hangs that finishes without the mutant. It has
survived if no test fails within the time limit, and then needs a test. Finally the tests that have
failed run on the unchanged source: if one fails there too, its mutants are undecided.

Exits with 1 if less than 95 % of the mutants are killed.
"""

import argparse
import ast
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, ndiff
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import psutil

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = "app/caseworker"
PACKAGES: Final = (
    *("core", "engine", "models", "nodes/agent", "runs", "features/access", "features/schedules"),
    *("features/threads", "features/webhooks", "platform/postgres"),
)
IMPORTING: Final = {"unit": 0, "contract": 0, "integration": 1}
"""Kinds of tests that import a module, with how much later than by their distance they run."""
NEAREST: Final = 25
"""Test files of a module that run before the property tests."""
FIRST: Final = 5
"""Test files that run before the others are collected."""
GOAL: Final = 0.95

EQUIVALENT: Final[Mapping[tuple[str, str], str]] = {
    (
        "app/caseworker/engine/step_runner.py",
        "if report.recovered_by is not None and report.error is not None: ->"
        " if report.recovered_by is not None or report.error is not None:",
    ): "A completed step has both or none; the second check is there for the type checker.",
}
"""Mutants that no test can kill: path and edit, with the reason."""

PAIRS: Final = tuple(
    pair.split("/")
    for pair in ("</<=", ">/>=", "==/!=", "in/not in", "is/is not", "and/or", "True/False")
)
SWAPPED: Final = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
OPERATOR: Final = re.compile(r"not\s+in\b|is\s+not\b|[<>=!]=|[<>]|\b(?:in|is|and|or)\b")
LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
say: Final = partial(print, flush=True)
TEST_FILE: Final = r"^tests/[\w/]+\.py"


@dataclass(slots=True)
class Mutant:
    """One edit of one source file, and what its tests have shown."""

    path: str
    source: str
    start: int
    """Where the edit starts and ends, in characters of the source."""
    end: int
    text: str
    outcome: str = ""
    """"killed", "survived", "undecided" or "equivalent"."""
    why: str = ""
    """The test that has failed (without parameters), or why there is none."""

    @property
    def mutated(self) -> str:
        """The source with the edit."""
        return self.source[: self.start] + self.text + self.source[self.end :]

    @property
    def edit(self) -> str:
        """The first line that changes, as ``before -> after``."""
        first = self.source.rfind("\n", 0, self.start) + 1
        lines = (text[first:].split("\n", 1)[0].strip() for text in (self.source, self.mutated))
        return " -> ".join(lines)

    def __str__(self) -> str:
        text = f"{self.outcome:10} {self.path}:{self.source.count(chr(10), 0, self.start) + 1}"
        if self.outcome == "killed":
            return f"{text}  {self.why}"
        diff = ndiff(self.source.splitlines(), self.mutated.splitlines())
        return "\n    ".join((text, *(line for line in diff if line[0] in "+-"), self.why))


def matters(node: ast.AST) -> bool:
    """Return whether tests should notice a change: not in errors' messages, logs and types."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))):
            return name.strip("_").lower() != "log" or attr not in LEVELS
        case ast.FunctionDef(decorator_list=[ast.Name(id="overload"), *_]):
            return False
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))) | ast.Raise():
            return False
    return True


def nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes of a syntax tree that matter."""
    yield node
    for child in ast.iter_child_nodes(node):
        if matters(child):
            yield from nodes_of(child)


def mutants_of(path: str) -> Iterator[Mutant]:
    """Return every mutant of one file."""
    source = (ROOT / path).read_text()
    lines = [line.encode() for line in source.splitlines(keepends=True)]

    def at(line: int | None, column: int | None) -> int:
        assert line is not None
        return len(b"".join([*lines[: line - 1], lines[line - 1][:column]]).decode())

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def edits(node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Compare(left=first, comparators=rest) | ast.BoolOp(values=[first, *rest]):
                for left, right in pairwise([first, *rest]):
                    if found := OPERATOR.search(source, span(left)[1], span(right)[0]):
                        yield *found.span(), SWAPPED[" ".join(found.group().split())]
            case ast.UnaryOp(op=ast.Not()):
                yield span(node)[0], span(node)[0] + len("not "), ""
            case ast.Return(value=ast.Constant(value=None) | None):
                pass
            case ast.Return(value=ast.expr() as value):
                yield *span(value), SWAPPED.get(source[slice(*span(value))], "None")
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
                yield *span(node), "pass"

    for node in nodes_of(ast.parse(source)):
        for start, end, text in edits(node):
            yield Mutant(path, source, start, end, text)


def drawn(paths: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Draw mutants by a hash of each edit: the draw stays the same when other lines change."""
    ranked: dict[bytes, Mutant] = {}
    same: Counter[str] = Counter()
    for mutant in (each for path in paths for each in mutants_of(path)):
        name = f"{seed} {mutant.path} {mutant.edit}"
        ranked[hashlib.sha256(f"{name} {same[name]}".encode()).digest()] = mutant
        same[name] += 1
    return [ranked[rank] for rank in sorted(ranked)[:count]]


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the files of the service and of the tests that each of them imports."""
    files = [
        str(file.relative_to(ROOT))
        for top in ("app", "tests")
        for file in ROOT.glob(f"{top}/**/*.py")
    ]
    modules = {
        re.sub(r"^app/|(/__init__)?\.py$", "", file).replace("/", "."): file for file in files
    }
    found: dict[str, frozenset[str]] = {}
    for file in files:
        names: set[str] = set()
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            match node:
                case ast.ImportFrom(module=str(module), names=aliases):
                    names |= {module, *(f"{module}.{alias.name}" for alias in aliases)}
                case ast.Import(names=aliases):
                    names |= {alias.name for alias in aliases}
        found[file] = frozenset(modules[name] for name in names & modules.keys())
    return found


def nearest(path: str, kinds: Mapping[str, int], by_way_of: str) -> list[str]:
    """Return the test files of some kinds that import a file, by way of tests or of a folder."""
    hops = {path: 0}
    ahead = [path]
    for reached in ahead:
        for importer, imported in imports().items():
            on_the_way = importer.startswith(("tests/", by_way_of))
            if reached in imported and on_the_way and importer not in hops:
                hops[importer] = hops[reached] + 1
                ahead.append(importer)
    order: dict[str, float] = {}
    for file in sorted(hops):
        _, kind, *folders = Path(file).parts
        if kind in kinds and Path(file).name.startswith("test_"):
            names = (f"test_{Path(path).stem}", Path(file).stem)
            alike = SequenceMatcher(None, *names).ratio() * 6
            order[file] = (
                3 * hops[file] + kinds[kind] - alike - 2 * (Path(path).parent.name in folders)
            )
    return sorted(order, key=order.__getitem__)


@cache
def tests_of(path: str) -> tuple[str, ...]:
    """Return the test files of a source file in their order."""
    package = next(f"{SOURCE}/{each}/" for each in PACKAGES if path.startswith(f"{SOURCE}/{each}/"))
    importing = nearest(path, IMPORTING, package)[:NEAREST]
    near, far = (nearest(path, {"property": 0}, folder) for folder in (package, SOURCE))
    return (*importing, *(near or far))


class Tree:
    """A copy of the working tree, in which the tests of one mutant at a time run."""

    def __init__(self, folder: Path, limit_seconds: float) -> None:
        self._root, self._temporary = folder / "tree", folder / "tmp"
        self._limit_seconds = limit_seconds
        self._edits = 0
        listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in names.strip("\0").split("\0"):
            if (ROOT / name).is_file():
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._root / name)

    def judge(self, mutant: Mutant) -> None:
        """Run the tests of a mutant, and store what they show."""
        tests, until = tests_of(mutant.path), time.monotonic() + self._limit_seconds
        self._write(mutant.path, mutant.mutated)
        code, output, stuck_seconds = self.run(tests[:FIRST], self._limit_seconds)
        if code == 0 and tests[FIRST:]:
            earlier = output
            code, output, stuck_seconds = self.run(tests[FIRST:], until - time.monotonic())
            output = earlier + output
        self._write(mutant.path, mutant.source)
        files = ", ".join(dict.fromkeys(re.findall(TEST_FILE, output, re.MULTILINE)))
        mutant.outcome, mutant.why = "survived", f"{output.count(' PASSED')} tests: {files}"
        if code:
            failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)
            mutant.outcome, mutant.why = "killed", failed[1] if failed else "pytest"
        elif code is None and stuck_seconds > self._limit_seconds / 4:
            running = re.findall(rf"{TEST_FILE}::\w+", output, re.MULTILINE)[-1:]
            finished = self.run(running, stuck_seconds / 2)[0] == 0
            mutant.outcome, mutant.why = "killed" if finished else "undecided", "".join(running)

    def run(self, tests: Sequence[str], limit_seconds: float) -> tuple[int | None, str, float]:
        """Run tests until the first failure.

        Returns the exit code (None: out of time), the output, and the seconds without output.
        """
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(mode=0o755)
        log = self._temporary / "output"
        options = ("-x", "-v", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0")
        paths = {"PYTHONPATH": f"{self._root}:{self._root}/app", "TMPDIR": str(self._temporary)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                (sys.executable, "-u", "-m", "pytest", *options, *tests),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **paths},
                cwd=self._root,
                start_new_session=True,
            )
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_seconds)
        text, stuck_seconds = log.read_text(errors="replace"), time.time() - log.stat().st_mtime
        if code is None:
            process.send_signal(signal.SIGINT)  # the fixtures can stop their servers
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for left in psutil.process_iter():  # whatever the tests have started has this TMPDIR
            with suppress(psutil.Error):
                words = [*left.cmdline(), left.environ().get("TMPDIR", "")]
                if any(str(self._temporary) in word for word in words):
                    left.kill()
        process.wait()
        return code, text, stuck_seconds

    def _write(self, path: str, source: str) -> None:
        """Write a source file; its time is unique, so no bytecode of another edit is used."""
        self._edits += 1
        (self._root / path).write_text(source)
        os.utime(self._root / path, (self._edits, self._edits))


def judge_all(mutants: Sequence[Mutant], trees: Sequence[Tree]) -> None:
    """Judge mutants side by side, one in each tree; then check the tests that killed them."""
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def judge(mutant: Mutant) -> None:
        tree = free.get()
        mutant.why = EQUIVALENT.get((mutant.path, mutant.edit), "")
        mutant.outcome = "equivalent"
        if not mutant.why:
            tree.judge(mutant)
        free.put(tree)
        say(mutant)

    with ThreadPoolExecutor(len(trees)) as threads:
        try:
            list(threads.map(judge, mutants))
        finally:
            threads.shutdown(cancel_futures=True)
    killed = [each for each in mutants if each.outcome == "killed" and "::" in each.why]
    killers = sorted({each.why for each in killed})
    if killers and trees[0].run(killers, 3600)[0]:
        failing = {killer for killer in killers if trees[0].run([killer], 3600)[0]}
        for mutant in (each for each in killed if each.why in failing):
            mutant.outcome = "undecided"
            say(f"{mutant} fails without the mutant, too")


def main() -> int:
    """Draw mutants, judge them and print the counts; return 1 below the goal."""
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--only", default=SOURCE, help="mutate only paths that start with this")
    parser.add_argument("--jobs", type=int, default=1, help="copies that run side by side")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one mutant")
    given = parser.parse_args()
    files = [file for each in PACKAGES for file in sorted((ROOT / SOURCE / each).rglob("*.py"))]
    paths = [str(file.relative_to(ROOT)) for file in files]
    chosen = [path for path in paths if path.startswith(given.only)]
    mutants = drawn(chosen, given.seed, given.count)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        Path(name).chmod(0o755)  # an embedded Postgres that root starts has its own account
        judge_all(mutants, [Tree(Path(name) / str(job), given.limit) for job in range(given.jobs)])
    counts = Counter(mutant.outcome for mutant in mutants)
    judged = max(1, len(mutants) - counts["equivalent"])
    for outcome in ("killed", "survived", "undecided"):
        say(f"{outcome}: {counts[outcome]} of {judged} ({counts[outcome] / judged:.1%})")
    say(f"equivalent, not run: {counts['equivalent']}")
    return 0 if counts["killed"] >= GOAL * judged else 1


if __name__ == "__main__":
    sys.exit(main())
