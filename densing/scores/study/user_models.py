"""A user's models among the catalog's: densities on the headline's reference, ranks among those of size and year.

The reference and the headline are the catalog's alone: what a user places is read on them and moves neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from densing.core import InputError, Note, TableLike, formatting, once
from densing.scores.catalog import HEADLINE, Catalog, merge, read_extra
from densing.scores.density import (
    DensityResult,
    catalog_densities,
    marked_known,
    own_measurements,
    rank,
    table_densities,
)
from densing.scores.joint import evaluator_links, joint_cells, place
from densing.scores.references import JointReference, Reference

YOURS = "yours"
SIZE_FACTOR = 2.0
"""Models of about the same size: up to this factor smaller or larger."""
NEIGHBOURS = 2
MAX_PLACED = 1000
"""Each is ranked on its own, among all, those of its size and those of its year."""
COLUMNS = [
    "model",
    "density",
    "density_lo",
    "density_hi",
    "bound",
    "n_params",
    "released",
    "rank",
    "of",
    "size_rank",
    "size_of",
    "year_rank",
    "year_of",
    "neighbours",
    "status",
    "known_as",
    "apart",
]


@dataclass(frozen=True)
class Placed:
    """A user's models on the headline's reference.

    Parameters
    ----------
    densities : DensityResult
        A row per model, ``stratum`` "yours".
    ranks : pandas.DataFrame
        Columns :data:`COLUMNS`, densest first: rank 1 is the densest of ``of`` (itself included), among all headline
        models, those of its size (up to twice as small or large), and those released in the same calendar year; 0 of
        0 where there are none or its date is not known. ``neighbours`` are the headline models next to it in density,
        ``known_as`` is the catalog's model that was measured again (it is not among them), and ``apart`` why a headline
        would not hold a model: ``instruct``, ``moe``, empty where it would.
    notes : tuple of Note

    See Also
    --------
    place_scores
    """

    densities: DensityResult
    ranks: pd.DataFrame
    notes: tuple[Note, ...] = ()


def place_scores(
    scores: TableLike,
    catalog: Catalog,
    reference: Reference,
    among: DensityResult,
    *,
    denominator: str = "total",
    guard: float = 3.0,
    seed: int = 0,
) -> Placed:
    """Rank a user's models among others, on a reference that they do not change.

    Parameters
    ----------
    scores : path, DataFrame or records
        Columns ``model, params, released, benchmark, score`` (and any other catalog column).
    catalog : Catalog
        The one behind the reference.
    reference : Reference
        A joint reference uses all benchmarks of its scale that the table holds; any other needs its own benchmark.
    among : DensityResult
        The models they are ranked among.
    denominator, guard, seed
        As in :func:`densing.scores.density.estimate_density`.

    Raises
    ------
    InputError, TableError
        When the table cannot be read (file, row, column and remedy), or nothing in it can be placed.

    See Also
    --------
    run_study, densing.scores.density.rank

    Examples
    --------
    >>> import densing
    >>> from densing.scores.study import place_scores
    >>> catalog, reference = densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu")
    >>> rows = [{"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6}]
    >>> placed = place_scores(rows, catalog, reference, densing.catalog_densities(catalog, reference).headline)
    >>> row = placed.ranks.iloc[0]
    >>> bool(1 <= row["size_rank"] <= row["size_of"] < row["of"])
    True
    """
    options: dict[str, Any] = {"denominator": denominator, "guard": guard, "seed": seed}
    if isinstance(reference, JointReference):
        result = _on_joint(scores, catalog, reference, options)
    else:
        result = table_densities(scores, reference, **options)
    if len(result) > MAX_PLACED:
        raise InputError(f"{len(result)} models are more than the {MAX_PLACED} placed at once; split the table")
    apart = result.table["stratum"].where(result.table["stratum"].ne(HEADLINE), "")
    result = replace(result, table=result.table.assign(stratum=YOURS, apart=apart))
    return Placed(result, _ranks(result, among), tuple(once(result.notes)))


def _on_joint(scores: TableLike, catalog: Catalog, reference: JointReference, options: dict[str, Any]) -> DensityResult:
    parts, names = own_measurements(read_extra(scores))
    merged = merge(catalog, parts)
    keys = ["model", "benchmark", "evaluator"]
    known = pd.MultiIndex.from_frame(catalog.scores[keys])
    added = merged.scores[~pd.MultiIndex.from_frame(merged.scores[keys]).isin(known)]
    mine = sorted(set(added["model"]))
    source = formatting.clean(scores) if not isinstance(scores, pd.DataFrame | list) else "the table of scores"
    if not mine:
        raise InputError(f"{source}: contains no score that is new to the catalog")
    twice = sorted(set(mine) & set(reference.scale.models))
    if twice:
        raise InputError(
            f"{source}: {formatting.listed(twice)} {'is' if len(twice) == 1 else 'are'} both in --catalog and on the "
            "joint scale; give each model in only one of them"
        )
    cells = joint_cells(merged)
    own = cells.table["model"].isin(mine).to_numpy(dtype=bool)
    if not own.any():
        reasons = cells.dropped[cells.dropped["model"].isin(mine)]
        examples = formatting.listed(sorted(set(reasons["benchmark"] + " (" + reasons["reason"] + ")")))
        raise InputError(
            f"{source}: no score can be placed on the joint scale: {examples}; "
            "`densing catalog list benchmarks` names others"
        )
    dropped = cells.dropped[cells.dropped["model"].isin(mine)]
    cells = replace(cells, table=cells.table[own].reset_index(drop=True), dropped=dropped, notes=())
    # The scale, the reference's line and the headline stay the catalog's own.
    scale = place(reference.scale, cells, seed=options["seed"])
    result = catalog_densities(merged, replace(reference, scale=scale, notes=scale.notes), **options)
    result = result.subset(result.table["model"].isin(mine).to_numpy(dtype=bool))
    # What is true of the whole scale is said with the reference.
    general = {"user-apart", "few-cells", "no-size", *(note.code for note in reference.notes)}
    of_them = (*(note for note in result.notes if note.code not in general), *evaluator_links(scale.cells, mine).notes)
    result = marked_known(replace(result, notes=of_them), parts, names)
    mine = sorted(names.get(name, name) for name in mine)
    sizeless = sorted(set(mine) - set(result.table["model"]))
    if not len(result):
        raise InputError(f"{source}: {formatting.listed(sizeless)}: no size; fill in the column params")
    notes = [*result.notes]
    few = result.table.loc[result.table["cells"].lt(3), "model"].tolist()
    if few:
        message = f"{formatting.listed(few)}: fewer than 3 scores, so the interval is wide"
        notes.append(Note("few-cells", "info", message, {"models": few}))
    if sizeless:
        message = f"{formatting.listed(sizeless)}: not placed, as size or scores on the joint scale are missing"
        notes.append(Note("not-placed", "warning", message, {"models": sizeless}))
    notes += [note for part in parts.values() for note in part.notes]
    return replace(result, notes=tuple(notes))


def _ranks(result: DensityResult, among: DensityResult) -> pd.DataFrame:
    rows = []
    others = among.table
    year = pd.to_datetime(others["released"]).dt.year
    for position, row in enumerate(result.table.to_dict("records")):
        one = result.subset(np.arange(len(result)) == position)
        size = others["n_params"].between(row["n_params"] / SIZE_FACTOR, row["n_params"] * SIZE_FACTOR)
        released = pd.to_datetime(row["released"])
        same_year = year.eq(released.year) if pd.notna(released) else pd.Series(False, others.index)
        places: dict[str, Any] = {"neighbours": ""}
        for label, mask in (("", np.ones(len(others), bool)), ("size_", size), ("year_", same_year)):
            other = ~others["model"].isin([row["model"], row.get("known_as")]).to_numpy(dtype=bool)
            group = among.subset(np.asarray(mask, dtype=bool) & other)
            places |= {f"{label}rank": 0, f"{label}of": 0}
            if len(group):
                ranking = rank(one, group)
                places |= {
                    f"{label}rank": int(ranking.table["rank"].iloc[0]),
                    f"{label}of": int(ranking.table["of"].iloc[0]),
                }
                if not label:
                    near = ranking.neighbours(row["model"], NEIGHBOURS)["model"]
                    places["neighbours"] = ", ".join(name for name in near if name != row["model"])
        rows.append({**row, **places})
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values("density", ascending=False, ignore_index=True)
