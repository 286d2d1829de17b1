"""Mutation testing: ``python -m tests.mutants`` edits the source in one place and runs the tests.

A mutant swaps a comparison or a boolean operator, removes ``not``, an ``if`` or a call whose result
is not used, replaces a return value or a number, or removes or changes a condition of an SQL
statement. A seed draws the mutants, half of them in the gateway, recovery, SQL and keys. Each one
runs in a copy of the working tree: the tests that import its module, nearest first, the tests of
its package (:data:`NEAR`), and the property tests that import it. It is killed if a test fails, or
if a test hangs that finishes without the mutant. It has survived if no test fails within the time
limit, and then needs a test. Finally the tests that have failed run on the unchanged source: if one
fails there too, its mutants are undecided.

Exits with 1 if less than 90 % of the mutants are killed.
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
from itertools import accumulate, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import psutil

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = "app/caseworker"
STATEMENTS: Final = (
    *("runs/postgres", "runs/accept/postgres", "runs/journal/postgres", "runs/read/postgres"),
    *("runs/journal/journal_rows", "runs/execute/postgres", "runs/recover/postgres"),
)
"""Packages with the statements on runs."""
NEAR: Final[Mapping[str, str]] = {
    "core/budget": "unit/core/budget property/test_ledger property/test_budget_waits",
    "core/graph": "unit/core/graph property/test_scheduler property/test_topology",
    "core/trace": "unit/core/trace contract/test_http_traces",
    "core": "unit/core",
    "engine": "unit/engine unit/nodes unit/runs contract/test_accepted_runs"
    " property/test_crashes property/test_graph_executions",
    "faces/openai_api": "unit/faces acceptance/test_openai_agents acceptance/test_openai_keys",
    "faces": "contract/test_http_mcp acceptance/test_mcp_clients",
    "features/access": "unit/features/access contract/test_authentication contract/test_key_store"
    " contract/test_http_keys contract/test_http_audit contract/test_http_tenants"
    " acceptance/test_access",
    "features/waiting_calls": "contract/test_approval_store contract/test_http_runs"
    " acceptance/test_approvals",
    "features/artifacts": "contract/test_http_artifacts contract/test_artifact*"
    " unit/runs/test_artifact_keeping integration/postgres/test_artifacts_of_runs"
    " integration/postgres/test_storage_quotas",
    "features/audit": "contract/test_http_audit",
    "features/catalog": "contract/test_http_models contract/test_http_named_models"
    " contract/test_http_openapi acceptance/test_named_models",
    "features/definitions": "contract/test_http_graphs contract/test_http_agents"
    " contract/test_http_remembered_definitions contract/test_graph_store",
    "features/erasure": "integration/test_erasures",
    "features/external": "unit/features/external acceptance/test_gateway_*"
    " acceptance/external acceptance/test_agents_over_sockets acceptance/test_code_agents"
    " acceptance/test_exec*",
    "features/mcp_credentials": "acceptance/test_mcp_credentials contract/test_http_audit",
    "features/quotas": "contract/test_http_quotas integration/postgres/test_quotas"
    " integration/postgres/test_storage_quotas unit/runs acceptance/test_accounts",
    "features/retention": "integration/postgres/test_retention contract/test_http_erasing",
    "features/schedules": "unit/features/schedules contract/test_http_schedules"
    " integration/postgres/test_schedules acceptance/test_schedules",
    "features/spend": "acceptance/test_spend contract/test_http_statistics"
    " integration/postgres/test_statistics integration/postgres/test_kept_costs",
    "features/telemetry": "unit/features/telemetry unit/main/test_telemetry"
    " acceptance/test_metrics acceptance/test_trace_context",
    "features/threads": "unit/features/threads contract/test_http_threads contract/test_thread_*"
    " integration/postgres/test_threads acceptance/test_threads_over_sockets",
    "features/traces": "contract/test_http_traces contract/test_http_calls",
    "features/webhooks": "unit/features/webhooks contract/test_http_webhooks"
    " integration/test_webhook_sender integration/postgres/test_webhook_deliveries"
    " acceptance/test_webhooks",
    "features": "unit/main contract/test_http_openapi",
    "gateway": "unit/features/external acceptance/test_gateway_* acceptance/external"
    " acceptance/test_broken_streams acceptance/test_code_agents",
    **dict.fromkeys(
        ("models/relay", "models/relayed_call"),
        "unit/features/external unit/models/test_relayed_calls"
        " acceptance/test_gateway_responses acceptance/external",
    ),
    "models/wires": "unit/models/wires contract/test_model_* acceptance/test_model_protocols",
    "models": "unit/models unit/features/external contract/test_model_*"
    " acceptance/test_gateway_* acceptance/test_provider_limits acceptance/test_exact_usage",
    "nodes/agent": "unit/nodes/agent property/test_agents property/test_agent_limits"
    " acceptance/test_agent_takeovers acceptance/test_agent_runs",
    "nodes": "unit/nodes unit/runtime_api contract/test_http_graph_refusals"
    " property/test_graph_executions acceptance/test_graph_examples",
    "platform/http": "unit/platform/http contract/test_http_bad_requests"
    " contract/test_http_connections contract/test_requests_cut_off contract/test_http_problems"
    " contract/test_http_openapi contract/test_http_shares contract/test_http_hosts"
    " acceptance/test_cors acceptance/test_metrics acceptance/test_overload",
    "platform/logs": "unit/platform/logs acceptance/test_canaries",
    "platform/postgres": "unit/platform/postgres integration/test_embedded_postgres"
    " integration/postgres/test_journal_batches integration/postgres/test_lost_connections"
    " integration/postgres/test_migrations acceptance/test_database_errors",
    "platform": "unit/platform unit/engine/test_fair_slots contract/test_http_shares"
    " contract/test_http_webhooks",
    "runs/http": "unit/runs/http contract/test_http_runs contract/test_http_bad_requests"
    " contract/test_http_run_lists contract/test_http_events"
    " contract/test_http_graph_runs contract/test_http_counts contract/test_http_going_on"
    " contract/test_http_calls contract/test_http_traces contract/test_http_stops",
    **dict.fromkeys(
        STATEMENTS,
        "integration/queue integration/postgres contract/test_claims"
        " contract/test_run_store contract/test_run_journal contract/test_http_quotas"
        " contract/test_http_stops_of_many acceptance/test_several_processes",
    ),
    "runs/execute/queue": "integration/queue integration/postgres/test_background_queue"
    " acceptance/test_several_processes acceptance/test_lost_processes",
    "runs": "unit/runs contract/test_http_graph_runs contract/test_accepted_runs"
    " contract/test_going_on contract/test_run_events contract/test_http_stops"
    " acceptance/test_going_on property/test_crashes",
    "tools/mcp": "unit/tools/mcp acceptance/test_mcp_servers",
    "tools": "unit/tools/test_* unit/nodes/test_tool unit/nodes/test_function",
}
"""Tests of each package that mutants are drawn from, below ``tests``. A file belongs to the first
package that contains it."""
TWO_TENANTS: Final = "integration/test_identical_names property/test_tenants"
"""Tests of each file with statements."""
PACKAGES: Final = tuple(dict.fromkeys(package.split("/")[0] for package in NEAR))
FOCUS: Final = (
    *("features/external", "gateway", "models/gateway", "models/relay", "features/access"),
    *("features/mcp_credentials", *STATEMENTS, "runs/execute/queue", "runs/journal/replay"),
    *("models/relayed_call", "runs/recover", "runs/execute/release", "engine/recovery"),
)
"""Gateway, recovery and keys: with the edits of SQL in all files, half of the mutants."""
IMPORTING: Final = {"unit": 0, "contract": 0, "integration": 1}
"""Kinds of tests that import a module, with how much later than by their distance they run."""
NEAREST: Final = 15
"""Test files that import a module and run before the property tests."""
FIRST: Final = 5
"""Test files that run before the others are collected."""
GOAL: Final = 0.9

EQUIVALENT: Final[Mapping[tuple[str, str], str]] = {
    (
        "app/caseworker/features/webhooks/postgres.py",
        "WHERE tenant_id = %s AND delivery_id = %s AND status = 'pending' AND due_at <= now.at ->"
        " WHERE tenant_id = %s AND delivery_id = %s AND status = 'pending' AND due_at < now.at",
    ): "The two differ in one microsecond of the database's clock.",
    (
        "app/caseworker/runs/accept/postgres/run_import.py",
        "if len(lines) > MANY_LINES: -> if len(lines) >= MANY_LINES:",
    ): "The number of lines above which a thread does the same work.",
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
SQL: Final = re.compile(
    r"\b(?:SELECT|INSERT|UPDATE|DELETE|WHERE)\b.*\b(?:FROM|INTO|SET|AND|=)", re.S
)
SQL_TOKEN: Final = re.compile(r"'[^']*'|\{[^}]*\}|[()\";]|\b[A-Z]{2,}\b")
CONDITION: Final = frozenset({"WHERE", "AND", "OR", "HAVING", "ON"})
"""Keywords of SQL that a condition follows."""
CLAUSE: Final = CONDITION | frozenset(
    {
        *("CONFLICT", "CROSS", "DO", "ELSE", "END", "EXCEPT", "FOR", "GROUP", "INNER", "JOIN"),
        *("LEFT", "LIMIT", "OFFSET", "ORDER", "RETURNING", "SET", "THEN", "UNION", "WHEN"),
        "WINDOW",
    }
)
"""Keywords of SQL that end a condition."""
SQL_COMPARISON: Final = re.compile(r"\s(<=|>=|<>|<|>|=|IS NULL|IS NOT NULL)(?=\s|$)")
SQL_SWAPPED: Final = {
    "<=": "<",
    ">=": ">",
    "<": "<=",
    ">": ">=",
    "=": ">=",
    "<>": "=",
    "IS NULL": "IS NOT NULL",
    "IS NOT NULL": "IS NULL",
}
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
    is_sql: bool = False
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
        case ast.Expr(value=ast.Constant()):  # a docstring
            return False
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))):
            return name.strip("_").lower() != "log" or attr not in LEVELS
        case ast.FunctionDef(decorator_list=[ast.Name(id="overload"), *_]):
            return False
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))) | ast.Raise():
            return False
    return True


def nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes of a syntax tree that matter, without the parts of f-strings.

    Before Python 3.12 these parts have the positions of the whole string.
    """
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield child
        elif matters(child):
            yield from nodes_of(child)


def conditions_of(text: str) -> Iterator[tuple[int, int, str]]:
    """Return start, end and preceding keyword of each condition of an SQL text."""
    open_at: list[tuple[int, str] | None] = [None]
    for token in SQL_TOKEN.finditer(text):
        word = token.group()
        if word.startswith(("'", "{")):
            continue
        if word == "(":
            open_at.append(None)
            continue
        if word in CLAUSE or word in ')";':
            if started := open_at[-1]:
                start, keyword = started
                condition = text[start : token.start()]
                if word == "AND" and re.search(r"\bBETWEEN\b(?!.*\bAND\b)", condition, re.S):
                    continue
                if condition.strip():
                    start += len(condition) - len(condition.lstrip())
                    yield start, start + len(condition.strip()), keyword
            open_at[-1] = (token.end(), word) if word in CONDITION else None
        if word == ")" and len(open_at) > 1:
            open_at.pop()


def edits_of_sql(text: str) -> Iterator[tuple[int, int, str]]:
    """Return edits that remove or change a condition, or remove a column that joins tables."""
    for start, end, keyword in conditions_of(text):
        condition = text[start:end]
        yield start, end, f"(({condition}) {'AND false' if keyword == 'OR' else 'OR true'})"
        if compared := SQL_COMPARISON.search(condition):
            first, last = compared.span(1)
            yield start + first, start + last, SQL_SWAPPED[compared[1]]
    for joined in re.finditer(r"\bUSING \((\w+), ", text):
        yield joined.start(1), joined.end(), ""


def mutants_of(path: str) -> Iterator[Mutant]:
    """Return every mutant of one file."""
    source = (ROOT / path).read_text()
    lines = source.splitlines(keepends=True)
    before = list(accumulate(map(len, lines), initial=0))

    def at(line: int | None, column: int | None) -> int:
        assert line is not None
        return before[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def edits(node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Compare(left=first, comparators=rest) | ast.BoolOp(values=[first, *rest]):
                for left, right in pairwise([first, *rest]):
                    if found := OPERATOR.search(source, span(left)[1], span(right)[0]):
                        yield *found.span(), SWAPPED[" ".join(found.group().split())]
            case ast.If(test=test, orelse=[]):
                yield *span(test), "False"
            case ast.comprehension(ifs=tests):
                yield from ((*span(test), "True") for test in tests)
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int(number)):
                yield *span(node), str(number // 8 if number > 1 else 1 - number)
            case ast.Constant(value=float(number)):
                yield *span(node), str(number / 8)
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
        match node:
            case ast.Call(func=ast.Attribute(attr="where"), args=tests):
                for test in tests:
                    yield Mutant(path, source, *span(test), "True", is_sql=True)
            case ast.Constant(value=str()) | ast.JoinedStr():
                start, end = span(node)
                if SQL.search(source, start, end):
                    for first, last, text in edits_of_sql(source[start:end]):
                        yield Mutant(path, source, start + first, start + last, text, is_sql=True)


def drawn(paths: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Draw mutants by a hash of each edit: the draw stays the same when other lines change.

    Half of them are in :data:`FOCUS` or in SQL.
    """
    ranked: dict[bytes, Mutant] = {}
    same: Counter[str] = Counter()
    for mutant in (each for path in paths for each in mutants_of(path)):
        name = f"{seed} {mutant.path} {mutant.edit}"
        ranked[hashlib.sha256(f"{name} {same[name]}".encode()).digest()] = mutant
        same[name] += 1
    focused = tuple(f"{SOURCE}/{each}" for each in FOCUS)
    halves: dict[bool, list[bytes]] = {True: [], False: []}
    for rank in sorted(ranked):
        halves[ranked[rank].is_sql or ranked[rank].path.startswith(focused)].append(rank)
    mine = halves[True][: count // 2]
    return [ranked[rank] for rank in sorted(mine + halves[False][: count - len(mine)])]


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
    name = path.removeprefix(f"{SOURCE}/")
    package = next(each for each in NEAR if name.startswith((f"{each}/", f"{each}.")))
    folder = f"{SOURCE}/{package}/"
    importing = nearest(path, IMPORTING, folder)[:NEAREST]
    near = [
        str(file.relative_to(ROOT))
        for each in f"{NEAR[package]} {TWO_TENANTS * ('postgres' in path)}".split()
        for pattern in (f"{each}.py", f"{each}/**/test_*.py")
        for file in sorted((ROOT / "tests").glob(pattern))
    ]
    wide = nearest(path, {"property": 0}, folder) or nearest(path, {"property": 0}, SOURCE)
    return tuple(dict.fromkeys((*importing[:FIRST], *near, *importing, *wide)))


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
