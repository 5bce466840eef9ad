"""An estimator of the trend to copy: a row of ``ESTIMATORS`` in ``densing/scores/trend/estimators.py``."""

import numpy as np
from scipy.stats import siegelslopes

from densing.scores.trend.data import Slope
from densing.scores.trend.estimators import Estimator


def siegel(data, level=0.95, *, bootstrap=200, seed=0):
    """Return Siegel's repeated medians, with an interval from resampled families. Source: Siegel, Biometrika 1982."""
    seen = data.take(data.observed)
    families = np.unique(seen.family)
    if len(families) < 5:
        return Slope.missing(f"{len(families)} families, 5 needed", len(seen), len(families), len(data) - len(seen))
    slope, level_0 = siegelslopes(seen.log_density, seen.days)
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(bootstrap):
        rows = np.concatenate([np.flatnonzero(seen.family == name) for name in rng.choice(families, len(families))])
        drawn.append(siegelslopes(seen.log_density[rows], seen.days[rows])[0])
    lo, hi = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Slope(slope, lo, hi, level_0, len(seen), len(families), "families resampled", len(data) - len(seen))


ESTIMATOR = Estimator("siegel", siegel, "Siegel's repeated medians of all observed models (limits dropped)")
