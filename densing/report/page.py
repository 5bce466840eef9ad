"""What every page shares: templates, policy, scripts, style sheet, and how data is made harmless before it enters one.

Text and attributes are escaped by jinja2's autoescape; the two places it does not cover, JSON inside a script element
and links, are here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from densing import __version__
from densing.core import words
from densing.plots import DARK


def fill(template: str, context: Mapping[str, Any], styles: str = "") -> str:
    """Return a page as text: one HTML file that needs no network.

    Everything in ``context`` is escaped, a missing value is an error; the page's own policy forbids every request and
    every script but the two that are inlined.

    Parameters
    ----------
    template : str
        File under ``densing/report/templates``.
    context : mapping
        Values by name, ready to show.
    styles : str
        File under ``densing/report/static`` with the page's own styles; empty: those of all pages only.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("densing.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = unbroken
    # Line ends as an HTML parser sees them, so that the hashes fit.
    scripts = [script_text(get_plotlyjs()), script_text(static("report.js"))]
    # Markup is for our own code; it is never called with data.
    frame = {
        "policy": policy(scripts),
        "scripts": [Markup(script) for script in scripts],
        "css": Markup(static("report.css")),
        "own_css": Markup(static(styles)) if styles else "",
        "palette": script_json(json.dumps(DARK)),
        "version": __version__,
    }
    return str(environment.get_template(template).render(**context, **frame))


def unbroken(sentence: str) -> str:
    """Keep a number and its sign on one line.

    Examples
    --------
    >>> unbroken("95 % interval").split(" ")[-1]
    'interval'
    """
    return sentence.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0").replace(" < ", "\u00a0<\u00a0")


def static(name: str) -> str:
    """Return the text of a file under ``densing/report/static``."""
    return resources.files("densing.report").joinpath("static", name).read_text(encoding="utf-8")


def script_text(code: str) -> str:
    """Return a script that may stand inside ``<script>``: unix line ends and no closing tag.

    Examples
    --------
    >>> script_text('a = "</script>";\\r\\n')
    'a = "<\\\\/script>";\\n'
    """
    return code.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def policy(scripts: list[str]) -> str:
    """Return a policy that allows exactly these inline scripts and no network request at all.

    Examples
    --------
    >>> policy(["1"]).split(";")[0]
    "default-src 'none'"
    """
    digests = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


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
    if words.is_missing(value):
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
