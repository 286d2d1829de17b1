"""A pytest plugin that ends a run with a summary of proofs, skips and CPU time.

Each xdist worker measures CPU seconds (user and system, of itself and its child processes) whenever
the tests move to another file. The controller adds them up, counts the
requirements and guarantees that passing tests are marked with, and lists random seeds. In CI it
fails a run that skipped a test for a reason outside the allow-list, or that left a requirement
without proof.
"""

import csv
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.terminal import TerminalReporter

TESTS = Path(__file__).parents[1]
TABLES = {"req": TESTS / "requirements.tsv", "guarantee": TESTS / "guarantees.tsv"}
"""Marker: the table of the IDs that it may name."""
FAST = "not proof"
"""The marker expression of the fast tier, as in ``addopts`` of pyproject.toml."""
ALLOWED_SKIPS: tuple[re.Pattern[str], ...] = ()
"""Reasons for which CI accepts a skipped test. A whole reason must match."""
DEAREST = 20
"""Number of the most expensive files that the summary lists."""


def known_ids(marker: str) -> frozenset[str]:
    """Return the IDs that a marker may name."""
    with TABLES[marker].open(encoding="utf-8", newline="") as table:
        return frozenset(row["id"] for row in csv.DictReader(table, delimiter="\t"))


def marked_ids(item: pytest.Item, marker: str) -> Iterator[str]:
    """Yield the IDs that a test is marked with."""
    for mark in item.iter_markers(marker):
        yield from map(str, mark.args)


def cpu_seconds() -> float:
    """Return user and system seconds of this process and of all processes below it."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times: Any = process.cpu_times()
        except psutil.Error:  # it ended; its parent has counted it
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def controls_workers(config: pytest.Config) -> bool:
    """Return whether this process only hands tests to xdist workers."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def is_whole(config: pytest.Config) -> bool:
    """Return whether all tests of the fast tier run, not a selection."""
    options = config.option
    everywhere = config.args_source is config.ArgsSource.TESTPATHS
    return everywhere and not options.keyword and options.markexpr == FAST


class Costs:
    """CPU seconds by file, measured in the process that runs the tests."""

    def __init__(self) -> None:
        self.by_file: dict[str, float] = defaultdict(float)
        self._current = "imports and collection"
        self._at = 0.0

    def move_to(self, file: str) -> None:
        """Charge the CPU time since the last move, and charge ``file`` from now on."""
        if file != self._current:
            now = cpu_seconds()
            self.by_file[self._current] += now - self._at
            self._current, self._at = file, now

    def by_directory(self) -> dict[str, float]:
        """Return the CPU seconds of each directory of ``tests``."""
        costs: dict[str, float] = defaultdict(float)
        for file, seconds in self.by_file.items():
            costs[file.split("/")[0]] += seconds
        return costs


class Summary:
    """Collects and prints the proofs, skips and costs of the tests."""

    def __init__(self) -> None:
        self.costs = Costs()
        self.proven: dict[str, set[str]] = {marker: set() for marker in TABLES}
        self.skips = Counter[str]()
        self.seeds: list[str] = []

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            for marker in TABLES:
                item.user_properties.extend((marker, each) for each in marked_ids(item, marker))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.costs.move_to(item.path.relative_to(TESTS).as_posix())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skips[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
        elif report.when == "call" and report.passed:
            for marker, value in report.user_properties:
                if marker in self.proven:
                    self.proven[marker].add(str(value))
            drawn = (line for line in report.capstdout.splitlines() if line.startswith("seed"))
            self.seeds.extend(f"{line}  {report.nodeid}" for line in drawn)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not controls_workers(session.config):
            self.costs.move_to("end")
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = dict(self.costs.by_file)
        elif os.environ.get("CI") and any(self.complaints(session.config)):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output: Mapping[str, Any] = getattr(node, "workeroutput", {})
        for file, seconds in output.get("costs", {}).items():
            self.costs.by_file[file] += seconds

    def complaints(self, config: pytest.Config) -> Iterator[str]:
        """Return the reasons why CI rejects the run although every test passed."""
        for reason, count in self.skips.items():
            if not any(allowed.fullmatch(reason) for allowed in ALLOWED_SKIPS):
                yield f"{count} skipped for a reason that is not on the allow-list: {reason}"
        if is_whole(config):
            for marker, ids in self.proven.items():
                if missing := sorted(known_ids(marker) - ids):
                    yield f"not proven: {marker} {', '.join(missing)}"

    def pytest_terminal_summary(
        self, terminalreporter: TerminalReporter, config: pytest.Config
    ) -> None:
        if config.option.collectonly:
            return
        terminalreporter.section("summary")
        costs = self.costs.by_directory()
        directories, files = (
            sorted(each.items(), key=itemgetter(1), reverse=True)
            for each in (costs, self.costs.by_file)
        )
        for name, seconds in (*directories, *files[:DEAREST]):
            terminalreporter.write_line(f"{seconds:8.1f} core-seconds  {name}")
        total = sum(costs.values())
        terminalreporter.write_line(f"{total:8.1f} core-seconds  in all processes that ran tests")
        for marker, name in (("req", "requirements"), ("guarantee", "guarantees")):
            known = known_ids(marker)
            terminalreporter.write_line(
                f"{name}: {len(self.proven[marker])} of {len(known)} proven"
            )
        terminalreporter.write_line(f"skips: {sum(self.skips.values())}")
        for seed in self.seeds:
            terminalreporter.write_line(seed)
        for complaint in self.complaints(config):
            terminalreporter.write_line(complaint, red=True)
