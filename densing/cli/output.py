"""How commands speak: one JSON document or a table on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from densing.cli.table import emit_table, visible
from densing.core import Note, doubts, plain, severest_first, words, worst

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "emit_json",
    "emit_plain",
    "emit_table",
    "finish",
    "progress",
    "save",
    "say",
    "show_notes",
    "timed_bar",
    "visible",
]
STYLES = {"info": "dim", "warning": "yellow", "error": "bold red"}
LONGEST_NOTE = 600
LONGEST_LABEL = 60
MOST_NOTES = 20
"""Notes that a command on many ranks puts on the screen; there may be one of every rank."""


def emit_json(payload: Any) -> None:
    """Print one JSON document to stdout."""
    import json

    typer.echo(json.dumps(plain(payload), indent=2, ensure_ascii=False))


def emit_plain(payload: Any) -> None:
    """Print one JSON document of plain data: text, finite numbers, lists, mappings; loads nothing."""
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(payload), indent=2).decode()
    except UnicodeEncodeError:
        # A name holds half a character: what is no text is written out.
        import json

        text = json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False)
        text = text.encode("utf-8", "backslashreplace").decode()
    typer.echo(text)


def _terminal() -> bool:
    """Return whether standard error is a terminal; it may have been closed."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(message: str, style: str = "") -> None:
    """Print lines for people to stderr."""
    shown = "\n".join(map(visible, message.split("\n")))
    if not _terminal():
        # Colours are for terminals, and what draws them takes longer to load than some commands to run.
        typer.echo(shown, err=True)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(shown, style=style), soft_wrap=True)


def show_notes(notes: Iterable[Note], verbose: bool = True, most: int | None = None) -> None:
    """Print notes to stderr, each once, the severest first; of many the first ``most``."""
    distinct: dict[str, Note] = {}
    for note in severest_first(notes if verbose else doubts(notes)):
        distinct.setdefault(note.message, note)
    shown = list(distinct.values())[:most]
    for note in shown:
        # A name from data may be endless, and what follows a line end in it must not pass for a message of ours.
        lines = [words.middle_cut(line, LONGEST_NOTE) for line in note.message.split("\n")]
        say(f"{note.severity}: " + "\n  ".join(lines), STYLES[note.severity])
    if len(shown) < len(distinct):
        say(f"... and {len(distinct) - len(shown)} more notes; all of them: --json")


def finish(notes: Iterable[Note]) -> None:
    """Leave with exit code 3 when a note says that the result should not be used as it stands."""
    if worst(notes) == "error":
        raise typer.Exit(3)


def save(frame: pd.DataFrame, payload: Any, out: Path | None) -> None:
    """Write a result where ``--out`` says: CSV for ``.csv``, JSON for ``.json``."""
    import json

    from densing.core import write_csv, write_text

    if out is None:
        return
    if out.suffix == ".csv":
        write_csv(frame, out)
    else:
        write_text(out, json.dumps(plain(payload), indent=2, ensure_ascii=False) + "\n")
    say(f"wrote {out}")


@contextmanager
def progress(quiet: bool) -> Iterator[Any]:
    """Yield ``step(label, fraction)``; shows a bar on a terminal and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda label, fraction: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda label, fraction: bar.update(task, description=label, completed=fraction)


@contextmanager
def timed_bar(quiet: bool, label: str = "") -> Iterator[Callable[[str, float, float | None], None]]:
    """Yield ``show(label, done, total)``: a bar with the time left on a terminal, nothing elsewhere."""
    if quiet or not _terminal():
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
        with Progress(text, BarColumn(), TaskProgressColumn(), *times, console=console, transient=True) as drawn:
            line = drawn.add_task(_label(label), total=None)
            yield lambda label, done, total: drawn.update(line, description=_label(label), completed=done, total=total)


def _label(text: str) -> str:
    """Return what stands before a bar: the name of a file is text, and leaves room for the bar."""
    return visible(words.middle_cut(text, LONGEST_LABEL))
