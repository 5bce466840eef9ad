"""Targets whose density is known beforehand, read on the fits that the package ships.

The targets were trained by ``densing ladder train --preset cpu --target longer`` (and ``clean``, ``shuffled``) and
measured by ``densing ladder eval``, as the ladder itself; none of them entered a fit.
"""

from __future__ import annotations

import pandas as pd
import pytest

from densing.core.tables import read_table
from densing.scores.ladder.fits import MEASURED, check_targets
from densing.scores.ladder.world import get_recipe
from densing.scores.references import ladder_data, load_reference, loss_reference
from tests.support import folders

TARGETS = folders.DATA / "densing_cpu_targets.csv"
LADDER_TOKENS = 1_638_400


@pytest.fixture(scope="module")
def checked() -> pd.DataFrame:
    """Return the check of every target on the reference of the mean, by kind, size and how many times the tokens."""
    table = read_table(TARGETS, MEASURED, TARGETS.name)
    reference = load_reference("densing-cpu", "mean")
    about = table.drop_duplicates("run").set_index("run")[["target", "size", "useful"]]
    points = ladder_data(table, reference.benchmarks).held_out.rename(columns={"bits_per_byte": "loss"})
    points = points.join(about, on="run").assign(useful_ladder=get_recipe("standard").useful)
    assert reference.given["tokens"] == LADDER_TOKENS
    found = check_targets(loss_reference(reference).fit, points, LADDER_TOKENS)
    found["factor"] = (found["tokens"] / LADDER_TOKENS).astype(int)
    return found.set_index(["target", "size", "factor"]).sort_index()


# Measured 0.666 and 0.599 bits per byte where the law says at most 0.663 and 0.592.
MISSED = pytest.mark.xfail(
    reason="what more tokens give is one term for all sizes in the law, but smaller for the smallest models",
    strict=True,
)
LONGER = [("d8", 2), ("d8", 4), ("d24", 2), ("d24", 4)]
LONGER += [pytest.param("d12", factor, marks=MISSED) for factor in (2, 4)]  # type: ignore[list-item]


@pytest.mark.parametrize(("size", "factor"), LONGER)
def test_longer_targets_are_as_dense_as_the_law_says(checked: pd.DataFrame, size: str, factor: int) -> None:
    row = checked.loc[("longer", size, factor)]
    assert row["agrees"]
    # The densities agree too, not only the losses.
    assert row["density_lo"] <= row["density_law_hi"]
    assert row["density_law_lo"] <= row["density_hi"]


def test_all_longer_targets_are_denser(checked: pd.DataFrame) -> None:
    longer = checked.loc["longer"]
    assert len(longer) == 6
    assert (longer["density"] > 1).all()
    assert (longer.xs(4, level="factor")["loss"] < longer.xs(2, level="factor")["loss"]).all()


@pytest.mark.parametrize("size", ["d12", "d24"])
def test_cleaner_tokens_are_as_dense_as_the_law_says(checked: pd.DataFrame, size: str) -> None:
    row = checked.loc[("clean", size, 1)]
    assert row["agrees"]
    assert row["density_law"] > 1


@pytest.mark.parametrize("size", ["d12", "d24"])
def test_shuffled_answers_come_out_at_the_floor(checked: pd.DataFrame, size: str) -> None:
    row = checked.loc[("shuffled", size, 1)]
    assert row["agrees"]
    assert row["density_hi"] < 0.5
    # Five sets of 250 questions: a quarter, and what knowing the frequencies of answers gains.
    assert 0.2 < row["accuracy"] < 0.3
