"""A model that was evaluated here, placed among the catalog's models and on the reference law."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from densing.core import Note
from densing.scores.catalog import Catalog
from densing.scores.density import (
    COMBINED,
    RUN_GUARD,
    DensityResult,
    RunDensities,
    catalog_densities,
    read_on,
    run_densities,
)
from densing.scores.references import load_reference

RULER = "olmo-ladder"


@dataclass(frozen=True)
class Measured:
    """What was measured here and what it says, or why nothing was.

    Parameters
    ----------
    densities : RunDensities, optional
        By loss and by score, per task and combined; None when nothing was measured.
    measurements, models : pandas.DataFrame
        What lm-eval measured, and on what.
    among : DensityResult, optional
        The catalog's models on the same ladder's mean ruler, every parameter counted.
    placed : DensityResult, optional
        The measured models on that ruler.
    missing : str
        Why nothing was measured, with the remedy.
    notes : tuple of Note
        What to keep in mind.
    """

    densities: RunDensities | None = None
    measurements: pd.DataFrame = field(default_factory=pd.DataFrame)
    models: pd.DataFrame = field(default_factory=pd.DataFrame)
    among: DensityResult | None = None
    placed: DensityResult | None = None
    missing: str = ""
    notes: tuple[Note, ...] = ()

    def part(self, quantity: str) -> DensityResult | None:
        """Return the combined densities by ``loss`` or by ``score``; of one task where only one was measured."""
        if self.densities is None:
            return None
        of_kind = [part for part in self.densities.results if part.table["quantity"].eq(quantity).all()]
        combined = [part for part in of_kind if part.table["benchmark"].eq(COMBINED).all()]
        chosen = combined or of_kind
        return chosen[0] if chosen else None


def place_measured(
    measurements: pd.DataFrame,
    models: pd.DataFrame,
    catalog: Catalog,
    *,
    released: dict[str, str] | None = None,
    tokens: float | None = None,
    seed: int = 0,
) -> Measured:
    """Read a run on the OLMo ladder and set it beside the catalog's models on the same ruler.

    Parameters
    ----------
    measurements, models : pandas.DataFrame
        As for :func:`densing.scores.density.run_densities`.
    catalog : Catalog
        Whose models stand beside it.
    released : mapping, optional
        Release date per measured model.
    tokens, seed
        As for :func:`densing.scores.density.run_densities`.

    Returns
    -------
    Measured
        Among the catalog's models every parameter counts on both sides, because few of them state a count
        without embeddings.

    Raises
    ------
    InputError
        When nothing that was measured can be read on the ladder.
    """
    densities = run_densities(measurements, models, RULER, tokens=tokens, seed=seed)
    ruler = load_reference(RULER, "mean", tokens=tokens)
    among = catalog_densities(catalog, ruler, denominator="total", guard=RUN_GUARD, seed=seed)
    placed = read_on(ruler, measurements, models, denominator="total", guard=RUN_GUARD, seed=seed)
    if placed is None:
        return Measured(densities, measurements, models, notes=densities.notes)
    dates = pd.to_datetime(placed.table["model"].map(released or {}))
    placed.table["released"] = dates
    placed.table["stratum"] = "measured here"
    return Measured(densities, measurements, models, among, placed, notes=(*densities.notes, *ruler.notes))
