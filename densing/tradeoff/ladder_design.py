"""Which sizes, seeds and budgets resolve a token ratio of a given fineness, and what they cost, here or on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from densing.core import Card, InputError, Note, Readable, Record, UnknownNameError, formatting, listing_of
from densing.efficiency.systems import RECORDS
from densing.tradeoff.records import arm_figures, gain_record

if TYPE_CHECKING:
    from densing.scores.ladder import Preset, Run
    from densing.tradeoff.gain import GainRecord

DEFAULT = "rounds"
"""The shipped record whose law, noise and speed are taken where none is given: of CO2, local SGD and SlowMo."""
UNKNOWN = {"spread": 0.02, "ripple": 0.005}
"""Sd of ln loss between plain runs, of records of before they were kept: those of :func:`simulated_ladder`."""
NOISE = {
    "common": "between an arm's run and its plain one",
    "noise": "between their budgets",
    "spread": "between plain runs",
    "ripple": "between plain budgets",
}
"""What the parts of the noise lie between, as people read it."""
MARGIN = 1.1
"""Intervals come out up to a tenth wider than with known noise, which they estimate."""
MOST_SEEDS, LEAST_RUNS, LEAST_CELLS = 48, 6, 3
"""Seeds tried; runs of an arm below which nothing is decided; sizes and budgets that a law of five parameters needs."""


class Design(Record, frozen=True):
    """A ladder that may be trained.

    Parameters
    ----------
    sizes : tuple of str
    tokens : tuple of int
        Budgets of each size.
    seeds : int
    half_width : float
        That the interval of ln token ratio is expected to have.
    core_hours : float
        Of all runs of plain training and one arm.
    command : str
        That trains it.
    """

    sizes: tuple[str, ...]
    tokens: tuple[int, ...]
    seeds: int
    half_width: float
    core_hours: float
    command: str


class Designs(Readable, Record, frozen=True):
    """The cheapest ladder that resolves a ratio, and the cheapest for every other number of sizes.

    Parameters
    ----------
    resolve : float
        The half-width to reach, as a share: .1 is an interval from ratio / 1.1 to ratio x 1.1.
    ratio, level : float
    preset : str
    noise_of : str
        Where law, noise and speed were measured.
    noise : mapping of str to float
        Sd of ln losses, see :func:`densing.scores.ladder.pair_noise`.
    noise_assumed : tuple of str
        Parts of the noise that the measurement does not hold, and that are :data:`UNKNOWN`'s.
    law : mapping of str to float
    designs : tuple of Design
        The cheapest first.
    """

    resolve: float
    ratio: float
    level: float
    preset: str
    noise_of: str
    noise: Mapping[str, float]
    law: Mapping[str, float]
    designs: tuple[Design, ...]
    noise_assumed: tuple[str, ...] = ()

    def frame(self) -> pd.DataFrame:  # type: ignore[override]
        """Return a row per design."""
        rows = [
            {
                "sizes": ", ".join(design.sizes), "budgets": ", ".join(map(formatting.size, design.tokens)),
                "seeds": design.seeds, "half_width": design.half_width, "core_hours": design.core_hours,
            }
            for design in self.designs
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def _noise_words(self) -> str:
        """Return the sds of ln losses, each with where it is from."""
        places = [name for name in NOISE if name not in self.noise_assumed], list(self.noise_assumed)
        measured, assumed = (
            ", ".join(f"{formatting.number(100 * self.noise[name])} % {NOISE[name]}" for name in names)
            for names in places
        )
        more = f"; assumed, since that record does not hold it: {assumed}" if assumed else ""
        return f"sd of a loss, measured in {self.noise_of}: {measured}{more}"

    def card(self) -> Card:
        """Return what is shown."""
        best = self.designs[0]
        facts = {
            "resolves": f"a token ratio near {self.ratio:g} to {formatting.percent(100 * self.resolve)}: half-width of "
            f"its {100 * self.level:g} % interval",
            "cost": f"about {formatting.number(best.core_hours)} core hours for plain training and one arm",
            "noise": self._noise_words(),
            "train": best.command,
        }
        return Card("A ladder that resolves it", facts, listing_of("Designs, the cheapest first", self.frame()))


def design_ladder(
    resolve: float,
    *,
    preset: str = "cpu",
    gain: GainRecord | Path | str | None = None,
    ratio: float = 1.0,
    level: float = 0.95,
) -> Designs:
    """Say which sizes, seeds and budgets resolve a token ratio at the least cost.

    Every range of three or more neighbouring sizes, with all budgets or the shorter ones alone, is given as many seeds
    as it needs; the half-width is :func:`densing.scores.ladder.expected_half_width`'s, times :data:`MARGIN`.

    Parameters
    ----------
    resolve : float
        The half-width of the interval, as a share of the ratio.
    preset : str
        Whose sizes and budgets are chosen from.
    gain : GainRecord or path, optional
        A measurement of the same preset whose law, noise and speed are taken; the shipped one of CO2, local SGD and
        SlowMo when left out.
    ratio : float
        Token ratio about which it is to be resolved; noise is taken to be the same there.
    level : float

    Raises
    ------
    InputError
        When the fineness is not above 0, the record is of another preset, or no ladder of the preset resolves it.

    Examples
    --------
    >>> found = design_ladder(0.2)
    >>> best = found.designs[0]
    >>> best.half_width <= 0.183, len(best.sizes) * best.seeds >= 6
    (True, True)
    """
    from densing.scores.ladder import get_preset

    if not (math.isfinite(resolve) and resolve > 0):
        raise InputError(f"--resolve {resolve:g}: a share above 0 is needed, as in 0.1 for a tenth of the ratio")
    if not (math.isfinite(ratio) and ratio > 0):
        raise InputError(f"--ratio {ratio:g}: a ratio above 0 is needed, as in 0.5")
    chosen = get_preset(preset)
    record, where = gain_record(RECORDS / f"{DEFAULT}.json" if gain is None else gain)
    spec, _ = arm_figures(record, where)
    if spec.preset != preset:
        raise InputError(
            f"{where}: a measurement of preset {spec.preset or 'unknown'}, and noise differs between presets; give "
            f"--preset {spec.preset or 'of the record'}, or a gain.json of preset {preset} with --gain"
        )
    noise, law = (
        {name: float(value) for name, value in record.spec.get(part, {}).items()} for part in ("noise", "law")
    )
    if not law or not {"common", "noise"} <= noise.keys():
        raise InputError(f"{where}: keeps no law or noise of its losses; measure again with `densing ladder gain DIR`")
    noise_assumed = tuple(name for name in UNKNOWN if name not in noise)
    noise = UNKNOWN | noise
    target = math.log1p(resolve)
    runs = _runs(chosen)
    second = _seconds_per_cost(runs, record.spec)
    found = []
    for first in range(len(chosen.shapes)):
        for last in range(first + LEAST_CELLS, len(chosen.shapes) + 1):
            shapes = chosen.shapes[first:last]
            for budgets in range(LEAST_CELLS, min(len(shape.steps) for shape in shapes) + 1):
                tokens = tuple(chosen.tokens(shapes[0], steps) for steps in shapes[0].steps[:budgets])
                like = {"sizes": [float(shape.non_embedding) for shape in shapes], "budgets": tokens, "ratio": ratio}
                seeds, width = _seeds(law, noise, like, level, target)
                if seeds:
                    hours = 2 * seeds * second * sum(_cost(runs[shape.name], budgets) for shape in shapes) / 3600
                    found.append((hours, shapes, tokens, seeds, width))
    if not found:
        raise InputError(
            f"--resolve {resolve:g}: no ladder of preset {preset} with up to {MOST_SEEDS} seeds resolves it with the "
            f"noise of {where}; ask for less, such as {2 * resolve:g}"
        )
    cheapest: dict[int, Design] = {}
    for hours, shapes, tokens, seeds, width in sorted(found, key=lambda row: row[0]):
        names = tuple(shape.name for shape in shapes)
        asked = " ".join(f"--sizes {name}" for name in names)
        command = (
            f"densing ladder train --preset {preset} {asked} --budgets {len(tokens)} --seeds 0..{seeds - 1} "
            "--arm plain --arm METHOD --out DIR"
        )
        cheapest.setdefault(len(names), Design(names, tokens, seeds, width, hours, command))
    designs = sorted(cheapest.values(), key=lambda design: design.core_hours)
    source = f"the shipped record {DEFAULT}" if gain is None else where
    return Designs(resolve, ratio, level, preset, source, noise, law, tuple(designs), noise_assumed)


def _seeds(
    law: Mapping[str, float], noise: Mapping[str, float], like: Mapping[str, Any], level: float, target: float
) -> tuple[int, float]:
    """Return the fewest seeds that reach a half-width, and the width; none where so many are needed that none do."""
    from densing.scores.ladder import expected_half_width

    def width(seeds: int) -> float:
        return MARGIN * expected_half_width(law, noise, **like, seeds=seeds, level=level)

    least = max(2, -(-LEAST_RUNS // len(like["sizes"])))
    first = width(least)
    if first <= target:
        return least, first
    # A variance falls with the seeds, and Student's t with it: from below, then one by one.
    seeds = max(least + 1, int(least * (first / target) ** 2 / 2))
    while seeds <= MOST_SEEDS:
        reached = width(seeds)
        if reached <= target:
            return seeds, reached
        seeds = max(seeds + 1, int(seeds * (reached / target) ** 1.5))
    return 0, math.inf


def _runs(preset: Preset) -> dict[str, Run]:
    """Return a run of every size of a preset."""
    from densing.scores.ladder import find_corpus, ladder_runs

    corpus = find_corpus("standard", Path(), preset.vocabulary)
    return {run.shape.name: run for run in ladder_runs(preset, corpus, seeds=1)}


def _cost(run: Run, budgets: int) -> float:
    """Return the cost of a run's stable stage and decays up to a budget, in units of :attr:`Run.step_cost`."""
    plan = run.budgets[:budgets]
    return run.step_cost * (plan[-1].branch + sum(budget.end - budget.branch for budget in plan))


def _seconds_per_cost(runs: Mapping[str, Run], spec: Mapping[str, Any]) -> float:
    """Return core seconds per unit of cost, from the measured speed of the record's longest trainings."""
    speed = spec["baseline_cost"].get("tokens_per_core_second")
    if not speed:
        raise InputError("the record keeps no tokens per core second; measure again with `densing ladder gain DIR`")
    for size in spec["sizes"]:
        if size not in runs:
            raise UnknownNameError("size of the preset:", size, runs)
    measured = [runs[size] for size in spec["sizes"]]
    tokens = sum(run.tokens(run.steps[-1]) for run in measured)
    return tokens / speed / sum(run.step_cost * run.steps[-1] for run in measured)


class DeviceTime(Record, frozen=True):
    """Runs of one size and arm on a device.

    Parameters
    ----------
    size, arm : str
    runs : int
    parameters : int
        Without embeddings.
    tokens : int
        That one run trains on, decays included.
    step_s, minutes : float
        Of a step; of all these runs.
    """

    size: str
    arm: str
    runs: int
    parameters: int
    tokens: int
    step_s: float
    minutes: float


class DeviceEstimate(Readable, Record, frozen=True):
    """What a ladder would take on one device, by the cost model; nothing of it is measured.

    Parameters
    ----------
    device : str
        As ``devices.csv`` of the cost model names it.
    rows : tuple of DeviceTime
    minutes, low, high : float
        In all, and between which four of five published runs lie that the model had not seen.
    notes : tuple of Note
    """

    device: str
    rows: tuple[DeviceTime, ...]
    minutes: float
    low: float
    high: float
    notes: tuple[Note, ...] = ()

    def frame(self) -> pd.DataFrame:  # type: ignore[override]
        """Return a row per size and arm."""
        return Record.frame(self.rows)

    def card(self) -> Card:
        """Return what is shown."""
        facts = {
            "all": f"{formatting.number(self.minutes)} minutes (estimate of the cost model, not measured; "
            f"{formatting.number(self.low)} to {formatting.number(self.high)})"
        }
        title = f"Training on one {self.device}: an estimate"
        table = listing_of(title, self.frame(), tokens=formatting.size, parameters=formatting.size)
        return Card(title, facts, table, self.notes)


def device_estimate(runs: Sequence[Run], device: str) -> DeviceEstimate:
    """Estimate what runs would take on one device.

    A run takes its steps (:attr:`densing.scores.ladder.Run.work`) times what the cost model of published trainings
    gives for one step on one device, its software plain PyTorch; every further virtual rank has an optimizer of its
    own. Validation, exports and what an arm computes to compress are left out, and models as small as these are beyond
    what the cost model was fitted to.

    Parameters
    ----------
    runs : sequence of Run
    device : str
        Part of a name in the cost model's table of devices, such as ``H200``.

    Raises
    ------
    UnknownNameError
        When no data sheet of the device is known.

    Examples
    --------
    >>> from densing.scores.ladder import Generated, get_preset, ladder_runs
    >>> found = device_estimate(ladder_runs(get_preset("gpu"), Generated(), seeds=1), "H200")
    >>> [row.size for row in found.rows], found.low < found.minutes < found.high
    (['0.005B', '0.01B', '0.03B', '0.1B'], True)
    """
    import numpy as np

    from densing.efficiency.throughput import device_names, frozen, read_runs, step_seconds

    table = pd.DataFrame(
        {
            "row_id": str(number), "layers": run.shape.layers, "hidden": run.shape.width, "heads": run.shape.heads,
            "kv_heads": run.shape.kv_heads, "ffn_hidden": run.shape.ffn, "mlp": "swiglu", "tied_embeddings": "1",
            "vocab": run.corpus.vocabulary, "seq": run.preset.block, "mbs": run.shape.batch, "gbs": run.shape.batch,
            "gpu": device, "gpus": 1, "precision": "bf16", "recompute": "none",
        }
        for number, run in enumerate(runs)
    )  # fmt: skip
    known = frozen()
    steps = read_runs(table)
    if not steps.about.device.iloc[0]:
        raise UnknownNameError("device", device, device_names())
    name, generation = steps.about.device.iloc[0], steps.about.generation.iloc[0]
    own, _ = known.of([generation] * len(runs))
    parts = step_seconds(steps.runs, own)
    ranks = np.array([1 if run.arm is None else run.arm.ranks for run in runs])
    seconds = parts.step + (ranks - 1) * parts.optimizer
    rows: dict[tuple[str, str], list[Any]] = {}
    for run, each in zip(runs, seconds, strict=True):
        rows.setdefault((run.shape.name, "" if run.arm is None else run.arm.name), []).append((run, float(each)))
    times = tuple(
        DeviceTime(
            size, arm, len(group), group[0][0].shape.non_embedding, group[0][0].tokens(group[0][0].work), group[0][1],
            sum(run.work * each for run, each in group) / 60,
        )
        for (size, arm), group in rows.items()
    )  # fmt: skip
    minutes = sum(row.minutes for row in times)
    low, high = known.spread(str(steps.runs.kinds(generation in known.constants)[0])) or (math.nan, math.nan)
    notes = known.doubts(generation, name, steps.runs)
    return DeviceEstimate(name, times, minutes, low * minutes, high * minutes, notes)
