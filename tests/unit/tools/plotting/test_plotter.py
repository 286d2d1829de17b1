"""The tool plotter."""

import hashlib
import json
from typing import Any

import pytest

from caseworker.tools.artifacts import SavedArtifact
from caseworker_cases.tools.plotter import Plotter
from caseworker_cases.tools.plotting.composing import ChartKind, Format
from caseworker_cases.tools.plotting.renderer import Renderer
from tests.unit.tools.stock_support import PRICES, BrokenSource, MemorySink, context

pytestmark = pytest.mark.asyncio(loop_scope="module")
PERIOD = {"start": "2012-01-01", "end": "2012-12-31"}


async def plotted(renderer: Renderer, sink: Any, **args: Any) -> Any:
    """Run the tool and require plain JSON."""
    result = await Plotter(PRICES, renderer).run(args, context(sink))
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


@pytest.mark.req("002/5.3", "002/9.4")
@pytest.mark.parametrize("kind", ChartKind)
async def test_a_picture_is_kept_and_referred_to_by_name(
    renderer: Renderer, kind: ChartKind
) -> None:
    """The result has the file's name and digest, and no bytes."""
    sink = MemorySink()

    result = await plotted(renderer, sink, kind=kind.value, symbol="Apple", **PERIOD)

    name = f"plot-aapl-{kind}-1.png"
    data = sink.files[name]
    assert data.startswith(b"\x89PNG")
    assert (result["artifact"], result["media_type"]) == (name, "image/png")
    assert (result["width"], result["height"]) == (900, 500)
    assert result["source"].startswith("packaged: ")
    assert (result["start"], result["end"]) == ("2012-01-03", "2012-12-31")
    assert result["size_bytes"] == len(data)
    assert result["sha256"] == hashlib.sha256(data).hexdigest()


async def test_the_same_request_makes_the_same_file(renderer: Renderer) -> None:
    """A repetition after a crash stores the file once."""
    sink = MemorySink()

    one = await plotted(renderer, sink, kind="line", symbol="IBM", format="svg", **PERIOD)
    two = await plotted(renderer, sink, kind="line", symbol="ibm", format="svg", **PERIOD)

    assert one == two
    assert list(sink.files) == ["plot-ibm-line-1.svg"]


async def test_a_title_is_shown_and_never_part_of_the_name(renderer: Renderer) -> None:
    """The service generates the file's name, which does not contain the title."""
    sink = MemorySink()

    result = await plotted(
        renderer, sink, kind="line", symbol="IBM", title="../../etc/passwd\n$x$", **PERIOD
    )

    assert list(sink.files) == ["plot-ibm-line-1.png"]
    assert result["title"] == "../../etc/passwd $x$"


@pytest.mark.req("002/23.3")
@pytest.mark.parametrize("form", Format)
async def test_a_picture_beyond_the_cap_is_refused_and_not_kept(
    renderer: Renderer, form: Format
) -> None:
    """The limit comes from the sink, and the message states it."""
    sink = MemorySink(max_bytes=2000)

    result = await plotted(renderer, sink, kind="line", symbol="IBM", format=form.value)

    assert result["code"] == "too_large"
    assert "2,000" in result["error"]
    assert sink.files == {}


@pytest.mark.req("002/13.1")
@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ({"kind": "pie", "symbol": "IBM"}, "invalid_arguments", "candles"),
        ({"kind": "line"}, "invalid_arguments", "'symbol' or 'symbols'"),
        ({"kind": "line", "symbol": "IBM", "symbols": ["IBM"]}, "invalid_arguments", "either"),
        ({"kind": "candles", "symbols": ["IBM", "FB"]}, "invalid_arguments", "1"),
        ({"kind": "line", "symbols": ["IBM", "ibm"]}, "invalid_arguments", "twice"),
        ({"kind": "line", "symbols": list("abcdef")}, "invalid_arguments", "more than 5"),
        ({"kind": "line", "symbol": "TSLA"}, "unknown_symbol", "MSFT"),
        ({"kind": "line", "symbol": "FB", "start": "2000-01-01"}, "out_of_range", "2012-05-18"),
        (
            {"kind": "line", "symbol": "IBM", "start": "2012-01-03", "end": "2012-01-03"},
            "too_few_points",
            "at least 2",
        ),
        ({"kind": "line", "symbol": "IBM", "width": 5000}, "invalid_arguments", "2000"),
        ({"kind": "line", "symbol": "IBM", "format": "exe"}, "invalid_arguments", "svg"),
        ({"kind": "line", "symbol": "IBM", "file": "x.png"}, "invalid_arguments", "file"),
        ({"kind": "line", "symbol": "IBM", "title": 7}, "invalid_arguments", "title"),
    ],
)
async def test_a_failure_is_a_dict_that_says_what_to_ask(
    renderer: Renderer, args: dict[str, Any], code: str, told: str
) -> None:
    """The error says which request is valid, and no file is stored."""
    sink = MemorySink()

    result = await plotted(renderer, sink, **args)

    assert (result.get("code"), told in result.get("error", "")) == (code, True), result
    assert sink.files == {}


@pytest.mark.req("002/5.5")
async def test_without_a_place_for_files_nothing_is_drawn(renderer: Renderer) -> None:
    """The agent gets an error, and no picture is rendered."""
    result = await plotted(renderer, None, kind="line", symbol="IBM")

    assert result["code"] == "no_artifacts"


class FullSink(MemorySink):
    """A sink whose database is down."""

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Fail like a database."""
        raise ConnectionError("postgresql://user:canary-password@db lost")


@pytest.mark.req("002/5.5", "002/13.1")
async def test_a_sink_or_a_source_that_breaks_is_an_error_without_its_message(
    renderer: Renderer,
) -> None:
    """The message might contain an address or a key."""
    lost = await plotted(renderer, FullSink(), kind="line", symbol="IBM", **PERIOD)
    tool = Plotter(BrokenSource(), renderer)
    away = await tool.run({"kind": "line", "symbol": "IBM"}, context(MemorySink()))

    assert (lost["code"], away["code"]) == ("not_kept", "source_unavailable")
    assert "canary" not in json.dumps([lost, away])
    assert tool.spec.external
