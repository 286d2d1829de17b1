"""What the stock tools say of themselves, and what they do not import."""

import json
import subprocess
import sys
from typing import Any

import pytest

from app.tools.analysis.metrics import NAMES
from app.tools.arguments import ArgumentChecks
from app.tools.data_fetch_stock import DataFetchStock
from app.tools.numeric_analysis import NumericAnalysis
from app.tools.plotter import Plotter
from app.tools.plotting.renderer import Renderer
from app.tools.ports import Tool
from app.tools.registry import ToolRegistry
from tests.unit.tools.stock_support import PRICES, BrokenSource

TOOLS: tuple[Tool, ...] = (
    DataFetchStock(PRICES),
    NumericAnalysis(PRICES),
    Plotter(PRICES, Renderer()),
)
CHECKS = ArgumentChecks(ToolRegistry(TOOLS))

IMPORTS_ALL = """
import asyncio, importlib, json, pkgutil, sys
import app.tools
DRAWING = {"drawing", "frame", "kinds", "ticks", "worker"}
names = [module.name for module in pkgutil.walk_packages(app.tools.__path__, "app.tools.")]
for name in names:
    if name.startswith("app.tools.plotting.") and name.rpartition(".")[2] in DRAWING:
        continue
    importlib.import_module(name)
from app.tools.numeric_analysis import NumericAnalysis
from app.tools.stocks.packaged import PackagedPrices
tool, args = NumericAnalysis(PackagedPrices()), {"metric": "trend", "symbol": "FB"}
found = asyncio.run(tool.run(args, None))
libraries = sorted({"numpy", "matplotlib"} & set(sys.modules))
print(json.dumps([len(names), "value" in found, libraries]))
"""


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
def test_a_tool_on_packaged_prices_stays_inside_the_process(tool: Tool) -> None:
    """It describes itself, may be made again and does not run for ever."""
    assert not tool.spec.external
    assert tool.spec.idempotent
    assert 100 < len(tool.spec.description) < 900
    assert tool.spec.timeout_seconds <= 30


@pytest.mark.parametrize("make", [DataFetchStock, NumericAnalysis])
def test_a_tool_on_a_live_source_says_that_it_leaves_the_process(make: Any) -> None:
    """So that its calls are durable before they are made."""
    assert make(BrokenSource()).spec.external


def test_every_metric_is_described() -> None:
    """None can be reached only by guessing."""
    spec = TOOLS[1].spec

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
    """And dates in another form do not."""
    assert CHECKS.problem(name, args) is None
    assert CHECKS.problem(name, {**args, "start": "01/03/2012"}) is not None


def test_no_tool_imports_the_libraries_of_the_pictures() -> None:
    """They live in the process that draws; an idle service must stay small."""
    done = subprocess.run(
        (sys.executable, "-c", IMPORTS_ALL), capture_output=True, text=True, timeout=60, check=True
    )

    count, analysed, libraries = json.loads(done.stdout)
    assert count > 30
    assert analysed
    assert libraries == []
