"""The tool that draws prices."""

from collections.abc import Mapping
from typing import Any, Self

from app.tools.artifacts import ArtifactTooLargeError, SavedArtifact, stem_of
from app.tools.plotting.composing import MAX_TITLE_CHARS, Wish, clean_title, composed
from app.tools.plotting.picture import (
    DEFAULT_HEIGHT,
    DEFAULT_WIDTH,
    MAX_HEIGHT,
    MAX_WIDTH,
    MIN_HEIGHT,
    MIN_WIDTH,
    Format,
    Kind,
    Picture,
)
from app.tools.plotting.renderer import NotRenderedError, Renderer
from app.tools.ports import ToolContext, ToolResult, ToolSpec, failure
from app.tools.resources import ToolResources
from app.tools.stocks.inputs import END, START, SYMBOL, Inputs, fetched
from app.tools.stocks.prices import PriceSeries, PriceSource, asking
from app.tools.stocks.refusal import StockRefusedError, unfit

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
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["kind"],
        "properties": {
            "kind": {"type": "string", "enum": [kind.value for kind in Kind]},
            "symbol": SYMBOL,
            "symbols": {
                "type": "array",
                "items": SYMBOL,
                "minItems": 1,
                "maxItems": MAX_SYMBOLS,
                "description": "Instead of symbol, to compare stocks in a line picture",
            },
            "start": START,
            "end": END,
            "price": {
                "type": "string",
                "enum": ["adjusted", "raw"],
                "description": "adjusted for splits and dividends (default), or raw as traded",
            },
            "title": {
                "type": "string",
                "maxLength": MAX_TITLE_CHARS,
                "description": "Plain text; without it the picture names what it shows",
            },
            "format": {
                "type": "string",
                "enum": [form.value for form in Format],
                "description": "Default png",
            },
            "width": {
                "type": "integer",
                "minimum": MIN_WIDTH,
                "maximum": MAX_WIDTH,
                "description": f"In pixels, default {DEFAULT_WIDTH}",
            },
            "height": {
                "type": "integer",
                "minimum": MIN_HEIGHT,
                "maximum": MAX_HEIGHT,
                "description": f"In pixels, default {DEFAULT_HEIGHT}",
            },
        },
    },
    timeout_seconds=30.0,
)


class Plotter:
    """Pictures of prices, kept as artifacts; a Tool (seed 002, 5.3 and 9.4).

    The result is ``{"artifact": name, "media_type", "size_bytes", "sha256", "width", "height",
    "source", "text", …}``; where the file can be fetched is the service's to add. A picture is made
    again after a crash, because the same arguments give the same bytes, which are kept once.
    """

    def __init__(self, source: PriceSource, renderer: Renderer) -> None:
        self._source = source
        self._renderer = renderer
        self.spec = asking(_SPEC, source)

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Return the tool over what the tools of a process share."""
        return cls(resources.prices, resources.renderer)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Draw what ``args`` ask for and keep it; a refusal is a failure dict with its reason."""
        inputs = Inputs(args)
        sink = context.artifacts
        if sink is None:
            return failure("Pictures cannot be kept here, so none is drawn.", "no_artifacts")
        try:
            inputs.only(*_SPEC.parameters["properties"])
            wish, symbols = _wish(inputs), _symbols(inputs)
            series = [await fetched(self._source, name, inputs.period()) for name in symbols]
            picture = composed(series, wish)
            data = await self._renderer.render(picture, sink.max_bytes)
            stem = stem_of("plot", *symbols, wish.kind)
            saved = await sink.save(stem, wish.format.media_type, data)
        except StockRefusedError as refusal:
            return refusal.result()
        except NotRenderedError as refusal:
            return failure(str(refusal), refusal.code)
        except ArtifactTooLargeError as refusal:
            return failure(str(refusal), "too_large")
        except Exception as error:  # a sink is foreign code, and a tool never raises
            return failure(f"The picture could not be kept ({type(error).__name__}).", "not_kept")
        return _result(series, picture, saved)


def _wish(inputs: Inputs) -> Wish:
    title = inputs.args.get("title", "")
    if not isinstance(title, str):
        raise unfit("'title' must be text")
    return Wish(
        kind=Kind(inputs.choice("kind", list(Kind), "")),
        format=Format(inputs.choice("format", list(Format), Format.PNG)),
        width=inputs.whole("width", MIN_WIDTH, MAX_WIDTH, DEFAULT_WIDTH),
        height=inputs.whole("height", MIN_HEIGHT, MAX_HEIGHT, DEFAULT_HEIGHT),
        adjusted=inputs.choice("price", ("adjusted", "raw"), "adjusted") == "adjusted",
        title=clean_title(title) or None,
    )


def _symbols(inputs: Inputs) -> list[str]:
    if inputs.has("symbol") == inputs.has("symbols"):
        raise unfit("the plotter needs either 'symbol' or 'symbols'")
    if inputs.has("symbol"):
        return [inputs.symbol()]
    return inputs.symbols(1, MAX_SYMBOLS if inputs.args.get("kind") == Kind.LINE else 1)


def _result(series: list[PriceSeries], picture: Picture, saved: SavedArtifact) -> ToolResult:
    symbols = [one.symbol for one in series]
    start = max(one.first.day for one in series).isoformat()
    end = min(one.last.day for one in series).isoformat()
    return {
        "artifact": saved.name,
        "media_type": saved.media_type,
        "size_bytes": saved.size_bytes,
        "sha256": saved.sha256,
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
