"""Result in, plotly Figure out; nothing here shows a figure or computes a statistic."""

from densing.plots.checks import plot_leave_one_out, plot_permutation
from densing.plots.density import plot_density
from densing.plots.estimates import plot_estimates
from densing.plots.multiverse import plot_multiverse
from densing.plots.reference import plot_reference
from densing.plots.skills import plot_skills

__all__ = [
    "plot_density",
    "plot_estimates",
    "plot_leave_one_out",
    "plot_multiverse",
    "plot_permutation",
    "plot_reference",
    "plot_skills",
]
