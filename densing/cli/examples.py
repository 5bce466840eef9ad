"""``densing examples``: the small files that the README's commands read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.output import emit_plain, say
from densing.core import copy_shipped


def examples(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Destination folder; created if missing.")] = Path(
        "examples"
    ),
    json: o.JsonFlag = False,
) -> None:
    """Put the example files into a folder: tables of models and runs, traces of two ranks, a plan of an evaluation.

    The commands of README and tutorials read them from `examples`. A file that is there and differs is refused, and
    nothing is written then.

    Example: densing examples

    Example: densing examples elsewhere/densing --json
    """
    files = copy_shipped("examples", folder)
    if json:
        emit_plain({"folder": str(folder), "files": [path.relative_to(folder).as_posix() for path in files]})
    else:
        typer.echo("\n".join(map(str, files)))
        say(f"what they are: {folder / 'README.md'}")
