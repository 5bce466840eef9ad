"""The command line from its entry point: its streams and its exit code.

In this process, where what commands load is loaded already; that a process of its own does the same is tested where it
matters: signals, pipes, start-up.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest import mock

import typer

from densing.cli import build, main
from densing.cli.output import output_schema


@cache
def commands() -> dict[tuple[str, ...], Any]:
    """Return every command and group of commands by the words that call it."""

    def walk(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield path, command
        for name, each in getattr(command, "commands", {}).items():
            yield from walk((*path, name), each)

    return dict(walk((), typer.main.get_command(build())))


def single_commands() -> list[tuple[str, ...]]:
    """Return the words of every command that is no mere group of others."""
    return [
        path
        for path, each in commands().items()
        if not hasattr(each, "commands") or any("--json" in parameter.opts for parameter in each.params)
    ]


def densing(*arguments: object, cwd: Path | None = None, columns: int = 200) -> CompletedProcess[str]:
    """Run the command."""
    command = ["densing", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", command),
        # What this process holds outlives the command.
        mock.patch.object(gc, "freeze"),
        mock.patch.dict(os.environ, {"NO_COLOR": "1", "COLUMNS": str(columns)}),
        warnings.catch_warnings(),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.resetwarnings()
        try:
            main()
        except SystemExit as end:
            code = end.code
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))  # type: ignore[attr-defined]
    return CompletedProcess(command, int(code or 0), *texts)


@cache
def schema() -> Any:
    """Return what checks a printed document against the shipped schema."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(output_schema()))


def printed(text: str) -> Any:
    """Return the answer in what a command printed with ``--json``, its notes with it, or what went wrong.

    The document is checked against the schema: each test that reads one is a test of that, too.
    """
    document = json.loads(text)
    schema().validate(document)
    if "error" in document:
        return {"error": document["error"], "exit_code": document["exit_code"]}
    data = document["data"]
    return {**data, "notes": document["notes"]} if isinstance(data, dict) else data


def answer(*arguments: object, cwd: Path | None = None) -> Any:
    """Return what the command prints with ``--json``."""
    done = densing(*arguments, "--json", cwd=cwd)
    assert done.returncode in (0, 3), done.stderr
    return printed(done.stdout)
