"""The tool that draws price charts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

from caseworker.tools.arguments import choice, integer, items, object_of, text
from caseworker.tools.artifacts import ArtifactTooLargeError, SavedArtifact, stem_of
from caseworker.tools.ports import ToolContext, ToolFunction, ToolRefusedError, ToolResult, ToolSpec
from caseworker.tools.resources import ToolResources
from caseworker_cases.stocks.price_tool import (
    END,
    PRICE,
    START,
    SYMBOL,
    PriceTool,
    fetched,
    price_source,
    symbol_of,
    symbols_of,
)
from caseworker_cases.stocks.prices import PriceSeries, PriceSource
from caseworker_cases.tools.crosschecks import prices
from caseworker_cases.tools.plotting.composing import (
    DEFAULT_HEIGHT,
    DEFAULT_WIDTH,
    MAX_HEIGHT,
    MAX_TITLE_CHARS,
    MAX_WIDTH,
    MIN_HEIGHT,
    MIN_WIDTH,
    ChartKind,
    Format,
    Picture,
    PlotRequest,
    clean_title,
    composed,
)
from caseworker_cases.tools.plotting.renderer import Renderer

MAX_SYMBOLS = 5
_SPEC = ToolSpec(
    name="plotter",
    description=(
        "Draws daily stock prices into a picture and keeps it with the run; it fetches the prices"
        " itself. Kinds: line (closing prices of one symbol, or two to five symbols compared from"
        " a common 100), candles (open, high, low, close of one symbol) and drawdown (how far one"
        " symbol is below its highest close). Returns the artifact's name, media type and size, and"
        " what was drawn."
    ),
    parameters=object_of(
        "kind",
        kind=choice(ChartKind),
        symbol=SYMBOL,
        symbols=items(
            SYMBOL, 1, MAX_SYMBOLS, "Instead of symbol, to compare stocks in a line picture"
        ),
        start=START,
        end=END,
        price=PRICE,
        title=text(
            MAX_TITLE_CHARS, "Plain text; without it the picture names what it shows", min_chars=0
        ),
        format=choice(Format, "Default png"),
        width=integer(MIN_WIDTH, MAX_WIDTH, f"In pixels, default {DEFAULT_WIDTH}"),
        height=integer(MIN_HEIGHT, MAX_HEIGHT, f"In pixels, default {DEFAULT_HEIGHT}"),
    ),
    functions=(ToolFunction(name="plotter.draw", takes="kind symbols start end"),),
    timeout_seconds=30.0,
)


class Plotter(PriceTool):
    """A Tool that draws price charts and stores them as artifacts.

    The result is ``{"artifact": name, "media_type", "size_bytes", "sha256", "width", "height",
    "source", "text", …}``; the service adds the download URL. After a crash the chart is drawn
    again. That is safe: the same arguments give the same bytes, which are stored once.
    """

    offer = _SPEC

    def __init__(self, source: PriceSource, renderer: Renderer) -> None:
        """Create a plotter for prices of ``source``; the caller closes ``renderer``."""
        super().__init__(source)
        self._renderer = renderer

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Create the tool from the process's shared resources."""
        return cls(resources.shared(price_source), resources.shared(_renderer))

    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Draw the requested chart and store it.

        Raises:
            ToolRefusedError: the chart is invalid, or cannot be stored.
        """
        sink = context.artifacts
        if sink is None:
            raise ToolRefusedError(
                "Pictures cannot be kept here, so none is drawn.", code="no_artifacts"
            )
        request, symbols = _request(args), _symbols(args)
        series = [await fetched(self._source, symbol, args) for symbol in symbols]
        picture = composed(series, request)
        data = await self._renderer.render(picture, sink.max_bytes)
        stem = stem_of("plot", *symbols, request.kind)
        try:
            saved = await sink.save(stem, request.format.media_type, data)
        except ArtifactTooLargeError as refusal:
            raise ToolRefusedError(str(refusal), code="too_large") from refusal
        except Exception as error:  # a sink is foreign code, and a tool never raises
            raise ToolRefusedError(
                f"The picture could not be kept ({type(error).__name__}).", code="not_kept"
            ) from error
        return _result(series, picture, saved)

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether the prices match the chart's symbols and days."""
        return await prices.picture_agrees(self._source, args, result)


def _request(args: Mapping[str, Any]) -> PlotRequest:
    return PlotRequest(
        kind=ChartKind(args["kind"]),
        format=Format(args.get("format", Format.PNG)),
        width=int(args.get("width", DEFAULT_WIDTH)),
        height=int(args.get("height", DEFAULT_HEIGHT)),
        adjusted=args.get("price", "adjusted") == "adjusted",
        title=clean_title(args.get("title", "")) or None,
    )


def _symbols(args: Mapping[str, Any]) -> list[str]:
    if ("symbol" in args) == ("symbols" in args):
        raise ToolRefusedError("the plotter needs either 'symbol' or 'symbols'")
    if "symbol" in args:
        return [symbol_of(args["symbol"])]
    return symbols_of(args["symbols"], 1, MAX_SYMBOLS if args["kind"] == ChartKind.LINE else 1)


def _result(series: Sequence[PriceSeries], picture: Picture, saved: SavedArtifact) -> ToolResult:
    symbols = [one.symbol for one in series]
    start = max(one.first.day for one in series).isoformat()
    end = min(one.last.day for one in series).isoformat()
    artifact = asdict(saved)
    return {
        "artifact": artifact.pop("name"),
        **artifact,
        "kind": picture.kind.value,
        "symbols": symbols,
        "start": start,
        "end": end,
        "width": picture.width,
        "height": picture.height,
        "title": picture.title,
        "shows": picture.subtitle,
        "source": series[0].source,
        "text": f"{picture.kind.value} picture of {', '.join(symbols)} from {start} to {end}:"
        f" {saved.name}",
    }


def _renderer(_: ToolResources) -> Renderer:
    return Renderer()
