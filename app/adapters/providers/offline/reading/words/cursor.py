"""A place in the tokens of a question, and the ways to move it."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Generic, TypeVar

from app.adapters.providers.offline.reading.words.tokens import Kind, Token, tokenize, unified

T = TypeVar("T")


class MisreadError(Exception):
    """A rule does not fit the question at this place."""


class AmbiguousError(MisreadError):
    """A rule fits, but what it read can mean two things or is not enough; says which."""


class Cut:
    """A question in pieces, ready to be read any number of times; never changed."""

    __slots__ = ("source", "texts", "tokens", "vocabulary", "words")

    def __init__(self, tokens: Sequence[Token], source: str) -> None:
        self.source = source
        self.tokens = tuple(tokens)
        self.texts = tuple(token.text for token in tokens)
        self.words = tuple(
            token.text if token.kind in {Kind.WORD, Kind.SIGN} else "" for token in tokens
        )
        """The texts of words and signs, and an empty one for every other token."""
        timed = any(token.kind is Kind.DATE and ":" in token.text for token in tokens)
        self.vocabulary = frozenset((*self.texts, ":") if timed else self.texts)
        """All texts; a date with a time of day counts as a colon as well."""


class Cursor:
    """Where the reading stands.

    It remembers the farthest token that any rule could not use and the first reason that a rule
    gave, because the rule that came farthest explains best why a question was not understood.
    """

    __slots__ = (
        "_cut",
        "_place",
        "_texts",
        "_tokens",
        "_words",
        "farthest",
        "reason",
        "source",
        "vocabulary",
    )

    def __init__(self, cut: Cut) -> None:
        self.source = cut.source
        """The question, in which the tokens have their places."""
        self.vocabulary = cut.vocabulary
        """The words and signs of the question, in no order."""
        self._cut = cut
        self._tokens = cut.tokens
        self._texts = cut.texts
        self._words = cut.words
        self._place = 0
        self.farthest = 0
        """The number of the farthest token that was looked at in vain."""
        self.reason: str | None = None
        """The first thing that was ambiguous, in words."""

    def anew(self) -> "Cursor":
        """Return a cursor at the beginning of the same question."""
        return Cursor(self._cut)

    @property
    def here(self) -> Token:
        """The next token."""
        return self._tokens[self._place]

    @property
    def texts(self) -> Sequence[str]:
        """The text of every token, in order."""
        return self._texts

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
        if self._place > self.farthest:
            self.farthest = self._place
        self._place = place

    def follow(self, branches: "Mapping[str, Branch[T]]") -> T | None:
        """Take the longest phrase of a tree of words that comes next; return its meaning."""
        texts, place = self._texts, self._place
        branch = branches.get(texts[place])
        found: T | None = None
        while branch is not None:
            place += 1
            if branch.meaning is not None:
                found, self._place = branch.meaning, place
            branch = branch.following.get(texts[place])
        return found

    def take(self) -> Token:
        """Move past the next token and return it."""
        token = self._tokens[self._place]
        if token.kind is not Kind.END:
            self._place += 1
        return token

    def taken_since(self, start: int) -> str:
        """Return what was written from a place in the text to the last token that was taken."""
        last = self._tokens[max(self._place - 1, 0)]
        return self.source[start : last.end]

    def at(self, *texts: str) -> bool:
        """Tell whether the next token is one of these words or signs."""
        return self._words[self._place] in texts

    def mentions(self, *texts: str) -> bool:
        """Tell whether the question has one of these words anywhere."""
        return not self.vocabulary.isdisjoint(texts)

    def accept(self, *texts: str) -> str | None:
        """Take the next token if it is one of these words or signs, and return its text."""
        text = self._words[self._place]
        if text not in texts:
            return None
        self._place += 1
        return text

    def expect(self, *texts: str) -> str:
        """Take the next token, which must be one of these words or signs."""
        text = self._words[self._place]
        if text not in texts:
            raise self.misread()
        self._place += 1
        return text

    def number(self) -> str:
        """Take the next token, which must be a number in digits."""
        if self.here.kind is not Kind.NUMBER:
            raise self.misread()
        return self.take().text

    def misread(self) -> MisreadError:
        """Return the error of a rule that does not fit the next token."""
        if self._place > self.farthest:
            self.farthest = self._place
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
    return Cursor(_cut(text))


@lru_cache(maxsize=64)
def _cut(text: str) -> Cut:
    """Cut a text; the same one is looked at several times on the way to its plan."""
    source = unified(text)
    return Cut(tokenize(source), source)


class Branch(Generic[T]):
    """What the phrases that begin with the same words have next."""

    __slots__ = ("following", "meaning")

    def __init__(self) -> None:
        self.following: dict[str, Branch[T]] = {}
        self.meaning: T | None = None
        """What the words so far mean, if they are a phrase."""


class Phrases(Generic[T]):
    """A vocabulary: phrases of one or more words, each with what it means.

    An entry may have alternatives in parentheses, an empty one included:
    ``"(what is|what's) (the|)"`` stands for four phrases. Of the same phrase in two entries the
    first one counts. The phrases are kept as a tree of words, so that reading takes as long as the
    phrase that is read, however many there are.
    """

    __slots__ = ("_first",)

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._first: dict[str, Branch[T]] = {}
        for pattern, meaning in entries.items():
            for words in _expanded(pattern):
                self._add(words, meaning)

    def _add(self, words: tuple[str, ...], meaning: T) -> None:
        branch = self._first.setdefault(words[0], Branch())
        for word in words[1:]:
            branch = branch.following.setdefault(word, Branch())
        if branch.meaning is None:
            branch.meaning = meaning

    @property
    def beginnings(self) -> frozenset[str]:
        """The words with which a phrase can begin."""
        return frozenset(self._first)

    def read(self, cursor: Cursor) -> T | None:
        """Take the longest phrase that comes next and return its meaning, or None."""
        return cursor.follow(self._first)

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
