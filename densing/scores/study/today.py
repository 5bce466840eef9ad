"""Density today: the catalog, the joint scale and how far it can be trusted, the trend, its questions, its forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from densing.core import Card, Readable
from densing.scores.catalog import Catalog, Selection, evaluator_table, load_recall
from densing.scores.density import catalog_densities
from densing.scores.joint import (
    Cells,
    JointScale,
    LeaveOneOut,
    Links,
    Validation,
    catalog_scale,
    evaluator_links,
    joint_cells,
    leave_one_out,
    validate,
)
from densing.scores.references import joint_ruler
from densing.scores.trend import (
    Answers,
    Outlook,
    RecallReplication,
    Rehearsal,
    TrendData,
    TrendResult,
    answer_questions,
    estimate_trend,
    forecast_now,
    rehearse_forecasts,
    replicate_recall,
)

BASKETS = ("mean", "knowledge", "reasoning", "mathematics", "code", "language", "multilingual")
SINCE = "2023-02-24"
Step = Callable[[str, float], None]


@dataclass(frozen=True, repr=False)
class Today(Readable):
    """Everything that the page on density today says.

    Parameters
    ----------
    evaluators : pandas.DataFrame
        Who measured what, see :func:`densing.scores.catalog.evaluator_table`.
    cells : Cells
    scale : JointScale
    links : Links
    left_out : LeaveOneOut
        The scale without each of the larger evaluators.
    validation : Validation
        Cells that the scale had not seen, beside its rivals.
    trends : mapping of str to TrendResult
        The doubling time on the general basket (``mean``), every skill and other languages.
    answers : Answers
    recall : RecallReplication
    rehearsal : Rehearsal
        Forecasts of the past.
    outlook : Outlook
        What the forecaster that won says of models to come.
    selection : str
        Which models the trends use, as a phrase.
    digest : str
        Of the catalog.

    See Also
    --------
    density_today
    """

    evaluators: pd.DataFrame
    cells: Cells
    scale: JointScale
    links: Links
    left_out: LeaveOneOut
    validation: Validation
    trends: Mapping[str, TrendResult]
    answers: Answers
    recall: RecallReplication
    rehearsal: Rehearsal
    outlook: Outlook
    selection: str
    digest: str

    def card(self) -> Card:
        """Return what is shown: the headline, and the doubling time of every basket."""
        facts = {name: trend.text for name, trend in self.trends.items()}
        return Card(self.trends["mean"].title, facts, self.answers.table)


def density_today(catalog: Catalog, *, seeds: Sequence[int] = (0, 1), step: Step = lambda label, share: None) -> Today:
    """Work out everything that the page on density today says; ten minutes on two cores for the embedded catalog.

    Parameters
    ----------
    catalog : Catalog
    seeds : sequence of int
        Of the validation's splits.
    step : callable
        Called with a label and the share done, for progress bars.

    Raises
    ------
    DensingError
        When the catalog has too few models for a scale, a line or a trend.

    See Also
    --------
    run_study
    """

    def within(start: float, end: float) -> Step:
        return lambda label, share: step(label, start + (end - start) * share)

    cells = joint_cells(catalog)
    scale = catalog_scale(catalog, step=within(0.0, 0.05))
    selection = Selection()
    trends = {}
    for position, basket in enumerate(BASKETS):
        step(f"trend of {basket}", 0.05 + 0.01 * position)
        densities = catalog_densities(catalog, joint_ruler(catalog, basket, scale=scale), selection=selection)
        trends[basket] = estimate_trend(TrendData.from_density(densities.headline).window(SINCE, None))
    rehearsal = rehearse_forecasts(catalog, step=within(0.85, 1.0))
    return Today(
        evaluators=evaluator_table(catalog),
        cells=cells,
        scale=scale,
        links=evaluator_links(cells),
        left_out=leave_one_out(cells, step=within(0.15, 0.4)),
        validation=validate(cells, catalog, seeds=seeds, step=within(0.4, 0.75)),
        trends=trends,
        answers=answer_questions(catalog, step=within(0.75, 0.85)),
        recall=replicate_recall(load_recall()),
        rehearsal=rehearsal,
        outlook=forecast_now(catalog, result=rehearsal),
        selection=selection.describe(),
        digest=catalog.digest,
    )
