"""From dated densities to a doubling time: all estimators side by side, one headline, every check."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from densing.core import Array, Card, FitError, InputError, Listing, Note, Readable, cached, plain
from densing.scores.catalog import family_groups
from densing.scores.trend import sentences
from densing.scores.trend.checks import FEW_FAMILIES, Checks, check_headline
from densing.scores.trend.data import EPOCH, DensityLike, Slope, TrendData
from densing.scores.trend.estimators import ESTIMATORS, HEADLINE, LINE, estimates_table, record, why
from densing.scores.trend.front import Front, fit_front
from densing.scores.trend.listing import estimates_listing
from densing.scores.trend.pace import PRIORS, PaceFit, fit_pace
from densing.scores.trend.tobit import Headline, fit_headline

SHOWN = 3
KEPT = 20
"""Trends whose fits stay in the cache folder."""
MAX_MODELS = 1000
PACE_COLUMNS = ["date", "months", "lo", "hi", "per_year", "per_year_lo", "per_year_hi"]


@dataclass(frozen=True, repr=False)
class TrendResult(Readable):
    """A doubling time with alternatives, checks and caveats.

    Parameters
    ----------
    data : TrendData
        The rows used.
    estimates : pandas.DataFrame
        One row per estimator: method, label, slope_per_day, slope_lo, slope_hi, doubling_months, lo, hi, n,
        clusters, se_type, dropped, headline. ``hi`` is infinite where the slope's interval reaches zero.
    headline : pandas.Series
        The row of ``estimates`` to quote.
    checks : Checks
        Tests of the trend and of a break (each with p, size and power), the headline without single families,
        organisations and named groups, the envelope's bias, diagnostics, what the interval rests on.
    draws : array, shape (R,)
        Draws of the headline's slope per day, the mean over the window.
    options : mapping
        level, seed, permutations, bootstrap, cluster, worlds.
    notes : tuple of Note
    fit : Headline
        One straight line through the window; checks and forecasts use it.
    varying : PaceFit or None
        The fit of a changing pace behind the headline; None if the data cannot support it.
    why : str
        Why this estimator leads, in a sentence; :attr:`record` has the figures.

    See Also
    --------
    estimate_trend, forecast, when

    Examples
    --------
    >>> import densing
    >>> densities = densing.catalog_densities(densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu"))
    >>> trend = densing.estimate_trend(densities.headline, permutations=19, bootstrap=50, worlds=0, keep=True)
    >>> bool(trend.headline["lo"] < trend.headline["doubling_months"])
    True
    """

    drawn_by: ClassVar[str] = "densing.plots:plot_estimates"

    data: TrendData
    estimates: pd.DataFrame
    headline: pd.Series
    checks: Checks
    draws: Array
    options: Mapping[str, Any]
    notes: tuple[Note, ...]
    fit: Headline
    why: str
    varying: PaceFit | None = None

    def predict(self, dates: Any, level: float | None = None) -> pd.DataFrame:
        """Return the headline's curve, ln(density) of a typical model, at dates.

        Parameters
        ----------
        dates : datetime-like, or a sequence of them
        level : float, optional
            Of the band; the trend's own by default.

        Returns
        -------
        pandas.DataFrame
            date, mid, lo, hi: the band of the curve, not of single models.
        """
        share = float(self.options["level"]) if level is None else level
        stamps = pd.DatetimeIndex(pd.to_datetime(np.atleast_1d(np.asarray(dates))))
        days = np.asarray((stamps - EPOCH) / pd.Timedelta(days=1), dtype=float)
        if self.varying is not None:
            curves = self.varying.curve(days)
            mid = np.median(curves, axis=0)
        else:
            ahead = days - self.fit.centre
            mid = self.fit.line[0] + self.fit.line[1] * ahead
            curves = self.fit.lines[:, :1] + self.fit.lines[:, 1:] * ahead
        lo, hi = np.quantile(curves, [0.5 - share / 2, 0.5 + share / 2], axis=0)
        return pd.DataFrame({"date": stamps, "mid": mid, "lo": lo, "hi": hi})

    def pace(self) -> pd.DataFrame:
        """Return the pace by month: ``date, months, lo, hi`` of doubling, and the same in doublings per year.

        Empty if the data cannot support a changing pace.
        """
        return pd.DataFrame(columns=PACE_COLUMNS) if self.varying is None else self.varying.table()

    @cached_property
    def priors(self) -> pd.DataFrame:
        """Effect of the prior on the pace's changes: a row per prior with both means; computed on demand."""
        rows, own = [], self.varying
        for prior in PRIORS if own is not None else ():
            level, seed = float(self.options["level"]), int(self.options["seed"])
            usual = own is not None and prior == own.prior
            fit = own if own is not None and usual else fit_pace(self.data, level, prior=prior, seed=seed)
            for part, slope in (("window", fit.window), ("last twelve months", fit.last_year)):
                rows.append((prior, part, *slope.doubling, fit.growing, fit.slower))
        names = ["prior", "part", "doubling_months", "lo", "hi", "growing", "slower"]
        return pd.DataFrame(rows, columns=names)

    @cached_property
    def front(self) -> Front | None:
        """Pace and records of the densest models; computed on demand, None if there are too few."""
        try:
            return fit_front(self.data, self.varying, float(self.options["level"]), seed=int(self.options["seed"]))
        except FitError:
            return None

    @property
    def line(self) -> pd.Series:
        """The row of ``estimates`` of the straight line, which the checks refer to."""
        return self.estimates.loc[self.estimates["method"] == LINE.name].iloc[0]

    @property
    def now(self) -> str:
        """The pace of the last twelve months in a sentence; empty if the data cannot support it."""
        return "" if self.varying is None else sentences.now(self.varying, self.data.released)

    @property
    def text(self) -> str:
        """The doubling time in words."""
        row = self.headline
        return sentences.doubling_text(float(row["doubling_months"]), float(row["lo"]), float(row["hi"]))

    @property
    def title(self) -> str:
        """The headline in words, with its window and its interval."""
        return sentences.title(self.headline, self.data.released, float(self.options["level"]))

    def quoted(self, reference: str, benchmark: str) -> str:
        """Return the trend in one quotable paragraph: both paces, the models and the reference."""
        families = len(set(map(str, self.data.family)))
        return sentences.quoted(
            self.title, self.now, models=len(self.data), families=families, reference=reference, benchmark=benchmark
        )

    @property
    def record(self) -> str:
        """How the estimators performed in simulations with a known answer, in words."""
        return record(HEADLINE.name)

    def summary(self) -> str:
        """Return headline, estimators, checks, secondary tests and notes as plain text."""
        lines = [f"{self.title}, {self.headline['method']}", *([self.now] if self.now else []), self.why, ""]
        lines += [
            f"  {row.method:<14}{sentences.doubling_text(row.doubling_months, row.lo, row.hi)}; n {row.n}, "
            f"dropped {row.dropped}"
            for row in self.estimates.itertuples()
        ]
        lines += ["", *(f"  {sentence}" for sentence in self.sentences())]
        lines += ["", "Details", *(f"  {sentence}" for sentence in (self.record, *self.details()))]
        lines += [f"  [{note.severity}] {note.message}" for note in self.notes]
        return "\n".join(lines)

    def sentences(self) -> list[str]:
        """Say what the leading checks found; checks that could not run are left out."""
        parts = (
            sentences.shuffled(self.checks),
            sentences.broken(self.checks),
            sentences.without_groups(self.checks, float(self.line["doubling_months"])),
            sentences.left_out(self.checks),
            sentences.by_organisation(self.checks, float(self.options["level"])),
            sentences.bias(self.checks),
        )
        return [part for part in parts if part]

    def details(self) -> list[str]:
        """Say what the tests without size or power on these data found."""
        return [sentences.other_test(name, test) for name, test in sentences.other_tests(self.checks).items()]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the rows as JSON-ready data; infinite and missing numbers become None."""
        return {
            "headline": plain(self.headline.to_dict()),
            "text": self.text,
            "title": self.title,
            "now": self.now,
            "last_year": self._last_year,
            "pace": plain(self.pace().to_dict("records")),
            "why": self.why,
            "record": self.record,
            "estimates": plain(self.estimates.to_dict("records")),
            "checks": self.checks.to_dict(),
            "options": plain(self.options),
            "notes": [plain(note.to_dict()) for note in self.notes],
            "n": len(self.data),
        }

    @property
    def _last_year(self) -> dict[str, Any] | None:
        """The last twelve months for programs."""
        if self.varying is None:
            return None
        slope = self.varying.last_year
        return plain(
            {
                **dict(zip(("doubling_months", "lo", "hi"), slope.doubling, strict=True)),
                "slope_per_day": slope.slope,
                "slope_lo": slope.lo,
                "slope_hi": slope.hi,
                "growing": self.varying.growing,
                "slower": self.varying.slower,
            }
        )

    @property
    def listing(self) -> Listing:
        """The estimators side by side, the headline marked; without the paper's own, which stand by themselves."""
        return estimates_listing(self.estimates, self.title)

    def card(self) -> Card:
        """Return the card: the headline, the models behind it, every estimator."""
        facts = {"mean over the window": self.text}
        if self.varying is not None:
            facts["last twelve months"] = sentences.slope_text(self.varying.last_year)
        facts |= {"estimated by": str(self.headline["label"]), "models": str(len(self.data))}
        return Card(self.title, facts, self.listing, self.notes)

    def _repr_html_(self) -> str:
        table = self.listing.texts().to_html(index=False, escape=True)
        lines = [*([self.now] if self.now else []), *self.sentences(), *(note.message for note in self.notes)]
        items, details = ("".join(f"<li>{html.escape(line)}</li>" for line in part) for part in (lines, self.details()))
        more = f"<details><summary>Other tests</summary><ul>{details}</ul></details>" if details else ""
        return f"<p><b>{html.escape(self.title)}</b></p>{table}<ul>{items}</ul>{more}"


@dataclass(frozen=True)
class _Fitted:
    """The slow parts of a trend; everything else follows from them and the data."""

    slopes: dict[str, Slope]
    fit: Headline
    varying: PaceFit | None
    checks: Checks


def estimate_trend(
    data: TrendData | DensityLike,
    *,
    level: float = 0.95,
    seed: int = 0,
    permutations: int = 999,
    bootstrap: int = 500,
    cluster: str = "family",
    worlds: int = 200,
    groups: Mapping[str, Iterable[str]] | None = None,
    keep: bool = False,
) -> TrendResult:
    """Estimate how fast density doubles, over the window and now, by several methods, with every check.

    ln rho = f(t); T = ln 2 / (mean of f') / 30.44 months.

    Source: eq. 5 of Xiao et al., arXiv 2412.04315, for the question; :func:`densing.scores.trend.fit_pace` for the
    answer, :func:`densing.scores.trend.fit_headline` for the straight line that the checks take apart.

    Parameters
    ----------
    data : TrendData or DensityResult
        Of a density result, all rows with a date are used; ``result.headline`` holds those of the headline.
    level : float
        Of all intervals.
    seed : int
        Seeds everything random.
    permutations : int
        Shuffles of release dates.
    bootstrap : int
        Resamples of families for the quantile line.
    cluster : {"family", "organisation", "model"}
        Unit taken as independent.
    worlds : int
        Simulated worlds behind the size and power of each test; 0 leaves them out.
    groups : mapping of str to families, optional
        Groups to leave out together, by name; by default those that the catalog declares.
    keep : bool
        Whether fits and checks are cached, and read from the cache for the same data and options.

    Raises
    ------
    InputError
        With more than :data:`MAX_MODELS` rows.
    FitError
        With fewer than three observed rows, fewer than two families or a single release date.

    Examples
    --------
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> trend = estimate_trend(simulate(Scenario(doubling_months=3.5), seed=4), permutations=99, worlds=20)
    >>> trend.headline["method"]
    'pace'

    See Also
    --------
    TrendData, forecast, when
    """
    data = data if isinstance(data, TrendData) else TrendData.from_density(data)
    if len(data) > MAX_MODELS:
        raise InputError(
            f"{len(data)} models are more than the {MAX_MODELS} that a trend takes: its quantile line tries every pair "
            "on every model; narrow the window (--since, --until), or keep fewer models"
        )
    rows = data.ordered()
    options = {
        "level": level,
        "seed": seed,
        "permutations": permutations,
        "bootstrap": bootstrap,
        "cluster": cluster,
        "worlds": worlds,
    }
    groups = {name: list(families) for name, families in (family_groups() if groups is None else groups).items()}

    def work() -> _Fitted:
        fit = fit_headline(rows, level, cluster=cluster, seed=seed)
        try:
            varying = fit_pace(rows, level, seed=seed)
        except FitError:
            varying = None
        # What is fitted already is not fitted again: more of it is needed than its slope.
        ready = {LINE.name: fit.slope, **({} if varying is None else {HEADLINE.name: varying.window})}
        slopes = {
            name: ready[name]
            if name in ready
            else estimator.fit(rows, level, cluster=cluster, bootstrap=bootstrap, seed=seed)
            for name, estimator in ESTIMATORS.items()
        }
        checks = check_headline(
            rows,
            fit,
            slopes["envelope"].slope,
            level=level,
            seed=seed,
            permutations=permutations,
            cluster=cluster,
            worlds=worlds,
            groups=groups,
        )
        return _Fitted(slopes, fit, varying, checks)

    made = cached(work, _Fitted, "trend", rows, options, groups, by=estimate_trend, most=KEPT) if keep else work()
    fit, varying, checks = made.fit, made.varying, made.checks
    estimates = estimates_table(made.slopes)
    return TrendResult(
        data=rows,
        estimates=estimates,
        headline=estimates.loc[estimates["headline"]].iloc[0],
        checks=checks,
        draws=fit.lines[:, 1] if varying is None else varying.window_draws(len(fit.lines)),
        options=options,
        notes=(*data.notes, *_notes(rows, fit, checks, varying)),
        fit=fit,
        varying=varying,
        why=why(HEADLINE.name),
    )


def _notes(data: TrendData, fit: Headline, checks: Checks, varying: PaceFit | None) -> list[Note]:
    notes = []
    count = fit.slope.clusters
    if count < FEW_FAMILIES:
        message = (
            f"{count} families; an interval that treats families as independent needs {FEW_FAMILIES} or more, "
            "read the range without one family instead"
        )
        notes.append(Note("few-families", "warning", message, {"families": count}))
    if not np.isfinite(fit.slope.hi):
        message = "the slope rests on a single family, so it has no interval; widen the window"
        notes.append(Note("no-interval", "error", message))
    elif fit.slope.lo <= 0:
        message = "the interval of the slope contains zero: no upper end for the doubling time"
        notes.append(Note("unbounded-doubling", "warning", message))
    p = None if checks.permutation is None else checks.permutation.headline_family_blocks.p
    if p is not None and p > 0.05:
        message = f"release dates shuffled among families give a slope as steep in {100 * p:.0f} % of cases"
        notes.append(Note("permutation", "warning", message, {"p": p}))
    best = None if checks.breakpoint is None else checks.breakpoint.searched
    # A pace that may change has said so itself.
    if varying is None and best is not None and best.p is not None and best.p <= 0.05:
        message = (
            f"the pace changes within the window (searched break {best.date}, p = {best.p:.3f}): "
            "one doubling time averages over unlike periods"
        )
        notes.append(Note("break", "warning", message, {"date": best.date, "p": best.p}))
    record = float(data.log_density[data.observed].max())
    denser = np.flatnonzero((data.censor > 0) & (data.log_density > record))
    if len(denser):
        names = [str(name) for name in data.model[denser]]
        subject = f"{names[0]} is" if len(names) == 1 else f"{len(names)} models ({', '.join(names[:SHOWN])}, ...) are"
        message = (
            f"{subject} beyond the reference and denser than the densest measured model ({np.exp(record):.3g}): "
            "record-setters and forecasts, which use measured densities only, are biased low"
        )
        notes.append(Note("denser-than-record", "warning", message, {"models": names}))
    censored = 1 - float(data.observed.mean())
    if censored > 0.5:
        message = f"{100 * censored:.0f} % of the rows are outside the reference's range and known only as bounds"
        notes.append(Note("mostly-censored", "warning", message, {"share": censored}))
    return notes
