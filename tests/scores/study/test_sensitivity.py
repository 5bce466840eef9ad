"""The strip of other choices: every row is what its choice alone gives, estimated apart."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core import FitError
from densing.scores.density import DensityResult
from densing.scores.density.abilities import joint_densities
from densing.scores.references import joint_reference, load_reference
from densing.scores.study import alternatives, sensitivity
from densing.scores.trend import ESTIMATORS, LINE, Slope, TrendData, fit_pace
from tests.support.planted_scale import planted_catalog, planted_scale

WINDOW = ("2023-02-24", None)
CHOICES = {
    "the headline": {},
    "range 23.3 M to 218 B": {"reach": "members"},
    "range 494 M to 72.7 B": {"guard": 1.0},
    "slope since 2024": {"slope": "random"},
    "range 494 M to 72.7 B, slope since 2024": {"guard": 1.0, "slope": "random"},
}
ENDS = ["doubling_months", "lo", "hi"]


@cache
def read(guard: float = 3.0, seed: int = 0, **options: str) -> DensityResult:
    catalog = planted_catalog()
    scale, _ = planted_scale(seed, steeper=1.5)
    return joint_densities(catalog, joint_reference(catalog, scale=scale, **options), guard=guard)


def line(data: TrendData) -> tuple[Slope]:
    return (LINE.fit(data),)


def ends(result: DensityResult) -> list[float]:
    (slope,) = line(TrendData.from_density(result.headline).ordered())
    return [slope.doubling_months, *slope.doubling_interval]


def test_rows_are_what_their_choice_alone_gives() -> None:
    table = sensitivity(planted_catalog(), read(), window=WINDOW, estimate=line).set_index("choice")
    for choice, options in CHOICES.items():
        assert table.loc[choice, ENDS].tolist() == pytest.approx(ends(read(**options)), rel=1e-9)
    assert table["doubling_months"].nunique() == len(table)
    everyone = read()
    rows = everyone.table
    late = rows["released"] >= rows["released"].min() + pd.DateOffset(months=6)
    later = everyone.subset(late.to_numpy())
    assert table.loc["without the first six months", ENDS].tolist() == pytest.approx(ends(later), rel=1e-9)
    assert table.loc["without the first six months", "n"] == len(later) < table.loc["the headline", "n"]
    whole = everyone.subset(rows["traits"].eq(4).to_numpy())
    assert table.loc["measured on all 4 skills", ENDS].tolist() == pytest.approx(ends(whole), rel=1e-9)
    assert table["headline"].tolist() == [True, *[False] * (len(table) - 1)]


def test_a_window_holds_for_every_row() -> None:
    table = sensitivity(planted_catalog(), read(), window=("2023-02-24", "2024-12-31"), estimate=line)
    assert len(table) >= len(CHOICES) and (table["last"] <= "2024-12-31").all()


def test_the_usual_estimate_is_both_means_of_the_pace() -> None:
    data = TrendData.from_density(read().headline).ordered()
    fit = fit_pace(data, seed=4)
    assert alternatives._both_means(data, 4) == (fit.window, fit.last_year)
    few = data.take(np.flatnonzero(data.observed)[:40:10])
    with pytest.raises(FitError):
        fit_pace(few)
    assert alternatives._both_means(few, 4) == (LINE.fit(few, seed=4),)


def test_a_second_slope_is_that_of_the_last_twelve_months() -> None:
    other = ESTIMATORS["ols-crv3"]
    table = sensitivity(
        planted_catalog(), read(), window=WINDOW, estimate=lambda data: (LINE.fit(data), other.fit(data))
    )
    slope = other.fit(TrendData.from_density(read().headline).ordered())
    first = table.iloc[0]
    assert first["year_months"] == pytest.approx(slope.doubling_months)
    assert (first["year_lo"], first["year_hi"]) == pytest.approx(slope.doubling_interval)
    alone = sensitivity(planted_catalog(), read(), window=WINDOW, estimate=line)
    assert alone["year_months"].isna().all()


def test_makers_own_scores_are_another_scale_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    another, _ = planted_scale(7, steeper=1.5)
    monkeypatch.setattr(alternatives, "catalog_scale", lambda catalog, **options: another)
    table = sensitivity(planted_catalog(), read(), window=WINDOW, estimate=line, refit=True).set_index("choice")
    assert table.loc["makers' own scores in", ENDS].tolist() == pytest.approx(ends(read(seed=7)), rel=1e-9)
    usual = sensitivity(planted_catalog(), read(), window=WINDOW, estimate=line)
    assert "makers' own scores in" not in set(usual["choice"])


def test_rows_of_the_usual_estimate_are_kept_as_they_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSING_CACHE", str(tmp_path))
    monkeypatch.setattr(alternatives, "_both_means", lambda data, seed: line(data))
    made, kept = (sensitivity(planted_catalog(), read(), window=WINDOW, keep=True) for _ in range(2))
    pd.testing.assert_frame_equal(made, kept)
    sensitivity(planted_catalog(), read(), window=WINDOW, estimate=line, keep=True)
    assert len(list((tmp_path / "results").iterdir())) == 1, "an estimate of one's own has no name to keep it under"


def test_choices_that_cannot_be_estimated_have_no_row() -> None:
    def picky(data: TrendData) -> tuple[Slope]:
        if len(data) < len(read().headline):
            raise FitError("too few models")
        return line(data)

    table = sensitivity(planted_catalog(), read(), window=WINDOW, estimate=picky)
    assert "without the first six months" not in set(table["choice"]) and len(table) >= len(CHOICES)


def test_a_reference_of_one_family_has_no_strip() -> None:
    result = read()
    foreign = DensityResult(**{**vars(result), "reference": load_reference("qwen1.5", "mmlu")})
    table = sensitivity(planted_catalog(), foreign, window=WINDOW, estimate=line)
    assert table.empty and list(table.columns) == alternatives.SENSITIVITY_COLUMNS
