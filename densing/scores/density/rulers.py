"""The same models on several rulers: values that do not travel between them, and ranks that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Card, DensingError, InputError, Note, Readable, TableLike, UnknownNameError, once, words, worst
from densing.scores.catalog import Catalog
from densing.scores.density.inversion import DensityResult
from densing.scores.density.targets import catalog_densities, table_densities
from densing.scores.references import family_names, get_family, load_reference

COLUMNS = [
    "model",
    "released",
    "n_params",
    "stratum",
    "reference",
    "density",
    "density_lo",
    "density_hi",
    "interval",
    "status",
    "bound",
    "rank",
    "ranked",
    "protocol",
    "protocol_detail",
]
# Below this many models on both rulers a rank correlation says nothing.
MIN_COMMON = 3


@dataclass(frozen=True, repr=False)
class RulerComparison(Readable):
    """Densities of the same models on several rulers.

    Parameters
    ----------
    table : pandas.DataFrame
        A row per model and ruler that reads it, columns :data:`COLUMNS`. ``rank`` 1 is the densest of the ``ranked``
        models that have a value on that ruler; a bound has no rank.
    correlation : pandas.DataFrame
        A row per pair of rulers: ``first, second, models`` (with a value on both), ``spearman`` (NaN below three
        models), ``median_ratio`` (of the first's densities to the second's) and ``disjoint`` (models whose two
        intervals do not meet).
    results : mapping of str to DensityResult
        What each ruler says, with draws.
    notes : tuple of Note
        What to keep in mind, and which rulers were left out, and why.

    See Also
    --------
    compare_rulers

    Examples
    --------
    >>> import densing
    >>> comparison = densing.compare_rulers(densing.load_catalog(), ["qwen1.5", "llama"], "mmlu")
    >>> list(comparison.results)
    ['qwen1.5', 'llama']
    """

    table: pd.DataFrame
    correlation: pd.DataFrame
    results: dict[str, DensityResult]
    notes: tuple[Note, ...] = ()

    def wide(self, column: str = "density") -> pd.DataFrame:
        """Return one column of the table with a row per model and a column per ruler, models in order of release."""
        models = self.table.drop_duplicates("model").set_index("model")
        pivoted = self.table.pivot_table(index="model", columns="reference", values=column, aggfunc="first")
        ordered = models.sort_values(["released", "model"]).index
        return pivoted.reindex(index=ordered, columns=[name for name in self.results if name in pivoted])

    def describe(self) -> list[dict[str, Any]]:
        """Return what each ruler rests on, as plain data."""
        return [
            {
                "reference": name,
                "evaluator": result.reference.evaluator,
                "benchmarks": list(result.reference.benchmarks),
                "models": len(result),
                "ranked": int(result.table["bound"].eq("").sum()),
            }
            for name, result in self.results.items()
        ]

    def card(self) -> Card:
        """Return what is shown: a density per model and ruler, and how far their ranks agree."""
        pairs = self.correlation.itertuples()
        facts = {f"ranks on {pair.first} and {pair.second}": f"Spearman {pair.spearman:.3f}" for pair in pairs}
        title = f"Densities of {words.plural(self.table['model'].nunique(), 'model')} on {', '.join(self.results)}"
        return Card(title, facts, self.wide().reset_index(), self.notes)


def compare_rulers(
    models: Catalog | TableLike,
    references: Sequence[str] | None = None,
    benchmark: str = "mean",
    *,
    tokens: float | None = None,
    **options: Any,
) -> RulerComparison:
    """Read the same models on several rulers.

    Density is relative to a reference family: its value on one ruler says nothing about its value on another, where
    other reference models, benchmarks and evaluators stand behind it. Ranks travel as far as the rank correlation says.

    Parameters
    ----------
    models : Catalog or path
        A catalog, or a user's own CSV as for :func:`densing.scores.density.table_densities`.
    references : sequence of str, optional
        Families, or paths of JSON fits; every family that can be fitted by default.
    benchmark : str
        Benchmark id, ``mean`` or a skill; each ruler's own mean where it is one.
    tokens : float, optional
        D0 of the two-step rulers among them.
    **options
        Of :func:`densing.scores.density.catalog_densities` or :func:`densing.scores.density.table_densities`.

    Returns
    -------
    RulerComparison

    Raises
    ------
    UnknownNameError
        For a reference that does not exist.
    InputError
        When no ruler reads any of the models.

    Examples
    --------
    >>> import densing
    >>> comparison = densing.compare_rulers(densing.load_catalog(), ["qwen1.5", "llama"], "mmlu")
    >>> comparison.wide("density").columns.tolist()
    ['qwen1.5', 'llama']
    >>> bool(comparison.correlation["spearman"].item() > 0.9)
    True

    See Also
    --------
    rank, load_reference
    """
    usual = [name for name in family_names() if get_family(name).kind != "described"]
    results: dict[str, DensityResult] = {}
    notes: list[Note] = []
    for name in references if references is not None else usual:
        try:
            ruler = load_reference(name, benchmark)
            ruler = ruler.at_tokens(tokens if "tokens" in ruler.given else None)
            if worst(ruler.notes) == "error":
                raise InputError(next(note.message for note in ruler.notes if note.severity == "error"))
            if isinstance(models, Catalog):
                result = catalog_densities(models, ruler, **options)
            else:
                result = table_densities(models, ruler, **options)
            if references is None and isinstance(models, Catalog) and result.table["protocol"].eq("differs").all():
                detail = str(result.table["protocol_detail"].mode().iloc[0])
                raise InputError(f"every score of the catalog was measured otherwise than the ruler ({detail})")
            results[name] = result
        except DensingError as error:
            unknown = isinstance(error, UnknownNameError) and not name.endswith(".json") and name not in family_names()
            if unknown and references is not None:
                raise
            notes.append(Note("ruler-left-out", "info", f"ruler {name} is left out: {error}", {"reference": name}))
    if not results:
        reasons = "; ".join(note.message for note in notes)
        raise InputError(f"no ruler reads these models on {benchmark!r}: {reasons}")
    parts = []
    for name, result in results.items():
        valued = result.table["density"].where(result.table["bound"].eq(""))
        rank = valued.rank(ascending=False, method="min").astype("Int64")
        parts.append(result.table.assign(reference=name, rank=rank, ranked=int(valued.notna().sum()))[COLUMNS])
    names = ["first", "second", "models", "spearman", "median_ratio", "disjoint"]
    return RulerComparison(
        pd.concat(parts, ignore_index=True),
        pd.DataFrame([_agreement(*pair) for pair in combinations(parts, 2)], columns=names),
        results,
        tuple(once((*notes, *(note for result in results.values() for note in result.notes)))),
    )


def _agreement(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, Any]:
    """Return how far two rulers agree on the models that have a value on both."""
    # A bound has no place in a ranking, and a ratio with one says nothing.
    one, two = (part[part["bound"].eq("")].set_index("model") for part in (first, second))
    common = one.index.intersection(two.index)
    one, two = one.loc[common], two.loc[common]
    disjoint = (one["density_hi"] < two["density_lo"]) | (two["density_hi"] < one["density_lo"])
    ranked = len(common) >= MIN_COMMON
    return {
        "first": first["reference"].iloc[0],
        "second": second["reference"].iloc[0],
        "models": len(common),
        "spearman": one["density"].corr(two["density"], method="spearman") if ranked else np.nan,
        "median_ratio": float((one["density"] / two["density"]).median()) if len(common) else np.nan,
        "disjoint": int(disjoint.sum()),
    }
