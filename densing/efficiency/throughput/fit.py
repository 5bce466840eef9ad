"""Constants of each generation of devices: fitted once to a stated table, and frozen in a versioned file.

Robust least squares of log speed, sources weighted by the root of their rows; where rows say nothing, constants stay
near what other generations have (a weak prior: an e-fold costs as much as one row that is off by :data:`PRIOR`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, Record, formatting, read_json, write_text
from densing.efficiency.throughput.memory import memory_parts, summed
from densing.efficiency.throughput.step import Constants, step_seconds
from densing.efficiency.throughput.table import (
    EAGER,
    FOLDER,
    KINDS,
    NEW_GENERATION,
    ONE_DOMAIN,
    SEVERAL_DOMAINS,
    MeasuredRuns,
    Runs,
    evidence_of,
)

FILE = FOLDER / "constants.json"
GENERATIONS = ("V100", "A100", "H100")
"""Generations from old to new; the shares of the newest replace those of generations that were never fitted."""
PRIOR = 0.5
"""Chosen from .15, .5, 1, 3 and 8: the smallest geometric mean of errors on left-out sources."""
GIBIBYTE = 2**30
LEAST_PEAK = 5 * GIBIBYTE
"""Memory peaks below this are mostly the runtime's."""
EAGER_MEMORY = ("states", "activations", "reserve")
"""What the peaks of eager programs add to what is counted: two factors, and bytes."""
SCALE = 0.1
"""Log errors above this are down-weighted."""

RANGES: Mapping[str, tuple[float, float, float]] = MappingProxyType({
    "products": (0.75, 0.3, 0.9), "memory": (0.85, 0.5, 0.95), "attention": (0.35, 0.1, 0.58), "link": (0.7, 0.2, 0.85),
    "nic": (0.6, 0.1, 0.95), "hop_s": (1e-5, 1e-6, 1e-4), "far_hop_s": (3e-5, 5e-6, 3e-4),
    "launch_s": (5e-4, 1e-5, 5e-3), "step_s": (0.02, 1e-3, 0.05), "crossing_s": (1e-4, 1e-6, 5e-3),
})  # fmt: skip
"""Prior value, lower bound and upper bound of each constant."""
NAMES = tuple(RANGES)
SHARE = 0.8
"""Share of runs of a source that constants had not seen which a range is to hold."""
FEWEST_SOURCES = 2
"""A kind of runs that fewer sources measured has no range: how far sources differ is not known."""
SPANS = ("devices", "parameters", "sequence", "tp", "pp", "micro_batch", "virtual", "cp", "experts")
"""Quantities of a configuration that are compared with the measured range."""


def fit_constants(measured: MeasuredRuns, without: str = "") -> dict[str, Constants]:
    """Fit every generation that has rows.

    Parameters
    ----------
    measured : MeasuredRuns
    without : str
        A source or generation to leave out.

    Returns
    -------
    dict of str to Constants
        By generation, in the order of the table.
    """
    left_out = (measured.about.source == without) | (measured.about.generation == without)
    used = measured.measured & ~left_out.to_numpy()
    groups = np.array(measured.constants)
    rows = {str(name): used & (groups == name) for name in dict.fromkeys(groups) if name}
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
    """Fit all sources, then all but each, and write the constants with a record of their data."""
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
        "memory": dict(zip(EAGER_MEMORY, _fit_memory(measured), strict=True)),
        "constants": {name: each.to_dict() for name, each in fit_constants(measured).items()},
        "without": {
            source: {name: each.to_dict() for name, each in fitted.items()} for source, fitted in without.items()
        },
        "ranges": _ranges(measured, without),
        "spans": _spans(measured),
    }
    write_text(path, json.dumps(document, indent=1) + "\n")


def unseen_errors(measured: MeasuredRuns, without: Mapping[str, Mapping[str, Constants]]) -> Array:
    """Return ln(predicted / measured speed) by constants fitted without a row's source, or its generation.

    Parameters
    ----------
    measured : MeasuredRuns
    without : mapping
        By source or generation: the constants fitted without it, by group.

    Returns
    -------
    float64 (rows,)
        NaN where there is none.
    """
    errors = np.full(len(measured.runs), np.nan)
    groups = np.array(measured.constants)
    for name, fitted in without.items():
        rows = measured.measured & ((measured.about.source == name) | (measured.about.generation == name)).to_numpy()
        for group in dict.fromkeys(groups[rows]):
            own = fitted.get(group) or fitted[_newest(fitted)]
            which = rows & (groups == group)
            runs = measured.runs.take(which)
            speeds = runs.tokens / step_seconds(runs, {key: np.asarray(getattr(own, key)) for key in NAMES}).step
            errors[which] = np.log(speeds / measured.about.tokens_per_s.to_numpy()[which])
    return errors


class Range(Record, frozen=True):
    """Expected errors of a kind of runs from an unseen source.

    With the medians m of the k sources' errors, their mean square about these and its median s² over the sources, the
    next source's errors are taken to spread about mean(m) with variance var(m) (1 + 1/k) + s², as Student's t of k - 1
    degrees of freedom.

    Parameters
    ----------
    sources, rows : int
    center : float
        Of ln(predicted / measured speed).
    scale : float or None
        None where too few sources measured.
    held : float or None
        Share of each source's runs that a range of :data:`SHARE` made from the others holds, mean over the sources.

    Examples
    --------
    >>> found = Range.of(np.array([0.0, 0.2, -0.1, 0.1]), pd.Series(["a", "a", "b", "b"]))
    >>> found.sources, round(found.center, 3), round(found.scale, 3)
    (2, 0.05, 0.132)
    """

    sources: int
    rows: int
    center: float
    scale: float | None
    held: float | None = None

    @classmethod
    def of(cls, errors: Array, sources: pd.Series) -> Range:
        """Return the range of these errors; it has no scale for fewer sources than :data:`FEWEST_SOURCES`."""
        groups = [errors[(sources == name).to_numpy()] for name in dict.fromkeys(sources)]
        medians = np.array([np.median(group) for group in groups])
        k = len(groups)
        if k < FEWEST_SOURCES:
            return cls(k, len(errors), float(medians.mean()) if k else 0.0, None)
        own = float(np.median([np.mean((group - np.median(group)) ** 2) for group in groups]))
        scale = float(np.sqrt(medians.var(ddof=1) * (1 + 1 / k) + own))
        return cls(k, len(errors), float(medians.mean()), scale)

    def ends(self, share: float) -> tuple[float, float]:
        """Return the ends of the errors' range that holds such a share."""
        # Of scipy.stats, which takes half a second to load, it is all that a plan would need.
        from scipy.special import stdtrit

        half = float(stdtrit(self.sources - 1, 0.5 + share / 2)) * (self.scale or math.nan)
        return self.center - half, self.center + half

    def draws(self, count: int, random: np.random.Generator) -> Array:
        """Return errors drawn from the range, of which a share lies between the ends of that share."""
        return self.center + (self.scale or math.nan) * random.standard_t(self.sources - 1, count)


def ranges_of(errors: Array, kinds: Array, sources: pd.Series) -> dict[str, Range]:
    """Return the range of every kind of runs, with the share of a left-out source's runs that it holds."""
    found = {}
    for kind in KINDS:
        which = (kinds == kind) & np.isfinite(errors)
        own, names = errors[which], sources[which].reset_index(drop=True)
        whole = Range.of(own, names)
        held = []
        for name in dict.fromkeys(names) if whole.sources > FEWEST_SOURCES else ():
            left_out = (names == name).to_numpy()
            low, high = Range.of(own[~left_out], names[~left_out]).ends(SHARE)
            held.append(np.mean((own[left_out] >= low) & (own[left_out] <= high)))
        found[kind] = msgspec.structs.replace(whole, held=float(np.mean(held)) if held else None)
    return found


def _ranges(measured: MeasuredRuns, without: Mapping[str, Mapping[str, Constants]]) -> dict[str, Any]:
    """Return the range of every kind; that of new generations from generations that were left out whole."""
    errors, kinds = unseen_errors(measured, without), measured.runs.kinds()
    source = measured.about.source
    generations = {name: fit_constants(measured, name) for name in GENERATIONS}
    new = unseen_errors(measured, {name: fitted for name, fitted in generations.items() if fitted})
    dense = np.isin(kinds, (ONE_DOMAIN, SEVERAL_DOMAINS))
    # A source on two generations errs differently on each: it counts as two.
    pairs = source + " " + measured.about.generation
    found = ranges_of(
        np.concatenate([errors, np.where(dense, new, np.nan)]),
        np.concatenate([kinds, np.full(len(kinds), NEW_GENERATION)]),
        pd.concat([source, pairs], ignore_index=True),
    )
    return {kind: each.to_dict() for kind, each in found.items() if each.rows}


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


def _fit_memory(measured: MeasuredRuns) -> tuple[float, float, float]:
    """Return factors on states and on activations, and a reserve (bytes), from the peaks of eager programs.

    Others fill their devices to the brim with what is counted: nothing is added for them.
    """
    from scipy.optimize import nnls

    peak = measured.about.memory_gb.to_numpy() * GIBIBYTE
    which = measured.usable & (peak > LEAST_PEAK) & (measured.runs.eager > 0)
    parts, peak = _states_and_activations(memory_parts(measured.runs.take(which))), peak[which]
    known = np.isfinite(parts).all(axis=1)
    if not known.any():
        return 1.0, 1.0, 0.0
    # Relative errors: a small model's reserve counts as much as a large one's factors.
    line = np.column_stack([parts[known], np.ones(known.sum())]) / peak[known, None]
    states, activations, reserve = nnls(line, np.ones(len(line)))[0]
    return float(f"{states:.4g}"), float(f"{activations:.4g}"), float(f"{reserve:.4g}")


def _states_and_activations(parts: Sequence[Mapping[str, float]]) -> Array:
    """Return two columns of counted bytes; NaN where the split cannot divide the model."""
    activations = np.array([each.get("activations", 0.0) for each in parts])
    whole = summed(parts)
    return np.column_stack([whole - activations, np.where(np.isnan(whole), np.nan, activations)])


def _newest(known: Mapping[str, Any]) -> str:
    return max(known, key=lambda name: GENERATIONS.index(name) if name in GENERATIONS else -1)


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
            self.eager_memory = tuple(float(document["memory"][name]) for name in EAGER_MEMORY)
            self.fitted: Mapping[str, Any] = document["fitted"]
            self.constants = {name: Constants(**values) for name, values in document["constants"].items()}
            self.ranges = {kind: Range.from_dict(each) for kind, each in document["ranges"].items()}
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

    def of(self, groups: Sequence[str], without: str = "") -> tuple[dict[str, Array], pd.Series]:
        """Return each row's constants and their generation; the newest generation's where a row's own has none.

        Parameters
        ----------
        groups : sequence of str
            Generations, as :attr:`densing.efficiency.throughput.MeasuredRuns.constants` names them.
        without : str
            A source that the constants must not have been fitted to.
        """
        known = self.without.get(without, self.constants)
        newest = _newest(known)
        plain = [name.removesuffix(EAGER) for name in groups]
        whose = [next((each for each in pair if each in known), newest) for pair in zip(groups, plain, strict=True)]
        columns = {name: np.array([getattr(known[key], name) for key in whose]) for name in NAMES}
        return columns, pd.Series(whose)

    def spread(self, kind: str) -> tuple[float, float] | None:
        """Return factors on a step's time between which :data:`SHARE` of runs of this kind lies.

        None for a kind with too few sources, which is not predicted.
        """
        found = self.ranges.get(kind)
        if found is None or found.scale is None:
            return None
        low, high = found.ends(SHARE)
        # A speed that is predicted too high is a time predicted too short.
        return math.exp(low), math.exp(high)

    def unpredicted(self, kind: str) -> str:
        """Return why a kind of runs is not predicted; empty where it is."""
        found = self.ranges.get(kind)
        if found is not None and found.scale is not None:
            return ""
        sources = found.sources if found else 0
        return (
            f"{kind}: not predicted, measured runs come from {formatting.plural(sources, 'source')} and a range takes "
            f"{FEWEST_SOURCES}"
        )

    def doubts(self, generation: str, device: str, runs: Runs) -> tuple[Note, ...]:
        """Return in what respects a run lies outside the measured range."""
        notes = []
        if generation not in self.constants:
            newest = _newest(self.constants)
            message = f"{device}: no run of it was fitted; its figures are used with the shares of {newest}"
            notes.append(Note("carried-over", "warning", message, {"device": device}))
        spans = self.spans.get(generation) or self.spans[_newest(self.spans)]
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

    def peak_bytes(self, runs: Runs) -> Array:
        """Return the peak memory of devices: the counted bytes and an eager program's temporaries."""
        parts, (states, activations, reserve) = memory_parts(runs), self.eager_memory
        eager = _states_and_activations(parts) @ (states, activations) + reserve
        return np.where(runs.eager > 0, eager, summed(parts))


@cache
def frozen() -> Frozen:
    """Return the constants of this package."""
    return Frozen()


def predict(runs: Runs, constants: dict[str, Array]) -> Array:
    """Return the predicted tokens per second."""
    return np.asarray(runs.tokens / step_seconds(runs, constants).step)
