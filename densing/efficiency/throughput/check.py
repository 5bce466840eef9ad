"""Predictions against measurements: every row, every source, and two null models.

The null models: *Constant MFU*: every row reaches the median of the source's rows on its generation.
*Nearest configuration*: the MFU of the source's most similar other row. Both have seen the source; neither is asked
about its own row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from densing.core import Array, Card, Field, Listing, Note, Readable, Record, column, formatting, numeric
from densing.efficiency.throughput.fit import GIBIBYTE, Frozen, frozen
from densing.efficiency.throughput.step import step_seconds
from densing.efficiency.throughput.table import MeasuredRuns, Runs, read_runs

FEATURES = ("layers", "hidden", "sequence", "micro_batch", "parts", "dp", "tp", "pp", "cp")
"""Columns whose logarithms give the distance between configurations; a different device, recomputation, ZeRO stage or
precision counts as a factor of e each."""
KINDS = ("recompute", "zero", "eight_bits", "split_sequence", "hidden_sums", "fused", "flops")
BRIM = 2**30 / 1e9
"""What sheets call GB are GiB (80 GB: 81,559 MiB), and runs fill them to the brim; a plan leaves the difference, 7 %,
to the driver, to buffers of collectives and to fragments."""
SWEEP = 6
MUTATIONS: Mapping[str, Mapping[str, float]] = MappingProxyType({
    "ring costs x 3": {"link": 1 / 3, "nic": 1 / 3, "hop_s": 3.0, "far_hop_s": 3.0, "crossing_s": 3.0},
    "latency x 10": {"hop_s": 10.0, "far_hop_s": 10.0},
    "launches x 3": {"launch_s": 3.0},
    "products at half": {"products": 0.5},
})  # fmt: skip
"""Laws that are broken one at a time: factors on the constants."""


class Row(Record, frozen=True):
    """One row of a table and its prediction.

    Parameters
    ----------
    row_id, source : str
    status : {"predicted", "not predicted", "not expressible"}
    reason : str
        Why it is not predicted, or cannot be expressed.
    constants : str
        Generation whose constants were used; marked where the device's own generation was never measured.
    kind : str
        Which of :data:`densing.efficiency.throughput.KINDS` it is of.
    predicted_tokens_per_s, low_tokens_per_s, high_tokens_per_s : float or None
        With the ends between which four of five runs of its kind lie, of sources that constants had not seen.
    measured_tokens_per_s, predicted_mfu, measured_mfu, error : float or None
        MFU by PaLM's count at the 16-bit peak; ``error``: predicted over measured, less 1.
    memory_bytes : float or None
        What a device needs at its peak.
    fits : bool or None
        Whether it has that.
    ran : bool or None
        Whether the row says it ran.
    """

    row_id: str
    source: str
    status: str
    reason: str = ""
    constants: str = ""
    kind: str = ""
    predicted_tokens_per_s: float | None = None
    low_tokens_per_s: float | None = None
    high_tokens_per_s: float | None = None
    measured_tokens_per_s: float | None = None
    predicted_mfu: float | None = None
    measured_mfu: float | None = None
    error: float | None = None
    memory_bytes: float | None = None
    fits: bool | None = None
    ran: bool | None = None


class Source(Record, frozen=True):
    """Accuracy of the predictions of a source; errors are absolute relative errors.

    Parameters
    ----------
    source : str
    rows, n : int
        Rows in all, and those both predicted and measured.
    median_error, p90_error : float or None
    rank_correlation : float or None
        Spearman's, of predicted and measured tokens per second.
    constant_mfu_median, constant_mfu_p90, nearest_median, nearest_p90 : float or None
        The same errors of the null models.
    unseen_median, unseen_p90 : float or None
        The same by constants fitted without the source; None where it was never in the fit, as are the first two then.
    mutated : mapping of str to float
        Median error under laws broken one at a time: the source does not test a law whose breaking changes nothing.
    sweeps, best_in_three : int
        Sets of at least :data:`SWEEP` layouts of one model, batch and number of devices, and those of them whose
        fastest layout is among the three that are predicted to be.
    repeats : int
        Configurations that occur more than once with a result.
    repeat_spread : float or None
        Largest ratio between results of one configuration: a lower bound on any model's error.
    """

    source: str
    rows: int
    n: int
    median_error: float | None = None
    p90_error: float | None = None
    rank_correlation: float | None = None
    constant_mfu_median: float | None = None
    constant_mfu_p90: float | None = None
    nearest_median: float | None = None
    nearest_p90: float | None = None
    unseen_median: float | None = None
    unseen_p90: float | None = None
    mutated: Mapping[str, float] = msgspec.field(default_factory=dict)
    sweeps: int = 0
    best_in_three: int = 0
    repeats: int = 0
    repeat_spread: float | None = None


class Fits(Record, frozen=True):
    """How well predicted memory separates layouts that ran from those that failed.

    Parameters
    ----------
    ran, failed : int
        Rows with a predicted need.
    auc : float or None
        Probability that a failed row needs a larger share of its device than one that ran.
    ran_refused, failed_passed : float or None
        Shares of those that ran and are predicted not to fit, and of those that failed and are predicted to fit.
    peaks : int
        Rows that print a peak.
    peak_median_error : float or None
        Median size of the relative error of the peak.
    peak_ratio : (float, float, float) or None
        Predicted over printed: the first decile, the median and the last decile.
    """

    ran: int
    failed: int
    auc: float | None = None
    ran_refused: float | None = None
    failed_passed: float | None = None
    peaks: int = 0
    peak_median_error: float | None = None
    peak_ratio: tuple[float, float, float] | None = None


class Throughput(Readable, Record, frozen=True):
    """Predictions of a table: rows, sources and memory.

    Parameters
    ----------
    table : str
    rows : tuple of Row
    sources : tuple of Source
    memory : Fits
    constants_sha256 : str
        Of the file of constants.
    notes : tuple of Note
    memory_by_source : mapping of str to Fits
        Of sources with rows that failed, or that print a peak.
    """

    table: str
    rows: tuple[Row, ...]
    sources: tuple[Source, ...]
    memory: Fits
    constants_sha256: str
    notes: tuple[Note, ...] = ()
    memory_by_source: Mapping[str, Fits] = msgspec.field(default_factory=dict)

    def listing(self) -> Listing:
        """Return the errors of each source, beside the null models' and those of constants that never saw it."""
        share = formatting.share
        fields = (
            Field("Source", column("source")),
            numeric("Rows", "rows", formatting.count),
            numeric("Compared", "n", formatting.count),
            numeric("Median error", "median_error", share),
            numeric("90th percentile", "p90_error", share),
            numeric("Unseen", "unseen_median", share, "median error of constants that were fitted without this source"),
            numeric("Constant MFU", "constant_mfu_median", share, "median error of the source's median MFU"),
            numeric("Nearest", "nearest_median", share, "median error of the MFU of the source's most similar row"),
            numeric("Rank correlation", "rank_correlation"),
            numeric("Repeats differ by", "repeat_spread", formatting.factor),
        )
        return Listing("Errors of predicted tokens per second, by source.", self.sources, fields)

    def card(self) -> Card:
        """Return what is shown: counts, then the sources."""
        predicted = sum(row.status == "predicted" for row in self.rows)
        facts = {
            "table": self.table,
            "expressible": f"{predicted} of {len(self.rows)}",
            "constants": self.constants_sha256[:12],
        }
        title = f"{sum(source.n for source in self.sources)} measured training speeds and our predictions"
        return Card(title, facts, self.listing(), self.notes)


def check_throughput(
    table: Path | pd.DataFrame | None = None,
    *,
    constants: Frozen | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Throughput:
    """Predict every row of a table of training runs.

    Parameters
    ----------
    table : path or DataFrame, optional
        See :data:`densing.efficiency.throughput.COLUMNS`; our own small selection when left out.
    constants : Frozen, optional
        The package's by default.
    progress : callable, optional
        Called with a label, the number of parts done and the total.

    Raises
    ------
    InputError
        As :func:`densing.efficiency.throughput.read_runs`.

    Examples
    --------
    >>> found = check_throughput()
    >>> len(found.rows) >= 50, all(source.median_error < 0.5 for source in found.sources if source.n > 5)
    (True, True)
    """
    show = progress or (lambda what, done, total: None)
    known = constants or frozen()
    measured = read_runs(table)
    show("memory", 0, 3)
    needed = np.full(len(measured.runs), np.nan)
    needed[measured.usable] = known.peak_bytes(measured.runs.take(measured.usable))
    show("speed", 1, 3)
    own, whose = known.of(measured.constants)
    predicted = np.where(measured.usable, measured.runs.tokens / step_seconds(measured.runs, own).step, np.nan)
    speeds = measured.about.tokens_per_s.where(measured.about.tokens_per_s > 0).to_numpy(float)
    kinds = measured.runs.kinds(measured.about.generation.isin(known.constants).to_numpy())
    predicted[[bool(known.unpredicted(kind)) for kind in kinds]] = np.nan
    unseen = predicted.copy()
    for source in set(measured.about.source) & set(known.without):
        which = (measured.about.source == source).to_numpy()
        others, _ = known.of([name for name, own in zip(measured.constants, which, strict=True) if own], source)
        speed = measured.runs.take(which).tokens / step_seconds(measured.runs.take(which), others).step
        unseen[which] = np.where(np.isnan(predicted[which]), np.nan, speed)
    broken = {
        law: measured.runs.tokens
        / step_seconds(measured.runs, {**own, **{k: own[k] * by for k, by in change.items()}}).step
        for law, change in MUTATIONS.items()
    }
    show("sources", 2, 3)
    rows = _rows(measured, predicted, speeds, needed, whose, kinds, known)
    sources = tuple(
        _source(measured, source, predicted, unseen, speeds, broken, known)
        for source in dict.fromkeys(measured.about.source)
    )
    by_source = {source.source: _fits(measured, needed, source.source) for source in sources}
    return Throughput(
        measured.name,
        rows,
        sources,
        _fits(measured, needed),
        known.sha256,
        _notes(measured, rows, whose),
        {name: fits for name, fits in by_source.items() if fits.failed or fits.peaks},
    )


def _rows(
    measured: MeasuredRuns,
    predicted: Array,
    speeds: Array,
    needed: Array,
    whose: pd.Series,
    kinds: Array,
    known: Frozen,
) -> tuple[Row, ...]:
    runs, about = measured.runs, measured.about
    per_token = runs.flops_per_token / (runs.devices * runs.flops)
    ran = about.status == "ok"
    ranges = {kind: known.spread(kind) for kind in map(str, set(kinds))}
    rows = []
    for at, (row_id, source, reason) in enumerate(zip(about.row_id, about.source, about.reason, strict=True)):
        if reason:
            rows.append(Row(row_id, source, "not expressible", reason, measured_tokens_per_s=_known(speeds[at])))
            continue
        seen = about.generation[at] in known.constants
        carried = "" if seen else f" (for {about.generation[at]}, which was never measured)"
        need, kind, ends = _known(needed[at]), str(kinds[at]), ranges[str(kinds[at])]
        rows.append(
            Row(
                row_id,
                source,
                "predicted" if ends else "not predicted",
                known.unpredicted(kind),
                constants=whose[at] + carried,
                kind=kind,
                predicted_tokens_per_s=_known(predicted[at]),
                low_tokens_per_s=_known(predicted[at] / ends[1]) if ends else None,
                high_tokens_per_s=_known(predicted[at] / ends[0]) if ends else None,
                measured_tokens_per_s=_known(speeds[at]),
                predicted_mfu=_known(predicted[at] * per_token[at]),
                measured_mfu=_known(speeds[at] * per_token[at]),
                error=_known(predicted[at] / speeds[at] - 1),
                memory_bytes=need,
                fits=None if need is None or not runs.memory[at] > 0 else bool(need <= BRIM * runs.memory[at]),
                ran=bool(ran[at]),
            )
        )
    return tuple(rows)


def _source(
    measured: MeasuredRuns,
    source: str,
    predicted: Array,
    unseen: Array,
    speeds: Array,
    broken: Mapping[str, Array],
    known: Frozen,
) -> Source:
    from scipy.stats import spearmanr

    own = (measured.about.source == source).to_numpy()
    which = own & measured.measured & np.isfinite(predicted)
    if not which.any():
        return Source(source, int(own.sum()), 0)
    runs, seen = measured.runs.take(which), speeds[which]
    share = seen * runs.flops_per_token / (runs.devices * runs.flops)
    constant, nearest = _constant(share, measured.about.generation[which].to_numpy()), _nearest(runs, share)
    error = _size(predicted[which] / seen)
    spreads = _repeats(runs, seen)
    varied = which.sum() > 2 and np.ptp(seen) > 0 and np.ptp(predicted[which]) > 0
    rank = float(spearmanr(predicted[which], seen).statistic) if varied else float("nan")
    return Source(
        source,
        int(own.sum()),
        int(which.sum()),
        **_quantiles("error", error),
        rank_correlation=_known(rank),
        **_quantiles("constant_mfu", _size(constant / share)),
        **_quantiles("nearest", _size(nearest / share)),
        **(_quantiles("unseen", _size(unseen[which] / seen)) if source in known.without else {}),
        mutated={law: float(np.median(_size(speed[which] / seen))) for law, speed in broken.items()},
        **_sweeps(runs, predicted[which], seen),
        repeats=len(spreads),
        repeat_spread=max(spreads, default=None),
    )


def _size(ratio: Array) -> Array:
    return np.abs(ratio[np.isfinite(ratio)] - 1)


def _quantiles(name: str, errors: Array) -> dict[str, Any]:
    if not errors.size:
        return {}
    median, high = np.quantile(errors, [0.5, 0.9])
    names = (f"median_{name}", f"p90_{name}") if name == "error" else (f"{name}_median", f"{name}_p90")
    return dict(zip(names, (float(median), float(high)), strict=True))


def _constant(share: Array, generation: Array) -> Array:
    """The median MFU of the other rows on the same generation."""
    said = np.full(len(share), np.nan)
    for name in set(generation):
        (which,) = np.nonzero(generation == name)
        for at in which:
            others = which[which != at]
            said[at] = np.median(share[others]) if others.size else np.nan
    return said


def _distances(runs: Runs) -> Array:
    """Return the distances between configurations: summed differences of logarithms, plus 1 per different kind.

    Parameters
    ----------
    runs : Runs

    Returns
    -------
    float64 (runs, runs)
        By :data:`FEATURES` and :data:`KINDS`.
    """
    from scipy.spatial.distance import cdist

    logs = np.log(np.stack([getattr(runs, name) for name in FEATURES], axis=1))
    kinds = (getattr(runs, name) for name in KINDS)
    return np.asarray(cdist(logs, logs, "cityblock") + sum(kind[:, None] != kind for kind in kinds))


def _nearest(runs: Runs, share: Array) -> Array:
    """The MFU of the most similar other row."""
    if len(share) < 2:
        return np.full(len(share), np.nan)
    distances = _distances(runs)
    np.fill_diagonal(distances, np.inf)
    return np.asarray(share[distances.argmin(axis=1)])


def _sweeps(runs: Runs, predicted: Array, seen: Array) -> dict[str, Any]:
    model = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "experts", "sequence", "flops", "eight_bits")
    keys = pd.DataFrame({name: getattr(runs, name) for name in (*model, "devices", "tokens")})
    speeds = pd.DataFrame({"predicted": predicted, "seen": seen})
    groups = [group for _, group in speeds.groupby(keys.groupby(list(keys.columns)).ngroup().to_numpy())]
    groups = [group for group in groups if len(group) >= SWEEP]
    first = sum(group.seen.idxmax() in group.predicted.nlargest(3).index for group in groups)
    return {"sweeps": len(groups), "best_in_three": first}


def _repeats(runs: Runs, speeds: Array) -> list[float]:
    # Whatever can be said of a run: two that differ in nothing are one configuration.
    keys = pd.DataFrame({field.name: getattr(runs, field.name) for field in fields(runs)})
    groups = pd.Series(speeds).groupby(keys.groupby(list(keys.columns), dropna=False).ngroup().to_numpy())
    return [float(group.max() / group.min()) for _, group in groups if len(group) > 1]


def _fits(measured: MeasuredRuns, needed: Array, source: str = "") -> Fits:
    from scipy.stats import rankdata

    runs = measured.runs
    known = measured.usable & np.isfinite(needed) & (runs.memory > 0)
    known &= (measured.about.source == source).to_numpy() | (not source)
    ran = (measured.about.status == "ok").to_numpy()[known]
    share = (needed / runs.memory)[known] / BRIM
    peaks = measured.about.memory_gb.to_numpy()
    printed = known & (peaks > 0)
    ratios = needed[printed] / (peaks[printed] * GIBIBYTE)
    both = 0 < ran.sum() < len(ran)
    above = rankdata(share)[~ran].sum() - (~ran).sum() * ((~ran).sum() + 1) / 2 if both else np.nan
    return Fits(
        int(ran.sum()),
        int((~ran).sum()),
        auc=_known(above / (ran.sum() * (~ran).sum())) if both else None,
        ran_refused=_known(np.mean(share[ran] > 1)) if ran.any() else None,
        failed_passed=_known(np.mean(share[~ran] <= 1)) if (~ran).any() else None,
        peaks=int(printed.sum()),
        peak_median_error=_known(np.median(_size(ratios))) if ratios.size else None,
        peak_ratio=tuple(np.quantile(ratios, [0.1, 0.5, 0.9]).tolist()) if ratios.size else None,
    )


def _notes(measured: MeasuredRuns, rows: tuple[Row, ...], whose: pd.Series) -> tuple[Note, ...]:
    notes = [*measured.notes]
    for status, code, what in (
        ("not expressible", "not-expressible", "cannot be expressed"),
        ("not predicted", "not-predicted", "are not predicted"),
    ):
        if reasons := [row.reason for row in rows if row.status == status]:
            listed = "; ".join(f"{reason} ({count})" for reason, count in Counter(reasons).most_common(5))
            message = f"{len(reasons)} of {len(rows)} rows {what}: {listed}"
            notes.append(Note(code, "warning", message, {"rows": len(reasons)}))
    carried = measured.about.generation[measured.usable & (whose != measured.about.generation).to_numpy()]
    for generation, count in carried.value_counts().items():
        notes.append(
            Note(
                "carried-over",
                "warning",
                f"{count} rows on {generation}: no run of it was fitted; predicted from its data "
                "sheet with another generation's shares",
                {"generation": str(generation), "rows": int(count)},
            )
        )
    return tuple(notes)


def _known(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
