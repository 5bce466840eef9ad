r"""A back-test of forecasts: the catalog frozen at a date, the later models predicted, compared with outcomes.

Everything is fitted on the frozen part alone: the joint scale, the size curve, the lines. Of a later model a forecaster
learns its size, its maker, its date and which tests it will take. Forecasts are compared by the continuous ranked
probability score of their draws,

.. math:: \mathrm{CRPS} = E|X - y| - \tfrac12 E|X - X'|

in the unit of what is forecast, 0 at best. Source: Gneiting and Raftery 2007, doi:10.1198/016214506000001437, eq. 21.

What came is, for scores, what was published. For abilities it is the later model's ability on the scale of the full
catalog, read on the frozen basket of benchmarks and carried to the frozen scale by the line through the models that
both hold (two chains differ a little in level and unit). For densities it is what the full catalog's own reference
prints, moved by its mean difference from the frozen reference over the same models, so that a reference that proved
wrong costs its forecasts. The other way, to place later models on the frozen tests with their parameters fixed, would
drop every model that only new evaluators measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from densing.core import (
    Array,
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    UnavailableError,
    UnknownNameError,
    column,
    flag,
    formatting,
    named_stream,
    numeric,
    plain,
    ranged,
    to_date,
)
from densing.scores.catalog import Catalog, Selection, strata
from densing.scores.density import RELEASED
from densing.scores.joint import GENERAL, JointScale, catalog_scale, joint_baskets, joint_cells
from densing.scores.references import JointReference, joint_reference
from densing.scores.trend.data import DAYS_PER_MONTH, EPOCH
from densing.scores.trend.forecasters import FORECASTERS, Forecaster, Known, size_slopes

ORIGINS = ("2023-12-31", "2024-12-31", "2025-11-14")
"""The ends of past years, and a date from which little was known while this was written."""
MONTHS, FURTHEST = 12.0, 120.0
FEWEST_CELLS = 3
"""The ability of a model known from fewer cells mostly reflects the prior."""
FEWEST_KNOWN, FEWEST_FAMILIES = 10, 3
"""Models since Llama-1, and families of them, without which there is no trend to carry on."""
FEW_FAMILIES = 6
TARGETS = {"score": "points", "ability": "logits", "density": "ln units"}
LEVEL = 0.9
RESAMPLES = 2000
SIZES = (1e9, 4e9, 8e9, 32e9)
CASES = ["origin", "target", "forecaster", "model", "family", "released", "params", "test", "linked", "came"]
QUANTILES = {"lo90": 0.05, "lo50": 0.25, "mid": 0.5, "hi50": 0.75, "hi90": 0.95}


def crps(draws: Array, outcome: Array) -> Array:
    r"""Return the continuous ranked probability score of draws, exact for their empirical distribution.

    .. math:: \frac1R \sum_r |x_r - y| - \frac1{R^2} \sum_r (2 r - R - 1)\, x_{(r)}

    Source: Gneiting and Raftery 2007, eq. 21, the second expectation by order statistics.

    Parameters
    ----------
    draws : array, shape (R, n)
    outcome : array, shape (n,)

    Returns
    -------
    array, shape (n,)
        In the unit of the outcome.

    Raises
    ------
    InputError
        Without draws.

    Examples
    --------
    >>> crps(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([1.0, 3.0])).tolist()
    [0.5, 2.0]
    """
    draws = np.asarray(draws, dtype=float)
    if not len(draws):
        raise InputError("CRPS of no draws: a forecast needs at least one")
    count = len(draws)
    rank = 2 * np.arange(1, count + 1) - count - 1
    pairs = rank @ np.sort(draws.reshape(count, -1), axis=0) / count**2
    return np.asarray(np.abs(draws - outcome).mean(axis=0) - pairs.reshape(draws.shape[1:]))


def freeze(catalog: Catalog, origin: Any) -> Catalog:
    """Return the catalog as of a date: without later models, their scores, their benchmarks and their evaluators.

    Models without a date are left out too, and so are those dated to a month that was not over.

    Parameters
    ----------
    catalog : Catalog
    origin : date-like
        The last day that counts.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> bool(freeze(load_catalog(), "2023-12-31").models["released"].max() <= pd.Timestamp("2023-12-31"))
    True
    """
    last = _origin(origin)
    models = catalog.models[_released(catalog.models, "last") <= last]
    scores = catalog.scores[catalog.scores["model"].isin(models["model"])]
    return replace(
        catalog,
        models=models.reset_index(drop=True),
        scores=scores.reset_index(drop=True),
        benchmarks=catalog.benchmarks[catalog.benchmarks["id"].isin(scores["benchmark"])].reset_index(drop=True),
        evaluators=catalog.evaluators[catalog.evaluators["id"].isin(scores["evaluator"])].reset_index(drop=True),
        notes=(),
    )


def _origin(origin: Any) -> pd.Timestamp:
    try:
        stamp = to_date(origin) if isinstance(origin, str) else pd.Timestamp(origin)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{origin!r} is not a date to freeze the catalog at; write 2025-11-14") from error
    if pd.isna(stamp) or not 1970 <= stamp.year <= 2200:
        raise InputError(f"{origin!r} is not a date to freeze the catalog at; write 2025-11-14")
    return stamp.normalize()


def _released(models: pd.DataFrame, end: str) -> pd.Series:
    """Return the first or last day on which a model may have been released, given a date or only a month."""
    released = pd.to_datetime(models["released"])
    if "released_precision" not in models:
        return released
    month = released.dt.to_period("M").dt.to_timestamp(how="start")
    edge = month if end == "first" else month + pd.offsets.MonthEnd(0)
    return released.mask(models["released_precision"].eq("month"), edge)


@dataclass(frozen=True, repr=False)
class ForecastBacktest(Readable):
    """Forecasts made from earlier dates, compared with outcomes.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per origin (of several also ``all``, their mean), target and forecaster: ``n`` (scores, or models),
        ``models, families, unit, crps, mae``, ``bias`` (outcome minus the middle of the forecast), the shares
        ``cover50, cover90`` inside the intervals, and the CRPS skill ``vs_nearest`` and ``vs_still`` (1 is perfect, 0
        is no better) with ``lo`` and ``hi``, 90 %, families resampled. Each model counts once.
    cases : pandas.DataFrame
        One row per origin, target, forecaster and item forecast: the forecast (``mid, lo50, hi50, lo90, hi90``)
        and what ``came``, ``crps, pit``; ``linked`` says whether any test of the model was known at the origin.
    origins : pandas.DataFrame
        One row per origin: ``origin, status, models, families, sentence``; status is ``ok``, ``few families``, ``no
        trend yet`` or ``no later models``.
    forecasters : tuple of str
        Names, the simplest first.
    labels : mapping of str to str
        Assumption of each.
    months : float
        Horizon of each forecast.

    See Also
    --------
    backtest_forecasts, best_forecaster
    """

    table: pd.DataFrame
    cases: pd.DataFrame
    origins: pd.DataFrame
    forecasters: tuple[str, ...]
    labels: dict[str, str]
    months: float

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """Caveats: models without a known test, dates with few families, or that nothing was tested."""
        notes = []
        unlinked = sorted(set(self.cases.loc[~self.cases["linked"].astype(bool), "model"]))
        if unlinked:
            message = (
                f"{formatting.plural(len(unlinked), 'later model')} took only tests that no earlier model took; where "
                f"they stand rests on a benchmark being alike in other hands ({formatting.listed(unlinked)})"
            )
            notes.append(Note("unlinked", "warning", message, {"models": unlinked}))
        if self.cases.empty:
            reasons = "; ".join(f"{row.origin.date()}: {row.sentence}" for row in self.origins.itertuples())
            notes.append(Note("no-backtest", "error", f"no forecast could be tested: {reasons}"))
        few = [
            formatting.day(origin) for origin in self.origins.loc[self.origins["status"].eq("few families"), "origin"]
        ]
        if few:
            message = (
                f"fewer than {FEW_FAMILIES} families came after {formatting.listed(few)}: read those rows as examples"
            )
            notes.append(Note("few-families", "warning", message, {"origins": few}))
        return tuple(notes)

    def pit(self, bins: int = 10) -> pd.DataFrame:
        """Return the histogram of the outcomes' quantiles in their forecasts: share per bin, 1 / bins if calibrated.

        Returns
        -------
        pandas.DataFrame
            One row per target and forecaster, a column per bin by its upper end; each model counts once an origin.

        Source: Dawid 1984; Gneiting, Balabdaoui and Raftery 2007, section 3.1.
        """
        ends = np.linspace(0, 1, bins + 1)
        rows = []
        for (target, forecaster), part in self.cases.groupby(["target", "forecaster"], sort=False):
            weight = 1 / part.groupby(["origin", "model"])["came"].transform("size")
            shares = np.histogram(part["pit"], bins=ends, weights=weight)[0] / weight.sum()
            rows.append((target, forecaster, *shares))
        return pd.DataFrame(rows, columns=["target", "forecaster", *(f"{end:.2g}" for end in ends[1:])])

    def models(self, forecaster: str) -> pd.DataFrame:
        """Return one forecaster's forecast of every later model, beside the outcome.

        Returns
        -------
        pandas.DataFrame
            One row per origin and model: ``origin, model, family, released, params, linked``; the measured ``density``
            and the ``forecast`` with ``lo90, hi90``; how many ``scores`` were forecast, their mean ``points`` and
            ``points_forecast``, and the share ``inside90``.

        Raises
        ------
        UnknownNameError
            For a forecaster that did not take part.
        """
        if forecaster not in self.forecasters:
            raise UnknownNameError("forecaster", forecaster, self.forecasters)
        if self.cases.empty:
            return pd.DataFrame(columns=["origin", "model", "family", "released", "params", "linked"])
        own = self.cases[self.cases["forecaster"].eq(forecaster)]
        keys = ["origin", "model"]
        density = own[own["target"].eq("density")]
        ends = {"density": "came", "forecast": "mid", "lo90": "lo90", "hi90": "hi90"}
        table = density[[*keys, "family", "released", "params", "linked"]].assign(
            **{name: np.exp(density[column].astype(float)) for name, column in ends.items()}
        )
        score = own[own["target"].eq("score")]
        score = score.assign(inside=score["came"].between(score["lo90"], score["hi90"]))
        means = score.groupby(keys).agg(
            scores=("came", "size"),
            points=("came", "mean"),
            points_forecast=("mid", "mean"),
            inside90=("inside", "mean"),
        )
        merged = table.merge(means.reset_index(), on=keys, how="left")
        return merged.assign(scores=merged["scores"].fillna(0).astype(int)).sort_values(
            ["origin", "released", "model"], ignore_index=True
        )

    def sentences(self) -> list[str]:
        """Say which forecaster won for each target, how often its intervals held, and which way trends erred."""
        if self.cases.empty:
            return []
        lines = []
        last = self.table.drop_duplicates(["target", "forecaster"], keep="last").set_index(["target", "forecaster"])
        for target in (name for name in TARGETS if name in set(self.cases["target"])):
            choice = best_forecaster(self, target)
            inside = last.loc[(target, choice.forecaster), "cover90"]
            lines.append(
                f"{choice.sentence} Its 90 % intervals covered {formatting.percentage(inside)} of the outcomes."
            )
        for name in (name for name in ("trend", "recent trend", "standing still") if name in self.forecasters):
            biases = self.table[self.table["target"].eq("density") & self.table["forecaster"].eq(name)]
            parts = [
                f"{row.origin} {formatting.number(float(np.exp(abs(row.bias))))} times too "
                f"{'low' if row.bias > 0 else 'high'}"
                for row in biases[biases["origin"].ne("all")].itertuples()
            ]
            lines.append(f"Densities by {name} stood, from {formatting.listed(parts, len(parts), '; from ')}.")
        return lines

    def summary(self) -> str:
        """Return origins and figures as plain text."""
        lines = [str(row.sentence) for row in self.origins.itertuples()]
        lines += self.sentences()
        return "\n".join([self.card().title, *lines, *(f"[{note.severity}] {note.message}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "months": self.months,
            "origins": plain(self.origins.to_dict("records")),
            "sentences": self.sentences(),
            "table": plain(self.table.to_dict("records")),
            "pit": plain(self.pit().to_dict("records")) if len(self.cases) else [],
            "cases": plain(self.cases.to_dict("records")),
            "forecasters": [{"name": name, "assumes": self.labels[name]} for name in self.forecasters],
            "notes": [plain(note.to_dict()) for note in self.notes],
        }

    def card(self) -> Card:
        """Return what is shown: the mean CRPS of every forecaster, over all origins."""
        usable = self.origins["status"].isin(["ok", "few families"])
        title = (
            f"Forecasts of {self.months:g} months from {formatting.plural(int(usable.sum()), 'date')} against outcomes"
        )
        facts = {formatting.day(row.origin): str(row.sentence) for row in self.origins.itertuples()}
        table = self.table.drop_duplicates(["target", "forecaster"], keep="last")
        return Card(title, facts, scores_listing(table, title), self.notes)

    def models_listing(self, forecaster: str) -> Listing:
        """Return every later model, and what a forecaster said of it."""
        fields = (
            Field("Model", column("model")),
            RELEASED,
            numeric("Size", "params", formatting.size),
            numeric("Density", "density"),
            numeric("Forecast", "forecast"),
            _between(90),
            numeric("Scores", "scores", formatting.count),
            numeric("Points", "points", formatting.three_digits),
            numeric("Forecast points", "points_forecast", formatting.three_digits),
            numeric("In 90 %", "inside90", formatting.percentage),
            Field("Linked", lambda row: "yes" if flag(row["linked"]) else "no"),
            Field("Frozen at", column("origin", formatting.day)),
        )
        return Listing(f"Later models and their forecasts by {forecaster!r}", self.models(forecaster), fields)


def backtest_forecasts(
    catalog: Catalog,
    origins: Iterable[Any] = ORIGINS,
    *,
    months: float = MONTHS,
    selection: Selection | None = None,
    basket: str = GENERAL,
    forecasters: Sequence[Forecaster] = FORECASTERS,
    scale: Callable[[Catalog], JointScale] = catalog_scale,
    seed: int = 0,
    step: Callable[[str, float], None] = lambda label, share: None,
) -> ForecastBacktest:
    """Freeze the catalog at each origin, forecast the models of the months after, and score the forecasts.

    Parameters
    ----------
    catalog : Catalog
        Embedded, or with a user's rows.
    origins : iterable of date-like
        Dates to freeze at.
    months : float
        Models released within this many months after an origin are forecast.
    selection : Selection, optional
        Models that are used and forecast; dense base models with a sourced date by default.
    basket : str
        Benchmarks behind abilities and densities: ``general`` (or ``mean``), a skill, ``multilingual`` or a language.
    forecasters : sequence of Forecaster
        The simplest first.
    scale : callable
        Fits the joint scale of a catalog; kept on disk by default, some 20 s each the first time.
    seed : int
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    ForecastBacktest
        Where an origin has too few models before or none after it, its status and a sentence say so; a note of severity
        ``error`` where no origin has both.

    Raises
    ------
    InputError
        For no origin, a date that is none, or a horizon of no length.
    UnknownNameError
        For a basket that the full catalog's scale does not have.

    Examples
    --------
    A chain of sixty sweeps is enough for an example, not for figures.

    >>> from densing.scores.catalog import load_catalog
    >>> from densing.scores.joint import fit_joint, joint_cells
    >>> short = lambda catalog: fit_joint(joint_cells(catalog), chains=1, sweeps=9, burn=6, draws=9)
    >>> known = freeze(load_catalog(), "2024-06-30")
    >>> result = backtest_forecasts(known, ["2023-12-31"], months=6, scale=short)
    >>> result.origins["status"].tolist(), len(result.table)
    (['ok'], 18)
    >>> best_forecaster(result).forecaster in result.forecasters
    True

    See Also
    --------
    best_forecaster, forecast_now
    """
    dates = sorted({_origin(origin) for origin in origins})
    if not dates:
        raise InputError("no date to freeze at; give one, as 2025-11-14")
    if not 0 < months <= FURTHEST:
        raise InputError(f"a horizon of {months} months: give a number above zero, {FURTHEST:g} at most")
    basket = GENERAL if basket == "mean" else basket
    # A basket that the full scale has not is a slip of the caller: this raises, before minutes of fits.
    if basket != GENERAL and basket not in (baskets := joint_baskets(joint_cells(catalog))):
        raise UnknownNameError("basket of the joint scale", basket, baskets)
    full: _Full | None = None
    rows, cases = [], []
    for turn, origin in enumerate(dates):
        step(f"frozen at {origin.date()}", turn / (len(dates) + 1))
        status, sentence, later = _later(catalog, origin, months, selection)
        ground: _Ground | None = None
        if status == "ok":
            ground, sentence = _frozen(freeze(catalog, origin), selection, basket, scale, seed)
            status = "ok" if ground else "no trend yet"
        part = pd.DataFrame(columns=CASES)
        if ground:
            # The full scale is read only where there is something to compare it with.
            full = full or _Full.of(catalog, scale, basket)
            part = _cases(ground, full, _measured(later, full), forecasters, origin, seed)
            status, sentence = _outcome(part, origin, months)
        cases.append(part)
        counted = (part["model"].nunique(), part["family"].nunique())
        rows.append((origin, status, *counted, sentence))
    step("scores of the forecasts", len(dates) / (len(dates) + 1))
    filled = [part for part in cases if len(part)]
    everything = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=CASES)
    names = tuple(forecaster.name for forecaster in forecasters)
    table = _table(everything, names, seed) if filled else pd.DataFrame(columns=["origin", "target", "forecaster"])
    return ForecastBacktest(
        table=table,
        cases=everything,
        origins=pd.DataFrame(rows, columns=["origin", "status", "models", "families", "sentence"]),
        forecasters=names,
        labels={forecaster.name: forecaster.label for forecaster in forecasters},
        months=months,
    )


@dataclass(frozen=True)
class Choice:
    """The forecaster that won a back-test.

    Parameters
    ----------
    forecaster : str
        The simplest of those that do not differ significantly from the best.
    target : str
        ``score``, ``ability`` or ``density``.
    lowest : str
        The one with the lowest mean CRPS; empty if no back-test was possible.
    tied : tuple of str
        Those whose paired interval against it contains zero, including itself.
    sentence : str
    """

    forecaster: str
    target: str
    lowest: str
    tied: tuple[str, ...]
    sentence: str


def best_forecaster(result: ForecastBacktest, target: str = "density", seed: int = 0) -> Choice:
    """Return the winner: the forecaster with the lowest mean CRPS over origins; of ties the simpler one.

    A tie is a paired difference from the lowest whose 90 % interval, families resampled, contains zero. Forecasters
    are ordered by simplicity in ``result.forecasters``. Without a back-test the simplest is taken, and the sentence
    says so.

    Parameters
    ----------
    result : ForecastBacktest
    target : {"density", "ability", "score"}
    seed : int
        Seeds the resampling of families.

    Raises
    ------
    InputError
        For another target.

    See Also
    --------
    backtest_forecasts
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS)
    cases = result.cases[result.cases["target"].eq(target)] if len(result.cases) else result.cases
    names = list(result.forecasters)
    if cases.empty:
        sentence = f"No forecast of {target} could be tested; shown is the simplest, {names[0]}."
        return Choice(names[0], target, "", (), sentence)
    means, drawn = _resampled(cases, names, seed)
    best = int(np.argmin(means))
    low = np.quantile(drawn - drawn[:, [best]], (1 - LEVEL) / 2, axis=0)
    # One family has no interval: nothing can be told apart then.
    tied = [name for name, end in zip(names, low, strict=True) if not end > 0]
    winner = tied[0]
    others = formatting.listed(
        (f"{names[at]} {means[at]:.3g}" for at in np.argsort(means) if names[at] != winner), len(names)
    )
    dates, models, families = (cases[name].nunique() for name in ("origin", "model", "family"))
    how = "has the lowest mean CRPS" if winner == names[best] else f"cannot be told from {names[best]} and is simpler"
    sentence = (
        f"Over {formatting.plural(dates, 'date')} and {formatting.plural(models, 'later model')} of "
        f"{formatting.plural(families, 'family', 'families')}, {winner} ({result.labels[winner]}) {how} for {target}: "
        f"{means[names.index(winner)]:.3g} {TARGETS[target]} ({others})."
    )
    return Choice(winner, target, names[best], tuple(tied), sentence)


@dataclass(frozen=True, repr=False)
class Outlook(Readable):
    """The winning forecaster's forecast of models to come.

    Parameters
    ----------
    choice : Choice
        The forecaster, and why it was chosen.
    table : pandas.DataFrame
        One row per date and size: ``released, params``, ``density`` with ``lo50, hi50, lo90, hi90``, and ``ability``:
        of a single model to come, not of the densest.
    since : Timestamp
        The last known release.
    sentence : str
        The forecast in words.
    notes : tuple of Note

    See Also
    --------
    forecast_now
    """

    choice: Choice
    table: pd.DataFrame
    since: pd.Timestamp
    sentence: str
    notes: tuple[Note, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "forecaster": self.choice.forecaster,
            "lowest": self.choice.lowest,
            "tied": list(self.choice.tied),
            "why": self.choice.sentence,
            "since": formatting.day(self.since),
            "sentence": self.sentence,
            "table": plain(self.table.to_dict("records")),
            "notes": [plain(note.to_dict()) for note in self.notes],
        }

    def card(self) -> Card:
        """Return what is shown: the sentence, who forecasts, and the table."""
        facts = {"forecast": self.sentence, "forecaster": self.choice.forecaster}
        return Card(f"Models after {formatting.day(self.since)}", facts, self.listing, self.notes)

    @property
    def listing(self) -> Listing:
        """The density of a model to come, by date and size."""
        fields = (
            RELEASED,
            numeric("Size", "params", formatting.size),
            numeric("Density", "density"),
            _between(50),
            _between(90),
            numeric("Ability, logits", "ability", minor=True),
        )
        return Listing(f"Density of models after {formatting.day(self.since)}, of one model each", self.table, fields)


def forecast_now(
    catalog: Catalog,
    months: float = MONTHS,
    *,
    result: ForecastBacktest | None = None,
    selection: Selection | None = None,
    basket: str = GENERAL,
    forecasters: Sequence[Forecaster] = FORECASTERS,
    scale: Callable[[Catalog], JointScale] = catalog_scale,
    seed: int = 0,
    step: Callable[[str, float], None] = lambda label, share: None,
) -> Outlook:
    """Forecast the models of the months after the last release with the forecaster that won the back-test.

    Parameters
    ----------
    catalog : Catalog
    months : float
        Counted from the last release of the selection, not from today.
    result : ForecastBacktest, optional
        The back-test; :func:`backtest_forecasts` with the same options by default.
    selection, basket, forecasters, scale, seed, step
        As there.

    Raises
    ------
    InputError
        When the catalog has too few models for any forecast, or the horizon has no length.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> from densing.scores.joint import fit_joint, joint_cells
    >>> short = lambda catalog: fit_joint(joint_cells(catalog), chains=1, sweeps=9, burn=6, draws=9)
    >>> known = freeze(load_catalog(), "2024-06-30")
    >>> result = backtest_forecasts(known, ["2023-12-31"], months=6, scale=short)
    >>> outlook = forecast_now(known, 6, result=result, scale=short)
    >>> str(outlook.since.date()) <= "2024-06-30", sorted(set(outlook.table["params"]))[0]
    (True, 1000000000.0)

    See Also
    --------
    best_forecaster
    """
    if not 0 < months <= FURTHEST:
        raise InputError(f"a horizon of {months} months: give a number above zero, {FURTHEST:g} at most")
    basket = GENERAL if basket == "mean" else basket
    if result is None:
        result = backtest_forecasts(
            catalog,
            selection=selection,
            basket=basket,
            forecasters=forecasters,
            scale=scale,
            seed=seed,
            step=step,
        )
    choice = best_forecaster(result, seed=seed)
    ground, reason = _frozen(catalog, selection, basket, scale, seed)
    if ground is None:
        raise InputError(f"no forecast: {reason}")
    chosen = next(forecaster for forecaster in forecasters if forecaster.name == choice.forecaster)
    since = pd.Timestamp(ground.known.models["released"].max())
    dates = [since + pd.Timedelta(days=round(share * months * DAYS_PER_MONTH)) for share in (0.25, 0.5, 0.75, 1.0)]
    later = pd.DataFrame([(day, size) for day in dates for size in SIZES], columns=["released", "params"])
    later = later.assign(
        model="to come",
        family="to come",
        organisation="",
        days=(later["released"] - EPOCH) / pd.Timedelta(days=1),
        log_params=np.log(later["params"]),
    )
    # One after the other under one name: what is random is the same, so that rows differ by date and size alone.
    rows = [chosen.abilities(ground.known, later.iloc[[at]], seed) for at in range(len(later))]
    ability = ground.ability(np.concatenate(rows, axis=1))
    density = np.exp(ground.log_density(ability, later["log_params"].to_numpy(dtype=float)))
    quantiles = dict(zip(QUANTILES, np.quantile(density, list(QUANTILES.values()), axis=0), strict=True))
    table = later[["released", "params"]].assign(
        density=quantiles["mid"],
        **{name: quantiles[name] for name in ("lo50", "hi50", "lo90", "hi90")},
        ability=np.median(ability, axis=0),
    )
    end = density[:, later["released"].eq(dates[-1]).to_numpy()]
    low, middle, high = np.quantile(end, [0.05, 0.5, 0.95])
    kinds = (selection or Selection()).describe().removesuffix(" with a sourced release date")
    sentence = (
        f"By {formatting.month(dates[-1])}, {choice.forecaster}: {kinds} of {formatting.size(SIZES[0])} to "
        f"{formatting.size(SIZES[-1])} parameters have a density of {middle:.2g} (90 %: {low:.2g} to {high:.2g}; "
        f"1 is the recipe of {ground.reference.fit.options['anchor']})"
    )
    notes = (*result.notes, *(note for note in ground.reference.notes if note.severity != "info"))
    return Outlook(choice, table, since, sentence, notes)


@dataclass(frozen=True)
class _Ground:
    """The known models, and the frozen reference that turns abilities into densities."""

    known: Known
    scale: JointScale
    reference: JointReference
    basket: str

    def ability(self, vectors: Array) -> Array:
        return self.scale.ability(self.basket, vectors)

    def log_density(self, ability: Array, log_params: Array) -> Array:
        """Return ln densities of draws (R, m), each read on the matching draw of the reference."""
        level, slope = self.reference.fit.draws[:, :1], self.reference.fit.draws[:, 1:]
        return np.asarray((ability - level) / slope - log_params)


@dataclass(frozen=True)
class _Full:
    """The scale of the full catalog, and its reference."""

    catalog: Catalog
    scale: JointScale
    reference: JointReference

    @classmethod
    def of(cls, catalog: Catalog, scale: Callable[[Catalog], JointScale], basket: str) -> _Full:
        fitted = scale(catalog)
        return cls(catalog, fitted, joint_reference(catalog, _reference_name(basket), scale=fitted))


def _reference_name(basket: str) -> str:
    return "mean" if basket == GENERAL else basket


def _later(
    catalog: Catalog, origin: pd.Timestamp, months: float, selection: Selection | None
) -> tuple[str, str, pd.DataFrame]:
    """Return status, sentence and the selected models of the months after an origin."""
    models = catalog.models
    end = origin + pd.Timedelta(days=months * DAYS_PER_MONTH)
    after = models[(_released(models, "first") > origin) & (pd.to_datetime(models["released"]) <= end)]
    labels = strata(catalog, selection).set_index("model")["stratum"]
    stratum = after["model"].map(labels)
    later = _rows(after[stratum.eq("headline")])
    if len(later):
        return "ok", "", later
    if after.empty:
        return "no later models", f"the catalog has no model of the {months:g} months after {origin.date()}", later
    reasons = formatting.listed(f"{n} {reason}" for reason, n in stratum.value_counts().items())
    sentence = (
        f"of {formatting.plural(len(after), 'model')} of the {months:g} months after {origin.date()} none is among "
        f"{(selection or Selection()).describe()} ({reasons})"
    )
    return "no later models", sentence, later


def _rows(models: pd.DataFrame) -> pd.DataFrame:
    """Return what a forecaster may know about models, by date and name."""
    released = pd.to_datetime(models["released"])
    rows = pd.DataFrame(
        {
            "model": models["model"].astype(str),
            "family": models["family"].fillna(models["model"]).astype(str),
            "organisation": models["organisation"].fillna(models["model"]).astype(str),
            "released": released,
            "days": (released - EPOCH) / pd.Timedelta(days=1),
            "log_params": np.log(models["params_total_b"].astype(float) * 1e9),
        }
    )
    return rows.sort_values(["days", "model"], ignore_index=True)


def _frozen(
    frozen: Catalog,
    selection: Selection | None,
    basket: str,
    scale: Callable[[Catalog], JointScale],
    seed: int,
) -> tuple[_Ground | None, str]:
    """Fit everything on a frozen catalog, or say why that is impossible."""
    labels = strata(frozen, selection).set_index("model")["stratum"]
    rows = _rows(frozen.models[frozen.models["model"].map(labels).eq("headline")])
    recent = rows[rows["days"] >= 0]
    if len(recent) < FEWEST_KNOWN or recent["family"].nunique() < FEWEST_FAMILIES:
        sentence = (
            f"before it {formatting.plural(len(recent), 'such model')} of "
            f"{formatting.plural(recent['family'].nunique(), 'family', 'families')} since {EPOCH.date()}: no trend to "
            f"carry on; {FEWEST_KNOWN} of {FEWEST_FAMILIES} are needed, choose a later date"
        )
        return None, sentence
    try:
        fitted = scale(frozen)
        if basket not in fitted.baskets:
            return None, f"no model known then was measured on {basket}"
        reference = joint_reference(frozen, _reference_name(basket), scale=fitted, seed=seed)
    except (InputError, UnavailableError) as error:
        return None, f"nothing could be fitted before it: {error}"
    cells = fitted.cells.table
    count = cells["model"].value_counts()
    rows = rows[rows["model"].map(count).fillna(0) >= FEWEST_CELLS].reset_index(drop=True)
    if (rows["days"] >= 0).sum() < FEWEST_KNOWN or rows.loc[rows["days"] >= 0, "family"].nunique() < FEWEST_FAMILIES:
        return (
            None,
            f"before it only {formatting.plural(len(rows), 'such model')} with {FEWEST_CELLS} scores: no trend yet",
        )
    vectors = fitted.draws.abilities.astype(float)
    position = pd.Index(fitted.models)
    # What more size buys is learnt from dense models, whichever are forecast.
    dense = _rows(
        frozen.models[frozen.models["model"].map(strata(frozen).set_index("model")["stratum"]).eq("headline")]
    )
    dense = dense[dense["model"].map(count).fillna(0) >= FEWEST_CELLS]
    slopes = size_slopes(
        vectors[:, position.get_indexer(dense["model"])],
        dense["family"].to_numpy(dtype=str),
        dense["log_params"].to_numpy(dtype=float),
        seed,
    )
    known = Known(
        models=rows,
        abilities=vectors[:, position.get_indexer(rows["model"])],
        slopes=slopes,
        scores=cells.loc[cells["model"].isin(rows["model"]), ["model", "test", "score"]],
        scale=fitted,
    )
    return _Ground(known, fitted, reference, basket), ""


def _measured(later: pd.DataFrame, full: _Full) -> pd.DataFrame:
    """Return the later models with enough scores."""
    count = full.scale.cells.table["model"].value_counts()
    return later[later["model"].map(count).fillna(0) >= FEWEST_CELLS].reset_index(drop=True)


def _cases(
    ground: _Ground,
    full: _Full,
    later: pd.DataFrame,
    forecasters: Sequence[Forecaster],
    origin: pd.Timestamp,
    seed: int,
) -> pd.DataFrame:
    """Return one row per forecaster, target and thing forecast."""
    if later.empty:
        return pd.DataFrame(columns=CASES)
    known, cells = ground.known, full.scale.cells.table
    published = cells[cells["model"].isin(later["model"]) & cells["test"].isin(ground.scale.tests)]
    linked = later["model"].isin(published["model"])
    # Tests that no model of the selection took have no nearest model: every forecaster is scored on the same cells.
    published = published[published["test"].isin(known.scores["test"])].reset_index(drop=True)
    # The noise of a score yet to come is not known: that of the test's known scores stands for it.
    noise = ground.scale.cells.table.groupby("test")["se"].median()
    trait = ground.scale.cells.table.drop_duplicates("test").set_index("test")["trait"]
    future = published[["model", "test", "evaluator"]].assign(
        se=published["test"].map(noise), trait=published["test"].map(trait)
    )
    scored = later[later["model"].isin(future["model"])].reset_index(drop=True)
    sizes = later["log_params"].to_numpy(dtype=float)
    abilities, densities = _came(ground, full, later)
    about = later.assign(params=np.exp(sizes), test="", linked=linked.to_numpy())
    of_cells = published[["model", "test"]].merge(about.drop(columns="test"), on="model", how="left")
    frames = []
    for forecaster in forecasters:
        vectors = forecaster.abilities(known, later, seed)
        ability = ground.ability(vectors)
        forecasts = {
            "ability": (about, ability, abilities),
            "density": (about, ground.log_density(ability, sizes), densities),
        }
        if len(future):
            drawn = 100 * forecaster.scores(known, scored, future, seed)
            forecasts = {"score": (of_cells, drawn, 100 * published["score"].to_numpy(dtype=float)), **forecasts}
        for target, (rows, draws, outcome) in forecasts.items():
            quantiles = np.quantile(draws, list(QUANTILES.values()), axis=0)
            frame = rows.assign(origin=origin, target=target, forecaster=forecaster.name, came=outcome)[CASES]
            frames.append(
                frame.assign(
                    **dict(zip(QUANTILES, quantiles, strict=True)),
                    crps=crps(draws, outcome),
                    pit=(draws < outcome).mean(axis=0) + 0.5 * (draws == outcome).mean(axis=0),
                )
            )
    return pd.concat(frames, ignore_index=True)


def _came(ground: _Ground, full: _Full, later: pd.DataFrame) -> tuple[Array, Array]:
    """Return abilities and ln densities of later models, at the level of the frozen scale and reference; shape (m,)."""
    basket = ground.scale.basket(ground.basket)
    common = ground.known.models
    frozen = np.median(ground.scale.ability(basket), axis=0)[pd.Index(ground.scale.models).get_indexer(common["model"])]
    abilities = np.median(full.scale.ability(basket), axis=0)
    position = pd.Index(full.scale.models)
    unit, shift = np.polyfit(abilities[position.get_indexer(common["model"])], frozen, 1)
    own = np.median(full.scale.ability(full.scale.basket(ground.basket)), axis=0)

    def log_density(reference: JointReference, ability: Array, models: pd.DataFrame) -> Array:
        level, slope = reference.fit.theta
        return np.asarray((ability - level) / slope - models["log_params"].to_numpy(dtype=float))

    moved = float(
        np.mean(
            log_density(ground.reference, frozen, common)
            - log_density(full.reference, own[position.get_indexer(common["model"])], common)
        )
    )
    where = position.get_indexer(later["model"])
    return unit * abilities[where] + shift, log_density(full.reference, own[where], later) + moved


def _outcome(cases: pd.DataFrame, origin: pd.Timestamp, months: float) -> tuple[str, str]:
    """Return status and sentence of an origin whose forecasts could be made."""
    if cases.empty:
        return "no later models", f"no model of the {months:g} months after {origin.date()} has {FEWEST_CELLS} scores"
    families, models = cases["family"].nunique(), cases["model"].nunique()
    scores = int((cases["target"].eq("score") & cases["forecaster"].eq(cases["forecaster"].iloc[0])).sum())
    sentence = (
        f"{formatting.plural(models, 'model')} of {formatting.plural(families, 'family', 'families')} came in "
        f"{months:g} months, with {formatting.plural(scores, 'score')} on tests known then"
    )
    if families < FEW_FAMILIES:
        return "few families", f"{sentence}; too few for a verdict of their own"
    return "ok", sentence


def _resampled(cases: pd.DataFrame, names: Sequence[str], seed: int) -> tuple[Array, Array]:
    """Return the mean CRPS of each forecaster (F,), and with reweighted families (RESAMPLES, F).

    Each model counts once within its origin, each origin once. Weights of families are exponential (Bayesian bootstrap)
    and the same for all forecasters, so that differences are paired.
    """
    per_model = cases.pivot_table(
        index=["origin", "family", "model"], columns="forecaster", values="crps", aggfunc="mean"
    )
    values = per_model[list(names)].to_numpy(dtype=float)
    origin = pd.factorize(per_model.index.get_level_values("origin"))[0]
    family, codes = np.unique(per_model.index.get_level_values("family").to_numpy(dtype=str), return_inverse=True)[0:2]
    # The stream has the name under which the shipped tables were drawn.
    weights = named_stream(seed, "families", "rehearsal").exponential(size=(RESAMPLES, len(family)))[:, codes]
    weights = np.vstack([np.ones(len(codes)), weights])
    means = np.mean(
        [
            weights[:, origin == turn] @ values[origin == turn] / weights[:, origin == turn].sum(axis=1, keepdims=True)
            for turn in range(int(origin.max()) + 1)
        ],
        axis=0,
    )
    return means[0], means[1:] if len(family) > 1 else np.full_like(means[1:], np.nan)


def _table(cases: pd.DataFrame, names: Sequence[str], seed: int) -> pd.DataFrame:
    rows = []
    groups = [(formatting.day(origin), part) for origin, part in cases.groupby("origin")]
    # An average over one date is that date's row.
    for origin, part in [*groups, ("all", cases)] if len(groups) > 1 else groups:
        for target in TARGETS:
            group = part[part["target"].eq(target)]
            if group.empty:
                continue
            means, drawn = _resampled(group, names, seed)
            for at, name in enumerate(names):
                own = group[group["forecaster"].eq(name)]
                weight = 1 / own.groupby(["origin", "model"])["came"].transform("size")
                # As the CRPS: each model once within its origin, each origin once.
                weight = weight / weight.groupby(own["origin"]).transform("sum")
                row: dict[str, Any] = {
                    "origin": origin,
                    "target": target,
                    "forecaster": name,
                    "n": len(own),
                    "models": own["model"].nunique(),
                    "families": own["family"].nunique(),
                    "unit": TARGETS[target],
                    "crps": means[at],
                    "mae": float(np.average((own["came"] - own["mid"]).abs(), weights=weight)),
                    "bias": float(np.average(own["came"] - own["mid"], weights=weight)),
                    "cover50": float(np.average(own["came"].between(own["lo50"], own["hi50"]), weights=weight)),
                    "cover90": float(np.average(own["came"].between(own["lo90"], own["hi90"]), weights=weight)),
                }
                for short, reference in (("vs_nearest", "nearest"), ("vs_still", "standing still")):
                    if reference not in names:
                        continue
                    other = names.index(reference)
                    tail = (1 - LEVEL) / 2
                    skill = 1 - drawn[:, at] / drawn[:, other]
                    row[short] = 1 - means[at] / means[other]
                    row[f"{short}_lo"], row[f"{short}_hi"] = np.quantile(skill, [tail, 1 - tail])
                rows.append(row)
    return pd.DataFrame(rows)


def _between(share: int) -> Field:
    """Return the column of an interval of a forecast, which holds so many in a hundred."""
    low, high = f"lo{share}", f"hi{share}"
    return Field(
        f"{share} % interval", lambda row: f"{formatting.number(row[low])} to {formatting.number(row[high])}", low
    )


def scores_listing(rows: pd.DataFrame, title: str) -> Listing:
    """Return rows of :attr:`ForecastBacktest.table` as people read them."""
    units = set(rows["unit"]) if len(rows) else set()
    unit = f", {units.pop()}" if len(units) == 1 else ""
    signed = formatting.signed
    fields = (
        Field("Frozen at", column("origin")),
        *([] if unit else [Field("Of", column("target")), Field("Unit", column("unit"))]),
        Field("Forecast", column("forecaster"), hint="Simplest first"),
        numeric("Models", "models", formatting.count, hint="Released in the twelve months after"),
        numeric("Families", "families", formatting.count),
        numeric(f"CRPS{unit}", "crps", hint="Distance from what came; 0 is best"),
        numeric(f"Bias{unit}", "bias", signed, hint="What came less the middle of the forecast"),
        numeric("In 50 %", "cover50", formatting.percentage, hint="Of what came, in the 50 % interval"),
        numeric("In 90 %", "cover90", formatting.percentage),
        Field("Skill against standing still", ranged("vs_still", signed), "vs_still", hint="1 is perfect; 90 %"),
        Field("Against the nearest", ranged("vs_nearest", signed), "vs_nearest", minor=True, optional=True),
    )
    return Listing(title, rows, fields)
