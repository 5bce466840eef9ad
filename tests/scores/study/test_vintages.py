"""Vintages: nothing comes from later, and what is shipped is what the functions give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.plots import plot_vintages
from densing.scores.catalog import Selection, load_catalog
from densing.scores.study import half_years, shipped, shipped_backtest, shipped_vintages, vintage_sentence, vintages
from densing.scores.study.shipped import PARTS
from densing.scores.trend import ORIGINS, best_forecaster, freeze
from tests.support import report_frames as frames
from tests.support.joint_worlds import short


def test_half_years_end_with_the_newest_release() -> None:
    catalog = load_catalog()
    dates = half_years(catalog)
    assert dates == sorted(dates) and dates[-1] == catalog.models["released"].max().normalize()
    assert {(date.month, date.day) for date in dates[:-1]} == {(6, 30), (12, 31)}


def test_a_vintage_knows_nothing_of_what_came_later() -> None:
    catalog = load_catalog()
    of_all, of_part = (vintages(one, ["2024-03-31"], scale=short) for one in (catalog, freeze(catalog, "2024-06-30")))
    pd.testing.assert_frame_equal(of_all, of_part)
    assert of_all["reason"].item() == "" and of_all["lo"].item() < of_all["doubling_months"].item()
    assert of_all["n"].item() <= (catalog.models["released"] <= "2024-03-31").sum()


def test_a_date_before_any_trend_has_a_reason() -> None:
    (row,) = vintages(load_catalog(), ["2022-12-31"], scale=short).to_dict("records")
    assert row["reason"] and np.isnan(row["doubling_months"]) and pd.isna(row["n"])


def test_the_sentence_names_every_date_that_has_a_pace() -> None:
    sentence = vintage_sentence(frames.vintages())
    assert sentence.startswith("Asked at the end of June 2024 the headline would have been 3.1 months (2.2 to 6.0)")
    assert "December 2024 3.5 months" in sentence and "2023" not in sentence
    assert vintage_sentence(frames.vintages().head(2)) == vintage_sentence(pd.DataFrame()) == ""


def test_a_vintage_without_growth_stands_at_the_line_of_no_growth() -> None:
    figure = plot_vintages(frames.vintages())
    window, year = figure.data
    assert len(window.x) == len(year.x) == 2 and year.y[1] == 0.0 and year.error_y.arrayminus[0] == year.y[0]
    assert "no growth" in figure.layout.yaxis.ticktext
    assert plot_vintages(frames.vintages().head(1)).layout.annotations[0].text


def test_another_catalog_has_nothing_shipped(tmp_path: Path) -> None:
    own = load_catalog([{"model": "mine", "params": 1e9, "score": 0.5, "benchmark": "mmlu"}])
    assert shipped_vintages(own).empty and shipped_backtest(own) is None
    assert shipped_vintages(load_catalog(), tmp_path).empty and shipped_backtest(load_catalog(), tmp_path) is None


def test_other_choices_than_the_usual_have_no_shipped_back_tests() -> None:
    catalog = load_catalog()
    moe = Selection(architectures=("moe",))
    for asked in ({"seed": 1}, {"basket": "code"}, {"selection": moe}):
        assert shipped_backtest(catalog, **asked) is None
    assert shipped_backtest(catalog, selection=Selection(), basket="mean") is not None


def test_shipped_back_tests_of_another_sampler_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog()
    monkeypatch.setattr(shipped, "scale_name", lambda cells: "joint-other.npz")
    assert shipped_vintages(catalog).empty and shipped_backtest(catalog) is None


def test_what_is_shipped_is_of_this_catalog() -> None:
    """Made by `make shipped`; a change of the catalog or the sampler makes it anew."""
    catalog = load_catalog()
    table, result = shipped_vintages(catalog), shipped_backtest(catalog)
    assert len(table) and result is not None, "of another catalog or sampler: run `make shipped`, commit what it writes"
    assert table["vintage"].tolist() == half_years(catalog) and len(PARTS) == 3
    assert sorted(result.origins["origin"].dt.strftime("%Y-%m-%d")) == sorted(ORIGINS)
    choice = best_forecaster(result)
    own = result.table[result.table["origin"].eq("all")].set_index("forecaster")["crps"]
    assert choice.lowest == own.idxmin(), "the cases that are shipped give the table that is shipped"


@pytest.mark.slow
@pytest.mark.usefixtures("embedded_scale")
def test_the_last_vintage_is_todays_headline_as_shipped() -> None:
    catalog = load_catalog()
    kept = shipped_vintages(catalog)
    (again,) = vintages(catalog, [kept["vintage"].iloc[-1]]).to_dict("records")
    for name in ("doubling_months", "lo", "hi", "year_lo", "growing"):
        assert again[name] == pytest.approx(kept[name].iloc[-1], rel=0.03)
