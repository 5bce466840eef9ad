r"""What a teacher buys a small model: density and tokens beside training from scratch, and what it costs in FLOPs.

The honest rival is training from scratch on more tokens for the same FLOPs: a lesson that takes :math:`\phi` times the
FLOPs of a step is worth them only where its tokens count more than :math:`\phi` times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from densing.core import (
    Card,
    DensingError,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    column,
    formatting,
    numeric,
)
from densing.tradeoff.gain import WATTS, ArmGain, Gains, arm_losses, ladder_gain, ratio, sentence

if TYPE_CHECKING:
    from densing.scores.ladder import Arm, Corpus, Preset, Run

BASELINE = "scratch"
RIVAL = "scratch:flops"
"""From scratch with the FLOPs of the cheapest lesson."""
MOST_TOKENS = 100.0
"""A rival that needed more than so many times the tokens is not trained: the verdicts read its loss off the law."""
TALK = "talking"
SHARE_WITHOUT_TALK = 1.99 / 2.52
"""Of the gain over scratch, as arXiv 2310.03188 has it second-hand: 1.99 % without interaction, 2.52 % with several."""
DEFAULTS = "default"
"""Weights of talking where an arm names none."""
RECONSTRUCTED = (
    "the formulas of talking are reconstructed from descriptions of arXiv 2310.03188 (second-hand); the paper's own, "
    "its weights and widths are not published"
)


@dataclass(frozen=True, repr=False)
class Distilled(Readable):
    """What every way of learning from a teacher bought.

    Parameters
    ----------
    gains : Gains
        Beside training from scratch.
    flops : pandas.DataFrame
        ``arm, flops, teacher_flops, flops_ratio, token_ratio, token_lo, token_hi, verdict``: FLOPs of a run (mean over
        runs, counted on a step), those of them that scratch does not take, and their ratio; ``better`` or ``worse``
        where the token ratio's interval lies above or below the ratio of FLOPs, else ``not decided``.
    claims : pandas.DataFrame
        ``claim, says, evidence, found, verdict``: what the paper is reported to say, and what was found here.
    teacher : str
    notes : tuple of Note
    weights : pandas.DataFrame
        See :func:`talking_weights`.

    See Also
    --------
    distil_gain : makes it.
    """

    gains: Gains
    flops: pd.DataFrame
    claims: pd.DataFrame
    teacher: str
    notes: tuple[Note, ...]
    weights: pd.DataFrame

    def frame(self) -> pd.DataFrame:
        """Return a row per way of learning: the columns of :meth:`Gains.frame`, then FLOPs and verdict."""
        columns = ["arm", "flops", "teacher_flops", "flops_ratio", "verdict"]
        return self.gains.frame().merge(self.flops[columns], on="arm", how="left")

    def listing(self) -> Listing:
        """Return both ratios of every way of learning, and the FLOPs that it takes."""
        fields = (
            Field("Arm", column("arm")),
            Field("Density ratio", ratio("density"), "density_ratio"),
            Field("Token ratio", ratio("token"), "token_ratio"),
            numeric("FLOPs of a run", "flops", formatting.three_digits),
            numeric("Of these the teacher's", "teacher_flops", formatting.three_digits),
            numeric("phi", "flops_ratio", formatting.three_digits, hint="FLOPs over those of scratch"),
            Field("Compared with more tokens", column("verdict")),
            Field("Status", column("status")),
            numeric("Pairs", "pairs", formatting.count),
        )
        return Listing("Every way of learning beside training from scratch.", self.frame(), fields)

    def claims_listing(self) -> Listing:
        """Return what the paper says, and what was found here."""
        names = {"claim": "Claim", "says": "Says", "evidence": "Evidence", "found": "Found here", "verdict": "Verdict"}
        fields = [
            Field(title, column(name, lambda value: formatting.clean(value, 600))) for name, title in names.items()
        ]
        return Listing("Talking Models: published, and found here.", self.claims, fields)

    def weights_listing(self) -> Listing:
        """Return what weights of talking bought on the seeds that chose among them, and on the others."""

        def held(row: Mapping[str, Any]) -> str:
            low, high = formatting.number(row["held_out_lo"]), formatting.number(row["held_out_hi"])
            return f"{formatting.number(row['held_out'])} ({low} to {high})"

        fields = (
            Field("Weights", column("weights")),
            numeric("Rounds", "rounds", formatting.count),
            numeric("Lower ln loss, choosing seeds", "chosen_on"),
            Field("Held-out seeds", held, "held_out"),
            Field("Picked", lambda row: "yes" if row["picked"] else ""),
        )
        return Listing("Weights of talking, tried on half of the seeds and judged on the others.", self.weights, fields)

    def card(self) -> Card:
        """Return what is shown."""
        facts = {arm.arm: sentence(arm) for arm in self.gains.arms}
        return Card(f"What {self.teacher} taught, beside scratch", facts, self.listing(), self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``densing distil --json`` prints it."""
        return {
            **self.gains.to_dict(),
            "arms": self.frame(),
            "claims": self.claims,
            "weights": self.weights,
            "teacher": self.teacher,
            "notes": [note.to_dict() for note in self.notes],
        }


def distil_gain(
    folder: Path | str,
    *,
    law: Path | str | None = None,
    watts: float = WATTS,
    level: float = 0.95,
) -> Distilled:
    """Say what every way of learning from a teacher bought beside training from scratch.

    Parameters
    ----------
    folder : path
        Of ``densing distil``.
    law : path, optional
        A ladder of the same corpus and training whose plain runs say what the law of losses is, too; without it the
        runs from scratch need several sizes.
    watts, level
        As for :func:`densing.tradeoff.ladder_gain`.

    Raises
    ------
    InputError
        When the folder holds no runs from scratch, or none beside them.
    FitError
        When there are too few runs for a law.

    See Also
    --------
    densing.tradeoff.ladder_gain
    """

    from densing.scores.ladder import read_exports

    folder = Path(folder)
    gains = ladder_gain(folder, baseline=BASELINE, law=law, watts=watts, level=level)
    exports = list(read_exports(folder))
    teachers = sorted({str(export["teacher"]) for export in exports if export.get("teacher")})
    notes = list(gains.notes)
    if any(str(arm.arm).startswith(TALK) for arm in gains.arms):
        notes.append(Note("reconstructed", "info", RECONSTRUCTED))
    smallest = min((int(e["teacher_parameters"]) for e in exports if e.get("teacher_parameters")), default=None)
    largest = max(int(export["params_total"]) for export in exports)
    if smallest is not None and smallest <= largest:
        text = f"the teacher has {smallest:,} parameters and a student {largest:,}: the teacher is not larger"
        notes.append(Note("small-teacher", "warning", text))
    rows = []
    base = _flops(exports, BASELINE)
    for arm in gains.arms:
        flops = _flops(exports, arm.arm)
        ratio = flops / base if base else math.nan
        rows.append(
            {
                "arm": arm.arm, "flops": flops, "teacher_flops": flops - base, "flops_ratio": ratio,
                "token_ratio": arm.tokens.ratio, "token_lo": arm.tokens.lo, "token_hi": arm.tokens.hi,
                "verdict": _verdict(arm, ratio),
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    cheapest = float(table["flops_ratio"][table["flops_ratio"] > 1].min()) if rows else math.nan
    if cheapest > MOST_TOKENS:
        text = (
            f"the cheapest lesson takes {cheapest:,.0f} times the FLOPs of scratch: no rival was trained on as many "
            "times the tokens; verdicts compare with what the law says of them"
        )
        notes.append(Note("no-rival", "warning", text))
    paired = _paired(exports, folder)
    weights = talking_weights(paired, level=level)
    claims = talking_claims(paired, weights, level=level)
    return Distilled(gains, table, claims, ", ".join(teachers), tuple(notes), weights)


def _flops(exports: Sequence[Mapping[str, Any]], arm: str) -> float:
    values = [export.get("cost", {}).get("flops") for export in exports if export.get("arm") == arm]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if known else math.nan


def _verdict(arm: ArmGain, ratio: float) -> str:
    """Beside scratch on so many more tokens that it takes as many FLOPs."""
    low, high = arm.tokens.lo, arm.tokens.hi
    if math.isnan(ratio) or arm.tokens.status == "few_pairs":
        return "not decided"
    if low is not None and low > ratio:
        return "better"
    return "worse" if high is not None and high < ratio else "not decided"


def _paired(exports: Sequence[Mapping[str, Any]], folder: Path) -> pd.DataFrame:
    """Return ln loss below scratch, mean over budgets: a row per size and seed, a column per arm."""
    import numpy as np

    table = arm_losses(exports, folder)
    table = table[table["loss"].gt(0)]
    wide = np.log(table.pivot_table(index=["size", "seed", "tokens"], columns="arm", values="loss", sort=False))
    gains = wide.rsub(wide[BASELINE], axis=0) if BASELINE in wide else wide * math.nan
    return gains.groupby(level=["size", "seed"]).mean()


def talking_claims(paired: pd.DataFrame, weights: pd.DataFrame | None = None, *, level: float = 0.95) -> pd.DataFrame:
    """Hold what is reported of Talking Models against paired losses.

    Intervals are Student's over seeds, of a ratio Fieller's. An order is contradicted where a step goes the other way,
    with the level shared by its steps (Bonferroni); it is reproduced where every step is shown.

    Parameters
    ----------
    paired : pandas.DataFrame
        ln loss below scratch, a row per size and seed, a column per arm (``talking:rounds=0`` and so on). Where
        several weights were tried, one half of the seeds chose among them, and the claims stand on the other.
    weights : pandas.DataFrame, optional
        The result of :func:`talking_weights`, where it is known already.
    level : float

    Returns
    -------
    pandas.DataFrame
        ``claim, says, evidence, found, verdict``.

    Notes
    -----
    Source: arXiv 2310.03188, second-hand (a review that quotes its tables 1 and 2); the interval of a ratio of means,
    Fieller, Journal of the Royal Statistical Society B 16 (1954).

    Examples
    --------
    >>> import pandas as pd
    >>> rounds = {f"talking:rounds={n}": [0.01 + n / 500, 0.012 + n / 500, 0.011 + n / 500] for n in (0, 1, 2)}
    >>> talking_claims(pd.DataFrame({"scratch": [0.0] * 3, **rounds}))["verdict"].tolist()
    ['reproduced', 'contradicted', 'not answerable']
    """
    sweep = talking_weights(paired, level=level) if weights is None else weights
    own, held = _settings(paired), paired
    picked = next(iter(own), "")
    if len(own) > 1 and not sweep.empty:
        picked = str(sweep["weights"][sweep["picked"]].iloc[0])
        held = paired[~paired.index.get_level_values("seed").isin(_choosing(paired))]
    names = own.get(picked, [])
    table = _by_seed(held.dropna(subset=[BASELINE, *names]) if BASELINE in paired else paired.head(0))
    needs = "needs talking with two or more numbers of rounds, on three seeds"
    found = {"TM-1": needs, "TM-2": needs, "TM-3": "other tasks than the paper's"}
    verdicts = dict.fromkeys(found, "not answerable")
    if len(table) >= 3 and len(names) >= 2:
        found["TM-1"], verdicts["TM-1"] = _order(table[[BASELINE, *names]], level)
        if len(held) < len(paired):
            found["TM-1"] = f"weights {picked}, the best of {len(own)} on other seeds; {found['TM-1']}"
        # A share of a gain that may be none is not a share.
        if _mean(table[names[-1]], level)[1] > 0 and _rounds(names[0]) == 0:
            share, low, high = _share(table[names[0]], table[names[-1]], level)
            found["TM-2"] = f"{share:.2f} ({low:.2f} to {high:.2f}) of the gain of {names[-1]}"
            verdicts["TM-2"] = "reproduced" if low <= SHARE_WITHOUT_TALK <= high else "contradicted"
        else:
            found["TM-2"] = f"no gain of {names[-1]} is shown, or talking without rounds was not run"
    says = {
        "TM-1": ("scratch < no talk <= one round <= more", "second-hand"),
        "TM-2": (f"{SHARE_WITHOUT_TALK:.2f} of the gain is there without talk", "derived from second-hand"),
        "TM-3": ("gain of 2.54 % on average against 1.50 % of the best baseline", "second-hand"),
    }
    rows = [(claim, *says[claim], found[claim], verdicts[claim]) for claim in says]
    return pd.DataFrame(rows, columns=["claim", "says", "evidence", "found", "verdict"])


def _by_seed(paired: pd.DataFrame) -> pd.DataFrame:
    """Return means over the sizes of a seed: runs of one seed read their blocks in one order, and differ alike."""
    return paired.groupby(level="seed").mean() if "seed" in paired.index.names else paired


def _mean(values: pd.Series, level: float) -> tuple[float, float, float]:
    """Return the mean with Student's interval; without an interval where there is one value."""
    from scipy import stats

    mean, n = float(values.mean()), int(values.count())
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * float(values.std()) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def _order(table: pd.DataFrame, level: float) -> tuple[str, str]:
    """Return what every step from a column to the next lowers the loss by, and whether all do."""
    steps = list(pairwise(table))
    found, verdicts = [], []
    for worse, better in steps:
        gap = table[better] - table[worse]
        mean, low, high = _mean(gap, level)
        found.append(f"{worse} to {better}: ln loss lower by {mean:.4f} ({low:.4f} to {high:.4f})")
        against = _mean(gap, 1 - (1 - level) / len(steps))[2] < 0
        verdicts.append("contradicted" if against else "reproduced" if low > 0 else "not reproduced")
    worst = next((v for v in ("contradicted", "not reproduced") if v in verdicts), "reproduced")
    return "; ".join(found), worst


def _share(part: pd.Series, whole: pd.Series, level: float) -> tuple[float, float, float]:
    """Return the ratio of two means with Fieller's interval; the mean of the whole differs from 0 at this level."""
    import numpy as np
    from scipy import stats

    n = len(whole)
    reach = float(stats.t.ppf((1 + level) / 2, n - 1)) ** 2 / n * np.cov(part, whole)
    a, b, c = (float(one.mean() * other.mean()) for one, other in ((whole, whole), (part, whole), (part, part)))
    a, b, c = a - reach[1, 1], b - reach[0, 1], c - reach[0, 0]
    root = math.sqrt(max(b * b - a * c, 0.0))
    return float(part.mean() / whole.mean()), (b - root) / a, (b + root) / a


def talking_weights(paired: pd.DataFrame, *, level: float = 0.95) -> pd.DataFrame:
    """Return what weights of talking bought on the seeds that choose among them, and on the others.

    Parameters
    ----------
    paired : pandas.DataFrame
        As for :func:`talking_claims`, its index with a level ``seed``: the first half of the seeds choose.
    level : float
        Of the intervals, Student's over seeds.

    Returns
    -------
    pandas.DataFrame
        ``weights, rounds, chosen_on, held_out, held_out_lo, held_out_hi, picked``: a row per arm; ln loss below
        scratch. Picked are the weights whose arms are best in the mean of the choosing seeds. Empty unless several
        weights were tried on two or more seeds.

    Examples
    --------
    >>> import pandas as pd
    >>> index = pd.MultiIndex.from_product([["d8"], range(4)], names=["size", "seed"])
    >>> arms = {"scratch": 0.0, "talking:rounds=1,w1=0.1": [0.02, 0.02, 0.0, 0.01], "talking:rounds=1": 0.01}
    >>> talking_weights(pd.DataFrame(arms, index=index))[["weights", "chosen_on", "held_out", "picked"]].round(3)
       weights  chosen_on  held_out  picked
    0   w1=0.1       0.02     0.005    True
    1  default       0.01     0.010   False
    """
    columns = ["weights", "rounds", "chosen_on", "held_out", "held_out_lo", "held_out_hi", "picked"]
    own = _settings(paired)
    if len(own) < 2 or "seed" not in paired.index.names or not len(choosing := _choosing(paired)):
        return pd.DataFrame(columns=columns)
    chooses = paired.index.get_level_values("seed").isin(choosing)
    held = _by_seed(paired[~chooses])
    rows = [
        (weights, _rounds(name), paired[name][chooses].mean(), *_mean(held[name], level))
        for weights, names in own.items()
        for name in names
    ]
    table = pd.DataFrame(rows, columns=columns[:-1])
    best = table.groupby("weights", sort=False)["chosen_on"].mean().idxmax()
    return table.assign(picked=table["weights"].eq(best))


def _settings(paired: pd.DataFrame) -> dict[str, list[str]]:
    """Return the arms that talk by their options but the rounds, each list by its rounds."""
    own: dict[str, list[str]] = {}
    for name in map(str, paired):
        method, _, options = name.partition(":")
        if method == TALK and "rounds=" in options:
            others = ",".join(part for part in options.split(",") if not part.startswith("rounds="))
            own.setdefault(others or DEFAULTS, []).append(name)
    return {others: sorted(names, key=_rounds) for others, names in own.items()}


def _choosing(paired: pd.DataFrame) -> list[object]:
    """Return the seeds that choose weights: the first half."""
    seeds = sorted(set(paired.index.get_level_values("seed"))) if "seed" in paired.index.names else []
    return seeds[: len(seeds) // 2]


def _rounds(name: object) -> int:
    digits = str(name).partition("rounds=")[2].partition(",")[0]
    return int(digits) if digits.isdigit() else -1


def lesson_arms(methods: Sequence[str], rounds: Sequence[int], teacher: str) -> list[Arm]:
    """Return the arms of a study of teaching, from scratch first, and check all but the teacher.

    Parameters
    ----------
    methods : sequence of str
        ``scratch``, ``kd``, ``fitnet``, ``talking``, with commas or one by one, each with options as in
        ``kd:temperature=4``.
    rounds : sequence of int
        Of every ``talking`` that does not say itself; one arm each.
    teacher : str

    Raises
    ------
    InputError, UnknownNameError
        When there is no such method or option, or a value is none of its option.

    Examples
    --------
    >>> [arm.name for arm in lesson_arms(["kd,talking:w1=.2,codec=dense"], [0, 2], "ladders/cpu/models/d72")]
    ['scratch', 'kd', 'talking:codec=dense,rounds=0,w1=.2', 'talking:codec=dense,rounds=2,w1=.2']
    """
    from densing.scores.ladder import parse_arm, read_knobs

    texts: list[str] = []
    for part in (part.strip() for text in methods for part in text.split(",")):
        # What holds "=" and names no method is another option of the method before it.
        if texts and "=" in part and ":" not in part:
            texts[-1] += f",{part}"
        elif part:
            texts.append(part)
    arms: list[Arm] = []
    for text in dict.fromkeys([BASELINE, *texts]):
        method, _, options = text.partition(":")
        if method == TALK and "rounds=" not in options:
            listed = f"{options}," if options else ""
            arms += [parse_arm(f"{method}:{listed}rounds={number}") for number in rounds]
        else:
            arms.append(parse_arm(text))
    for arm in arms:
        read_knobs(arm)
        if (arm.ranks, arm.clients, arm.bits, arm.order, arm.exits) != (1, None, None, "ascending", 0.0):
            raise InputError(
                f"--method {arm.name}: ranks, clients, bits, exits and order are options of "
                "`densing ladder train --arm`"
            )
    return [replace(arm, teacher="" if arm.method == BASELINE else teacher) for arm in arms]


def distil_runs(
    preset: Preset,
    corpus: Corpus,
    arms: Sequence[Arm],
    sizes: Sequence[str],
    seeds: Sequence[int],
    *,
    equal_flops: bool = True,
    device: str = "cpu",
) -> list[Run]:
    """Return the runs of a study of teaching; a step of each lesson and size is taken, so that what is wrong is said.

    Parameters
    ----------
    preset, corpus, sizes, seeds
        As for :func:`densing.scores.ladder.arm_runs`.
    arms : sequence of Arm
        Of :func:`lesson_arms`.
    equal_flops : bool
        Add runs from scratch on so many more tokens that they take the FLOPs of the cheapest lesson, under the budgets'
        names: the arm :data:`RIVAL`. Not where that is more than :data:`MOST_TOKENS` times the tokens.
    device : str

    Raises
    ------
    InputError
        When the teacher cannot be used.
    """
    from densing.scores.ladder import arm_runs, step_flops

    runs = []
    for size in sizes:
        own = arm_runs(preset, corpus, arms, sizes=[size], seeds=seeds)
        flops = {run.arm.name: step_flops(run, device) for run in own if run.arm and run.seed == seeds[0]}
        lessons = [value for name, value in flops.items() if name.partition(":")[0] != BASELINE]
        runs += own
        if equal_flops and lessons:
            factor = min(lessons) / flops[BASELINE]
            if factor > MOST_TOKENS:
                continue
            longer = replace(arms[0], name=RIVAL, tokens=factor)
            runs += arm_runs(preset, corpus, [longer], sizes=[size], seeds=seeds)
    return runs


def ladder_of(teacher: str) -> Path | None:
    """Return the ladder that a teacher was exported by, None where it stands elsewhere.

    Examples
    --------
    >>> ladder_of("somewhere/else") is None
    True
    """
    from densing.scores.ladder import read_ladder

    folder = Path(teacher).resolve().parent.parent
    try:
        read_ladder(folder)
    except DensingError:
        return None
    return folder
