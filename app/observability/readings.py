r"""What else a text says to whoever reads it closely.

A secret can be written so that no rule for its form knows it and every reader does: with wide
letters, with letters of another alphabet that look alike, with characters that cannot be seen, or
in the escapes of URLs, of HTML and of JSON. The plain reading has none of these.
"""

import html
import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

_MOST_LAYERS = 3
"""How often one escape is looked for inside another: ``%2540`` is an at sign to two readers."""

_QUERY = r"(?<=[?&])([\w.%\[\]-]{1,60}+="
_ESCAPED = re.compile(
    r"%[0-9A-Fa-f]{2}|&#?[0-9A-Za-z]{2,8};|\\[ux][0-9A-Fa-f]{2}"
    rf"|{_QUERY})[^\s+&?#\"'<>]{{0,200}}+\+"
)
_IN_PROGRAM = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2}))")
_QUERY_VALUE = re.compile(rf"{_QUERY})([^\s&?#\"'<>]{{1,2000}}+)")

_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_MIXED_WORD = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]*+[\u0370-\u052f][\w-]*+")
_ALIKE = str.maketrans(
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0405\u0406\u0408"
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b\u051d"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u03bf\u03c1\u03bd\u03ba\u03b1\u03b9",
    "ABEKMHOPCTXSIJ" + "aeopcyxsijhdqw" + "ABEZHIKMNOPTYX" + "opvkai",
)
"""Letters of Cyrillic and Greek, and the Latin ones that they are taken for."""
_LOOKS = {"Cf": "", "Pd": "-", "Zs": " "}
"""What characters of a category look like: nothing, a dash, a space."""
_LAID_OVER = re.compile("[\u0300-\u036f]")
"""Accents that are drawn over the letter before them."""
PATTERNS = (_ESCAPED, _IN_PROGRAM, _QUERY_VALUE, _FOREIGN, _MIXED_WORD)
"""All that a text is searched with."""
_SURROGATES = range(0xD800, 0xE000)
"""Halves of characters, which no text may hold."""


def plain_reading(text: str) -> str:
    """Return what a text says without escapes and disguises; mostly the text itself."""
    for _ in range(_MOST_LAYERS):
        if _ESCAPED.search(text) is None:
            break
        text = _unescaped(text)
    return text if text.isascii() else _undisguised(text)


def _unescaped(text: str) -> str:
    text = _QUERY_VALUE.sub(_query_value, text)
    if "%" in text:
        text = unquote(text)
    if "&" in text:
        text = html.unescape(text)
    return _IN_PROGRAM.sub(_character, text) if "\\" in text else text


def _query_value(found: re.Match[str]) -> str:
    """Read a plus sign as the space that it stands for in the query of a URL."""
    return found[1] + unquote_plus(found[2])


def _character(found: re.Match[str]) -> str:
    code = int(found[1] or found[2], 16)
    return found.group() if code in _SURROGATES else chr(code)


def _undisguised(text: str) -> str:
    """Return a text in which letters that look like those of ASCII are those."""
    seen = _FOREIGN.sub(lambda run: "".join(map(_seen, run.group())), text)
    return seen if seen.isascii() else _MIXED_WORD.sub(_in_latin, seen)


@lru_cache(maxsize=1024)
def _seen(character: str) -> str:
    """Return what a character looks like, if that is in ASCII."""
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category in _LOOKS:
        return _LOOKS[category]
    if _LAID_OVER.match(character):
        return ""
    plain = unicodedata.normalize("NFKC", character)
    return plain if plain.isascii() and len(plain) == 1 else character


def _in_latin(found: re.Match[str]) -> str:
    """Read a word as Latin if some of its letters are: nobody writes in two alphabets at once."""
    word = found.group()
    return word.translate(_ALIKE) if re.search("[A-Za-z]", word) else word
