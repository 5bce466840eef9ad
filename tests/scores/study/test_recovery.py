"""A known doubling time is found again from simulated scores on the catalog's cells."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from densing.core import InputError
from densing.scores.catalog import load_catalog
from densing.scores.joint import fit_joint
from densing.scores.study import recover_trend
from densing.scores.study.recovery import LINKS


@pytest.mark.parametrize(("worlds", "months"), [(0, (4.0,)), (1, ()), (1, (0.0,)), (1, (float("nan"),))])
def test_no_world_and_no_doubling_time_are_refused(worlds: int, months: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="give one world or more, and months above zero"):
        recover_trend(load_catalog(), worlds=worlds, months=months)


@pytest.mark.parametrize("link", list(LINKS))
def test_links_rise_from_none_to_all_and_are_inverted(link: str) -> None:
    curve, inverse = LINKS[link]
    z = np.linspace(-5, 4, 50)
    share = curve(z)
    assert np.all(np.diff(share) > 0) and share[0] < 0.05 and share[-1] > 0.95
    assert inverse(share) == pytest.approx(z, abs=1e-6)
    slope = (curve(inverse(np.array([0.5])) + 1e-5) - 0.5) / 1e-5
    assert slope.item() == pytest.approx(0.25, abs=0.03), "as steep as the logistic at one half"


@pytest.mark.slow
def test_a_world_of_four_months_is_read_as_such() -> None:
    short = partial(fit_joint, chains=2, sweeps=120, burn=100, draws=200)
    steps: list[tuple[str, float]] = []
    found = recover_trend(
        load_catalog(), worlds=1, months=(4.0,), fit=short, step=lambda label, share: steps.append((label, share))
    )
    everyone = found.table.set_index("group").loc["all"]
    # Twelve worlds with the whole chain lay within .86 and 1.1; this chain is a tenth of it.
    assert 0.75 < everyone["estimate"] / everyone["known"] < 1.3
    assert everyone["lo"] < everyone["estimate"] < everyone["hi"] and everyone["densities"] > 0.7
    assert found.sentence.startswith("In 1 world unlike the model") and "where the link is logistic" in found.sentence
    assert steps[0] == ("a world of 4 months", 0.0) and all(0 <= share <= 1 for _, share in steps)
