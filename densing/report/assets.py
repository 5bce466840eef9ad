"""What is inlined once: plotly.js, our script and style sheet, and the policy that covers them."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from markupsafe import Markup
from plotly.offline import get_plotlyjs


def static(name: str) -> str:
    """Return the text of a file under ``densing/report/static``."""
    return resources.files("densing.report").joinpath("static", name).read_text(encoding="utf-8")


def plotly_js() -> str:
    """Return plotly.js with line ends as an HTML parser sees them, so that its hash fits."""
    return script_text(get_plotlyjs())


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
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def inline(code: str) -> Markup:
    """Mark our own code as what it is; never called with data."""
    return Markup(code)
