"""Density today: the catalog, the joint scale and how far it can be trusted, the trend, its questions, its forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from densing.core import Card, InputError, Note, Readable, cached, once
from densing.scores.catalog import Catalog, Selection, evaluator_table, load_recall
from densing.scores.density import catalog_densities
from densing.scores.joint import (
    SPLITS,
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
from densing.scores.references import joint_reference
from densing.scores.study.alternatives import SENSITIVITY_COLUMNS, sensitivity
from densing.scores.study.recovery import Recovery, recover_trend
from densing.scores.study.shipped import shipped_vintages
from densing.scores.trend import (
    Answers,
    ForecastBacktest,
    Outlook,
    RecallReplication,
    TrendData,
    TrendResult,
    answer_questions,
    answers_listing,
    backtest_forecasts,
    estimate_trend,
    forecast_now,
    replicate_recall,
)

WORLDS = 6
BASKETS = ("mean", "knowledge", "reasoning", "mathematics", "code", "language", "multilingual")
SINCE = "2023-02-24"
Step = Callable[[str, float], None]


@dataclass(frozen=True, repr=False)
class Today(Readable):
    """All content of the page on density today.

    Parameters
    ----------
    evaluators : pandas.DataFrame
        What each evaluator measured, see :func:`densing.scores.catalog.evaluator_table`.
    cells : Cells
    scale : JointScale
    links : Links
    left_out : LeaveOneOut
        The scale without each of the larger evaluators.
    validation : Validation
        Prediction of held-out cells, compared with rival scales.
    recovery : Recovery
        Recovery of a known doubling time from scores simulated with the catalog's gaps.
    trends : mapping of str to TrendResult
        The doubling time on the general basket (``mean``), every skill and other languages.
    sensitivity, counted : pandas.DataFrame
        The headline under other choices, and the table of its own models.
    vintages : pandas.DataFrame
        The headline at earlier dates; empty for another catalog than the embedded one.
    answers : Answers
    recall : RecallReplication
    backtest : ForecastBacktest
        Forecasts of the past.
    outlook : Outlook
        The winning forecaster's forecast of models to come.
    selection : str
        Models of the trends, as a phrase.
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
    recovery: Recovery
    trends: Mapping[str, TrendResult]
    sensitivity: pd.DataFrame
    counted: pd.DataFrame
    vintages: pd.DataFrame
    answers: Answers
    recall: RecallReplication
    backtest: ForecastBacktest
    outlook: Outlook
    selection: str
    digest: str

    def card(self) -> Card:
        """Return the card: the headline, and the doubling time of every basket."""
        facts = {name: trend.text for name, trend in self.trends.items()}
        return Card(self.trends["mean"].title, facts, answers_listing(self.answers.table))


def density_today(catalog: Catalog, *, seeds: Sequence[int] = (0, 1), step: Step = lambda label, share: None) -> Today:
    """Compute the page on density today; half an hour on two cores for the embedded catalog.

    Fits of frozen catalogs, refits without an evaluator, every split of the validation and the simulated worlds are
    cached as soon as they exist: an interrupted run resumes where it stopped.

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
    trends, sensitive, counted = {}, pd.DataFrame(columns=SENSITIVITY_COLUMNS), pd.DataFrame()
    for position, basket in enumerate(BASKETS):
        step(f"trend of {basket}", 0.05 + 0.01 * position)
        reference = joint_reference(catalog, basket, scale=scale)
        densities = catalog_densities(catalog, reference, selection=selection)
        trends[basket] = estimate_trend(TrendData.from_density(densities.headline).window(SINCE, None))
        if basket == "mean":
            counted = densities.headline.table
            counted = counted[counted["released"] >= SINCE]
            sensitive = sensitivity(
                catalog, densities, window=(SINCE, None), selection=selection, refit=True, keep=True
            )
    backtest = backtest_forecasts(catalog, step=within(0.15, 0.25))
    return Today(
        evaluators=evaluator_table(catalog),
        cells=cells,
        scale=scale,
        links=evaluator_links(cells),
        left_out=cached(
            lambda: leave_one_out(cells, step=within(0.25, 0.45)), LeaveOneOut, "links", cells.table, by=leave_one_out
        ),
        validation=_validated(cells, catalog, seeds, within(0.45, 0.75)),
        recovery=cached(
            lambda: recover_trend(catalog, worlds=WORLDS, step=within(0.75, 0.9)),
            Recovery,
            "recovery",
            cells.table,
            catalog.digest,
            by=recover_trend,
        ),
        trends=trends,
        sensitivity=sensitive,
        counted=counted,
        vintages=shipped_vintages(catalog),
        answers=answer_questions(catalog, keep=True, step=within(0.9, 1.0)),
        recall=replicate_recall(load_recall()),
        backtest=backtest,
        outlook=forecast_now(catalog, result=backtest),
        selection=selection.describe(),
        digest=catalog.digest,
    )


def _validated(cells: Cells, catalog: Catalog, seeds: Sequence[int], step: Step) -> Validation:
    """Validate the scale split by split; each is cached separately."""
    released = catalog.models[["model", "released"]]
    jobs = [(split, seed) for split in SPLITS for seed in seeds]
    parts = []
    for position, (split, seed) in enumerate(jobs):

        def make(split: str = split, seed: int = seed, position: int = position) -> Validation:
            def part(label: str, share: float) -> None:
                step(label, (position + share) / len(jobs))

            try:
                return validate(cells, catalog, splits=[split], seeds=[seed], step=part)
            except InputError as error:
                note = Note("split-left-out", "warning", f"{error}", {"split": split})
                return Validation(pd.DataFrame(), pd.DataFrame(), (note,))

        name = f"validation-{split}-{seed}"
        parts.append(cached(make, Validation, name, cells.table, released, by=validate))
    filled = [part for part in parts if len(part)]
    if not filled:
        raise InputError("; ".join(note.message for part in parts for note in part.notes))
    return Validation(
        pd.concat([part.predictions for part in filled], ignore_index=True),
        pd.concat([part.blocks for part in filled], ignore_index=True),
        tuple(once(note for part in parts for note in part.notes)),
    )
