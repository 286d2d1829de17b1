"""The words around a question that ask politely and carry no meaning of their own.

Only these are passed over, and only before and after the question proper.
"""

from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.tokens import Kind

COURTESIES: Phrases[bool] = Phrases(
    {
        "(hi|hello|hey|hiya|greetings|good morning|good afternoon|good evening) (there|)": True,
        "(hi|hello|hey|dear) (everyone|everybody|all|team|friend|folks|again)": True,
        "(ok|okay|so|well|now|right|alright|um|er|and|also)": True,
        "how are you (doing|) (today|)": True,
        "(i|) hope (you are|you're|all is) (doing|) (well|fine|good|great)": True,
        "i hope this finds you well": True,
        "(i'm|i am|) sorry (to bother you|to disturb you|for bothering you|)": True,
        "(everyone|everybody|team|folks)": True,
        "(excuse|pardon) me": True,
        "(here is|here's|this is) (a|my|another) (quick|simple|short|easy|) question": True,
        "(i've|i have) (got|) (a|another|one more|a small) question (for you|)": True,
        "(one|just one) (more|last|quick) (question|thing)": True,
        "(can|could) you (please|) help (me|us) (with|out|) (this|something|)": True,
        "(i|we) (need|could use) (some|your|a bit of|a little) help": True,
        "i was (just|) wondering": True,
        "if you (could|can) (please|) (tell|help|show) me": True,
        "(i'm|i am) (just|) (wondering|curious)": True,
        "(just|) (curious|out of curiosity)": True,
        "(i'd|i would) (really|) (appreciate|be grateful for) (your|some) help": True,
        "(i'm|i am) (doing|working on|stuck on|checking|preparing) (my|a|some|an|our) (homework|"
        "report|presentation|project|math homework|maths homework|assignment)": True,
        "my (teacher|boss|son|daughter|friend|colleague|manager|client) (asked|asks) (me|us)": True,
        "my (teacher|boss|son|daughter|friend|colleague|manager|client) (wants|would like) to "
        "know": True,
        "for (my|a|our) (homework|report|presentation|project|class|assignment)": True,
        "(would|do) you mind telling me": True,
        "(be so kind as to|be so kind and)": True,
        "(may|might) i (please|) (ask|know)": True,
        "if (you|) (don't mind|possible)": True,
        "just": True,
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
        "(how much|what) (do|would|will|did) (you|i|we) (get|have) (if|when) (you|i|we)": True,
        "what (number|amount|value|result) (is|do you get|do i get|do we get)": True,
        "(which|what) (number|value|amount) is": True,
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
        "exactly": True,
        "(much|greatly|very much) appreciated": True,
        "(i|we) (would|) (really|) appreciate (it|that|your help|the help)": True,
        "(i'd|we'd) (really|) appreciate (it|that|your help|the help)": True,
        "(thanks|thank you|thx) for (your|the) (help|time)": True,
        "(thanks|thank you|thx) (a bunch|a million|again|kindly)": True,
        "(many thanks|with thanks|ta|bye|goodbye|see you)": True,
        "(thanks|thank you) (very much|so much|a lot|) in advance (for your help|)": True,
        "have a (nice|great|good|lovely) (day|one|evening|weekend)": True,
        "(best|kind|warm|) (regards|wishes)": True,
        "that (would|will) be (great|helpful|very helpful|nice|awesome|perfect)": True,
        "that (would|will) help (a lot|)": True,
        "(if you can|if possible|if you don't mind|when you can)": True,
        "(no rush|no hurry|take your time)": True,
        "(i|we) need (it|this|that) for (my|our|a|the) (homework|report|presentation|project|class|"
        "taxes|records|assignment|boss)": True,
        "(it's|it is|this is) for (my|our|a|the) (homework|report|presentation|project|class|"
        "records|assignment|boss)": True,
        "(=|,|:)": True,
    }
)
"""After a question of any kind."""


def read_courtesies(cursor: Cursor) -> None:
    """Pass over a greeting and a polite opening."""
    while COURTESIES.read(cursor):
        while cursor.accept(",", ".", "!", ":", ";"):
            pass


def read_asking(cursor: Cursor) -> None:
    """Pass over the words that ask for the value of what follows."""
    read_courtesies(cursor)
    while ASKING.read(cursor):
        pass


def is_courtesy(cursor: Cursor) -> bool:
    """Tell whether polite words are all there is."""
    while CLOSING.read(cursor) or COURTESIES.read(cursor) or cursor.accept(".", "!", ",", ";"):
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
