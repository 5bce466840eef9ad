"""``densing examples``: the repository's example files, whole, wherever a wheel's user works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from densing.cli import main
from tests.support.command import printed
from tests.support.folders import ROOT


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["densing", "examples", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def content(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_examples_stand_where_the_commands_of_the_readme_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch) == 0
    assert content(tmp_path / "examples") == content(ROOT / "examples")
    assert "examples/my_scores.csv" in capsys.readouterr().out.split()
    assert run(monkeypatch, "examples", "--json") == 0
    document = printed(capsys.readouterr().out)
    assert document["folder"] == "examples" and set(document["files"]) == set(content(ROOT / "examples"))


def test_a_changed_file_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.csv").write_text("mine")
    assert run(monkeypatch, str(tmp_path)) == 1
    assert f"{tmp_path / 'runs.csv'}: already exists and differs" in capsys.readouterr().err
    assert content(tmp_path) == {"runs.csv": b"mine"}


def test_a_wheel_ships_what_the_checkout_shows() -> None:
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '"examples" = "densing/_examples"' in settings
