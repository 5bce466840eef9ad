"""Trend data: what becomes a bound, what is left out, what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import InputError, TableError
from densing.scores.trend import TrendData
from densing.scores.trend.coverage import Scenario, simulate
from tests.support.frozen import changeable

ROWS = pd.DataFrame(
    {
        "model": ["a", "b", "c"],
        "family": ["f", "g", "g"],
        "released": ["2023-02-24", "2024-02-24", "2023-03-06"],
        "log_density": [-1.0, 0.5, 0.0],
    }
)


def density_result() -> SimpleNamespace:
    table = pd.DataFrame(
        {
            "model": list("abcdefg"),
            "family": ["f", "f", "g", "g", None, "h", "h"],
            "released": pd.to_datetime(["2023-03-01"] * 5 + [None, "2023-05-01"]),
            # Of a bound the limit counts, whatever density stands beside it, or none.
            "density": [0.5, np.nan, np.nan, 2.0, 0.2, 1.0, np.nan],
            "status": ["ok", "below_floor", "above_ceiling", "extrapolated", "extrapolated", "ok", "ok"],
            "bound": ["", "upper", "lower", "lower", "upper", "", ""],
        }
    )
    limits = np.log(np.column_stack([np.full(7, 0.1), np.full(7, 2.0)]))
    draws = np.log(np.tile(np.full(7, 0.5), (4, 1)))
    return SimpleNamespace(table=table, draws=draws, law_draws=draws, log_limits=limits)


def test_bounds_become_censored_rows_at_the_references_limits() -> None:
    data = TrendData.from_density(density_result())
    assert data.model.tolist() == list("abcde")
    assert data.censor.tolist() == [0, -1, 1, 1, -1]
    np.testing.assert_allclose(np.exp(data.log_density), [0.5, 0.1, 2.0, 2.0, 0.1])
    assert data.law_draws is not None and data.law_draws.shape == (4, 5)
    assert data.family.tolist() == ["f", "f", "g", "g", "e"]


def test_undated_and_empty_rows_are_named_in_a_note() -> None:
    (note,) = TrendData.from_density(density_result()).notes
    assert note.details["models"] == ["f", "g"]
    assert note.message == "not part of the trend, because without a date or a density: f, g"


def test_days_count_from_llama_1_whatever_the_datetime_unit() -> None:
    for unit in ("s", "us", "ns"):
        frame = ROWS.assign(released=pd.to_datetime(ROWS["released"]).dt.as_unit(unit))
        data = TrendData.from_frame(frame)
        assert data.days.tolist() == [0.0, 365.0, 10.0]
        assert data.released.dtype == "datetime64[ns]"


def test_window_keeps_both_ends() -> None:
    data = TrendData.from_frame(ROWS)
    assert data.window("2023-02-24", "2023-03-06").model.tolist() == ["a", "c"]
    assert data.window().model.tolist() == ["a", "b", "c"]


def test_take_cuts_draws_with_the_rows() -> None:
    data = simulate(Scenario(n=20, families=5, law_sd=0.1, law_draws=7), 0)
    part = data.take(np.array([3, 1]))
    assert part.law_draws is not None and data.law_draws is not None
    np.testing.assert_array_equal(part.law_draws, data.law_draws[:, [3, 1]])
    np.testing.assert_array_equal(part.limits, data.limits[[3, 1]])


def test_limits_without_a_reference_are_the_bounds_themselves() -> None:
    data = TrendData.from_frame(ROWS.assign(censor=[-1, 1, 0]))
    assert data.limits.tolist() == [[-1.0, np.inf], [-np.inf, 0.5], [-np.inf, np.inf]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"released": ["2023-02-24", "soon", "2023-03-06"]}, "row 1, column released: 'soon' is not a date"),
        ({"log_density": [0.0, np.inf, 1.0]}, "row 1, column log_density"),
        ({"censor": [0, 2, 0]}, "row 1, column censor: 2 is not -1, 0 or 1"),
    ],
)
def test_unusable_cells_are_named(change: dict[str, list[object]], says: str) -> None:
    with pytest.raises(TableError, match=says.split(":")[0]) as caught:
        TrendData.from_frame(ROWS.assign(**change))
    assert says in str(caught.value)


def test_missing_columns_are_named() -> None:
    with pytest.raises(TableError, match="column family is missing"):
        TrendData.from_frame(ROWS.drop(columns="family"))


def test_unknown_cluster_is_refused() -> None:
    with pytest.raises(InputError, match="choose 'family', 'organisation' or 'model'"):
        TrendData.from_frame(ROWS).clusters("vendor")


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.scores.trend") == set()
