"""Whether the pace changed: what the answer states about its own power, beside the normal approximation by hand."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from densing.scores.trend.data import TrendData
from densing.scores.trend.periods import PARTED, answer_pace, pace_change, tobit_slope


def noisy(slope: float, scatter: float, seed: int) -> TrendData:
    """Thirty families of four models at one pace."""
    rng = np.random.default_rng(seed)
    days = np.sort(rng.uniform(0, 1100, 120))
    family = np.repeat([f"f{i}" for i in range(30)], 4)
    levels = np.repeat(rng.normal(0, scatter, 30), 4)
    released = pd.Timestamp("2023-02-24") + pd.to_timedelta(days.round(), unit="D")
    names = [f"m{i}" for i in range(120)]
    return TrendData.from_arrays(names, family, released, slope * days + levels + rng.normal(0, 0.2, 120))


def test_the_stated_power_is_that_for_a_stop_and_for_half_of_the_earlier_pace() -> None:
    data = noisy(0.004, 0.4, 3)
    stated = re.search(r"a full stop of the earlier pace would be in (\d+) %, a halving in (\d+) %",
                       answer_pace(data, seed=1).caveats[0])  # fmt: skip
    assert stated is not None
    late = data.released >= np.datetime64(PARTED, "ns")
    pace = tobit_slope(data.take(~late), 0.95, seed=1).slope * 365.25
    change = pace_change(data, seed=1)
    limit = max(float(np.quantile(change.reference, 0.95)), norm.ppf(0.975))
    expected = [
        100 * (norm.sf(limit - lost / change.error) + norm.cdf(-limit - lost / change.error))
        for lost in (pace, pace / 2)
    ]
    assert [int(part) for part in stated.groups()] == pytest.approx(expected, abs=0.6)
    assert 60 > expected[1] > 5 and expected[0] > expected[1] + 20


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("within", [True, False])
def test_a_change_of_pace_is_the_difference_of_two_slopes_by_least_squares(joined: bool, within: bool) -> None:
    data = noisy(0.004, 0.4, 5)
    maker = np.array([f"o{i % 5}" for i in range(len(data))])
    data = data.replace(organisation=maker)
    years = (data.released - np.datetime64(PARTED, "ns")) / np.timedelta64(1, "D") / 365.25
    columns = [years * (years >= 0), years * (years < 0)]
    columns += [] if joined else [1.0 * (years >= 0)]
    columns += [1.0 * (maker == name) for name in sorted(set(maker))] if within else [np.ones(len(data))]
    beta, *_ = np.linalg.lstsq(np.column_stack(columns), data.log_density, rcond=None)
    change = pace_change(data, within=within, joined=joined)
    assert change.estimate == pytest.approx(beta[0] - beta[1], abs=1e-6)
