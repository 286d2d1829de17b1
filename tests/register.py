"""Checks that docstrings stay in plain English: ``python -m tests.register``.

Counts docstrings with idioms that other projects hardly use, such as a relative clause in place of
a noun or "whoever" in place of "the caller". ``tests/data/register.tsv`` holds the highest count
for each package. A higher count fails; ``--update`` stores lower counts.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LIMITS: Final = ROOT / "tests" / "data" / "register.tsv"
SOURCES: Final = ("app", "clients/python", "bench", "tests", "migrations")

_VERBS: Final = (
    "it|they|he|is|was|came|becomes?|became|has|had|have|can|may|must|will|there|an?|the|this|those"
    "|each|others|nobody|somebody|remains|belongs|stands|goes|happens|follows|holds|makes|ends|runs"
    "|say|says"
)
IDIOMS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\bwhat (?:{_VERBS})\b",
        r"\b(?:whoever|whom|nobody|somebody|anybody|everybody|others)\b",
        r"\b(?:besides?|meanwhile|anew|in vain|for good|likewise|by then|by itself|of its own"
        r"|at hand|thereby|as such|all the same|so (?:many|long|much|few|often))\b",
        r"\b(?:told|tells?|tell of|said|says|ask(?:s|ed) of|hear[sd]?|knows of|speaks?|wants?"
        r"|wish(?:es)?)\b",
        r"\b(?:com(?:e|es) to|stands?|goes on|go on|gone on|lets? (?:through|go|in|out)"
        r"|takes? (?:the|its) place|in (?:the )?place of|in its place|put back"
        r"|gives? (?:back|up|way)|given (?:back|up)|made good|get(?:s)? on|takes? over|taken over"
        r"|falls? silent|meets?|met)\b",
        r"\b(?:it|that|this|they) (?:is|are|was|were) (?:one|none|no|some|nobody)\b",
    )
)


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            documents = before is None and not isinstance(node, ast.If | ast.For | ast.With)
            documents |= isinstance(before, ast.Assign | ast.AnnAssign)
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if documents:
                    yield text


def counts() -> Counter[str]:
    """Return the number of docstrings with an idiom, by package."""
    found: Counter[str] = Counter()
    for top in SOURCES:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parent.parts
            if ".venv" in parts:
                continue
            package = "/".join(parts[:3])
            texts = docstrings(path.read_text(encoding="utf-8"))
            found[package] += sum(any(idiom.search(text) for idiom in IDIOMS) for text in texts)
    return found


def main() -> int:
    """Compare the counts with the stored limits; return the exit code."""
    rows = LIMITS.read_text(encoding="utf-8").splitlines() if LIMITS.exists() else []
    limits = {package: int(most) for package, most in (row.split("\t") for row in rows)}
    found = counts()
    if "--update" in sys.argv:
        kept = {package: min(count, limits.get(package, count)) for package, count in found.items()}
        lines = (f"{package}\t{kept[package]}\n" for package in sorted(kept))
        LIMITS.write_text("".join(lines), encoding="utf-8")
        return 0
    worse = {
        package: (limits.get(package, 0), count)
        for package, count in found.items()
        if count > limits.get(package, 0)
    }
    for package, (most, count) in sorted(worse.items()):
        print(f"{package}: {count} docstrings with an odd idiom; at most {most} are allowed.")  # noqa: T201
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
