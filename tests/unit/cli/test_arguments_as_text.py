"""Arguments whose bytes the locale could not decode."""

import pytest

from caseworker.cli import _as_text


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("order 7", "order 7"),
        ("café", "café"),
        ("caf\udcc3\udca9", "café"),
        ("\udce2\udc82\udcac 5", "€ 5"),
        ("\udcf0\udc9f\udc98\udc80", "😀"),
    ],
)
def test_the_bytes_of_an_argument_are_read_as_utf_8(argument: str, text: str) -> None:
    """A locale such as C passes each byte above 127 on as a surrogate."""
    assert _as_text(argument) == text


@pytest.mark.parametrize("argument", ["caf\udce9", "a\udc80b", "\udcff \udcfe"])
def test_other_bytes_end_the_command_with_one_line(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line shows the argument."""
    with pytest.raises(SystemExit) as ended:
        _as_text(argument)

    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{argument!a}: this argument is not UTF-8.\n"
