"""Who a word problem is about, and the words that join what it tells."""

from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.things import is_name, singular
from app.adapters.providers.offline.reading.words.tokens import Kind

PRONOUNS = frozenset({"i", "we", "you", "he", "she", "they", "it", "one"})
OWNERS = ("a", "an", "the", "my", "our", "his", "her", "their", "your", "its", "this", "that")
_MAX_WORDS = 3
_THEN: Phrases[bool] = Phrases(
    {
        "(then|later|afterwards|next|also|after that|later on|now)": True,
        "(but|so) (then|)": True,
        "(the|that) (next|same) day": True,
        "(in|during) the (morning|afternoon|evening)": True,
        "(on the way home|at lunch|at night)": True,
        "at the (first|next|second|third|following|last) (stop|station|floor)": True,
    }
)
"""Words between two events that say nothing of amounts."""


def read_joint(cursor: Cursor) -> None:
    """Read what joins one thing that is told to the next: a comma, a full stop, ``and then``."""
    joined = cursor.accept(",", ".", ";") is not None
    joined |= cursor.accept("and") is not None
    while _THEN.read(cursor):
        joined = True
        cursor.accept(",")
    if not joined:
        raise cursor.misread()


def read_holder(cursor: Cursor, verbs: frozenset[str]) -> str:
    """Read who does something, up to one of the verbs: ``Tom``, ``my sister``, ``the old baker``.

    Returns the name in lower case, or an empty text for a pronoun, which may be anybody.
    """
    if cursor.here.text in PRONOUNS:
        cursor.take()
        return ""
    cursor.accept(*OWNERS)
    name: list[str] = []
    while cursor.here.kind is Kind.WORD and len(name) < _MAX_WORDS:
        word = cursor.here.text
        if name and word in verbs:
            return " ".join(name)
        if not is_name(word):
            break
        name.append(cursor.take().text)
    raise cursor.misread()


def pass_place(cursor: Cursor, *prepositions: str) -> bool:
    """Pass over ``in the fridge`` or ``to Ben``, which change no amount; tell whether there is one.

    A place has no number in it and no word that could change an amount.
    """
    start = cursor.place()
    if not cursor.accept(*(prepositions or ("in", "on", "at", "from", "to", "with"))):
        return False
    cursor.accept(*OWNERS)
    words = 0
    while cursor.here.kind is Kind.WORD and is_name(cursor.here.text) and words < _MAX_WORDS:
        cursor.take()
        words += 1
    if not words:
        cursor.back(start)
    return words > 0


def same_holder(told: str, named: str) -> bool:
    """Tell whether a later name can be the one that was told of; a pronoun always can."""
    return not named or not told or singular(named) == singular(told)
