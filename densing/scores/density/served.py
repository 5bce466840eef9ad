"""Densities of the variants of a served model: per parameter that is kept, and per byte of its weights."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from densing.core import InputError
from densing.scores.density.runs import RUN_GUARD, run_densities
from densing.scores.density.sentences import COMBINED
from densing.scores.evals import RunStore, measured_variants

READ = ["n_eff", "n_eff_lo", "n_eff_hi", "density", "density_lo", "density_hi", "status", "bound"]


def served_densities(
    run: RunStore | Path | str,
    model: str,
    reference: str = "olmo-ladder",
    *,
    quantity: str = "loss",
    guard: float = RUN_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Return what :func:`densing.scores.evals.measured_variants` does, with the density of each variant.

    Parameters
    ----------
    run, model
        As there.
    reference : str
        A family, or the path of a JSON fit.
    quantity : {"loss", "score"}
        What is read on the reference, over all tasks that were measured.
    guard, level, seed
        As in :func:`run_densities`.

    Returns
    -------
    pandas.DataFrame
        With the further columns ``n_eff``, ``density`` (n_eff per kept parameter, counted as the reference counts:
        without embeddings for ladders), their ends ``_lo`` and ``_hi``, ``status``, ``bound`` (upper: no more than that
        can be said, which holds of all three), and ``n_eff_per_byte``: n_eff over ``weight_bytes``, which are all that
        the variant needs, embeddings included.

    Raises
    ------
    InputError
        When there are no variants, or none can be read on the reference.

    Notes
    -----
    Source: arXiv 2412.04315, Eqs. 1 and 4, with the kept parameters in the denominator.
    """
    if quantity not in ("loss", "score"):
        raise InputError(f"quantity {quantity!r}: choose loss or score")
    store = run if isinstance(run, RunStore) else RunStore(Path(run))
    variants = measured_variants(store, model)
    ours = set(variants["model"])
    measurements, models = store.measurements(), store.models()
    densities = run_densities(
        measurements[measurements["model"].isin(ours)],
        models[models["model"].isin(ours)],
        reference,
        guard=guard,
        level=level,
        seed=seed,
    )
    rows = densities.table[densities.table["quantity"].eq(quantity)]
    combined = rows[rows["benchmark"].eq(COMBINED)]
    # A single task has nothing to be combined with.
    chosen = rows if len(rows["benchmark"].unique()) == 1 else combined
    if chosen.empty:
        raise InputError(f"{store.folder}: no {quantity} of {model}'s variants can be read on {reference}")
    table = variants.merge(chosen[["model", *READ]], on="model", how="left")
    return table.assign(n_eff_per_byte=table["n_eff"] / table["weight_bytes"])
