"""Pages of results name the command that wrote them, and there is such a command with such options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from densing.cli import app
from tests.support.folders import ROOT

PAGES = sorted(page for page in (ROOT / "docs" / "results").glob("*.md") if page.stem != "index")
PROGRAM: Any = typer.main.get_command(app)


def options(command: str) -> set[str]:
    """Return the options that a command knows; a script's are read in its text."""
    program, *rest = command.split()
    if program == "python":
        script = f"{rest[1].replace('.', '/')}/__main__.py" if rest[0] == "-m" else rest[0]
        return set(re.findall(r"\"(--[a-z-]+)\"", (ROOT / script).read_text("utf-8")))
    known = PROGRAM
    for name in rest:
        if name not in getattr(known, "commands", {}):
            break
        known = known.commands[name]
    assert known is not PROGRAM, f"no such command: {command}"
    return {option for parameter in known.params for option in parameter.opts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_results_names_a_command_that_exists(page: Path) -> None:
    head = page.read_text("utf-8").partition("\n## ")[0]
    written = re.findall(r"[Ww]ritten by `((?:densing|python (?:-m benchmarks\.\w+|benchmarks/\w+\.py))[^`]*)`", head)
    assert len(written) == 1
    assert set(re.findall(r"--[a-z-]+", written[0])) <= options(written[0])
