"""References whose answers are known by heart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from densing.scores.fit import fit_law
from densing.scores.laws import get_law
from densing.scores.references import Reference

SIZE = np.geomspace(1e8, 1e10, 6)
POINTS = pd.DataFrame({"held_out": np.zeros(6, bool)})

FLOOR = 0.25
LOGISTIC = get_law("logistic", floor=FLOOR)
SIZES = np.array([0.5e9, 1.8e9, 4e9, 7e9, 14e9, 32e9, 72e9, 110e9])
TRUTH = np.array([0.6, 0.65, math.log(4e9)])
"""Range, slope in ln N and midpoint of the curve that members of the logistic reference lie on."""


def logistic_reference(
    score: np.ndarray, benchmark: str = "mmlu", *, draws: int = 200, seed: int = 0, score_se: float = 0.0
) -> Reference:
    """A family of eight sizes with these scores, fitted as the shipped one-step references are."""
    fit = fit_law(LOGISTIC, {"params": SIZES}, score, bootstrap=draws, scheme="parametric", seed=seed)
    members = {"model": [f"member {size:g}" for size in SIZES], "params": SIZES, "score": score}
    points = pd.DataFrame({**members, "score_se": score_se, "held_out": False})
    return Reference("toy", "Toy family", benchmark, (benchmark,), "toy", fit, points)


def power_reference(tasks: Sequence[str] = ("a",), alpha: float = 0.3) -> Reference:
    """L = (1e9 / N)^alpha: loss 1 at a billion parameters, no uncertainty of its own."""
    fit = fit_law("power", {"params": SIZE}, (1e9 / SIZE) ** alpha, bootstrap=0)
    return Reference("test", "Test", "mean", tuple(tasks), "us", fit, POINTS)
