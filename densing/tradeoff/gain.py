"""Gain of each arm of a ladder over plain training: density and tokens per byte, second and joule.

.. math:: L_{plain} = L(N, D; \\theta), \\qquad L_{arm} = L(\\rho N, D; \\theta)

with one rho (or one token ratio) for all sizes, budgets and seeds, fitted with the law to both arms at once; see
:mod:`densing.scores.ladder.shift`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from densing.core import (
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Record,
    UnknownNameError,
    column,
    formatting,
    numeric,
    once,
    processes,
    ranged,
)

if TYPE_CHECKING:
    from densing.scores.fit import LawFit
    from densing.scores.ladder import Shift

WATTS = 15.0
"""Of a busy core, where no counter can be read and the user says nothing: a server processor's power over its cores."""
HOUR_OF_TWO_CORES = 7200.0
MEAN = "mean"
"""The mean of the sets of questions."""
SCHEMA = 1
"""Of records of gains."""
COLUMNS = (
    "arm", "density_ratio", "density_lo", "density_hi", "token_ratio", "token_lo", "token_hi", "bytes", "seconds",
    "joules", "kept_parameters", "pairs", "status", "no_loss", "density_one", "density_least", "density_most",
    "token_one", "token_least", "token_most",
)  # fmt: skip


@dataclass(frozen=True)
class ArmGain:
    """What one arm bought, and what it cost.

    Parameters
    ----------
    arm : str
    density, tokens : Shift
        Ratios to the baseline, from validation losses.
    bytes, seconds, joules : float
        Of a run, mean over the paired ones: bytes that one rank sends, seconds of its training, energy of all ranks.
    kept_parameters : float
        Non-embedding parameters that divide, mean over the pairs.
    core_seconds : float
        Processor seconds spent here on the paired runs of both arms, every budget's decay included.
    tokens_per_core_second : float
        Of the arm's own training, all virtual ranks together; NaN where nothing was counted.
    """

    arm: str
    density: Shift
    tokens: Shift
    bytes: float
    seconds: float
    joules: float
    kept_parameters: float
    core_seconds: float
    tokens_per_core_second: float = math.nan

    @property
    def status(self) -> str:
        """The density ratio's; the token ratio has its own in ``tokens.status``."""
        return self.density.status

    def hour(self, shift: Shift) -> float | None:
        """Return the half-width of a ln ratio that an hour of two cores would give.

        The present one times sqrt(core seconds spent / 7200); None where the interval has an open end.
        """
        width = shift.half_width * math.sqrt(self.core_seconds / HOUR_OF_TWO_CORES) if self.core_seconds else math.nan
        return finite_or_none(width)

    @property
    def no_loss(self) -> str:
        """``yes``, ``no``, ``not decided`` or ``no change``: whether at least .97 of the tokens' worth is there."""
        return self.tokens.no_loss

    def row(self) -> dict[str, Any]:
        """Return the fields of :data:`COLUMNS`."""
        from densing.scores.ladder import ratio_columns

        return {
            "arm": self.arm,
            **{key: value for key, value in ratio_columns(self.density, self.tokens).items() if key not in LATER},
            "bytes": self.bytes,
            "seconds": self.seconds,
            "joules": self.joules,
            "kept_parameters": self.kept_parameters,
            "pairs": self.density.pairs,
            "status": self.status,
            "no_loss": self.no_loss,
            **{
                f"{name}_{part}": value
                for name, shift in (("density", self.density), ("token", self.tokens))
                for part, value in (("one", shift.verdict), ("least", shift.least), ("most", shift.most))
            },
        }


LATER = ("pairs", "status")
TRENDS = ("trend", "trend_lo", "trend_hi", "size_trend", "size_trend_lo", "size_trend_hi", "p_value")


def ratio(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows a ratio with its interval, or the bound where one end is unknown.

    Where no one ratio holds, the range over sizes and budgets stands in its place.

    Examples
    --------
    >>> ratio("token")({"token_ratio": 1.1, "token_lo": 1.0, "token_hi": None})
    '1.10 (at least 1.0)'
    """

    def written(row: Mapping[str, Any]) -> str:
        if row.get(f"{name}_one") == "no":
            least, most = (formatting.three_digits(row[f"{name}_{end}"]) for end in ("least", "most"))
            return f"{least} to {most}, by size and budget"
        low, high = row[f"{name}_lo"], row[f"{name}_hi"]
        value = row[f"{name}_ratio"]
        text = "unknown" if formatting.is_missing(value) else formatting.three_digits(value)
        if formatting.is_missing(low) and formatting.is_missing(high):
            return text
        if formatting.is_missing(low):
            return f"{text} (at most {formatting.number(high)})"
        if formatting.is_missing(high):
            return f"{text} (at least {formatting.number(low)})"
        return f"{text} ({formatting.three_digits(low)} to {formatting.three_digits(high)})"

    return written


ARMS = (
    Field("Arm", column("arm")),
    Field("Density ratio", ratio("density"), "density_ratio"),
    Field("Token ratio", ratio("token"), "token_ratio"),
    Field("No loss", column("no_loss"), hint="Whether the whole interval of the token ratio reaches 0.97"),
    numeric("Bytes", "bytes_share", formatting.percentage, hint="Of the baseline's"),
    numeric("Trend of tokens", "trend"),
    Field("Interval of the trend", ranged("trend", formatting.number), "trend_lo", minor=True),
    numeric("Pairs", "pairs", formatting.count, minor=True),
    Field("Status", column("status"), hint="Of the density ratio"),
)
"""How a row per arm is shown: of :func:`densing.tradeoff.gain_table`."""


@dataclass(frozen=True, repr=False)
class Gains(Readable):
    """The gains of all arms of a ladder.

    Parameters
    ----------
    folder : str
    baseline : str
    arms : tuple of ArmGain
    by : pandas.DataFrame
        ``arm, by, value`` and both ratios: by size, by budget, and by set of questions where there are answers.
    unmatched : pandas.DataFrame
        ``arm, size, seed, tokens, reason``: runs without a partner.
    evidence : dict of str to str
        How seconds, joules and bytes were got.
    spec : dict
        Preset, corpus, arms, sizes, budgets, seeds, link, level, and the law and noise found.
    digest : str
        sha256 of the losses and costs that went in.
    notes : tuple of Note

    See Also
    --------
    ladder_gain : makes it.
    """

    folder: str
    baseline: str
    arms: tuple[ArmGain, ...]
    by: pd.DataFrame
    unmatched: pd.DataFrame
    evidence: dict[str, str]
    spec: dict[str, Any]
    digest: str
    notes: tuple[Note, ...]

    def frame(self) -> pd.DataFrame:
        """Return a row per arm, of :data:`COLUMNS`."""
        return pd.DataFrame([arm.row() for arm in self.arms], columns=list(COLUMNS))

    def parts(self) -> pd.DataFrame:
        """Return the rows of ``by`` that stand for the ratios of arms whose token ratio is not one."""
        several = [arm.arm for arm in self.arms if not arm.tokens.one]
        return self.by[self.by["arm"].isin(several) & self.by["by"].isin(["size", "tokens"])]

    def trends(self) -> pd.DataFrame:
        """Return d ln ratio / d ln D and d ln ratio / d ln N per arm, and the test that both are 0.

        ``arm, ratio, trend, trend_lo, trend_hi, size_trend, size_trend_lo, size_trend_hi, p_value``.
        """
        rows = [
            {"arm": arm.arm, "ratio": name, **{column: getattr(shift, column) for column in TRENDS}}
            for arm in self.arms
            for name, shift in (("density", arm.density), ("token", arm.tokens))
        ]
        return pd.DataFrame(rows, columns=["arm", "ratio", *TRENDS])

    def resolution(self) -> pd.DataFrame:
        """Return the resolution, in half-widths of ln ratios, here and for an hour of two cores.

        ``arm, core_seconds, half_width, half_width_hour, token_half_width, token_half_width_hour``.
        """
        rows = [
            {
                "arm": arm.arm,
                "core_seconds": arm.core_seconds,
                "half_width": finite_or_none(arm.density.half_width),
                "half_width_hour": arm.hour(arm.density),
                "token_half_width": finite_or_none(arm.tokens.half_width),
                "token_half_width_hour": arm.hour(arm.tokens),
            }
            for arm in self.arms
        ]
        return pd.DataFrame(rows)

    def prices(self) -> pd.DataFrame:
        """Return ln density gained per gigabyte saved, where the ratio's interval excludes 1 and bytes differ.

        ``arm, bytes_share, tokens_per_core_second, ln_density_per_gigabyte_saved``; the last is missing elsewhere.
        """
        base = self.spec["baseline_cost"]["bytes"]
        rows = []
        for arm in self.arms:
            lo, hi, ratio = arm.density.lo, arm.density.hi, arm.density.ratio
            decided = arm.status == "ok" and lo is not None and hi is not None and not lo <= 1 <= hi
            saved = (base - arm.bytes) / 1e9
            price = math.log(ratio) / saved if decided and ratio and saved else None
            share = arm.bytes / base if base else None
            speed = finite_or_none(arm.tokens_per_core_second)
            rows.append((arm.arm, share, speed, price))
        columns = ["arm", "bytes_share", "tokens_per_core_second", "ln_density_per_gigabyte_saved"]
        return pd.DataFrame(rows, columns=columns)

    def listing(self) -> Listing:
        """Return both ratios of every arm as people read them."""
        tokens = self.trends().query("ratio == 'token'").drop(columns="ratio")
        rows = self.frame().merge(self.prices(), on="arm").merge(tokens, on="arm")
        return Listing(f"Gains over {self.baseline} in {self.folder}", rows, ARMS)

    def costs_listing(self) -> Listing:
        """Return what a run of every arm takes, and what ln density a gigabyte saved costs."""
        fields = (
            Field("Arm", column("arm")),
            numeric("Bytes sent by a rank", "bytes", formatting.volume),
            numeric("Share of plain", "bytes_share", formatting.percentage),
            numeric("Seconds", "seconds", formatting.three_digits),
            numeric("Joules", "joules", formatting.three_digits),
            numeric("Tokens a core second", "tokens_per_core_second", formatting.whole),
            numeric("Kept parameters", "kept_parameters", formatting.whole),
            numeric("ln density per GB saved", "ln_density_per_gigabyte_saved"),
        )
        title = "A run of the largest size, and what each gigabyte saved bought."
        return Listing(title, self.frame().merge(self.prices(), on="arm"), fields)

    def parts_listing(self, rows: pd.DataFrame | None = None) -> Listing:
        """Return both ratios by budget, by size, and by set of questions; all rows of ``by`` unless some are given."""
        fields = (
            Field("Arm", column("arm")),
            Field("By", column("by")),
            Field("Value", column("value")),
            Field("Density ratio", ratio("density"), "density_ratio"),
            Field("Token ratio", ratio("token"), "token_ratio"),
            Field("Status", column("status")),
        )
        return Listing("The pairs of one part alone.", self.by if rows is None else rows, fields)

    def trends_listing(self) -> Listing:
        """Return the trends of every arm with tokens and size, and the test that one ratio holds."""
        fields = (
            Field("Arm", column("arm")),
            Field("Ratio", column("ratio")),
            numeric("d ln ratio / d ln D", "trend"),
            Field("Interval", ranged("trend", formatting.number), "trend_lo"),
            numeric("d ln ratio / d ln N", "size_trend"),
            Field("Interval of it", ranged("size_trend", formatting.number), "size_trend_lo"),
            numeric("p of one ratio", "p_value", formatting.p_value),
        )
        title = "Above 0, an arm gains as training goes on (D) or as models grow (N). p: of the test that both are 0."
        return Listing(title, self.trends(), fields)

    def resolution_listing(self) -> Listing:
        """Return how finely the ladder resolves each arm."""
        fields = (
            Field("Arm", column("arm")),
            numeric("Core seconds spent", "core_seconds", formatting.whole),
            numeric("ln density", "half_width"),
            numeric("In an hour", "half_width_hour"),
            numeric("ln tokens", "token_half_width"),
            numeric("Tokens in an hour", "token_half_width_hour"),
        )
        level = formatting.percentage(self.spec["level"])
        title = f"Half-widths of {level} intervals of ln ratios, here and for an hour of two cores."
        return Listing(title, self.resolution(), fields)

    def card(self) -> Card:
        """Return what is shown."""
        facts = {arm.arm: sentence(arm) for arm in self.arms}
        return Card(f"Gains over {self.baseline} in {self.folder}", facts, self.listing(), self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``densing ladder gain --json`` prints it."""
        return {
            "folder": self.folder,
            "baseline": self.baseline,
            "arms": [arm.row() for arm in self.arms],
            "trends": self.trends(),
            "by": self.by,
            "resolution": self.resolution(),
            "prices": self.prices(),
            "evidence": self.evidence,
            "unmatched": self.unmatched,
            "notes": [note.to_dict() for note in self.notes],
            "spec": self.spec,
            "digest": self.digest,
        }

    def record(self) -> GainRecord:
        """Return what a measured claim keeps of it."""
        return GainRecord(
            spec=self.spec,
            digest=self.digest,
            versions=_versions(),
            figures=[arm.row() for arm in self.arms],
            evidence=self.evidence,
            trends=self.trends().to_dict("records"),
        )


class GainRecord(Record, frozen=True):
    """A measurement that claims can refer to, and that can be made again.

    Parameters
    ----------
    spec : mapping
        What was trained, and how the figures were drawn from it.
    digest : str
        sha256 of the losses and costs that went in.
    versions : mapping
    figures : list of mapping
        Rows of :meth:`Gains.frame`.
    kind : {"gain"}
    schema : int
    evidence : mapping
        How bytes, seconds and joules were got; empty in records of before it was kept.
    trends : list of mapping
        Rows of :meth:`Gains.trends`; empty in records of before they were kept.
    """

    spec: Mapping[str, Any]
    digest: str
    versions: Mapping[str, str]
    figures: Sequence[Mapping[str, Any]]
    kind: str = "gain"
    schema: int = SCHEMA
    evidence: Mapping[str, str] = {}
    trends: Sequence[Mapping[str, Any]] = ()


def null_listing(null: pd.DataFrame) -> Listing:
    """Return how often intervals of simulated ladders hold what was planted, of :func:`null_test`."""
    fields = (
        Field("World", column("world")),
        numeric("Intervals that hold it", "held", formatting.percentage),
        numeric("Gain said", "gain", formatting.percentage),
        numeric("Loss said", "loss", formatting.percentage),
        numeric("One ratio rejected", "not_one", formatting.percentage),
        numeric("Half-width of ln ratio", "half_width"),
    )
    return Listing("Simulated ladders like this one: do 95 % intervals hold what was planted?", null, fields)


def null_test(
    gains: Gains | GainRecord,
    *,
    ladders: int = 200,
    seed: int = 0,
    worlds: Sequence[str] = (),
    step: Callable[[str, float], object] = lambda label, share: None,
) -> pd.DataFrame:
    """Simulate ladders like the one measured, and count how often the intervals hold what was planted.

    Sizes, budgets, seeds, the law and the noise of pairs are the ladder's own; the last worlds of
    :data:`densing.scores.ladder.WORLDS` break what the model takes for granted.

    Parameters
    ----------
    gains : Gains or GainRecord
    ladders : int
        In each world.
    seed : int
    worlds : sequence of str
        Of :data:`densing.scores.ladder.WORLDS`; all when empty.
    step : callable
        Called with a label and the share done.

    Returns
    -------
    pandas.DataFrame
        ``world, ladders``, and what :func:`densing.scores.ladder.coverage` counts.

    Raises
    ------
    InputError
        For fewer ladders than one.
    """

    from densing.jobs import in_processes
    from densing.scores.ladder import WORLDS

    if ladders < 1:
        raise InputError(f"--null {ladders}: one simulated ladder or more")
    spec = gains.spec
    like = {
        "sizes": spec["params"], "budgets": spec["tokens"], "seeds": len(spec["seeds"]), "theta": spec["law"],
        **spec["noise"],
    }  # fmt: skip
    items = [
        {**like, "world": world, "ladders": ladders, "seed": seed + 10_000 * number}
        for number, world in enumerate(worlds or WORLDS)
    ]
    rows: dict[str, Mapping[str, Any]] = {}
    for ended in in_processes(_simulate, items, processes.processors(), lambda item, told: None):
        if ended.row is None:
            raise InputError(f"a simulated ladder failed: {ended.reason}")
        rows[ended.item["world"]] = ended.row
        step("simulated ladders", len(rows) / len(items))
    return pd.DataFrame([{"world": world, "ladders": ladders, **rows[world]} for world in worlds or WORLDS])


def _simulate(item: Mapping[str, Any], tell: object) -> dict[str, float]:
    from densing.scores.ladder import coverage

    return coverage(**item)


def ladder_gain(
    folder: Path | str,
    *,
    baseline: str = "plain",
    law: Path | str | None = None,
    link: str | None = None,
    watts: float = WATTS,
    level: float = 0.95,
) -> Gains:
    """Estimate what every arm of a ladder bought beside plain training.

    Parameters
    ----------
    folder : path
        A ladder trained with arms (``densing ladder train --arm``).
    baseline : str
        The arm that the others are compared with; the law of losses is that of its runs and, shifted, of each arm's.
        Arms that are the baseline on more or fewer tokens (``plain:tokens=0.25``) say what the law is, too.
    law : path, optional
        A ladder of the same corpus and training whose plain runs say what the law is, too: for few sizes here.
    link : str, optional
        A rate such as ``100mbit``: seconds are then the simulator's step times the steps, on processors like this one
        behind such links; otherwise what the virtual ranks took here.
    watts : float
        Of a busy core, where joules were not counted.
    level : float
        Of the intervals.

    Raises
    ------
    InputError
        When the folder holds no ladder or no other arm, or no pair is left of it.
    UnknownNameError
        When there is no such baseline.
    FitError
        When the baseline has too few runs for a law.

    See Also
    --------
    densing.tradeoff.read_arms : the arms.
    """

    from densing.scores.ladder import (
        fit_loss,
        fit_shift,
        pair_noise,
        pair_table,
        read_exports,
        read_ladder,
        shifts_by,
    )

    folder = Path(folder)
    if not (math.isfinite(watts) and watts > 0):
        raise InputError(f"--watts {watts}: the power of a busy core is a number above 0")
    about, exports = read_ladder(folder), [export for export in read_exports(folder) if not export.get("target")]
    losses = arm_losses(exports, folder)
    names = list(dict.fromkeys(losses["arm"]))
    if baseline not in names:
        raise UnknownNameError(f"arm in {folder}:", baseline, names)
    others = [name for name in names if name != baseline]
    if not others:
        raise InputError(
            f"{folder}: {baseline} is the only arm here; train another beside it, for example "
            f"`densing ladder train --arm {baseline} --arm local-sgd:tau=8 --ranks 4 --out {folder}`"
        )
    plain = losses[losses["arm"].eq(baseline)]
    if law is not None:
        plain = _joined(plain, _reference_losses(Path(law), about))
    plain = plain[plain["loss"].gt(0) & plain["loss"].lt(math.inf)]
    fitted = fit_loss(plain)
    costs = {name: _Cost(exports, name, link, watts) for name in names}
    noise = []
    sets, lengths = _question_losses(folder, exports), _other_lengths(exports, losses, baseline)

    @cache
    def law_of(task: str) -> tuple[LawFit, pd.DataFrame]:
        table = sets[task]
        own = table[table["arm"].eq(baseline)]
        return fit_loss(own), own

    gains, tables, alone, notes = [], [], [], []
    for name in others:
        pairs, unmatched = pair_table(losses, name, baseline)
        alone.append(unmatched)
        notes += _pair_notes(name, baseline, pairs, unmatched)
        if pairs.empty:
            continue
        further = [rows for arm, rows in lengths.items() if arm != name]
        known = pd.concat([plain, *further]).drop_duplicates(["size", "seed", "tokens"])
        density, tokens = (fit_shift(fitted, known, pairs, axis, level=level) for axis in ("params", "tokens"))
        notes += _status_notes(name, density, tokens)
        if name in lengths:
            notes += _length_notes(name, float(name.rpartition("=")[2]), tokens)
        else:
            notes += _reach_notes(name, density, tokens, known, pairs)
        notes += _corpus_notes(exports, name, baseline)
        if density.status != "no_change":
            noise.append(pair_noise(pairs))
        cells = set(pairs[["size", "seed", "tokens"]].itertuples(index=False, name=None))
        spent = costs[name].core_seconds(cells) + costs[baseline].core_seconds(cells)
        kept = float(pairs["params_arm"].mean())
        means = costs[name].means(cells)
        speed = costs[name].tokens_per_core_second(cells)
        gains.append(ArmGain(name, density, tokens, **means, kept_parameters=kept, core_seconds=spent,
                             tokens_per_core_second=speed))  # fmt: skip
        parts = [shifts_by(fitted, known, pairs, column, level=level) for column in ("size", "tokens")]
        for task, table in sets.items():
            rows, _ = pair_table(table, name, baseline)
            if len(rows):
                parts.append(shifts_by(*law_of(task), rows.assign(set=task), "set", level=level))
        tables.append(pd.concat(parts, ignore_index=True).assign(arm=name))
    if not gains:
        raise InputError(
            f"{folder}: no run of an arm has a partner of equal size, seed and tokens in {baseline}; train the arms "
            "with the same --sizes and --seeds"
        )
    by = pd.concat(tables, ignore_index=True)
    notes += [note for cost in costs.values() for note in cost.notes]
    if not sets and not (folder / "eval").is_dir():
        text = f"{folder}: no benchmark results; gains use validation loss only (run `densing ladder eval {folder}`)"
        notes.append(Note("not-evaluated", "info", text))
    used = losses[losses["arm"].isin([baseline, *others])]
    spec = {
        "preset": about["preset"], "corpus_hash": about.get("corpus_hash"), "baseline": baseline, "arms": others,
        "sizes": list(used.sort_values("params_non_embedding")["size"].unique()),
        "params": sorted(map(float, set(used.loc[used["arm"].eq(baseline), "params_non_embedding"]))),
        "tokens": sorted(map(float, set(used["tokens"]))),
        "noise": {part: float(np.mean([row[part] for row in noise])) for part in noise[0]} if noise else {},
        "seeds": sorted(map(int, set(used["seed"]))), "link": link, "watts": watts, "level": level,
        "baseline_cost": costs[baseline].all_runs(), "law": fitted.params.to_dict(),
        "law_of": None if law is None else str(law), "trials": about.get("trials"),
    }  # fmt: skip
    return Gains(
        str(folder), baseline, tuple(gains), by[["arm", *(column for column in by if column != "arm")]],
        pd.concat(alone, ignore_index=True), _evidence(costs, baseline, link, watts), spec, _digest(exports),
        tuple(once(notes)),
    )  # fmt: skip


def sentence(arm: ArmGain) -> str:
    """Return one line on an arm.

    Examples
    --------
    >>> from densing.scores.ladder import fit_loss, fit_shift, pair_table, simulated_ladder
    >>> losses = simulated_ladder(tau=0.8)
    >>> plain = losses[losses["arm"].eq("plain")]
    >>> pairs, _ = pair_table(losses, "arm")
    >>> one, other = (fit_shift(fit_loss(plain), plain, pairs, axis) for axis in ("params", "tokens"))
    >>> sentence(ArmGain("a", one, other, 1e6, 10, 150, 5000, 60)).split(";")[-1].strip()
    'no loss: no'
    """

    if arm.status == "no_change":
        return "not an arm: no change; every loss is the baseline's to the last bit"
    row = arm.row()

    def written(name: str, shift: Shift) -> str:
        doubt = ": no one ratio" if not shift.one else "" if shift.status == "ok" else f", {shift.status}"
        return ratio(name)(row) + doubt.replace("_", " ")

    return (
        f"density x {written('density', arm.density)}; tokens x {written('token', arm.tokens)}; no loss: {arm.no_loss}"
    )


def arm_losses(exports: Sequence[Mapping[str, Any]], folder: Path) -> pd.DataFrame:
    """Return ``arm, run, size, seed, tokens, params_non_embedding, loss`` of exports; without arms all are plain."""
    rows = []
    for export in exports:
        try:
            rows.append(
                {
                    "arm": export.get("arm") or "plain",
                    **{name: export[name] for name in ("run", "size", "seed", "tokens")},
                    "params_non_embedding": export.get("params_kept", export["params_non_embedding"]),
                    "loss": number_of(export["loss"]["validation_nats_per_token"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"{export['path']}: its description lacks {error}; train it again") from error
    if not rows:
        raise InputError(f"{folder}: no model is exported yet; run `densing ladder train --arm ... --out {folder}`")
    return pd.DataFrame(rows)


def _reference_losses(folder: Path, about: Mapping[str, Any]) -> pd.DataFrame:
    """Return the losses of another ladder's plain runs, after a look at its corpus."""
    from densing.scores.ladder import own_run, read_exports, read_ladder

    corpus = read_ladder(folder).get("corpus_hash")
    if corpus != about.get("corpus_hash"):
        raise InputError(
            f"{folder}: a ladder of corpus {corpus}, not {about.get('corpus_hash')}; their losses do not compare"
        )
    return arm_losses([export for export in read_exports(folder) if own_run(export)], folder)


def _joined(plain: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    """Return plain runs of both ladders; those that both hold once, the others' under names of their own."""
    cells = ["size", "seed", "tokens", "loss"]
    shared = reference.merge(plain[cells].drop_duplicates(), on=cells, how="left", indicator=True)["_merge"].eq("both")
    return pd.concat([plain, reference[~shared.to_numpy()].assign(size=lambda rows: "law " + rows["size"])])


def _other_lengths(
    exports: Sequence[Mapping[str, Any]], losses: pd.DataFrame, baseline: str
) -> dict[str, pd.DataFrame]:
    """Return the runs of arms that differ from the baseline in length alone, under the tokens they were trained on.

    Where an arm's token ratio is small, its losses are those of fewer tokens than any budget has, and the law there is
    a guess without them. Until they decay they are the baseline's runs of equal seed, unless tuned apart.
    """
    peaks: dict[str, set[Any]] = {}
    for export in exports:
        peak = (export["size"], (export.get("schedule") or {}).get("peak"))
        peaks.setdefault(export.get("arm") or "plain", set()).add(peak)
    found = {}
    for arm in losses["arm"].unique():
        _, alike, factor = str(arm).partition(f"{baseline}:tokens=")
        if alike and "," not in factor and peaks[arm] <= peaks[baseline]:
            rows = losses[losses["arm"].eq(arm) & losses["loss"].gt(0) & losses["loss"].lt(math.inf)]
            found[arm] = rows.assign(tokens=rows["tokens"] * float(factor))
    return found


def number_of(value: Any) -> float:
    """Return a figure of a file; NaN where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _question_losses(folder: Path, exports: Sequence[Mapping[str, Any]]) -> dict[str, pd.DataFrame]:
    """Return losses in bits per byte as :func:`pair_table` takes them, by set of questions; the mean of sets first."""
    from densing.scores.evals import RunStore
    from densing.scores.ladder import EMERGENT, FILMS, measured_table, read_ladder

    # What plain training never saw, how films were received, has no law there to read a gain from.
    if not (folder / "eval").is_dir() or read_ladder(folder).get("corpus") == FILMS:
        return {}
    measured = measured_table(exports, RunStore(folder / "eval").measurements()).rename(
        columns={"bits_per_byte": "loss"}
    )
    measured["arm"] = measured["arm"].fillna("").replace("", "plain")
    columns = ["arm", "run", "size", "seed", "tokens", "params_non_embedding"]
    steady = measured[~measured["task"].isin(EMERGENT)]
    mean = steady.groupby(columns)["loss"].agg(["mean", "count"]).reset_index().rename(columns={"mean": "loss"})
    tables = {MEAN: mean[mean["count"].eq(steady["task"].nunique())]}
    return tables | {str(task): rows for task, rows in measured.groupby("task", sort=True)}


class _Cost:
    """What the runs of an arm took."""

    def __init__(self, exports: Sequence[Mapping[str, Any]], arm: str, link: str | None, watts: float) -> None:
        self.arm, self.notes = arm, []
        self.runs: dict[tuple[Any, ...], dict[str, float]] = {}
        self.counted = True
        self._steps: dict[tuple[Any, ...], float] = {}
        work: dict[tuple[Any, ...], list[tuple[float, float, float, float, float]]] = {}
        for export in exports:
            if (export.get("arm") or "plain") != arm:
                continue
            cost = export.get("cost") or {}
            cell = (export["size"], export["seed"], export["tokens"])
            seconds, joules = number_of(cost.get("seconds")), number_of(cost.get("joules"))
            busy = number_of(cost.get("processor_seconds", cost.get("seconds")))
            schedule = export.get("schedule") or {}
            steps, branch = number_of(schedule.get("steps")), number_of(schedule.get("decay_from"))
            trained = steps * number_of(schedule.get("batch")) * number_of(schedule.get("block"))
            work.setdefault(cell[:2], []).append((steps, branch, busy, export["tokens"], trained))
            if not math.isfinite(joules):
                joules, self.counted = busy * watts, False
            shown = seconds if link is None else steps * self._step(export, link, seconds / steps)
            self.runs[cell] = {"bytes": number_of(cost.get("bytes")), "seconds": shown, "joules": joules}
        self.work = work
        if any(math.isnan(run["bytes"]) for run in self.runs.values()):
            text = f"arm {arm}: some descriptions say nothing of their cost; bytes, seconds and joules miss there"
            self.notes.append(Note("no-cost", "warning", text))

    def means(self, cells: set[tuple[Any, ...]] | None) -> dict[str, float]:
        """Return mean bytes, seconds and joules of the runs of some cells, all when None; NaN where none is known."""
        rows = [run for cell, run in self.runs.items() if cells is None or cell in cells]
        known = {key: [row[key] for row in rows if math.isfinite(row[key])] for key in ("bytes", "seconds", "joules")}
        return {key: sum(values) / len(values) if values else math.nan for key, values in known.items()}

    def core_seconds(self, cells: set[tuple[Any, ...]]) -> float:
        """Return the processor seconds of what was trained for some cells: stable stages, and every decay."""
        total = 0.0
        for run in {cell[:2] for cell in cells}:
            steps, branch, busy, *_ = max(self.work.get(run, [(math.nan,) * 5]), key=lambda row: row[3])
            decays = sum(end - start for end, start, *_ in self.work.get(run, ()))
            share = busy * (branch + decays) / steps if steps else math.nan
            total += share if math.isfinite(share) else 0.0
        return total

    def tokens_per_core_second(self, cells: Iterable[tuple[Any, ...]]) -> float:
        """Return tokens over processor seconds of the longest training of every size and seed; NaN where none is known.

        That of shorter budgets is a part of it.
        """
        longest = [max(self.work[run], key=lambda row: row[3]) for run in {cell[:2] for cell in cells} & set(self.work)]
        known = [(trained, busy) for *_, busy, _, trained in longest if busy > 0 and math.isfinite(trained)]
        return sum(trained for trained, _ in known) / sum(busy for _, busy in known) if known else math.nan

    def all_runs(self) -> dict[str, float]:
        """Return the means of all runs, and their tokens per core second."""
        return {**self.means(None), "tokens_per_core_second": self.tokens_per_core_second(self.runs)}

    def _step(self, export: Mapping[str, Any], link: str, stack_s: float) -> float:
        """Return the simulated seconds of a step over a link; equal steps are simulated once."""
        key = (export["size"], export.get("ranks", 1))
        if key not in self._steps:
            # Every seed of a size computes alike: the first one's time is taken for all.
            self._steps[key] = simulated_step(export, link, stack_s)
        return self._steps[key]


def simulated_step(export: Mapping[str, Any], link: str, stack_s: float) -> float:
    """Return the seconds of a step of an arm on processors like this one, a rank each, joined by a link.

    Compute of a rank is its share of the time that the stack of all ranks takes here; communication and what hides it
    are the simulator's.

    Parameters
    ----------
    export : mapping
        A description of an exported model, with ``arm``.
    link : str
        A rate.
    stack_s : float
        Measured seconds of a step of all virtual ranks together.
    """
    from densing.efficiency.parallel import parse_rate
    from densing.efficiency.simulation import Cluster, Device, Link, Split, Transformer, Workload
    from densing.efficiency.systems import get_technique, measure, run_settings
    from densing.scores.ladder import get_preset

    rate, ranks = parse_rate(link), int(export.get("ranks", 1))
    if not math.isfinite(stack_s):
        return math.nan
    compute = stack_s / ranks
    if ranks == 1:
        return compute
    shape = next(one for one in get_preset(export["preset"]).shapes if one.name == export["size"])
    schedule = export["schedule"]
    vocabulary = (export["params_total"] - export["params_non_embedding"]) // shape.width
    model = Transformer(
        "ladder", shape.layers, shape.width, shape.heads, shape.kv_heads, shape.head_width, shape.ffn, vocabulary,
        tied=True, source="densing.scores.ladder", evidence="first-hand",
    )  # fmt: skip
    each = schedule["batch"] // ranks
    alone = Workload(model, "train", each, schedule["block"], Split(dp=1, vocabulary=False), dtype_bytes=4)
    free, wire = Link(0.0, 0.0), Link(rate.latency_s, 1 / rate.bytes_per_s)

    def cluster(n: int, flops: float) -> Cluster:
        return Cluster("processors like this one", n, 1, Device("processor", flops, 1e24), free, wire, free)

    unit = measure(get_technique("sequential").plan(alone, cluster(1, 1e12)), cluster(1, 1e12)).step_s
    name = "ddp" if export["method"] == "plain" else export["method"]
    knobs = run_settings([name], [f"{key}={value}" for key, value in export["knobs"].items()])[name]
    technique: Any = get_technique(name)
    if technique.axis == "pp":
        # Every layer a stage, and the virtual ranks its micro-batches.
        split, ranks, micro = Split(pp=shape.layers, vocabulary=False), shape.layers, ranks
        work = msgspec.structs.replace(alone, batch=each * micro, split=split, micro_batches=micro)
    else:
        work = msgspec.structs.replace(alone, split=Split(dp=ranks, vocabulary=False))
    there = cluster(ranks, 1e12 * unit / compute)
    known = {knob.name for knob in technique.knobs}
    plan = technique.plan(work, there, **{key: value for key, value in knobs.items() if key in known})
    return float(measure(plan, there).step_s)


def _evidence(costs: Mapping[str, _Cost], baseline: str, link: str | None, watts: float) -> dict[str, str]:
    counted = all(cost.counted for cost in costs.values())
    speed = costs[baseline].tokens_per_core_second(costs[baseline].runs)
    beside = f"; {baseline}: {speed:,.0f}" if math.isfinite(speed) else ""
    return {
        "bytes": "counted: what one rank hands to its link, as a ring sends it",
        "seconds": (
            "measured: all virtual ranks in one process, one after the other"
            if link is None
            else f"simulated: the simulator's step over {link} times the steps; compute measured here"
        ),
        "joules": "counted: the processor's energy counters (RAPL)"
        if counted
        else f"stated: {watts:g} W per busy core",
        "kept_parameters": "counted: non-embedding parameters, mean over the pairs",
        "tokens_per_core_second": "measured: tokens of the longest training of every size and seed over the processor "
        f"seconds of its steps, all virtual ranks together{beside}",
    }


def _pair_notes(arm: str, baseline: str, pairs: pd.DataFrame, unmatched: pd.DataFrame) -> list[Note]:
    notes = []
    if len(unmatched):
        shown = [
            f"{row.size_name}, seed {row.seed}, {row.tokens:,.0f} tokens of {row.arm} ({row.reason})"
            for row in unmatched.rename(columns={"size": "size_name"}).head(3).itertuples()
        ]
        more = f" and {len(unmatched) - 3} more" if len(unmatched) > 3 else ""
        bad = unmatched["reason"].str.startswith("loss").any()
        text = (
            f"arm {arm}: {formatting.plural(len(unmatched), 'run')} without a partner left out: "
            f"{'; '.join(shown)}{more}"
        )
        notes.append(Note("unmatched", "error" if bad else "warning", text, {"arm": arm, "runs": len(unmatched)}))
    if pairs.empty:
        notes.append(Note("no-pairs", "error", f"arm {arm}: no pair with {baseline} is left; nothing is said of it"))
    elif (pairs["arm"] == pairs["plain"]).all():
        text = (
            f"arm {arm}: not an arm, no change: all {len(pairs)} losses are {baseline}'s to the last bit, so it has no "
            "ratio and no verdict"
        )
        notes.append(Note("changes-nothing", "warning", text, {"arm": arm}))
    return notes


def _corpus_notes(exports: Sequence[Mapping[str, Any]], arm: str, baseline: str) -> list[Note]:
    """Say of an arm of another mixture that its validation loss holds the mixture, too."""
    mixtures = {
        name: {str(export.get("corpus")) for export in exports if (export.get("arm") or "plain") == name}
        for name in (arm, baseline)
    }
    if mixtures[arm] == mixtures[baseline]:
        return []
    text = (
        f"arm {arm} was trained on {', '.join(sorted(mixtures[arm]))}, and its loss is taken on the text of "
        f"{', '.join(sorted(mixtures[baseline]))}: it lacks what it never saw; judge it by the questions "
        "(`densing ladder eval`)"
    )
    return [Note("other-corpus", "warning", text, {"arm": arm})]


_MEANING = {
    "flat": "the law is too flat in {axis} to invert it; read the end that is there as a bound",
    "below_floor": "its losses are those of less than a hundredth of the {axis}",
    "above_ceiling": "its losses are lower than the law reaches with a hundred times the {axis}",
    "several": "no one ratio holds for all sizes and budgets ({p_value}); read the ratios by size and budget",
    "few_pairs": "fewer than 6 pairs of size and seed; train more seeds or sizes before anything is decided",
}


def _status_notes(arm: str, density: Shift, tokens: Shift) -> list[Note]:
    notes = {}
    for ratio, shift, axis in (("density", density, "size"), ("token", tokens, "tokens")):
        if shift.status not in ("ok", "no_change"):
            meaning = _MEANING[shift.status].format(axis=axis)
            notes[shift.status if shift.status == "few_pairs" else ratio] = Note(
                shift.status.replace("_", "-"), "warning", f"arm {arm}, {ratio} ratio: {meaning}", {"arm": arm}
            )
        if not shift.one:
            meaning = _MEANING["several"].format(p_value=formatting.p_value(shift.p_value))
            notes[f"{ratio}-several"] = Note(
                "no-one-ratio", "info", f"arm {arm}, {ratio} ratio: {meaning}", {"arm": arm}
            )
    return list(notes.values())


def _reach_notes(arm: str, density: Shift, tokens: Shift, plain: pd.DataFrame, pairs: pd.DataFrame) -> list[Note]:
    """Say where most of an arm's losses are held against a law that no plain run reaches: it decides the ratio."""
    notes = []
    for name, shift, runs, own, unit, remedy in (
        ("density", density, plain["params_non_embedding"], pairs["params_arm"], "parameters", ""),
        ("token", tokens, plain["tokens"], pairs["tokens"], "tokens", "; `--arm plain:tokens={:.2g}` tells it there"),
    ):
        if shift.ratio is None:
            continue
        at, low, high = own * shift.ratio, float(runs.min()), float(runs.max())
        if float((~at.between(low, high)).mean()) > 0.5:
            text = (
                f"arm {arm}, {name} ratio: most losses are those of {formatting.whole(at.min())} to "
                f"{formatting.whole(at.max())} {unit}, and plain runs have {formatting.whole(low)} to "
                f"{formatting.whole(high)}: the law is extrapolated, which widens the interval, and its form decides, "
                f"also whether one ratio holds{remedy.format(max(shift.ratio, 0.1))}"
            )
            notes.append(Note("law-extrapolated", "warning" if remedy else "info", text, {"arm": arm}))
    return notes


def _length_notes(arm: str, factor: float, tokens: Shift) -> list[Note]:
    """Say how the law of the other runs fares on an arm whose token ratio is known."""
    low, high = tokens.least_lo, tokens.most_hi
    holds = (low is None or low <= factor) and (high is None or factor <= high)
    found = " to ".join("any" if end is None else formatting.digits(end) for end in (low, high))
    text = (
        f"arm {arm} is the baseline on {factor:g} of its tokens, so that {factor:g} is its token ratio; the law of the "
        f"other runs says {found}"
    )
    text += "" if holds else ": it does not hold there, nor may ratios read off it"
    return [Note("known-ratio", "info" if holds else "warning", text, {"arm": arm})]


def _digest(exports: Sequence[Mapping[str, Any]]) -> str:
    rows = [{key: value for key, value in export.items() if key != "path"} for export in exports]
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()


def _versions() -> dict[str, str]:
    import numpy

    import densing

    return {"densing": densing.__version__, "numpy": numpy.__version__}


def finite_or_none(value: float) -> float | None:
    """Return a figure, None where it is not finite."""
    return value if math.isfinite(value) else None
