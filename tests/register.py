"""Checks that docstrings and names stay in plain English: ``python -m tests.register``.

Counts docstrings with idioms that other projects hardly use, such as a relative clause in place of
a noun or "whoever" in place of "the caller". In the service it also counts names that are a bare
everyday word, such as ``found``, instead of a noun. ``tests/data/register.tsv`` holds the highest
counts of both for each package. A higher count fails; ``--update`` stores lower counts.
"""

import ast
import re
import sys
from collections import defaultdict
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


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of the docstrings of a module, its classes, functions, attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            documents = before is None and not isinstance(node, ast.If | ast.For | ast.With)
            documents |= isinstance(before, ast.Assign | ast.AnnAssign)
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if documents:
                    yield statement.lineno, text


EVERYDAY: Final = frozenset(
    [
        "above",
        "again",
        "another",
        "around",
        "asked",
        "begun",
        "below",
        "besides",
        "chosen",
        "done",
        "elsewhere",
        "enough",
        "few",
        "found",
        "given",
        "gives",
        "gone",
        "going",
        "held",
        "here",
        "kept",
        "known",
        "least",
        "left",
        "made",
        "many",
        "meanwhile",
        "meant",
        "most",
        "named",
        "once",
        "others",
        "own",
        "real",
        "said",
        "sent",
        "shown",
        "stands",
        "taken",
        "takes",
        "there",
        "told",
        "wanted",
        "whole",
    ]
)
"""Words that do not describe the value of a name."""


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of the names of functions, classes, parameters and variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def occurrences() -> dict[tuple[str, str], list[str]]:
    """Return the places of docstrings with an idiom and of everyday names, by kind and package."""
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for top in SOURCES:
        for path in sorted((ROOT / top).rglob("*.py")):
            file = path.relative_to(ROOT)
            if ".venv" in file.parts:
                continue
            package, tree = "/".join(file.parent.parts[:3]), ast.parse(path.read_text("utf-8"))
            places["docstrings", package] += (
                f"{file}:{line}: {match[0]}"
                for line, text in docstrings(tree)
                if (match := next(filter(None, (idiom.search(text) for idiom in IDIOMS)), None))
            )
            if top == "app":
                places["names", package] += (
                    f"{file}:{line}: {name}"
                    for line, name in names(tree)
                    if name.strip("_").lower() in EVERYDAY
                )
    return places


def main() -> int:
    """Compare the counts with the stored limits; return the exit code."""
    rows = LIMITS.read_text(encoding="utf-8").splitlines() if LIMITS.exists() else []
    limits = {(kind, package): int(limit) for kind, package, limit in (r.split("\t") for r in rows)}
    measured = occurrences()
    if "--update" in sys.argv:
        lowest = {at: min(len(each), limits.get(at, len(each))) for at, each in measured.items()}
        lines = ("\t".join((*at, f"{lowest[at]}\n")) for at in sorted(lowest))
        LIMITS.write_text("".join(lines), encoding="utf-8")
        return 0
    worse = {at: each for at, each in measured.items() if len(each) > limits.get(at, 0)}
    what = {"docstrings": "docstrings with an odd idiom", "names": "names that are everyday words"}
    for (kind, package), each in sorted(worse.items()):
        limit = limits.get((kind, package), 0)
        print(f"{package}: {len(each)} {what[kind]}; at most {limit} are allowed:")  # noqa: T201
        print(*(f"  {place}" for place in each), sep="\n")  # noqa: T201
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
