"""Output of commands: one JSON document or a table on stdout, everything else on stderr.

Tables have sizes people can read, names that stay text, and no column squeezed beyond reading. :func:`emit_table` draws
a DataFrame with rich; :func:`columns` aligns plain text, for commands that answer in a fraction of a second: loading
what draws would take longer than they do.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from densing.cli import calls
from densing.core import OUTPUT, Note, doubts, formatting, severest_first, worst

if TYPE_CHECKING:
    import pandas as pd

    from densing.core import Hit

STYLES = {"info": "dim", "warning": "yellow", "error": "bold red"}
LONGEST_NOTE = 600
LONGEST_LABEL = 60
CONDITION_HOLDS = 4
"""Exit code when a ``--fail-if`` holds or cannot be decided."""
MOST_NOTES = 20
"""Notes that a command on many ranks puts on the screen; there may be one of every rank."""
LIMITED = frozenset({"density", "n_eff"})
COUNTS = frozenset({"params", "tokens", "n_params", "n_eff", "n_eff_lo", "n_eff_hi"})
# Text folds, down to this width; figures and dates never do.
TEXT_WIDTH = 16
WIDEST_TEXT = 60
PADDING = 3


def enveloped(payload: Any, notes: Iterable[Note] = ()) -> Any:
    """Return what ``--json`` prints of an answer, the same around every command's.

    ``schema`` names this form, ``version`` densing's own, ``command`` the words of the command, ``notes`` what to keep
    in mind, and ``data`` the answer. ``densing --json-schema`` prints the JSON Schema.

    Parameters
    ----------
    payload : object
        The answer; ``notes`` in it, which are plain or :class:`Note`, go into the envelope.
    notes : iterable of Note
        Of an answer that is not a mapping, or holds none.

    Examples
    --------
    >>> enveloped({"models": 3, "notes": [Note("few", "info", "three")]})["notes"][0]["code"]
    'few'
    >>> enveloped([1, 2])["data"]
    [1, 2]
    """
    call = calls.current()
    if call.form == calls.BARE:
        return payload
    if isinstance(payload, dict) and "notes" in payload:
        notes = (*payload["notes"], *notes)
        payload = {key: value for key, value in payload.items() if key != "notes"}
    told = [note.to_dict() if isinstance(note, Note) else note for note in notes]
    distinct = {(note["code"], note["message"]): note for note in reversed(told)}
    return {**_head(call), "notes": list(distinct.values())[::-1], "data": payload}


def _head(call: calls.Call) -> dict[str, Any]:
    from densing import __version__

    return {"schema": OUTPUT, "version": __version__, "command": call.command}


def output_schema() -> str:
    """Return the JSON Schema of what ``--json`` prints, of every command."""
    return Path(__file__).with_name("data").joinpath("output.schema.json").read_text(encoding="utf-8")


def emit_json(payload: Any, notes: Iterable[Note] = ()) -> None:
    """Print one JSON document to stdout."""
    typer.echo(_written(payload, notes))


def _written(payload: Any, notes: Iterable[Note]) -> str:
    import json

    # With it comes msgspec, which a help text does without.
    from densing.core import plain

    return json.dumps(plain(enveloped(payload, notes)), indent=2, ensure_ascii=False)


def emit_plain(payload: Any, notes: Iterable[Note] = ()) -> None:
    """Print one JSON document of plain data: text, finite numbers, lists, mappings; loads nothing."""
    _echo_plain(enveloped(payload, notes))


def emit_failure(error: dict[str, Any], code: int) -> None:
    """Print what went wrong as one JSON document."""
    failure = {"error": error, "exit_code": code}
    call = calls.current()
    _echo_plain(failure if call.form == calls.BARE else {**_head(call), "notes": [], "data": None, **failure})


def _echo_plain(payload: Any) -> None:
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(payload), indent=2).decode()
    except UnicodeEncodeError:
        # A name holds half a character: what is not text is written out.
        import json

        text = json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False)
        text = text.encode("utf-8", "backslashreplace").decode()
    typer.echo(text)


def emit_table(frame: pd.DataFrame, title: str, bound: Iterable[object] = ()) -> None:
    """Print a table to stdout, with names kept as text (no markup from data).

    Columns come in order of importance: those that a narrow terminal has no room for are left out, and named.
    ``bound`` holds ``upper``, ``lower`` or nothing per row: densities and effective sizes that are limits say so.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = {str(name): [cell(value, str(name)) for value in frame[name]] for name in frame.columns}
    for name in LIMITED & cells.keys():
        # Rows beyond those of `bound` are not limits.
        cells[name] = [formatting.sign(side) + value for side, value in zip_longest(bound, cells[name], fillvalue="")]
    fixed = {str(name): frame[name].dtype.kind in "fiuM" for name in frame.columns}
    widths = {name: max(map(len, [name, *column])) for name, column in cells.items()}
    # Text may fold; a figure or a date never does.
    min_widths = {name: width if fixed[name] else min(width, TEXT_WIDTH) for name, width in widths.items()}
    console = Console()
    if not (console.is_terminal or "COLUMNS" in os.environ):
        # Into a file or a pipe goes the whole table.
        console = Console(width=max(80, sum(min(width, WIDEST_TEXT) + PADDING for width in widths.values())))
    names = fitting(min_widths, console.width)
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        numeric = frame[name].dtype.kind in "fiu"
        table.add_column(
            Text(visible(name)),
            justify="right" if numeric else "left",
            no_wrap=fixed[name],
            min_width=min_widths[name],
            overflow="fold",
        )
    for row in zip(*(cells[name] for name in names), strict=True):
        table.add_row(*map(Text, row))
    console.print(Text(visible(title), style="italic"))
    console.print(table)
    if hidden := [name for name in cells if name not in names]:
        left_out = ", ".join(map(visible, hidden))
        say(f"No room for {left_out}: widen the terminal, or use --json.")


def fitting(widths: dict[str, int], room: int) -> list[str]:
    """Return the columns that fit beside each other, the first always.

    Examples
    --------
    >>> fitting({"model": 10, "density": 8, "status": 12}, 24)
    ['model', 'density']
    """
    names: list[str] = []
    used = 0
    for name, width in widths.items():
        if names and used + width + PADDING > room:
            break
        names.append(name)
        used += width + PADDING
    return names


def cell(value: Any, column: str = "") -> str:
    """Return a cell as text: counts with a unit, dates without a time, four digits, a dash for nothing.

    Examples
    --------
    >>> cell(7.24e9, "n_params"), cell(0.61234), cell(float("inf")), cell(None)
    ('7.24 B', '0.6123', '∞', '–')
    """
    import pandas as pd

    if not isinstance(value, str) and formatting.is_missing(value):
        return formatting.MISSING
    if isinstance(value, pd.Timestamp):
        return formatting.day(value)
    if isinstance(value, float) and math.isinf(value):
        return "∞"
    if column in COUNTS and isinstance(value, int | float):
        # What rounds to a million is one; less has no unit.
        return formatting.size(value) if value >= 1e6 * (1 - 5e-4) else f"{value:.3g}"
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def width(most: int) -> int | None:
    """Return the columns to fold sentences to, at most ``most``; None where the output is not a terminal's."""
    if "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty()):
        return min(max(shutil.get_terminal_size().columns, 40), most)
    return None


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return lines with aligned columns: the first ``left`` to the left, the others to the right.

    Examples
    --------
    >>> print(chr(10).join(columns(("rank", "idle %"), [("0", "12.5"), ("10", "3.1")])))
    rank  idle %
    0       12.5
    10       3.1
    """
    table = [[visible(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def visible(text: str) -> str:
    """Return text with what a terminal would obey (escapes, direction marks, line ends) written out.

    Examples
    --------
    >>> print(visible("\\x1b[31mred"))
    \\x1b[31mred
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _terminal() -> bool:
    """Return whether standard error is a terminal; it may have been closed."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(message: str, style: str = "") -> None:
    """Print a remark to stderr; none with ``--quiet``."""
    if not calls.current().quiet:
        warn(message, style)


def warn(message: str, style: str = "") -> None:
    """Print what must be seen to stderr."""
    lines = "\n".join(map(visible, message.split("\n")))
    if not _terminal():
        # Colours are for terminals, and what draws them takes longer to load than some commands to run.
        typer.echo(lines, err=True)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(lines, style=style), soft_wrap=True)


def show_notes(notes: Iterable[Note], brief: bool = False, most: int | None = None) -> None:
    """Print notes to stderr, each once, the severest first; of many the first ``most``.

    ``brief`` leaves what is only worth knowing to ``--verbose``; with ``--quiet`` it is left out always.
    """
    call = calls.current()
    distinct: dict[str, Note] = {}
    for note in severest_first(doubts(notes) if call.quiet or (brief and not call.verbose) else notes):
        distinct.setdefault(note.message, note)
    first = list(distinct.values())[:most]
    for note in first:
        # A name from data may be endless, and what follows a line end in it must not pass for a message of ours.
        lines = [formatting.middle_cut(line, LONGEST_NOTE) for line in note.message.split("\n")]
        warn(f"{note.severity}: " + "\n  ".join(lines), STYLES[note.severity])
    if len(first) < len(distinct):
        say(f"... and {len(distinct) - len(first)} more notes; all of them: --json")


def finish(notes: Iterable[Note], hits: Iterable[Hit] = ()) -> None:
    """Leave with exit code 4 when a ``--fail-if`` holds or cannot be decided, which is said, else with 3 when a note
    says that the result should not be used as it stands."""
    messages = [hit.message for hit in hits]
    for message in messages:
        warn(f"--fail-if: {message}", "bold red")
    if messages:
        raise typer.Exit(CONDITION_HOLDS)
    if worst(notes) == "error":
        raise typer.Exit(3)


def save(frame: pd.DataFrame, payload: Any, out: Path | None, notes: Iterable[Note] = ()) -> None:
    """Write a result where ``--out`` says: CSV for ``.csv``, what ``--json`` prints for ``.json``."""
    from densing.core import write_csv, write_text

    if out is None:
        return
    if out.suffix == ".csv":
        write_csv(frame, out)
    else:
        write_text(out, _written(payload, notes) + "\n")
    say(f"wrote {out}")


@contextmanager
def progress(quiet: bool) -> Iterator[Any]:
    """Yield ``step(label, fraction)``; shows a bar on a terminal and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet or calls.current().quiet or not console.is_terminal:
        yield lambda label, fraction: None
        return
    parts = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda label, fraction: bar.update(task, description=label, completed=fraction)


@contextmanager
def timed_bar(quiet: bool, label: str = "") -> Iterator[Callable[[str, float, float | None], None]]:
    """Yield ``show(label, done, total)``: a bar with the time left on a terminal, nothing elsewhere."""
    if quiet or calls.current().quiet or not _terminal():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # A stream of its own: an evaluation sends the process's standard error into a file.
    with os.fdopen(os.dup(2), "w") as stream:
        text = TextColumn("{task.description}", markup=False)
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        console = Console(file=stream, force_terminal=True)
        with Progress(text, BarColumn(), TaskProgressColumn(), *times, console=console, transient=True) as bar:
            line = bar.add_task(_label(label), total=None)
            yield lambda label, done, total: bar.update(line, description=_label(label), completed=done, total=total)


def _label(text: str) -> str:
    """Return what stands before a bar: the name of a file is text, and leaves room for the bar."""
    return visible(formatting.middle_cut(text, LONGEST_LABEL))
