"""What the name of a field says about its value (seed 002, 19.2)."""

import re
from functools import lru_cache

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
"""Names whose values the service makes itself, or that callers name their runs with."""

_REMEMBERED_NAMES = 4096
"""The names of a service are few; those that callers make up push one another out."""

_SECRET = re.compile(
    r"passw|passphrase|passcode|secret|apikey|privatekey|accesskey|credential|authorization|cookie"
    r"|goldanswer|^pwd$|^pin$|^otp$|^cvv|^cvc"
    r"|(?:^|access|refresh|auth|bearer|id|session|csrf)token$"
)
_PERSONAL = frozenset(
    {
        *("email", "emailaddress", "mail", "phone", "phonenumber", "telephone", "mobile", "fax"),
        *("firstname", "lastname", "fullname", "surname", "givenname", "familyname"),
        *("middlename", "maidenname", "customername", "patientname", "cardholder"),
        *("dateofbirth", "birthdate", "birthday", "dob", "ssn", "socialsecuritynumber"),
        *("nationalid", "taxid", "passport", "passportnumber", "driverslicense"),
        *("iban", "accountnumber", "cardnumber", "creditcard", "creditcardnumber"),
        *("street", "streetaddress", "homeaddress", "postaladdress", "postalcode", "zipcode"),
    }
)


@lru_cache(maxsize=_REMEMBERED_NAMES)
def mark_for(name: str) -> str | None:
    """Return what is shown of any value with this name; None if the value decides."""
    plain = name.replace("_", "").replace("-", "").replace(" ", "").lower()
    if not plain:
        return None
    if _SECRET.search(plain):
        return "[secret]"
    return "[personal data]" if plain in _PERSONAL else None
