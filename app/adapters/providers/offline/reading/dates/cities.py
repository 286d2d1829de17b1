"""Cities that a time zone is named after: ``Tokyo`` for Asia/Tokyo.

A name counts only if one zone has it and if it is not better known as something else. A city
without a zone of its own (Munich, San Francisco) is not known: which zone it keeps would have to be
looked up somewhere.
"""

import re
from collections import Counter
from functools import lru_cache
from zoneinfo import available_timezones

from app.adapters.providers.offline.reading.words.cursor import Phrases

_REGIONS = frozenset(
    {"Africa", "America", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific"}
)
_APART = re.compile(r"[_-]", re.ASCII)
_OTHERWISE_KNOWN = frozenset(
    {
        *("act", "nsw", "lhi", "north", "south", "west", "christmas", "easter", "wake", "virgin"),
        *("cordoba", "merida", "rosario", "st johns", "la paz", "santarem", "santa isabel"),
        *("jersey", "chatham", "norfolk", "stanley", "dawson", "creston", "currie", "halifax"),
        *("victoria", "samoa", "south georgia", "midway", "johnston", "gambier", "mahe"),
        *("oral", "knox in"),
    }
)
"""Names of several places of which none is meant for certain, and words that mean other things."""


@lru_cache(maxsize=1)
def city_zones() -> Phrases[str]:
    """Return the IANA names of the zones by their cities.

    Read when it is first needed: the list of all zones takes some milliseconds.
    """
    named = [zone for zone in available_timezones() if _names_a_city(zone)]
    counts = Counter(_city_in(zone) for zone in named)
    return Phrases({_city_in(zone): zone for zone in sorted(named) if counts[_city_in(zone)] == 1})


def _names_a_city(zone: str) -> bool:
    region, _, place = zone.partition("/")
    return region in _REGIONS and "/" not in place and _city_in(zone) not in _OTHERWISE_KNOWN


def _city_in(zone: str) -> str:
    return " ".join(_APART.split(zone.rpartition("/")[2])).lower()
