"""Reads the things that a word problem is about, whatever they are called.

``8 pens cost 13.60, how much does one pen cost`` works for pens as for anything else, if it is the
same thing both times. A word that could change an amount (``half``, ``only``, ``extra`` …) is never
taken for a part of a name.
"""

from dataclasses import replace

from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.tokens import Kind


def words(listed: str) -> frozenset[str]:
    """Return words that are listed with spaces between them."""
    return frozenset(listed.split())


_ENDING = words(
    "cost costs costing is are was were be been do does did will would can could must should pay "
    "pays paid paying share shares shared split splits divide divides divided weigh weighs for at "
    "of in with on to by from and or if then that which who when while after before until since as "
    "each every per apiece worth priced how what much many go goes travel travels drive drives "
    "drove run runs walk walks fly flies take takes took need needs come comes came buy buys "
    "bought "
    "get gets got give gives gave have has had earn earns spend spends spent save saves split "
    "between among equally evenly i we you he she it they a an the one two three four five six "
    "seven eight nine ten eleven twelve hundred thousand million dozen cover covers covered leave "
    "leaves sell sells sold contain contains hold holds lose loses eat eats ate find finds reduced "
    "increased raised discounted during within payable there ride rides rode cycle cycles cycled "
    "move "
    "moves moved sail sails sailed walked flew ran travelled traveled earned rise rises rose fall "
    "falls fell drop drops dropped arrive arrives arrived join joins joined enter entered remain "
    "remains now this these those leaves grew grows shrank shrinks jumped jumps climbed climbs "
    "melt melted die died"
)
"""Words that a name does not go past."""
_WEIGHTY = words(
    "not no never none nothing without except excluding but only just about around roughly nearly "
    "almost half double twice thrice quarter third more less fewer extra another other others plus "
    "minus times additional free some any several few both either neither percent percentage tax "
    "vat tip discount off different same next last previous remaining left again still already "
    "first second average total least most instead unless than"
)
_IRREGULAR = {
    "bus": "bus",
    "buses": "bus",
    "gas": "gas",
    "people": "person",
    "persons": "person",
    "children": "child",
    "men": "man",
    "women": "woman",
    "feet": "foot",
    "mice": "mouse",
    "knives": "knife",
    "loaves": "loaf",
    "shelves": "shelf",
    "km": "kilometer",
    "kilometre": "kilometer",
    "kilometres": "kilometer",
    "kg": "kilogram",
    "kilo": "kilogram",
    "kilos": "kilogram",
    "litre": "liter",
    "litres": "liter",
    "metre": "meter",
    "metres": "meter",
    "hrs": "hour",
    "mins": "minute",
}
_MAX_WORDS = 4


def read_thing(cursor: Cursor) -> str:
    """Read ``red pens`` or ``kg of apples``; return what one of them is called."""
    names = [_name(cursor)]
    if cursor.at("of") and is_name(cursor.ahead().text) and cursor.ahead().kind is Kind.WORD:
        cursor.take()
        names.append(_name(cursor))
    return " of ".join(names)


def _name(cursor: Cursor) -> str:
    name: list[str] = []
    while cursor.here.kind is Kind.WORD and is_name(cursor.here.text) and len(name) < _MAX_WORDS:
        name.append(cursor.take().text)
        if cursor.at("-") and cursor.here.glued and cursor.ahead().glued:
            cursor.take()
    if not name:
        raise cursor.misread()
    return " ".join([*name[:-1], singular(name[-1])])


def is_name(word: str) -> bool:
    """Tell whether a word may be a part of a name."""
    return word not in _ENDING and word not in _WEIGHTY


def is_same(told: str, asked: str) -> bool:
    """Tell whether ``asked`` names the things that were told of, perhaps with fewer words.

    A ``red pen`` may be called a ``pen`` later, but not the other way round.
    """
    return told == asked or told.endswith(f" {asked}")


def singular(word: str) -> str:
    """Return what one of the things is called."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes", "toes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def read_amount(cursor: Cursor) -> Formula:
    """Read an amount of money, or a plain number where it is one."""
    found = read_number(cursor)
    if found.fraction:
        raise cursor.misread()
    return found


def same_money(one: Formula, other: Formula) -> tuple[Formula, Formula]:
    """Return both amounts in the currency that only one of them names."""
    if one.quantity == PLAIN:
        return replace(one, quantity=other.quantity), other
    return one, replace(other, quantity=other.quantity or one.quantity)


def read_count(cursor: Cursor) -> Formula:
    """Read how many things there are: ``7``, ``seven``, ``a``, ``each``, ``a single``."""
    if (count := cursor.attempt(_plain_number)) is not None:
        return count
    cursor.expect("a", "an", "one", "each", "every")
    cursor.accept("single")
    return Formula("1")


def _plain_number(cursor: Cursor) -> Formula:
    found = read_number(cursor)
    if found.quantity != PLAIN:
        raise cursor.misread()
    return found
