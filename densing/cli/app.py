"""The command tree, and how errors leave the program."""

from __future__ import annotations

import io
import os
import sys

import typer

from densing.cli import catalog, density, doctor, eval, fit, ladder, refs, report, results, run, trend

app = typer.Typer(
    name="densing",
    help="Measure how much capability a language model packs into each parameter, and how fast that improves.\n\n"
    "Example: densing run --out results/latest",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("fit")(fit.fit)
app.command("density")(density.density)
app.command("trend")(trend.trend)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.add_typer(catalog.app, name="catalog")
app.add_typer(refs.app, name="refs")
app.command("eval")(eval.eval_)
app.add_typer(results.app, name="results")
app.add_typer(ladder.app, name="ladder")


def _version(value: bool) -> None:
    if value:
        from densing import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that belong to no command."""


def main() -> None:
    """Run the command line; user errors become one message and exit code 1."""
    from densing.errors import DensingError

    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its escape instead.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
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


def _fail(message: str) -> None:
    from densing.cli.table import visible

    typer.echo("error: " + "\n".join(map(visible, message.split("\n"))), err=True)
    raise SystemExit(1)
