"""``densing forecast`` on a fresh machine: what is shipped answers the usual question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from densing.cli import app
from densing.scores.joint import scale


class Fitted(Exception):
    """Raised where a joint scale would be fitted."""


def test_the_usual_forecast_fits_nothing_and_keeps_the_notes_of_its_back_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise Fitted

    monkeypatch.setenv("DENSING_CACHE", str(tmp_path))
    monkeypatch.setattr(scale, "_FITTED", {})
    monkeypatch.setattr(scale, "fit_joint", fit)
    runner = CliRunner()
    done = runner.invoke(app, ["forecast", "show", "--json"])
    assert done.exit_code == 0 and not list(tmp_path.iterdir()), done.output
    codes = {note["code"] for note in json.loads(done.stdout)["notes"]}
    assert {"few-families", "unlinked"} <= codes
    # Other choices have back-tests of their own.
    assert isinstance(runner.invoke(app, ["forecast", "show", "--json", "--seed", "1"]).exception, Fitted)
