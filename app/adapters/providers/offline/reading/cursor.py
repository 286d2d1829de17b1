"""A place in the tokens of a question, and the ways to move it."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Generic, TypeVar

from app.adapters.providers.offline.reading.tokens import Kind, Token, tokenize, unified

T = TypeVar("T")


class MisreadError(Exception):
    """A rule does not fit the question at this place."""


class AmbiguousError(MisreadError):
    """A rule fits, but what it read can mean two things or is not enough; says which."""


class Cursor:
    """Where the reading stands.

    It remembers the farthest token that any rule could not use and the first reason that a rule
    gave, because the rule that came farthest explains best why a question was not understood.
    """

    def __init__(self, tokens: Sequence[Token], source: str) -> None:
        self.source = source
        """The question, in which the tokens have their places."""
        self._tokens = tokens
        self._texts = tuple(token.text for token in tokens)
        self._place = 0
        self.farthest = 0
        """The number of the farthest token that was looked at in vain."""
        self.reason: str | None = None
        """The first thing that was ambiguous, in words."""

    @property
    def here(self) -> Token:
        """The next token."""
        return self._tokens[self._place]

    def ahead(self, distance: int = 1) -> Token:
        """Return a later token, or the end."""
        return self._tokens[min(self._place + distance, len(self._tokens) - 1)]

    def before(self) -> Token | None:
        """Return the token that was taken last, or None at the start."""
        return self._tokens[self._place - 1] if self._place else None

    def token(self, number: int) -> Token:
        """Return a token by its number."""
        return self._tokens[number]

    def place(self) -> int:
        """Return the number of the next token; give it to ``back`` to return to it."""
        return self._place

    def back(self, place: int) -> None:
        """Return to an earlier place."""
        self.farthest = max(self.farthest, self._place)
        self._place = place

    def take(self) -> Token:
        """Move past the next token and return it."""
        token = self.here
        if token.kind is not Kind.END:
            self._place += 1
        return token

    def taken_since(self, start: int) -> str:
        """Return what was written from a place in the text to the last token that was taken."""
        last = self._tokens[max(self._place - 1, 0)]
        return self.source[start : last.end]

    def at(self, *texts: str) -> bool:
        """Tell whether the next token is one of these words or signs."""
        return self.here.text in texts and self.here.kind in {Kind.WORD, Kind.SIGN}

    def mentions(self, *texts: str) -> bool:
        """Tell whether the question has one of these words anywhere."""
        return any(text in self._texts for text in texts)

    def accept_all(self, words: tuple[str, ...]) -> bool:
        """Take the next tokens if they are exactly these."""
        end = self._place + len(words)
        if self._texts[self._place : end] != words:
            return False
        self._place = end
        return True

    def accept(self, *texts: str) -> str | None:
        """Take the next token if it is one of these words or signs, and return its text."""
        return self.take().text if self.at(*texts) else None

    def expect(self, *texts: str) -> str:
        """Take the next token, which must be one of these words or signs."""
        found = self.accept(*texts)
        if found is None:
            raise self.misread()
        return found

    def number(self) -> str:
        """Take the next token, which must be a number in digits."""
        if self.here.kind is not Kind.NUMBER:
            raise self.misread()
        return self.take().text

    def misread(self) -> MisreadError:
        """Return the error of a rule that does not fit the next token."""
        self.farthest = max(self.farthest, self._place)
        return MisreadError()

    def ambiguous(self, reason: str) -> AmbiguousError:
        """Return the error of a rule that fits in more than one way, or not quite."""
        if self.reason is None:
            self.reason = reason
        return AmbiguousError(reason)

    def attempt(self, rule: Callable[["Cursor"], T]) -> T | None:
        """Follow a rule; if it does not fit, return None and stay where we were.

        Raises:
            AmbiguousError: it fits, but has no one meaning; no other rule may then paper over it.
        """
        place = self._place
        try:
            return rule(self)
        except AmbiguousError:
            raise
        except MisreadError:
            self.back(place)
            return None

    def first_of(self, *rules: Callable[["Cursor"], T]) -> T:
        """Follow the first rule that fits."""
        for rule in rules:
            found = self.attempt(rule)
            if found is not None:
                return found
        raise self.misread()


def new_cursor(text: str) -> Cursor:
    """Return a cursor at the beginning of a question.

    Raises:
        TooLongError: the question is longer than what is read.
    """
    source = unified(text)
    return Cursor(tokenize(source), source)


class Phrases(Generic[T]):
    """A vocabulary: phrases of one or more words, each with what it means.

    An entry may have alternatives in parentheses, an empty one included:
    ``"(what is|what's) (the|)"`` stands for four phrases.
    """

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._by_first: dict[str, list[tuple[tuple[str, ...], T]]] = {}
        for pattern, meaning in entries.items():
            for words in _expanded(pattern):
                self._by_first.setdefault(words[0], []).append((words, meaning))
        for choices in self._by_first.values():
            choices.sort(key=lambda choice: -len(choice[0]))

    def read(self, cursor: Cursor) -> T | None:
        """Take the longest phrase that comes next and return its meaning, or None."""
        for words, meaning in self._by_first.get(cursor.here.text, ()):
            if cursor.accept_all(words):
                return meaning
        return None

    def expect(self, cursor: Cursor) -> T:
        """Take the longest phrase that comes next, which must be one of these."""
        meaning = self.read(cursor)
        if meaning is None:
            raise cursor.misread()
        return meaning


def _expanded(pattern: str) -> list[tuple[str, ...]]:
    parts: list[list[str]] = []
    for piece in pattern.replace("(", "\0(").replace(")", ")\0").split("\0"):
        if piece.startswith("("):
            parts.append(piece.strip("()").split("|"))
        elif piece.strip():
            parts.append([piece])
    return [tuple(" ".join(choice).split()) for choice in product(*parts)]
