"""Finds domain words in sources that must not contain them."""

import io
import keyword
import re
import tokenize

DOMAIN_WORDS = frozenset({"agent", "tool", "llm", "chat", "case"})

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+s?(?![a-z])")
_NOT_TEXT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def domain_words(source: str) -> list[str]:
    """Return ``line: word`` for every domain word in names, texts and comments.

    ``case`` as the keyword of a ``match`` statement does not count: it begins its line and a
    pattern follows, up to a colon.
    """
    found = []
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        begins_line = previous in _NOT_TEXT
        previous = token.type
        if begins_line and token.string == "case" and keyword.issoftkeyword(token.string):
            continue
        found += [
            f"{token.start[0]}: {word}"
            for word in _WORD.findall(token.string)
            if word.lower().removesuffix("s") in DOMAIN_WORDS
        ]
    return found
