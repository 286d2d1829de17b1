"""Generates docs/planner.md: ``python -m tests.support.planner_page``."""

import sys
from collections.abc import Iterator
from itertools import groupby

from caseworker_cases.planner.places import PLACES
from caseworker_cases.planner.sentences import BEGINNINGS, MAX_CHARS
from caseworker_cases.planner.table import ROWS

_INTRODUCTION = f"""\
# The built-in planner

Without a model, a question is one of these sentences from its first to its last word, or it is
refused; nothing is guessed. A sentence means a call of a tool, or two, which work out the answer.
To ask others configure a model: `MODELS_SMALL_BASE_URL` or `OPENAI_API_KEY` in the environment.

- `[a ]` may be left out, `(a|b)` is one of two, `{{place}}` or `{{name:place}}` is filled in.
- Capital letters matter in symbols of stocks and names of time zones alone. A question has at most
  {MAX_CHARS} characters, and may begin or end with `please`, and end with `.`, `?` or `=`.
- `rounded to {{rounding}}`, `to {{rounding}}`, `and round it to {{rounding}}` may follow a number.
- After two calls the answer is the result of the last one; `${{result.1}}` is that of the first.
"""


def pages() -> Iterator[str]:
    """Yield the lines of the page: the introduction, every sentence, and every placeholder."""
    yield _INTRODUCTION
    for short, long in BEGINNINGS.items():
        yield f"`{short}` stands for `{long}`."
    for section, rows in groupby(ROWS, key=lambda row: row.section):
        yield f"\n## {section}\n"
        for row in rows:
            sentences = "` or `".join(row.sentences)
            yield f"- `{sentences}`\\\n  {row.example} -> `{'` -> `'.join(row.written)}`"
    yield "\n## Places\n\n| place | what may stand there |\n|---|---|"
    for name, place in PLACES.items():
        yield f"| `{{{name}}}` | {place.shown} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(pages()) + "\n")
