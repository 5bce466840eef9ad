"""From catalog rows, or a user's own table, to scores that may be read on a ruler."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import InputError, Note
from densing.scores.catalog import (
    DIFFERS,
    OTHER_PROTOCOL,
    SAME,
    UNKNOWN,
    WRONG,
    Catalog,
    Selection,
    explain,
    has_flag,
    known_protocol,
    load_catalog,
    merge,
    read_extra,
    stated,
    strata,
    verdict,
    worst,
)
from densing.scores.catalog import compare as compare_protocols
from densing.scores.density.invert import DEFAULT_GUARD, estimate_density
from densing.scores.density.result import DensityResult
from densing.scores.references import Reference, target_scores

USER = "user"
# A thousand draws of each stay in memory.
MAX_MODELS = 10_000
_SIZES = ("total", "active", "non_embedding")
_CARRIED = ("family", "organisation", "released", "kind", "architecture")


def catalog_densities(
    catalog: Catalog,
    reference: Reference,
    *,
    selection: Selection | None = None,
    pool: bool = False,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Return the density of every catalog model that was scored on the reference's series.

    Parameters
    ----------
    catalog : Catalog
        Embedded, or with a user's rows merged. Rows of evaluator ``user`` count as measured the way the reference was.
    reference : Reference
        The ruler.
    selection : Selection, optional
        What counts as headline; models outside it stay in the table with the reason in ``stratum``.
    pool : bool
        Also read scores of other evaluators with the reference's number of shots, for models that the reference's
        series lacks; one benchmark only. Evaluators differ by more than their standard errors say.
    denominator, guard, level, seed
        As in :func:`densing.scores.density.estimate_density`.

    Returns
    -------
    DensityResult
        Rows sorted by release date and name.

    Raises
    ------
    InputError
        When no model of the catalog can be read on the reference.
    """
    adopted, notes = _adopt(catalog, reference, every=False)
    if pool:
        adopted, more = _pool(adopted, reference)
        notes += more
    result = _densities(adopted, catalog, reference, selection, notes, (denominator, guard, level, seed))
    return dataclasses.replace(result, notes=(*result.notes, *_apart(catalog, result.table)))


def table_densities(
    table: Path | str,
    reference: Reference,
    *,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Return the densities of the models in a user's own CSV of scores.

    Parameters
    ----------
    table : path
        Columns ``model, params, released, benchmark, score`` (and any other catalog column).
    reference : Reference
        The ruler; for a mean every one of its benchmarks must be in the table.
    denominator, guard, level, seed
        As in :func:`densing.scores.density.estimate_density`.

    Raises
    ------
    InputError
        When the table lacks the reference's benchmarks or cannot be read.
    """
    parts = read_extra(table)
    if "models" not in parts:
        raise InputError(
            f"{table}: states no sizes; columns model, params, released, benchmark, score are needed "
            "(scores of models that the catalog knows: --catalog)"
        )
    catalog = merge(load_catalog(embedded=False), parts)
    missing = sorted(set(reference.benchmarks) - set(catalog.scores["benchmark"]))
    if missing:
        have = ", ".join(sorted(catalog.scores["benchmark"].unique())) or "none"
        raise InputError(
            f"{table}: no score on {', '.join(missing)}, which reference {reference.name} on "
            f"{reference.benchmark!r} needs; the table has {have}. Choose --benchmark among those, or add the scores"
        )
    adopted, notes = _adopt(catalog, reference, every=True)
    notes += _namesakes(catalog.models)
    return _densities(adopted, catalog, reference, None, notes, (denominator, guard, level, seed))


def _densities(
    adopted: Catalog,
    catalog: Catalog,
    reference: Reference,
    selection: Selection | None,
    notes: list[Note],
    options: tuple[str, float, float, int],
) -> DensityResult:
    if len(catalog.models) > MAX_MODELS:
        raise InputError(
            f"{len(catalog.models)} models are more than the {MAX_MODELS} that fit in memory; split the table"
        )
    if not len(adopted.scores):
        raise InputError(f"no score can be read on reference {reference.name}, benchmark {reference.benchmark}")
    for benchmark in reference.benchmarks:
        if not (adopted.scores["benchmark"].eq(benchmark) & adopted.scores["evaluator"].eq(reference.evaluator)).any():
            raise InputError(
                f"no {benchmark} score is measured as reference {reference.name} was ({reference.evaluator}); "
                "give scores measured that way: --scores TABLE alone, or --catalog TABLE beside ours"
            )
    scores = target_scores(adopted, reference.evaluator, reference.benchmarks)
    scores = scores.merge(_protocols(adopted, scores, reference), on="model", how="left")
    mine = set(catalog.scores.loc[catalog.scores["source"].str.startswith("user:"), "model"])
    measured = catalog.scores[catalog.scores["evaluator"].eq(reference.evaluator)]
    theirs = mine - set(measured.loc[~measured["source"].str.startswith("user:"), "model"])
    scores = scores.assign(evaluator=scores["evaluator"].where(~scores["model"].isin(theirs), USER))
    rows = scores.merge(_model_rows(catalog, selection), on="model", how="inner")
    if rows.empty:
        raise InputError(
            f"no model has every score that reference {reference.name} on {reference.benchmark!r} needs "
            f"({', '.join(reference.benchmarks)})"
        )
    rows = rows.sort_values(["released", "model"], ignore_index=True)
    denominator, guard, level, seed = options
    result = estimate_density(rows, reference.beside(), denominator=denominator, guard=guard, level=level, seed=seed)
    unread = _unread(catalog, reference, set(rows["model"]))
    told = protocol_notes(result.table, reference)
    return dataclasses.replace(result, notes=(*result.notes, *notes, *told, *unread, *catalog.notes))


def _protocols(adopted: Catalog, chosen: pd.DataFrame, reference: Reference) -> pd.DataFrame:
    """Return per model how its scores were measured beside the ruler: ``model, protocol, protocol_detail``."""
    rows = adopted.scores[adopted.scores["benchmark"].isin(reference.benchmarks)]
    if len(reference.benchmarks) == 1:
        rows = rows.merge(chosen[["model", "evaluator"]], on=["model", "evaluator"])
    else:
        rows = rows[rows["evaluator"].eq(reference.evaluator) & rows["model"].isin(chosen["model"])]
    by = rows["evaluator"] if "measured_by" not in rows else rows["measured_by"].fillna(rows["evaluator"])
    cells = [by.astype(str), *(rows[name] for name in ("benchmark", "metric", "shots", "form"))]
    keys: list[tuple[Any, ...]] = [
        tuple(None if pd.isna(cell) else cell for cell in key) for key in zip(*cells, strict=True)
    ]
    read = {key: _beside(reference, *key) for key in dict.fromkeys(keys)}
    told = [read[key] for key in keys]
    several = len(reference.benchmarks) > 1
    table = pd.DataFrame(
        {
            "model": rows["model"].to_numpy(),
            "protocol": [word for word, _ in told],
            "protocol_detail": [
                f"{key[1]}: {text}" if several and text else text for key, (_, text) in zip(keys, told, strict=True)
            ],
        }
    )
    return joined_protocols(table)


def _beside(
    reference: Reference, evaluator: str, benchmark: str, metric: str | None, shots: float | None, form: str | None
) -> tuple[str, str]:
    """Return the verdict on a score's protocol, and in words what differs or is unknown."""
    document = known_protocol(evaluator, benchmark)
    own = stated(metric or "", shots=shots, form=form or document.form, cot=document.cot)
    ruler = reference.protocol(benchmark)
    parts = compare_protocols(own, ruler)
    made_by_it = evaluator == reference.evaluator != USER and not _is_ladder(reference)
    if made_by_it and DIFFERS not in parts.values():
        # What neither of two values of one evaluator's series states is the same for both.
        return SAME, ""
    return verdict(parts), explain(own, ruler)


def _is_ladder(reference: Reference) -> bool:
    return "tokens" in reference.given


def joined_protocols(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model: the worst verdict on its protocols, and every detail once.

    Parameters
    ----------
    table : pandas.DataFrame
        ``model, protocol, protocol_detail``.
    """
    groups = table.groupby("model", sort=False)
    return pd.DataFrame(
        {
            "model": list(groups.groups),
            "protocol": [worst(part["protocol"].fillna(UNKNOWN)) for _, part in groups],
            "protocol_detail": [
                "; ".join(dict.fromkeys(text for text in part["protocol_detail"].fillna("") if text))
                for _, part in groups
            ],
        }
    )


def protocol_notes(table: pd.DataFrame, reference: Reference) -> list[Note]:
    """Return what a table of densities says of protocols: an error where they differ, a warning where unknown.

    Parameters
    ----------
    table : pandas.DataFrame
        ``model, benchmark, protocol, protocol_detail``.
    reference : Reference
        The ruler that they were read on.
    """
    remedies = {
        DIFFERS: ("error", "differs from the ruler's: densities must not be compared; measure as the ruler was"),
        UNKNOWN: ("warning", "is not known whole, so it may differ from the ruler's; state shots, metric and form"),
    }
    notes = []
    for word, (severity, consequence) in remedies.items():
        rows = table[table["protocol"].eq(word)].drop_duplicates(["model", "benchmark", "protocol_detail"])
        if rows.empty:
            continue
        named = [
            f"{row['model']}, {row['benchmark']} ({row['protocol_detail']})" for row in rows.head(2).to_dict("records")
        ]
        more = f" and {len(rows) - len(named)} more" if len(rows) > len(named) else ""
        message = f"reference {reference.name}: the protocol of {', '.join(named)}{more} {consequence}"
        models = sorted(set(rows["model"].astype(str)))
        notes.append(Note(f"protocol-{word}", severity, message, {"models": models}))  # type: ignore[arg-type]
    return notes


def _unread(catalog: Catalog, reference: Reference, read: set[str]) -> list[Note]:
    """Name the user's models that have a score the ruler wants, and yet no density."""
    scores = catalog.scores
    mine = scores["source"].str.startswith("user:") & scores["benchmark"].isin(reference.benchmarks)
    left = sorted(set(scores.loc[mine, "model"]) - read)
    if not left:
        return []
    message = (
        f"{len(left)} of your models are left out: they lack a score that the ruler needs "
        f"({', '.join(reference.benchmarks)}), or another evaluator than 'user' measured it"
    )
    return [Note("not-read", "warning", message, {"models": left})]


def _apart(catalog: Catalog, table: pd.DataFrame) -> list[Note]:
    """Name the user's models that the headline does not use, with the reason."""
    mine = set(catalog.scores.loc[catalog.scores["source"].str.startswith("user:"), "model"])
    apart = table[table["model"].isin(mine) & table["stratum"].ne("headline")]
    if apart.empty:
        return []
    reasons = dict(zip(apart["model"], apart["stratum"], strict=True))
    named = ", ".join(f"{model} ({reason})" for model, reason in list(reasons.items())[:5])
    more = f" and {len(reasons) - 5} more" if len(reasons) > 5 else ""
    message = f"{len(reasons)} of your models stay out of the headline: {named}{more}"
    return [Note("user-apart", "warning", message, {"models": reasons})]


def _model_rows(catalog: Catalog, selection: Selection | None) -> pd.DataFrame:
    models = catalog.models
    sizes = {f"params_{name}": models[f"params_{name}_b"].astype(float) * 1e9 for name in _SIZES}
    rows = models[["model", *_CARRIED]].assign(
        **sizes, verified=models["released_basis"].notna() & models["released_basis"].ne("unverified")
    )
    return rows.merge(strata(catalog, selection)[["model", "stratum"]], on="model")


def _adopt(catalog: Catalog, reference: Reference, every: bool) -> tuple[Catalog, list[Note]]:
    """Let a user's rows stand in the reference's series, where its own evaluator has no value.

    With ``every``, all rows are the user's, whatever evaluator they name.
    """
    scores = catalog.scores
    here = scores["benchmark"].isin(reference.benchmarks)
    taken = scores["evaluator"].ne(reference.evaluator) if every else scores["evaluator"].eq(USER)
    if not (here & taken).any():
        return catalog, []
    rank = scores["evaluator"].map({reference.evaluator: 0, USER: 1}).fillna(2)
    ordered = scores.assign(_rank=rank)[here & (taken | rank.eq(0))]
    kept = ordered.sort_values(["_rank", "evaluator"]).drop_duplicates(["model", "benchmark"])
    adopted = kept["_rank"].gt(0)
    known = scores[here & rank.eq(0)]
    series = dict(zip(known["benchmark"], known["series"], strict=True))
    joined_series = [series.get(name, f"{name}:{reference.evaluator}") for name in kept["benchmark"]]
    relabelled = kept.assign(
        evaluator=reference.evaluator, series=joined_series, measured_by=kept["evaluator"].where(adopted)
    ).drop(columns="_rank")
    rest = scores.drop(index=ordered.index)
    notes = []
    if every and len(ordered) > len(kept):
        notes.append(_second_evaluators(kept, ordered.drop(index=kept.index)))
    joined = pd.concat([rest, relabelled], ignore_index=True)
    return dataclasses.replace(catalog, scores=joined), notes


def _second_evaluators(kept: pd.DataFrame, spare: pd.DataFrame) -> Note:
    """Say by how much scores differ that several evaluators gave one model, the widest gap first."""
    cell = ["model", "benchmark"]
    pairs = spare.merge(kept[[*cell, "evaluator", "score"]], on=cell, suffixes=("", "_used"))
    pairs = pairs.assign(gap=pairs["score"] - pairs["score_used"])
    pairs = pairs.sort_values("gap", key=lambda gap: -gap.abs(), ignore_index=True)
    named = "; ".join(
        f"{row.model} on {row.benchmark}: {row.score_used:g} ({row.evaluator_used}) is used, {row.score:g} "
        f"({row.evaluator}) is not, {row.gap:+.3g}"
        for row in pairs.head(5).itertuples()
    )
    more = f"; and {len(pairs) - 5} more" if len(pairs) > 5 else ""
    message = f"several evaluators scored one model: {named}{more}. Keep the rows of one evaluator in the table"
    details = pairs[[*cell, "evaluator_used", "score_used", "evaluator", "score", "gap"]].to_dict("records")
    return Note("second-evaluator", "warning", message, {"rows": len(pairs), "gaps": details})


def _namesakes(models: pd.DataFrame) -> list[Note]:
    """Name the models of a table of its own that the embedded catalog knows with another size or date."""
    known = load_catalog().models.set_index("model")
    differing = []
    for row in models[models["model"].isin(known.index)].itertuples():
        ours = known.loc[row.model]
        said, catalogd = (float(size) for size in (row.params_total_b, ours["params_total_b"]))
        facts = []
        if abs(said - catalogd) > 0.01 * catalogd:
            facts.append(f"{said:g} B parameters instead of {catalogd:g} B")
        if pd.notna(row.released) and pd.notna(ours["released"]) and row.released != ours["released"]:
            facts.append(f"released {row.released.date()} instead of {ours['released'].date()}")
        if facts:
            differing.append(f"{row.model} ({', '.join(facts)})")
    if not differing:
        return []
    more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
    message = (
        f"your table replaces what the catalog says of {', '.join(differing[:5])}{more}; rename the row if it is "
        "another model"
    )
    return [Note("replaces-catalog", "warning", message, {"models": differing})]


def _pool(catalog: Catalog, reference: Reference) -> tuple[Catalog, list[Note]]:
    """Let other evaluators' scores of the same shots into the reference's series; the series' own values come first."""
    if len(reference.benchmarks) != 1:
        raise InputError(f"pooling evaluators works on one benchmark, not on {reference.benchmark!r}; name one")
    scores = catalog.scores
    here = scores["benchmark"].eq(reference.benchmarks[0])
    measured = scores[here & scores["evaluator"].eq(reference.evaluator)]
    if measured.empty:
        raise InputError(
            f"pooling: the catalog has no {reference.benchmark} score by {reference.evaluator!r} to pool with"
        )
    own = measured.iloc[0]
    usable = ~(has_flag(scores["flags"], WRONG) | has_flag(scores["flags"], OTHER_PROTOCOL))
    taken = here & usable & scores["shots"].eq(own["shots"]) & scores["series"].ne(own["series"])
    message = f"{int(taken.sum())} {reference.benchmarks[0]} scores of other evaluators are read on the same ruler"
    pooled = scores.assign(series=scores["series"].where(~taken, own["series"]))
    notes = [Note("pooled-evaluators", "warning", message, {"rows": int(taken.sum())})]
    return dataclasses.replace(catalog, scores=pooled), notes
