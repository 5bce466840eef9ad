"""The program on a terminal: its commands, how they speak, and how errors leave it.

A command prints one JSON document or a table to stdout, everything else to stderr.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from densing.cli.table import emit_table, visible
from densing.core import DensingError, Note, doubts, plain, severest_first, words, worst

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
COMMANDS = {
    "run": "run:run",
    "fit": "fit:fit",
    "density": "density:density",
    "trend": "trend:trend",
    "report": "report:report",
    "doctor": "doctor:doctor",
    "catalog": "catalog:app",
    "refs": "refs:app",
    "eval": "eval:eval_",
    "results": "results:app",
    "ladder": "ladder:app",
    "profile": "profile:profile",
    "scaling": "scaling:scaling",
    "what-if": "whatif:what_if",
    "calibrate": "calibrate:calibrate",
    "techniques": "techniques:app",
    "train": "train:train",
}
"""Each command's module below ``densing.cli`` and its function, or its group of commands."""

# They do no linear algebra, and the threads of numpy's BLAS cost 0.1 CPU seconds only to be there.
_READERS = frozenset({"profile", "scaling"})

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


def build(only: str | None = None) -> typer.Typer:
    """Return the command tree; with ``only`` one command of it, and the modules of the others are not loaded."""
    tree = typer.Typer(
        name="densing",
        help="Measure how much capability a language model packs into each parameter, how fast that improves, and how\n"
        "efficiently training turns hardware time into it.\n\n"
        "Example: densing run --out results/latest",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    tree.callback()(_root)
    for name, target in COMMANDS.items():
        if only in (None, name):
            module, attribute = target.split(":")
            command = getattr(import_module(f"densing.cli.{module}"), attribute)
            if isinstance(command, typer.Typer):
                tree.add_typer(command, name=name)
            else:
                tree.command(name)(command)
    return tree


def _version(value: bool) -> None:
    if value:
        from densing import __version__

        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that belong to no command."""


def main() -> None:
    """Run the command line; user errors become one message and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its escape instead.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    command = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in COMMANDS else None
    if command in _READERS:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        build(command)()
    except KeyboardInterrupt:
        # Pressed while modules are loaded; once a command runs, typer ends it in the same way.
        raise SystemExit(130) from None
    except DensingError as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader (`head`, a pager) closed the pipe: not an error of ours, but stdout must not be flushed again.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
        raise SystemExit(0) from None
    except MemoryError:
        _fail("not enough memory for this table; split it")
    except OSError as error:
        _fail(f"cannot read or write ({error.strerror or error}); check space and rights")
    except Exception as error:
        if os.environ.get("DENSING_DEBUG"):
            raise
        _fail(
            f"internal error ({type(error).__name__}: {error}); "
            "set DENSING_DEBUG=1 for the traceback and please report it"
        )
    finally:
        gc.freeze()


def _fail(message: str) -> None:
    typer.echo("error: " + "\n".join(map(visible, message.split("\n"))), err=True)
    raise SystemExit(1)
