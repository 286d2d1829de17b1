"""Generates docs/planner.md: ``python -m tests.support.planner_page``."""

import sys
from collections.abc import Iterator
from itertools import groupby

from caseworker_cases.planner.places import PLACES
from caseworker_cases.planner.sentences import BEGINNINGS, MAX_CHARS
from caseworker_cases.planner.table import ROWS

_INTRODUCTION = f"""\
# The built-in planner

If no model is configured, the built-in planner accepts only questions that match one of the
sentences below completely; it rejects all other questions and never guesses. Each sentence is
translated to one or two tool calls, which compute the answer. To ask other questions, configure a
model with the environment variable `MODELS_SMALL_BASE_URL` or `OPENAI_API_KEY`.

- `[a ]` is optional, `(a|b)` is either `a` or `b`, and `{{placeholder}}` or `{{name:placeholder}}`
  stands for a value.
- Upper and lower case matter only in stock symbols and time zone names. A question has at most
  {MAX_CHARS} characters. It may start or end with `please`, and end with `.`, `?` or `=`.
- A number may be followed by `rounded to {{rounding}}`, `to {{rounding}}` or `and round it to
  {{rounding}}`.
- If there are two calls, the answer is the result of the second one. `${{result.1}}` is the result
  of the first one.
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
    yield "\n## Placeholders\n\n| placeholder | examples |\n|---|---|"
    for name, place in PLACES.items():
        yield f"| `{{{name}}}` | {place.example} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(pages()) + "\n")
