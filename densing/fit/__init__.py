"""Laws to data: start, solve, bootstrap, diagnose."""

from densing.fit.diagnostics import bounds_table, conditioning, influence, rollout, sensitivity
from densing.fit.engine import fit_law
from densing.fit.lawfit import GUARD, LawFit
from densing.fit.losses import get_loss, loss_names
from densing.fit.two_step import compose, fit_two_step

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
