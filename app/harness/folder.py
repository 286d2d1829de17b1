"""The folder that an evaluation leaves behind (seed 002, 26.2)."""

import json
from pathlib import Path

from app.harness.metrics import Metrics
from app.harness.results import Result
from app.harness.traces import trace_lines
from app.harness.trials import Trial

METRICS = "metrics.json"
REPORT = "report.md"
_TRACE = ".trace.jsonl"


class OutputFolder:
    """``metrics.json``, ``report.md`` and a ``<case id>.trace.jsonl`` for each case."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the folder and remove what an earlier evaluation left in it.

        Raises:
            OSError: that is not possible.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, REPORT):
            (self.path / name).unlink(missing_ok=True)
        for trace in self.path.glob(f"*{_TRACE}"):
            trace.unlink()

    def add(self, trial: Trial, result: Result) -> None:
        """Append the trace of a trial to the file of its case."""
        with (self.path / f"{trial.case.id}{_TRACE}").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in trace_lines(trial, result))

    def finish(self, metrics: Metrics, report: str) -> None:
        """Write what the evaluation came to."""
        text = json.dumps(metrics, indent=2, ensure_ascii=False)
        (self.path / METRICS).write_text(f"{text}\n", encoding="utf-8")
        (self.path / REPORT).write_text(report, encoding="utf-8")
