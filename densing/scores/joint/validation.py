"""Validation of the joint scale: prediction of held-out scores and coverage of its intervals.

A split hides cells in one of five ways, the model and its rivals are fitted to the same others, and all predict the
same hidden ones. What is hidden decides what is asked: single ``cells`` can be read off another evaluator's score of
the same pair, ``pairs`` of model and benchmark cannot; ``skill`` hides all of a skill of a model, ``evaluator`` all
that one evaluator says of it; ``time`` hides the future.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, Card, InputError, Note, Readable, UnknownNameError, formatting, listing_of, named_seed
from densing.scores.catalog import Catalog
from densing.scores.joint.cells import ENGLISH, Cells
from densing.scores.joint.placement import place
from densing.scores.joint.rivals import PENALTY, fit_eci, fit_pca
from densing.scores.joint.scale import fit_joint

SPLITS = ("cells", "pairs", "time", "skill", "evaluator")
GROUPINGS = ("evaluator", "skill", "language", "benchmark", "model")
"""What :meth:`Validation.by` can group errors by."""
CUTOFF = "2025-11-01"
SHARE, BLOCK_SHARE, LATER_SHARE = 0.1, 0.15, 0.5
SMALLEST_BLOCK = 3
RANKS = (1, 2, 3)
LEVEL = 0.95
JOINT, ECI, ECI_TESTS = "joint", "ECI", "ECI by test"


@dataclass(frozen=True)
class Split:
    """Which cells are hidden, and from what they are predicted.

    Parameters
    ----------
    kind : str
        One of ``cells, pairs, time, skill, evaluator``.
    seed : int
    fit, shown, hidden : array of bool, shape (n,)
        Cells that the parameters of tests are fitted to; cells that only place models on the fitted scale (of the split
        by time; else none); cells that are predicted.
    block : array of int, shape (n,)
        What hidden cells are averaged over: those of one model, or what was hidden of it at once.
    """

    kind: str
    seed: int
    fit: Array
    shown: Array
    hidden: Array
    block: Array


def held_out(
    cells: Cells,
    kind: str,
    seed: int = 0,
    *,
    released: Mapping[str, pd.Timestamp] | pd.Series | None = None,
    cutoff: str = CUTOFF,
) -> Split:
    """Hide some cells.

    Parameters
    ----------
    cells : Cells
    kind : {"cells", "pairs", "time", "skill", "evaluator"}
        A tenth of the cells; of the pairs of model and benchmark; half of the pairs of every model released after
        ``cutoff``, whose other half is shown after the tests' parameters are fitted to earlier models alone; all cells
        of one skill, or of one evaluator, of one model in about seven.
    seed : int
    released : mapping of str to date, optional
        Of the models; needed by ``time``. A model without a date counts as earlier and is never hidden.
    cutoff : str
        ISO date.

    Raises
    ------
    UnknownNameError
        For a kind that there is not.
    InputError
        When nothing can be hidden: no dates, no later models, one evaluator, one skill.

    Notes
    -----
    A cell is hidden only where model and test keep two others; what is left is neither fitted nor counted. In ``time``
    the models that are fitted have no date after the cut-off, so no score of a later model, of whatever benchmark,
    touches a test's parameters.

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> split = held_out(toy_cells(), "pairs")
    >>> bool((split.fit & split.hidden).any()), bool(split.hidden.any())
    (False, True)
    """
    if kind not in SPLITS:
        raise UnknownNameError("split", kind, SPLITS)
    table = cells.table
    rng = np.random.default_rng(named_seed(seed, "held-out", kind))
    model = table["model"].factorize()[0]
    pair = table.groupby(["model", "benchmark"], sort=False).ngroup().to_numpy()
    block, shown = model, np.zeros(len(table), dtype=bool)
    if kind == "cells":
        hidden = rng.random(len(table)) < SHARE
    elif kind == "pairs":
        hidden = (rng.random(pair.max() + 1) < SHARE)[pair]
    elif kind == "time":
        if released is None:
            raise InputError("the split by time needs the models' release dates")
        later = (pd.to_datetime(table["model"].map(released)) > pd.Timestamp(cutoff)).to_numpy()
        hidden = later & (rng.random(pair.max() + 1) < LATER_SHARE)[pair]
        shown = later & ~hidden
    else:
        block = table.groupby(["model", kind], sort=False).ngroup().to_numpy()
        several = table.groupby("model")[kind].transform("nunique").to_numpy() >= 2
        candidates = np.unique(block[several & (np.bincount(block)[block] >= SMALLEST_BLOCK)])
        picked = rng.permutation(candidates)[: round(BLOCK_SHARE * len(candidates))]
        # One block of a model, so that what is left of it says where it stands.
        of_block = pd.Series(model).groupby(block).first()
        picked = of_block.loc[picked].drop_duplicates().index.to_numpy()
        hidden = np.isin(block, picked)
    fit = ~hidden & ~shown
    seen = np.bincount(model[fit | shown], minlength=model.max() + 1)[model] >= 2
    test = table["test"].factorize()[0]
    hidden &= seen & (np.bincount(test[fit], minlength=test.max() + 1)[test] >= 2)
    if not hidden.any() or not fit.any():
        why = f"no model after {cutoff} with" if kind == "time" else "no"
        raise InputError(f"split by {kind}: {why} cells to hide whose model and test have two others")
    return Split(kind, seed, fit, shown, hidden, block)


@dataclass(frozen=True, repr=False)
class Validation(Readable):
    """Predictions of scores that were hidden, and how they came out.

    Parameters
    ----------
    predictions : pandas.DataFrame
        One row per hidden cell: ``split, seed, block, model, benchmark, evaluator, skill, language, score``, then
        ``joint, lo, hi`` (median and 95 % interval) and a column per rival, NaN where it cannot predict.
    blocks : pandas.DataFrame
        One row per block of two or more hidden cells: ``split, seed, english, block, cells, score, joint, lo, hi``, of
        the mean score; ``english`` tells whether English cells alone were averaged.
    notes : tuple of Note

    See Also
    --------
    validate
    """

    predictions: pd.DataFrame
    blocks: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def rivals(self) -> list[str]:
        """Names of the rivals."""
        return [str(name) for name in self.predictions.columns[self.predictions.columns.get_loc("hi") + 1 :]]

    @property
    def table(self) -> pd.DataFrame:
        """One row per split, population and method.

        Columns ``split, cells_of`` (all, English), ``method, seeds, cells, mae, mae_lo, mae_hi`` (mean and range over
        seeds), ``joint_mae`` (of the joint scale on the cells that the method predicts), ``below`` (how far it lies
        below the method's), then of the joint scale ``coverage`` and ``width`` of cells' intervals, ``blocks`` and
        ``block_coverage``.
        """
        rows = []
        for english in (False, True):
            part = self.predictions[self.predictions["language"].eq(ENGLISH)] if english else self.predictions
            for split, group in part.groupby("split", sort=False):
                blocks = self.blocks[self.blocks["split"].eq(split) & self.blocks["english"].eq(english)]
                for method in (JOINT, *self.rivals):
                    miss = (group[method] - group["score"]).abs()
                    by_seed = miss.groupby(group["seed"]).mean()
                    of_joint = (group[JOINT] - group["score"]).abs().where(miss.notna()).groupby(group["seed"]).mean()
                    row: dict[str, Any] = {
                        "split": split,
                        "cells_of": "English" if english else "all",
                        "method": method,
                        "seeds": len(by_seed),
                        "cells": int(miss.notna().sum()),
                        "mae": by_seed.mean(),
                        "mae_lo": by_seed.min(),
                        "mae_hi": by_seed.max(),
                        "joint_mae": of_joint.mean(),
                        "below": 1 - of_joint.mean() / by_seed.mean(),
                    }
                    if method == JOINT:
                        row |= {
                            "coverage": group["score"].between(group["lo"], group["hi"]).mean(),
                            "width": (group["hi"] - group["lo"]).mean(),
                            "blocks": len(blocks),
                            "block_coverage": blocks["score"].between(blocks["lo"], blocks["hi"]).mean(),
                        }
                    rows.append(row)
        return pd.DataFrame(rows)

    def by(self, column: str) -> pd.DataFrame:
        """Return errors and coverage by evaluator, skill, language, benchmark or model: where does it fail?

        Returns
        -------
        pandas.DataFrame
            ``split``, the column, ``cells, mae, eci_mae, bias`` (predicted less measured), ``coverage, width``; the
            worst first.

        Raises
        ------
        UnknownNameError
            For a column that predictions do not have.
        """
        if column not in GROUPINGS:
            raise UnknownNameError("column of predictions", column, GROUPINGS)
        p = self.predictions
        cells = pd.DataFrame(
            {
                "split": p["split"],
                column: p[column],
                "mae": (p[JOINT] - p["score"]).abs(),
                "eci_mae": (p[ECI] - p["score"]).abs(),
                "bias": p[JOINT] - p["score"],
                "coverage": p["score"].between(p["lo"], p["hi"]).astype(float),
                "width": p["hi"] - p["lo"],
            }
        )
        groups = cells.groupby(["split", column], sort=False)
        table = groups.mean().reset_index()
        table.insert(2, "cells", groups.size().to_numpy())
        return table.sort_values(["split", "mae"], ascending=[True, False], ignore_index=True)

    def card(self) -> Card:
        """Return what is shown: the table, and what the joint scale was compared with."""
        facts = {
            "splits": formatting.listed(dict.fromkeys(self.predictions["split"])),
            "hidden": formatting.plural(len(self), "cell"),
            "rivals": formatting.listed(self.rivals),
        }
        title = "The joint scale on held-out scores"
        return Card(title, facts, listing_of(title, self.table), self.notes)


def validate(
    cells: Cells,
    catalog: Catalog | None = None,
    *,
    splits: Sequence[str] = SPLITS,
    seeds: Sequence[int] = (0, 1, 2),
    cutoff: str = CUTOFF,
    penalty: float = PENALTY,
    step: Callable[[str, float], None] = lambda label, share: None,
    **options: int,
) -> Validation:
    """Hide cells, fit the joint scale and its rivals to the others, predict the hidden ones.

    Parameters
    ----------
    cells : Cells
    catalog : Catalog, optional
        For the release dates; needed by the split by time.
    splits : sequence of str
        Some of ``cells, pairs, time, skill, evaluator``.
    seeds : sequence of int
        Of splits and chains.
    cutoff : str
        Of the split by time, ISO date.
    penalty : float
        Of the ECI form; its authors' by default.
    step : callable
        Called with a label and the share done, for progress bars.
    **options : int
        Of :func:`fit_joint`; its defaults, so that what is validated is what is used.

    Returns
    -------
    Validation
        A split that hides nothing is left out, with a note.

    Raises
    ------
    UnknownNameError
        For a split that there is not.
    InputError
        When no split hides a cell.

    Notes
    -----
    Source: the rivals are the form of the Epoch Capabilities Index (Epoch AI 2025), on benchmarks and on single tests,
    and the PCA of Observational Scaling Laws (arXiv 2405.10938) with one to three components. All see exactly the cells
    that the joint scale sees; in the split by time their items are fixed before later models are placed on them.

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> result = validate(toy_cells(), splits=["pairs"], seeds=[0], sweeps=9, burn=6, draws=9)
    >>> result.table["method"].tolist()[:3]
    ['joint', 'ECI', 'ECI by test']
    """
    for kind in splits:
        if kind not in SPLITS:
            raise UnknownNameError("split", kind, SPLITS)
    released = None if catalog is None else catalog.models.set_index("model")["released"]
    jobs = [(kind, seed) for kind in splits for seed in seeds]
    frames, blocks, notes, skipped = [], [], [], set()
    for position, (kind, seed) in enumerate(jobs):

        def part(label: str, share: float, done: int = position, name: str = f"{kind}, seed {seed}") -> None:
            step(f"{name}: {label}", (done + share) / len(jobs))

        try:
            split = held_out(cells, kind, seed, released=released, cutoff=cutoff)
            frame, block = _predicted(cells, split, penalty, part, options)
        except InputError as error:
            if kind not in skipped:
                notes.append(Note("split-left-out", "warning", f"{error}", {"split": kind}))
            skipped.add(kind)
            continue
        if len(frame) < split.hidden.sum():
            lost = int(split.hidden.sum()) - len(frame)
            message = (
                f"{kind}, seed {seed}: {formatting.plural(lost, 'hidden cell')} of models none of whose shown scores "
                "is on a benchmark of the earlier models"
            )
            notes.append(Note("not-placed", "info", message, {"split": kind, "seed": seed, "cells": lost}))
        frames.append(frame)
        blocks.append(block)
    if not frames:
        raise InputError("; ".join(note.message for note in notes) or "no split and no seed to validate with")
    return Validation(pd.concat(frames, ignore_index=True), pd.concat(blocks, ignore_index=True), tuple(notes))


def _predicted(
    cells: Cells, split: Split, penalty: float, step: Callable[[str, float], None], options: Mapping[str, int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what all methods say of the hidden cells, and what the joint scale says of blocks of them."""
    table = cells.table
    hidden, fit, shown = (table[mask].reset_index(drop=True) for mask in (split.hidden, split.fit, split.shown))
    scale = fit_joint(replace(cells, table=fit), seed=split.seed, step=step, **options)
    if len(shown):
        scale = place(scale, replace(cells, table=shown), seed=split.seed, step=step)
        hidden = hidden[hidden["model"].isin(scale.models)].reset_index(drop=True)
    draws = scale.predict(hidden, seed=split.seed)
    names = ["model", "benchmark", "evaluator", "skill", "language", "score"]
    frame = hidden[names].copy()
    frame.insert(0, "block", split.block[split.hidden][table[split.hidden]["model"].isin(scale.models).to_numpy()])
    frame.insert(0, "seed", split.seed)
    frame.insert(0, "split", split.kind)
    tail = (1 - LEVEL) / 2
    frame["lo"], frame[JOINT], frame["hi"] = np.quantile(draws, [tail, 0.5, 1 - tail], axis=0)
    frame = frame[["split", "seed", "block", *names, JOINT, "lo", "hi"]]
    for name, item in ((ECI, "benchmark"), (ECI_TESTS, "test")):
        eci = fit_eci(fit, item, penalty)
        frame[name] = eci.predict(hidden)
        if len(shown):
            frame[name] = fit_eci(shown, item, penalty, eci).predict(hidden)
    widest = min(fit["model"].nunique(), fit["benchmark"].nunique())
    for rank in (rank for rank in RANKS if rank <= widest):
        pca = fit_pca(fit, rank)
        frame[f"PCA {rank}"] = (fit_pca(shown, rank, known=pca) if len(shown) else pca).predict(hidden)
    parts = []
    for english in (False, True):
        chosen = (frame["language"].eq(ENGLISH) | (not english)).to_numpy()
        for block, rows in frame[chosen].groupby("block", sort=False):
            if len(rows) >= 2:
                mean = draws[:, rows.index].mean(axis=1)
                low, middle, high = np.quantile(mean, [tail, 0.5, 1 - tail])
                parts.append(
                    (split.kind, split.seed, english, block, len(rows), rows["score"].mean(), middle, low, high)
                )
    columns = ["split", "seed", "english", "block", "cells", "score", JOINT, "lo", "hi"]
    return frame, pd.DataFrame(parts, columns=columns)
