"""What the name of a field says about its value."""

import re

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

_WORD = re.compile(r"[A-Z]?[^\W\dA-Z_]+|[A-Z]+(?![^\W\dA-Z_])|\d+")
_SECRET = re.compile(
    r"passw|passphrase|passcode|secret|apikey|privatekey|accesskey|credential|authorization|cookie"
    r"|(?:signing|encryption|master|ssh|auth|client|license|account|session|shared)key$"
    r"|goldanswer|^cvv|^cvc|^auth$|^bearer$|connectionstring|mnemonic|seedphrase|kennwort"
    r"|motdepasse|contrase[n\u00f1]|^senha$|\u043f\u0430\u0440\u043e\u043b\u044c"
    r"|(?<!per)(?<!first)(?<!last)token$"
)
_SECRET_WORDS = frozenset({"pass", "pw", "pwd", "pin", "otp", "sid", "session", "jwt", "dsn"})
"""Too short to be searched for inside other words: the last word of a secret's name."""
_PERSONAL_ENDINGS = (
    *("mail", "emailaddress", "phone", "mobile", "fax", "phonenumber", "mobilenumber", "dob"),
    *("telephonenumber", "firstname", "lastname", "fullname", "surname", "givenname", "familyname"),
    *("middlename", "maidenname", "customername", "patientname", "cardholder", "cardholdername"),
    *("birthday", "birthdate", "dateofbirth", "ssn", "socialsecuritynumber", "nationalid", "taxid"),
    *("passport", "passportnumber", "driverslicense", "iban", "accountnumber", "creditcard"),
    *("cardnumber", "street", "streetaddress", "homeaddress", "postaladdress", "postalcode"),
    "zipcode",
)
"""How the names of personal data end: ``customer_email``, ``workPhone``."""


def mark_of(name: str) -> str | None:
    """Return what is shown instead of any value with this name; None if the value decides."""
    words = _WORD.findall(name)
    plain = "".join(words).lower()
    if not plain:
        return None
    if words[-1].lower() in _SECRET_WORDS or _SECRET.search(plain):
        return "[secret]"
    return "[personal data]" if plain.endswith(_PERSONAL_ENDINGS) else None
