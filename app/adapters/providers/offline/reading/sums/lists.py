"""Reads lists of numbers: ``3, 4 and 5``, ``3 and 4``, ``(3, 4, 5)``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Binding, Formula
from app.adapters.providers.offline.reading.words.tokens import Kind

THE_NUMBERS: Phrases[bool] = Phrases(
    {
        "(the|these|those|the following|following) (numbers|values|amounts) (:|)": True,
        "(these|the following) :": True,
    }
)


class Lists:
    """Reads lists, which may stand inside one another.

    Inside another list, ``3 and 4`` ends after the 4: the next ``and`` is the outer list's.
    """

    def __init__(
        self, cursor: Cursor, *, item: Callable[[], Formula], expression: Callable[[], Formula]
    ) -> None:
        self._cursor = cursor
        self._item = item
        self._expression = expression
        self._open = 0

    def pair(self, *separators: str) -> tuple[Formula, Formula]:
        """Read two items with a word between them."""
        with self._opened():
            first = self._item()
            self._cursor.expect(*separators)
            second = self._item()
        self._refuse_late_power([first, second])
        return first, second

    def items(self, *, splits_matter: bool) -> tuple[list[Formula], bool]:
        """Read two or more items, and tell whether a parenthesis closes their list.

        If ``splits_matter``, a number with an ``and`` in it is refused: ``two hundred and five``
        may be two items.
        """
        THE_NUMBERS.read(self._cursor)
        if self._is_in_parentheses():
            return self._in_parentheses(), True
        with self._opened():
            found = self._open_list()
        if len(found) < 2:
            raise self._cursor.misread()
        if splits_matter and any(item.splittable for item in found):
            raise self._cursor.ambiguous("it is not clear which 'and' belongs to a number")
        self._refuse_late_power(found)
        return found, False

    def _refuse_late_power(self, found: list[Formula]) -> None:
        """In ``the sum of 5 and 3 squared`` the last word may belong to the sum."""
        last = self._cursor.before()
        powers = [item.binding is Binding.POWER for item in found]
        if last is not None and last.text in {"squared", "cubed"} and powers.count(True) == 1:
            raise self._cursor.ambiguous(
                f"it is not clear whether '{last.text}' follows the last number or all of them"
            )

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def _open_list(self) -> list[Formula]:
        found, commas = [self._item()], False
        while True:
            place = self._cursor.place()
            comma = self._cursor.accept(",") is not None
            word = self._cursor.accept("and", "or") is not None
            more = self._cursor.attempt(lambda _: self._item()) if comma or word else None
            if more is None:
                self._cursor.back(place)
                return found
            found.append(more)
            commas |= comma
            if word and (commas or self._open > 1):
                return found

    def _is_in_parentheses(self) -> bool:
        """Look ahead for a comma directly inside the parenthesis that comes next.

        Looking is cheap; trying both ways would double the work with every parenthesis inside.
        """
        depth = distance = 0
        while self._cursor.at("(") and (token := self._cursor.ahead(distance)).kind is not Kind.END:
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0:
                return False
            if depth == 1 and token.text == ",":
                return True
            distance += 1
        return False

    def _in_parentheses(self) -> list[Formula]:
        self._cursor.expect("(")
        found = [self._expression()]
        while self._cursor.accept(","):
            found.append(self._expression())
        self._cursor.expect(")")
        return found
