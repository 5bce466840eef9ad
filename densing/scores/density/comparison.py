"""Models compared in pairs: on the same items, through the same draws of the reference.

Two checkpoints that answer the same items err together, and one reference reads both. In the ratio of their effective
sizes most of either error cancels; two densities with intervals of their own cannot show that.

The means (m_A, m_B) of a task over the items that both answered have the covariance S / n, S that of the items. With
theta_r a draw of the reference's law and e_r a draw of the means' error (Student's t on n - 1 degrees of freedom),

ln(N_B / N_A)_r = ln f^-1(m_B + e_Br; theta_r) - ln f^-1(m_A + e_Ar; theta_r)

and the ratio of densities is that less ln of the ratio of actual sizes. Of right and wrong answers S is that of the
items and of half an item in each cell of the table of both models' answers: two that agreed on every item so far would
otherwise be known to agree on all.

Source: Xiao et al., arXiv 2412.04315, Eqs. 1 and 4, for sizes; Agresti and Min, Statistics in Medicine 24 (2005) 729,
for the halves; Holm, Scandinavian Journal of Statistics 6 (1979) 65, for several comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

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
    UnknownNameError,
    column,
    formatting,
    named_stream,
    numeric,
    ranged,
)
from densing.scores.catalog import with_sizes
from densing.scores.density.checkpoints import checkpoint, tokens_of
from densing.scores.density.inversion import check_options, guard_limits, log_sizes
from densing.scores.density.listing import limited
from densing.scores.density.runs import METRICS, RUN_GUARD, default_denominator, mean_reference, readable_rows
from densing.scores.density.sentences import COMBINED, quoted_rows
from densing.scores.evals import Measurements, metric_values, read_results
from densing.scores.fit import holm
from densing.scores.laws import TwoStep
from densing.scores.references import Reference, load_reference, loss_reference

FEW_ITEMS = 10
"""Fewer common items than that are named in the status."""
ERRORS = 10
"""Draws of the means' error per draw of the law."""
UNPAIRED = {
    "no_items": "no items are stored for both",
    "no_common_item": "they have no item in common",
    "other_metric": "they were measured with different metrics",
}
"""Statuses of comparisons whose errors are taken as independent, and why."""


@dataclass(frozen=True, repr=False)
class Comparison(Readable):
    """Ratios of effective sizes and of densities of models to another one's.

    Parameters
    ----------
    table : pandas.DataFrame
        A row per model, benchmark and quantity (loss or score), ``combined`` rows last: ``baseline``, ``model``,
        ``n_items`` (common ones), ``value_baseline``, ``value``, ``difference`` with its interval, ``n_params`` and
        ``n_eff`` of both, ``n_eff_ratio`` and ``density_ratio`` with intervals (``_lo``, ``_hi``) and
        ``density_ratio_lo_alone``, ``_hi_alone`` (as if the errors were independent), ``bound``, ``p`` and ``p_holm``
        (of a density ratio of 1; by Holm over the rows of one benchmark and quantity), ``correlation`` of the items,
        ``run``, ``step``, ``tokens``, ``status`` and ``sentence``.
    reference : str
    level : float
        Of each interval.
    notes : tuple of Note

    See Also
    --------
    compare
    """

    drawn_by: ClassVar[str] = "densing.plots:plot_comparison"

    table: pd.DataFrame
    reference: str
    level: float
    notes: tuple[Note, ...] = ()

    @property
    def quoted(self) -> pd.DataFrame:
        """The rows by which a model is quoted: combined ones where there are any, a loss before a score."""
        return quoted_rows(self.table)

    def listing(self) -> Listing:
        """Return the comparisons as people read them."""
        baselines = formatting.listed(dict.fromkeys(self.table["baseline"]))
        title = f"Density over that of {baselines}, on {self.reference}, {formatting.percentage(self.level)} intervals."
        return Listing(title, self.table, FIELDS)

    def sentences(self) -> list[str]:
        """Return a sentence per model, made to be copied."""
        return list(self.quoted["sentence"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        rows = self.table.to_dict("records")
        return {"reference": self.reference, "level": self.level, "comparisons": rows, "notes": list(self.notes)}

    def card(self) -> Card:
        """Return what is shown of it."""
        return Card("A comparison", {"reference": self.reference}, self.listing(), self.notes)


FIELDS = (
    Field("Model", column("model")),
    Field("Benchmark", column("benchmark")),
    Field("By", column("quantity")),
    Field(
        "Density", limited("density_ratio", formatting.three_digits), "density_ratio", hint="ratio to the baseline's"
    ),
    Field("Interval", ranged("density_ratio", formatting.three_digits)),
    Field(
        "Effective size", limited("n_eff_ratio", formatting.three_digits), "n_eff_ratio", hint="ratio to the baseline's"
    ),
    Field("Test", lambda row: formatting.p_value(row["p_holm"]), "p_holm", hint="of equal densities"),
    numeric("Items", "n_items", formatting.count, "that both answered"),
    Field("Status", column("status")),
    Field("If independent", ranged("density_ratio", formatting.three_digits, "alone"), minor=True),
    numeric("Correlation", "correlation", hint="of the items' values", minor=True, optional=True),
    numeric("Step", "step", formatting.whole, optional=True),
    numeric("Tokens", "tokens", formatting.size, optional=True),
)


@dataclass(frozen=True)
class PairedMeans:
    """Two models' means over common items of one task, with their covariance."""

    benchmark: str
    mean: Array
    covariance: Array
    freedom: float
    count: float
    correlation: float
    status: str

    def errors(self, count: int, seed: int, *names: str) -> tuple[Array, Array]:
        """Draw errors of the means, shape (count, 2): as they go together, and as if they were independent."""
        rng = named_stream(seed, "comparison", self.benchmark, *names)
        normal = rng.standard_normal((count, 2))
        if math.isfinite(self.freedom):
            normal *= np.sqrt(self.freedom / rng.chisquare(self.freedom, count))[:, None]
        spread = np.sqrt(np.diag(self.covariance))
        both = float(np.clip(self.covariance[0, 1] / (spread.prod() or 1.0), -1.0, 1.0))
        second = both * normal[:, 0] + math.sqrt(1 - both**2) * normal[:, 1]
        return np.column_stack([normal[:, 0], second]) * spread, normal * spread


def paired_means(benchmark: str, first: Array, second: Array, *, score: bool) -> PairedMeans:
    """Return the means of two models over items that both answered, and how their errors go together.

    Parameters
    ----------
    benchmark : str
    first, second : array, shape (n,)
        Values of the items, two or more.
    score : bool
        Whether they lie in [0, 1].

    Examples
    --------
    >>> same = np.array([1.0, 0.0, 1.0, 1.0] * 25)
    >>> means = paired_means("mmlu", same, same, score=True)
    >>> float(np.diff(means.mean)[0]), bool(np.array([-1, 1]) @ means.covariance @ np.array([-1, 1]) > 0)
    (0.0, True)
    """
    values, count = np.column_stack([first, second]).astype(float), len(first)
    padded, weight = values, np.ones(count)
    if score:
        padded, weight = np.vstack([values, list(product((0.0, 1.0), repeat=2))]), np.append(weight, [0.5] * 4)
    spread = np.cov(padded.T, aweights=weight, ddof=0) * count / (count - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = float(np.corrcoef(values.T)[0, 1])
    status = "ok" if count >= FEW_ITEMS else "few_items"
    return PairedMeans(benchmark, values.mean(0), spread / count, count - 1.0, count, correlation, status)


def compare(
    *sources: Measurements | Path | str,
    baseline: str | None = None,
    reference: str = "olmo-ladder",
    benchmark: str | None = None,
    params: Mapping[str, float] | None = None,
    tokens: float | None = None,
    denominator: str | None = None,
    guard: float = RUN_GUARD,
    filters: Mapping[str, str] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare measured models with one of them: on common items, through the same draws of a reference.

    Parameters
    ----------
    *sources : path or Measurements
        Runs of ``densing eval``, results of other harnesses with their samples, or what :func:`densing.read_results`
        returned. A model of the same name in two of them is two models, named by the sources too.
    baseline : str, optional
        The model that the others are compared with; the first by default, of checkpoints the earliest.
    reference, benchmark, tokens, denominator, guard, filters
        As in :func:`densing.run_densities`.
    params : mapping, optional
        Sizes by model, counts.
    level : float
        Of each interval.
    seed : int

    Returns
    -------
    Comparison
        Where two models have no item in common, or no items are stored, their errors are taken as independent, and the
        status says so. Intervals are of the measurement: model-to-model scatter around the reference is not in them.

    See Also
    --------
    rank, compare_references, explain_items

    Raises
    ------
    InputError, UnknownNameError
        For fewer than two models, or when nothing measured can be read on the reference.

    Examples
    --------
    >>> import densing
    >>> from densing.scores.evals import Measurements
    >>> rows = pd.DataFrame({"model": ["a", "b"], "task": "piqa", "benchmark": "piqa", "metric": "acc_norm",
    ...                      "filter": "", "value": [0.70, 0.72], "stderr": 0.01, "n_items": 1838})
    >>> models = pd.DataFrame({"model": ["a", "b"], "params_total": 1e9, "params_non_embedding": 9e8})
    >>> measured = Measurements(rows, pd.DataFrame(), models)
    >>> comparison = densing.compare(measured, reference="olmo-ladder")
    >>> comparison.table["status"].item(), bool(comparison.table["density_ratio"].item() > 1)
    ('no_items', True)
    """
    measurements, items, models, notes = _joined(sources)
    models, of_sizes = with_sizes(models, params)
    divisor = denominator or default_denominator(reference)
    check_options(divisor, guard)
    if not 0 < level < 1:
        raise InputError(f"level {level}: write a share between 0 and 1, such as 0.95")
    rows, told = readable_rows(measurements, reference, benchmark, tokens, filters)
    names = list(dict.fromkeys(rows["model"].astype(str)))
    if baseline is not None and baseline not in names:
        raise UnknownNameError("model", baseline, names)
    if len(names) < 2:
        raise InputError(
            f"one model ({names[0]}) with benchmarks of {reference}: a comparison needs two; name further results"
        )
    places = {name: checkpoint(name) for name in names}
    # As text, checkpoint-1000 comes before checkpoint-200.
    names.sort(key=lambda name: place[1] if (place := places[name]) else 0)
    first = baseline or names[0]
    sizes = models.drop_duplicates("model").set_index("model")
    values = {
        (str(row["model"]), str(row["benchmark"]), str(row["quantity"])): (row, items_behind(items, row))
        for row in rows.to_dict("records")
    }
    table = []
    for other in (name for name in names if name != first):
        of_size = [_size(sizes, name, divisor) for name in (first, other)]
        shift = math.log(of_size[1] / of_size[0])
        if math.isnan(shift) and (run := places[first]) and (place := places[other]) and run[0] == place[0]:
            shift = 0.0  # the size of one run does not change
        pairs: dict[str, list[PairedMeans]] = {quantity: [] for quantity in METRICS}
        for (name, bench, quantity), measured in values.items():
            if name == first and (theirs := values.get((other, bench, quantity))) is not None:
                pairs[quantity].append(_pair(measured, theirs))
        for quantity, means in pairs.items():
            curves: list[tuple[str, Reference | None, list[PairedMeans]]] = [
                (each.benchmark, load_reference(reference, each.benchmark, tokens=tokens), [each]) for each in means
            ]
            if benchmark is None and len(means) > 1:
                members = tuple(sorted(each.benchmark for each in means))
                mean = mean_reference(reference, members, tokens)
                inside = [] if mean is None else [each for each in means if each.benchmark in mean.benchmarks]
                curves.append((COMBINED, mean, inside))
            for label, curve, parts in curves:
                if curve is None or (quantity == "loss" and not isinstance(curve.fit.law, TwoStep)):
                    continue
                curve = loss_reference(curve) if quantity == "loss" else curve
                about = {"baseline": first, "model": other, "benchmark": label, "quantity": quantity}
                table.append(about | pair_ratios(curve, parts, of_size, shift, about, guard, level, seed))
    if not table:
        raise InputError(
            f"{first} shares no benchmark of {reference} with {formatting.listed([n for n in names if n != first])}; "
            "measure them on the same tasks"
        )
    result = pd.DataFrame(table)
    result["p_holm"] = result.groupby(["baseline", "benchmark", "quantity"])["p"].transform(holm)
    places_of = [places[name] or (None, None) for name in result["model"]]
    result["run"], result["step"] = [place[0] for place in places_of], [place[1] for place in places_of]
    known = sizes["tokens"] if "tokens" in sizes else pd.Series(dtype=float)
    result["tokens"] = [tokens_of(name, known.get(name)) for name in result["model"]]
    result["sentence"] = [_sentence(row, level) for row in result.to_dict("records")]
    every = (*notes, *of_sizes, *told, *_statuses(result))
    return Comparison(result, reference, level, tuple({note.message: note for note in every}.values()))


def _joined(
    sources: Sequence[Measurements | Path | str],
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, list[Note]]:
    """Return measurements, items, models and notes of several sources, with one name for each model."""
    if not sources:
        raise InputError("nothing to compare; name results of two models or more")
    results = [each if isinstance(each, Measurements) else read_results(each) for each in sources]
    names = [set(map(str, result.measurements["model"])) for result in results]
    tables: list[list[pd.DataFrame]] = [[], [], []]
    for at, (source, result) in enumerate(zip(sources, results, strict=True)):
        others = set[str]().union(*(names[:at] + names[at + 1 :]))
        unnamed = isinstance(source, Measurements) or sources.count(source) > 1
        label = f"source {at + 1}" if unnamed else str(source)
        new = {name: f"{name} ({label})" for name in names[at] & others}
        for frames, frame in zip(tables, (result.measurements, result.items, result.models), strict=True):
            if len(frame):
                frames.append(frame.assign(model=frame["model"].astype(str).replace(new)))
    frames = [pd.concat(parts, ignore_index=True) if parts else pd.DataFrame() for parts in tables]
    if frames[0].empty:
        raise InputError("nothing to compare: the sources hold no measurement")
    return frames[0], frames[1], frames[2], [note for result in results for note in result.notes]


def items_behind(items: pd.DataFrame, row: Mapping[str, Any]) -> pd.DataFrame | None:
    """Return the items behind a measured value: ``value`` and ``text_hash`` by task and document; None where unknown.

    Those of a group (``mmlu``) are those of its parts (``mmlu_anatomy``). What does not have the measured value as its
    mean is not what it was measured on: another run of the task, or a metric that is no mean over items.
    """
    if items.empty:
        return None
    mine = items[items["model"].astype(str).eq(str(row["model"]))]
    if "digest" in mine and row.get("digest"):
        mine = mine[mine["digest"].isna() | mine["digest"].eq(row["digest"])]
    task = str(row["task"])
    part = mine[mine["task"].eq(task)]
    if part.empty:
        part = mine[mine["task"].astype(str).str.startswith(f"{task}_")]
    values = metric_values(part, str(row["metric"]), str(row.get("filter") or ""))
    if values is None:
        return None
    kept = part.assign(value=values)[["task", "doc_id", "doc_hash", "value"]]
    kept = kept[np.isfinite(kept["value"])]
    same = len(kept) > 0 and math.isclose(kept["value"].mean(), float(row["value"]), rel_tol=1e-5, abs_tol=1e-9)
    if not same or kept.duplicated(["task", "doc_id"]).any():
        return None
    return kept.rename(columns={"doc_hash": "text_hash"}).set_index(["task", "doc_id"])


def _pair(
    first: tuple[Mapping[str, Any], pd.DataFrame | None], second: tuple[Mapping[str, Any], pd.DataFrame | None]
) -> PairedMeans:
    """Return two models' means on common items; of their measured values where there are none."""
    (row, mine), (other, theirs) = first, second
    bench, status = str(row["benchmark"]), "no_items"
    if row["metric"] != other["metric"]:
        status = "other_metric"
    elif mine is not None and theirs is not None:
        both = mine.merge(theirs, left_index=True, right_index=True, suffixes=("", "_other"))
        texts = both["text_hash"].astype(str), both["text_hash_other"].astype(str)
        both = both[texts[0].eq(texts[1]) | texts[0].eq("") | texts[1].eq("")]
        if len(both) > 1:
            values = both["value"].to_numpy(), both["value_other"].to_numpy()
            return paired_means(bench, *values, score=row["quantity"] == "score")
        status = "no_common_item"
    mean = np.array([row["value"], other["value"]], dtype=float)
    error = np.nan_to_num(np.array([row["stderr"], other["stderr"]], dtype=float))
    count = float(np.nanmin([row["n_items"], other["n_items"]])) if status == "no_items" else 0.0
    return PairedMeans(bench, mean, np.diag(error**2), math.inf, count, math.nan, status)


def pair_ratios(
    reference: Reference,
    parts: Sequence[PairedMeans],
    sizes: Sequence[float],
    shift: float,
    names: Mapping[str, str],
    guard: float,
    level: float,
    seed: int,
) -> dict[str, Any]:
    """Return the ratios of one pair on one curve, with their intervals and the test of equal densities.

    ``shift`` is ln of the ratio of actual sizes.
    """
    limits, theta = guard_limits(reference, guard), np.repeat(reference.fit.draws, ERRORS, axis=0)
    mean = np.mean([part.mean for part in parts], axis=0)
    drawn = [part.errors(len(theta), seed, names["quantity"], names["baseline"], names["model"]) for part in parts]
    together, alone = (np.mean([errors[kind] for errors in drawn], axis=0) for kind in (0, 1))
    point = log_sizes(reference, reference.fit.theta[None], mean[None], limits)[0]
    low, high = _log_ratios(log_sizes(reference, theta, mean + together, limits), limits)
    ends = _ends(low, high, level)
    apart = _ends(*_log_ratios(log_sizes(reference, theta, mean + alone, limits), limits), level)
    # The part of draws on the other side of equal densities; what is at a limit counts as being there.
    tail = min(np.count_nonzero(low <= shift), np.count_nonzero(high >= shift))
    gap = together[:, 1] - together[:, 0]
    spread = np.quantile(gap, [(1 - level) / 2, (1 + level) / 2])
    at_low, at_high = point <= limits[0], point >= limits[1]
    over, under = at_low[0] or at_high[1], at_high[0] or at_low[1]
    status = next((part.status for part in parts if part.status != "ok"), "ok")
    ratio = float(np.diff(point)[0])
    return {
        "benchmarks": "+".join(part.benchmark for part in parts),
        "n_items": sum(part.count for part in parts),
        "correlation": float(np.mean([part.correlation for part in parts])),
        "value_baseline": float(mean[0]),
        "value": float(mean[1]),
        "difference": float(mean[1] - mean[0]),
        "difference_lo": float(mean[1] - mean[0] + spread[0]),
        "difference_hi": float(mean[1] - mean[0] + spread[1]),
        "n_params_baseline": sizes[0],
        "n_params": sizes[1],
        "n_eff_baseline": math.exp(point[0]),
        "n_eff": math.exp(point[1]),
        "n_eff_ratio": math.exp(ratio),
        "n_eff_ratio_lo": math.exp(ends[0]),
        "n_eff_ratio_hi": math.exp(ends[1]),
        "density_ratio": math.exp(ratio - shift),
        "density_ratio_lo": math.exp(ends[0] - shift),
        "density_ratio_hi": math.exp(ends[1] - shift),
        "density_ratio_lo_alone": math.exp(apart[0] - shift),
        "density_ratio_hi_alone": math.exp(apart[1] - shift),
        "p": math.nan if math.isnan(shift) else min(2 * (tail + 1) / (len(theta) + 1), 1.0),
        "bound": "" if not (over or under) else "lower" if not under else "upper" if not over else "both",
        "status": "outside" if over or under else status,
    }


def _log_ratios(sizes: Array, limits: Array) -> tuple[Array, Array]:
    """Return how small and how large ln of a ratio may be in each draw: without end where a size is at a limit."""
    (first, second), (least, most) = sizes.T, limits
    ratio = second - first
    low = np.where((second <= least) | (first >= most), -np.inf, ratio)
    return low, np.where((second >= most) | (first <= least), np.inf, ratio)


def _ends(low: Array, high: Array, level: float) -> tuple[float, float]:
    """Return the ends of an interval; without interpolation, which makes NaN of what is without end."""
    tail = (1 - level) / 2
    return (
        float(np.quantile(low, tail, method="inverted_cdf")),
        float(np.quantile(high, 1 - tail, method="inverted_cdf")),
    )


def _size(sizes: pd.DataFrame, name: str, divisor: str) -> float:
    value = sizes[f"params_{divisor}"].get(name, math.nan) if f"params_{divisor}" in sizes else math.nan
    return float(value) if value and value > 0 else math.nan


def _sentence(row: Mapping[str, Any], level: float) -> str:
    """Return a comparison as a sentence that can be quoted."""
    name = "density" if math.isfinite(row["density_ratio"]) else "n_eff"
    what = "density" if name == "density" else "effective size"
    lo, hi, bound = row[f"{name}_ratio_lo"], row[f"{name}_ratio_hi"], row["bound"]
    pair = f"{formatting.clean(row['model'], 120)} and {formatting.clean(row['baseline'], 120)}"
    if bound == "both":
        return f"{pair} both lie outside the reference's range on the same side: their ratio is not known."
    show = formatting.three_digits
    value = {"lower": f"at least {show(lo)}", "upper": f"at most {show(hi)}"}.get(bound, show(row[f"{name}_ratio"]))
    interval = "" if bound else f", {formatting.percentage(level)} interval {show(lo)} to {show(hi)}"
    text = f"{row['model']} has {value} times the {what} of {row['baseline']}{interval}"
    if math.isfinite(row["p_holm"]):
        text += f" ({formatting.p_value(row['p_holm'])})"
    if row["status"] in UNPAIRED:
        return f"{text}; {UNPAIRED[row['status']]}, so their errors are taken as independent."
    few = f": fewer than {FEW_ITEMS}" if row["status"] == "few_items" else ""
    return f"{text}, on {formatting.plural(int(row['n_items']), 'common item')}{few}."


def _statuses(table: pd.DataFrame) -> list[Note]:
    """Say which comparisons rest on independent errors, and which models have no size."""
    notes = []
    for status, why in UNPAIRED.items():
        rows = table[table["status"].eq(status)]
        if len(rows):
            names = formatting.listed(dict.fromkeys(rows["model"]))
            about = formatting.listed(dict.fromkeys(rows["benchmark"]))
            message = f"{names} ({about}): {why}; errors are taken as independent, so intervals are wider"
            notes.append(Note(status.replace("_", "-"), "warning", message, {"models": list(rows["model"])}))
    unsized = table[table["density_ratio"].isna()]
    if len(unsized):
        message = (
            f"no ratio of densities with {formatting.listed(dict.fromkeys(unsized['model']))}: the size of one model "
            "is not known; --params NAME=COUNT gives it"
        )
        notes.append(Note("no-size", "warning", message, {"models": list(unsized["model"])}))
    return notes
