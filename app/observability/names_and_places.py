"""Finds names, dates of birth and postal addresses in a text, as far as words give them away.

They have no form of their own: only those are found that follow a title, a salutation or a label,
or end as streets do.
"""

import re

from app.observability.rules import Rule, marked, shaped

_NAME = (
    r"(?:[A-Z\u00c0-\u00d6\u00d8-\u00de\u0100-\u017f][a-z\u00df-\u00f6\u00f8-\u017f'\u2019]{1,30}+"
    r"|[\u0391-\u03a9\u0410-\u042f][\u03ac-\u03ce\u0430-\u045f]{1,30}+)"
)
_CAPITALS = r"[A-Z\u00c0-\u00d6\u00d8-\u00de]{2,30}+(?![a-z_])"
_IN_CAPITALS = rf"(?:[A-Z]\.[ ]?){{0,2}}{_CAPITALS}(?:[ -]{_CAPITALS}){{0,2}}"
_IDEOGRAPHS = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]{2,12}+"
_NAMES = rf"(?:[A-Z]\.[ ]?){{0,2}}{_NAME}(?:[ -]{_NAME}){{0,2}}(?![\w@])"
_NOBODY = frozenset(
    {
        *("Sir", "Madam", "Madame", "Team", "All", "Everyone", "World", "There"),
        *("Customer", "Colleagues"),
    }
)
"""What greetings begin with that greet nobody in particular."""
_TITLES = (
    *("mr", "ms.", "ms ", "mx", "dr. ", "dr ", "prof", "herr ", "frau ", "mme", "mlle", "lady "),
    *("lord ", "sir "),
)
_STREETS = (
    "Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Way|Court|Ct|Square|Sq|Place|Pl"
    "|Terrace|Parkway|Pkwy|Highway|Hwy|Close|Crescent"
)


def _greeted(found: re.Match[str]) -> str | None:
    first = found.group(2).partition(" ")[0]
    return None if first in _NOBODY else f"{found.group(1)}[name]"


WORDED: tuple[Rule, ...] = (
    Rule(
        re.compile(
            r"\b((?:passport|national id|tax id|driver'?s licen[cs]e|account|patient|insurance)"
            r"(?: number| no\.?| nr\.?| id)(?: is)?[ :=#]{1,3})(?=[A-Z-]{0,6}\d)[A-Z0-9-]{5,}+",
            re.IGNORECASE,
        ),
        marked(r"\1[id number]"),
        ("passport", "national", "tax", "driver", "account", "patient", "insurance"),
        shape=shaped(r"(?:number|no\.?|nr\.?|id)(?: is)?[ :=#]{1,3}[a-z-]{0,6}\d"),
    ),
    Rule(
        re.compile(
            rf"\d(?<!\w\d)\d{{0,4}}[A-Za-z]?[ ](?:{_NAME}[ ]){{1,3}}(?:{_STREETS})\b\.?"
            rf"(?:,?[ ](?:Apt|Suite|Unit|Flat)\.?[ ]\w{{1,6}})?"
            rf"(?:,[ ]{_NAME}(?:[ ]{_NAME})?)?(?:,?[ ][A-Z]{{2}}[ ]\d{{5}}(?:-\d{{4}})?)?"
        ),
        marked("[address]"),
        shape=shaped(rf"\d[a-z]?[ ](?:[^\W\d][^\s\d]{{1,31}}[ ]){{1,3}}(?:{_STREETS.lower()})\b"),
    ),
    Rule(
        re.compile(
            r"(?<!\w)[A-Z\u00c4\u00d6\u00dc]\w{1,30}?"
            r"(?:stra\u00dfe|strasse|str\.|weg|allee|platz|gasse)[ ]\d{1,4}[a-z]?\b"
        ),
        marked("[address]"),
        ("stra\u00dfe ", "strasse ", "str. ", "weg ", "allee ", "platz ", "gasse "),
        shape=shaped(r"(?:stra\u00dfe|strasse|str\.|weg|allee|platz|gasse)[ ]\d"),
    ),
    Rule(
        re.compile(
            rf"\b((?:Mr|Mrs|Ms|Mx|Dr|Prof|Herr|Frau|Mme|Mlle|Lady|Lord|Sir|MR|MRS|MS|DR|HERR|FRAU)"
            rf"\b\.?[ ]{{1,2}})(?:{_NAMES}|{_IN_CAPITALS})"
        ),
        marked(r"\1[name]"),
        _TITLES,
        shape=shaped(r"\b(?:mr|mrs|ms|mx|dr|prof|herr|frau|mme|mlle|lady|lord|sir)\b\.?[ ]"),
    ),
    Rule(
        re.compile(rf"\b((?:Dear|Hello|Hi|Liebe|Lieber)[ ])({_NAMES})(?=[ ]?(?:[,!:\n]|$))"),
        _greeted,
        ("dear ", "hello ", "hi ", "liebe"),
    ),
    Rule(
        re.compile(
            r"\b((?i:(?:(?:full|first|last|given|family|middle|maiden|customer|patient|client"
            r"|employee|contact|card ?holder)[ _]?)?name|surname|customer|patient)"
            rf"\\?[\"']?[ ]?[:=][ ]?\\?[\"']?|(?i:my name is)[ ])({_NAMES}|{_IDEOGRAPHS})"
        ),
        _greeted,
        ("name", "customer", "patient"),
    ),
    Rule(
        re.compile(
            r"\b((?i:my name is)[ ])(?!not |the |a )"
            r"[a-z]{2,30}+(?:[ ][a-z]{2,30}+(?=[\s.,!?]{0,3}$))?"
        ),
        marked(r"\1[name]"),
        ("my name is",),
    ),
    Rule(
        re.compile(
            r"\b((?:date of birth|birth ?date|birthday|dob|d\.o\.b\.|geburtsdatum)"
            r"\\?[\"']?(?: is| on| was)?[ :=]{1,3}\\?[\"']?)"
            r"(?:\d{4}-\d\d-\d\d|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}"
            r"|\d{1,2}\.? [a-z\u00e4]{3,9}\.?,? \d{4}"
            r"|[a-z]{3,9}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4})(?!\d)",
            re.IGNORECASE,
        ),
        marked(r"\1[date of birth]"),
        ("birth", "dob", "d.o.b", "geburtsdatum"),
    ),
)
"""Names and addresses, as far as a word or an ending gives them away."""
