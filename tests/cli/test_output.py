"""How commands speak: notes and bars, of which names from data are text."""

from __future__ import annotations

import pytest

from densing.cli.output import show_notes, timed_bar
from densing.core.notes import Note, severest_first, worst

HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/] \u202ertl \x9b1m\rover\nerror: forged \x07<b>"


def test_notes_come_severest_first_once_and_not_by_the_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [
        *(Note("told", "info", f"rank {rank} is fine") for rank in range(50)),
        Note("named", "warning", "odd name\nerror: forged " + "x" * 5000 + " its end"),
        Note("lost", "error", "rank 7 is lost"),
        Note("lost", "error", "rank 7 is lost"),
    ]
    assert [note.severity for note in severest_first(notes)[:3]] == ["error", "error", "warning"]
    assert worst(notes) == "error" and worst([]) is None
    show_notes(notes, most=4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: rank 7 is lost" and lines[1] == "warning: odd name"
    assert lines[2].startswith("  error: forged") and lines[2].endswith("its end") and len(lines[2]) < 700
    assert lines[3:] == ["info: rank 0 is fine", "info: rank 1 is fine", "... and 48 more notes; all of them: --json"]


def test_the_name_beside_the_bar_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from densing.cli import output

    drawn: list[str] = []
    monkeypatch.setattr(output, "_terminal", lambda: True)
    monkeypatch.setattr("rich.progress.Progress.add_task", lambda bar, label, **more: drawn.append(label))
    monkeypatch.setattr(
        "rich.progress.Progress.update", lambda bar, task, description, **more: drawn.append(description)
    )
    with timed_bar(False, HOSTILE) as show:
        show("n" * 5000, 1.0, 2.0)
    assert drawn[0].startswith("\\x1b[31mred") and len(drawn[1]) <= 60
