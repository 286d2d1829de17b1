"""Texts on a terminal, and JSON in an encoding."""

import json

import pytest
from rich.text import Text

from caseworker.cli import output
from caseworker.cli.output import PrintableConsole, json_of
from caseworker.core.trace.plain_text import plain
from caseworker.platform.printable import printable

CONTROLS = {
    "C0": "\x00\x01\x07\x08\x0b\x0c\x0e\x1a",
    "ESC": "\x1b",
    "carriage return": "\r",
    "DEL": "\x7f",
    "C1": "\x80\x85\x90\x9b\x9d\x9e\x9f",
    "overrides": "\u202a\u202b\u202c\u202d\u202e",
    "isolates": "\u2066\u2067\u2068\u2069",
    "marks": "\u061c\u200e\u200f",
    "separators": "\u2028\u2029",
    "invisible": "\u200b\u2060\u2063\ufeff",
    "tags": "\U000e0001\U000e0041\U000e007f",
    "surrogates": "\ud800\udfff",
}
TEXTS = ["naïve", "日本", "👩‍💻", "نا\u200cم", "1\u00a0000\u202f€", "a\tb\nc", "e\u0301"]


@pytest.mark.parametrize("characters", CONTROLS.values(), ids=CONTROLS)
def test_controls_are_replaced(characters: str) -> None:
    """Each of them could move the cursor, start a sequence or change the order of a text."""
    for character in characters:
        assert printable(f"a{character}b") == plain(f"a{character}b") == "a?b"


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_all_scripts_stay(text: str) -> None:
    """Spaces of any width, joiners and marks belong to a text."""
    assert printable(text) == text
    assert printable(text.replace("\n", "\r\n")) == text
    assert plain(text) == text.replace("\n", "?").replace("\t", "?")


@pytest.mark.parametrize("characters", CONTROLS.values(), ids=CONTROLS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_escapes_controls(
    characters: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document stays valid and means the same."""
    monkeypatch.setattr(type(output.out), "encoding", encoding)
    spaced = " ".join(characters)  # two surrogates in a row would be one character
    document = {f"key {spaced}": [f"text {spaced}", "€ 日本 👩‍💻"]}

    written = json_of(document, indent=2)

    assert json.loads(written) == document
    assert printable(written) == written
    assert encoding == "utf-8" or written.isascii()


def test_a_console_writes_only_its_own_controls() -> None:
    """A text, a styled text and markup of a caller are all printed without their controls."""
    console = PrintableConsole(force_terminal=True, highlight=False, width=80)
    with console.capture() as capture:
        console.print("one \x1b]52;c;aa\x07", markup=False)
        console.print(Text("two \x9b2J", style="bold red"))
    written = capture.get()

    assert "\x1b]" not in written
    assert "\x9b" not in written
    assert "\x1b[1;31m" in written
