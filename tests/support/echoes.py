"""Forms in which a server may show a secret that it received."""

import base64
import html
import json
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, unquote

SECRET: Final = "tok/en+1&2<3>\"4'5"
"""A secret with characters that are escaped in JSON, URLs and HTML."""
FORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "as it is": lambda text: text,
    "inside a text": lambda text: f"No user has {text!r}.",
    "escaped solidus": lambda text: text.replace("/", "\\/"),
    "JSON": lambda text: json.dumps({"a": text}),
    "JSON in JSON": lambda text: json.dumps(json.dumps({"a": text})),
    "code points": lambda text: "".join(f"\\u{ord(each):04X}" for each in text),
    "escaped code points": lambda text: "".join(f"\\\\u{ord(each):04x}" for each in text),
    "x escapes": lambda text: "".join(f"\\x{ord(each):02x}" for each in text),
    "percent": lambda text: quote(text, safe=""),
    "lower-case percent": lambda text: quote(text, safe="").lower(),
    "percent twice": lambda text: quote(quote(text, safe=""), safe=""),
    "each character in percent": lambda text: "".join(f"%{ord(each):02X}" for each in text),
    "entities": html.escape,
    "entities twice": lambda text: html.escape(html.escape(text)),
    "numbers": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "hexadecimal numbers": lambda text: "".join(f"&#x{ord(each):X}" for each in text),
    "names": lambda text: html.escape(text).replace("+", "&plus;").replace("/", "&sol;"),
    "a mixture": lambda text: (
        text.replace("/", "%2F").replace("+", "&#43;").replace("&", "\\u0026")
    ),
    "Base64": lambda text: base64.b64encode(text.encode()).decode(),
    "Base64 of a longer text": lambda text: base64.b64encode(f"key: {text}!".encode()).decode(),
    "Base64 in a URL": lambda text: base64.urlsafe_b64encode(f"a{text}".encode()).decode(),
    "a request": lambda text: f"curl -H 'authorization: Bearer {text}' https://x/",
}


def shows(text: str, secret: str) -> bool:
    """Return whether a text shows a secret to a reader who decodes it."""
    for _ in range(5):
        if secret in text:
            return True
        for part in text.replace('"', " ").replace("'", " ").split():
            for decode in (base64.b64decode, base64.urlsafe_b64decode):
                try:
                    decoded = decode(part + "=" * (-len(part) % 4)).decode()
                except ValueError:
                    continue
                if secret in decoded:
                    return True
        text = html.unescape(unquote(text)).replace("\\x", "\\u00").replace("\\/", "/")
        try:
            text = text.encode("ascii", "backslashreplace").decode("unicode_escape")
        except UnicodeDecodeError:
            text = text.replace("\\", "")
    return False
