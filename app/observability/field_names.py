"""What the name of a field says about its value (seed 002, 19.2)."""

import re
from functools import lru_cache

from app.observability.readings import plain_reading

LOG_FIELDS = frozenset(
    {
        *("ts", "level", "logger", "event", "exception", "stack"),
        *("run_id", "tenant", "request_id", "worker_id", "node_id", "step_id", "call_key"),
        *("tier", "step_type", "tool", "args", "token_usage", "output_summary", "metric"),
        *("decision", "status", "attempt", "attempts", "count", "error", "error_class", "detail"),
        *("loop", "method", "path", "seconds", "bytes", "account", "folders", "advice"),
    }
)
"""The fields that a log line may have; the value of any other is not shown."""

SAFE_NAMES = frozenset(
    {
        *("ts", "level", "logger", "type", "kind", "status", "version", "code", "at"),
        *("run_id", "tenant", "tenant_id", "node_id", "step_id", "parent_id", "call_key"),
        *("request_id", "trace_id", "span_id", "worker_id", "process_id", "sha256"),
        *("tier", "step_type", "mode", "decision", "finish_reason", "terminate_reason"),
        *("dimension", "error_class", "media_type", "method", "status_code"),
    }
)
"""Names of log fields whose values the service makes itself, or that callers name runs with."""

_REMEMBERED_NAMES = 4096
"""The names of a service are few; those that callers make up push one another out."""

_GAPS = re.compile(r"[\s_.:-]+")
_SECRET = re.compile(
    r"passw|passphrase|passcode|secret|apikey|privatekey|accesskey|credential|authorization|cookie"
    r"|(?:signing|encryption|master|ssh|auth|client|license|account|session|shared)key$"
    r"|goldanswer|^pwd$|^pin$|^otp$|^cvv|^cvc|^auth$|^bearer$|^jwt$|^dsn$|connectionstring"
    r"|mnemonic|seedphrase|kennwort|motdepasse|contrasen|^senha$|\u043f\u0430\u0440\u043e\u043b\u044c"
    r"|(?<!per)(?<!first)(?<!last)token$"
)
_PERSONAL = frozenset(
    {
        *("mail", "telephone", "mobile", "fax", "dob", "ssn", "iban"),
        *("customername", "patientname", "cardholder", "birthday", "socialsecuritynumber"),
        *("nationalid", "taxid", "passport", "driverslicense", "creditcard"),
        *("street", "postalcode", "zipcode"),
    }
)
_PERSONAL_ENDINGS = (
    *("email", "emailaddress", "phone", "phonenumber", "mobilenumber", "telephonenumber"),
    *("firstname", "lastname", "fullname", "surname", "givenname", "familyname"),
    *("middlename", "maidenname", "dateofbirth", "birthdate", "passportnumber"),
    *("accountnumber", "cardnumber", "creditcardnumber", "cardholdername"),
    *("streetaddress", "homeaddress", "postaladdress"),
)
"""How such names end, whoever's they are: ``customer_email``, ``workPhone``."""


@lru_cache(maxsize=_REMEMBERED_NAMES)
def mark_for(name: str) -> str | None:
    """Return what is shown of any value with this name; None if the value decides."""
    plain = _GAPS.sub("", plain_reading(name)).lower()
    if not plain:
        return None
    if _SECRET.search(plain):
        return "[secret]"
    personal = plain in _PERSONAL or plain.endswith(_PERSONAL_ENDINGS)
    return "[personal data]" if personal else None
