"""Does density for facts grow: IKP's probes put into densing's terms, with a doubling time, an interval and tests.

score_i = a + b log10(N_i) + c (t_i - mean t)       the reference, fitted to these models and read at their mean date
ln rho_i = ln 10 ((score_i - a) / b - log10 N_i)    effective over real size, as a density
ln rho = d + s t                                    s = ln 10 c / b: growth of density, T = ln 2 / s

There is no outside reference for these probes, so the curve of score against size is fitted to the models in question,
as IKP's effective size is. Without the date among its terms a curve takes part of any trend for an effect of size, as
far as newer models are larger (the slope shrinks by the share of the dates' variance that sizes explain); the date is
therefore in it, and the curve without it stands beside as a variant.

The interval leaves out one family at a time and fits the reference and the slope again, V = (G - 1)/G sum_g (s_-g -
s)^2, t with G - 1 degrees of freedom; the ends of the doubling time come from the ends of the slope. For a slope on a
known reference this is the CRV3 error of MacKinnon, Nielsen and Webb, J. Econometrics 232 (2023) 272-299. Abilities and
logits are made once, from all models.

Source: Bojie Li, Incompressible Knowledge Probes, arXiv 2604.24827, for verdicts and effective size; Xiao et al., arXiv
2412.04315, eq. 1 and 5, for density and doubling time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from densing.core import Array, Card, InputError, Note, Readable, formatting, listing_of
from densing.scores.catalog import PARTS, TIERS, FactualRecall, binomial_variance
from densing.scores.trend.checks import FEW_FAMILIES
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR, EPOCH, Slope, TrendData, doubling_months
from densing.scores.trend.fact_fits import (
    PACE_MONTHS,
    RecallReplication,
    mean_accuracy,
    reasoning_twins,
    two_sided,
)
from densing.scores.trend.sentences import doubling_text, window

EQUAL = tuple(part for part in PARTS if part != "block")
"""Parts that every model was put: equal footing."""
EASY, RARE = TIERS[:3], TIERS[3:]
"""Facts that most models know, and facts that few do."""
MIN_MODELS, MIN_FAMILIES = 5, 3
POWER = 0.8
NOISE_MATTERS = 0.1
"""Share of the scatter about the curve from which on the noise of the items is worth weights."""


def mean_logit(answers: pd.DataFrame) -> pd.Series:
    """Return the mean over tiers of the empirical logit, ln((right + 1/2) / (asked - right + 1/2)), per model.

    Shares are bounded and so nonlinear near 0 and 1, where the rare and the easy tiers lie; logits are not. NaN if a
    tier has no answer.

    Source: Haldane, Annals of Human Genetics 20 (1956) 309-311, for the halves.
    """
    logits = np.log((answers["right"] + 0.5) / (answers["asked"] - answers["right"] + 0.5))
    return logits.where(answers["asked"] > 0).groupby("model", sort=False).agg(lambda tiers: tiers.mean(skipna=False))


def rasch_ability(answers: pd.DataFrame) -> pd.Series:
    """Return the ability of each model in a Rasch model of its tiers, by maximum likelihood.

    logit P(right) = ability_model - difficulty_tier

    A model that answers everything or nothing right has no finite ability, and a tier that all or none answer right has
    no finite difficulty: such models are NaN, such tiers are left out.

    Source: Rasch, Probabilistic Models for Some Intelligence and Attainment Tests (1960); as a binomial GLM in
    statsmodels.
    """
    import statsmodels.api as sm
    from statsmodels.tools.sm_exceptions import PerfectSeparationWarning

    order = answers.index.get_level_values("model").unique()
    rows = answers[answers["asked"] > 0]
    # Leaving out a tier can leave a model with nothing but right answers, and the other way round.
    while len(rows):
        sums = {by: rows.groupby(by)[["right", "asked"]].transform("sum") for by in ("model", "tier")}
        finite = np.logical_and(*((part["right"] > 0) & (part["right"] < part["asked"]) for part in sums.values()))
        if finite.all():
            break
        rows = rows[finite]
    if not len(rows):
        return pd.Series(math.nan, index=order)
    model_codes, models = pd.factorize(rows.index.get_level_values("model"))
    tier_codes, tiers = pd.factorize(rows.index.get_level_values("tier"))
    # One column per model, one per tier but the first, whose difficulty is the zero of the scale.
    design = np.hstack([np.eye(len(models))[model_codes], -np.eye(len(tiers))[tier_codes][:, 1:]])
    counts = np.column_stack([rows["right"], rows["asked"] - rows["right"]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerfectSeparationWarning)  # few items may leave no scatter at all
        fit = sm.GLM(counts, design, family=sm.families.Binomial()).fit()
    return pd.Series(fit.params[: len(models)], index=models).reindex(order)


SCALES: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    "accuracy": mean_accuracy,
    "logit": mean_logit,
    "rasch": rasch_ability,
}
"""What a model's answers are summed up by, from the table of its answers per tier."""


@dataclass(frozen=True)
class RecallVariant:
    """One way to estimate whether density for facts grows.

    Parameters
    ----------
    name, label : str
        For programs and for readers.
    scale : str
        Of :data:`SCALES`.
    tiers, parts : tuple of str
        Of the items.
    size : {"total", "active"}
        Denominator of density.
    dated_reference : bool
        Whether the reference has a term for the date.
    cohort, twins, by_id : bool
        Only models of IKP's curve; both variants of weights that were asked with and without reasoning; the date that
        a served id names where it conflicts.
    rows : callable, optional
        Mask of the models that are used.
    cluster : {"family", "organisation"}
        Unit taken as independent.
    weighted : bool
        Weigh each model by the noise of its items and the scatter of models together.
    """

    name: str
    label: str
    scale: str = "accuracy"
    tiers: tuple[str, ...] = TIERS
    parts: tuple[str, ...] = EQUAL
    size: str = "total"
    dated_reference: bool = True
    cohort: bool = True
    twins: bool = False
    by_id: bool = False
    rows: Callable[[pd.DataFrame], pd.Series] | None = None
    cluster: str = "family"
    weighted: bool = False


VARIANTS: Sequence[RecallVariant] = (
    RecallVariant("lead", "accuracy, items put to every model"),
    RecallVariant("size_ruler", "reference from sizes alone, as IKP's effective size", dated_reference=False),
    RecallVariant("all_items", "with the 119 items not put to all", parts=PARTS),
    RecallVariant("no_researchers", "without researcher items", parts=("common",)),
    RecallVariant("easy", "well-known facts, T1 to T3", tiers=EASY),
    RecallVariant("rare", "rare facts, T4 to T7", tiers=RARE),
    RecallVariant("logit", "mean logit in place of accuracy", scale="logit"),
    RecallVariant("rasch", "Rasch ability in place of accuracy", scale="rasch"),
    RecallVariant("weighted", "models weighed by the noise of their items", weighted=True),
    RecallVariant("organisations", "organisations as clusters", cluster="organisation"),
    RecallVariant("dense", "dense models", rows=lambda models: models["architecture"] == "dense"),
    RecallVariant("active", "active in place of total size", size="active"),
    RecallVariant("no_thinking", "without reasoning models", rows=lambda models: ~models["thinking"].eq(True)),
    RecallVariant("own_weights", "without models on others' weights", rows=lambda models: models["base_model"].isna()),
    RecallVariant("sure_dates", "without doubtful dates", rows=lambda models: models["date_doubt"].isna()),
    RecallVariant("dates_by_id", "dates that served ids name", by_id=True),
    RecallVariant("twins", "twins counted twice", twins=True),
    RecallVariant("open", "all open models, IKP's exclusions too", cohort=False),
)
"""The lead, and what becomes of it when one choice is made otherwise."""


@dataclass(frozen=True)
class RecallPace:
    """The result of one variant.

    Parameters
    ----------
    variant : RecallVariant
    slope : Slope
        Of ln(density) per day; its reason says why it could not be estimated.
    error : float
        Standard error of the slope per day.
    p_no_trend, p_pace : float
        Tests against no growth and against the given pace; two-sided.
    """

    variant: RecallVariant
    slope: Slope
    error: float
    p_no_trend: float
    p_pace: float


@dataclass(frozen=True)
class TierContrast:
    """How much faster density for rare facts grows than for well-known ones, on the same models.

    Parameters
    ----------
    difference, lo, hi : float
        Slope of ln(density) per month for rare facts minus that for well-known ones, with its interval.
    p : float
        Against no difference, two-sided.
    models, families : int
    reason : str
        Why there is no figure; otherwise empty.
    """

    difference: float
    lo: float
    hi: float
    p: float
    models: int
    families: int
    reason: str = ""


@dataclass(frozen=True, repr=False)
class RecallTrend(Readable):
    """Growth of density for facts, with every variant and test.

    Parameters
    ----------
    paces : tuple of RecallPace
        One per row of :data:`VARIANTS`, the lead first.
    densities : pandas.DataFrame
        Models of the leading variant: model, family, organisation, released, n_params, score, n_eff, density.
    data : TrendData
        The same, in the form that trend estimators take.
    contrast : TierContrast
        Rare against well-known facts.
    noise_share : float
        Share of the scatter of accuracy about the reference that is explained by the sampling of items.
    pace_months : float
        The doubling time that was tested.
    level : float
        Of all intervals.
    notes : tuple of Note

    See Also
    --------
    recall_trend
    """

    paces: tuple[RecallPace, ...]
    densities: pd.DataFrame
    data: TrendData
    contrast: TierContrast
    noise_share: float
    pace_months: float
    level: float
    notes: tuple[Note, ...] = ()

    @property
    def lead(self) -> RecallPace:
        """Return the row to quote."""
        return self.paces[0]

    @property
    def table(self) -> pd.DataFrame:
        """One row per variant: variant, label, models, clusters, slope_per_month with lo and hi, doubling, p, status.

        doubling_hi is infinite where the interval of the slope reaches zero.
        """
        rows = []
        for pace in self.paces:
            slope = pace.slope
            lo, hi = slope.doubling_interval
            rows.append(
                {
                    "variant": pace.variant.name,
                    "label": pace.variant.label,
                    "models": slope.n,
                    "clusters": slope.clusters,
                    "slope_per_month": slope.slope * DAYS_PER_MONTH,
                    "lo": slope.lo * DAYS_PER_MONTH,
                    "hi": slope.hi * DAYS_PER_MONTH,
                    "doubling_months": slope.doubling_months,
                    "doubling_lo": lo,
                    "doubling_hi": hi,
                    "p_no_trend": pace.p_no_trend,
                    "p_pace": pace.p_pace,
                    "status": slope.reason or "ok",
                }
            )
        return pd.DataFrame(rows)

    @property
    def text(self) -> str:
        """Return the doubling time in words."""
        slope = self.lead.slope
        return slope.reason or doubling_text(slope.doubling_months, *slope.doubling_interval)

    @property
    def title(self) -> str:
        """Return the answer in words, with its window and interval."""
        slope = self.lead.slope
        if not slope.estimable:
            return f"No trend of density for facts could be estimated: {slope.reason}"
        when, percent = window(self.data.released), f"{formatting.percentage(self.level)} interval"
        lo, hi = slope.doubling_interval
        if slope.hi <= 0:
            return f"Density for facts did not grow {when}: the whole {percent} of the slope is zero or below"
        if slope.lo <= 0:
            limit = f"a doubling takes {formatting.months(lo)} months or more ({percent})"
            return f"Density for facts shows no sure growth {when}: {limit}"
        return (
            f"Density for facts doubled every {formatting.doubling(slope.doubling_months, lo, hi, self.level)} {when}"
        )

    @property
    def answer(self) -> str:
        """Return the answer for a table cell: doubling time, its interval and both tests."""
        lead = self.lead
        if math.isnan(lead.p_no_trend):
            return self.text
        tested = f"a doubling every {formatting.months(self.pace_months)} months: {formatting.p_value(lead.p_pace)}"
        doubling = formatting.doubling(lead.slope.doubling_months, *lead.slope.doubling_interval, self.level)
        return f"{doubling}; no growth: {formatting.p_value(lead.p_no_trend)}, {tested}"

    @property
    def detectable_months(self) -> float:
        """Return the slowest doubling, in months, that the test against no growth would detect with power
        :data:`POWER`.

        s = (t_(1 + level)/2 + t_power) se, both with (clusters - 1) degrees of freedom.
        """
        lead = self.lead
        if math.isnan(lead.p_no_trend):
            return math.nan
        quantiles = stats.t.ppf([0.5 + self.level / 2, POWER], lead.slope.clusters - 1)
        return doubling_months(float(quantiles.sum()) * lead.error)

    def sentences(self) -> list[str]:
        """Say what the tests, the tiers and the variants find, and what they could have detected."""
        if not self.lead.slope.estimable:
            return []
        return [text for text in (self._tests(), self._tiers(), self._power(), self._others()) if text]

    def _power(self) -> str:
        if math.isnan(self.detectable_months):
            return ""
        slowest = f"a doubling every {formatting.months(self.detectable_months)} months or faster"
        share = f"{formatting.percentage(POWER)} of samples"
        return f"With these dates, sizes and families {slowest} would be told from none in {share}."

    def _tests(self) -> str:
        def verdict(p: float) -> str:
            return (
                f"{'is rejected' if p <= 1 - self.level else 'is compatible with the data'} ({formatting.p_value(p)})"
            )

        lead, slope = self.lead, self.lead.slope
        if math.isnan(lead.p_no_trend):
            return "These models lie on one line, and nothing is tested."
        sample = f"{formatting.plural(slope.n, 'model')} of {formatting.plural(slope.clusters, 'family', 'families')}"
        tested = f"a doubling every {formatting.months(self.pace_months)} months {verdict(lead.p_pace)}"
        return f"Among {sample}, no growth {verdict(lead.p_no_trend)}; {tested}."

    def _tiers(self) -> str:
        contrast = self.contrast
        if math.isnan(contrast.p):
            return ""
        differ = "differ in pace" if contrast.p <= 1 - self.level else "show no difference in pace"
        return (
            f"Well-known facts ({_span(EASY)}) and rare ones ({_span(RARE)}) {differ} "
            f"({formatting.p_value(contrast.p)})."
        )

    def _others(self) -> str:
        tested = [pace for pace in self.paces[1:] if not math.isnan(pace.p_pace)]
        if not tested:
            return ""
        zero = sum(pace.slope.lo <= 0 <= pace.slope.hi for pace in tested)
        rejected = sum(pace.p_pace <= 1 - self.level for pace in tested)
        variants = f"{formatting.plural(len(tested), 'variant')} (other items, models, dates, sizes and scales)"
        pace = f"a doubling every {formatting.months(self.pace_months)} months is rejected in {rejected}"
        return f"Of {variants} the interval of the slope holds zero in {zero}, and {pace}."

    def caution(self, replication: RecallReplication) -> str:
        """Return the caveat about facts that belongs to a doubling time of other skills.

        Parameters
        ----------
        replication : RecallReplication
            IKP's own figures beside ours.

        Examples
        --------
        >>> from densing.scores.catalog import load_recall
        >>> from densing.scores.trend import recall_trend, replicate_recall
        >>> recall = load_recall()
        >>> recall_trend(recall).caution(replicate_recall(recall))[:43]
        'Density for facts shows no sure growth betw'
        """
        kind = "IKP asked models tuned for instructions, not base models."
        return " ".join([f"{self.title}.", *self.sentences()[:3], replication.sentence(), kind])

    def card(self) -> Card:
        """Return the card: the answer, its tests, every variant."""
        facts = {"doubling time": self.text}
        if self.lead.slope.estimable:
            facts["no growth"] = formatting.p_value(self.lead.p_no_trend)
            facts[f"a doubling every {formatting.months(self.pace_months)} months"] = formatting.p_value(
                self.lead.p_pace
            )
            facts["rare against well-known facts"] = formatting.p_value(self.contrast.p)
            facts["noise of the items"] = (
                f"{formatting.percentage(self.noise_share)} of the scatter about the reference"
            )
        hidden = ["label", "doubling_months", "doubling_hi", "status"]
        return Card(self.title, facts, listing_of(self.title, self.table.drop(columns=hidden)), self.notes)


def recall_trend(recall: FactualRecall, *, level: float = 0.95, pace_months: float = PACE_MONTHS) -> RecallTrend:
    """Estimate how fast density for facts grows, several ways, and test it.

    s = ln 10 c / b from score = a + b log10(N) + c t;  T = ln 2 / s / 30.44.

    Source: arXiv 2604.24827 for verdicts and effective size, arXiv 2412.04315 for density and doubling time.

    Parameters
    ----------
    recall : FactualRecall
        Models without open weights, size or date, and those that left a tier without an answer, are left out with a
        note; of reasoning twins the one without reasoning counts.
    level : float
        Of all intervals.
    pace_months : float
        A doubling time to test, months: the headline's own, for a comparison with other skills; by default the 3.5 of
        arXiv 2412.04315, which IKP tests.

    Raises
    ------
    InputError
        For a level outside (0, 1) or a pace that is not a positive number of months.

    Examples
    --------
    >>> from densing.scores.catalog import load_recall
    >>> trend = recall_trend(load_recall())
    >>> trend.lead.slope.n, trend.lead.slope.clusters, trend.lead.slope.lo < 0 < trend.lead.slope.hi
    (64, 26, True)
    >>> print(trend.title)
    Density for facts shows no sure growth between September 2023 and November 2025: a doubling takes 23.6 months or
    more (95 % interval)

    See Also
    --------
    replicate_recall, TrendData
    """
    if not 0 < level < 1:
        raise InputError(f"level={level}: choose a share between 0 and 1, such as 0.95")
    if not (math.isfinite(pace_months) and pace_months > 0):
        raise InputError(f"pace_months={pace_months}: give a doubling time in months, above 0")
    lead = VARIANTS[0]
    sample = _sample(recall, lead)
    noise = _noise_share(sample)
    densities, data = _densities(sample)
    return RecallTrend(
        paces=tuple(_pace(recall, variant, level, pace_months) for variant in VARIANTS),
        densities=densities,
        data=data,
        contrast=_contrast(recall, lead, level),
        noise_share=noise,
        pace_months=pace_months,
        level=level,
        notes=_notes(recall, sample, noise),
    )


def _strata(recall: FactualRecall, variant: RecallVariant) -> pd.Series:
    """Return for every model why a variant leaves it out, or an empty string."""
    models = recall.models
    reasons = pd.Series("", index=models.index, dtype=object)
    complete = recall.answers(variant.tiers, variant.parts)["asked"].groupby("model").min() > 0
    out = {
        "weights not open": ~models["open_weights"].eq(True),
        "no size": models[f"params_{variant.size}_b"].isna(),
        "no date": models["released"].isna(),
        "outside IKP's cohort": ~models["cohort"].eq(True) & variant.cohort,
        "a tier without an answer": ~models["model"].map(complete).eq(True),
        "not in this variant": ~variant.rows(models) if variant.rows else pd.Series(False, index=models.index),
    }
    for reason, mask in out.items():
        reasons[mask & (reasons == "")] = reason
    if not variant.twins:
        left = models[reasons == ""]
        twins = reasoning_twins(left)
        reasons[twins[twins].index] = "reasoning twin"
    return reasons


def _sample(recall: FactualRecall, variant: RecallVariant) -> pd.DataFrame:
    """Return the rows of a variant: who, when, log10 of the size in billions, score, and variance of an accuracy."""
    models = recall.models[_strata(recall, variant) == ""]
    answers = recall.answers(variant.tiers, variant.parts)
    answers = answers[answers.index.get_level_values("model").isin(models["model"])]
    dates = models["released_by_id"].fillna(models["released"]) if variant.by_id else models["released"]
    # As if right answers were drawn: the sum of binomial variances over tiers, smoothed so that none is zero.
    noise = binomial_variance(answers["right"] / answers["asked"], answers["asked"])
    variance = noise.groupby("model").sum() / len(variant.tiers) ** 2
    scores = SCALES[variant.scale](answers) if len(models) else pd.Series(dtype=float)
    sample = pd.DataFrame(
        {
            "model": models["model"],
            "family": models["family"],
            "organisation": models["organisation"].where(models["organisation"].notna(), models["family"]),
            "released": dates,
            "days": (dates - EPOCH) / pd.Timedelta(days=1),
            "log_size": np.log10(models[f"params_{variant.size}_b"]),
            "score": models["model"].map(scores).astype(float),
            "variance": models["model"].map(variance).astype(float),
        }
    )
    return sample[sample["score"].notna()].reset_index(drop=True)


def _reference(sample: pd.DataFrame, dated: bool = True, weights: Array | None = None) -> tuple[Array, float]:
    """Return ln(density) of the rows on a reference fitted to them, and the reference's slope per factor 10 of size."""
    size, days, score = (sample[name].to_numpy(dtype=float) for name in ("log_size", "days", "score"))
    root = np.sqrt(np.ones(len(sample)) if weights is None else weights)
    terms = [np.ones(len(sample)), size]
    if dated and len(sample):
        terms.append((days - np.average(days, weights=root**2)) / DAYS_PER_YEAR)
    design = np.column_stack(terms)
    if len(sample) <= design.shape[1] or np.linalg.matrix_rank(design) < design.shape[1]:
        return np.full(len(sample), np.nan), math.nan
    level, rise = np.linalg.lstsq(design * root[:, None], score * root, rcond=None)[0][:2]
    if rise == 0:
        return np.full(len(sample), np.nan), 0.0
    return math.log(10) * ((score - level) / rise - size), float(rise)


def _line(sample: pd.DataFrame, dated: bool = True, weights: Array | None = None) -> Array:
    """Return ln(density) on day 0, its slope per day, and the slope of the reference."""
    values, rise = _reference(sample, dated, weights)
    days = sample["days"].to_numpy(dtype=float)
    if not np.isfinite(values).all() or len(values) < 2 or np.ptp(days) == 0:
        return np.array([np.nan, np.nan, rise])
    weights = np.ones(len(days)) if weights is None else weights
    centre = np.average(days, weights=weights)
    slope = np.sum(weights * (days - centre) * values) / np.sum(weights * (days - centre) ** 2)
    return np.array([np.average(values, weights=weights) - slope * centre, slope, rise])


def family_jackknife(statistic: Callable[[Array], Array], codes: Array) -> tuple[Array, Array]:
    """Return a statistic and its leave-one-cluster-out error; infinite where a single cluster carries the figure.

    V = (G - 1)/G sum_g (s_-g - s)^2

    Source: MacKinnon, Nielsen and Webb, J. Econometrics 232 (2023) 272-299, eq. 13, for least squares.

    Parameters
    ----------
    statistic : callable
        Takes a mask of rows, shape (n,), and returns shape (k,).
    codes : array of int, shape (n,)
        Clusters 0..G-1.

    Examples
    --------
    >>> values = np.array([1.0, 2.0, 3.0, 6.0])
    >>> estimate, error = family_jackknife(lambda rows: values[rows].mean(keepdims=True), np.arange(4))
    >>> estimate.tolist(), bool(np.isclose(error[0], values.std(ddof=1) / 2))
    ([3.0], True)
    """
    groups = int(codes.max()) + 1
    estimate = statistic(np.ones(len(codes), dtype=bool))
    others = np.array([statistic(codes != code) for code in range(groups)])
    error = np.sqrt((groups - 1) / groups * np.sum((others - estimate) ** 2, axis=0))
    return estimate, np.where(np.isfinite(error), error, np.inf)


def _pace(recall: FactualRecall, variant: RecallVariant, level: float, pace_months: float) -> RecallPace:
    sample = _sample(recall, variant)
    clusters = sample[variant.cluster].nunique()
    dropped = len(recall.models) - len(sample)

    def nothing(reason: str) -> RecallPace:
        return RecallPace(variant, Slope.missing(reason, len(sample), clusters, dropped), math.nan, math.nan, math.nan)

    if reason := _too_few(recall, sample, variant):
        return nothing(reason)
    weights = _weights(sample) if variant.weighted else None
    codes = pd.factorize(sample[variant.cluster])[0]
    figures = sample[["log_size", "days", "score"]]

    def statistic(rows: Array) -> Array:
        return _line(figures[rows], variant.dated_reference, None if weights is None else weights[rows])

    line, errors = family_jackknife(statistic, codes)
    critical = float(stats.t.ppf(0.5 + level / 2, clusters - 1))
    if not np.isfinite(line).all():
        return nothing("sizes and dates of these models cannot be told apart")
    if not np.isfinite(errors).all():
        return nothing(f"one {variant.cluster} alone tells sizes and dates of these models apart")
    if not line[2] - critical * errors[2] > 0:
        return nothing("no reference: these scores do not surely rise with size")
    intercept, slope, error = float(line[0]), float(line[1]), float(errors[1])
    half = critical * error
    kind = f"{variant.cluster} jackknife, reference refitted, t({clusters - 1})"
    tested = math.log(2) / pace_months / DAYS_PER_MONTH
    p_values = [two_sided(slope - value, error, clusters - 1) for value in (0.0, tested)]
    result = Slope(slope, slope - half, slope + half, intercept, len(sample), clusters, kind, dropped)
    return RecallPace(variant, result, error, *p_values)


def _too_few(recall: FactualRecall, sample: pd.DataFrame, variant: RecallVariant) -> str:
    """Say why no slope can be estimated; empty if one can."""
    usable = recall.models["open_weights"].eq(True)
    for column, noun in ((f"params_{variant.size}_b", "size"), ("released", "release date")):
        if usable.any() and recall.models.loc[usable, column].isna().all():
            return f"no model with open weights has a {noun}"
    clusters = sample[variant.cluster].nunique()
    if len(sample) < MIN_MODELS:
        return f"{formatting.plural(len(sample), 'model')}, at least {MIN_MODELS} needed"
    if clusters < MIN_FAMILIES:
        plural = formatting.plural(clusters, variant.cluster, {"family": "families"}.get(variant.cluster, ""))
        return f"{plural}, at least {MIN_FAMILIES} needed"
    for column, noun in (("released", "release date"), ("log_size", "size"), ("score", "score")):
        if sample[column].nunique() < 2:
            return f"all models share one {noun}"
    return ""


def _weights(sample: pd.DataFrame) -> Array:
    """Return one over the variance of a score about the reference: scatter of models and noise of the items."""
    noise = sample["variance"].to_numpy(dtype=float)
    scatter = _scatter(sample)
    return np.asarray(1 / (max(scatter - noise.mean(), 0.0) + noise))


def _scatter(sample: pd.DataFrame) -> float:
    """Return the variance of the scores about the dated reference."""
    values, rise = _reference(sample)
    days = sample["days"].to_numpy(dtype=float)
    if not np.isfinite(values).all() or len(values) < MIN_MODELS:
        return math.nan
    left = values - np.polyval(np.polyfit(days - days.mean(), values, 1), days - days.mean())
    return float(np.sum((left * rise / math.log(10)) ** 2) / (len(left) - 3))


def _noise_share(sample: pd.DataFrame) -> float:
    scatter = _scatter(sample)
    return float(sample["variance"].mean() / scatter) if scatter > 0 else math.nan


def _contrast(recall: FactualRecall, lead: RecallVariant, level: float) -> TierContrast:
    """Compare the slopes on the two groups of tiers, each with its own reference, on the models of both."""
    paces = [_sample(recall, replace(lead, tiers=tiers)) for tiers in (EASY, RARE)]
    shared = sorted(set(paces[0]["model"]) & set(paces[1]["model"]))
    easy, rare = (part.set_index("model").loc[shared] for part in paces)
    families = easy["family"].nunique()
    nan = math.nan
    for part in (easy, rare):
        if reason := _too_few(recall, part, lead):
            return TierContrast(nan, nan, nan, nan, len(shared), families, reason)

    figures = [part[["log_size", "days", "score"]] for part in (easy, rare)]

    def statistic(rows: Array) -> Array:
        lines = [_line(part[rows]) for part in figures]
        return np.array([lines[1][1] - lines[0][1], lines[0][2], lines[1][2]])

    (difference, *rises), errors = family_jackknife(statistic, pd.factorize(easy["family"])[0])
    critical = float(stats.t.ppf(0.5 + level / 2, families - 1))
    if not np.isfinite(errors).all():
        return TierContrast(nan, nan, nan, nan, len(shared), families, "one family alone tells sizes and dates apart")
    if not all(rise - critical * error > 0 for rise, error in zip(rises, errors[1:], strict=True)):
        reason = "no reference: these scores do not surely rise with size"
        return TierContrast(nan, nan, nan, nan, len(shared), families, reason)
    middle, error = float(difference) * DAYS_PER_MONTH, float(errors[0]) * DAYS_PER_MONTH
    half = critical * error
    p = two_sided(middle, error, families - 1)
    return TierContrast(middle, middle - half, middle + half, p, len(shared), families)


def _densities(sample: pd.DataFrame) -> tuple[pd.DataFrame, TrendData]:
    values, _ = _reference(sample)
    table = sample[["model", "family", "organisation", "released"]].copy()
    table["n_params"] = 1e9 * 10 ** sample["log_size"]
    table["score"] = sample["score"]
    table["n_eff"] = table["n_params"] * np.exp(values)
    table["density"] = np.exp(values)
    usable = table[np.isfinite(values)]
    data = TrendData.from_arrays(
        usable["model"].tolist(),
        usable["family"].tolist(),
        usable["released"],
        np.log(usable["density"]),
        organisation=usable["organisation"].to_numpy(dtype=str),
    )
    return table, data


def _notes(recall: FactualRecall, sample: pd.DataFrame, noise: float) -> tuple[Note, ...]:
    notes = [*recall.notes]
    reasons = _strata(recall, VARIANTS[0])
    counts = {str(reason): int(count) for reason, count in reasons[reasons != ""].value_counts().items()}
    if counts:
        listed = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        notes.append(Note("models-left-out", "info", f"{sum(counts.values())} models are left out: {listed}", counts))
    doubtful = recall.models.set_index("model").loc[sample["model"], "date_doubt"].notna()
    if doubtful.any():
        names = doubtful[doubtful].index.tolist()
        message = (
            f"{len(names)} of {len(sample)} release dates are doubtful ({formatting.listed(names, 3)}); see sure_dates"
        )
        notes.append(Note("doubtful-dates", "info", message, {"models": names}))
    families = sample["family"].nunique()
    if families < FEW_FAMILIES:
        message = f"{families} families; an interval that treats families as independent needs {FEW_FAMILIES} or more"
        notes.append(Note("few-families", "warning", message, {"families": families}))
    if noise >= NOISE_MATTERS:
        share = formatting.percentage(noise)
        message = f"the noise of the items is {share} of the scatter about the reference: read the weighted variant"
        notes.append(Note("item-noise", "warning", message, {"share": noise}))
    return tuple(notes)


def _span(tiers: Sequence[str]) -> str:
    return f"{tiers[0]} to {tiers[-1]}"
