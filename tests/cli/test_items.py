"""``densing items``: from a table of answers to a bank, its page, and a model's score."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from tests.support.command import densing


def test_from_answers_to_a_score(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ability, difficulty = np.linspace(-2, 2, 41), np.linspace(-2, 2, 40)
    answers = (rng.random((41, 40)) < expit(2 * (ability[:, None] - difficulty))).astype(int)
    table = pd.DataFrame(answers, [f"m{i}" for i in range(41)], [f"q{j}" for j in range(40)]).rename_axis("model")
    table.drop("m20").to_csv(tmp_path / "answers.csv")
    done = densing(
        "items", "calibrate", "answers.csv", "--out", "bank.json", "--licence", "CC0", "--json", cwd=tmp_path
    )
    data = json.loads(done.stdout)["data"]
    assert done.returncode == 0 and (data["name"], data["licence"], len(data["models"])) == ("bank", "CC0", 40)

    shown = densing("items", "show", "bank.json", "--html", "bank.html", "--out", "items.csv", cwd=tmp_path)
    assert shown.returncode == 0 and "Bank bank: 40 items" in shown.stdout
    assert len(pd.read_csv(tmp_path / "items.csv")) == 40
    page = (tmp_path / "bank.html").read_text(encoding="utf-8")
    assert "Bank bank: 40 items" in page and "items tell models apart" in page

    mine = table.loc["m20"].iloc[::2]
    mine.rename_axis("item").rename("answer").to_csv(tmp_path / "mine.csv")
    done = densing("items", "estimate", "mine.csv", "--bank", "bank.json", "--json", cwd=tmp_path)
    score = json.loads(done.stdout)["data"]
    assert (score["items"], score["bank_items"], score["status"]) == (20, 40, "ok")
    assert score["lo"] <= table.loc["m20"].mean() <= score["hi"]
    plain = densing("items", "estimate", "mine.csv", "--bank", "bank.json", "--no-control", cwd=tmp_path)
    assert "stratified" in plain.stdout
