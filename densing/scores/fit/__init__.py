"""Laws to data: start, solve, bootstrap, diagnose."""

from densing.scores.fit.diagnostics import bounds_table, conditioning, influence, rollout, sensitivity
from densing.scores.fit.engine import fit_law
from densing.scores.fit.lawfit import GUARD, LawFit
from densing.scores.fit.losses import get_loss, loss_names
from densing.scores.fit.two_step import compose, fit_two_step

__all__ = [
    "GUARD",
    "LawFit",
    "bounds_table",
    "compose",
    "conditioning",
    "fit_law",
    "fit_two_step",
    "get_loss",
    "influence",
    "loss_names",
    "rollout",
    "sensitivity",
]
