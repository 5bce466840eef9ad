"""Help says every word of its source, at any width, and its examples are commands that can be copied."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tests.support.command import commands, densing

WIDTHS = (40, 60, 80, 200)


def squeezed(text: str) -> str:
    """Leave out what wrapping may put anywhere: spaces, and what says that a line of a command goes on."""
    return re.sub(r"\s+", "", text.replace(" \\\n", "\n"))


def parts(command: Any) -> Iterator[str]:
    """Yield every text of the source that help must say whole."""
    for paragraph in (command.help or "").split("\n\n"):
        yield paragraph.removeprefix("Example: ")
    for parameter in command.params:
        if not parameter.hidden:
            yield from (*parameter.opts, *parameter.secondary_opts) if parameter.param_type_name == "option" else ()
            yield inspect.cleandoc(parameter.help or "")
    for name, each in getattr(command, "commands", {}).items():
        yield f"{name} {each.help.split(chr(10) * 2)[0]}"


def examples(command: Any) -> list[list[str]]:
    paragraphs = (command.help or "").split("\n\n")
    return [shlex.split(each.removeprefix("Example: ")) for each in paragraphs if each.startswith("Example: ")]


def printed(text: str) -> list[list[str]]:
    """Read the examples of a help as a shell would: lines that end in a backslash go on."""
    lines = text.replace(" \\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("    densing ")]


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_says_every_word_at_any_width_and_has_an_example_to_copy(path: tuple[str, ...]) -> None:
    command = commands()[path]
    for width in WIDTHS:
        done = densing(*path, "--help", columns=width)
        assert (done.returncode, done.stderr) == (0, "")
        whole = squeezed(done.stdout)
        for part in parts(command):
            assert squeezed(part) in whole, (width, part)
        assert printed(done.stdout) == examples(command) != []
        for line in done.stdout.splitlines():
            # Longer is only what no line can hold: one word, or an option with its value; on a narrow terminal both.
            # How the program was called is one piece (here by pytest), and an example breaks before its options alone.
            words = line.replace("Usage: python -m pytest.densing", "Usage:").strip(" \\").split()
            whole_piece = line.startswith("    densing ") and width < 60
            assert len(line) <= width or len(words) <= (2 if width >= 80 else 3) or whole_piece, line


def test_brackets_are_text() -> None:
    assert "needs densing[evals])" in densing("run", "--help").stdout


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_example_is_a_call_that_the_command_understands(path: tuple[str, ...]) -> None:
    for _, *words in examples(commands()[path]):
        called: tuple[str, ...] = ()
        while (*called, *words[:1]) in commands() and words:
            called = (*called, words.pop(0))
        assert called[: len(path)] == path
        try:
            commands()[called].make_context(" ".join(called), words)
        except typer.BadParameter as error:
            # The files of an example are the reader's.
            assert "does not exist" in str(error), words
