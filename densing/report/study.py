"""The report of a study: headline, density, estimators, reference, multiverse, checks, forecast, skills and models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.core import Field, Note, column, flag, formatting, numeric, ranged, severest_first
from densing.plots import (
    CHOICES,
    JOURNAL_MONTHS,
    SECOND_HAND,
    plot_backtest,
    plot_density,
    plot_estimates,
    plot_leave_one_out,
    plot_multiverse,
    plot_pace,
    plot_permutation,
    plot_reference,
    plot_sensitivity,
    plot_skills,
    plot_vintages,
    specifications,
)
from densing.report.document import (
    Block,
    Figure,
    Finder,
    Fold,
    Heading,
    Headline,
    Page,
    Pairs,
    Point,
    Points,
    Prose,
    Section,
    Terms,
    doubtful,
    notes_section,
    present,
    prose,
)
from densing.report.frontier import FLOPS, SCALES, WHAT, frontier_table, scale_figure
from densing.report.gain import HOW, shown_gains
from densing.report.page import shown_figure, write
from densing.report.tables import ShownTable, page_table, pairs, shown_table, site
from densing.report.worth import HOW as HOW_WORTH
from densing.report.worth import map_of, verdicts
from densing.scores.density import (
    DENSITY,
    EFFECTIVE,
    INTERVAL,
    RECIPE,
    RELEASED,
    SIZE,
    STATUS,
    density_listing,
)
from densing.scores.references import JOINT, JointReference, points_listing
from densing.scores.study import PAPER_MONTHS, early, sensitivity_listing, vintage_sentence, vintages_listing
from densing.scores.trend import (
    MONTHS,
    MONTHS_INTERVAL,
    PRIORS,
    answers_listing,
    estimates_listing,
    held_truth,
    scores_listing,
)
from densing.scores.trend import sentences as trend_sentences
from densing.tradeoff import study_frontier

if TYPE_CHECKING:
    from densing.scores.references import Reference
    from densing.scores.study import LocalEvaluation, PastForecast, Placed, Split, Study, WinningForecast
    from densing.scores.trend import Backtest, Checks, Front, TrendResult
    from densing.tradeoff import Frontier, GainRecord, Gains, Worth


METHOD = "Method: Xiao et al., arXiv 2412.04315."
"""What the footer of a page of densities says."""


def build_report(
    study: Study,
    path: Path | str,
    *,
    against: Frontier | None = None,
    gains: Iterable[Gains | GainRecord | Path | str] = (),
    worths: Iterable[Worth] = (),
) -> Path:
    """Write the report of a study: one HTML file that needs no network.

    Everything that comes from data is escaped; the page's own policy forbids every request and every script
    but the two that are inlined.

    Parameters
    ----------
    study : Study
        What ``densing run`` computes.
    path : path
        File to write; written whole or not at all.
    against : Frontier, optional
        What :func:`densing.tradeoff.study_frontier` gives of the study; computed here when left out.
    gains : iterable of Gains, GainRecord or path
        Ladders with arms for the section on changes of training: what :func:`densing.ladder_gain` gives, or the
        ``gain.json`` that ``densing ladder gain`` leaves. Without any there is no such section.
    worths : iterable of Worth
        Verdicts on techniques, what :func:`densing.worth` gives, for a section of their own.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    densing.core.errors.InputError
        When the file cannot be written, or a record of gains cannot be read.
    densing.core.errors.ArtefactError
        When a record of gains is damaged, or of another schema.

    See Also
    --------
    run_study, build_replication

    Examples
    --------
    Of six models of one's own; ``densing run`` does it for the embedded catalog:

    >>> import tempfile
    >>> import densing
    >>> scores = [{"model": f"mine-{n}", "family": f"mine, line {n % 3}", "params": 1e9, "score": 0.3 + 0.02 * n,
    ...            "benchmark": "openbookqa", "released": f"2024-{n:02d}-15"} for n in range(1, 7)]
    >>> catalog = densing.load_catalog(scores, embedded=False)
    >>> study = densing.run_study(catalog, densing.StudyOptions("olmo-ladder", "openbookqa"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = build_report(study, Path(folder) / "report.html").read_text()
    >>> page[:15], "<script src" in page
    ('<!DOCTYPE html>', False)
    """
    return write(study_page(study, against, gains, worths), path)


def study_page(
    study: Study,
    against: Frontier | None = None,
    gains: Iterable[Gains | GainRecord | Path | str] = (),
    worths: Iterable[Worth] = (),
) -> Page:
    """Return the page: the headline, then what follows from it, each part folded that is not for every reader."""
    # What may be refused comes before what takes long.
    gained = _gains(gains)
    shown = figures(study)
    head = replace(headline(study), figure=shown["density"])
    models, points = models_table(study), page_table("reference-table", points_listing(study.reference))
    found = Finder(models.name, "models", f"{len(models.rows)} models, ranked")
    head = replace(head, opening=(*_those(shown, "pace", "sensitivity"), found))
    sections = (
        *_answers(study),
        *_yours(study),
        Section("models", "Every model", (models,), short="Models"),
        *_front(study),
        *_vintages(study, shown),
        *_comparison(study, shown),
        *_measured(study, shown),
        *_frontier(study_frontier(study) if against is None else against),
        *gained,
        *_worths(worths),
        Section("estimators", "Estimators side by side", (
            shown["estimates"], estimates_table(study.trend), *present(priors_table(study.trend)),
        ), short="Estimators", folded=True),
        Section("reference-curve", "The reference", (
            shown["reference"],
            Fold("Points of the reference", (points,), printed=False),
        ), short="Reference", folded=True),
        _multiverse(study, shown),
        _checks(study, shown),
        _forecast(study, shown),
        Section("skills", "Skill by skill", (
            shown["skills"], Fold("Every model and skill", (skills_table(study.skills),), printed=False),
        ), short="Skills", folded=True),
        notes_section(all_notes(study), most=None),
        Section("sources", "Sources and licences", (provenance_table(study.provenance),), short="Sources", folded=True),
        Section("versions", "Versions and hashes", (
            Pairs("Versions", pairs(study.versions)), Pairs("Hashes of the inputs", pairs(study.hashes)),
            Pairs("Options", pairs(study.options)),
        ), short="Versions", folded=True),
    )  # fmt: skip
    return Page("densing", head, sections, inputs=study.hashes, method=METHOD)


def _those(shown: Mapping[str, Figure], *names: str) -> tuple[Block, ...]:
    """Return the figures that there are, of these names."""
    return tuple(shown[name] for name in names if name in shown)


def _why(study: Study, part: str) -> tuple[Block, ...]:
    """Return why a part of the study is missing, where it failed."""
    notes = [note for note in study.notes if note.code == "part-missing" and note.details["part"] == part]
    return prose(*(formatting.sentence(note.message) for note in notes))


def _answers(study: Study) -> tuple[Section, ...]:
    table, words = answers_table(study.answers), answer_words(study.answers)
    known = (Fold("What to know of these answers", (Terms(words),)),) if words else ()
    blocks = _why(study, "answers") if table is None else (table, *known)
    return (Section("answers", "Questions and answers", blocks, short="Answers"),) if blocks else ()


def _yours(study: Study) -> tuple[Section, ...]:
    if study.placed is None:
        return ()
    told = Points.of(formatting.sentence(note.message) for note in study.placed.notes)
    return (Section("yours", "Your models", (yours_table(study.placed), *told)),)


def _front(study: Study) -> tuple[Section, ...]:
    front = study.trend.front
    table = front_table(front)
    if front is None or table is None:
        return ()
    title = "The front: the densest models"
    return (Section("front", title, (Prose(front.sentence), table), short="Front", folded=True),)


def _vintages(study: Study, shown: Mapping[str, Figure]) -> tuple[Section, ...]:
    table = vintages_table(study.vintages)
    if table is None:
        return ()
    blocks = (Prose(vintage_sentence(study.vintages)), shown["vintages"], table)
    return (Section("vintages", "What the headline would have said earlier", blocks, short="Earlier", folded=True),)


def _comparison(study: Study, shown: Mapping[str, Figure]) -> tuple[Section, ...]:
    title, blocks = "Comparison with another reference", _why(study, "beside")
    if study.comparison is not None:
        title, blocks = comparison_title(study), (Prose(comparison(study)), shown["beside"])
    return (Section("beside", title, blocks, short="Comparison", folded=True),) if blocks else ()


def _measured(study: Study, shown: Mapping[str, Figure]) -> tuple[Section, ...]:
    measured = study.measured
    if measured is None:
        return ()
    lead, among = measured_lead(measured), _those(shown, "measured-among")
    score = _those(shown, "measured-score")
    blocks: tuple[Block, ...] = (
        *prose(lead),
        *_those(shown, "measured-loss"),
        *present(measured_table(measured)),
        *((Heading("Among the catalog's models"), *among) if among else ()),
        *((Fold("By accuracy", score),) if score else ()),
        *Points.of(measured_words(measured)),
    )
    return (Section("measured", "Measured here", blocks),)


def _frontier(placed: Frontier) -> tuple[Section, ...]:
    if not placed.scales:
        # Of a catalog without tokens there is no frontier to show.
        return ()
    scale = placed.scales[0]
    blocks: tuple[Block, ...] = (
        scale_figure(placed, scale, "frontier"),
        *(Prose(text, "small") for text in (f"{WHAT} {FLOPS}", *doubtful(placed.notes))),
        Fold("Every model with known tokens", (frontier_table(placed, scale, "frontier-table"),)),
    )
    return (Section("frontier", "Density against training compute", blocks, short="Cost", folded=True),)


def _gains(gains: Iterable[Gains | GainRecord | Path | str]) -> tuple[Section, ...]:
    ladders = shown_gains(gains)
    if not ladders:
        return ()
    blocks: list[Block] = [Prose(f"{HOW} {SCALES}", "small")]
    for ladder in ladders:
        blocks += [Heading(ladder.title), ladder.figure, *ladder.blocks]
    return (Section("gains", "What changes of training buy", tuple(blocks), short="Gains", folded=True),)


def _worths(worths: Iterable[Worth]) -> tuple[Section, ...]:
    blocks: list[Block] = []
    for number, each in enumerate(worths):
        title = formatting.clean(each.card().title)
        blocks += [Heading(title), map_of(each, f"worth-{number}"), *verdicts(each, f"worth-{number}")]
    if not blocks:
        return ()
    section = (Prose(HOW_WORTH, "small"), *blocks)
    return (Section("worth", "Are techniques worth it?", section, short="Worth", folded=True),)


def _multiverse(study: Study, shown: Mapping[str, Figure]) -> Section:
    others = present(sensitivity_table(study.sensitivity))
    blocks = (
        shown["multiverse"],
        *((Heading("One choice another, on the same scale"), *others) if others else ()),
        Fold("All specifications", (multiverse_table(study.multiverse),), printed=False),
        Heading("The paper's own method", "replication"),
        replication_table(study.replication),
    )
    title = "The multiverse: other references, benchmarks, windows and methods"
    return Section("multiverse", title, blocks, short="Multiverse", folded=True)


def _checks(study: Study, shown: Mapping[str, Figure]) -> Section:
    checks = study.trend.checks
    found = diagnostics(checks)
    blocks = (
        Points(tuple(Point(sentence, f"{name}.") for name, sentence in check_sentences(study))),
        Heading("Release dates of whole families shuffled"),
        shown["permutation"],
        Heading("Groups, organisations and families left out"),
        shown["leave-one-out"],
        Fold("Other tests, which do not lead", (other_tests_table(checks), *prose(found))),
    )
    return Section("checks", "Checks", blocks, folded=True)


def _forecast(study: Study, shown: Mapping[str, Figure]) -> Section:
    tested = winning_forecast(study)
    won = _why(study, "tested") if tested is None else (Prose(tested[0], "lead"), shown["tested"], tested[1])
    told = (backtest(study.backtest), past(study.past_forecast))
    blocks = (*won, *prose(*told), *_those(shown, "forecast"), corollaries_table(study.corollaries))
    return Section("forecast", "Forecast", blocks, folded=True)


def headline(study: Study) -> Headline:
    """Put the study's headline in words; every caveat that the checks give comes with it."""
    head = study.trend.headline
    models, families = len(study.trend.data.model), len(set(study.trend.data.family))
    facts = (
        (
            "Models and families",
            f"{formatting.plural(models, 'model')}, {formatting.plural(families, 'family', 'families')}",
        ),
        ("Window", window(study.trend)),
        ("Reference", formatting.clean(study.reference.title)),
        ("Score", short_benchmark(study.reference)),
        ("Estimator", formatting.clean(head.get("label", head.get("method")))),
    )
    title = trend_sentences.title(head, study.trend.data.released, level(study.trend))
    return Headline(title, lead(study), facts, caveats(study), now=study.trend.now)


def lead(study: Study) -> str:
    """Return the sentence that states what was measured on what."""
    head, reference = study.trend.headline, study.reference
    rows = study.trend.data
    families = formatting.plural(len(set(rows.family)), "family", "families")
    recipe = f"the reference family ({formatting.clean(reference.title)})"
    if isinstance(reference, JointReference):
        recipe = f"{formatting.clean(reference.anchor)}'s recipe"
    doubling = formatting.doubling(head["doubling_months"], head["lo"], head["hi"], level(study.trend))
    return (
        "Density is effective parameters over actual parameters: how large a model of "
        f"{recipe} would have to be for the same score on {benchmark(reference)}, over the "
        f"model's own size. Estimated from {formatting.plural(len(rows.model), 'model')} of {families}, released "
        f"{window(study.trend)}, its doubling time is {doubling}."
        f"{' With these data it cannot be excluded that density stands still.' if np.isinf(head['hi']) else ''}"
    )


def caveats(study: Study) -> tuple[str, ...]:
    """Return what the reader must know before quoting the number: one sentence, and what is wrong with the data."""
    reference = study.reference
    evaluator = (
        "evaluator not stated"
        if formatting.is_missing(reference.evaluator)
        else f"scores by {formatting.clean(reference.evaluator)}"
    )
    held = ""
    if study.trend.varying is not None:
        held = f" {formatting.clean(study.trend.record, 600)}"
    lead_caveat = (
        f"These are statements about {study.selection} on one reference and one set of benchmarks ({evaluator}); with "
        f"another reference or other models the pace is another.{held}"
    )
    wrong, warned = said(study, "error"), len(said(study, "warning"))
    more = f" {formatting.plural(warned, 'warning')} of the data and of the tests: see Checks." if warned else ""
    return (f"{lead_caveat}{more}", *wrong)


def said(study: Study, severity: str) -> tuple[str, ...]:
    """Return the notes of the study and of its trend of one severity, as sentences."""
    return doubtful([note for note in (*study.notes, *study.trend.notes) if note.severity == severity])


def members(study: Study) -> str:
    """Return how many of the headline's models are the reference's own; empty when none is."""
    # Their densities are near 1 whatever the trend, so the reader must know how many there are.
    points = study.reference.points
    if isinstance(study.reference, JointReference):
        # The slope comes from every family of several sizes; density 1 is the recipe of one.
        points = points[points["family"].eq(study.reference.anchor)]
    own = sorted(set(map(str, study.trend.data.model)) & set(map(str, points["model"])))
    if not own:
        return ""
    verb = "belongs" if len(own) == 1 else "belong"
    return (
        f"{len(own)} of these {formatting.plural(len(study.trend.data.model), 'model')} {verb} to the reference family "
        "itself, whose effective sizes are near their own by construction."
    )


def benchmark(reference: Reference) -> str:
    """Return which score the reference reads."""
    if reference.name == JOINT:
        skills = "knowledge, reasoning, mathematics and code, in equal parts"
        return f"the joint scale ({skills if reference.benchmark == 'mean' else formatting.clean(reference.benchmark)})"
    if reference.benchmark != "mean":
        return formatting.clean(reference.benchmark)
    names = ", ".join(formatting.clean(name, 40) for name in reference.benchmarks)
    return f"the mean of {names}" if names else "the mean score"


def short_benchmark(reference: Reference) -> str:
    """Return which score the reference reads, without the list."""
    if reference.name == JOINT:
        return (
            "ability: four skills in equal parts"
            if reference.benchmark == "mean"
            else formatting.clean(reference.benchmark)
        )
    if reference.benchmark != "mean":
        return formatting.clean(reference.benchmark)
    return f"mean of {formatting.plural(len(reference.benchmarks), 'benchmark')}"


def window(trend: TrendResult) -> str:
    """Return the first and last month of release of the rows."""
    released = pd.DatetimeIndex(trend.data.released)
    return f"{formatting.month(released.min())} to {formatting.month(released.max())}" if len(released) else "no dates"


def level(trend: TrendResult) -> float:
    """Return the confidence level of the intervals."""
    return float(trend.options.get("level", 0.95))


def comparison_title(study: Study) -> str:
    """Return the heading of what stands beside the headline."""
    part = study.comparison
    if part is None:
        return ""
    return (
        f"{part.name}: {window(part.trend)}, {formatting.clean(part.reference.title)}, "
        f"{short_benchmark(part.reference)}"
    )


def figures(study: Study) -> dict[str, Figure]:
    """Return every figure of the report by name."""
    n_apart = 0 if study.apart is None else len(study.apart.table)
    # A fan stands in the density figure only where back-tests did better than assuming no progress.
    earned = study.backtest.beats_standing_still
    near = study.forecast if earned and len(study.forecast) else None
    stars = None if study.placed is None else study.placed.densities
    captioned = {
        "density": (
            plot_density(study.density, study.trend, study.apart, near, stars, placed_name="your models"),
            density_words(study.density.table, n_apart, fan=near is not None),
        ),
        **pace_figures(study),
        **_other_figures(study, earned),
        **backtest_figures(study.tested),
        "estimates": (plot_estimates(study.trend), _estimates_words(study)),
        "reference": (plot_reference(study.reference, study.density), _reference_words(study)),
        "multiverse": (plot_multiverse(study.multiverse), multiverse_words(study.multiverse)),
        "permutation": (plot_permutation(study.trend.checks), PERMUTATION_WORDS),
        "leave-one-out": (plot_leave_one_out(study.trend.checks), LEAVE_ONE_OUT_WORDS),
        "skills": (plot_skills(study.skills), SKILLS_WORDS),
        **measured_figures(study.measured),
    }
    return {name: shown_figure(name, figure, caption) for name, (figure, caption) in captioned.items()}


def pace_figures(study: Study) -> dict[str, tuple[go.Figure, str]]:
    """Return the pace over time, and what the headline would have been; none where it was not estimated."""
    captioned = {}
    if study.trend.varying is not None:
        captioned["pace"] = (plot_pace(study.trend), PACE_WORDS)
    if len(study.sensitivity) > 1:
        captioned["sensitivity"] = (plot_sensitivity(study.sensitivity), SENSITIVITY_WORDS)
    if len(study.vintages):
        captioned["vintages"] = (plot_vintages(study.vintages), VINTAGE_WORDS)
    return captioned


PACE_WORDS = (
    "The pace by month with its band, and the two means of the headline: over the window (dotted) and over the last "
    "twelve months. Where the band reaches below the line of no growth the data do not say whether density grew."
)
SENSITIVITY_WORDS = (
    "Both means of the headline (diamond) and what they are when one choice is another: the reference's range, the "
    "slope of ability in size, which models are read."
)
VINTAGE_WORDS = (
    "What the headline would have said at earlier dates, scale, reference and pace refitted on what was known by then, "
    "beside today's: the mean over the window (diamonds) and over its last twelve months (circles), with 95 % "
    "intervals."
)
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
    "or values beyond the reference's range."
)


def _other_figures(study: Study, earned: bool) -> dict[str, tuple[go.Figure, str]]:
    """What stands beside the headline, and in the section on forecasts a fan that back-tests did not earn."""
    captioned, fan = {}, study.long_forecast
    last = (study.density, study.trend)
    if study.comparison is not None:
        further = study.comparison.trend.data.released.max() > study.trend.data.released.max()
        last = (study.comparison.density, study.comparison.trend) if further else last
        near = fan if further and earned and fan is not None and len(fan) else None
        caption = density_words(study.comparison.density.table, 0, fan=near is not None)
        captioned["beside"] = (plot_density(study.comparison.density, study.comparison.trend, None, near), caption)
    fan = study.forecast if fan is None else fan
    if not earned and len(fan):
        caption = (
            f"{density_words(last[0].table, 0, fan=True)} In back-tests it came no nearer than no progress at all."
        )
        captioned["forecast"] = (plot_density(*last, None, fan), caption)
    return captioned


def backtest_figures(tested: WinningForecast | None) -> dict[str, tuple[go.Figure, str]]:
    """Return the figure of the forecast that won, beside what came; none where none was tested."""
    if tested is None:
        return {}
    winner = tested.outlook.choice.forecaster
    caption = (
        f"Densities as forecast by {formatting.clean(winner)} from what was known at the date, with their 90 % "
        "intervals, and what came (diamonds)."
    )
    return {"tested": (plot_backtest(tested.backtest, winner), caption)}


def density_words(table: pd.DataFrame, n_apart: int, *, fan: bool = False, curve: bool = True) -> str:
    """Return what a density figure shows, for readers who cannot see it."""
    bounds = table["bound"].fillna("").astype(str) if "bound" in table else pd.Series("", table.index)
    limited = int((bounds != "").sum())
    caption = (
        f"Density ρ of {formatting.plural(len(table), 'model')} against release date, with the frontier (steps)"
        f"{', the fitted curve and its 95 % band' if curve else ''}"
        f"{', and the forecast fan (50 % dashed, 90 % dotted)' if fan else ''}."
    )
    if limited:
        caption += (
            f" {formatting.plural(limited, 'model')} known only as a limit: the triangle points to the true value."
        )
    if n_apart:
        caption += (
            f" {formatting.plural(n_apart, 'model')} shown apart in grey (mixtures of experts, compressed, continued, "
            "without a sourced date, measured by their makers alone); they are not in the curve."
        )
    return caption


def _estimates_words(study: Study) -> str:
    head = study.trend.headline
    return (
        f"Doubling time by estimator with 95 % intervals; the headline ({formatting.clean(head.get('method'))}) is "
        f"the diamond at {formatting.doubling(head['doubling_months'], head['lo'], head['hi'])}. An arrow marks an "
        "unbounded end."
    )


def _reference_words(study: Study) -> str:
    reference = study.reference
    inputs = ", ".join(
        f"{formatting.clean(name)} = {formatting.size(value)}" for name, value in reference.given.items()
    )
    return (
        f"The reference {formatting.clean(reference.title)}: {formatting.plural(len(reference.points), 'point')}, the "
        f"fitted {formatting.clean(reference.fit.law.name)} curve and its band{f', at {inputs}' if inputs else ''}. A "
        "model's score, read across to the curve and down, gives its effective parameters; beyond the dotted guard "
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
    # An infinite value is allowed, so nothing is interpolated.
    ordered = np.sort(value)
    quarter, median, upper = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.25, 0.5, 0.75))
    unbounded = int(np.isinf(pd.to_numeric(rows["hi"], errors="coerce")).sum())
    failed = len(multiverse) - len(rows)
    caption = (
        f"{formatting.plural(len(rows), 'specification')} of reference, benchmark, window, denominator and estimator: "
        f"median doubling time {formatting.months(median)} months, middle half {formatting.months(quarter)} to "
        f"{formatting.months(upper)}; {unbounded} of the intervals have no upper end."
    )
    return caption + (f" {formatting.plural(failed, 'specification')} could not be estimated." if failed else "")


def estimates_table(trend: TrendResult) -> ShownTable:
    """Return the estimators side by side, the headline marked."""
    caption = (
        "All estimators on the same rows; the marked one is the headline. Held the truth: how often the estimator's 95 "
        "% interval held the window's mean pace in simulated worlds, from the worst kind of world to the best. The "
        "paper's own two stand beside its replication."
    )
    return page_table("estimates-table", estimates_listing(trend.estimates, caption))


def priors_table(trend: TrendResult) -> ShownTable | None:
    """Return what the prior of the pace's changes does to both means; None without a pace that may change."""
    if trend.varying is None:
        return None
    fields = (
        Field("Prior", column("prior")),
        Field("Mean over", column("part")),
        MONTHS,
        MONTHS_INTERVAL,
        Field(
            "Grew", column("growing", formatting.percentage), hint="Probability that density grew over the last year"
        ),
        Field("Slower", column("slower", formatting.percentage), hint="Probability that the last year was slower"),
    )
    caption = (
        "What hangs on the prior of how far the pace may move: its scale is half-normal with "
        f"{', '.join(f'{scale:g} ({name})' for name, scale in PRIORS.items())} doublings per year in a year."
    )
    return shown_table("priors-table", caption, trend.priors, fields)


def front_table(front: Front | None) -> ShownTable | None:
    """Return who set records, and how surely; None where the front could not be told."""
    if front is None:
        return None
    caption = (
        "Models that set a record of density when they came, or may have. The 95 % interval of the densest tenth's "
        f"pace held that of the window in {held_truth('front')} of simulated worlds, from the worst kind to the best."
    )
    return page_table("front-table", front.listing, caption)


def vintages_table(table: pd.DataFrame) -> ShownTable | None:
    """Return what the headline would have said at earlier dates; None where nothing was asked."""
    if table.empty:
        return None
    caption = "Scale, reference and pace refitted on what was known at each date; nothing comes from later."
    return page_table("vintages-table", vintages_listing(table), caption)


def multiverse_table(multiverse: pd.DataFrame) -> ShownTable:
    """Return every specification as a sortable table."""
    fields = (
        *(Field(name.capitalize(), column(name)) for name in CHOICES),
        MONTHS,
        MONTHS_INTERVAL,
        numeric("Rows", "n", formatting.count),
        *shuffle_fields(),
    )
    caption = f"One straight line per specification; the marked one makes the headline's choices. {SHUFFLES}"
    return shown_table("multiverse-table", caption, multiverse, fields, mark="headline", sortable=True)


def shuffle_fields() -> tuple[Field, ...]:
    """Return the columns of the shuffle of whole families: its p, its size and its power."""
    return (
        numeric("p, families shuffled", "permutation_p"),
        numeric("Size", "permutation_size", formatting.percentage),
        Field(f"Power at {PAPER_MONTHS}", column("permutation_power", formatting.percentage), "permutation_power"),
    )


SHUFFLES = (
    "p: share of shuffles of whole families' release dates with as steep a slope of all models; size and power: how "
    "often that test rejects at 5 % in simulations on the same dates and families, without a trend and with a "
    f"doubling in {PAPER_MONTHS} months."
)


def replication_table(replication: pd.DataFrame) -> ShownTable:
    """Return the paper's own method by reference and benchmark."""
    fields = (
        Field("Reference", column("reference")),
        Field("Benchmark", column("benchmark")),
        Field("Window", column("window")),
        MONTHS,
        MONTHS_INTERVAL,
        numeric("Rows", "n", formatting.count),
        Field(f"Covers {PAPER_MONTHS}", lambda row: "yes" if flag(row.get("covers_paper")) else "no"),
        *shuffle_fields(),
    )
    caption = (
        "The paper's method (regression on record-setters, biased fast) on our references. The paper prints "
        f"about {PAPER_MONTHS} months (arXiv 2412.04315) without an interval; its journal version "
        f"{JOURNAL_MONTHS} months, {SECOND_HAND}. {SHUFFLES}"
    )
    return shown_table("replication-table", caption, replication, fields, sortable=True)


def corollaries_table(corollaries: pd.DataFrame) -> ShownTable:
    """Return what follows from the doubling time."""
    fields = (
        Field("Consequence", column("quantity")),
        numeric("Value", "value", formatting.months),
        Field(
            "95 % interval",
            lambda row: f"{formatting.months(row.get('lo'))} to {formatting.months(row.get('hi'))}",
            "lo",
        ),
        Field("Unit", column("unit")),
        Field("Equation", column("equation")),
    )
    caption = "What follows if the headline's doubling time holds; the intervals carry over from its own."
    return shown_table("corollaries-table", caption, corollaries, fields)


def skills_table(skills: pd.DataFrame) -> ShownTable:
    """Return the densities per skill."""
    # On the joint scale a skill is one ability, and its benchmarks are its own name again.
    if skills["benchmarks"].astype(str).eq(skills["skill"].astype(str)).all():
        skills = skills.drop(columns="benchmarks")
    listing = density_listing(skills, "Density of every model for each skill.")
    return page_table("skills-table", listing, sortable=True)


def sensitivity_table(sensitivity: pd.DataFrame) -> ShownTable:
    """Return the headline with other models of the same scale."""
    return page_table("sensitivity-table", sensitivity_listing(sensitivity))


def answers_table(answers: Any) -> ShownTable | None:
    """Return the questions of the trend, a row each with its answer, interval and test; None where none was asked."""
    table = None if answers is None else answers.table
    if table is None or table.empty:
        return None
    return page_table("answers-table", answers_listing(table))


def answer_words(answers: Any) -> list[tuple[str, str]]:
    """Return the caveats of each question that has some, under the question."""
    single = () if answers is None else getattr(answers, "answers", ())
    listed = [
        (formatting.clean(one.question, 300), [_whole(caveat) for caveat in _several(one.caveats)]) for one in single
    ]
    return [(question, " ".join(map(formatting.sentence, caveats))) for question, caveats in listed if caveats]


def _several(caveats: Any) -> tuple[Any, ...]:
    return (caveats,) if isinstance(caveats, str) and caveats else tuple(caveats or ())


def _whole(value: Any) -> str:
    return formatting.clean(value, 1000)


def winning_forecast(study: Study) -> tuple[str, ShownTable] | None:
    """Return the forecast that won its test as a sentence and a table; None where none was tested."""
    tested = study.tested
    if tested is None:
        return None
    caption = (
        "How each way of forecasting density fared: everything fitted on what was known at the date, and set beside "
        "the models that came. More dates, scores and abilities: densing forecast backtest."
    )
    listing = scores_listing(tested.table.assign(unit="ln units"), caption)
    return formatting.clean(tested.sentence, 1000), page_table("tested-table", listing)


def yours_table(placed: Placed) -> ShownTable:
    """Return a user's models with their places among models of their size and of their year."""

    def place(name: str) -> Any:
        return lambda row: f"{row[f'{name}rank']} of {row[f'{name}of']}" if row[f"{name}of"] else formatting.MISSING

    fields = (
        Field("Model", column("model")),
        DENSITY,
        INTERVAL,
        SIZE,
        RELEASED,
        Field("Rank among all", place(""), "rank", hint="1 is the densest; itself included"),
        Field("Of its size", place("size_"), "size_rank", hint="Up to twice as small or large"),
        Field("Of its year", place("year_"), "year_rank", hint="Released in the same calendar year"),
        Field("Next to it in density", column("neighbours", _whole)),
        STATUS,
    )
    caption = (
        "Your models on the headline's reference, among the headline's models. They are stars in the first figure; the "
        "headline is estimated without them."
    )
    return shown_table("yours-table", caption, placed.ranks, fields)


def provenance_table(provenance: pd.DataFrame) -> ShownTable:
    """Return the sources with licence and attribution."""
    fields = (
        Field("Source", column("title"), link="url"),
        Field("Id", column("id")),
        Field("Licence", column("licence")),
        Field("Attribution", column("attribution", lambda value: formatting.clean(value, 1000))),
        numeric("Rows", "rows", formatting.count),
    )
    return shown_table("provenance-table", "Where the facts come from, and under which licence.", provenance, fields)


def other_tests_table(checks: Checks) -> ShownTable:
    """Return the tests that do not lead, with the size and power that say why."""

    def show_power(row: Mapping[str, Any]) -> str:
        powers = [f"{formatting.percentage(effect.share)} at {effect.effect}" for effect in row.get("power") or ()]
        return "; ".join(powers) or formatting.MISSING

    fields = (
        Field("Test", column("test")),
        numeric("p", "p"),
        numeric("Size", "size", formatting.percentage, hint="Rejects at 5 % where there is no trend"),
        Field("Power", show_power),
    )
    caption = (
        "Tests with the wrong size or no power on these dates and families: how often each rejects at 5 % in simulated "
        "worlds without a trend (size; 5 % is right) and with one (power)."
    )
    tests = trend_sentences.other_tests(checks).items()
    rows = [{"test": name, "p": test.p, "size": test.size, "power": test.power} for name, test in tests]
    return shown_table("tests-table", caption, pd.DataFrame(rows), fields)


def check_sentences(study: Study) -> tuple[tuple[str, str], ...]:
    """Return (name, sentence) of every check the study holds."""
    checks = study.trend.checks
    sentences = (
        ("The estimator", study.trend.why),
        ("Notes", " ".join(said(study, "warning"))),
        ("Models in the headline", f"{formatting.sentence(study.selection)} {members(study)}".strip()),
        ("Who is counted", who_counts(study.sensitivity, study.density.table)),
        ("Facts", study.recall),
        ("Permutation of release dates", trend_sentences.shuffled(checks)),
        ("Searched break", trend_sentences.broken(checks)),
        ("Leave out", trend_sentences.left_out(checks)),
        ("Without named groups", without_groups(study)),
        ("Width of the interval", study.precision),
        ("One choice another", sensitivity_words(study.sensitivity)),
        ("Organisations as clusters", trend_sentences.by_organisation(checks)),
        ("Record-setter bias", record_setter_bias(checks)),
        ("Comparison" if study.comparison is None else study.comparison.name, comparison(study)),
        ("Replication", replication(study.replication)),
        ("ChatGPT split", chatgpt_split(study.split)),
        ("Where the uncertainty comes from", variance_shares(checks)),
    )
    return tuple((name, sentence) for name, sentence in sentences if sentence)


def without_groups(study: Study) -> str:
    """Return the headline, and what stands beside it, without each named group of families."""
    headline_words = trend_sentences.without_groups(study.trend.checks, float(study.trend.line["doubling_months"]))
    if study.comparison is None:
        return headline_words
    trend = study.comparison.trend
    other = trend_sentences.without_groups(trend.checks, float(trend.line["doubling_months"]))
    if headline_words and other:
        return f"{headline_words} In {_inside(study.comparison.name)}: {other[:1].lower()}{other[1:]}"
    return headline_words or other


def _inside(name: str) -> str:
    return f"{name[:1].lower()}{name[1:]}"


def _doubles(value: Any) -> str:
    return "no doubling" if formatting.is_missing(value) or np.isinf(value) else f"{formatting.months(value)} months"


def record_setter_bias(checks: Checks) -> str:
    """Return what the paper's envelope shows where there is no trend at all.

    Examples
    --------
    >>> from densing.scores.trend import Checks, EnvelopeOfHeadline, EnvelopeWithoutTrend, RecordSetterBias
    >>> null = EnvelopeWithoutTrend(0.005, 4.5, 0.002, 0.04, 0.8, 0.3)
    >>> check = RecordSetterBias(n=41, draws=2000, no_trend=null, with_trend=EnvelopeOfHeadline(None, None))
    >>> print(record_setter_bias(Checks(record_setter_bias=check)))
    Record-setters rise even without a trend: on these dates, the paper's regression on data without any trend
    reports a doubling every 4.5 months in the median.
    """
    check = checks.record_setter_bias
    null, true = (None, None) if check is None else (check.no_trend, check.with_trend)
    if null is None or formatting.is_missing(null.median_doubling_months):
        return ""
    prose = (
        "Record-setters rise even without a trend: on these dates, the paper's regression on data without any trend "
        f"reports a doubling every {formatting.months(null.median_doubling_months)} months in the median"
    )
    months = (None, None) if true is None else (true.true_doubling_months, true.median_doubling_months)
    if not any(map(formatting.is_missing, months)):
        prose += (
            f". If the headline's {formatting.months(months[0])} months were true, it would read "
            f"{formatting.months(months[1])}"
        )
    return f"{prose}."


def variance_shares(checks: Checks) -> str:
    """Return the shares of the slope's variance by origin.

    Examples
    --------
    >>> from densing.scores.trend import Checks, VarianceShares
    >>> variance_shares(Checks(variance_shares=VarianceShares(score_noise=None, reference_law=0.1, models=0.9)))
    'Shares of the variance of the slope: the fitted reference 10 %, which models exist 90 %.'
    """
    origins = {
        "models": "which models exist",
        "reference_law": "the fitted reference",
        "score_noise": "noise of the scores",
    }
    shares = {} if checks.variance_shares is None else asdict(checks.variance_shares)
    parts = [
        f"{origins[name]} {formatting.percentage(share)}"
        for name, share in shares.items()
        if not formatting.is_missing(share)
    ]
    return f"Shares of the variance of the slope: {', '.join(parts)}." if parts else ""


def diagnostics(checks: Checks) -> str:
    """Return the specification tests of the straight line.

    Examples
    --------
    >>> from densing.scores.trend import Checks, Diagnostics
    >>> diagnostics(Checks(diagnostics=Diagnostics(40, 0.2, None, None, None))).split(". ")[0]
    'On the 40 observed rows: curvature (RESET) p = 0.20'
    """
    tests = {
        "reset_p": "curvature (RESET)",
        "breusch_pagan_p": "uneven scatter (Breusch–Pagan)",
        "ljung_box_p": "serial correlation (Ljung–Box)",
    }
    results = {} if checks.diagnostics is None else asdict(checks.diagnostics)
    parts = [
        f"{name} {formatting.p_value(results[key])}"
        for key, name in tests.items()
        if not formatting.is_missing(results.get(key))
    ]
    if not parts:
        return ""
    return (
        f"On the {results['n']} observed rows: {', '.join(parts)}. These take models as independent, which families "
        "are not, so they accuse too often; their size and power were not simulated."
    )


def comparison(study: Study) -> str:
    """Return the doubling time of what stands beside the headline, with its own window and reference."""
    part = study.comparison
    if part is None:
        return ""
    trend, reference = part.trend, part.reference
    head, near = trend.headline, study.trend.headline
    released = pd.DatetimeIndex(trend.data.released)
    doubling = formatting.doubling(head["doubling_months"], head["lo"], head["hi"], level(trend))
    slow, fast = head["doubling_months"], near["doubling_months"]
    pace = ""
    if not any(formatting.is_missing(months) or np.isinf(months) for months in (slow, fast)):
        disjoint = head["lo"] > near["hi"] or head["hi"] < near["lo"]
        pace = (
            f": a {'slower' if slow > fast else 'faster'} pace, and the intervals "
            f"{'do not overlap' if disjoint else 'overlap'}"
        )
    # An organisation's families share more over years than over months: here the wider interval may be the right one.
    checks = f"{trend_sentences.by_organisation(trend.checks, level(trend))} {trend_sentences.broken(trend.checks)}"
    return (
        f"In {_inside(part.name)}, {formatting.month(released.min())} to {formatting.month(released.max())} "
        f"({formatting.plural(len(released), 'model')}, reference {formatting.clean(reference.title)} on "
        f"{formatting.clean(reference.benchmark)}), the doubling time is {doubling}, against "
        f"{_doubles(near['doubling_months'])} in the headline{pace}. {checks.strip()}"
    ).rstrip()


def sensitivity_words(table: pd.DataFrame) -> str:
    """Return how far the headline moves when one choice is another; empty without such rows.

    Examples
    --------
    >>> rows = [("the headline", 5.4, 3.9, 9.0, True), ("without dates", 6.2, 4.4, 10.1, False)]
    >>> sensitivity_words(pd.DataFrame(rows, columns=["choice", "doubling_months", "lo", "hi", "headline"]))
    'With one choice another the doubling time is 6.2 months (without dates: 4.4 to 10.1) in place of 5.4.'
    """
    leads = table["headline"].map(flag).astype(bool)
    others = table[~leads].sort_values("doubling_months")
    usual = table[leads]
    if others.empty or usual.empty:
        return ""
    ends = [
        f"{formatting.months(row['doubling_months'])} months ({formatting.clean(row['choice'])}: "
        f"{formatting.short_interval(row['lo'], row['hi'])})"
        for row in others.iloc[sorted({0, len(others) - 1})].to_dict("records")
    ]
    return (
        f"With one choice another the doubling time is {' to '.join(ends)} in place of "
        f"{formatting.months(usual['doubling_months'].iloc[0])}."
    )


def who_counts(sensitivity: pd.DataFrame, models: pd.DataFrame) -> str:
    """Return how the headline depends on which models are counted, and who the early ones are.

    Parameters
    ----------
    sensitivity : pandas.DataFrame
        Of the study; nothing is said without its rows.
    models : pandas.DataFrame
        The headline's.

    Examples
    --------
    >>> names = ["the headline", "measured on all 4 skills", "without the first six months"]
    >>> rows = pd.DataFrame({"choice": names, "doubling_months": [5.4, 8.3, 9.0], "lo": [3.9, 5.3, 5.9],
    ...                      "hi": [8.8, 18.9, 18.5], "n": [5, 3, 2], "headline": [True, False, False]})
    >>> days = pd.to_datetime(["2023-03-01", "2023-04-01", "2023-05-01", "2024-01-01", "2025-01-01"])
    >>> models = pd.DataFrame({"released": days, "traits": [3, 3, 4, 4, 4], "density": [0.01, 0.02, 0.03, 0.2, 0.5]})
    >>> print(who_counts(rows, models))
    The pace depends on who is counted: 8.3 months (5.3 to 18.9; 3 models) for those measured on all 4 skills, 9.0
    months (5.9 to 18.5; 2 models) for those without the first six months, in place of 5.4. Of the 3 models of those six
    months 2 were measured on fewer skills, and have a median density of 0.015; the others have 0.030.
    """
    if sensitivity.empty or "traits" not in models:
        return ""
    table = sensitivity.set_index("choice")
    usual = table[table["headline"].map(flag).astype(bool)]
    others = table[table.index.to_series().str.startswith(("measured on all", "without the first")).to_numpy()]
    if usual.empty or others.empty:
        return ""
    parts = [
        f"{formatting.months(row['doubling_months'])} months ({formatting.short_interval(row['lo'], row['hi'])}; "
        f"{formatting.plural(int(row['n']), 'model')}) for those {formatting.clean(choice)}"
        for choice, row in others.to_dict("index").items()
    ]
    prose = (
        f"The pace depends on who is counted: {', '.join(parts)}, in place of "
        f"{formatting.months(usual['doubling_months'].iloc[0])}."
    )
    first = models[early(models["released"], pd.Series(True, index=models.index))]
    partly = first["traits"].lt(models["traits"].max())
    if not partly.any() or partly.all():
        return prose
    few, rest = (formatting.number(float(first.loc[mask, "density"].median())) for mask in (partly, ~partly))
    return (
        f"{prose} Of the {formatting.plural(len(first), 'model')} of those six months {int(partly.sum())} were "
        f"measured on fewer skills, and have a median density of {few}; the others have {rest}."
    )


def replication(frame: pd.DataFrame) -> str:
    """Return on how many references the paper's method covers the paper's figure."""
    if frame.empty:
        return ""
    covering = frame[frame["covers_paper"].map(flag)]
    # An interval without an upper end covers any longer doubling time: those are counted apart.
    bounded = int(np.isfinite(pd.to_numeric(covering["hi"], errors="coerce")).sum())
    return (
        f"The 95 % interval of the paper's own method covers its {PAPER_MONTHS} months on {len(covering)} of "
        f"{formatting.plural(len(frame), 'reference and benchmark set')}, {bounded} of these with an upper end; that "
        "method is biased fast and rests on few record-setters, so agreement replicates the procedure, not the rate."
    )


def chatgpt_split(split: Split) -> str:
    """Return whether the pace changed at the date named beforehand, beside the paper's rates.

    Parameters
    ----------
    split : Split
        Of a study.

    Examples
    --------
    >>> from densing.scores.study import Split
    >>> chatgpt_split(Split(reason="2 observed models before the date"))
    'A change of pace with ChatGPT cannot be tested here: 2 observed models before the date.'
    """
    stated = split.stated
    reason = split.reason or (None if stated is None else stated.reason)
    if reason:
        return f"A change of pace with ChatGPT cannot be tested here: {formatting.clean(reason, 300)}."
    if stated is None:
        return ""
    data = ""
    # The split has a window of its own: the usual headline's begins after the date that is tested.
    if split.window is not None:
        first, last = split.window
        data = (
            f" on {formatting.clean(split.benchmark)} from {formatting.clean(first)} to {formatting.clean(last)}: "
            f"{formatting.plural(stated.n_before, 'model')} before, {stated.n_after} after, scores of all evaluators "
            "pooled, dates of early models unverified"
        )
    prose = (
        f"At {formatting.clean(stated.date)}, named beforehand, the slope of all models goes from "
        f"{formatting.number(stated.slope_before)} to {formatting.number(stated.slope_after)} per day "
        f"({formatting.p_value(stated.p)}){data}. {trend_sentences.size_and_power(stated, 'without a break')}"
    )
    sides = split.sides
    if sides is None or sides.before.envelope is None or sides.after.envelope is None:
        return prose
    before, after = sides.before.envelope, sides.after.envelope
    return (
        f"{prose} The paper's envelope reads {formatting.number(before.slope_per_day)} before and "
        f"{formatting.number(after.slope_per_day)} after ({before.n} and {after.n} record-setters); the paper prints "
        f"{formatting.number(split.paper.before)} and {formatting.number(split.paper.after)}, untested."
    )


def backtest(result: Backtest) -> str:
    """Return how forecasts made earlier would have fared.

    Examples
    --------
    >>> from densing.scores.trend import Backtest
    >>> print(backtest(Backtest(n=40, level=0.9, coverage=0.85, median_error=0.7)))
    Fitted to earlier cuts of the data, the line's 90 % band for single models held 85 % of the 40 that
    followed (a model counts once for every cut before it); the median one had 2.0 times the line's density.
    >>> backtest(Backtest(n=0, why="too few models"))
    'The forecast could not be back-tested: too few models.'
    """
    if not result.n:
        return "" if not result.why else f"The forecast could not be back-tested: {formatting.clean(result.why, 300)}."
    prose = (
        f"Fitted to earlier cuts of the data, the line's {formatting.percentage(result.level)} band for single models "
        f"held {formatting.percentage(result.coverage)} of the {result.n} that followed (a model counts once for every "
        "cut before it)"
    )
    if result.median_error is not None and not formatting.is_missing(result.median_error):
        prose += f"; the median one had {formatting.number(np.exp(result.median_error))} times the line's density"
    # Errors are of ln ρ; their exponential is the factor by which a density was missed.
    moved, still = result.frontier_error, result.standstill_error
    if moved is None or still is None or formatting.is_missing(moved) or formatting.is_missing(still):
        return f"{prose}."
    better = "nearer" if result.beats_standing_still else "no nearer"
    return (
        f"{prose}. In the median over the cuts, the densest model half a year on had "
        f"{formatting.number(np.exp(moved))} times the density forecast for it, and {formatting.number(np.exp(still))} "
        f"times the record at the time: the forecast came {better} than assuming no progress."
    )


def past(forecast: PastForecast | None) -> str:
    """Return what came of the headline's own forecast where its time has passed.

    Examples
    --------
    >>> from densing.scores.study import PastForecast
    >>> from densing.scores.trend import ForecastScore
    >>> first, end = pd.Timestamp("2024-07-31"), pd.Timestamp("2025-01-30")
    >>> print(past(PastForecast(first, end, None)))
    The headline's own forecast, made from models to July 2024, ended in January 2025: that has passed, and no later
    model was measured on its reference, so it is neither scored nor shown.
    >>> print(past(PastForecast(first, end, ForecastScore(end, 12.0, 6.0, 40.0, 5.0, "A", 4.0))))
    The headline's own forecast, made from models to July 2024, put the frontier of 2025-01-30 at a density of 12 (90 %
    range 6.0 to 40); what came was 5.0 (A), outside the range, from a record of 4.0 at the time.
    """
    if forecast is None:
        return ""
    prose = f"The headline's own forecast, made from models to {formatting.month(forecast.made)}, "
    score = forecast.score
    if score is None:
        return (
            f"{prose}ended in {formatting.month(forecast.end)}: that has passed, and no later model was measured on "
            "its reference, so it is neither scored nor shown."
        )
    side = "inside" if score.lo90 <= score.came <= score.hi90 else "outside"
    ends = f"{formatting.number(score.lo90)} to {formatting.number(score.hi90)}"
    return (
        f"{prose}put the frontier of {formatting.day(score.date)} at a density of {formatting.number(score.mid)} (90 % "
        f"range {ends}); what came was {formatting.number(score.came)} ({formatting.clean(score.model)}), {side} the "
        f"range, from a record of {formatting.number(score.record)} at the time."
    )


def all_notes(study: Study) -> tuple[Note, ...]:
    """Return the notes of the study and of its parts without repeats, the severest first.

    Notes of what stands beside it and of the models shown apart say so: their figures are not the headline's.
    """
    parts: tuple[tuple[str, Any], ...] = (
        ("", study),
        ("", study.reference),
        ("", study.density),
        ("", study.trend),
        (f"{study.comparison.name}: " if study.comparison else "", study.comparison and study.comparison.trend),
        ("Shown apart: ", study.apart),
        ("Measured here: ", study.measured),
        ("Your models: ", study.placed),
    )
    notes: dict[tuple[str, str], Note] = {}
    for label, part in parts:
        for note in getattr(part, "notes", ()):
            if (note.code, formatting.sentence(note.message)) not in notes:
                message = f"{label}{note.message}" if label else formatting.sentence(note.message)
                notes[note.code, message] = replace(note, message=message)
    return tuple(severest_first(notes.values()))


FIELDS = (
    Field("Model", column("model"), hint="Name in the catalog"),
    Field(
        "Rank",
        column("rank", formatting.count),
        "rank",
        hint="By density among the headline's models; 1 is the densest",
    ),
    DENSITY,
    INTERVAL,
    RECIPE,
    RELEASED,
    Field("Group", column("stratum"), hint="Headline, or why the model is shown apart"),
    STATUS,
    SIZE,
    Field("Size from", column("params_basis"), hint="A count, the label in the name, or recalled", minor=True),
    Field(
        "Its rounding", ranged("params", formatting.size), "params_lo", hint="Sizes that print as this one", minor=True
    ),
    Field("Counted", column("denominator"), hint="Which parameters count", minor=True),
    EFFECTIVE,
    Field("Its interval", ranged("n_eff", formatting.size), "n_eff_lo", minor=True),
    numeric("Score", "score", formatting.three_digits),
    numeric("± s.e.", "score_se", hint="Standard error of the score", minor=True),
    numeric("Scores", "cells", formatting.count, hint="Scores behind it, on the joint scale", optional=True),
    numeric(
        "Skills", "traits", formatting.count, hint="Of the four, how many were measured", minor=True, optional=True
    ),
    Field("Benchmark", column("benchmark"), minor=True),
    Field("Family", column("family")),
    Field("Organisation", column("organisation"), minor=True),
    Field("Source", column("source", site), link="source", minor=True),
)


def models_table(study: Study) -> ShownTable:
    """Return every row of the study, densest first, limits of unknown height last."""
    caption = (
        "Every model measured, densest first; a click on a column's head sorts by it. Group says whether it is in the "
        "headline figures or why it is shown apart. Where a score cannot be read off the reference, the density is a "
        "limit: ≤ true value at or below, ≥ at or above. Intervals are those of this model; the recipe's, "
        "among all columns, add model-to-model scatter."
    )
    return shown_table(
        "models-table", caption, gathered(study), FIELDS, filters=("Group", "Status", "Family"), sortable=True
    )


def gathered(study: Study) -> pd.DataFrame:
    """Return all rows in one table with the columns ``stratum`` and, of the headline's, ``rank``, densest first."""
    main = study.density.table.assign(stratum="headline")
    apart, placed = study.apart, study.placed
    parts = [main, *([] if apart is None else [apart.table]), *([] if placed is None else [placed.densities.table])]
    frame = pd.concat([part.astype(object) for part in parts], ignore_index=True)
    # Limits without a value are not numbers and come last.
    height = pd.to_numeric(frame["density"], errors="coerce")
    leads = frame["stratum"].eq("headline") & height.notna()
    frame["rank"] = height.where(leads).rank(ascending=False, method="min")
    return frame.loc[height.sort_values(ascending=False, kind="stable", na_position="last").index]


def measured_table(measured: LocalEvaluation) -> ShownTable:
    """Return a row per model, task and quantity with its density."""
    table = None if measured.densities is None else measured.densities.table
    caption = (
        "Effective size and density by the loss of the correct answer (bits per byte) and by accuracy, task by task "
        "and on the mean of the tasks. Where a value lies off the reference, the density is a limit."
    )
    listing = density_listing(pd.DataFrame(columns=["quantity"]) if table is None else table, caption)
    return page_table("measured-table", listing, sortable=True)


def _quantity(row: Any) -> str:
    return "loss" if row.get("quantity") == "loss" else "accuracy"


def measured_words(measured: LocalEvaluation) -> list[str]:
    """Return what to know about the measurement, a sentence each; why there is none where there is none."""
    if measured.densities is None:
        return [formatting.sentence(measured.missing)]
    # That one is said of every reference when it is made; readers of the section do not need it.
    return [formatting.sentence(note.message) for note in measured.notes if note.code != "bootstrap-not-converged"]


def measured_lead(measured: LocalEvaluation) -> str:
    """Return what was measured and what it says, in a sentence or two; empty where nothing was."""
    if measured.densities is None:
        return ""
    parts = [part for quantity in ("loss", "score") if (part := measured.part(quantity)) is not None]
    rows = [row for part in parts for row in part.table.to_dict("records")]
    return " ".join(
        f"{formatting.clean(row['model'])}, read by {_quantity(row)} on "
        f"{formatting.plural(len(row['benchmarks'].split('+')), 'task')} ({formatting.count(row['n_items'])} items): "
        f"effective size {formatting.size(row['n_eff'])}, density {formatting.bounded(row['density'], row['bound'])} "
        f"({ranged('density', formatting.number)(row)}, 95 %, measured)."
        for row in rows
    )


def measured_figures(measured: LocalEvaluation | None) -> dict[str, tuple[go.Figure, str]]:
    """Return the figures of the section: on the loss law, on the score curve, and among the catalog's models."""
    if measured is None or measured.densities is None:
        return {}
    captioned = {}
    for quantity, caption in (("loss", LOSS_WORDS), ("score", SCORE_WORDS)):
        part = measured.part(quantity)
        if part is not None:
            captioned[f"measured-{quantity}"] = (plot_reference(part.reference, part), caption)
    if measured.among is not None and measured.placed is not None:
        captioned["measured-among"] = (plot_density(measured.among, placed=measured.placed), AMONG_WORDS)
    return captioned


LOSS_WORDS = (
    "Bits per byte of the correct answer against size: the ladder's runs, the fitted law at its reference number of "
    "tokens with its band, and the measured model at its own size (star), joined to the size at which the law has its "
    "loss. The distance is the density."
)
SCORE_WORDS = "The same by accuracy: the ladder's runs, the chained law from size to accuracy, and the measured model."
AMONG_WORDS = (
    "The measured model (star) among the catalog's models on the same ladder, by accuracy on the tasks that both "
    "have, every parameter counted on both sides. The catalog's scores were measured with other shots."
)
