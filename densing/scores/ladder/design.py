"""Design of a ladder: how wide the interval of a ratio will be, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from densing.scores.ladder.arms import PLAIN
from densing.scores.ladder.gain import pair_table, simulated_ladder
from densing.scores.ladder.shift import Joint, Noise
from densing.scores.laws import get_law


def expected_half_width(
    theta: Mapping[str, float],
    noise: Mapping[str, float],
    *,
    sizes: Sequence[float],
    budgets: Sequence[float],
    seeds: int,
    ratio: float = 1.0,
    level: float = 0.95,
) -> float:
    """Return the half-width that the interval of ln token ratio will have: t sqrt(E V), as :func:`fit_shift` makes it.

    V is the jackknife's variance of ln ratio, its mean and its degrees of freedom those of a ladder whose law and noise
    are known.

    Source: degrees of freedom as for :func:`fit_shift`.

    Parameters
    ----------
    theta : mapping of str to float
        Parameters of Chinchilla's law.
    noise : mapping of str to float
        ``common, noise, spread, ripple`` of :func:`pair_noise`, sd of ln losses.
    sizes : sequence of float
        Non-embedding parameters.
    budgets : sequence of float
        Tokens.
    seeds : int
    ratio : float
        Token ratio of the arm.
    level : float

    Examples
    --------
    >>> law = {"E": 1.4, "A": 12.0, "B": 350.0, "alpha": 0.4, "beta": 0.48}
    >>> noise = {"common": 0.01, "noise": 0.01, "spread": 0.02, "ripple": 0.005}
    >>> ladder = {"sizes": (1384, 3084, 5456, 12216), "budgets": (3.07e5, 5.38e5, 9.47e5, 1.64e6)}
    >>> [round(expected_half_width(law, noise, **ladder, seeds=seeds), 2) for seeds in (3, 12)]
    [0.06, 0.03]
    """
    quiet = dict.fromkeys(("noise", "common", "spread"), 0.0)
    losses = simulated_ladder(tau=ratio, theta=theta, sizes=sizes, budgets=budgets, seeds=seeds, **quiet)  # type: ignore[arg-type]
    law = get_law("chinchilla")
    plain = losses[losses["arm"].eq(PLAIN)]
    values = np.array([theta[name] for name in law.parameters])
    joint = Joint(law, values, plain, pair_table(losses, "arm")[0], "tokens")
    joint.beta[-1] = math.log(ratio)
    shared, own = (
        np.full((2, 2), noise[both] ** 2) + np.diag([0.0, noise[arm] ** 2])
        for both, arm in (("spread", "common"), ("ripple", "noise"))
    )
    joint.whiten(Noise(shared, own, 0.0))
    slopes = joint.white @ joint.curve(joint.beta)[1]
    sure = joint.robust(slopes, np.zeros(len(slopes)), np.eye(len(joint.beta))[-1:])
    return joint.quantile(level, sure.freedom) * math.sqrt(sure.expected[0, 0])
