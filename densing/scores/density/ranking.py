"""Where models stand among others on one ruler: rank, percentile, neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from densing.core import Card, InputError, Note, Readable, TableLike, words
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.density.inversion import DensityResult
from densing.scores.density.targets import catalog_densities, table_densities
from densing.scores.references import Reference, load_reference


@dataclass(frozen=True, repr=False)
class Ranking(Readable):
    """Places of models among others on one ruler.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per model: ``model, density, density_lo, density_hi, status``, its ``rank`` (1 is the densest) with
        ``rank_lo`` and ``rank_hi``, ``of`` how many models (itself included), and ``percentile``: the share of the
        others that are less dense, in percent, with ``percentile_lo`` and ``percentile_hi``.
    mine, others : DensityResult
        The densities behind it.
    notes : tuple of Note
    """

    table: pd.DataFrame
    mine: DensityResult
    others: DensityResult
    notes: tuple[Note, ...] = ()

    def neighbours(self, model: str, count: int = 3) -> pd.DataFrame:
        """Return the models next to one, as many above as below, densest first.

        Parameters
        ----------
        model : str
        count : int
            On each side.

        Raises
        ------
        InputError
            When no model of this name was ranked.
        """
        rows = self.mine.table.index[self.mine.table["model"] == model]
        if not len(rows):
            raise InputError(f"no model {model!r} was ranked; there are {', '.join(self.mine.table['model'])}")
        columns = ["model", "released", "n_params", "density", "density_lo", "density_hi", "status"]
        both = pd.concat([self.mine.table.loc[rows[:1], columns], self.others.table[columns]], ignore_index=True)
        order = both["density"].argsort(kind="stable").to_numpy()[::-1]
        at = int(np.flatnonzero(order == 0)[0])
        return both.iloc[order[max(at - count, 0) : at + count + 1]].reset_index(drop=True)

    def card(self) -> Card:
        """Return what is shown: the places, and on which ruler they hold."""
        ruler = self.others.reference
        title = f"{words.plural(len(self.table), 'model')} among {len(self.others)} on {ruler.name}, {ruler.benchmark}"
        return Card(title, table=self.table, notes=self.notes)


def rank(
    my: DensityResult | TableLike,
    among: Catalog | DensityResult | None = None,
    *,
    reference: Reference | str = "qwen1.5",
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Place models among others, all on one ruler.

    Each draw of the ruler's law, of the scores' noise and of the scatter of models gives every model a density, and so
    a place; the interval of a place is that of its draws. A density known only as a limit may lie anywhere beyond it:
    the interval of its place reaches as far.

    Parameters
    ----------
    my : DensityResult, path, DataFrame or records
        The models; a table as for :func:`table_densities`.
    among : Catalog or DensityResult, optional
        Whom they are placed among; the embedded catalog by default. Models of the same name are left out.
    reference : Reference or str
        The ruler, where ``my`` and ``among`` do not bring one.
    level : float
        Coverage of the intervals.
    seed : int

    Returns
    -------
    Ranking

    Raises
    ------
    InputError
        When the two were measured with different rulers, or nobody is left to be placed among.

    Examples
    --------
    >>> import densing
    >>> ruler = densing.load_reference("qwen1.5", "mmlu")
    >>> mine = [{"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6}]
    >>> ranking = densing.rank(mine, reference=ruler)
    >>> place = ranking.table.iloc[0]
    >>> bool(place["percentile_lo"] <= place["percentile"] <= place["percentile_hi"])
    True
    >>> len(ranking.neighbours("mine", 2))
    5

    See Also
    --------
    table_densities, compare_rulers
    """
    brought = next((part.reference for part in (my, among) if isinstance(part, DensityResult)), None)
    ruler = brought or (load_reference(reference) if isinstance(reference, str) else reference)
    mine = my if isinstance(my, DensityResult) else table_densities(my, ruler, seed=seed)
    if not isinstance(among, DensityResult):
        among = catalog_densities(among or load_catalog(), ruler, seed=seed)
    if (mine.reference.name, mine.reference.benchmark) != (among.reference.name, among.reference.benchmark):
        raise InputError(
            f"densities on different rulers cannot be ranked: {mine.reference.name}, {mine.reference.benchmark} and "
            f"{among.reference.name}, {among.reference.benchmark}; measure both on one"
        )
    others = among.subset((~among.table["model"].isin(mine.table["model"])).to_numpy())
    if not len(others):
        raise InputError("there is no other model to be ranked among")
    low, high = _ends(mine)
    others_low, others_high = _ends(others)
    n = len(others)
    # Per draw: how many are surely less dense, and how many may be.
    surely = np.stack([(others_high < low[:, [i]]).sum(axis=1) for i in range(len(mine))], axis=1) / n
    maybe = np.stack([(others_low < high[:, [i]]).sum(axis=1) for i in range(len(mine))], axis=1) / n
    tail = (1 - level) / 2
    share_lo, share_hi = np.quantile(surely, tail, axis=0), np.quantile(maybe, 1 - tail, axis=0)
    density = others.table["density"].to_numpy()
    share = np.array([(density < value).mean() for value in mine.table["density"]])
    table = mine.table[["model", "density", "density_lo", "density_hi", "status"]].assign(
        rank=1 + np.round(n * (1 - share)).astype(int),
        rank_lo=1 + np.floor(n * (1 - share_hi)).astype(int),
        rank_hi=1 + np.ceil(n * (1 - share_lo)).astype(int),
        of=n + 1,
        percentile=100 * share,
        percentile_lo=100 * np.minimum(share_lo, share),
        percentile_hi=100 * np.maximum(share_hi, share),
    )
    return Ranking(table, mine, others, mine.notes)


def _ends(densities: DensityResult) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest ln density of each draw: a limit leaves one side open."""
    bound = densities.table["bound"].to_numpy()
    low = np.where(bound == "upper", -np.inf, densities.model_draws)
    high = np.where(bound == "lower", np.inf, densities.model_draws)
    return low, high
