"""``densing ladder``."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="To be written.")


@app.callback()
def _root() -> None:
    """To be written."""
