"""Constants of each generation of devices: fitted once to a stated table, and frozen in a versioned file.

Robust least squares of log speed, sources weighted by the root of their rows; where rows say nothing, constants stay
near what other generations have (a weak prior: an e-fold costs as much as one row that is off by :data:`PRIOR`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, read_json, write_text
from densing.efficiency.throughput.memory import counted_bytes
from densing.efficiency.throughput.step import Constants, step_seconds
from densing.efficiency.throughput.table import FOLDER, MeasuredRuns, Runs, evidence_of

FILE = FOLDER / "constants.json"
GENERATIONS = ("V100", "A100", "H100")
"""Generations from old to new; the shares of the newest replace those of generations that were never fitted."""
PRIOR = 0.5
"""Chosen from .15, .5, 1, 3 and 8: the smallest geometric mean of errors on left-out sources."""
GIBIBYTE = 2**30
LEAST_PEAK = 5 * GIBIBYTE
"""Memory peaks below this are mostly the runtime's."""
SCALE = 0.1
"""Log errors above this are down-weighted."""

RANGES: Mapping[str, tuple[float, float, float]] = MappingProxyType({
    "products": (0.75, 0.3, 0.95), "memory": (0.85, 0.5, 0.95), "attention": (0.35, 0.1, 0.8), "link": (0.7, 0.2, 1.0),
    "nic": (0.6, 0.1, 1.0), "hop_s": (1e-5, 1e-6, 1e-3), "far_hop_s": (3e-5, 5e-6, 3e-3),
    "launch_s": (5e-4, 1e-5, 1e-2), "step_s": (0.02, 1e-3, 1.0), "crossing_s": (1e-4, 1e-6, 5e-3),
})  # fmt: skip
"""Prior value, lower bound and upper bound of each constant."""
NAMES = tuple(RANGES)
LEVELS = tuple(round(0.05 * number, 2) for number in range(21))
"""Levels of the stored error quantiles."""
SPANS = ("devices", "parameters", "sequence", "tp", "pp", "micro_batch", "virtual", "cp", "experts")
"""Quantities of a configuration that are compared with the measured range."""


def fit_constants(measured: MeasuredRuns, without: str = "") -> dict[str, Constants]:
    """Fit every generation that has rows.

    Parameters
    ----------
    measured : MeasuredRuns
    without : str
        A source that is left out.

    Returns
    -------
    dict of str to Constants
        By generation, in the order of the table.
    """
    used = measured.measured & (measured.about.source != without).to_numpy()
    generations = [name for name in dict.fromkeys(measured.about.generation) if name]
    rows = {name: used & (measured.about.generation == name).to_numpy() for name in generations}
    rows = {name: which for name, which in rows.items() if which.any()}
    assumed = np.log([RANGES[name][0] for name in NAMES])
    first = {name: _fit(measured, which, assumed) for name, which in rows.items()}
    if not first:
        return {}
    # What one generation cannot tell, the others suggest.
    shared = np.mean(list(first.values()), axis=0)
    fitted = {name: _fit(measured, which, shared) for name, which in rows.items()}
    return {
        name: Constants(**{key: float(f"{np.exp(value):.4g}") for key, value in zip(NAMES, values, strict=True)})
        for name, values in fitted.items()
    }


def _fit(measured: MeasuredRuns, which: Array, prior: Array) -> Array:
    from scipy.optimize import least_squares

    runs = measured.runs.take(which)
    target = np.log(measured.about.tokens_per_s.to_numpy()[which])
    sources = measured.about.source[which]
    weight = 1 / np.sqrt(sources.map(sources.value_counts()).to_numpy(float))
    weight *= np.sqrt(len(weight) / np.sum(weight**2))

    def residuals(values: Array) -> Array:
        constants = dict(zip(NAMES, np.exp(values), strict=True))
        error = (np.log(runs.tokens / step_seconds(runs, constants).step) - target) * weight
        return np.concatenate([np.nan_to_num(error), PRIOR * (values - prior)])

    low, high = np.log([RANGES[name][1:] for name in NAMES]).T
    values = prior
    # From a loss that still draws far rows in to one that gives them up: the latter alone has minima by the start.
    for scale in (10 * SCALE, SCALE):
        start = np.clip(values, low + 1e-6, high - 1e-6)
        values = least_squares(residuals, start, bounds=(low, high), loss="cauchy", f_scale=scale).x
    return np.asarray(values)


def freeze(measured: MeasuredRuns, path: Path = FILE, *, file_hash: str = "") -> None:
    """Fit all sources, and all but each, and write the constants with what they were fitted to."""
    which = measured.measured
    without = {source: fit_constants(measured, source) for source in dict.fromkeys(measured.about.source[which])}
    counts = measured.about[which].groupby(["source", "generation"]).size()
    document: dict[str, Any] = {
        "version": 1,
        "fitted": {
            "rows": [
                {"source": source, "generation": generation, "rows": int(count)}
                for (source, generation), count in counts.items()
            ],
            "table_sha256": file_hash,
        },
        "memory": dict(zip(("factor", "reserve"), _fit_memory(measured), strict=True)),
        "constants": {name: each.to_dict() for name, each in fit_constants(measured).items()},
        "without": {
            source: {name: each.to_dict() for name, each in fitted.items()} for source, fitted in without.items()
        },
        "unseen": _unseen(measured, without),
        "spans": _spans(measured),
    }
    write_text(path, json.dumps(document, indent=1) + "\n")


def unseen_errors(measured: MeasuredRuns, without: Mapping[str, Mapping[str, Constants]]) -> Array:
    """Return ln(predicted / measured speed) by constants that had not seen a row's source.

    Eager programs are left out: what they wait for is known from one source, and nobody plans for it.

    Parameters
    ----------
    measured : MeasuredRuns
    without : mapping
        By source the constants fitted without it, by generation.

    Returns
    -------
    float64 (rows,)
        NaN where there is none.
    """
    errors = np.full(len(measured.runs), np.nan)
    for source, fitted in without.items():
        rows = measured.measured & (measured.about.source == source).to_numpy()
        for generation, each in fitted.items():
            which = rows & (measured.about.generation == generation).to_numpy() & (measured.runs.eager == 0)
            runs = measured.runs.take(which)
            speeds = runs.tokens / step_seconds(runs, {name: np.asarray(getattr(each, name)) for name in NAMES}).step
            errors[which] = np.log(speeds / measured.about.tokens_per_s.to_numpy()[which])
    return errors


def error_quantiles(errors: Array, sources: pd.Series, levels: Sequence[float] = LEVELS) -> Array:
    """Return quantiles of errors where every source counts the same, however many rows it has.

    Examples
    --------
    >>> error_quantiles(np.array([0.0, 0.0, 0.0, 1.0]), pd.Series(["a", "a", "a", "b"]), [0.5]).round(6).tolist()
    [0.25]
    """
    weight = 1 / sources.map(sources.value_counts()).to_numpy(float)
    order = np.argsort(errors, kind="stable")
    rank = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    return np.asarray(np.interp(levels, rank, errors[order]))


def _unseen(measured: MeasuredRuns, without: Mapping[str, Mapping[str, Constants]]) -> dict[str, Any]:
    """Return quantiles of the errors of sources that were not fitted, of all generations together."""
    errors = unseen_errors(measured, without)
    which = np.isfinite(errors)
    if not which.any():
        return {"rows": 0, "log_errors": [0.0] * len(LEVELS)}
    quantiles = error_quantiles(errors[which], measured.about.source[which])
    return {"rows": int(which.sum()), "log_errors": [float(f"{value:.4f}") for value in quantiles]}


def _spans(measured: MeasuredRuns) -> dict[str, Any]:
    """Return, by generation, what measured rows span; eager programs aside."""
    spans: dict[str, Any] = {}
    for generation in dict.fromkeys(measured.about.generation[measured.measured]):
        which = measured.measured & (measured.about.generation == generation).to_numpy() & (measured.runs.eager == 0)
        runs = measured.runs.take(which)
        if generation and len(runs):
            spans[str(generation)] = {
                name: [float(f"{end:.6g}") for end in (span.min(), span.max())]
                for name in SPANS
                for span in [getattr(runs, name)]
            }
    return spans


def _fit_memory(measured: MeasuredRuns) -> tuple[float, float]:
    """Return factor and reserve (bytes) between what is counted and the peaks of eager programs.

    Others fill their devices to the brim with what is counted: nothing is added for them.
    """
    peak = measured.about.memory_gb.to_numpy() * GIBIBYTE
    which = measured.usable & (peak > LEAST_PEAK) & (measured.runs.eager > 0)
    counted, peak = counted_bytes(measured.runs.take(which)), peak[which]
    counted, peak = counted[np.isfinite(counted)], peak[np.isfinite(counted)]
    if not counted.size:
        return 1.0, 0.0
    # Relative errors: a small model's reserve counts as much as a large one's factor.
    line = np.stack([counted, np.ones(counted.size)], axis=1) / peak[:, None]
    factor, reserve = np.linalg.lstsq(line, np.ones(counted.size), rcond=None)[0]
    return float(f"{factor:.4g}"), float(f"{max(reserve, 0.0):.4g}")


class Frozen:
    """Fitted constants, and those fitted without each source.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path = FILE) -> None:
        document = read_json(path)
        try:
            self.version = int(document["version"])
            self.factor, self.reserve = (float(document["memory"][name]) for name in ("factor", "reserve"))
            self.fitted: Mapping[str, Any] = document["fitted"]
            self.constants = {name: Constants(**values) for name, values in document["constants"].items()}
            self.unseen: Mapping[str, Any] = document["unseen"]
            self.spans: Mapping[str, Mapping[str, tuple[float, float]]] = document["spans"]
            self.without = {
                source: {name: Constants(**values) for name, values in by_generation.items()}
                for source, by_generation in document["without"].items()
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f"{path}: not a file of constants ({error!r}); write it with `benchmarks/throughput.py`"
            ) from error
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    def of(self, generations: Sequence[str], without: str = "") -> tuple[dict[str, Array], pd.Series]:
        """Return the constants of each row, and whose they are: where a generation has none, those of the newest.

        Parameters
        ----------
        generations : sequence of str
        without : str
            A source that must not have been seen.
        """
        known = self.without.get(without, self.constants)
        newest = self._newest(known)
        whose = [name if name in known else newest for name in generations]
        columns = {name: np.array([getattr(known[key], name) for key in whose]) for name in NAMES}
        return columns, pd.Series(whose)

    def spread(self, share: float) -> tuple[float, float]:
        """Return factors on a step's time between which so many of the unseen rows' times lie, sources alike.

        Of all generations together: of a source that is left out, ranges of its own generation's other rows alone, or
        of those nearest in configuration, hold fewer than they say (docs/results/cost-model.md).
        """
        low, high = np.interp([(1 - share) / 2, (1 + share) / 2], LEVELS, self.unseen["log_errors"])
        # A speed that is predicted too high is a time predicted too short.
        return float(np.exp(low)), float(np.exp(high))

    def doubts(self, generation: str, device: str, runs: Runs) -> tuple[Note, ...]:
        """Return in what respects a run is outside everything that was measured."""
        notes = []
        if generation not in self.constants:
            newest = self._newest(self.constants)
            message = f"{device}: no run of it was fitted; its figures are used with the shares of {newest}"
            notes.append(Note("carried-over", "warning", message, {"device": device}))
        spans = self.spans.get(generation) or self.spans[self._newest(self.spans)]
        beyond = [
            f"{name} {value:,.0f} (measured: {low:,.0f} to {high:,.0f})"
            for name, (low, high) in spans.items()
            if not low <= (value := float(getattr(runs, name)[0])) <= high
        ]
        evidence, source = evidence_of(device)
        if evidence in ("recalled", "second-hand"):
            message = f"figures of {device} are {evidence}, not checked against their source: {source}"
            notes.append(Note("data-sheet", "info", message, {"device": device, "evidence": evidence}))
        if beyond:
            message = f"outside the measured range: {'; '.join(beyond)}"
            notes.append(Note("never-measured", "warning", message, {"beyond": beyond}))
        return tuple(notes)

    @staticmethod
    def _newest(known: Mapping[str, Any]) -> str:
        return max(known, key=lambda name: GENERATIONS.index(name) if name in GENERATIONS else -1)

    def peak_bytes(self, runs: Runs) -> Array:
        """Return what devices need at their peak: what is counted, and what an eager program's temporaries add."""
        counted = counted_bytes(runs)
        return np.where(runs.eager > 0, counted * self.factor + self.reserve, counted)


@cache
def frozen() -> Frozen:
    """Return the constants of this package."""
    return Frozen()


def predict(runs: Runs, constants: dict[str, Array]) -> Array:
    """Return tokens per second."""
    return np.asarray(runs.tokens / step_seconds(runs, constants).step)
