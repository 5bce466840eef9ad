"""Making data harmless before it enters the page: JSON inside a script element, links, and nothing else.

Text and attributes are escaped by jinja2's autoescape; the two places it does not cover are here.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup

from densing.plots import text

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def script_json(document: str) -> Markup:
    """Return a JSON document that cannot leave its ``<script>`` element.

    ``<``, ``>`` and ``&`` become JSON escapes, so neither ``</script>`` nor ``<!--`` can appear; the value
    that a JSON parser reads is unchanged.

    Examples
    --------
    >>> script_json('["</script>"]')
    Markup('["\\\\u003c/script\\\\u003e"]')
    """
    for character, escape in _ESCAPES.items():
        document = document.replace(character, escape)
    return Markup(document)  # every character with a meaning in HTML was just replaced


def safe_url(value: Any) -> str:
    """Return a web address that may become a link, or an empty string.

    Only absolute http and https addresses without credentials or white space pass.

    Examples
    --------
    >>> safe_url("https://arxiv.org/abs/2412.04315")
    'https://arxiv.org/abs/2412.04315'
    >>> safe_url("javascript:alert(1)"), safe_url("https://a b"), safe_url("https://user@host/")
    ('', '', '')
    """
    if text.is_missing(value):
        return ""
    address = str(value).strip()
    if any(character.isspace() or ord(character) < 32 for character in address):
        return ""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return ""
    return address if usable else ""
