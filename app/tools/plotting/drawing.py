"""Draws a picture into bytes; the same picture always gives the same bytes."""

import matplotlib

from app.tools.plotting.capped import CappedBytes
from app.tools.plotting.frame import framed
from app.tools.plotting.kinds import DRAWN
from app.tools.plotting.picture import PIXELS_PER_INCH, Format, Picture
from app.tools.plotting.style import SETTINGS

_METADATA: dict[Format, dict[str, str | None]] = {
    # Neither a date nor the version of a library is written into a picture.
    Format.PNG: {"Software": None},
    Format.SVG: {"Date": None, "Creator": "Caseworker"},
}


def drawn(picture: Picture, max_bytes: int) -> bytes:
    """Return the picture as a PNG or SVG file.

    Raises:
        CapExceededError: it would have more than ``max_bytes``; the writing ended there.
    """
    with matplotlib.rc_context(dict(SETTINGS)):
        frame = framed(picture)
        DRAWN[picture.kind](frame)
        out = CappedBytes(max_bytes)
        metadata = dict(_METADATA[picture.format])
        if picture.format is Format.SVG:
            metadata["Title"] = picture.title
        frame.figure.savefig(
            out, format=picture.format.value, dpi=PIXELS_PER_INCH, metadata=metadata
        )
    return out.getvalue()
