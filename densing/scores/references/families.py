"""The reference families: which models and whose scores define each, and which scores may be read on it.

A one-step family is a set of catalog models of one recipe at several sizes; its scores come from one evaluator, the
first in the list that measured enough of them, and its targets are read from the same comparability series. Of the
paper's own family it is told what is not published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from densing.core import UnavailableError, UnknownNameError
from densing.scores.catalog import Catalog, mean_table, score_table
from densing.scores.references.ladder import Ladder

SKILLS = ("knowledge", "reasoning", "mathematics", "code")
# Three parameters and an error bar want at least this many sizes.
MIN_POINTS = 5
# A family whose best score is closer to chance than this says nothing about size.
MIN_SIGNAL = 0.1
# Where the OLMo ladder's tasks meet the catalog: evaluators with the nearest protocol.
LADDER_EVALUATORS = ("obsscaling", "swallow")


@dataclass(frozen=True)
class Family:
    """A reference family.

    Parameters
    ----------
    name : str
        What ``--reference`` takes.
    title : str
        One line for people.
    kind : {"one-step", "two-step", "joint", "described"}
        Fitted as score in ln N, as loss in (N, D) then score in loss, as ability on the joint scale of all cells, or
        only described.
    models : tuple of str
        Catalog names of the members (empty for ladders with their own table).
    evaluators : tuple of str
        Preferred order; a reference uses one.
    about : str
        Sizes, tokens, and what to know before using it.
    """

    name: str
    title: str
    kind: Literal["one-step", "two-step", "joint", "described"]
    models: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    about: str = ""


def _sizes(prefix: str, *sizes: str) -> tuple[str, ...]:
    return tuple(f"{prefix}-{size}" for size in sizes)


_FAMILIES = (
    Family(
        "olmo-ladder",
        "OLMo ladder (190M to 1B fitted, 7B and 13B held out)",
        "two-step",
        about="16 runs, four sizes at 1, 2, 5 and 10 times Chinchilla tokens; bits per byte of the correct answer in "
        "N and D, then accuracy in bits per byte. Sizes are non-embedding counts. Five-shot cloze format with "
        "length-normalised accuracy, so MMLU is not comparable with the usual multiple-choice version.",
    ),
    Family(
        "densing-cpu",
        "Our own ladder (1.4k to 109k, generated text, trained on a CPU)",
        "two-step",
        about="Seven sizes times three seeds, each read at four token budgets from 0.3 to 1.6 million, on generated "
        "facts, bigrams, skip-bigrams and tables with Zipf tails; `densing ladder train --preset cpu` recreates it. "
        "Sizes are non-embedding counts. For checks with a known answer, not for real language models.",
    ),
    Family(
        "pythia",
        "Pythia (70M to 12B, 0.3 T tokens)",
        "one-step",
        tuple(f"Pythia-{s}-deduped" for s in ("70M", "160M", "410M", "1B", "1.4B", "2.8B", "6.9B", "12B")),
        ("obsscaling",),
        "Same deduplicated data and order at every size. At chance on MMLU and near zero on GSM8K at every size.",
    ),
    Family(
        "qwen1.5",
        "Qwen1.5 dense base models (0.5B to 110B)",
        "one-step",
        _sizes("Qwen1.5", "0.5B", "1.8B", "4B", "7B", "14B", "32B", "72B", "110B"),
        ("obsscaling", "opencompass", "open_llm_leaderboard_v2", "qwen1.5_blog"),
        "The widest dense family measured under one protocol together with many 2023 and 2024 models.",
    ),
    Family(
        "qwen2.5",
        "Qwen2.5 dense base models (0.5B to 72B)",
        "one-step",
        _sizes("Qwen2.5", "0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B"),
        ("swallow", "qwen2.5_blog"),
        "Measured beside models of 2024 and 2025.",
    ),
    Family(
        "llama",
        "Llama-1 and Llama-2 (7B to 70B)",
        "one-step",
        (*_sizes("Llama-1", "7B", "13B", "33B", "65B"), *_sizes("Llama-2", "7B", "13B", "70B")),
        ("obsscaling", "opencompass"),
        "Two generations on different token counts (1 to 2 T), so the points scatter around the curve more than those "
        "of a single recipe; no size below 7B, so small models are extrapolated.",
    ),
    Family(
        "joint",
        "Joint scale (all models, benchmarks and evaluators of the catalog)",
        "joint",
        about="One model of all cells: correlated abilities by skill and language, evaluators' offsets, floors and "
        "ceilings. How ability grows with size comes from every family of at least three sizes; density 1 is the "
        "recipe of Qwen2.5. Reads models that share any benchmark with any other.",
    ),
    Family(
        "densing-paper",
        "The Densing Law's own reference models (5M to 0.8B)",
        "described",
        about="Six sizes (5.2M, 31.5M, 106M, 245M, 477M and 828M non-embedding parameters), each at 10, 15, 20, 30, "
        "40 and 60 tokens per parameter on the MiniCPM-3-4B corpus, WSD schedule (arXiv 2412.04315v2, Table 1). The "
        "conditional losses of these models, the fitted a, alpha, b, beta and c, gamma, l, d, and the intercept of the "
        "trend are not published.",
    ),
)


def family_names() -> list[str]:
    """Return the names of all reference families, described ones included.

    See Also
    --------
    load_reference

    Examples
    --------
    >>> import densing
    >>> "qwen1.5" in densing.family_names()
    True
    """
    return [family.name for family in _FAMILIES]


def get_family(name: str) -> Family:
    """Return a reference family by name.

    Raises
    ------
    UnknownNameError
        When there is no such family.

    Examples
    --------
    >>> get_family("llama").evaluators
    ('obsscaling', 'opencompass')
    """
    for family in _FAMILIES:
        if family.name == name:
            return family
    raise UnknownNameError("reference", name, family_names())


def refuse_unpublished(family: Family) -> None:
    """Raise for a family that is known but cannot be fitted from anything published.

    Raises
    ------
    UnavailableError
        With what is missing and how to supply it.
    """
    if family.kind == "described":
        raise UnavailableError(
            f"reference {family.name!r} is described but has no published losses. {family.about} Supply them: "
            "`densing fit TABLE --law two-step --out reference.json` on a table with columns params,tokens,loss,score, "
            "then `--reference reference.json`."
        )


@dataclass(frozen=True)
class Members:
    """The points of a reference.

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


def reference_members(catalog: Catalog, family: Family, benchmark: str) -> Members:
    """Collect the points of a reference from the catalog.

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
                f"{members.floor:.3f}), so the score is not informative about size; choose another benchmark or "
                "reference"
            )
    raise UnavailableError(
        f"reference {family.name!r} has fewer than {MIN_POINTS} sizes with a usable {benchmark} score from one "
        f"evaluator; `densing refs show {family.name}` lists the available ones"
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
    """Return one score per model that may be read on a reference of this evaluator and these benchmarks.

    A single benchmark takes every evaluator of the reference's comparability series; a mean stays within the evaluator.

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
    """Return the evaluator (empty where the catalog has none) and the tasks of a ladder's reference.

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
