"""Arms tuned alike: each arm, plain training included, gets the same number of trials on the smallest size.

What is searched is the factor of the learning rate and, of methods with an outer step, its size and momentum
(:attr:`densing.efficiency.systems.Knob.search`). The first trial is the arm as it was given, the others are points of a
scrambled Halton sequence (scipy.stats.qmc), the same rates for every arm. Trials have a seed of their own, and are
judged by the validation loss, the mean over the token budgets of one warmed-up, stable and decayed schedule.

Where an arm's best rate is the least or the greatest that it was tried with, the search goes on: one more trial with
the rate halved or doubled once more, all else equal, until the best lies inside or :data:`ROUNDS` have passed. Arms
whose best lies inside meanwhile get the next point of the sequence, so that all have the same number of trials.

The best is carried to the other sizes as it is: the learning rate remains the preset's rule in the width times the
factor found. Whether that holds is tried on the next size, with half and twice the rate: it does not where one of them
is better with both of two seeds.

Source of the sequence: Owen, "A randomized Halton algorithm in R", arXiv 1706.02808, as scipy has it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from densing.core import (
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Record,
    column,
    formatting,
    numeric,
    write_text,
)
from densing.scores.ladder import (
    ALONE,
    Arm,
    Corpus,
    DivergedError,
    Preset,
    arm_runs,
    describe_ladder,
    read_exports,
    train,
)

RATES = (0.25, 4.0)
"""Factors of the learning rate that are tried first."""
OUTWARD, ROUNDS = 2.0, 6
"""Factor by which a search goes on beyond the rates tried, and how often at most: to a 64th and the 64-fold."""
TRIALS, FILE = "tuning", "tuning.json"
"""Folder and record of a search, in that of the ladder."""
SEED = 10_000
"""First seed of trials: none of a measured run's."""
NEIGHBOURS = (0.5, 2.0)
"""Factors of the chosen rate that the next size is asked about."""
SEEDS = 2
"""Seeds with which it is asked."""
DIGITS = 3
MOST_KNOBS = 6


class TunedArm(Record, frozen=True):
    """What a search found for an arm.

    Parameters
    ----------
    arm : str
        As it was given.
    settings : mapping of str to float
        Chosen: ``lr``, the factor of the learning rate, and the knobs of an outer step.
    loss, given_loss : float or None
        Validation losses on the smallest size, nats per token, mean over the budgets: chosen, and as given; None where
        the latter diverged.
    trials, diverged : int
    rates : tuple of float
        The least and the greatest factor of the learning rate that was tried; the same where it was not searched.
    next_size : str
        Where the rule was tried; empty where there is none.
    next_rate : float
        Factor of the chosen rate that was better there with every seed: 1 where the rule holds.
    next_gain : float
        By so many nats per token, the mean of the seeds.
    """

    arm: str
    settings: Mapping[str, float]
    loss: float
    given_loss: float | None
    trials: int
    diverged: int
    rates: tuple[float, float] = RATES
    next_size: str = ""
    next_rate: float = 1.0
    next_gain: float = 0.0


class ArmSearch(Readable, Record, frozen=True):
    """A search of settings, an arm a row.

    Parameters
    ----------
    size : str
        On which all trials were trained.
    trials : int
        Per arm, of the first rates; an arm's own number counts those beyond them, too.
    seed : int
    arms : tuple of TunedArm
    notes : tuple of Note
        Where the chosen rate is at the end of what was tried, or not the best on the next size.
    """

    size: str
    trials: int
    seed: int
    arms: tuple[TunedArm, ...]
    notes: tuple[Note, ...] = ()

    def listing(self) -> Listing:
        """Return a row per arm: what was chosen, and both losses."""

        def chosen(row: Mapping[str, Any]) -> str:
            return ", ".join(f"{name} {formatting.number(value)}" for name, value in row["settings"].items())

        def carried(row: Mapping[str, Any]) -> str:
            return formatting.number(row["next_rate"]) if row["next_size"] else formatting.MISSING

        fields = (
            Field("Arm", column("arm")),
            Field("Chosen", chosen, hint="lr: factor of the preset's learning rate"),
            numeric("Loss as given", "given_loss", formatting.three_digits),
            numeric("Chosen loss", "loss", formatting.three_digits),
            Field("Best rate, next size", carried, "next_rate", hint="Over the chosen one: 1 where the rule holds"),
        )
        further = max(each.trials for each in self.arms) - self.trials
        more = f" and {further} more beyond the first rates" if further > 0 else ""
        title = f"{len(self.arms)} arms tuned on {self.size}, {self.trials} trials each{more}"
        return Listing(title, self.arms, fields)

    def card(self) -> Card:
        """Return what is shown."""
        listing = self.listing()
        return Card(listing.title, {}, listing, self.notes)

    def tuned(self, arms: Sequence[Arm]) -> list[Arm]:
        """Return the arms with their chosen settings, under the names they had."""
        found = {each.arm: each.settings for each in self.arms}
        return [_with(arm, found[arm.name]) for arm in arms]


def search_space(arm: Arm) -> dict[str, tuple[float, float]]:
    """Return what is searched of an arm, with the ends: what it does not say itself.

    Raises
    ------
    UnknownNameError
        When there is no such method.

    Examples
    --------
    >>> from densing.scores.ladder import parse_arm
    >>> search_space(parse_arm("co2:tau=8,outer_lr=1", ranks=4))
    {'lr': (0.25, 4.0), 'outer_momentum': (0.0, 0.95)}
    >>> search_space(parse_arm("plain:lr=2"))
    {}
    """
    from densing.efficiency.systems import get_technique

    knobs = () if arm.method in ALONE else get_technique(arm.method).knobs
    space = {"lr": RATES} | {knob.name: knob.search for knob in knobs if knob.search}
    given = {part.partition("=")[0] for part in arm.name.partition(":")[2].split(",")}
    return {name: ends for name, ends in space.items() if name not in given}


def trial_settings(arm: Arm, trials: int, seed: int) -> list[dict[str, float]]:
    """Return the settings of each trial; those of the first are the arm's own, and nothing is said of them.

    Ends above 0 are searched by their logarithms.

    Examples
    --------
    >>> from densing.scores.ladder import parse_arm
    >>> plain, other = (trial_settings(parse_arm(text, 4), 4, 0) for text in ("plain", "co2:tau=8"))
    >>> plain[0], [trial["lr"] for trial in plain[1:]] == [trial["lr"] for trial in other[1:]]
    ({}, True)
    """
    from scipy.stats import qmc

    space = search_space(arm)
    if not space:
        return [{}]
    # Of one sequence for all arms each takes the first columns: the rates are the same.
    points = qmc.Halton(MOST_KNOBS, rng=np.random.default_rng([seed, SEED])).random(max(trials - 1, 0))

    def placed(at: float, low: float, high: float) -> float:
        value = low * (high / low) ** at if low > 0 else low + (high - low) * at
        return float(f"{value:.{DIGITS}g}")

    return [{}] + [
        {name: placed(at, *ends) for at, (name, ends) in zip(point, space.items(), strict=False)} for point in points
    ]


def tune_arms(
    preset: Preset,
    corpus: Corpus,
    arms: Sequence[Arm],
    folder: Path,
    *,
    trials: int = 8,
    sizes: Sequence[str] = (),
    seed: int = 0,
    about: Mapping[str, Any] | None = None,
    **training: Any,
) -> ArmSearch:
    """Search settings for every arm with the same number of trials; what is trained is not trained again.

    Parameters
    ----------
    preset, corpus, arms, sizes
        As in :func:`densing.scores.ladder.arm_runs`; the first size is searched, the second asked whether the choice
        holds.
    folder : Path
        Of the ladder; trials lie below ``tuning``, and ``tuning.json`` says what was found.
    trials : int
        Per arm, the arm as it is given among them; each has as many more as the arm whose best rate is farthest off.
    seed : int
        Of the points, and of the trials' training.
    about : mapping, optional
        What ``ladder.json`` of the trials says.
    **training
        As for :func:`densing.scores.ladder.train`.

    Raises
    ------
    InputError
        When fewer than two trials are asked for.
    DivergedError
        When no trial of an arm has a loss.
    """
    if trials < 2:
        raise InputError(f"--tune {trials}: give 2 trials or more; the first is the arm as it is")
    names = list(sizes) or [shape.name for shape in preset.shapes]
    below = folder / TRIALS
    describe_ladder(below, about or {"preset": preset.name, **corpus.describe()})

    def losses(size: str, variants: Sequence[Arm], first_seed: int) -> dict[str, float]:
        """Train variants on a size; return the mean loss of each, infinite where it diverged."""
        runs = arm_runs(preset, corpus, variants, sizes=[size], seeds=[first_seed])
        with suppress(DivergedError):
            train(runs, below, **training)
        wanted = {run.name: run.arm.name for run in runs if run.arm is not None}
        found: dict[str, list[float]] = {arm.name: [] for arm in variants}
        for export in read_exports(below):
            if export["run"] in wanted:
                found[wanted[export["run"]]].append(export["loss"]["validation_nats_per_token"])
        budgets = len(next(iter(runs)).budgets)
        return {name: float(np.mean(each)) if len(each) == budgets else math.inf for name, each in found.items()}

    points = {arm.name: trial_settings(arm, trials + ROUNDS, seed) for arm in arms}
    settings: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    lost: dict[str, list[float]] = {arm.name: [] for arm in arms}
    more = {name: each[:trials] for name, each in points.items()}
    for number in range(ROUNDS + 1):
        tried = {arm.name: [_with(arm, each, named=True) for each in more[arm.name]] for arm in arms}
        first = losses(names[0], [variant for each in tried.values() for variant in each], SEED + seed)
        for name, variants in tried.items():
            settings[name] += more[name]
            lost[name] += [first[variant.name] for variant in variants]
            if not math.isfinite(min(lost[name])):
                raise DivergedError(
                    f"--arm {name}: all {len(lost[name])} trials diverged; lower its learning rate (lr=0.1)"
                )
        beyond = {arm.name: _beyond(arm, settings[arm.name], lost[arm.name]) for arm in arms}
        if not any(beyond.values()):
            break
        at = trials + number
        more = {name: [each] if (each := beyond[name]) else points[name][at : at + 1] for name in points}
    chosen, near = {}, {}
    for arm in arms:
        best = settings[arm.name][int(np.argmin(lost[arm.name]))]
        chosen[arm.name] = {"lr": arm.lr, **best}
        if "lr" in search_space(arm):
            rates = [by * chosen[arm.name]["lr"] for by in (1.0, *NEIGHBOURS)]
            near[arm.name] = [_with(arm, {**best, "lr": rate}, named=True) for rate in rates]
    around = [variant for each in near.values() for variant in each]
    second = [losses(names[1], around, SEED + seed + each) for each in range(SEEDS)] if names[1:] and around else []
    found = []
    for arm in arms:
        own = lost[arm.name]
        rates = [each.get("lr", arm.lr) for each in settings[arm.name]]
        checked = bool(second) and arm.name in near
        rate, gain = (
            _better([[each[variant.name] for variant in near[arm.name]] for each in second]) if checked else (1.0, 0.0)
        )
        found.append(
            TunedArm(
                arm.name,
                chosen[arm.name],
                min(own),
                own[0] if math.isfinite(own[0]) else None,
                len(own),
                sum(not math.isfinite(each) for each in own),
                (min(rates), max(rates)),
                names[1] if checked else "",
                rate,
                gain,
            )
        )
    result = ArmSearch(names[0], trials, seed, tuple(found), tuple(_notes(found)))
    write_text(folder / FILE, json.dumps(result.to_dict(), indent=2) + "\n")
    return result


def _beyond(arm: Arm, settings: Sequence[Mapping[str, float]], losses: Sequence[float]) -> dict[str, float] | None:
    """Return the best trial with its rate halved or doubled, where that is the least or greatest tried; else None."""
    if "lr" not in search_space(arm):
        return None
    rates = [each.get("lr", arm.lr) for each in settings]
    best = int(np.argmin(losses))
    if min(rates) < rates[best] < max(rates):
        return None
    factor = OUTWARD if rates[best] == max(rates) else 1 / OUTWARD
    return {**settings[best], "lr": float(f"{rates[best] * factor:.{DIGITS}g}")}


def _better(losses: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return which neighbour of the chosen rate is better with every seed, and by how much; 1 and 0 where none is."""
    with np.errstate(invalid="ignore"):
        gains = np.array([[seed[0] - other for other in seed[1:]] for seed in losses])
    sure = np.flatnonzero((gains > 0).all(axis=0))
    if not sure.size:
        return 1.0, 0.0
    at = sure[np.argmax(gains[:, sure].mean(axis=0))]
    return NEIGHBOURS[at], float(gains[:, at].mean())


def _with(arm: Arm, settings: Mapping[str, float], *, named: bool = False) -> Arm:
    """Return an arm with other settings; ``named`` after them, as runs that lie in one folder must be."""
    knobs = {**arm.knobs, **{name: f"{value:g}" for name, value in settings.items() if name != "lr"}}
    changed = dataclasses.replace(arm, lr=settings.get("lr", arm.lr), knobs=knobs)
    if not named or not settings:
        return changed
    said = ",".join(f"{name}={value:g}" for name, value in sorted(settings.items()))
    return dataclasses.replace(changed, name=f"{arm.name}{',' if ':' in arm.name else ':'}{said}")


def _notes(arms: Sequence[TunedArm]) -> list[Note]:
    notes = []
    for each in arms:
        if each.rates[0] < each.rates[1] and each.settings["lr"] in each.rates:
            notes.append(Note("rate-at-end", "warning", (
                f"arm {each.arm}: its best learning rate, {each.settings['lr']:g} times the preset's, is at the end of "
                f"what {each.trials} trials reached ({each.rates[0]:g} to {each.rates[1]:g}); a better may lie beyond"
            ), {"arm": each.arm}))  # fmt: skip
        if each.next_size and each.next_rate != 1:
            notes.append(Note("rate-not-carried", "warning", (
                f"arm {each.arm}: on {each.next_size} {each.next_rate:g} times the chosen learning rate is better by "
                f"{each.next_gain:.3g} nats per token; the rule that carries it to other sizes does not hold there"
            ), {"arm": each.arm}))  # fmt: skip
    return notes
