"""Densities, and a trend, as a page: one HTML file that needs no network, without the rest of the main job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from densing.core import Note, formatting
from densing.plots import (
    YOURS,
    plot_bank_steps,
    plot_checkpoints,
    plot_comparison,
    plot_density,
    plot_estimates,
    plot_pace,
)
from densing.report.document import (
    Block,
    Headline,
    Page,
    Points,
    Section,
    doubtful,
    notes_section,
    versions_section,
)
from densing.report.page import shown_figure, write
from densing.report.study import METHOD, PACE_WORDS, density_words, estimates_table, level, window
from densing.report.tables import ShownTable, page_table
from densing.scores.density import HOW_TO_READ, density_listing

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from densing.scores.density import BankSteps, Comparison, DensityResult
    from densing.scores.trend import TrendResult

MOST_QUOTED = 24
"""Models that have a sentence of their own on a page."""


def density_figure(densities: DensityResult, yours: DensityResult | None = None) -> go.Figure:
    """Draw the headline's models, those apart in grey, and a user's own as named stars in front."""
    main, apart = densities.headline, _apart(densities)
    return plot_density(main, None, apart if len(apart) else None, placed=yours, placed_name=YOURS)


def build_density(densities: DensityResult, path: Path | str, *, yours: DensityResult | None = None) -> Path:
    """Write a page of densities: the figure, a sentence per model to quote, every row, the notes.

    Parameters
    ----------
    densities : DensityResult
        The catalog's models, or whichever there are.
    path : path
    yours : DensityResult, optional
        A user's own models on the same reference: stars in front, with a sentence each and a table of their own.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    build_trend, densing.table_densities
    """
    shown = densities if yours is None else yours
    reference = shown.reference
    title = (
        f"Density of {formatting.plural(len(shown), 'model')} on {formatting.clean(reference.name)}, "
        f"{formatting.clean(reference.benchmark)}"
    )
    figure = density_figure(densities, yours)
    caption = density_words(densities.headline.table, len(_apart(densities)), curve=False)
    caption += f" Stars: {YOURS}, {formatting.plural(len(yours), 'model')}." if yours is not None else ""
    status: dict[str, int] = shown.table["status"].value_counts().to_dict()
    facts = tuple((formatting.short_status(name), formatting.plural(count, "model")) for name, count in status.items())
    tables = [("models", "Models", (_models_table(shown, "models-table"),))]
    if yours is not None:
        tables.append(("among", "The others in the figure", (_models_table(densities, "among-table"),)))
    head = Headline(title, HOW_TO_READ.format(reference=formatting.clean(reference.name)).replace("\n", " "), facts,
                    doubtful(shown.notes), shown_figure("density", figure, caption))  # fmt: skip
    quotes = shown.sentences() if len(shown) <= MOST_QUOTED else []
    return write(_page("densing density", head, quotes, tables, shown.notes), path)


def trend_figure(trend: TrendResult, densities: DensityResult) -> go.Figure:
    """Draw densities with the trend's curve; a user's own rows are named stars in front."""
    apart = _apart(densities)
    return plot_density(densities.headline, trend, apart if len(apart) else None)


def build_trend(
    trend: TrendResult, densities: DensityResult, path: Path | str, *, benchmark: str | None = None
) -> Path:
    """Write a page of a trend: both paces, the figure, the pace over time, every estimator, the checks, the models.

    Parameters
    ----------
    trend : TrendResult
    densities : DensityResult
        The models behind it, and those apart.
    path : path
    benchmark : str, optional
        What the densities were read on, in words; the reference's own by default.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    build_density, build_report
    """
    apart, reference = _apart(densities), densities.reference
    figure = trend_figure(trend, densities)
    quoted = trend.quoted(reference.name, benchmark or reference.benchmark)
    facts = (
        ("Models and families", f"{formatting.plural(len(trend.data), 'model')}, "
                                f"{formatting.plural(len(set(trend.data.family)), 'family', 'families')}"),
        ("Window", window(trend)),
        ("Reference", formatting.clean(reference.title)),
    )  # fmt: skip
    head = Headline(trend.title, formatting.clean(trend.why, 1000), facts, doubtful((*densities.notes, *trend.notes)),
                    shown_figure("density", figure, density_words(densities.headline.table, len(apart))),
                    now=trend.now)  # fmt: skip
    blocks: list[tuple[str, str, tuple[Block, ...]]] = []
    if trend.varying is not None:
        blocks.append(("pace", "The pace over time", (shown_figure("pace", plot_pace(trend), PACE_WORDS),)))
    caption = f"Doubling time by estimator with {formatting.percentage(level(trend))} intervals."
    estimates = shown_figure("estimates", plot_estimates(trend), caption)
    blocks += [
        ("estimators", "Estimators side by side", (estimates, estimates_table(trend))),
        ("models", "Models", (_models_table(densities, "models-table"),)),
    ]
    notes = (*densities.notes, *trend.notes)
    return write(_page("densing trend", head, [quoted, *trend.sentences()], blocks, notes), path)


def build_checkpoints(steps: pd.DataFrame, path: Path | str, *, notes: Iterable[Note] = ()) -> Path:
    """Write a page of checkpoints: density against training step, and every row.

    Parameters
    ----------
    steps : pandas.DataFrame
        Of :func:`densing.scores.density.densities_by_step`.
    path : path
    notes : iterable of Note
        What to keep in mind of the densities.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    build_density
    """
    runs = formatting.listed(formatting.clean(run, 60) for run in dict.fromkeys(steps["run"]))
    caption = (
        "Density ρ against training step with the intervals of the measurement. Neighbours are measured with the same "
        "questions and the same reference, so that their difference is known better than their intervals look: "
        "densing compare gives it."
    )
    listing = density_listing(steps, "Every checkpoint, by run and step.")
    table = page_table("steps-table", listing, sortable=True)
    told = tuple(notes)
    facts = (("Runs", f"{steps['run'].nunique():,}"), ("Checkpoints", f"{steps['model'].nunique():,}"))
    head = Headline(f"Density of checkpoints: {runs}", caption, facts, doubtful(told),
                    shown_figure("density", plot_checkpoints(steps), caption))  # fmt: skip
    return write(_page("densing density --by-step", head, [], [("steps", "By step", (table,))], told), path)


def build_bank_steps(steps: BankSteps, path: Path | str) -> Path:
    """Write a page of a run's checkpoints on the items of a bank: figure, and every row.

    Parameters
    ----------
    steps : BankSteps
    path : path

    Returns
    -------
    pathlib.Path
        The file.
    """
    caption = (
        "Score on all items of the bank, effective parameters and density, with 95 % intervals, from a few items. "
        "Checkpoints that answer the same items differ by less noise than their intervals look: densing compare."
    )
    facts = (("Bank", steps.bank), ("Reference", steps.reference), ("Checkpoints", f"{len(steps.table):,}"))
    runs = formatting.listed(formatting.clean(run, 60) for run in dict.fromkeys(steps.table["run"]))
    head = Headline(f"Checkpoints of {runs}", caption, facts, doubtful(steps.notes),
                    shown_figure("steps", plot_bank_steps(steps), caption))  # fmt: skip
    table = page_table("steps-table", steps.listing(), sortable=True)
    return write(_page("densing eval --checkpoints", head, [], [("steps", "By step", (table,))], steps.notes), path)


def build_comparison(comparison: Comparison, path: Path | str) -> Path:
    """Write a page of models compared with one of them: figure, sentences, every row.

    Parameters
    ----------
    comparison : Comparison
        Of :func:`densing.compare`.
    path : path

    Returns
    -------
    pathlib.Path
        The file.
    """
    quoted, notes = comparison.quoted, comparison.notes
    caption = (
        "Density over that of the baseline, on common items and through the same draws of the reference; intervals of "
        "the measurement."
    )
    facts = (("Reference", comparison.reference), ("Models", f"{quoted['model'].nunique() + 1:,}"))
    head = Headline(f"Density over that of {formatting.clean(quoted['baseline'].iloc[0], 60)}",
                    " ".join(quoted["sentence"].head(3)), facts, doubtful(notes),
                    shown_figure("density", plot_comparison(comparison), caption))  # fmt: skip
    table = page_table("comparison-table", comparison.listing(), sortable=True)
    return write(_page("densing compare", head, [], [("comparison", "Every comparison", (table,))], notes), path)


def _apart(densities: DensityResult) -> DensityResult:
    return densities.subset(densities.table["stratum"].ne("headline").to_numpy(dtype=bool))


def _models_table(densities: DensityResult, name: str) -> ShownTable:
    """Return a row per model, densest first."""
    height = pd.to_numeric(densities.table["density"], errors="coerce")
    rows = densities.table.loc[height.sort_values(ascending=False, na_position="last", kind="stable").index]
    return page_table(name, density_listing(rows, "Every model, densest first."), sortable=True)


def _page(
    command: str,
    head: Headline,
    quotes: Iterable[str],
    shown: Iterable[tuple[str, str, tuple[Block, ...]]],
    notes: Iterable[Note],
) -> Page:
    """Return the page of these sections, with the sentences to quote before them and the notes behind."""
    quoted = Points.of(formatting.clean(sentence, 1000) for sentence in quotes)
    sections = (
        *([Section("quotes", "To quote", quoted)] if quoted else []),
        *(Section(name, title, blocks) for name, title, blocks in shown),
        notes_section(notes),
        versions_section(),
    )
    return Page(command, head, sections, method=METHOD)
