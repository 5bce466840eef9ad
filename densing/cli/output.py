"""Output of commands: one JSON document or a table on stdout, everything else on stderr.

A table is a :class:`densing.core.Listing`, which its result declares; :func:`emit_table` prints it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from densing.cli import calls
from densing.core import OUTPUT, Note, doubts, formatting, severest_first, worst

if TYPE_CHECKING:
    import pandas as pd

    from densing.core import Hit, Listing

STYLES = {"info": "dim", "warning": "yellow", "error": "bold red"}
LONGEST_NOTE = 600
LONGEST_LABEL = 60
CONDITION_HOLDS = 4
"""Exit code when a ``--fail-if`` holds or cannot be decided."""
MOST_NOTES = 20
"""Notes that a command on many ranks puts on the screen; there may be one of every rank."""


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


def emit_table(listing: Listing, title: str = "") -> None:
    """Print a table to stdout below its title; on a terminal too narrow for all of it, what fits, and say what not.

    ``--verbose`` shows the minor columns too. Into a file or a pipe goes every row whole.
    """
    room, every = width(10**6), calls.current().verbose
    typer.secho(visible(title or listing.title), italic=True)
    lines, hidden = listing.laid_out(room, every=every)
    typer.echo("\n".join(["", *lines, ""]))
    if hidden:
        say(f"No room for {', '.join(map(visible, hidden))}: widen the terminal, or use --json.")


def width(most: int) -> int | None:
    """Return the columns to fold sentences to, at most ``most``; None where the output is not a terminal's."""
    if "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty()):
        return min(max(shutil.get_terminal_size().columns, 40), most)
    return None


visible = formatting.visible


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
