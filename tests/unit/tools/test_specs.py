"""The descriptions of the built-in tools, their imports, and the tool respond."""

import json
import subprocess
import sys
from typing import Any

import pytest

from caseworker.main.plugins import Toolbox
from caseworker.settings.tools import ToolSettings
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.ports import Tool, ToolContext
from caseworker_cases.tools.analysis.metrics import NAMES
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.data_fetch_stock import DataFetchStock
from caseworker_cases.tools.dates.operations import OPERATIONS
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from caseworker_cases.tools.respond import MAX_ANSWER_CHARS, Respond
from tests.unit.tools.stock_support import PRICES, BrokenSource

TOOLS: tuple[Tool, ...] = Toolbox(ToolSettings()).tools
CHECKS = {tool.spec.name: ArgumentCheck(tool.spec) for tool in TOOLS}

IMPORTS_ALL = """
import asyncio, importlib, json, pkgutil, sys
import caseworker_cases
DRAWING = {"drawing", "frame", "worker"}
path = caseworker_cases.__path__
names = [module.name for module in pkgutil.walk_packages(path, "caseworker_cases.")]
for name in names:
    if name.startswith("caseworker_cases.tools.plotting.") and name.rpartition(".")[2] in DRAWING:
        continue
    importlib.import_module(name)
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from caseworker_cases.stocks.packaged import PackagedPrices
tool, args = NumericAnalysis(PackagedPrices()), {"metric": "trend", "symbol": "FB"}
found = asyncio.run(tool.run(args, None))
libraries = sorted({"numpy", "matplotlib"} & set(sys.modules))
print(json.dumps([len(names), "value" in found, libraries]))
"""


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
def test_a_tool_stays_inside_the_process_and_describes_itself(tool: Tool) -> None:
    """A model can choose the tool by its description; it is repeatable and has a timeout."""
    assert not tool.spec.external
    assert tool.spec.idempotent
    assert 60 < len(tool.spec.description) < 1200
    assert tool.spec.parameters["additionalProperties"] is False
    assert tool.spec.timeout_seconds <= 30


@pytest.mark.parametrize("make", [DataFetchStock, NumericAnalysis])
def test_a_tool_on_a_live_source_says_that_it_leaves_the_process(make: Any) -> None:
    """A tool with a live source is external, so its calls are journaled first."""
    assert make(BrokenSource()).spec.external


def test_every_metric_is_described() -> None:
    """Every metric is described, so that none has to be guessed."""
    spec = NumericAnalysis(PRICES).spec

    assert spec.parameters["properties"]["metric"]["enum"] == list(NAMES)
    assert [name for name in NAMES if name not in spec.description] == []


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("data_fetch_stock", {"symbol": "AAPL", "start": "2012-01-03", "end": "2012-01-03"}),
        ("numeric_analysis", {"metric": "correlation", "symbols": ["AAPL", "MSFT"]}),
        ("numeric_analysis", {"metric": "mean", "values": [1, 2.5], "decimals": 2}),
        ("plotter", {"kind": "line", "symbols": ["AAPL", "MSFT"], "format": "svg"}),
    ],
)
def test_what_an_agent_would_send_fits_the_schema(name: str, args: dict[str, Any]) -> None:
    """Dates in another format than the schema's are rejected."""
    assert CHECKS[name].problem(args) is None
    assert CHECKS[name].problem({**args, "start": "01/03/2012"}) is not None


def test_the_calendar_describes_every_operation() -> None:
    """Every operation of the calendar is described, so that none has to be guessed."""
    spec = Calendar().spec

    assert spec.parameters["properties"]["operation"]["enum"] == list(OPERATIONS)
    assert [name for name in OPERATIONS if name not in spec.description] == []


def test_every_argument_in_a_description_exists() -> None:
    """Every operation uses only arguments of the schema."""
    known = set(Calendar().spec.parameters["properties"])

    for operation in OPERATIONS.values():
        assert {*operation.needs.split(), *operation.takes.split()} <= known


def test_no_tool_imports_the_libraries_of_the_pictures() -> None:
    """Drawing libraries are loaded only in the drawing process, so an idle service stays small."""
    done = subprocess.run(
        (sys.executable, "-c", IMPORTS_ALL), capture_output=True, text=True, timeout=600, check=True
    )

    count, analysed, libraries = json.loads(done.stdout)
    assert count > 50
    assert analysed
    assert libraries == []


@pytest.mark.req("002/5.5")
async def test_an_answer_is_handed_on_as_it_is(context: ToolContext) -> None:
    """The answer is neither trimmed nor interpreted."""
    assert await Respond().run({"answer": " 42 ${x} "}, context) == {"answer": " 42 ${x} "}


@pytest.mark.req("002/5.5")
@pytest.mark.parametrize("args", [{}, {"answer": ""}, {"answer": "  \n"}, {"answer": 42}])
async def test_no_answer_is_a_failure(args: dict[str, object], context: ToolContext) -> None:
    """A blank answer would end the case without a result."""
    result = await Respond().run(args, context)

    assert result["code"] == "invalid_arguments"


async def test_an_answer_has_a_limit(context: ToolContext) -> None:
    """An answer one character above the limit is rejected."""
    fits = await Respond().run({"answer": "x" * MAX_ANSWER_CHARS}, context)
    refused = await Respond().run({"answer": "x" * (MAX_ANSWER_CHARS + 1)}, context)

    assert "answer" in fits
    assert "error" in refused
