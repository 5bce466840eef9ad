"""Ranks of models by density: where models stand among others on one reference, and which ranks hold on several.

The value of a density on one reference says nothing about its value on another; ranks compare across references as far
as the rank correlation says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from densing.core import (
    Card,
    DensingError,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    TableLike,
    UnknownNameError,
    column,
    formatting,
    listing_of,
    numeric,
    once,
    ranged,
    worst,
)
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.density.inversion import DensityResult
from densing.scores.density.listing import DENSITY, INTERVAL, STATUS, limited
from densing.scores.density.targets import catalog_densities, table_densities
from densing.scores.references import Reference, family_names, get_family, load_reference

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
    "density_lo_recipe",
    "density_hi_recipe",
    "status",
    "bound",
    "rank",
    "ranked",
    "protocol",
    "protocol_detail",
]
# Below this many models on both references a rank correlation says nothing.
MIN_COMMON = 3


PLACES = (
    Field("Model", column("model")),
    DENSITY,
    INTERVAL,
    Field("Rank", lambda row: f"{formatting.count(row['rank'])} of {formatting.count(row['of'])}", "rank",
          hint="1 is the densest; itself included"),
    Field("Its interval", ranged("rank", formatting.count), "rank_lo"),
    numeric("Less dense, %", "percentile", formatting.three_digits, hint="Share of the others"),
    Field("Interval of it", ranged("percentile", formatting.three_digits), "percentile_lo", minor=True),
    STATUS,
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Ranking(Readable):
    """Places of models among others on one reference.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per model: ``model, density, density_lo, density_hi, status``, its ``rank`` (1 is the densest) with
        ``rank_lo`` and ``rank_hi``, ``of`` how many models (itself included), and ``percentile``: the share of the
        others that are less dense, in percent, with ``percentile_lo`` and ``percentile_hi``.
    mine, others : DensityResult
        The densities behind it.
    notes : tuple of Note

    See Also
    --------
    rank

    Examples
    --------
    >>> import densing
    >>> mine = [{"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6}]
    >>> ranking = densing.rank(mine, reference=densing.load_reference("qwen1.5", "mmlu"))
    >>> bool(ranking.table["rank_lo"].item() <= ranking.table["rank"].item() <= ranking.table["rank_hi"].item())
    True
    >>> ranking.neighbours("mine", 1)["model"].tolist()[1]
    'mine'
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
        """Return what is shown: the places, and on which reference they hold."""
        reference = self.others.reference
        models = formatting.plural(len(self.table), "model")
        title = f"{models} among {len(self.others)} on {reference.name}, {reference.benchmark}"
        return Card(title, table=Listing(title, self.table, PLACES), notes=self.notes)


def rank(
    my: DensityResult | TableLike,
    among: Catalog | DensityResult | None = None,
    *,
    reference: Reference | str = "qwen1.5",
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Place models among others, all on one reference.

    Each draw of the reference's law and of the scores' noise gives every model a measured density, and so a place; the
    interval of a place is that of its draws. It places these models, not their recipes. A density known only as a
    limit may lie anywhere beyond it: the interval of its place reaches as far.

    Parameters
    ----------
    my : DensityResult, path, DataFrame or records
        The models; a table as for :func:`table_densities`.
    among : Catalog or DensityResult, optional
        Whom they are placed among; the embedded catalog by default. Models of the same name are left out, and those
        that were measured again (``known_as``).
    reference : Reference or str
        The reference, where ``my`` and ``among`` do not bring one.
    level : float
        Coverage of the intervals; of densities, too, where tables are read here.
    seed : int

    Returns
    -------
    Ranking

    Raises
    ------
    InputError
        When the two were measured with different references, or nobody is left to be placed among.

    Examples
    --------
    >>> import densing
    >>> reference = densing.load_reference("qwen1.5", "mmlu")
    >>> mine = [{"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6}]
    >>> ranking = densing.rank(mine, reference=reference)
    >>> place = ranking.table.iloc[0]
    >>> bool(place["percentile_lo"] <= place["percentile"] <= place["percentile_hi"])
    True
    >>> len(ranking.neighbours("mine", 2))
    5

    See Also
    --------
    table_densities, compare_references
    """
    brought = next((part.reference for part in (my, among) if isinstance(part, DensityResult)), None)
    whom = among if isinstance(among, Catalog) else None
    reference = brought or reference
    if isinstance(reference, str):
        reference = load_reference(reference, catalog=whom)
    mine = my if isinstance(my, DensityResult) else table_densities(my, reference, level=level, seed=seed)
    if not isinstance(among, DensityResult):
        among = catalog_densities(among or load_catalog(), reference, level=level, seed=seed)
    if (mine.reference.name, mine.reference.benchmark) != (among.reference.name, among.reference.benchmark):
        raise InputError(
            f"densities on different references cannot be ranked: {mine.reference.name}, {mine.reference.benchmark} "
            f"and {among.reference.name}, {among.reference.benchmark}; measure both on one"
        )
    measured = {*mine.table["model"], *mine.table.get("known_as", pd.Series(dtype=object)).dropna()}
    others = among.subset((~among.table["model"].isin(measured)).to_numpy())
    if not len(others):
        raise InputError("there is no other model to rank against")
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
    return Ranking(table, mine, others, tuple(once((*mine.notes, *others.notes))))


def _ends(densities: DensityResult) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest ln density of each draw: a limit leaves one side open."""
    bound = densities.table["bound"].to_numpy()
    low = np.where(bound == "upper", -np.inf, densities.draws)
    high = np.where(bound == "lower", np.inf, densities.draws)
    return low, high


@dataclass(frozen=True, repr=False)
class ReferenceComparison(Readable):
    """Densities of the same models on several references.

    Parameters
    ----------
    table : pandas.DataFrame
        A row per model and reference that reads it, columns :data:`COLUMNS`. ``rank`` 1 is the densest of the
        ``ranked`` models that have a value on that reference; a bound has no rank.
    correlation : pandas.DataFrame
        A row per pair of references: ``first, second, models`` (with a value on both), ``spearman`` (NaN below three
        models), ``median_ratio`` (of the first's densities to the second's) and ``disjoint`` (models whose two
        intervals do not meet: those of their recipes, as two references are two recipes).
    results : mapping of str to DensityResult
        What each reference says, with draws.
    notes : tuple of Note
        What to keep in mind, and which references were left out, and why.

    See Also
    --------
    compare_references

    Examples
    --------
    >>> import densing
    >>> comparison = densing.compare_references(densing.load_catalog(), ["qwen1.5", "llama"], "mmlu")
    >>> list(comparison.results)
    ['qwen1.5', 'llama']
    """

    table: pd.DataFrame
    correlation: pd.DataFrame
    results: dict[str, DensityResult]
    notes: tuple[Note, ...] = ()

    def wide(self, column: str = "density") -> pd.DataFrame:
        """Return one column of the table, a row per model in order of release and a column per reference."""
        models = self.table.drop_duplicates("model").set_index("model")
        pivoted = self.table.pivot_table(index="model", columns="reference", values=column, aggfunc="first")
        ordered = models.sort_values(["released", "model"]).index
        return pivoted.reindex(index=ordered, columns=[name for name in self.results if name in pivoted])

    def describe(self) -> list[dict[str, Any]]:
        """Return what each reference rests on, as plain data."""
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

    def listing(self, benchmark: str = "") -> Listing:
        """Return a density per model and reference, with its rank among the models that have a value there."""

        def cell(reference: str) -> Callable[[Mapping[str, Any]], str]:
            def shown(row: Mapping[str, Any]) -> str:
                of = row.get(reference)
                if of is None:
                    return formatting.MISSING
                rank = "" if of["bound"] else f" ({formatting.count(of['rank'])}/{of['ranked']})"
                return f"{limited('density')(of)}{rank}{' differs' if of['protocol'] == 'differs' else ''}"

            return shown

        order = self.wide().index
        cells = {key: rows.iloc[0].to_dict() for key, rows in self.table.groupby(["model", "reference"], sort=False)}
        rows = [{"model": model, **{name: cells.get((model, name)) for name in self.results}} for model in order]
        fields = [Field("Model", column("model")), *(Field(name, cell(name)) for name in self.results)]
        where = f", {benchmark}" if benchmark else ""
        return Listing(f"Density on each reference{where} (rank among the models with a value on it)", rows, fields)

    def correlation_listing(self) -> Listing:
        """Return how far ranks on two references agree."""
        title = "Agreement of references: Spearman's rank correlation and spread of values"
        return listing_of(title, self.correlation)

    def card(self) -> Card:
        """Return what is shown: a density per model and reference, and how far their ranks agree."""
        pairs = self.correlation.itertuples()
        facts = {f"ranks on {pair.first} and {pair.second}": f"Spearman {pair.spearman:.3f}" for pair in pairs}
        title = f"Densities of {formatting.plural(self.table['model'].nunique(), 'model')} on {', '.join(self.results)}"
        return Card(title, facts, self.listing(), self.notes)


def compare_references(
    models: Catalog | TableLike,
    references: Sequence[str] | None = None,
    benchmark: str = "mean",
    *,
    tokens: float | None = None,
    **options: Any,
) -> ReferenceComparison:
    """Read the same models on several references.

    Density is relative to a reference family: its value on one reference says nothing about its value on another, where
    other reference models, benchmarks and evaluators stand behind it. Ranks compare as far as the rank correlation
    says.

    Parameters
    ----------
    models : Catalog, path, DataFrame or records
        A catalog, or a user's own table as for :func:`densing.scores.density.table_densities`.
    references : sequence of str, optional
        Families, or paths of JSON fits; every family that can be fitted by default.
    benchmark : str
        Benchmark id, ``mean`` or a skill; each reference's own mean where it is one.
    tokens : float, optional
        D0 of the two-step references among them.
    **options
        Of :func:`densing.scores.density.catalog_densities` or :func:`densing.scores.density.table_densities`.

    Returns
    -------
    ReferenceComparison

    Raises
    ------
    UnknownNameError
        For a reference that does not exist.
    InputError
        When no reference reads any of the models.

    Examples
    --------
    >>> import densing
    >>> comparison = densing.compare_references(densing.load_catalog(), ["qwen1.5", "llama"], "mmlu")
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
            reference = load_reference(name, benchmark, catalog=models if isinstance(models, Catalog) else None)
            reference = reference.at_tokens(tokens if "tokens" in reference.given else None)
            if worst(reference.notes) == "error":
                raise InputError(next(note.message for note in reference.notes if note.severity == "error"))
            if isinstance(models, Catalog):
                result = catalog_densities(models, reference, **options)
            else:
                result = table_densities(models, reference, **options)
            if references is None and isinstance(models, Catalog) and result.table["protocol"].eq("differs").all():
                detail = str(result.table["protocol_detail"].mode().iloc[0])
                raise InputError(f"all scores of the catalog were measured differently from the reference ({detail})")
            results[name] = result
        except DensingError as error:
            unknown = isinstance(error, UnknownNameError) and not name.endswith(".json") and name not in family_names()
            if unknown and references is not None:
                raise
            notes.append(Note("ruler-left-out", "info", f"reference {name} is left out: {error}", {"reference": name}))
    if not results:
        reasons = "; ".join(note.message for note in notes)
        raise InputError(f"no reference reads these models on {benchmark!r}: {reasons}")
    parts = []
    for name, result in results.items():
        valued = result.table["density"].where(result.table["bound"].eq(""))
        places = valued.rank(ascending=False, method="min").astype("Int64")
        parts.append(result.table.assign(reference=name, rank=places, ranked=int(valued.notna().sum()))[COLUMNS])
    pairs = []
    for pair in combinations(parts, 2):
        # A bound has no place in a ranking, and a ratio with one says nothing.
        first, second = (part[part["bound"].eq("")].set_index("model") for part in pair)
        common = first.index.intersection(second.index)
        first, second = first.loc[common], second.loc[common]
        # Where a reference cannot tell its scatter, what was measured is all there is.
        (low, high), (other_low, other_high) = (
            [part[f"density_{end}_recipe"].fillna(part[f"density_{end}"]) for end in ("lo", "hi")]
            for part in (first, second)
        )
        disjoint = (high < other_low) | (other_high < low)
        ranked = len(common) >= MIN_COMMON
        pairs.append(
            {
                "first": pair[0]["reference"].iloc[0],
                "second": pair[1]["reference"].iloc[0],
                "models": len(common),
                "spearman": first["density"].corr(second["density"], method="spearman") if ranked else np.nan,
                "median_ratio": float((first["density"] / second["density"]).median()) if len(common) else np.nan,
                "disjoint": int(disjoint.sum()),
            }
        )
    names = ["first", "second", "models", "spearman", "median_ratio", "disjoint"]
    return ReferenceComparison(
        pd.concat(parts, ignore_index=True),
        pd.DataFrame(pairs, columns=names),
        results,
        tuple(once((*notes, *(note for result in results.values() for note in result.notes)))),
    )
