"""How pictures look: quiet axes, light grid, and colours that colour-blind people tell apart."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

INK = "#1f2933"
QUIET = "#5f6b7a"
GRID = "#e4e7eb"
AXIS = "#9aa5b1"
PAPER = "#ffffff"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#B07D00")
"""After Okabe and Ito, the light ones darkened so that text in them can be read."""
RISING, FALLING = COLOURS[0], COLOURS[1]

TITLE_POINTS = 13.5
TEXT_POINTS = 9.5
SMALL_POINTS = 8.0

SETTINGS: Mapping[Any, Any] = MappingProxyType(
    {
        "font.family": "DejaVu Sans",
        "font.size": TEXT_POINTS,
        "text.color": INK,
        "text.parse_math": False,  # a title may hold dollar signs
        "axes.formatter.use_mathtext": False,
        "axes.edgecolor": AXIS,
        "axes.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": AXIS,
        "ytick.color": AXIS,
        "xtick.labelcolor": QUIET,
        "ytick.labelcolor": QUIET,
        "xtick.major.size": 4,
        "ytick.major.size": 0,
        "figure.facecolor": PAPER,
        "axes.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.fonttype": "path",  # looks the same where the font is not installed
        "svg.hashsalt": "caseworker",
        "path.simplify_threshold": 0.2,
    }
)
