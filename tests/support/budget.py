"""How long simulations of coverage may take: minutes in CI, hours in ``make coverage``."""

from __future__ import annotations

import os

from scipy import stats

FULL = os.environ.get("DENSING_COVERAGE_BUDGET") == "full"


def may_be(share: float, worlds: int, level: float = 0.998) -> tuple[float, float]:
    """Return the ends of the shares that a share seen in some worlds agrees with: Clopper and Pearson's interval."""
    low, high = stats.binomtest(round(share * worlds), worlds).proportion_ci(level)
    return float(low), float(high)
