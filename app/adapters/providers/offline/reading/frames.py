"""The words around a question that ask politely and carry no meaning of their own.

Only these are passed over, and only before and after the question proper.
"""

from app.adapters.providers.offline.reading.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.tokens import Kind

COURTESIES: Phrases[bool] = Phrases(
    {
        "(hi|hello|hey|hiya|greetings|good morning|good afternoon|good evening) (there|)": True,
        "(ok|okay|so|well|now|right|alright|um|er|and|also)": True,
        "(please|kindly)": True,
        "(quick|simple|easy|math|maths|) question": True,
        "i have a (quick|simple|math|maths|) question": True,
        "(can|could|would|will) you (please|kindly|)": True,
        "(can|could|may) i (ask|know)": True,
        "(can|could) you help me": True,
        "(help|tell|show|give) me": True,
        "let me know": True,
        "(i|we) (want|need|would like|'d like) to (know|find out|find|calculate|compute)": True,
        "(i|we) would like": True,
        "(i'd|we'd) like": True,
        "(i'd|we'd) like to (know|find out|find|calculate|compute)": True,
        "(i|we) need": True,
        "i (wonder|am wondering)": True,
        "i'm wondering": True,
        "do you (know|happen to know)": True,
        "any idea": True,
    }
)
"""Before any kind of question."""

ASKING: Phrases[bool] = Phrases(
    {
        "(what is|what's|whats|what are|what're|what was|what would be|what will be)": True,
        "what (does|do|would|will|did)": True,
        "what (do|would|will|did|does) (you|i|we|one) (get|have|end up with)": True,
        "what (number|amount|value|result) (is|do you get|do i get|do we get)": True,
        "(how much|how many) (is|are|does|do|would|will)": True,
        "how much's": True,
        "(what|how) about": True,
        "(what|how much) (it|that) is": True,
        "(what|how much)": True,
        "(calculate|compute|evaluate|determine|solve|find|find out|get)": True,
        "(work|figure) out": True,
        "(convert|express|write|turn|change)": True,
        "first": True,
        "(the|) total (when|if) (you|i|we|one|)": True,
        "do the (math|maths|sum|calculation)": True,
        "the (exact|) (answer|result|value|outcome|solution) (of|to|for|)": True,
        "(when|if) (you|i|we|one|)": True,
        "(to|by)": True,
        "(:|what is it)": True,
    }
)
"""Before a calculation, in any combination that makes sense to people."""

CLOSING: Phrases[bool] = Phrases(
    {
        "(equal|equals|equal to|equals to|is equal to|are equal to)": True,
        "(is|are|be|makes|make|gives|give|yields|yield)": True,
        "(come to|comes to|add up to|adds up to|work out to)": True,
        "(is|equals|makes|gives) what": True,
        "what (do|would|will|did) (you|i|we|one) (get|have|end up with)": True,
        "what (is|would be|will be) (it|that|the answer|the result|the total|the sum)": True,
        "what's (it|that|the answer|the result|the total|the sum)": True,
        "(how much|what) is (it|that)": True,
        "(please|thanks|thank you|thx|cheers)": True,
        "(thanks|thank you) (very much|so much|in advance|a lot)": True,
        "for me": True,
        "(=|,|:)": True,
    }
)
"""After a question of any kind."""


def read_courtesies(cursor: Cursor) -> None:
    """Pass over a greeting and a polite opening."""
    while COURTESIES.read(cursor):
        while cursor.accept(",", ".", "!", ":"):
            pass


def read_asking(cursor: Cursor) -> None:
    """Pass over the words that ask for the value of what follows."""
    read_courtesies(cursor)
    while ASKING.read(cursor):
        pass


def is_courtesy(cursor: Cursor) -> bool:
    """Tell whether polite words are all there is."""
    while COURTESIES.read(cursor) or CLOSING.read(cursor) or cursor.accept(".", "!"):
        pass
    return cursor.here.kind is Kind.END


def read_closing(cursor: Cursor) -> None:
    """Pass over what may follow a question; nothing else may be left, but another question."""
    while CLOSING.read(cursor):
        pass
    ended = False
    while cursor.accept("?", ".", "!"):
        ended = True
    while ended and CLOSING.read(cursor):
        cursor.accept("?", ".", "!")
    if cursor.here.kind is not Kind.END:
        raise cursor.misread()
