"""Links of the joint scale: which models connect which evaluators, and the effect of removing a link.

Evaluators are compared through models that both measured. Where no model links them, only the assumption is left that
two evaluators' tests of one benchmark are drawn alike; where neither is shared, nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from densing.core import Array, Card, InputError, Note, Readable, UnknownNameError, formatting, listing_of
from densing.scores.joint.cells import MIN_MODELS, Cells
from densing.scores.joint.posterior import CEILING
from densing.scores.joint.scale import AT_END, GENERAL, Basket, JointScale, fit_joint

LINKED, ALONE, NOT_LINKED = "linked", "only evaluator", "not linked"
FEW_MODELS = 10
"""An evaluator that measured fewer models holds little of the scale; leave-one-out refits without the others."""
NOTHING = "(nothing, another seed)"
"""A refit of the same cells: what of a move is the chain's."""
SHORTER = {"chains": 2, "sweeps": 200, "draws": 300}


@dataclass(frozen=True, repr=False)
class Links(Readable):
    """Which evaluators hang together, and by what.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per evaluator: ``evaluator, models, benchmarks, shared`` (models that another evaluator measured, too),
        ``evaluators`` (others that share a model), ``shared_benchmarks``, ``component`` (0 is the largest), ``status``:
        ``linked``, ``hangs by one model: NAME``, ``not linked``, ``only evaluator``.
    notes : tuple of Note
        A sentence for everything that leaves the scale, or a part of it, without a hold.

    See Also
    --------
    evaluator_links, leave_one_out
    """

    table: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())

    def card(self) -> Card:
        """Return what is shown: how many components, and what hangs by a thread."""
        facts = {
            "evaluators": str(len(self.table)),
            "components": str(self.table["component"].nunique()),
            "linked": str(int(self.table["status"].eq(LINKED).sum())),
        }
        title = "What links the evaluators of a joint scale"
        return Card(title, facts, listing_of(title, self.table), self.notes)


def evaluator_links(cells: Cells, models: Collection[str] | None = None) -> Links:
    """Return which models and benchmarks link the evaluators.

    Parameters
    ----------
    cells : Cells
    models : collection of str, optional
        The notes speak of these models, their evaluators and their tests only.

    Returns
    -------
    Links
        The components are those of the graph of models and evaluators. An evaluator hangs by a model when its part of
        the graph falls off without that model.

    See Also
    --------
    leave_one_out

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> evaluator_links(toy_cells()).table[["evaluator", "models", "shared", "status"]].to_numpy().tolist()
    [['first', 10, 10, 'linked'], ['second', 10, 10, 'linked']]
    """
    table = cells.table
    edges = table[["model", "evaluator"]].drop_duplicates()
    model, names = edges["model"].factorize(sort=True)
    evaluator, evaluators = edges["evaluator"].factorize(sort=True)
    component = _components(model, evaluator, len(names), len(evaluators), table)
    often = np.bincount(model, minlength=len(names))
    hangs: dict[int, str] = {}
    for m in np.flatnonzero(often >= 2):
        without = model != m
        parts = _components(model[without], evaluator[without], len(names), len(evaluators), table)
        # What was in the largest component and is no longer.
        for e in np.flatnonzero((component == 0) & (parts != 0)):
            hangs.setdefault(int(e), str(names[m]))
    measured = pd.crosstab(table["evaluator"], table["model"]).gt(0).to_numpy(dtype=int)
    used = pd.crosstab(table["evaluator"], table["benchmark"]).gt(0).to_numpy(dtype=int)
    in_common, benchmarks_in_common = measured @ measured.T, used @ used.T
    np.fill_diagonal(in_common, 0)
    np.fill_diagonal(benchmarks_in_common, 0)

    def status(e: int) -> str:
        if len(evaluators) == 1:
            return ALONE
        if e in hangs:
            return f"hangs by one model: {hangs[e]}"
        return LINKED if in_common[e].any() else NOT_LINKED

    rows = pd.DataFrame(
        {
            "evaluator": evaluators,
            "models": measured.sum(axis=1),
            "benchmarks": used.sum(axis=1),
            "shared": (measured[:, measured.sum(axis=0) >= 2]).sum(axis=1),
            "evaluators": (in_common > 0).sum(axis=1),
            "shared_benchmarks": (used[:, used.sum(axis=0) >= 2]).sum(axis=1),
            "component": component,
            "status": [status(e) for e in range(len(evaluators))],
        }
    )
    rows = rows.sort_values(["component", "models", "evaluator"], ascending=[True, False, True], ignore_index=True)
    return Links(rows, tuple(_notes(cells, rows, models)))


def _components(model: Array, evaluator: Array, models: int, evaluators: int, table: pd.DataFrame) -> Array:
    """Return the component of each evaluator, 0 for the one with most cells."""
    size = models + evaluators
    graph = coo_matrix((np.ones(len(model)), (model, models + evaluator)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1][models:]
    cells = table["evaluator"].value_counts().sort_index().to_numpy()
    weight = np.bincount(labels, cells)
    # Models without an edge are components as well, of no evaluator: they come last.
    rank = np.argsort(np.argsort(-weight, kind="stable"), kind="stable")
    return np.asarray(rank[labels])


def _notes(cells: Cells, rows: pd.DataFrame, models: Collection[str] | None) -> list[Note]:
    """Return a sentence for each thing that a joint scale of these cells cannot know (of these models)."""
    table, dropped = cells.table, cells.dropped
    own = np.ones(len(table), dtype=bool) if models is None else table["model"].isin(list(models)).to_numpy()
    mine = {column: set(table.loc[own, column]) for column in ("evaluator", "benchmark", "test", "model")}
    if models is not None:
        dropped = dropped[dropped["model"].isin(list(models))]
    notes = []
    if len(rows) == 1:
        name = rows["evaluator"].iloc[0]
        message = (
            f"{name} is the only evaluator: differences between evaluators are unknown and not included in the "
            "intervals"
        )
        notes.append(Note("one-evaluator", "warning", message, {"evaluator": name}))
    parts = rows["component"].nunique()
    if parts > 1:
        main = rows[rows["component"].eq(0)]
        for number, part in rows[rows["component"].ne(0)].groupby("component"):
            names = part["evaluator"].tolist()
            if not mine["evaluator"] & set(names):
                continue
            benchmarks = set(table[table["evaluator"].isin(names)]["benchmark"])
            others = set(table[table["evaluator"].isin(main["evaluator"])]["benchmark"])
            both = len(benchmarks & others)
            held = (
                f"only the assumption that tests of the same benchmark ({formatting.plural(both, 'is', 'are')} shared) "
                "are alike compares them"
                if both
                else "they cannot be compared; interpret their abilities separately"
            )
            message = (
                f"no model links {formatting.listed(names)} to the {len(main)} evaluators of the main part; {held}"
            )
            details = {"component": int(number), "evaluators": names, "shared_benchmarks": both}
            notes.append(Note("not-linked", "warning" if both else "error", message, details))
    hanging = rows[rows["status"].str.startswith("hangs") & rows["evaluator"].isin(list(mine["evaluator"]))]
    for status, group in hanging.groupby("status"):
        names = group["evaluator"].tolist()
        message = f"{formatting.listed(names)} {status.replace('hangs', 'hangs' if len(names) == 1 else 'hang')}"
        notes.append(Note("hangs-by-one-model", "warning", message, {"evaluators": names}))
    per_benchmark = table.groupby("benchmark")["model"].nunique()
    few = sorted(set(map(str, per_benchmark.index[per_benchmark < MIN_MODELS])) & mine["benchmark"])
    if "reason" in dropped:
        few += sorted(set(dropped.loc[dropped["reason"].eq("few models"), "benchmark"]))
    if few:
        message = (
            f"{formatting.listed(few)}: fewer than {MIN_MODELS} models share it, so it is not informative about a model"
        )
        notes.append(Note("few-models", "info", message, {"benchmarks": few}))
    per_model = table["model"].value_counts()
    single = sorted(set(map(str, per_model.index[per_model == 1])) & mine["model"])
    if single:
        message = (
            f"{formatting.plural(len(single), 'model')} with one score ({formatting.listed(single)}): placed by "
            "that score alone"
        )
        notes.append(Note("one-score", "info", message, {"models": single}))
    share = (table["score"] - table["floor"]) / (1 - table["floor"])
    full = share.groupby(table["test"]).mean()
    saturated = sorted(set(map(str, full.index[full >= CEILING])) & mine["test"])
    if saturated:
        everything = len(saturated) == len(mine["test"])
        message = (
            f"all tests{' of these models' if models is not None else ''} are at their ceiling: the scores cannot "
            "distinguish the models"
            if everything
            else f"{formatting.listed(saturated)}: at the ceiling, no longer distinguishes models"
        )
        notes.append(Note("at-ceiling", "error" if everything else "info", message, {"tests": saturated}))
    if own.any() and (share[own] <= AT_END).all():
        message = "all tests are at their floor: the scores cannot distinguish the models"
        notes.append(Note("at-floor", "error", message))
    return notes


@dataclass(frozen=True, repr=False)
class LeaveOneOut(Readable):
    """How far abilities move when an evaluator, or a benchmark, is taken out.

    Parameters
    ----------
    column : str
        ``evaluator`` or ``benchmark``.
    table : pandas.DataFrame
        One row per refit: ``without, cells`` (taken out), ``models`` (that remain), ``common`` (mean move, logits),
        ``median, p90`` (of the moves beside the common one, in widths of the models' own 95 % intervals), ``outside``
        (share of models whose new median left the old interval), ``lost`` (models without any other score). The last
        row leaves nothing out and changes the seed: what of the moves is the chain's.
    lost : mapping of str to tuple of str
        Names of those, by what was taken out.
    notes : tuple of Note

    See Also
    --------
    leave_one_out
    """

    column: str
    table: pd.DataFrame
    lost: dict[str, tuple[str, ...]]
    notes: tuple[Note, ...] = field(default=())

    def card(self) -> Card:
        """Return what is shown: the largest move, and who loses a place."""
        refits = self.table[self.table["without"].ne(NOTHING)]
        worst = refits.loc[refits["p90"].idxmax()]
        facts = {
            "refits": str(len(refits)),
            "largest move": f"{worst['p90']:.2f} intervals (9 models in 10 less) without {worst['without']}",
            "without a place": formatting.listed(
                f"{len(names)} without {key}" for key, names in self.lost.items() if names
            ),
        }
        title = f"The joint scale without each {self.column}"
        return Card(title, facts, listing_of(title, self.table), self.notes)


def leave_one_out(
    cells: Cells,
    names: Sequence[str] | None = None,
    *,
    column: str = "evaluator",
    scale: JointScale | None = None,
    seed: int = 0,
    step: Callable[[str, float], None] = lambda label, share: None,
    **options: int,
) -> LeaveOneOut:
    """Fit the scale again without each evaluator, and see how far the abilities of the other models move.

    Parameters
    ----------
    cells : Cells
    names : sequence of str, optional
        What to take out, one at a time; evaluators (benchmarks) with ten models or more by default.
    column : {"evaluator", "benchmark"}
        What is taken out.
    scale : JointScale, optional
        The fit of all cells, when there is one.
    seed : int
    step : callable
        Called with a label and the share done, for progress bars.
    **options : int
        Of :func:`fit_joint`; chains are shorter here by default.

    Returns
    -------
    LeaveOneOut
        Abilities are compared on the benchmarks of the general basket that both fits hold, each with the weight that
        it has there. A shift of all models together is not an error of density, which compares models, and
        has a column of its own.

    Raises
    ------
    UnknownNameError
        For a column or a name that cells do not have.
    InputError
        When nothing is large enough to be taken out, or nothing would be left.

    See Also
    --------
    evaluator_links

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> result = leave_one_out(toy_cells(), ["second"], sweeps=9, burn=6, draws=9)
    >>> result.table["models"].tolist(), result.lost
    ([10, 10], {'second': ()})
    """
    if column not in ("evaluator", "benchmark"):
        raise UnknownNameError("column to leave out", column, ("evaluator", "benchmark"))
    table = cells.table
    measured = table.groupby(column)["model"].nunique()
    chosen = list(names) if names is not None else measured.index[measured >= FEW_MODELS].tolist()
    for name in chosen:
        if name not in measured.index:
            raise UnknownNameError(column, name, map(str, measured.index))
    if not chosen:
        raise InputError(f"no {column} covers {FEW_MODELS} models; name those to leave out")
    length = {**SHORTER, **options}
    share_of_one = 1 / (len(chosen) + 2)
    whole = scale or fit_joint(cells, seed=seed, step=lambda label, share: step(label, share * share_of_one), **length)
    rows: list[dict[str, object]] = []
    lost: dict[str, tuple[str, ...]] = {}
    notes: list[Note] = []
    for position, name in enumerate([*chosen, NOTHING], start=1):
        if name == NOTHING and not rows:
            break

        def part(label: str, share: float, done: int = position, name: str = name) -> None:
            step(f"without {name}", (done + share) * share_of_one)

        rest = table[table[column].ne(name)].reset_index(drop=True)
        gone = tuple(sorted(set(table["model"]) - set(rest["model"])))
        if rest["model"].nunique() < 2:
            message = f"without {name} fewer than two models are left: no scale"
            notes.append(Note("nothing-left", "warning", message, {column: name}))
            continue
        again = fit_joint(replace(cells, table=rest), seed=seed + (name == NOTHING), step=part, **length)
        weights = whole.basket(GENERAL).weights
        both = {key: value for key, value in weights.items() if key in set(again.benchmarks)}
        if not both:
            message = f"without {name} no benchmark of the general ability is left to compare"
            notes.append(Note("nothing-left", "warning", message, {column: name}))
            continue
        basket = Basket(GENERAL, {key: value / sum(both.values()) for key, value in both.items()}, {})
        before = whole.ability(basket)[:, np.searchsorted(whole.models, again.models)]
        low, middle, high = np.quantile(before, [0.025, 0.5, 0.975], axis=0)
        move = np.median(again.ability(basket), axis=0) - middle
        common = float(np.median(move))
        size = np.abs(move - common) / (high - low)
        shifted = middle + move - common
        if name != NOTHING:
            lost[name] = gone
        rows.append(
            {
                "without": name,
                "cells": len(table) - len(rest),
                "models": len(again.models),
                "common": common,
                "median": float(np.median(size)),
                "p90": float(np.quantile(size, 0.9)),
                "outside": float(((shifted < low) | (shifted > high)).mean()),
                "lost": len(gone),
            }
        )
        if gone:
            count = formatting.plural(len(gone), "model has", "models have")
            message = f"without {name} {count} no place: {formatting.listed(gone)}"
            notes.append(Note("no-place", "info", message, {column: name, "models": list(gone)}))
    if not rows:
        raise InputError("; ".join(note.message for note in notes))
    return LeaveOneOut(column, pd.DataFrame(rows), lost, tuple(notes))
