"""From catalogue rows, or a user's own table, to scores that may be read on a ruler."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd

from densing.catalog import Catalog, Selection, load_catalog, strata
from densing.catalog.flags import OTHER_PROTOCOL, WRONG, has_flag
from densing.density.invert import DEFAULT_GUARD, estimate_density
from densing.density.result import DensityResult
from densing.errors import InputError
from densing.notes import Note
from densing.references import Reference, target_scores

USER = "user"
_SIZES = ("total", "active", "non_embedding")
_CARRIED = ("family", "organisation", "released", "kind", "architecture")


def catalog_densities(
    catalog: Catalog,
    reference: Reference,
    *,
    selection: Selection | None = None,
    pool: bool = False,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Return the density of every catalogue model that was scored on the reference's series.

    Parameters
    ----------
    catalog : Catalog
        Embedded, or with a user's rows merged. Rows of evaluator ``user`` count as measured the way the reference was.
    reference : Reference
        The ruler.
    selection : Selection, optional
        What counts as headline; models outside it stay in the table with the reason in ``stratum``.
    pool : bool
        Also read scores of other evaluators with the reference's number of shots, for models that the reference's
        series lacks; one benchmark only. Evaluators differ by more than their standard errors say.
    denominator, guard, level, seed
        As in :func:`densing.density.estimate_density`.

    Returns
    -------
    DensityResult
        Rows sorted by release date and name.

    Raises
    ------
    InputError
        When no model of the catalogue can be read on the reference.
    """
    adopted, notes = _adopt(catalog, reference, every=False)
    if pool:
        adopted, more = _pool(adopted, reference)
        notes += more
    return _densities(adopted, catalog, reference, selection, notes, (denominator, guard, level, seed))


def table_densities(
    table: Path | str,
    reference: Reference,
    *,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Return the densities of the models in a user's own CSV of scores.

    Parameters
    ----------
    table : path
        Columns ``model, params, released, benchmark, score`` (and any other catalogue column).
    reference : Reference
        The ruler; for a mean every one of its benchmarks must be in the table.
    denominator, guard, level, seed
        As in :func:`densing.density.estimate_density`.

    Raises
    ------
    InputError
        When the table lacks the reference's benchmarks or cannot be read.
    """
    catalog = load_catalog(table, embedded=False)
    missing = sorted(set(reference.benchmarks) - set(catalog.scores["benchmark"]))
    if missing:
        have = ", ".join(sorted(catalog.scores["benchmark"].unique())) or "none"
        raise InputError(
            f"{table}: no score on {', '.join(missing)}, which reference {reference.name} on "
            f"{reference.benchmark!r} needs; the table has {have}. Choose --benchmark among those, or add the scores"
        )
    adopted, notes = _adopt(catalog, reference, every=True)
    return _densities(adopted, catalog, reference, None, notes, (denominator, guard, level, seed))


def _densities(
    adopted: Catalog,
    catalog: Catalog,
    reference: Reference,
    selection: Selection | None,
    notes: list[Note],
    options: tuple[str, float, float, int],
) -> DensityResult:
    if not len(adopted.scores):
        raise InputError(f"no score can be read on reference {reference.name}, benchmark {reference.benchmark}")
    scores = target_scores(adopted, reference.evaluator, reference.benchmarks)
    mine = set(catalog.scores.loc[catalog.scores["source"].str.startswith("user:"), "model"])
    measured = catalog.scores[catalog.scores["evaluator"].eq(reference.evaluator)]
    theirs = mine - set(measured.loc[~measured["source"].str.startswith("user:"), "model"])
    scores = scores.assign(evaluator=scores["evaluator"].where(~scores["model"].isin(theirs), USER))
    rows = scores.merge(_model_rows(catalog, selection), on="model", how="inner")
    if rows.empty:
        raise InputError(
            f"no model has every score that reference {reference.name} on {reference.benchmark!r} needs "
            f"({', '.join(reference.benchmarks)})"
        )
    rows = rows.sort_values(["released", "model"], ignore_index=True)
    denominator, guard, level, seed = options
    result = estimate_density(rows, reference, denominator=denominator, guard=guard, level=level, seed=seed)
    return dataclasses.replace(result, notes=(*result.notes, *notes, *catalog.notes))


def _model_rows(catalog: Catalog, selection: Selection | None) -> pd.DataFrame:
    models = catalog.models
    sizes = {f"params_{name}": models[f"params_{name}_b"].astype(float) * 1e9 for name in _SIZES}
    rows = models[["model", *_CARRIED]].assign(
        **sizes, verified=models["released_basis"].notna() & models["released_basis"].ne("unverified")
    )
    return rows.merge(strata(catalog, selection)[["model", "stratum"]], on="model")


def _adopt(catalog: Catalog, reference: Reference, every: bool) -> tuple[Catalog, list[Note]]:
    """Let a user's rows stand in the reference's series, where its own evaluator has no value.

    With ``every``, all rows are the user's, whatever evaluator they name.
    """
    scores = catalog.scores
    here = scores["benchmark"].isin(reference.benchmarks)
    taken = scores["evaluator"].ne(reference.evaluator) if every else scores["evaluator"].eq(USER)
    if not (here & taken).any():
        return catalog, []
    rank = scores["evaluator"].map({reference.evaluator: 0, USER: 1}).fillna(2)
    ordered = scores.assign(_rank=rank)[here & (taken | rank.eq(0))]
    kept = ordered.sort_values(["_rank", "evaluator"]).drop_duplicates(["model", "benchmark"])
    adopted = kept["_rank"].gt(0)
    series = scores[here & rank.eq(0)].drop_duplicates("benchmark").set_index("benchmark")["series"]
    fallback = kept["benchmark"] + ":" + reference.evaluator
    relabelled = kept.assign(evaluator=reference.evaluator, series=kept["benchmark"].map(series).fillna(fallback)).drop(
        columns="_rank"
    )
    rest = scores.drop(index=ordered.index)
    message = (
        f"{int(adopted.sum())} scores from your table are read as if measured the way the reference was "
        f"({reference.evaluator}); another protocol shifts them"
    )
    notes = [Note("user-protocol", "warning", message, {"rows": int(adopted.sum())})] if adopted.any() else []
    joined = pd.concat([rest, relabelled], ignore_index=True)
    return dataclasses.replace(catalog, scores=joined), notes


def _pool(catalog: Catalog, reference: Reference) -> tuple[Catalog, list[Note]]:
    """Let other evaluators' scores of the same shots into the reference's series; the series' own values come first."""
    if len(reference.benchmarks) != 1:
        raise InputError(f"pooling evaluators works on one benchmark, not on {reference.benchmark!r}; name one")
    scores = catalog.scores
    here = scores["benchmark"].eq(reference.benchmarks[0])
    own = scores[here & scores["evaluator"].eq(reference.evaluator)].iloc[0]
    usable = ~(has_flag(scores["flags"], WRONG) | has_flag(scores["flags"], OTHER_PROTOCOL))
    taken = here & usable & scores["shots"].eq(own["shots"]) & scores["series"].ne(own["series"])
    message = f"{int(taken.sum())} {reference.benchmarks[0]} scores of other evaluators are read on the same ruler"
    pooled = scores.assign(series=scores["series"].where(~taken, own["series"]))
    notes = [Note("pooled-evaluators", "warning", message, {"rows": int(taken.sum())})]
    return dataclasses.replace(catalog, scores=pooled), notes
