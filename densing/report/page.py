"""What every page is made of: a template filled, tables, figures and notes as words, and data made harmless.

The templates ``base.html`` and ``parts.html`` lay it out. Text and attributes are escaped by jinja2's autoescape; links
are checked here. Figures and what draws them are packed (gzip in base 85), which no name can leave and a browser
unpacks: plotly.js is 4.8 MB as it comes and 1.8 MB packed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from densing import __version__
from densing.core import formatting, strip_secrets, write_text
from densing.plots import DARK
from densing.report.document import Figure, Page, render_markdown

MOST_COLUMNS = 30


def render(page: Page) -> str:
    """Return a page as HTML: one file that needs no network.

    Everything from data is escaped, a missing value is an error; the page's own policy forbids every request and every
    script but the two that the file brings.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("densing.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Not a step of `words`: a terminal and a Markdown page keep the ordinary space.
    environment.filters["prose"] = unbroken
    environment.filters["packed"] = packed
    # Line ends as an HTML parser sees them, so that its hash fits.
    script = script_text(static("report.js"))
    code, plotly = _plotly()
    # Markup is for our own code; it is never called with data.
    frame = {
        "policy": policy([script, code]),
        "script": Markup(script),
        "plotly": plotly,
        "css": Markup(static("report.css")),
        "columns": range(1, MOST_COLUMNS + 1),
        "palette": Markup(json.dumps(DARK)),
        "version": __version__,
        "made": made(page.inputs),
    }
    text = environment.get_template("page.html").render(page=page, headline=page.headline, **frame)
    # Bytes in a file's name that are not text are written out.
    return text.encode("utf-8", "backslashreplace").decode()


def write(page: Page, path: Path | str) -> Path:
    """Write a page: HTML where the name ends in ``.html``, Markdown otherwise; whole or not at all.

    Raises
    ------
    densing.core.errors.InputError
        When the file cannot be written.
    """
    target = Path(path)
    write_text(target, render(page) if target.suffix == ".html" else render_markdown(page))
    return target


@cache
def _plotly() -> tuple[str, str]:
    """Return plotly.js as the browser will run it, and packed: half a second once for all pages of a process."""
    code = get_plotlyjs()
    return code, packed(code)


@dataclass(frozen=True)
class Made:
    """How a page came about: the day (UTC), the command if one made it, and first digits of its inputs' hashes."""

    day: str
    command: str
    inputs: tuple[tuple[str, str], ...]


def made(inputs: Mapping[str, str]) -> Made:
    """Return what a page's footer says of its making; secrets in the command line are masked."""
    digests = tuple((formatting.clean(name), formatting.clean(digest)[:12]) for name, digest in inputs.items())
    return Made(f"{datetime.now(UTC):%Y-%m-%d}", command_line(sys.argv), digests)


def command_line(argv: Sequence[str]) -> str:
    """Return the command that this process runs; empty where it is not ``densing`` itself.

    Parameters
    ----------
    argv : sequence of str
        As in :data:`sys.argv`.

    Examples
    --------
    >>> command_line(["/usr/bin/densing", "profile", "my traces", "--html", "p.html"])
    "densing profile 'my traces' --html p.html"
    >>> command_line(["/usr/lib/python3/densing/__main__.py", "run"]), command_line(["notebook.py"])
    ('densing run', '')
    """
    program = PurePath(argv[0]) if argv else PurePath()
    # `python -m densing` and `python cli.py` of a checkout are the same program.
    if program.stem != "densing" and program.parts[-2:] != ("densing", "__main__.py") and program.name != "cli.py":
        return ""
    return formatting.clean(strip_secrets(shlex.join(["densing", *argv[1:]])), 600)


def shown_figure(name: str, figure: go.Figure, caption: str) -> Figure:
    """Serialise a figure.

    Examples
    --------
    >>> shown_figure("toy", go.Figure(layout={"height": 300}), "A toy.").height
    300
    """
    plain = json.loads(figure.to_json(engine="json"), parse_float=_short, object_hook=_listed)
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return Figure(name, text, int(figure.layout.height or 480), caption)


def _short(number: float | str) -> float:
    """Return seven digits of a number: more than a screen shows, of a figure drawn a thousand times as large too."""
    return float(f"{float(number):.7g}")


def _listed(entry: dict[str, Any]) -> Any:
    """Return an array as numbers: plotly writes its bytes in base64, all digits of them, which pack badly."""
    if "bdata" not in entry:
        return entry
    array = np.frombuffer(base64.b64decode(entry["bdata"]), entry["dtype"])
    numbers = np.array([_short(each) if math.isfinite(each) else None for each in array.tolist()], dtype=object)
    shape = [int(length) for length in str(entry.get("shape", array.size)).split(",")]
    return numbers.reshape(shape).tolist()


def packed(text: str) -> Markup:
    """Return a text as gzip in base 85: letters that cannot leave a ``<script>`` element.

    They are those of :func:`base64.b85encode`, with a comma for its ``<``.

    Examples
    --------
    >>> import gzip
    >>> gzip.decompress(base64.b85decode(str(packed("</script>")).replace(",", "<")))
    b'</script>'
    """
    # 31: with the head and tail of gzip; without a time, so that equal texts are packed alike.
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    letters = base64.b85encode(packer.compress(text.encode("utf-8")) + packer.flush())
    return Markup(letters.decode("ascii").replace("<", ","))


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
