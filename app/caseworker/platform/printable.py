"""Replace characters of a text that could control a terminal."""

import re
from typing import Final

UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that may control a terminal or change the order of its text: C0 and C1 controls except
line breaks and tabs, bidirectional and invisible formatting, separators, surrogates and tags. The
joiners of scripts and emoji (U+200C, U+200D) and spaces of any width are printable."""


def printable(text: str) -> str:
    """Replace terminal escapes and other controls with ``?``; line breaks and tabs stay."""
    return UNPRINTABLE.sub("?", text.replace("\r\n", "\n"))
