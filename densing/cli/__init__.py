"""The ``densing`` program: lazily loaded commands, and error handling."""

from __future__ import annotations

import gc
import io
import os
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

# Collecting what is only loaded, every 700 objects and again when leaving, took a tenth of a quick command's time.
gc.set_threshold(50_000)

import typer  # noqa: E402

from densing.cli import calls  # noqa: E402
from densing.cli.help import NARROW, WIDE, Command, Group, Leader  # noqa: E402

__all__ = ["app", "main"]

COMMANDS = {
    "run": "run:run",
    "density": "density:density",
    "trend": "trend:trend",
    "eval": "eval:eval_",
    "profile": "profile:profile",
    "forecast": "forecast:app",
    "compare": "compare:compare_",
    "frontier": "frontier:frontier",
    "report": "report:report",
    "joint": "joint:app",
    "items": "items:app",
    "refs": "refs:app",
    "catalog": "catalog:app",
    "results": "results:app",
    "fit": "fit:fit",
    "ladder": "ladder:app",
    "worth": "worth:worth",
    "techniques": "techniques:app",
    "train": "train:train",
    "scaling": "scaling:app",
    "calibrate": "calibrate:calibrate",
    "distil": "distil:distil",
    "tune": "tune:tune_",
    "exits": "exits:exits",
    "deploy": "deploy:deploy",
    "doctor": "doctor:doctor",
    "examples": "examples:examples",
}
"""Each command's module below ``densing.cli`` and its function, or its group of commands."""
LEADERS = ("scaling",)
"""Groups that are commands with arguments themselves."""
HEADINGS = {
    "run": "Start here",
    "forecast": "More on density",
    "fit": "Laws and small models of your own",
    "worth": "What training costs",
    "distil": "Smaller models, and serving them",
    "doctor": "Maintenance",
}
"""The commands that begin a section of the help, and its heading."""

STOPPED = 130
"""Exit code after Ctrl-C."""
# What typer raises where a command is called in a wrong way; it offers only kinds of it under names of its own.
USAGE: Any = typer.BadParameter.__mro__[1]


def build(only: str | None = None) -> typer.Typer:
    """Return the command tree; with ``only`` one command of it, and the modules of the others are not loaded."""
    tree = typer.Typer(
        name="densing",
        help="Measure how much capability a language model packs into each parameter, how fast that improves, and how\n"
        "efficiently training turns hardware time into it.\n\n"
        "Example: densing run --out results/latest\n\n"
        "Options can also be set in densing.toml, pyproject.toml or the environment; `densing doctor` shows them.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        # Help as plain text: what draws boxes reads brackets as markup, and cuts what they have no room for.
        rich_markup_mode=None,
        cls=Group,
        # Without it lines have 48 columns at least, on whatever terminal.
        context_settings={
            # Which tables a file of settings may have, also where one command alone is loaded.
            "obj": tuple(COMMANDS),
            "help_option_names": ["-h", "--help"],
            "terminal_width": max(NARROW, min(shutil.get_terminal_size().columns, WIDE) - 2),
        },
    )
    tree.callback()(_root)
    heading = ""
    for name, target in COMMANDS.items():
        heading = HEADINGS.get(name, heading)
        if only in (None, name):
            module, attribute = target.split(":")
            command = getattr(import_module(f"densing.cli.{module}"), attribute)
            if isinstance(command, typer.Typer):
                for each in command.registered_commands:
                    each.cls = Command
                # What a group does by itself may be a command with arguments.
                leads = name in LEADERS
                tree.add_typer(command, name=name, cls=Leader if leads else Group, rich_help_panel=heading)
            else:
                tree.command(name, cls=Command, rich_help_panel=heading)(command)
    return tree


def _version(value: bool) -> None:
    if value:
        from densing import __version__

        typer.echo(__version__)
        raise typer.Exit


def _schema(value: bool) -> None:
    if value:
        from densing.cli.output import output_schema

        typer.echo(output_schema(), nl=False)
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    schema: bool = typer.Option(
        False, "--json-schema", callback=_schema, is_eager=True, help="Print the JSON Schema of what --json prints."
    ),
) -> None:
    """Options that belong to no command."""


def main() -> None:
    """Run the command line.

    What goes wrong leaves as a message on stderr and an exit code; with ``--json`` as one document on stdout, too.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its escape instead.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Before there is a command a failure answers in the form that was asked for, too.
    with suppress(ValueError):
        calls.begin("", sys.argv[1:])
    command = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in COMMANDS else None
    # Matrices are small here: more threads of numpy's BLAS took the main job's study from 52 to 92 CPU seconds and made
    # it slower. What is large is torch's, or goes on in several processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        try:
            code = build(command)(standalone_mode=False)
            if code == STOPPED:
                # What typer makes of an interrupted command.
                raise KeyboardInterrupt
        except BrokenPipeError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            code = _fail(error)
    except OSError:
        # The reader (`head`, a pager) closed the pipe, or where the answer goes is full: it must not be flushed again.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
        code = 1
    finally:
        gc.freeze()
    raise SystemExit(code)


def _fail(error: BaseException) -> int:
    """Say what went wrong, and return the exit code."""
    from densing.cli.output import emit_failure
    from densing.core import DensingError, StoppedError

    code = 1
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        error = StoppedError("stopped")
    if isinstance(error, DensingError):
        document = error.to_dict()
        code = STOPPED if isinstance(error, StoppedError) else 1
    elif isinstance(error, USAGE):
        error.message = _printable(error.message)
        document = {"kind": "UsageError", "message": error.format_message()}
        if error.ctx is not None:
            document["remedy"] = f"{error.ctx.command_path} --help"
        code = error.exit_code
    elif isinstance(error, MemoryError):
        document = {"kind": "MemoryError", "message": "not enough memory for this table; split it"}
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        document = {
            "kind": "OSError",
            "message": f"{where}cannot read or write ({error.strerror or error}); check free space and permissions",
            **({"where": str(error.filename)} if error.filename else {}),
        }
    elif os.environ.get("DENSING_DEBUG", "").lower() not in ("", "0", "false"):
        raise error
    else:
        document = {
            "kind": "InternalError",
            "message": f"internal error ({type(error).__name__}: {error}); set DENSING_DEBUG=1 for the traceback and "
            "please report it",
        }
    if isinstance(error, USAGE):
        error.show()
    else:
        typer.echo(("" if code == STOPPED else "error: ") + _printable(document["message"]), err=True)
    if any(argument == calls.FLAG or argument.startswith(f"{calls.FLAG}=") for argument in sys.argv):
        emit_failure(document, code)
    return code


def _printable(text: str) -> str:
    from densing.cli.output import visible

    return "\n".join(map(visible, text.split("\n")))


def __getattr__(name: str) -> Any:
    """Build the whole command tree when somebody asks for it; ``densing COMMAND`` loads one command only."""
    if name != "app":
        raise AttributeError(f"module 'densing.cli' has no attribute {name!r}")
    globals()["app"] = tree = build()
    return tree
