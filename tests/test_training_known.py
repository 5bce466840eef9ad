"""Targets whose density is known beforehand, read on the fits that the package ships.

The targets were trained by ``densing ladder train --preset cpu --target longer|clean|shuffled`` and measured by ``densing
ladder eval``, as the ladder itself; none of them entered a fit.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from densing.references import ladder_data, load_reference, loss_ruler
from densing.tables import read_table
from densing.training.known import check_targets
from densing.training.measured import MEASURED
from densing.training.world import get_recipe

TARGETS = Path(__file__).parent / "data" / "densing_cpu_targets.csv"


@pytest.fixture(scope="module")
def checked() -> pd.DataFrame:
    """Return the check of every target on the ruler of the mean."""
    table = read_table(TARGETS, MEASURED, TARGETS.name)
    ruler = load_reference("densing-cpu", "mean")
    about = table.drop_duplicates("run").set_index("run")[["target", "size", "useful"]]
    points = ladder_data(table, ruler.benchmarks).held_out.rename(columns={"bits_per_byte": "loss"}).join(about, on="run")
    points["useful_ladder"] = get_recipe("standard").useful
    return check_targets(loss_ruler(ruler).fit, points, ruler.given["tokens"]).set_index(["target", "size"])


def test_targets_are_those_of_three_kinds(checked: pd.DataFrame) -> None:
    assert set(checked.index.get_level_values("target")) == {"longer", "clean", "shuffled"}


@pytest.mark.parametrize("size", ["d8", "d12", "d24"])
def test_twice_the_tokens_are_as_dense_as_the_law_says(checked: pd.DataFrame, size: str) -> None:
    row = checked.loc[("longer", size)]
    assert row["agrees"]
    assert row["density"] > 1
    # The two densities are of one size too, not only their losses.
    assert row["density_lo"] < row["density_law_hi"]
    assert row["density_law_lo"] < row["density_hi"]


@pytest.mark.parametrize("size", ["d12", "d24"])
def test_cleaner_tokens_are_as_dense_as_the_law_says(checked: pd.DataFrame, size: str) -> None:
    row = checked.loc[("clean", size)]
    assert row["agrees"]
    assert row["density_law"] > 1


def test_shuffled_answers_come_out_at_the_floor(checked: pd.DataFrame) -> None:
    for _, row in checked.loc["shuffled"].iterrows():
        assert row["agrees"]
        assert row["density_hi"] < 0.5
        # Five sets of 250 questions: a quarter, and what knowing the frequencies of answers gains.
        assert 0.2 < row["accuracy"] < 0.3
