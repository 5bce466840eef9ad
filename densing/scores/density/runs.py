"""Densities of models that were measured here: one row per task and one for all of them, by loss and by score."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Card, InputError, Note, Readable, UnavailableError, UnknownNameError, formatting
from densing.scores.catalog import DIFFERS, compare, explain, known_protocol, stated, verdict, with_sizes, worst
from densing.scores.density.checkpoints import by_step
from densing.scores.density.inversion import DEFAULT_GUARD, DensityResult, estimate_density
from densing.scores.density.listing import density_listing
from densing.scores.density.sentences import COMBINED, density_sentences
from densing.scores.density.targets import protocol_notes
from densing.scores.evals import in_means, read_results
from densing.scores.laws import TwoStep
from densing.scores.references import (
    Reference,
    available_benchmarks,
    get_family,
    ladder_reference,
    load_reference,
    loss_reference,
)

# What is read as loss (bits per byte of the gold answer) and as score; of several the one that the reference was
# measured with comes first, then in this order.
METRICS = {
    "loss": ("bits_per_byte", "gold_bits_per_byte"),
    "score": ("accuracy", "acc_norm", "acc", "exact_match", "pass@1", "em", "score", "naive_average"),
}
SUITES = {"olmo-ladder": "olmo_ladder_", "densing-cpu": "densing_ladder_"}
# Measured models are small as a rule and ladders begin late: a decade on either side instead of the usual factor three.
RUN_GUARD = 10.0


@dataclass(frozen=True, repr=False)
class RunDensities(Readable):
    """Densities of measured models.

    Parameters
    ----------
    table : pandas.DataFrame
        A row per model, task and quantity, ``combined`` rows last; the columns of a density table, with ``quantity``
        (loss or score; ``score`` holds the loss in bits per byte where it is loss), ``benchmarks``, ``n_items`` and
        ``protocol`` (whether it was measured as the reference was: same, differs or unknown; ``protocol_detail`` in
        words).
    results : tuple of DensityResult
        The same rows with their draws, one result per reference.
    notes : tuple of Note
        What to keep in mind.

    See Also
    --------
    run_densities, rank

    Examples
    --------
    >>> import densing
    >>> import pandas as pd
    >>> losses = pd.DataFrame([{"model": "mine", "task": "olmo_ladder_piqa", "benchmark": "piqa", "n_items": 1838,
    ...                         "metric": "bits_per_byte", "value": 1.1, "stderr": 0.01}])
    >>> densities = densing.run_densities(losses, pd.DataFrame([{"model": "mine", "params_non_embedding": 3e8}]))
    >>> densities.table[["benchmark", "quantity", "status"]].values.tolist()
    [['piqa', 'loss', 'ok']]
    >>> densities.results[0].draws.shape
    (1000, 1)
    """

    table: pd.DataFrame
    results: tuple[DensityResult, ...]
    notes: tuple[Note, ...] = ()

    def sentences(self) -> list[str]:
        """Return a sentence per model, made to be copied: density, interval, reference, what not to compare it with."""
        level = next((float(result.options["level"]) for result in self.results), 0.95)
        return density_sentences(self.table, level)

    def card(self) -> Card:
        """Return what is shown: each model's density on each reference."""
        title = f"Densities of {formatting.plural(self.table['model'].nunique(), 'measured model')}"
        return Card(title, {}, density_listing(self.table, title), self.notes)


def run_densities(
    measurements: pd.DataFrame | Path | str,
    models: pd.DataFrame | None = None,
    reference: str = "olmo-ladder",
    *,
    benchmark: str | None = None,
    tokens: float | None = None,
    denominator: str | None = None,
    guard: float = RUN_GUARD,
    filters: Mapping[str, str] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> RunDensities:
    """Read measured losses and scores on a reference, one benchmark after the other.

    Parameters
    ----------
    measurements : pandas.DataFrame or path
        ``model, task, benchmark, metric, value, stderr, n_items`` as
        :meth:`densing.scores.evals.RunStore.measurements` gives them; ``n_shot, form, cot`` where known. A path is read
        by :func:`densing.read_results`, its models with it.
    models : pandas.DataFrame, optional
        ``model`` and the size columns ``params_total``, ``params_non_embedding``, as counts;
        :func:`densing.scores.catalog.with_sizes` fills them.
    reference : str
        A family, or the path of a JSON fit.
    benchmark : str, optional
        Only this benchmark.
    tokens : float, optional
        D0 of a two-step reference.
    denominator : str, optional
        Which parameters divide; by default those that the reference counts (non-embedding for ladders).
    filters : mapping, optional
        By benchmark which reading of generated answers counts, where a harness stored several
        (``{"gsm8k": "strict-match"}``). None is chosen unasked: without one such a benchmark is left out.
    guard, level, seed
        As in :func:`densing.scores.density.estimate_density`.

    Returns
    -------
    RunDensities
        For a ladder the combined rows invert one curve on the mean over all tasks that a model was measured on, as the
        paper's AVERAGE; a one-step family has a combined row where all members of its mean were measured.

    Raises
    ------
    InputError
        When nothing that was measured can be read on the reference.

    Notes
    -----
    Source: arXiv 2412.04315, Eqs. 1 and 4. The measured interval joins the reference's draws with the sampling error of
    the items; the columns ``_recipe`` hold the scatter of models around the reference too.

    See Also
    --------
    read_results, table_densities

    Examples
    --------
    >>> import densing
    >>> import pandas as pd
    >>> shares = [{"model": "mine", "task": f"olmo_ladder_{name}", "benchmark": name, "metric": "acc_norm",
    ...            "value": value, "stderr": 0.01, "n_items": 1800} for name, value in (("piqa", 0.7), ("csqa", 0.55))]
    >>> sizes = pd.DataFrame([{"model": "mine", "params_non_embedding": 3e8}])
    >>> densities = densing.run_densities(pd.DataFrame(shares), sizes, "olmo-ladder")
    >>> densities.table["benchmark"].tolist()
    ['piqa', 'csqa', 'combined']
    """
    told: tuple[Note, ...] = ()
    if isinstance(measurements, str | Path):
        results = read_results(Path(measurements))
        measurements, models = results.measurements, results.models if models is None else models
        models, of_sizes = with_sizes(models)
        told = (*results.notes, *of_sizes)
    if models is None:
        raise InputError(
            "run_densities: no models; give their sizes as a table (model, params_total), or the path of results, "
            "which hold them"
        )
    rows, notes = readable_rows(measurements, reference, benchmark, tokens, filters)
    divisor = denominator or default_denominator(reference)
    estimate = partial(estimate_density, denominator=divisor, guard=guard, level=level, seed=seed)
    sizes = models.drop_duplicates("model")
    parts = []
    for (name, quantity), group in rows.groupby(["benchmark", "quantity"], sort=False):
        ref = load_reference(reference, str(name), tokens=tokens)
        if (result := _read(group, sizes, ref, str(quantity), estimate)) is not None:
            parts.append(result)
    # One benchmark has nothing to be combined with.
    for quantity in METRICS if benchmark is None else ():
        chosen = rows[rows["quantity"].eq(quantity)]
        for benchmarks, group in _same_tasks(chosen).items():
            mean = mean_reference(reference, benchmarks, tokens)
            if mean is None:
                continue
            inside = chosen["model"].isin(group) & chosen["benchmark"].isin(mean.benchmarks)
            if (result := _read(_means(chosen[inside]), sizes, mean, quantity, estimate)) is not None:
                parts.append(dataclasses.replace(result, table=result.table.assign(benchmark=COMBINED)))
    if not parts:
        names = ", ".join(sorted(set(rows["model"].astype(str)))[:5])
        # --params states sizes as names do, embeddings included.
        remedy = "give its size: --params NAME=COUNT"
        if divisor != "total":
            remedy = "divide by all parameters: --denominator total, with --params NAME=COUNT where that is unknown"
        raise InputError(f"no measured model has a {divisor} parameter count ({names}); {remedy}")
    table = pd.concat([part.table for part in parts], ignore_index=True)
    for column in ("size_from", "known_as"):
        if column in sizes:
            table[column] = table["model"].map(sizes.set_index("model")[column])
    single = table[table["benchmark"].ne(COMBINED)]
    every = (
        *told,
        *notes,
        *_not_used(measurements, set(table["source"].astype(str)), reference, benchmark),
        *protocol_notes(table if single.empty else single, parts[0].reference),
        *_reference_notes(table, models, parts[0].reference),
        *(note for part in parts for note in part.notes),
    )
    unique = {note.message: note for note in every}
    return RunDensities(by_step(table), tuple(parts), tuple(unique.values()))


def default_denominator(reference: str) -> str:
    """Return which parameters divide on a reference: those that it counts.

    Ladders count without embeddings, and a fit of one's own is taken to count as they do.

    Examples
    --------
    >>> default_denominator("olmo-ladder"), default_denominator("qwen1.5")
    ('non_embedding', 'total')
    """
    without_embeddings = reference.endswith(".json") or get_family(reference).kind == "two-step"
    return "non_embedding" if without_embeddings else "total"


def read_on(
    reference: Reference, measurements: pd.DataFrame, models: pd.DataFrame, *, denominator: str, guard: float, seed: int
) -> DensityResult | None:
    """Return the densities of measured scores on a reference for a mean; None where no model has all of its benchmarks.

    Parameters
    ----------
    reference : Reference
        A reference on the mean of several benchmarks.
    measurements, models, denominator, guard, seed
        As for :func:`run_densities`.
    """
    scores = measurements[measurements["benchmark"].isin(reference.benchmarks)]
    scores = _first_metric(scores, "score", dict.fromkeys(reference.benchmarks, reference))
    complete = [
        name
        for names, group in _same_tasks(scores).items()
        if set(names) == set(reference.benchmarks)
        for name in group
    ]
    if not complete:
        return None
    estimate = partial(estimate_density, denominator=denominator, guard=guard, seed=seed)
    means = _means(scores[scores["model"].isin(complete)])
    return _read(means, models.drop_duplicates("model"), reference, "score", estimate)


def readable_rows(
    measurements: pd.DataFrame,
    reference: str,
    only: str | None,
    tokens: float | None,
    filters: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, list[Note]]:
    """Return one loss and one score per model and benchmark, named after the reference's benchmarks.

    Parameters
    ----------
    measurements, reference, tokens, filters
        As for :func:`run_densities`.
    only : str or None
        One benchmark.

    Raises
    ------
    InputError
        When the reference has none of them, or a filter was not used.
    """
    known = reference_benchmarks(reference, only)
    names = measurements["benchmark"].fillna("").astype(str)
    values = measurements.assign(benchmark=names.where(names.ne(""), measurements["task"].astype(str)))
    finite = np.isfinite(pd.to_numeric(values["value"], errors="coerce"))
    rows = values[values["benchmark"].isin(known) & finite]
    outside = rows["metric"].isin(METRICS["score"]) & ~rows["value"].astype(float).between(0.0, 1.0)
    notes = [
        Note(
            "share-outside",
            "error",
            f"{row['model']}, {row['task']}, {row['metric']}: {row['value']:g} is not a share "
            "between 0 and 1; left out",
            {name: row[name] for name in ("model", "task", "metric", "value")},
        )
        for row in rows[outside].to_dict("records")
    ]
    rows, asked = _filtered(rows[~outside], filters or {})
    notes += asked
    references = {name: load_reference(reference, str(name), tokens=tokens) for name in rows["benchmark"].unique()}
    chosen = pd.concat([_first_metric(rows, quantity, references) for quantity in METRICS], ignore_index=True)
    if chosen.empty and asked:
        raise InputError(asked[0].message)
    if chosen.empty:
        tasks = ", ".join(sorted(measurements["task"].astype(str).unique())[:8]) or "nothing"
        reason = f"; {notes[0].message}" if notes else ""
        raise InputError(
            f"reference {reference}: none of its benchmarks ({', '.join(known)}) was measured; the run has {tasks}"
            f"{reason}. Evaluate the suite (`--tasks olmo_ladder`), or choose another --reference"
        )
    return chosen, [*notes, *_measurement_notes(chosen, rows, reference)]


def _not_used(measurements: pd.DataFrame, used: set[str], reference: str, only: str | None) -> list[Note]:
    """Name the tasks that were measured and have no part in a density, and why."""
    known = reference_benchmarks(reference, only)
    tasks = measurements["task"].astype(str)
    names = measurements["benchmark"].fillna("").astype(str)
    readable = names.where(names.ne(""), tasks).isin(known)
    foreign = sorted(set(tasks[~readable]) - used - (in_means(measurements) if "mmlu" in known else set()))
    unread = sorted(set(tasks[readable]) - used)
    notes = []
    if foreign:
        message = (
            f"measured and not used: {formatting.listed(foreign, 20)}; reference {reference} reads "
            f"{formatting.listed(known, 20)}"
        )
        notes.append(Note("tasks-not-used", "warning", message, {"tasks": foreign}))
    if unread:
        message = (
            f"measured and not used: {formatting.listed(unread, 20)}; another task of the same benchmark counts, or "
            f"reference {reference} reads none of their metrics"
        )
        notes.append(Note("tasks-not-read", "info", message, {"tasks": unread}))
    return notes


def reference_benchmarks(reference: str, only: str | None = None) -> list[str]:
    """Return the single benchmarks that a reference, or a user's fit, covers.

    Raises
    ------
    InputError
        When ``only`` is asked for and there is none.
    """
    if reference.endswith(".json"):
        benchmarks = list(load_reference(reference, only or "").benchmarks)
        if benchmarks == [""]:
            raise InputError(f"{reference}: states no benchmark that its scores belong to; name it with --benchmark")
        return benchmarks
    known = [name for name in available_benchmarks(reference) if name != "mean"]
    if only is not None and only not in known:
        raise UnknownNameError(f"benchmark of reference {reference}:", only, known)
    return known if only is None else [only]


def _first_metric(rows: pd.DataFrame, quantity: str, references: Mapping[str, Reference]) -> pd.DataFrame:
    """Return one row per model and benchmark, with how it was measured beside the reference.

    The suite's own task comes before a stock task of the same benchmark, then what differs least from the reference's
    protocol, then the order of :data:`METRICS`.
    """
    metrics = METRICS[quantity]
    candidates = rows[rows["metric"].isin(metrics)]
    protocols = [
        _protocol_comparison(row, quantity, references[str(row["benchmark"])]) for row in candidates.to_dict("records")
    ]
    ordered = candidates.assign(
        quantity=quantity,
        protocol=[protocol for protocol, _, _ in protocols],
        protocol_detail=[text for _, text, _ in protocols],
        _differs=[count for _, _, count in protocols],
        _rank=candidates["metric"].map({metric: rank for rank, metric in enumerate(metrics)}),
        _stock=candidates["task"].astype(str).eq(candidates["benchmark"]),
    )
    # And of two results of one task, as two targets of --until_ci leave them, the one with more items.
    order = ["_stock", "_differs", "_rank", "n_items"]
    best = ordered.sort_values(order, ascending=[True, True, True, False], kind="stable")
    return best.drop_duplicates(["model", "benchmark"]).drop(columns=["_differs", "_rank", "_stock"]).sort_index()


def _protocol_comparison(row: Mapping[str, Any], quantity: str, reference: Reference) -> tuple[str, str, int]:
    """Return the verdict on a row's protocol, what differs or is unknown in words, and how many parts differ."""
    benchmark = str(row["benchmark"])
    suite = next((name for name, prefix in SUITES.items() if str(row["task"]).startswith(prefix)), "")
    document = known_protocol(suite, f"loss:{benchmark}" if quantity == "loss" else benchmark)
    texts = {name: str(row[name]) for name in ("form", "cot") if isinstance(row.get(name), str)}
    own = stated(str(row["metric"]), shots=row.get("n_shot"), **texts).over(document)
    of_losses = quantity == "loss" and isinstance(reference.fit.law, TwoStep)
    expected = (loss_reference(reference) if of_losses else reference).protocol(benchmark)
    parts = compare(own, expected)
    return verdict(parts), explain(own, expected), list(parts.values()).count(DIFFERS)


def _read(
    group: pd.DataFrame, sizes: pd.DataFrame, reference: Reference, quantity: str, estimate: partial[DensityResult]
) -> DensityResult | None:
    if quantity == "loss":
        if not isinstance(reference.fit.law, TwoStep):
            return None
        reference = loss_reference(reference)
    reference = reference.without_protocol_notes()
    scores = pd.DataFrame(
        {
            "model": group["model"].to_numpy(),
            "score": group["value"].to_numpy(dtype=float),
            "score_se": group["stderr"].astype(float).fillna(0.0).to_numpy(),
            "protocol": group["protocol"].to_numpy(),
            "protocol_detail": group["protocol_detail"].to_numpy(),
            "source": group["task"].to_numpy(),
        }
    ).merge(sizes, on="model", how="left")
    try:
        result = estimate(scores, reference)
    except InputError:
        return None
    items = dict(zip(group["model"], group["n_items"], strict=True))
    table = result.table.assign(
        quantity=quantity, n_items=result.table["model"].map(items), benchmarks="+".join(reference.benchmarks)
    )
    return dataclasses.replace(result, table=table)


def _same_tasks(rows: pd.DataFrame) -> dict[tuple[str, ...], list[str]]:
    """Group models by the benchmarks they were measured on."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for model, benchmarks in rows.groupby("model", sort=False)["benchmark"]:
        groups.setdefault(tuple(sorted(benchmarks)), []).append(str(model))
    return groups


def mean_reference(reference: str, names: tuple[str, ...], tokens: float | None) -> Reference | None:
    """Return the reference on the mean of several benchmarks; None where there is none on these.

    Examples
    --------
    >>> mean_reference("olmo-ladder", ("piqa",), None) is None
    True
    """
    if reference.endswith(".json") or len(names) < 2:
        return None
    if get_family(reference).kind == "two-step":
        return ladder_reference(reference, names, tokens=tokens)
    try:
        mean = load_reference(reference, "mean")
    except UnavailableError:
        return None
    return mean if set(mean.benchmarks) <= set(names) else None


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over tasks per model; items of different tasks are independent."""
    groups = rows.groupby("model", sort=False)
    count = groups["value"].size()
    variance = groups["stderr"].agg(lambda column: float(np.nansum(column.astype(float) ** 2)))
    return pd.DataFrame(
        {
            "model": count.index,
            "task": groups["task"].first().to_numpy(),
            "value": groups["value"].mean().to_numpy(),
            "stderr": (np.sqrt(variance) / count).to_numpy(),
            "n_items": groups["n_items"].sum().to_numpy(),
            "protocol": [worst(part["protocol"]) for _, part in groups],
            "protocol_detail": [
                "; ".join(
                    f"{benchmark}: {text}"
                    for benchmark, text in zip(part["benchmark"], part["protocol_detail"], strict=True)
                    if text
                )
                for _, part in groups
            ],
        }
    )


def _measurement_notes(chosen: pd.DataFrame, rows: pd.DataFrame, reference: str) -> list[Note]:
    """Say what to keep in mind of the values chosen from all that were measured: prompts, errors, filters."""
    notes = []
    if prefix := SUITES.get(reference):
        tasks = chosen["task"].astype(str)
        stock = sorted(set(tasks[~tasks.str.startswith(prefix)]))
        if stock:
            message = (
                f"{', '.join(stock)} are not the tasks that {reference} was measured on ({prefix}...): other "
                "prompts and shots shift losses, scores and densities"
            )
            notes.append(Note("other-prompts", "warning", message, {"tasks": stock}))
    unknown = sorted(set(chosen.loc[chosen["stderr"].isna(), "task"].astype(str)))
    if unknown:
        message = f"{', '.join(unknown)} have no standard error; their intervals hold the reference's uncertainty only"
        notes.append(Note("no-sampling-error", "warning", message, {"tasks": unknown}))
    return notes


def _filtered(rows: pd.DataFrame, filters: Mapping[str, str]) -> tuple[pd.DataFrame, list[Note]]:
    """Keep one reading of each generated answer: the one that was asked for, or the only one there is.

    lm-eval stores gsm8k by strict and by flexible extraction; which of them a reference was measured with, no document
    says. Where they differ and none was chosen, the rows are left out and a note asks.
    """
    if "filter" not in rows:
        return rows, []
    benchmarks, names = rows["benchmark"].astype(str), rows["filter"].fillna("").astype(str)
    for benchmark, name in filters.items():
        there = sorted(set(names[benchmarks.eq(benchmark)]) - {""})
        if not there:
            raise InputError(f"--filter {benchmark}={name}: these results hold no reading of {benchmark} by a filter")
        if name not in there:
            raise UnknownNameError(f"filter of {benchmark}:", name, there)
    notes, out = [], pd.Series(False, index=rows.index)
    for (model, task, metric), same in rows.groupby(["model", "task", "metric"], sort=False):
        readings = same.assign(filter=names[same.index]).drop_duplicates("filter").set_index("filter")["value"]
        benchmark = str(same["benchmark"].iloc[0])
        if (chosen := filters.get(benchmark)) in readings:
            out[same.index] = names[same.index] != chosen
            continue
        if readings.astype(float).nunique() < 2:
            continue
        out[same.index] = True
        values = ", ".join(f"{value:.4g} with {name}" for name, value in readings.items())
        message = (
            f"{model}, {task}: {metric} is {values}; choose which counts (--filter {benchmark}={readings.index[0]}); "
            "left out"
        )
        about = {"model": model, "task": task, "metric": metric, "filters": list(readings.index)}
        notes.append(Note("filter-not-chosen", "error", message, about))
    return rows[~out], notes


def _reference_notes(table: pd.DataFrame, models: pd.DataFrame, reference: Reference) -> list[Note]:
    """Say what sets a model apart from the reference: quantisation, other tokens than D0, a size far off."""
    notes = []
    for row in models.to_dict("records"):
        name = str(row["model"])
        if caveats := str(row.get("caveats") or ""):
            notes.append(Note("measured-model", "info", f"model {name}: {caveats}", {"model": name}))
        tokens, at = row.get("tokens"), reference.given.get("tokens")
        if tokens and at and np.isfinite(float(tokens)) and not 0.99 < float(tokens) / at < 1.01:
            message = (
                f"model {name} was trained on {float(tokens):.3g} tokens; the reference is read at D0 = {at:.3g}, "
                "so the gain from more tokens counts as density (arXiv 2412.04315, Eq. 4); --tokens sets another D0"
            )
            notes.append(Note("training-tokens", "info", message, {"model": name}))
    low, high = reference.fit.domain["params"]
    outside = table["n_eff"].lt(low / DEFAULT_GUARD) | table["n_eff"].gt(high * DEFAULT_GUARD)
    beyond = sorted(set(table.loc[outside & table["status"].eq("ok"), "model"]))
    if beyond:
        message = (
            f"some effective sizes of {', '.join(beyond)} lie more than {DEFAULT_GUARD:g} times outside the sizes that "
            f"{reference.name} was fitted on ({low:.3g} to {high:.3g}); --guard {DEFAULT_GUARD:g} gives bounds"
        )
        notes.append(Note("far-from-ruler", "warning", message, {"models": beyond}))
    return notes
