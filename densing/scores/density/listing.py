"""How a table of densities is shown: its columns, on a terminal, in a notebook and on a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from densing.core import Field, Listing, column, formatting, numeric, ranged

ENDS = {"upper": "hi", "lower": "lo"}


def limited(name: str, show: Callable[[Any], str] = formatting.number) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows a figure; of one that is only a limit, the end of its interval.

    The point beside a limit is where the reference was left; the interval's end holds the reference's error too.

    Examples
    --------
    >>> row = {"density": 1.2, "density_lo": 0.0, "density_hi": 1.3, "bound": "upper"}
    >>> limited("density")(row), limited("density")({**row, "bound": ""})
    ('≤ 1.3', '1.2')
    """

    def shown(row: Mapping[str, Any]) -> str:
        value, bound = row.get(name), row.get("bound")
        end: Any = row.get(f"{name}_{ENDS.get(str(bound), '')}")
        known = not formatting.is_missing(end) and 0 < end < math.inf
        return (
            formatting.MISSING
            if formatting.is_missing(value)
            else f"{formatting.sign(bound)}{show(end if known else value)}"
        )

    return shown


DENSITY = Field("Density", limited("density"), "density", hint="Effective over actual parameters")
INTERVAL = Field(
    "Interval",
    ranged("density", formatting.number),
    "density_lo",
    hint="95 %, measured: the model's ability and the reference",
)
RECIPE = Field(
    "Recipe",
    ranged("density", formatting.number, "recipe"),
    "density_lo_recipe",
    hint="95 %, where another model of the same recipe may lie: with model-to-model scatter",
    minor=True,
    optional=True,
)
STATUS = Field("Status", lambda row: formatting.short_status(row.get("status"), row.get("bound")))
SIZE = numeric("Size", "n_params", formatting.size, hint="Parameters that divide")
EFFECTIVE = Field("Effective size", limited("n_eff", formatting.size), "n_eff")
SCORE = Field("Score", lambda row: formatting.with_error(row.get("score"), row.get("score_se")), "score")
RELEASED = numeric("Released", "released", formatting.day)
PROTOCOL = Field("Protocol", column("protocol"), hint="Whether it was measured as the reference was", optional=True)
_BEHIND = (
    Field("Known as", column("known_as"), hint="Its name in the catalog", optional=True),
    RECIPE,
    Field("Intervals", column("interval"), hint="What they hold", minor=True, optional=True),
)
MODELS = (
    Field("Model", column("model")),
    DENSITY,
    INTERVAL,
    STATUS,
    PROTOCOL,
    SIZE,
    EFFECTIVE,
    SCORE,
    RELEASED,
    *_BEHIND,
    Field("Group", column("stratum"), minor=True),
    Field("Family", column("family"), minor=True),
    Field("Size from", column("params_basis"), hint="A count, the label in the name, or recalled", minor=True),
    Field("Source", column("source"), minor=True),
)
"""A row per model."""
MEASURED = (
    Field("Model", column("model")),
    Field("Task", column("benchmark")),
    Field("Read by", lambda row: "loss" if row.get("quantity") == "loss" else "accuracy"),
    Field("Value", SCORE.show, "score", hint="Loss in bits per byte, or share correct"),
    DENSITY,
    INTERVAL,
    PROTOCOL,
    STATUS,
    EFFECTIVE,
    numeric("Items", "n_items", formatting.count, optional=True),
    *_BEHIND,
    numeric("Size", "n_params", formatting.size, minor=True),
    Field("Size from", column("size_from"), minor=True, optional=True),
    Field("Counted", column("denominator"), hint="Which parameters count", minor=True, optional=True),
)
"""A row per model, task and quantity."""
CHECKPOINTS = (
    Field("Run", column("run")),
    numeric("Step", "step", formatting.count),
    DENSITY,
    INTERVAL,
    STATUS,
    Field("Read on", column("benchmark")),
    Field("Model", column("model"), minor=True),
)
"""A row per checkpoint, of :func:`densing.scores.density.densities_by_step`."""
SKILLS = (
    Field("Model", column("model")),
    Field("Skill", column("skill")),
    DENSITY,
    INTERVAL,
    EFFECTIVE,
    STATUS,
    Field("Benchmarks", column("benchmarks"), optional=True),
)
"""A row per model and skill, of :func:`densing.scores.density.skill_table`."""


def density_listing(table: pd.DataFrame, title: str = "Every model.") -> Listing:
    """Return a table of densities, of whichever kind, as people read it.

    Parameters
    ----------
    table : pandas.DataFrame
        Of models (:class:`DensityResult`), of measured models (:class:`RunDensities`), of checkpoints, or of skills.
    title : str

    Examples
    --------
    >>> row = {"model": "mine", "density": 1.0, "density_lo": 0.8, "density_hi": 1.2, "status": "ok", "bound": ""}
    >>> density_listing(pd.DataFrame([row])).cells()[0][:4]
    ['mine', '1.0', '0.80 to 1.2', 'in range']
    """
    kinds = {"step": CHECKPOINTS, "skill": SKILLS, "quantity": MEASURED}
    return Listing(title, table, next((fields for name, fields in kinds.items() if name in table), MODELS))
