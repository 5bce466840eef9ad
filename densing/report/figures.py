"""The figures of the report: which they are, and the sentence that says in words what each one shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from densing.plots import (
    plot_density,
    plot_estimates,
    plot_leave_one_out,
    plot_multiverse,
    plot_permutation,
    plot_reference,
    plot_skills,
    specifications,
    text,
)
from densing.report.measured import measured_figures
from densing.report.safe import script_json

if TYPE_CHECKING:
    from densing.scores.study import Study


@dataclass(frozen=True)
class ShownFigure:
    """A figure ready for the page: id, JSON, height in pixels, caption (also its text alternative)."""

    name: str
    json: Markup
    height: int
    caption: str


def shown_figure(name: str, figure: go.Figure, caption: str) -> ShownFigure:
    """Serialise a figure for a ``<script type="application/json">`` element.

    Examples
    --------
    >>> from densing.plots import style
    >>> shown_figure("toy", style.empty("</script>"), "A toy.").json.find("</script>")
    -1
    """
    return ShownFigure(name, script_json(figure.to_json(engine="json")), int(figure.layout.height or 480), caption)


def figures(study: Study) -> dict[str, ShownFigure]:
    """Return every figure of the report by name."""
    apart = 0 if study.apart is None else len(study.apart.table)
    earned = study.backtest.beats_standing_still
    near = study.forecast if earned and len(study.forecast) else None
    drawn = {
        "density": (
            plot_density(study.density, study.trend, study.apart, near),
            density_words(study.density.table, apart, fan=near is not None),
        ),
        **_long_figure(study, earned),
        "estimates": (plot_estimates(study.trend), _estimates_words(study)),
        "reference": (plot_reference(study.reference, study.density), _reference_words(study)),
        "multiverse": (plot_multiverse(study.multiverse), multiverse_words(study.multiverse)),
        "permutation": (plot_permutation(study.trend.checks), PERMUTATION_WORDS),
        "leave-one-out": (plot_leave_one_out(study.trend.checks), LEAVE_ONE_OUT_WORDS),
        "skills": (plot_skills(study.skills), SKILLS_WORDS),
        **measured_figures(study.measured),
    }
    return {name: shown_figure(name, figure, caption) for name, (figure, caption) in drawn.items()}


PERMUTATION_WORDS = (
    "The slope found in the data (diamond) and the typical slope after shuffling the release dates of whole families "
    "(open circle, bar for 90 % of the shuffles): p is the share of shuffles that reach the slope found."
)
LEAVE_ONE_OUT_WORDS = (
    "The headline doubling time without each named group (diamond, with its interval), organisation of several "
    "families (square) and family (circle): a point far from the others names one that carries the result, an open "
    "triangle at the edge one without which nothing doubles."
)
SKILLS_WORDS = (
    "Density of the densest models skill by skill, each skill with its own symbol; open symbols are limits "
    "or values beyond the ruler's range."
)


def _long_figure(study: Study, earned: bool) -> dict[str, tuple[go.Figure, str]]:
    """The long window; its fan apart, in the section on forecasts, where back-tests came no nearer than no progress."""
    table, trend, fan = study.long_density, study.long_trend, study.long_forecast
    if table is None or trend is None:
        table, trend, fan, drawn = study.density, study.trend, study.forecast, {}
    else:
        shown = fan if earned and fan is not None and len(fan) else None
        words = density_words(table.table, 0, fan=shown is not None)
        drawn = {"long-density": (plot_density(table, trend, None, shown), words)}
    if not earned and fan is not None and len(fan):
        words = f"{density_words(table.table, 0, fan=True)} In back-tests it came no nearer than no progress at all."
        drawn["forecast"] = (plot_density(table, trend, None, fan), words)
    return drawn


def density_words(table: pd.DataFrame, apart: int, *, fan: bool = False) -> str:
    """Return what a density figure shows, for readers who cannot see it."""
    bounds = table["bound"].fillna("").astype(str) if "bound" in table else pd.Series("", table.index)
    limited = int((bounds != "").sum())
    words = (
        f"Density ρ of {text.plural(len(table), 'model')} against release date, with the frontier (steps), "
        f"the fitted line and its 95 % band{', and the forecast fan (50 % dashed, 90 % dotted)' if fan else ''}."
    )
    if limited:
        words += f" {text.plural(limited, 'model')} known only as a limit: the triangle points to the true value."
    if apart:
        words += f" {text.plural(apart, 'model')} shown apart: choose a kind in the legend to see it."
    return words


def _estimates_words(study: Study) -> str:
    head = study.trend.headline
    return (
        f"Doubling time by estimator with 95 % intervals; the headline ({text.clean(head.get('method'))}) is "
        f"the diamond at {text.doubling(head['doubling_months'], head['lo'], head['hi'])}. Open squares "
        "replicate the paper's envelope, which is biased fast. An arrow marks an unbounded end."
    )


def _reference_words(study: Study) -> str:
    ruler = study.reference
    count = len(ruler.points)
    given = ", ".join(f"{text.clean(name)} = {text.size(value)}" for name, value in ruler.given.items())
    return (
        f"The ruler {text.clean(ruler.title)}: {text.plural(count, 'point')}, the fitted "
        f"{text.clean(ruler.fit.law.name)} curve and its band{f', at {given}' if given else ''}. A model's "
        "score, read across to the curve and down, gives its effective parameters; beyond the dotted guard "
        "lines only a limit is reported."
    )


def multiverse_words(multiverse: pd.DataFrame) -> str:
    """Return the multiverse in one sentence: how many, how far apart, how many unbounded.

    Examples
    --------
    >>> multiverse_words(pd.DataFrame())
    'No specification was computed.'
    """
    rows = specifications(multiverse)
    if rows.empty:
        return "No specification was computed."
    value = rows["doubling_months"].to_numpy(float)
    quarter, median, upper = (_quantile(value, q) for q in (0.25, 0.5, 0.75))
    unbounded = int(np.isinf(pd.to_numeric(rows["hi"], errors="coerce")).sum())
    lost = len(multiverse) - len(rows)
    words = (
        f"{text.plural(len(rows), 'specification')} of ruler, benchmark, window, denominator and estimator: "
        f"median doubling time {text.months(median)} months, middle half {text.months(quarter)} to "
        f"{text.months(upper)}; "
        f"{unbounded} of the intervals have no upper end."
    )
    return words + (f" {text.plural(lost, 'specification')} could not be estimated." if lost else "")


def _quantile(values: Any, share: float) -> float:
    ordered = np.sort(values)  # inf is allowed, so no interpolation
    return float(ordered[round(share * (len(ordered) - 1))])
