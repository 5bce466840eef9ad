"""Which models, scores and evaluator make a one-step ruler, and which scores of other models may be read on it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from densing.core import UnavailableError, UnknownNameError
from densing.scores.catalog import Catalog, mean_table, score_table
from densing.scores.references.families import Family
from densing.scores.references.ladder import Ladder

SKILLS = ("knowledge", "reasoning", "mathematics", "code")
# Three parameters and an error bar want at least this many sizes.
MIN_POINTS = 5
# A family whose best score is closer to chance than this says nothing about size.
MIN_SIGNAL = 0.1
# Where the OLMo ladder's tasks meet the catalog: evaluators with the nearest protocol.
LADDER_EVALUATORS = ("obsscaling", "swallow")


@dataclass(frozen=True)
class Members:
    """The points of a ruler.

    Parameters
    ----------
    evaluator : str
        Who measured every point.
    benchmarks : tuple of str
        What was averaged (one id for a single benchmark).
    points : pandas.DataFrame
        ``model, params, score, score_se, held_out``; params as a count.
    floor : float
        Mean chance level.
    """

    evaluator: str
    benchmarks: tuple[str, ...]
    points: pd.DataFrame
    floor: float


def ruler_members(catalog: Catalog, family: Family, benchmark: str) -> Members:
    """Collect the points of a ruler from the catalog.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    family : Family
        A one-step family.
    benchmark : str
        A benchmark id, ``mean``, or a skill (knowledge, reasoning, mathematics, code).

    Raises
    ------
    UnknownNameError
        When the catalog has no such benchmark.
    UnavailableError
        When the family was not measured on it, or sits at chance at every size.
    """
    if benchmark == "mean" or benchmark in SKILLS:
        evaluator, chosen = group_members(catalog, family, benchmark)
        return _collect(catalog, family, evaluator, chosen)
    known_benchmark(catalog, benchmark)
    row = catalog.benchmarks.set_index("id").loc[benchmark]
    if not bool(row["scale"]):
        reason = row["notes"] if isinstance(row["notes"], str) else "its scores do not rise with capability"
        raise UnavailableError(f"benchmark {benchmark!r} is not a capability scale for base models: {reason}")
    for evaluator in family.evaluators:
        if _count(catalog, family, evaluator, benchmark) >= MIN_POINTS:
            members = _collect(catalog, family, evaluator, (benchmark,))
            if _signal(members) > MIN_SIGNAL:
                return members
            best = members.points["score"].max()
            raise UnavailableError(
                f"reference {family.name!r} sits near chance on {benchmark} at every size (best {best:.3f}, chance "
                f"{members.floor:.3f}), so the score says nothing about size; choose another benchmark or reference"
            )
    raise UnavailableError(
        f"reference {family.name!r} has fewer than {MIN_POINTS} sizes with a usable {benchmark} score from one "
        f"evaluator; `densing refs show {family.name}` lists what it has"
    )


def group_members(catalog: Catalog, family: Family, group: str = "mean") -> tuple[str, tuple[str, ...]]:
    """Return the evaluator and the benchmarks that enter a family's mean, or one skill's mean.

    A benchmark enters when it is a capability scale, the evaluator measured at least five of the family's sizes, and
    the best of them stands clear of chance. The mean uses the family's first evaluator; a skill the first that
    measured it.

    Raises
    ------
    UnavailableError
        When no benchmark qualifies.
    """
    evaluators = family.evaluators[:1] if group == "mean" else family.evaluators
    for evaluator in evaluators:
        chosen = tuple(
            str(row.id)
            for row in catalog.benchmarks.itertuples()
            if bool(row.scale)
            and (group == "mean" or row.skill == group)
            and _count(catalog, family, evaluator, str(row.id)) >= MIN_POINTS
            and _signal(_collect(catalog, family, evaluator, (str(row.id),))) > MIN_SIGNAL
        )
        if chosen:
            return evaluator, chosen
    raise UnavailableError(f"reference {family.name!r} has no usable {group} benchmark")


def target_scores(catalog: Catalog, evaluator: str, benchmarks: tuple[str, ...]) -> pd.DataFrame:
    """Return one score per model that may be read on a ruler of this evaluator and these benchmarks.

    A single benchmark takes every evaluator of the ruler's comparability series; a mean stays within the evaluator.

    Returns
    -------
    pandas.DataFrame
        ``model, score, score_se, n_sources, evaluator, source``.
    """
    if len(benchmarks) > 1:
        return mean_table(catalog, benchmarks, evaluator)
    rows = catalog.scores
    used = rows["evaluator"].eq(evaluator) & rows["benchmark"].eq(benchmarks[0])
    series = rows.loc[used, "series"].dropna().unique()
    if len(series) != 1:
        return score_table(catalog, benchmarks[0], evaluator=evaluator)
    return score_table(catalog, benchmarks[0], series=str(series[0]))


def ladder_members(catalog: Catalog, ladder: Ladder, benchmark: str) -> tuple[str, tuple[str, ...]]:
    """Return the evaluator (empty where the catalog has none) and the tasks of a ladder's ruler.

    Raises
    ------
    UnknownNameError
        When the ladder has no such task.
    """
    if benchmark != "mean" and benchmark not in ladder.tasks:
        raise UnknownNameError(f"benchmark of reference {ladder.name}", benchmark, (*ladder.tasks, "mean"))
    tasks = ladder.mean if benchmark == "mean" else (benchmark,)
    measured = catalog.scores.loc[catalog.scores["benchmark"].eq(tasks[0]), "evaluator"]
    evaluator = next((name for name in LADDER_EVALUATORS if measured.eq(name).any()), "")
    return evaluator, tasks


def known_benchmark(catalog: Catalog, benchmark: str) -> None:
    """Raise UnknownNameError unless the catalog has the benchmark."""
    known = [*catalog.benchmarks["id"].astype(str), "mean", *SKILLS]
    if benchmark not in known:
        raise UnknownNameError("benchmark", benchmark, known)


def _count(catalog: Catalog, family: Family, evaluator: str, benchmark: str) -> int:
    rows = catalog.scores
    used = rows["evaluator"].eq(evaluator) & rows["benchmark"].eq(benchmark)
    if not used.any():
        return 0
    table = score_table(catalog, benchmark, evaluator=evaluator)
    return int(table["model"].isin(family.models).sum())


def _collect(catalog: Catalog, family: Family, evaluator: str, benchmarks: tuple[str, ...]) -> Members:
    if len(benchmarks) > 1:
        table = mean_table(catalog, benchmarks, evaluator)
    else:
        table = score_table(catalog, benchmarks[0], evaluator=evaluator)
    sizes = catalog.models.set_index("model")["params_total_b"]
    table = table[table["model"].isin(family.models)]
    points = pd.DataFrame(
        {
            "model": table["model"].to_numpy(),
            "params": sizes.reindex(table["model"]).to_numpy(dtype=float) * 1e9,
            "score": table["score"].to_numpy(dtype=float),
            "score_se": table["score_se"].to_numpy(dtype=float),
            "held_out": False,
        }
    )
    chance = catalog.benchmarks.set_index("id")["chance"].astype(float)
    ordered = points.sort_values(["params", "model"], ignore_index=True)
    return Members(evaluator, benchmarks, ordered, float(chance[list(benchmarks)].mean()))


def _signal(members: Members) -> float:
    return float(members.points["score"].max()) - members.floor
