"""Arithmetic that is asked for as an action: ``add 5 to 7, then multiply by 2``."""

from collections.abc import Callable

from app.adapters.providers.offline.reading import formula, operations
from app.adapters.providers.offline.reading.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.expressions import Expressions
from app.adapters.providers.offline.reading.formula import Formula, MixedQuantitiesError
from app.adapters.providers.offline.reading.rounding import rounded

Command = Callable[["Commands"], Formula]
Step = Callable[["Commands", Formula], Formula]
"""An action on what the actions before it came to."""


class Commands:
    """Reads actions from a cursor."""

    def __init__(self, cursor: Cursor, expressions: Expressions) -> None:
        self.cursor = cursor
        """Where the reading stands."""
        self.expressions = expressions
        """Reads what the actions are done to."""

    def command(self) -> Formula:
        """Read one action with all that it is done to."""
        command = COMMANDS.expect(self.cursor)
        try:
            return command(self)
        except MixedQuantitiesError as mixed:
            raise self.cursor.ambiguous(str(mixed)) from None

    def steps(self, first: Formula) -> Formula:
        """Read the actions that follow: ``, then divide by 2 and add 1``."""
        while (step := self.cursor.attempt(self._step)) is not None:
            try:
                first = step(self, first)
            except MixedQuantitiesError as mixed:
                raise self.cursor.ambiguous(str(mixed)) from None
        return first

    def _step(self, cursor: Cursor) -> Step:
        comma, word = cursor.accept(",", ".", ";"), cursor.accept("and")
        then = THEN.read(cursor)
        if comma is None and word is None and then is None:
            raise cursor.misread()
        return STEPS.expect(cursor)

    def item(self) -> Formula:
        """Read what an action is done to."""
        return self.expressions.item()

    def wide(self) -> Formula:
        """Read an expression that a word such as ``by`` or ``from`` ends for certain."""
        return self.expressions.expression()

    def passive(self, word: str) -> None:
        """Take the word that joins the two sides."""
        self.cursor.expect(word)


THEN: Phrases[bool] = Phrases({"(then|next|after that|afterwards|finally)": True})
_IT: Phrases[bool] = Phrases({"(it|that|this|the result|the answer|the total|the sum)": True})


def _add(commands: Commands) -> Formula:
    """``add 5 to 7``, ``add 5, 7 and 9``, ``add 8% to 50``."""
    cursor, place = commands.cursor, commands.cursor.place()
    added = commands.item()
    operations.SURCHARGE.read(cursor)
    if cursor.accept("to"):
        return operations.increased(commands.item(), added)
    cursor.back(place)
    items, closed = commands.expressions.items(splits_matter=False)
    cursor.accept("together", "up")
    total = formula.call("sum", *items, plain=False)
    return total if closed else operations.left_open(total, formula.Listing.SUM)


def _subtract(commands: Commands) -> Formula:
    """``subtract 3 from 10``, ``take 20% off 50``."""
    taken = commands.wide_until("from", "off", "away")
    commands.cursor.accept("away")
    if commands.cursor.expect("from", "off") == "off":
        commands.cursor.accept("of")
    return operations.decreased(commands.item(), taken)
