"""Groups of options: one flat command for typer, objects for the function."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from densing.cli.grouped import given, grouped


@dataclass(frozen=True)
class Size:
    """A group with an option that must be given, and a field that is none."""

    width: Annotated[int, typer.Option("--width")]
    height: Annotated[int, typer.Option("--height", "-y")] = 1
    mode: Annotated[str, typer.Option("--mode")] = "plain"
    tags: Annotated[list[str], typer.Option("--tag")] = field(default_factory=list)
    quiet: bool = False


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@grouped("width color", "tags fill height")
def draw(
    size: Size,
    color: Annotated[str, typer.Option("--color")] = "red",
    fill: Annotated[bool, typer.Option("--fill")] = False,
) -> None:
    """Draw."""
    typer.echo(f"{size} {color} {fill}")


def test_options_are_listed_in_order_and_arrive_in_their_group() -> None:
    assert list(signature(draw).parameters) == ["width", "color", "mode", "tags", "fill", "height"]
    found = CliRunner().invoke(app, ["--height", "3", "--width", "2", "--tag", "a", "--fill"]).output
    assert found == "Size(width=2, height=3, mode='plain', tags=['a'], quiet=False) red True\n"
    alone = CliRunner().invoke(app, ["--width", "2"]).output
    assert "tags=[], quiet=False) red False" in alone


def test_an_option_without_a_default_is_required() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 2 and "Missing option '--width'" in done.output


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (Size(2), []),
        (Size(2, height=3), ["--height"]),
        (Size(2, height=0), ["--height"]),
        (Size(2, mode=""), ["--mode"]),
        (Size(2, 1, "plain"), []),
    ],
)
def test_what_is_given_differs_from_the_default(size: Size, names: list[str]) -> None:
    assert given(size) == names
