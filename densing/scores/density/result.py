"""The result of an inversion: densities of many models against one reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Note
from densing.scores.references import Reference


@dataclass(frozen=True)
class DensityResult:
    """Densities of a set of models against one reference.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per model; columns as in :data:`TABLE_COLUMNS`, sizes as counts.
    draws : numpy.ndarray, shape (R, n)
        ln density per draw, with the uncertainty of the reference law and of the score: the measurement. What a trend
        reads, because the scatter of models is already in the residuals of its line.
    law_draws : numpy.ndarray, shape (R, n)
        ln density per draw of the reference law alone, at the reported score.
    model_draws : numpy.ndarray, shape (R, n)
        ln density per draw with the scatter of models around the ruler on top: what ``density_lo`` and ``density_hi``
        are quantiles of.
    log_limits : numpy.ndarray, shape (n, 2)
        ln density at the two ends of the guard: where a row is censored.
    reference : Reference
        The ruler.
    options : mapping
        Denominator, guard, level, seed.
    notes : tuple of Note
        What to keep in mind.
    """

    table: pd.DataFrame
    draws: np.ndarray
    law_draws: np.ndarray
    model_draws: np.ndarray
    log_limits: np.ndarray
    reference: Reference
    options: Mapping[str, Any]
    notes: tuple[Note, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.table)

    def subset(self, keep: np.ndarray) -> DensityResult:
        """Return some of the models: where a boolean array is true, or at positions, in their order."""
        rows = np.flatnonzero(keep) if keep.dtype == bool else keep
        return replace(
            self,
            table=self.table.iloc[rows].reset_index(drop=True),
            draws=self.draws[:, rows],
            law_draws=self.law_draws[:, rows],
            model_draws=self.model_draws[:, rows],
            log_limits=self.log_limits[rows],
        )

    @property
    def headline(self) -> DensityResult:
        """The models that the selection puts in the headline; ``stratum`` says why the others are not."""
        return self.subset(self.table["stratum"].eq("headline").to_numpy(dtype=bool))

    def _repr_html_(self) -> str:
        shown = [
            "model",
            "released",
            "n_params",
            "score",
            "n_eff",
            "density",
            "density_lo",
            "density_hi",
            "status",
        ]
        return self.table[shown].to_html(index=False, float_format=lambda value: f"{value:.3g}")


TABLE_COLUMNS = (
    "model",
    "family",
    "organisation",
    "released",
    "kind",
    "architecture",
    "verified",
    "stratum",
    "n_params",
    "denominator",
    "reference",
    "benchmark",
    "evaluator",
    "score",
    "score_se",
    "n_sources",
    "n_eff",
    "n_eff_lo",
    "n_eff_hi",
    "density",
    "density_lo",
    "density_hi",
    "interval",
    "density_lo_measured",
    "density_hi_measured",
    "status",
    "bound",
    "protocol",
    "protocol_detail",
    "source",
)
