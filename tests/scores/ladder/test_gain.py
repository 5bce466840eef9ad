"""Pairs of an arm's and plain losses: what is left out, parts, and noise."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from densing.core import InputError
from densing.scores.fit import LawFit
from densing.scores.ladder import (
    fit_loss,
    fit_shift,
    pair_noise,
    pair_table,
    simulated_ladder,
)
from densing.scores.ladder.gain import shifts_by


def law_of(losses: pd.DataFrame) -> LawFit:
    return fit_loss(losses[losses["arm"].eq("plain")])


def test_runs_without_a_partner_are_listed() -> None:
    losses = simulated_ladder(seeds=2, sizes=(1384, 3084), budgets=(1e5, 2e5))
    plain, arm = losses["arm"].eq("plain"), losses["arm"].eq("arm")
    losses = losses[~(plain & losses["seed"].eq(1) & losses["tokens"].eq(1e5))].copy()
    losses.loc[arm & losses["seed"].eq(0) & losses["tokens"].eq(2e5), "loss"] = math.nan
    pairs, unmatched = pair_table(losses, "arm")
    assert len(pairs) == 4
    assert sorted(zip(unmatched["reason"], unmatched["seed"], strict=True)) == [
        ("loss is not a positive number", 0), ("loss is not a positive number", 0), ("no run of plain", 1),
        ("no run of plain", 1),
    ]  # fmt: skip
    with pytest.raises(InputError, match="occurs twice"):
        pair_table(pd.concat([losses, losses]), "arm")


def test_parts_are_those_of_the_part_alone() -> None:
    losses = simulated_ladder(rho=0.85, seeds=3)
    law, plain, pairs = law_of(losses), losses[losses["arm"].eq("plain")], pair_table(losses, "arm")[0]
    table = shifts_by(law, plain, pairs, "tokens").set_index("value")
    alone = fit_shift(law, plain, pairs[pairs["tokens"].eq(3.07e5)])
    assert table.loc["307000.0", "density_ratio"] == pytest.approx(alone.ratio, rel=1e-4)
    assert len(table) == 4


def test_noise_of_pairs_and_of_runs_is_found_as_planted() -> None:
    planted = {"common": 0.01, "noise": 0.004, "spread": 0.03, "ripple": 0.002}
    pairs, _ = pair_table(simulated_ladder(seeds=400, **planted), "arm")
    assert pair_noise(pairs) == pytest.approx(planted, rel=0.1)
