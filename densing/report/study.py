"""The report of a study: headline, density, estimators, ruler, multiverse, checks, forecast, skills and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.core import Note, doubts, severest_first, words, write_text
from densing.plots import (
    CHOICES,
    JOURNAL_MONTHS,
    SECOND_HAND,
    plot_density,
    plot_estimates,
    plot_leave_one_out,
    plot_multiverse,
    plot_permutation,
    plot_reference,
    plot_skills,
    specifications,
)
from densing.report import page
from densing.report.checks import (
    backtest,
    check_data,
    check_sentences,
    diagnostics,
    long_window,
    past,
    questions,
    record_setter_bias,
    without_groups,
)
from densing.report.parts import (
    Field,
    Headline,
    ShownFigure,
    ShownTable,
    column,
    flag,
    pairs,
    ranged,
    shown,
    shown_figure,
)
from densing.scores.study import PAPER_MONTHS
from densing.scores.trend import sentences as trend_sentences

if TYPE_CHECKING:
    from densing.scores.references import Reference
    from densing.scores.study import Measured, Study
    from densing.scores.trend import Checks, TrendResult


SECTIONS = (
    ("headline", "Headline"),
    ("density", "Density"),
    ("measured", "Measured here"),
    ("estimators", "Estimators"),
    ("ruler", "Ruler"),
    ("multiverse", "Multiverse"),
    ("checks", "Checks"),
    ("forecast", "Forecast"),
    ("skills", "Skills"),
    ("models", "Models"),
    ("notes", "Notes"),
    ("sources", "Sources"),
    ("versions", "Versions"),
)


def build_report(study: Study, path: Path | str) -> Path:
    """Write the report of a study: one HTML file that needs no network.

    Everything that comes from data is escaped; the page's own policy forbids every request and every script
    but the two that are inlined.

    Parameters
    ----------
    study : Study
        What ``densing run`` computes.
    path : path
        File to write; written whole or not at all.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    densing.core.errors.InputError
        When the file cannot be written.

    See Also
    --------
    run_study
    """
    target = Path(path)
    write_text(target, render(study))
    return target


def render(study: Study) -> str:
    """Return the page as text."""
    measured = study.measured
    context = {
        "headline": headline(study),
        "figures": figures(study),
        "sections": [entry for entry in SECTIONS if entry[0] != "measured" or measured is not None],
        "long_title": long_title(study),
        "measured": measured and measured_table(measured),
        "measured_lead": measured and measured_lead(measured),
        "measured_sentences": measured and measured_words(measured),
        "asked_of": asked_of(study),
        "estimates": estimates_table(study.trend),
        "multiverse": multiverse_table(study.multiverse),
        "replication": replication_table(study.replication),
        "ruler": ruler_table(study.reference),
        "checks": check_sentences(study),
        "tests": other_tests_table(study.trend.checks),
        "diagnostics": diagnostics(study.trend.checks),
        "check_data": check_data(study),
        "questions": questions(study.questions),
        "backtest": backtest(study.backtest),
        "past": past(study.past_forecast),
        "corollaries": corollaries_table(study.corollaries),
        "models": models_table(study),
        "skills": skills_table(study.skills),
        "notes": all_notes(study),
        "provenance": provenance_table(study.provenance),
        "versions": pairs(study.versions),
        "hashes": pairs(study.hashes),
        "options": pairs(study.options),
    }
    return page.fill("report.html", context)


def headline(study: Study) -> Headline:
    """Put the study's headline in words; every caveat that the checks give comes with it."""
    head = study.trend.headline
    models, families = len(study.trend.data.model), len(set(study.trend.data.family))
    facts = (
        (
            "Models and families",
            f"{words.plural(models, 'model')}, {words.plural(families, 'family', 'families')}",
        ),
        ("Window", window(study.trend)),
        ("Ruler", words.clean(study.reference.title)),
        ("Score", short_benchmark(study.reference)),
        ("Estimator", words.clean(head.get("label", head.get("method")))),
    )
    title = trend_sentences.title(head, study.trend.data.released, level(study.trend))
    return Headline(title, lead(study), facts, caveats(study))


def lead(study: Study) -> str:
    """Return the sentence that states what was measured on what."""
    head, ruler = study.trend.headline, study.reference
    rows = study.trend.data
    families = words.plural(len(set(rows.family)), "family", "families")
    doubling = words.doubling(head["doubling_months"], head["lo"], head["hi"], level(study.trend))
    return (
        "Density is effective parameters over actual parameters: how large a model of the reference family "
        f"({words.clean(ruler.title)}) would have to be for the same score on {benchmark(ruler)}, over the "
        f"model's own size. Estimated from {words.plural(len(rows.model), 'model')} of {families}, released "
        f"{window(study.trend)}, its doubling time is {doubling}."
        f"{' With these data it cannot be excluded that density stands still.' if np.isinf(head['hi']) else ''}"
    )


def caveats(study: Study) -> tuple[str, ...]:
    """Return what the reader must know before quoting the number."""
    ruler = study.reference
    evaluator = (
        "evaluator not stated" if words.is_missing(ruler.evaluator) else f"scores by {words.clean(ruler.evaluator)}"
    )
    sentences = (
        trend_sentences.shuffled(study.trend.checks),
        long_window(study),
        without_groups(study),
        trend_sentences.by_organisation(study.trend.checks, level(study.trend)),
        record_setter_bias(study.trend.checks),
        *dict.fromkeys(words.sentence(note.message) for note in doubts((*study.notes, *study.trend.notes))),
        words.sentence(f"Models in the headline: {study.selection}"),
        members(study),
        words.clean(getattr(study.trend, "why", ""), 600),
        f"Density is relative to the ruler and the benchmark set ({evaluator}): another "
        "ruler gives other values; the multiverse below shows how far the doubling time moves with such "
        "choices.",
    )
    return tuple(caveat for caveat in sentences if caveat and caveat != words.MISSING)


def members(study: Study) -> str:
    """Return how many of the headline's models are the ruler's own; empty when none is."""
    own = sorted(set(map(str, study.trend.data.model)) & set(map(str, study.reference.points["model"])))
    if not own:
        return ""
    verb = "belongs" if len(own) == 1 else "belong"
    return (
        f"{len(own)} of these {words.plural(len(study.trend.data.model), 'model')} {verb} to the reference family "
        "itself, whose effective sizes are near their own by construction."
    )


def benchmark(ruler: Reference) -> str:
    """Return which score the ruler reads."""
    if ruler.benchmark != "mean":
        return words.clean(ruler.benchmark)
    names = ", ".join(words.clean(name, 40) for name in ruler.benchmarks)
    return f"the mean of {names}" if names else "the mean score"


def short_benchmark(ruler: Reference) -> str:
    """Return which score the ruler reads, without the list."""
    if ruler.benchmark != "mean":
        return words.clean(ruler.benchmark)
    return f"mean of {words.plural(len(ruler.benchmarks), 'benchmark')}"


def window(trend: TrendResult) -> str:
    """Return the first and last month of release of the rows."""
    released = pd.DatetimeIndex(trend.data.released)
    return f"{words.month(released.min())} to {words.month(released.max())}" if len(released) else "no dates"


def level(trend: TrendResult) -> float:
    """Return the confidence level of the intervals."""
    return float(trend.options.get("level", 0.95))


def long_title(study: Study) -> str:
    """Return the heading of the long window's figure."""
    if study.long_trend is None or study.long_reference is None:
        return ""
    return f"The long window: {window(study.long_trend)}, {short_benchmark(study.long_reference)}"


def asked_of(study: Study) -> str:
    """Return which trend and ruler the forecast's answers come from."""
    trend = study.trend if study.long_trend is None else study.long_trend
    ruler = study.asked_of
    return f"Read off the trend of {window(trend)}, ruler {words.clean(ruler.title)}, score on {benchmark(ruler)}."


def figures(study: Study) -> dict[str, ShownFigure]:
    """Return every figure of the report by name."""
    apart = 0 if study.apart is None else len(study.apart.table)
    earned = study.backtest.beats_standing_still
    near = study.forecast if earned and len(study.forecast) else None
    captioned = {
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
    return {name: shown_figure(name, figure, caption) for name, (figure, caption) in captioned.items()}


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
        table, trend, fan, captioned = study.density, study.trend, study.forecast, {}
    else:
        near = fan if earned and fan is not None and len(fan) else None
        caption = density_words(table.table, 0, fan=near is not None)
        captioned = {"long-density": (plot_density(table, trend, None, near), caption)}
    if not earned and fan is not None and len(fan):
        caption = f"{density_words(table.table, 0, fan=True)} In back-tests it came no nearer than no progress at all."
        captioned["forecast"] = (plot_density(table, trend, None, fan), caption)
    return captioned


def density_words(table: pd.DataFrame, apart: int, *, fan: bool = False) -> str:
    """Return what a density figure shows, for readers who cannot see it."""
    bounds = table["bound"].fillna("").astype(str) if "bound" in table else pd.Series("", table.index)
    limited = int((bounds != "").sum())
    caption = (
        f"Density ρ of {words.plural(len(table), 'model')} against release date, with the frontier (steps), "
        f"the fitted line and its 95 % band{', and the forecast fan (50 % dashed, 90 % dotted)' if fan else ''}."
    )
    if limited:
        caption += f" {words.plural(limited, 'model')} known only as a limit: the triangle points to the true value."
    if apart:
        caption += f" {words.plural(apart, 'model')} shown apart: choose a kind in the legend to see it."
    return caption


def _estimates_words(study: Study) -> str:
    head = study.trend.headline
    return (
        f"Doubling time by estimator with 95 % intervals; the headline ({words.clean(head.get('method'))}) is "
        f"the diamond at {words.doubling(head['doubling_months'], head['lo'], head['hi'])}. Open squares "
        "replicate the paper's envelope, which is biased fast. An arrow marks an unbounded end."
    )


def _reference_words(study: Study) -> str:
    ruler = study.reference
    inputs = ", ".join(f"{words.clean(name)} = {words.size(value)}" for name, value in ruler.given.items())
    return (
        f"The ruler {words.clean(ruler.title)}: {words.plural(len(ruler.points), 'point')}, the fitted "
        f"{words.clean(ruler.fit.law.name)} curve and its band{f', at {inputs}' if inputs else ''}. A model's "
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
    # An infinite value is allowed, so nothing is interpolated.
    ordered = np.sort(value)
    quarter, median, upper = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.25, 0.5, 0.75))
    unbounded = int(np.isinf(pd.to_numeric(rows["hi"], errors="coerce")).sum())
    lost = len(multiverse) - len(rows)
    caption = (
        f"{words.plural(len(rows), 'specification')} of ruler, benchmark, window, denominator and estimator: "
        f"median doubling time {words.months(median)} months, middle half {words.months(quarter)} to "
        f"{words.months(upper)}; "
        f"{unbounded} of the intervals have no upper end."
    )
    return caption + (f" {words.plural(lost, 'specification')} could not be estimated." if lost else "")


DENSITY = Field("Density", lambda row: words.bounded(row.get("density"), row.get("bound")), "density")
STATUS = Field("Status", lambda row: words.short_status(row.get("status"), row.get("bound")))


def estimates_table(trend: TrendResult) -> ShownTable:
    """Return the estimators side by side, the headline marked."""
    from densing.scores.trend import held_truth

    fields = (
        Field("Estimator", lambda row: words.clean(row.get("label", row.get("method")))),
        Field("Doubling, months", column("doubling_months", words.months), "doubling_months"),
        Field("95 % interval", _months_interval, "lo"),
        Field(
            "Held the truth",
            lambda row: held_truth(str(row.get("method"))) or words.MISSING,
            hint="Share of simulated worlds whose truth its 95 % interval held",
        ),
        Field("Slope per day", column("slope_per_day", words.number), "slope_per_day"),
        Field("Rows", column("n", words.count), "n"),
        Field("Families", column("clusters", words.count), "clusters"),
        Field("Dropped", column("dropped", words.count), "dropped", hint="Censored rows the estimator cannot use"),
        Field("Standard error", column("se_type")),
    )
    caption = (
        "All estimators on the same rows; the marked one is the headline. Held the truth: how often the estimator's 95 "
        "% interval did in simulated worlds, from the worst kind of world to the best."
    )
    return shown("estimates-table", caption, trend.estimates, fields, mark="headline")


def _months_interval(row: Any) -> str:
    return words.short_interval(row.get("lo"), row.get("hi"))


def ruler_table(ruler: Reference) -> ShownTable:
    """Return the points of the reference family with the miss of the curve at each."""
    points = ruler.points.copy()
    x = {"params": points["params"].to_numpy(float)}
    x |= {name: np.full(len(points), value) for name, value in ruler.given.items()}
    points["fitted"] = np.asarray(ruler.fit.predict(x), dtype=float) if len(points) else np.nan
    points["miss"] = points["score"] - points["fitted"]
    fields = (
        Field("Model", column("model")),
        Field("Size", column("params", words.size), "params"),
        Field("Score", column("score", _three_digits), "score"),
        Field("Curve", column("fitted", _three_digits), "fitted"),
        Field("Miss", column("miss", _signed), "miss", hint="Score less curve"),
        Field("Used", lambda row: "held out" if row.get("held_out") is True else "fitted"),
    )
    return shown("ruler-table", "Points of the ruler, and by how much the curve misses each.", points, fields)


def _three_digits(value: Any) -> str:
    return words.number(value, 3)


def _signed(value: Any) -> str:
    return words.MISSING if words.is_missing(value) else f"{float(value):+.3f}".replace("-", "−")


def multiverse_table(multiverse: pd.DataFrame) -> ShownTable:
    """Return every specification as a sortable table."""
    fields = (
        *(Field(name.capitalize(), column(name)) for name in CHOICES),
        Field("Doubling, months", column("doubling_months", words.months), "doubling_months"),
        Field("95 % interval", _months_interval, "lo"),
        Field("Rows", column("n", words.count), "n"),
        *shuffle_fields(),
    )
    caption = f"One row per specification; the marked one is the headline. {SHUFFLES}"
    return shown("multiverse-table", caption, multiverse, fields, mark="headline", sortable=True)


def shuffle_fields() -> tuple[Field, ...]:
    """Return the columns of the shuffle of whole families: its p, its size and its power."""
    return (
        Field("p, families shuffled", column("permutation_p", words.number), "permutation_p"),
        Field("Size", column("permutation_size", words.percentage), "permutation_size"),
        Field(f"Power at {PAPER_MONTHS}", column("permutation_power", words.percentage), "permutation_power"),
    )


SHUFFLES = (
    "p: share of shuffles of whole families' release dates with as steep a slope of all models; size and power: how "
    "often that test rejects at 5 % in worlds simulated on the same dates and families, without a trend and with a "
    f"doubling in {PAPER_MONTHS} months."
)


def replication_table(replication: pd.DataFrame) -> ShownTable:
    """Return the paper's own method by ruler and benchmark."""
    fields = (
        Field("Reference", column("reference")),
        Field("Benchmark", column("benchmark")),
        Field("Window", column("window")),
        Field("Doubling, months", column("doubling_months", words.months), "doubling_months"),
        Field("95 % interval", _months_interval, "lo"),
        Field("Rows", column("n", words.count), "n"),
        Field(f"Covers {PAPER_MONTHS}", lambda row: "yes" if flag(row.get("covers_paper")) else "no"),
        *shuffle_fields(),
    )
    caption = (
        "The paper's method (regression on record-setters, biased fast) on our rulers. The paper prints "
        f"about {PAPER_MONTHS} months (arXiv 2412.04315) without an interval; its journal version "
        f"{JOURNAL_MONTHS} months, {SECOND_HAND}. {SHUFFLES}"
    )
    return shown("replication-table", caption, replication, fields, sortable=True)


def corollaries_table(corollaries: pd.DataFrame) -> ShownTable:
    """Return what follows from the doubling time."""
    fields = (
        Field("Consequence", column("quantity")),
        Field("Value", column("value", words.months), "value"),
        Field("95 % interval", lambda row: f"{words.months(row.get('lo'))} to {words.months(row.get('hi'))}", "lo"),
        Field("Unit", column("unit")),
        Field("Equation", column("equation")),
    )
    caption = "What follows if the headline's doubling time holds; the intervals carry over from its own."
    return shown("corollaries-table", caption, corollaries, fields)


def skills_table(skills: pd.DataFrame) -> ShownTable:
    """Return the densities per skill."""
    fields = (
        Field("Model", column("model")),
        Field("Skill", column("skill")),
        DENSITY,
        Field("Interval", ranged("density", words.number), "density_lo"),
        Field("Effective size", column("n_eff", words.size), "n_eff"),
        STATUS,
        Field("Benchmarks", column("benchmarks")),
    )
    return shown("skills-table", "Density of every model for each skill.", skills, fields, sortable=True)


def provenance_table(provenance: pd.DataFrame) -> ShownTable:
    """Return the sources with licence and attribution."""
    fields = (
        Field("Source", column("title"), link="url"),
        Field("Id", column("id")),
        Field("Licence", column("licence")),
        Field("Attribution", column("attribution", lambda value: words.clean(value, 1000))),
        Field("Rows", column("rows", words.count), "rows"),
    )
    return shown("provenance-table", "Where the facts come from, and under which licence.", provenance, fields)


def other_tests_table(checks: Checks) -> ShownTable:
    """Return the tests that do not lead, with the size and power that say why."""

    def show_power(row: Mapping[str, Any]) -> str:
        powers = [f"{words.percentage(effect.share)} at {effect.effect}" for effect in row.get("power") or ()]
        return "; ".join(powers) or words.MISSING

    fields = (
        Field("Test", column("test")),
        Field("p", column("p", words.number), "p"),
        Field("Size", column("size", words.percentage), "size", hint="Rejects at 5 % where there is no trend"),
        Field("Power", show_power),
    )
    caption = (
        "Tests with the wrong size or no power on these dates and families: how often each rejects at 5 % in simulated "
        "worlds without a trend (size; 5 % is right) and with one (power)."
    )
    tests = trend_sentences.other_tests(checks).items()
    rows = [{"test": name, "p": test.p, "size": test.size, "power": test.power} for name, test in tests]
    return shown("tests-table", caption, pd.DataFrame(rows), fields)


def all_notes(study: Study) -> tuple[Note, ...]:
    """Return the notes of the study and of its parts without repeats, the severest first.

    Notes of the long window and of the models shown apart say so: their figures are not the headline's.
    """
    parts: tuple[tuple[str, Any], ...] = (
        ("", study),
        ("", study.reference),
        ("", study.density),
        ("", study.trend),
        ("Long window: ", study.long_trend),
        ("Shown apart: ", study.apart),
        ("Measured here: ", study.measured),
    )
    notes: dict[tuple[str, str], Note] = {}
    for label, part in parts:
        for note in getattr(part, "notes", ()):
            if (note.code, words.sentence(note.message)) not in notes:
                message = f"{label}{note.message}" if label else words.sentence(note.message)
                notes[note.code, message] = replace(note, message=message)
    return tuple(severest_first(notes.values()))


FIELDS = (
    Field("Model", column("model"), hint="Name in the catalog"),
    replace(DENSITY, hint="Effective over actual parameters"),
    Field("Interval", ranged("density", words.number), "density_lo", hint="95 %: ruler, score, scatter of models"),
    Field("Released", column("released", words.day), "released"),
    Field("Group", column("stratum"), hint="Headline, or why the model is shown apart"),
    STATUS,
    Field("Size", column("n_params", words.size), "n_params", hint="Parameters that divide"),
    Field("Counted", column("denominator"), hint="Which parameters count", minor=True),
    Field("Effective size", column("n_eff", words.size), "n_eff"),
    Field("Its interval", ranged("n_eff", words.size), "n_eff_lo", minor=True),
    Field("Score", column("score", _three_digits), "score"),
    Field("± s.e.", column("score_se", words.number), "score_se", hint="Standard error of the score", minor=True),
    Field("Benchmark", column("benchmark"), minor=True),
    Field("Family", column("family")),
    Field("Organisation", column("organisation"), minor=True),
    Field("Source", column("source"), link="source"),
)


def models_table(study: Study) -> ShownTable:
    """Return every row of the study, densest first, limits of unknown height last."""
    frame = gathered(study)
    caption = (
        "Every model measured. Group says whether it is in the headline figures or why it is shown apart. "
        "Where a score cannot be read off the ruler, the density is a limit: ≤ true value at or below, ≥ at "
        "or above."
    )
    return shown("models-table", caption, frame, FIELDS, filters=("Group", "Status", "Family"), sortable=True)


def gathered(study: Study) -> pd.DataFrame:
    """Return the headline rows and those apart in one table with the column ``stratum``, densest first."""
    main = study.density.table.assign(stratum="headline")
    parts = [main] if study.apart is None else [main, study.apart.table]
    frame = pd.concat([part.astype(object) for part in parts], ignore_index=True)
    height = pd.to_numeric(frame["density"], errors="coerce")
    return frame.loc[height.sort_values(ascending=False, kind="stable", na_position="last").index]


def measured_table(measured: Measured) -> ShownTable:
    """Return a row per model, task and quantity with its density."""
    fields = (
        Field("Model", column("model")),
        Field("Task", column("benchmark")),
        Field("Read by", _quantity),
        Field(
            "Value",
            lambda row: words.with_error(row.get("score"), row.get("score_se")),
            "score",
            hint="Loss in bits per byte, or share correct",
        ),
        DENSITY,
        Field("Interval", ranged("density", words.number), "density_lo", hint="95 %: items, ruler, scatter of models"),
        Field("Effective size", column("n_eff", words.size), "n_eff"),
        Field("Items", column("n_items", words.count), "n_items"),
        STATUS,
        Field("Size", column("n_params", words.size), "n_params", minor=True),
        Field("Counted", column("denominator"), minor=True),
    )
    table = None if measured.densities is None else measured.densities.table
    caption = (
        "Effective size and density by the loss of the correct answer (bits per byte) and by accuracy, task by task "
        "and on the mean of the tasks. Where a value lies off the ruler, the density is a limit."
    )
    return shown("measured-table", caption, table, fields, sortable=True)


def _quantity(row: Any) -> str:
    return "loss" if row.get("quantity") == "loss" else "accuracy"


def measured_words(measured: Measured) -> list[str]:
    """Return what to know about the measurement, a sentence each; why there is none where there is none."""
    if measured.densities is None:
        return [words.sentence(measured.missing)]
    # That one is said of every ruler when it is made; readers of the section do not need it.
    return [words.sentence(note.message) for note in measured.notes if note.code != "bootstrap-not-converged"]


def measured_lead(measured: Measured) -> str:
    """Return what was measured and what it says, in a sentence or two; empty where nothing was."""
    if measured.densities is None:
        return ""
    parts = [part for quantity in ("loss", "score") if (part := measured.part(quantity)) is not None]
    rows = [row for part in parts for row in part.table.to_dict("records")]
    return " ".join(
        f"{words.clean(row['model'])}, read by {_quantity(row)} on "
        f"{words.plural(len(row['benchmarks'].split('+')), 'task')} ({words.count(row['n_items'])} items): "
        f"effective size {words.size(row['n_eff'])}, density {words.bounded(row['density'], row['bound'])} "
        f"({ranged('density', words.number)(row)}, 95 %)."
        for row in rows
    )


def measured_figures(measured: Measured | None) -> dict[str, tuple[go.Figure, str]]:
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
