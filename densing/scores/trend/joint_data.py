"""Dated densities on the joint scale, basket by basket, as the questions of the trend take them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from densing.core import Array
from densing.scores.catalog import Catalog, selection_of
from densing.scores.density import catalog_densities
from densing.scores.joint import JointScale
from densing.scores.references import joint_reference
from densing.scores.trend.data import EPOCH, TrendData


@dataclass(frozen=True, eq=False, repr=False)
class JointData:
    """Densities of a catalog on the joint scale, cached by basket.

    Parameters
    ----------
    catalog : Catalog
    scale : JointScale
    seed : int
    """

    catalog: Catalog
    scale: JointScale
    seed: int = 0
    _read: dict[tuple[str, tuple[str, ...]], tuple[TrendData, pd.DataFrame]] = field(default_factory=dict)

    def dated(self, basket: str = "mean", include: tuple[str, ...] = ()) -> TrendData:
        """Return the dated headline models from 2023-02-24 on, widened as by :func:`selection_of`."""
        return self._densities(basket, include)[0]

    def measured_in(self, skill: str) -> TrendData:
        """Return the dated headline models that were measured on a skill, with their densities in it."""
        data = self.dated(skill)
        return data.take(self.traits(data, skill) > 0)

    def traits(self, data: TrendData, basket: str = "mean", include: tuple[str, ...] = ()) -> Array:
        """Return the number of a basket's skills on which each model was measured, shape (n,)."""
        table = self._densities(basket, include)[1]
        return table.set_index("model")["traits"].reindex(data.model).fillna(0).to_numpy(dtype=int)

    def fact(self, data: TrendData, column: str) -> Array:
        """Return a column of the catalog's models for the rows of the data, as numbers, shape (n,)."""
        return self.catalog.models.set_index("model")[column].reindex(data.model).to_numpy(dtype=float)

    @property
    def ablest(self) -> pd.DataFrame:
        """``ability, released, organisation`` of all dated base models on the scale, whatever their architecture."""
        models = self.catalog.models.set_index("model").reindex(self.scale.models)
        table = models.assign(ability=self.scale.abilities()["ability"].to_numpy())
        usable = table["kind"].eq("base") & table["released"].notna() & table["organisation"].notna()
        return table.loc[usable, ["ability", "released", "organisation"]]

    def _densities(self, basket: str, include: tuple[str, ...]) -> tuple[TrendData, pd.DataFrame]:
        key = (basket, include)
        if key not in self._read:
            reference = joint_reference(self.catalog, basket, scale=self.scale, seed=self.seed)
            selection = selection_of(list(include))
            result = catalog_densities(self.catalog, reference, selection=selection, seed=self.seed).headline
            self._read[key] = TrendData.from_density(result).window(since=EPOCH), result.table
        return self._read[key]


def shifted(data: TrendData, offset: Array) -> TrendData:
    """Return the data with an offset, shape (n,), added to the outcome, its limits and its draws.

    Examples
    --------
    >>> toy = TrendData.from_arrays(["a"], ["f"], ["2023-02-24"], [0.5], law_draws=np.array([[0.4], [0.6]]))
    >>> more = shifted(toy, np.array([1.0]))
    >>> more.log_density.tolist(), more.law_draws.tolist()
    ([1.5], [[1.4], [1.6]])
    """
    moved = {name: value + offset for name in ("law_draws", "draws") if (value := getattr(data, name)) is not None}
    limits = None if data.log_limits is None else data.log_limits + np.asarray(offset)[:, None]
    return data.replace(log_density=data.log_density + offset, log_limits=limits, **moved)
