"""What every page shares: its templates, its policy, its scripts and its style sheet."""

from __future__ import annotations

import json
from typing import Any

import jinja2

from densing import __version__
from densing.plots import style
from densing.report import assets
from densing.report.safe import script_json


def environment() -> jinja2.Environment:
    """Return the templates' environment: everything is escaped, a missing value is an error."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("densing.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["prose"] = unbroken
    return found


def unbroken(sentence: str) -> str:
    """Keep a number and its sign on one line.

    Examples
    --------
    >>> unbroken("95 % interval").split(" ")[-1]
    'interval'
    """
    return sentence.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0").replace(" < ", "\u00a0<\u00a0")


def frame() -> dict[str, Any]:
    """Return what a page's template needs around its contents: policy, scripts, style sheet, palette, version."""
    scripts = [assets.plotly_js(), assets.script_text(assets.static("report.js"))]
    return {
        "policy": assets.policy(scripts),
        "scripts": [assets.inline(script) for script in scripts],
        "css": assets.inline(assets.static("report.css")),
        "palette": script_json(json.dumps(style.DARK)),
        "version": __version__,
    }
