"""IKP's regressions of factual accuracy on size and date, fitted again: published beside reproduced.

accuracy = a + b log10(N / 1e9) + c months + ...;  months since 2024-01-01, days within a month as thirtieths.

The accuracy is IKP's headline score: the mean over the seven tiers of the share answered right, a refusal counted as
wrong and a blank left out. Every fit has its classical error as published and an error that takes families, not models,
as independent: twins and siblings are not.

Source: Bojie Li, Incompressible Knowledge Probes, arXiv 2604.24827, https://github.com/19PINE-AI/ikp; the place of each
published figure stands in ``data/recall_published.csv``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from densing.core import Array, Card, Column, Note, Readable, Table, formatting, listing_of, read_table
from densing.scores.catalog import PARTS, TIERS, FactualRecall

EPOCH = pd.Timestamp("2024-01-01")
"""Month 0 of IKP's regressions."""
PACE_MONTHS = 3.5
"""The doubling time that IKP tests its slope against, from arXiv 2412.04315."""
FILE = Path(__file__).parent / "data" / "recall_published.csv"
SCHEMA = Table(
    "recall_published",
    (
        Column("fit", "text", "name of the regression", required=True),
        Column("coefficient", "text", "of which of its terms", required=True),
        Column("estimate", "number", "accuracy per unit of the term"),
        Column("se", "number", "classical standard error", low=0),
        Column("lo", "number", "lower end of the 95 % interval"),
        Column("hi", "number", "upper end of the 95 % interval"),
        Column("p", "number", "two-sided, against zero", low=0, high=1),
        Column("r2", "number", "of the regression", low=0, high=1),
        Column("models", "integer", "models behind it", required=True, low=1),
        Column("place", "text", "where the figure stands in IKP's repository or paper", required=True),
    ),
    key=("fit", "coefficient"),
)


@dataclass(frozen=True)
class RecallFit:
    """One regression of factual accuracy.

    Parameters
    ----------
    name : str
        For programs: the column ``fit`` of the tables.
    label : str
        For readers.
    terms : tuple of str
        Of ``log_size``, ``months``, ``thinking`` and ``moe``.
    coefficients : tuple of str
        The terms whose coefficients are reported.
    size : {"total", "active"}
        Parameters behind ``log_size``.
    by_id : bool
        Prefer the date in the served id where it conflicts with the given one.
    sample : {"open", "cohort"}
        All models with open weights and a known size, or those of IKP's curve of effective size.
    rows : callable, optional
        Mask of the sample's rows that are used.
    parts : tuple of str
        Of the items.
    blanks_wrong : bool
        Count a blank as wrong instead of leaving it out.
    residual : bool
        Regress the residual of accuracy on log10(size), not the accuracy itself.
    """

    name: str
    label: str
    terms: tuple[str, ...] = ("log_size", "months")
    coefficients: tuple[str, ...] = ("months",)
    size: str = "total"
    by_id: bool = False
    sample: str = "open"
    rows: Callable[[pd.DataFrame], pd.Series] | None = None
    parts: tuple[str, ...] = PARTS
    blanks_wrong: bool = False
    residual: bool = False


_BOTH = ("log_size", "months")
_SIZE: dict[str, Any] = {"terms": ("log_size",), "coefficients": ("log_size",)}
_COHORT: dict[str, Any] = {"sample": "cohort"}
_MIXTURES: dict[str, Any] = {**_SIZE, **_COHORT, "rows": lambda models: models["architecture"] == "moe"}
FITS: Sequence[RecallFit] = (
    RecallFit("cohort", "curve of effective size", **_SIZE, **_COHORT),
    RecallFit("M0", "size", **_SIZE),
    RecallFit("M1", "size and date", coefficients=_BOTH),
    RecallFit("M2", "size, date, thinking", (*_BOTH, "thinking"), _BOTH),
    RecallFit("M3", "size, date, thinking, mixture of experts", (*_BOTH, "thinking", "moe"), _BOTH),
    RecallFit("residual", "date on what size leaves", ("months",), residual=True),
    RecallFit("time", "date alone", ("months",)),
    RecallFit("large", "size and date, models of 1e9 parameters or more", rows=lambda m: m["params_total_b"] >= 1),
    RecallFit("active", "active size and date", size="active"),
    RecallFit("moe_total", "total size of mixtures", **_MIXTURES),
    RecallFit("moe_active", "active size of mixtures", **_MIXTURES, size="active"),
    RecallFit("M1_cohort", "size and date, cohort", **_COHORT),
    RecallFit("equal_items", "cohort, without the 119 items not put to all", **_COHORT, parts=("common", "researcher")),
    RecallFit("blanks_wrong", "cohort, blanks counted wrong", **_COHORT, blanks_wrong=True),
    RecallFit("dates_by_id", "cohort, dates that served ids name", **_COHORT, by_id=True),
    RecallFit("no_twins", "cohort, without reasoning twins", **_COHORT, rows=lambda m: ~reasoning_twins(m)),
    RecallFit("no_researchers", "cohort, without researcher items", **_COHORT, parts=("common", "block")),
)
"""Every regression that is fitted again: IKP's own, then the sensitivity of its M1 to what went into it."""


@cache
def published_fits() -> pd.DataFrame:
    """Return the figures that IKP published: fit, coefficient, estimate, se, lo, hi, p, r2, models, place.

    Examples
    --------
    >>> published_fits().set_index(["fit", "coefficient"]).loc[("M1", "months"), ["estimate", "se", "p"]].tolist()
    [0.00131, 0.00099, 0.188]
    """
    return read_table(FILE, SCHEMA, FILE.name)


def mean_accuracy(answers: pd.DataFrame, blanks_wrong: bool = False, empty: float = math.nan) -> pd.Series:
    """Return the accuracy per model: the mean over tiers of the share answered right.

    Source: ``scripts/rescore_clean_lambda0.py`` of IKP.

    Parameters
    ----------
    answers : pandas.DataFrame
        Of :meth:`densing.scores.catalog.FactualRecall.answers`.
    blanks_wrong : bool
        Divide by all items, not by those with an answer.
    empty : float
        Accuracy of a tier without an answer: IKP takes 0; with NaN the model has no accuracy.

    Examples
    --------
    >>> from densing.scores.catalog import load_recall
    >>> round(float(mean_accuracy(load_recall().answers())["llama-3.1-70b"]), 4)
    0.5222
    """
    whole = answers["items" if blanks_wrong else "asked"]
    shares = (answers["right"] / whole.where(whole > 0)).fillna(empty)
    groups = shares.groupby("model", sort=False)
    return groups.mean().where(groups.count() == groups.size())


def reasoning_twins(models: pd.DataFrame) -> pd.Series:
    """Mark reasoning variants whose weights are also among the models without reasoning."""
    return models["thinking"].eq(True) & models["twin_of"].isin(models["model"])


@dataclass(frozen=True)
class FittedTerm:
    """A coefficient with both its errors; NaN if there is none, and the status says why.

    Parameters
    ----------
    fit, label, coefficient : str
    models, families : int
        Behind the fit.
    estimate, se, p : float
        Accuracy per unit of the term; classical error, and p against zero.
    r2 : float
    family_se, lo, hi, family_p : float
        With families as clusters.
    status : str
        ``ok``, or why there is no figure.
    """

    fit: str
    label: str
    coefficient: str
    models: int
    families: int
    estimate: float = math.nan
    se: float = math.nan
    p: float = math.nan
    r2: float = math.nan
    family_se: float = math.nan
    lo: float = math.nan
    hi: float = math.nan
    family_p: float = math.nan
    status: str = "ok"


@dataclass(frozen=True, repr=False)
class RecallReplication(Readable):
    """IKP's regressions: published beside fitted again.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per fit and coefficient. As published: published, published_se, published_lo, published_hi, published_p,
        published_r2, published_models, place (missing for fits that IKP does not report). Fitted again: estimate, se, p
        (classical), r2, models, families, and with families as clusters family_se, lo, hi, family_p. status is ``ok``
        or says why there is no figure.
    level : float
        Of the interval from lo to hi.
    notes : tuple of Note

    See Also
    --------
    replicate_recall
    """

    table: pd.DataFrame
    level: float
    notes: tuple[Note, ...] = ()

    def row(self, fit: str, coefficient: str = "months") -> pd.Series:
        """Return the row of one coefficient.

        Raises
        ------
        KeyError
            For a fit or coefficient that is not in the table.
        """
        return self.table.set_index(["fit", "coefficient"]).loc[(fit, coefficient)]

    def sentence(self) -> str:
        """Say what IKP reports of the date and what the same fit gives here.

        Examples
        --------
        >>> from densing.scores.catalog import load_recall
        >>> print(replicate_recall(load_recall()).sentence())
        IKP (Li 2026, arXiv 2604.24827) reports +0.00131 accuracy per month at equal size (standard error 0.00099,
        p = 0.19) from 100 models; the same regression on the 70 models here gives −0.00228 (0.00151, p = 0.13), and
        p = 0.22 with families taken as independent in place of models.
        """
        row = self.row("M1")
        theirs = (
            f"IKP (Li 2026, arXiv 2604.24827) reports {_signed(row['published'])} accuracy per month at equal size "
            f"(standard error {row['published_se']:.5f}, {formatting.p_value(row['published_p'])}) from "
            f"{row['published_models']:.0f} models"
        )
        if math.isnan(row["estimate"]):
            return f"{theirs}; it could not be fitted again here: {row['status']}."
        ours = (
            f"the same regression on the {row['models']} models here gives {_signed(row['estimate'])} "
            f"({row['se']:.5f}, {formatting.p_value(row['p'])})"
        )
        if math.isnan(row["family_p"]):
            return f"{theirs}; {ours}."
        by_family = f"{formatting.p_value(row['family_p'])} with families taken as independent in place of models"
        return f"{theirs}; {ours}, and {by_family}."

    def card(self) -> Card:
        """Return what is shown: each figure as published and as fitted again."""
        columns = ["fit", "coefficient", "published", "published_models", "estimate", "se", "p", "family_p", "models"]
        fitted = self.table["estimate"].notna()
        facts = {"fits": str(int(fitted.sum())), "level": formatting.percentage(self.level)}
        title = "Factual accuracy on size and date: IKP's regressions fitted again"
        return Card(title, facts, listing_of(title, self.table[columns]), self.notes)


def replicate_recall(recall: FactualRecall, *, level: float = 0.95) -> RecallReplication:
    """Fit IKP's regressions again, and say how many of its models are behind each.

    Parameters
    ----------
    recall : FactualRecall
        Of its models those with open weights, a known size and a date.
    level : float
        Of the interval with families as clusters: CRV3, t with (families - 1) degrees of freedom.

    Source: arXiv 2604.24827, ``data/analysis_densing_law.md`` of its repository for M0 to M3; CRV3: MacKinnon, Nielsen
    and Webb, J. Econometrics 232 (2023) 272-299; as in statsmodels.

    Examples
    --------
    >>> from densing.scores.catalog import load_recall
    >>> row = replicate_recall(load_recall()).row("M1")
    >>> row[["published", "estimate", "se"]].astype(float).round(5).tolist(), int(row["models"])
    ([0.00131, -0.00228, 0.00151], 70)

    See Also
    --------
    recall_trend
    """
    rows = [row for fit in FITS for row in _fit(recall, fit, level)]
    rows += _against_pace(rows)
    table = pd.DataFrame(rows).merge(_prefixed(published_fits()), "outer", ["fit", "coefficient"], sort=False)
    order = {name: rank for rank, name in enumerate([*(row.fit for row in rows), "abstract"])}
    table = table.sort_values("fit", key=lambda names: names.map(order), kind="stable", ignore_index=True)
    table["status"] = table["status"].fillna("an earlier run of the probes, whose verdicts are not in the repository")
    table["label"] = table["label"].fillna("date at equal size, as in the abstract")
    for count in ("models", "families"):
        table[count] = table[count].fillna(0).astype(int)
    return RecallReplication(table, level, _notes(table))


def _prefixed(table: pd.DataFrame) -> pd.DataFrame:
    names = {"estimate": "published", **{name: f"published_{name}" for name in ("se", "lo", "hi", "p", "r2", "models")}}
    return table.rename(columns=names)


def _sample(recall: FactualRecall, fit: RecallFit) -> pd.DataFrame:
    """Return the rows of a fit with its terms as columns."""
    models = recall.models
    usable = models["open_weights"].eq(True) & models["params_total_b"].notna() & models["released"].notna()
    if fit.sample == "cohort":
        usable &= models["cohort"].eq(True)
    models = models[usable]
    if fit.rows is not None:
        models = models[fit.rows(models)]
    accuracy = mean_accuracy(recall.answers(TIERS, fit.parts), fit.blanks_wrong, empty=0.0)
    dates = models["released_by_id"].fillna(models["released"]) if fit.by_id else models["released"]
    return pd.DataFrame(
        {
            "family": models["family"],
            "accuracy": models["model"].map(accuracy).astype(float),
            "log_size": np.log10(models[f"params_{fit.size}_b"]),
            "months": ikp_months(dates),
            "thinking": models["thinking"].astype(float),
            "moe": (models["architecture"] == "moe").astype(float),
        }
    ).dropna()


def ikp_months(dates: pd.Series) -> pd.Series:
    """Return months since 2024-01-01 as IKP counts them: calendar months, and days of a thirtieth.

    Examples
    --------
    >>> ikp_months(pd.Series(pd.to_datetime(["2024-01-16", "2025-03-01"]))).tolist()
    [0.5, 14.0]
    """
    days = dates.dt
    return (days.year - EPOCH.year) * 12 + (days.month - EPOCH.month) + (days.day - EPOCH.day) / 30


def _fit(recall: FactualRecall, fit: RecallFit, level: float) -> list[FittedTerm]:
    import statsmodels.api as sm

    sample = _sample(recall, fit)
    families = sample["family"].nunique()
    terms = [FittedTerm(fit.name, fit.label, term, len(sample), families) for term in fit.coefficients]
    y = sample["accuracy"].to_numpy(dtype=float)
    design = _design(sample, fit.terms)
    status = _too_little(design, y)
    if not status and fit.residual:
        size = _design(sample, ("log_size",))
        status = _too_little(size, y)
        y = y if status else sm.OLS(y, size).fit().resid
    if status:
        return [replace(term, status=status) for term in terms]
    model = sm.OLS(y, design)
    classical = model.fit()
    errors = family_errors(model, pd.factorize(sample["family"])[0])
    rows = []
    for term in terms:
        at = 1 + fit.terms.index(term.coefficient)
        estimate, error = float(classical.params[at]), float(errors[at])
        half = error * float(stats.t.ppf(0.5 + level / 2, families - 1)) if families > 1 else math.nan
        rows.append(
            replace(
                term,
                estimate=estimate,
                se=float(classical.bse[at]),
                p=two_sided(estimate, float(classical.bse[at]), len(sample) - design.shape[1]),
                r2=float(classical.rsquared),
                family_se=error,
                lo=estimate - half,
                hi=estimate + half,
                family_p=two_sided(estimate, error, families - 1),
                status="ok" if math.isfinite(error) else "no error by family: one family carries the coefficient",
            )
        )
    return rows


def two_sided(estimate: float, error: float, freedom: int) -> float:
    """Return p of Student's t against zero; NaN without an error or freedom.

    Examples
    --------
    >>> round(two_sided(0.0013, 0.00099, 97), 2), two_sided(1.0, 0.0, 5)
    (0.19, nan)
    """
    if not (0 < error < math.inf and freedom > 0):
        return math.nan
    return float(2 * stats.t.sf(abs(estimate) / error, freedom))


def family_errors(model: Any, codes: Array) -> Array:
    """Return the CRV3 errors of an OLS model of statsmodels; infinite where one family alone carries a coefficient."""
    groups, width = int(codes.max()) + 1, model.exog.shape[1]
    if groups < 2:
        return np.full(width, np.nan)
    if any(np.linalg.matrix_rank(model.exog[codes != code]) < width for code in range(groups)):
        return np.full(width, np.inf)
    return np.asarray(model.fit(cov_type="cluster-crv3", cov_kwds={"groups": codes}, use_t=True).bse, dtype=float)


def _design(sample: pd.DataFrame, terms: Sequence[str]) -> Array:
    return np.column_stack([np.ones(len(sample)), sample[list(terms)].to_numpy(dtype=float)])


def _too_little(design: Array, y: Array) -> str:
    rows, width = design.shape
    if rows <= width:
        return f"{formatting.plural(rows, 'model')} for {width} coefficients"
    if np.ptp(y) == 0:
        return "all models share one accuracy"
    if np.linalg.matrix_rank(design) < width:
        return "sizes, dates or kinds of these models do not differ enough to tell the terms apart"
    return ""


def _against_pace(rows: Sequence[FittedTerm]) -> list[FittedTerm]:
    """Return the slope that a doubling in 3.5 months would give at M0's slope of size, and M1's distance from it."""
    by_name = {(row.fit, row.coefficient): row for row in rows}
    size, date = by_name["M0", "log_size"], by_name["M1", "months"]
    expected = size.estimate * math.log10(2) / PACE_MONTHS
    label = f"expected if density doubles every {PACE_MONTHS:g} months"
    first = FittedTerm("expected", label, "months", size.models, size.families, expected, status=size.status)
    gap = date.estimate - expected
    second = replace(
        date,
        fit="gap",
        label="M1's slope less the expected",
        estimate=gap,
        p=two_sided(gap, date.se, date.models - 3),
        lo=date.lo - expected,
        hi=date.hi - expected,
        family_p=two_sided(gap, date.family_se, date.families - 1),
    )
    return [first, second]


def _notes(table: pd.DataFrame) -> tuple[Note, ...]:
    row = table.set_index(["fit", "coefficient"]).loc[("M1", "months")]
    models, published = int(row["models"]), int(row["published_models"])
    if models == published:
        return ()
    message = f"fitted to {models} models; the published figures were made from all {published}"
    return (Note("fewer-models", "info", message, {"models": models, "published": published}),)


def _signed(value: float) -> str:
    return f"{value:+.5f}".replace("-", "−")  # so that 0.00131 keeps its sign and its digits
