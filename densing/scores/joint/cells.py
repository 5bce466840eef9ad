"""Which scores stand on the joint scale: one cell per model, benchmark and evaluator, with its floor and its noise.

A *test* is a benchmark as one evaluator runs it: the same questions in another harness are another test, whose
difficulty is shrunk to that of the benchmark. A *trait* is what may set a model apart on several tests at once: a skill
in English, or the same skill in other languages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from densing.core import Card, InputError, Note, Readable, UnknownNameError, formatting, listing_of
from densing.scores.catalog import DECIMALS, WRONG, Catalog, by_preference, has_flag, own_figures, sampling_variance

ENGLISH = "en"
ABROAD = "other languages"
MIN_MODELS = 3
"""A benchmark that fewer models share says nothing of one model that another does not."""
OWN = ("none", "harness", "all")
"""What a maker measured of its own models: left out, taken from its harnesses, or from its own tables too."""
MAX_SCORES = 100_000
"""A scale of ten thousand scores takes seconds to fit; its time and memory grow with their number."""
COLUMNS = ["model", "benchmark", "evaluator", "test", "score", "se", "floor", "skill", "language", "trait"]


@dataclass(frozen=True, eq=False, repr=False)
class Cells(Readable):
    """Scores that a joint scale is fitted to.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per cell: ``model, benchmark, evaluator, test`` (``benchmark@evaluator``), ``score`` and ``se`` in [0,
        1] (the sampling of items alone), ``floor`` (chance), ``skill, language, trait``; sorted by model and test.
    dropped : pandas.DataFrame
        Scores of the catalog that are not on the scale: ``model, benchmark, evaluator, reason``.
    notes : tuple of Note
        What was left out, counted.

    Raises
    ------
    InputError
        When a cell has no finite score, error or floor, or a model has two scores on one test.

    See Also
    --------
    joint_cells, fit_joint

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> cells = joint_cells(load_catalog())
    >>> cells.table["model"].nunique() > 300, cells.table["evaluator"].nunique() > 30
    (True, True)
    """

    table: pd.DataFrame
    dropped: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())

    def __post_init__(self) -> None:
        table = self.table
        for column, low, high in (("score", 0.0, 1.0), ("se", 0.0, 1.0), ("floor", 0.0, 0.99)):
            values = table[column].to_numpy(dtype=float)
            wrong = ~((values >= low) & (values <= high))
            if wrong.any():
                first = table[wrong].iloc[0]
                raise InputError(
                    f"cells of a joint scale: {column} {first[column]} of {formatting.clean(first['model'])} on "
                    f"{formatting.clean(first['test'])} is outside {low:g} to {high:g}; "
                    f"{formatting.plural(int(wrong.sum()), 'cell')} to correct or remove"
                )
        twice = table.duplicated(["model", "test"])
        if twice.any():
            first = table[twice].iloc[0]
            raise InputError(
                f"cells of a joint scale: {formatting.clean(first['model'])} has several scores on "
                f"{formatting.clean(first['test'])}; keep one"
            )

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what a fit reads: a new source or flag of a score needs no new one."""
        return hashlib.sha256(self.table.to_csv(index=False, float_format="%.17g").encode()).hexdigest()

    def card(self) -> Card:
        """Return what is shown: how many models, benchmarks and evaluators, and what was left out."""
        facts = {
            "models": str(self.table["model"].nunique()),
            "benchmarks": str(self.table["benchmark"].nunique()),
            "evaluators": str(self.table["evaluator"].nunique()),
            "languages": str(self.table["language"].nunique()),
            "left out": formatting.listed(
                f"{n} {reason}" for reason, n in self.dropped["reason"].value_counts().items()
            ),
        }
        return Card(f"{len(self)} cells of a joint scale", facts, listing_of("Cells.", self.table), self.notes)


def joint_cells(catalog: Catalog, *, own: str = "none", evaluators: Sequence[str] | None = None) -> Cells:
    """Return the cells of a catalog: usable scores on benchmarks that are scales, each measurement once.

    Parameters
    ----------
    catalog : Catalog
        Where the scores are.
    own : {"none", "harness", "all"}
        Which scores to keep of those that a maker measured of its own models (:func:`own_figures`). By default none: a
        maker knows its models' best prompt, and chooses what it prints. ``harness`` keeps those of harnesses that
        measure other makers' models the same way, ``all`` those of vendors' own tables too.
    evaluators : sequence of str, optional
        Take these evaluators only.

    Returns
    -------
    Cells
        Left out, with the reason: ``wrong`` (flagged), ``no scale`` (averages of others, or benchmarks that do not rise
        with capability), ``vendor's own`` and ``maker's own harness`` (see ``own``), ``quoted`` (equal to 0.001 to a
        preferred evaluator's value of the same model: one measurement), ``few models`` (a benchmark that fewer than
        three models share).

    Raises
    ------
    InputError
        When nothing is left, or there are more than :data:`MAX_SCORES`.
    UnknownNameError
        For another ``own`` than these three.

    See Also
    --------
    fit_joint, densing.scores.catalog.own_figures

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> "olmo3_eval_math" in set(joint_cells(load_catalog()).table["benchmark"])
    False
    """
    if own not in OWN:
        raise UnknownNameError("own", own, OWN)
    scores = catalog.scores if evaluators is None else catalog.scores[catalog.scores["evaluator"].isin(evaluators)]
    if len(scores) > MAX_SCORES:
        raise InputError(
            f"{len(scores)} scores exceed the {MAX_SCORES} the joint scale accepts; give fewer models, or use a "
            "reference family (--reference qwen1.5, --benchmark mmlu)"
        )
    benchmarks = catalog.benchmarks.set_index("id")
    roles = scores["evaluator"].map(catalog.evaluators.set_index("id")["role"])
    reason = pd.Series("", index=scores.index, dtype=object)

    def leave_out(mask: pd.Series, why: str) -> None:
        reason[mask & reason.eq("")] = why

    leave_out(has_flag(scores["flags"], WRONG), "wrong")
    leave_out(~scores["benchmark"].map(benchmarks["scale"]).fillna(False).astype(bool), "no scale")
    of_maker, on_card = own_figures(catalog).reindex(scores.index), roles.isin(["vendor", "collected"])
    if own != "all":
        leave_out(of_maker & on_card, "vendor's own")
    if own == "none":
        leave_out(of_maker & ~on_card, "maker's own harness")
    ranked = by_preference(scores[reason.eq("")], catalog)
    again = ranked.assign(value=ranked["score"].round(DECIMALS)).duplicated(["model", "benchmark", "value"])
    leave_out(again.reindex(scores.index, fill_value=False), "quoted")
    shared = scores[reason.eq("")].groupby("benchmark")["model"].nunique()
    leave_out(~scores["benchmark"].isin(shared.index[shared >= MIN_MODELS]), "few models")
    kept = scores[reason.eq("")]
    if kept.empty:
        raise InputError(f"no score of {len(scores)} is on a capability benchmark shared by {MIN_MODELS} models")
    facts = benchmarks.loc[kept["benchmark"]]
    items = kept["items"].fillna(pd.Series(facts["items"].to_numpy(), index=kept.index)).to_numpy(dtype=float)
    score = kept["score"].to_numpy(dtype=float)
    stated = kept["stated_se"].to_numpy(dtype=float) if "stated_se" in kept else np.full(len(kept), np.nan)
    se = np.sqrt(sampling_variance(score, items, stated))
    skill, language = facts["skill"].to_numpy(dtype=str), facts["language"].fillna(ENGLISH).to_numpy(dtype=str)
    table = pd.DataFrame(
        {
            "model": kept["model"].to_numpy(dtype=str),
            "benchmark": kept["benchmark"].to_numpy(dtype=str),
            "evaluator": kept["evaluator"].to_numpy(dtype=str),
            "test": (kept["benchmark"] + "@" + kept["evaluator"]).to_numpy(dtype=str),
            "score": score,
            "se": np.maximum(se, 1e-4),
            "floor": facts["chance"].to_numpy(dtype=float),
            "skill": skill,
            "language": language,
            "trait": np.where(language == ENGLISH, skill, np.char.add(skill, f" in {ABROAD}")),
        }
    )
    dropped = scores.loc[reason.ne(""), ["model", "benchmark", "evaluator"]].assign(reason=reason[reason.ne("")])
    notes = []
    if len(dropped):
        counts = dropped["reason"].value_counts()
        message = f"{len(dropped)} of {len(scores)} scores are not on the joint scale: " + formatting.listed(
            f"{n} {why}" for why, n in counts.items()
        )
        notes.append(Note("cells-left-out", "info", message, {str(why): int(n) for why, n in counts.items()}))
    ordered = table.sort_values(["model", "test"], ignore_index=True)[COLUMNS]
    return Cells(ordered, dropped.reset_index(drop=True), tuple(notes))


@lru_cache(maxsize=4)
def catalog_cells(catalog: Catalog, own: str) -> Cells:
    """Return :func:`joint_cells` of a catalog, computed once and shared by all baskets and questions."""
    return joint_cells(catalog, own=own)


def toy_cells(models: int = 10, benchmarks: int = 6, seed: int = 0) -> Cells:
    """Return cells of models ``m0`` (weakest) to ``m9``, two evaluators, all four skills: for examples and tests."""
    rng = np.random.default_rng(seed)
    skills = ("knowledge", "reasoning", "mathematics", "code")
    rows = []
    for m in range(models):
        for b in range(benchmarks):
            for e, offset in (("first", 0.0), ("second", 0.3)):
                if e == "second" and (m + b) % 2:
                    continue
                z = 0.4 * (m - models / 2) - 0.2 * (b - benchmarks / 2) + offset + 0.1 * rng.standard_normal()
                skill = skills[b % 4]
                score = 1 / (1 + np.exp(-z))
                rows.append((f"m{m}", f"b{b}", e, f"b{b}@{e}", score, 0.01, 0.0, skill, ENGLISH, skill))
    return Cells(
        pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame(columns=["model", "benchmark", "evaluator", "reason"])
    )
