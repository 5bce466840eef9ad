"""Densities of the catalog's models or of a user's table, on one reference or skill by skill."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import InputError, Note, TableLike, formatting, once
from densing.scores.catalog import (
    DIFFERS,
    HEADLINE,
    IN_MEMORY,
    MAKERS_OWN,
    MAX_MODELS,
    OTHER_PROTOCOL,
    SAME,
    UNKNOWN,
    WRONG,
    Catalog,
    Part,
    Selection,
    explain,
    has_flag,
    known_protocol,
    load_catalog,
    merge,
    own_figures,
    read_extra,
    same_size,
    stated,
    strata,
    verdict,
    verified_dates,
    worst,
)
from densing.scores.catalog import compare as compare_protocols
from densing.scores.density.abilities import held_densities, joint_densities
from densing.scores.density.inversion import (
    DEFAULT_GUARD,
    DENOMINATORS,
    DensityResult,
    estimate_density,
    sizes_of,
)
from densing.scores.references import (
    JOINT,
    SKILLS,
    JointReference,
    Reference,
    available_benchmarks,
    joint_reference,
    load_reference,
    target_scores,
)

USER = "user"
# Models or rows that a note names before it counts the rest.
NAMED = 5
_CARRIED = ("family", "organisation", "released", "kind", "architecture")
SKILL_COLUMNS = ["model", "skill", "benchmarks", "n_eff", "density", "protocol", "density_lo", "density_hi", "status",
                 "bound", "interval", "density_lo_recipe", "density_hi_recipe", "protocol_detail"]  # fmt: skip


def catalog_densities(
    catalog: Catalog,
    reference: Reference | str,
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
    reference : Reference or str
        The reference, or the name of one, which is then read on the mean score.
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

    See Also
    --------
    table_densities, rank, estimate_trend

    Examples
    --------
    >>> import densing
    >>> reference = densing.load_reference("qwen1.5", "mmlu")
    >>> densities = densing.catalog_densities(densing.load_catalog(), reference)
    >>> sorted(densities.table["status"].unique())
    ['below_floor', 'extrapolated', 'ok']
    """
    options: dict[str, Any] = {"denominator": denominator, "guard": guard, "level": level, "seed": seed}
    if isinstance(reference, str):
        reference = load_reference(reference, catalog=catalog)
    if isinstance(reference, JointReference):
        if pool:
            raise InputError("the joint scale reads every evaluator already: leave pooling out")
        result = joint_densities(catalog, reference, selection=selection, **options)
    else:
        adopted, notes = _adopt(catalog, reference, every=False)
        if pool:
            adopted, more = _pool(adopted, reference)
            notes += more
        result = _densities(adopted, catalog, reference, selection, notes, **options)
    of_user = set(catalog.scores.loc[_from_user(catalog.scores), "model"])
    if of_user and isinstance(reference, JointReference):
        result = held_densities(result, of_user)
    return dataclasses.replace(result, notes=(*result.notes, *_apart(result, of_user)))


def _apart(result: DensityResult, of_user: Collection[str]) -> list[Note]:
    """Name the user's models that the headline does not use, with the reason."""
    outside = result.table[result.table["model"].isin(of_user) & result.table["stratum"].ne(HEADLINE)]
    if outside.empty:
        return []
    reasons = dict(zip(outside["model"], outside["stratum"], strict=True))
    examples = formatting.listed((f"{model} ({reason})" for model, reason in reasons.items()), NAMED)
    message = f"{len(reasons)} of your models stay out of the headline: {examples}"
    return [Note("user-apart", "warning", message, {"models": reasons})]


def own_measurements(parts: dict[str, Part]) -> tuple[dict[str, Part], dict[str, str]]:
    """Give models that the catalog knows names of their own, so that a user's measurement stands beside the catalog's.

    Parameters
    ----------
    parts : dict of str to Part
        Of :func:`densing.scores.catalog.read_extra`.

    Returns
    -------
    parts : dict of str to Part
        To be merged with the catalog.
    names : dict of str to str
        The user's name by the one that stands there now.

    See Also
    --------
    marked_known
    """
    known = _known(parts)
    own = {name: f"{name} ({USER})" for name in known}
    renamed = {
        table: dataclasses.replace(part, rows=part.rows.assign(model=part.rows["model"].map(lambda m: own.get(m, m))))
        if table in ("models", "scores")
        else part
        for table, part in parts.items()
    }
    return renamed, {own_name: name for name, own_name in own.items()}


def _known(parts: Mapping[str, Part]) -> Mapping[str, str]:
    """Return the catalog's name of every model of a user's table that it knows."""
    return parts["models"].known if "models" in parts else {}


def marked_known(
    result: DensityResult, parts: Mapping[str, Part], names: Mapping[str, str] | None = None
) -> DensityResult:
    """Return the densities of a user's table with the column ``known_as``: the catalog's model that was measured again.

    Table and notes call every model as the user does.

    Parameters
    ----------
    result : DensityResult
        Of the user's models.
    parts : mapping of str to Part
        The table that they stand in.
    names : mapping of str to str, optional
        The user's name by the result's, where they differ.

    See Also
    --------
    own_measurements
    """
    known, names = _known(parts), names or {}
    models = result.table["model"].map(lambda model: names.get(model, model))
    table = result.table.assign(model=models, known_as=models.map(known))
    return dataclasses.replace(result, table=table, notes=tuple(_called(note, names) for note in result.notes))


def _called(note: Note, names: Mapping[str, str]) -> Note:
    """Return a note with other names of models, in its sentence and in the lists behind it."""
    message = note.message
    for name, other in names.items():
        message = message.replace(name, other)
    lists = {key: value for key, value in note.details.items() if isinstance(value, list)}
    renamed = {key: [names.get(str(each), each) for each in value] for key, value in lists.items()}
    return dataclasses.replace(note, message=message, details={**note.details, **renamed})


def table_densities(
    table: TableLike,
    reference: Reference | str,
    *,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Return the densities of the models in a user's own table of scores.

    Parameters
    ----------
    table : path, DataFrame or records
        Columns ``model, params, released, benchmark, score`` (and any other catalog column).
    reference : Reference or str
        The reference, or the name of one, which is then read on the mean score; for a mean every one of its benchmarks
        must be in the table.
    denominator, guard, level, seed
        As in :func:`densing.scores.density.estimate_density`.

    Raises
    ------
    InputError
        When the table lacks the reference's benchmarks or cannot be read.

    See Also
    --------
    catalog_densities, rank, estimate_density

    Examples
    --------
    >>> import densing
    >>> rows = [{"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6}]
    >>> densities = densing.table_densities(rows, densing.load_reference("qwen1.5", "mmlu"))
    >>> densities.table["status"].item(), bool(densities.table["density"].item() > 1)
    ('ok', True)
    """
    if isinstance(reference, str):
        reference = load_reference(reference)
    if isinstance(reference, JointReference):
        from densing.scores.joint import joint_cells, place

        # A user's models stand on the scale beside all others: it is fitted anew with their scores.
        parts = read_extra(table)
        own = joint_reference(merge(load_catalog(), parts), reference.benchmark, seed=seed)
        # There a known model ties the user's evaluator to the others. Its row is the user's measurement alone: read off
        # that scale under a name of its own, beside the catalog's.
        renamed, names = own_measurements(parts)
        merged = merge(load_catalog(), renamed)
        cells = joint_cells(merged)
        apart = cells.table["model"].isin(names) & cells.table["benchmark"].isin(own.scale.benchmarks)
        if apart.any():
            cells = dataclasses.replace(cells, table=cells.table[apart].reset_index(drop=True), notes=())
            own = dataclasses.replace(own, scale=place(own.scale, cells, seed=seed))
        everyone = joint_densities(merged, own, denominator=denominator, guard=guard, level=level, seed=seed)
        mine = set(merged.scores.loc[_from_user(merged.scores), "model"])
        everyone = held_densities(everyone, mine)
        result = everyone.subset(everyone.table["model"].isin(mine).to_numpy(dtype=bool))
        if len(result):
            read = (note for part in parts.values() for note in part.notes)
            result = marked_known(result, parts, names)
            theirs = merged.models.assign(model=merged.models["model"].map(lambda model: names.get(model, model)))
            told = (*_namesakes(theirs, _known(parts)), *_apart(result, set(result.table["model"])))
            return dataclasses.replace(result, notes=tuple(once((*result.notes, *read, *told))))
        raise InputError(next(note.message for note in result.notes if note.code == "not-placed"))
    parts, source = read_extra(table), table if isinstance(table, (str, Path)) else IN_MEMORY
    if "models" not in parts:
        raise InputError(
            f"{source}: states no sizes; columns model, params, released, benchmark, score are needed "
            "(scores of models that the catalog knows: --catalog)"
        )
    catalog = merge(load_catalog(embedded=False), parts)
    missing = sorted(set(reference.benchmarks) - set(catalog.scores["benchmark"]))
    if missing:
        have = ", ".join(sorted(catalog.scores["benchmark"].unique())) or "none"
        # The benchmark may stand in one of them.
        unread = "".join(f" ({note.message})" for note in catalog.notes if note.code == "columns-not-read")
        raise InputError(
            f"{source}: no score on {', '.join(missing)}, which reference {reference.name} on {reference.benchmark!r} "
            f"needs; the table has {have}. Choose --benchmark among those, or add the scores{unread}"
        )
    adopted, notes = _adopt(catalog, reference, every=True)
    notes += _namesakes(catalog.models, parts["models"].known)
    result = _densities(
        adopted, catalog, reference, None, notes, denominator=denominator, guard=guard, level=level, seed=seed
    )
    result = marked_known(result, parts)
    return dataclasses.replace(result, notes=(*result.notes, *_apart(result, set(result.table["model"]))))


def skill_densities(
    catalog: Catalog,
    reference: str,
    *,
    selection: Selection | None = None,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    seed: int = 0,
) -> pd.DataFrame:
    """Return one density per model and skill, each from one curve on the mean score of that skill's benchmarks.

    Noise of scores and draws of curves are independent between skills.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    reference : str
        Name of a reference family. A user's own fit measures one thing and has no skills.
    selection : Selection, optional
        Which models; the headline's by default.
    denominator, guard, seed
        As in :func:`densing.scores.density.estimate_density`.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`SKILL_COLUMNS`. A skill that no evaluator measured on the family, or on which the family sits at
        chance, has no rows.

    See Also
    --------
    catalog_densities

    Examples
    --------
    >>> import densing
    >>> skills = densing.skill_densities(densing.load_catalog(), "qwen1.5")
    >>> {"model", "skill", "density"} <= set(skills.columns)
    True
    """
    return skill_table(
        skill_results(catalog, reference, selection=selection, denominator=denominator, guard=guard, seed=seed)
    )


def skill_results(catalog: Catalog, reference: str, **options: Any) -> dict[str, DensityResult]:
    """Return the densities of each skill with their draws and notes; arguments as for :func:`skill_densities`."""
    if reference == JOINT:
        references: dict[str, Reference] = {skill: joint_reference(catalog, skill) for skill in SKILLS}
    else:
        shipped = [] if reference.endswith(".json") else available_benchmarks(reference)
        references = {skill: load_reference(reference, skill) for skill in SKILLS if skill in shipped}
    return {skill: catalog_densities(catalog, ref, **options) for skill, ref in references.items()}


def skill_table(results: Mapping[str, DensityResult]) -> pd.DataFrame:
    """Return the headline models of :func:`skill_results` in one table, columns :data:`SKILL_COLUMNS`."""
    parts = [
        result.table[result.table["stratum"] == "headline"].assign(
            skill=skill, benchmarks=", ".join(result.reference.benchmarks)
        )[SKILL_COLUMNS]
        for skill, result in results.items()
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=SKILL_COLUMNS)


def _densities(
    adopted: Catalog,
    catalog: Catalog,
    reference: Reference,
    selection: Selection | None,
    notes: list[Note],
    **options: Any,
) -> DensityResult:
    """Read adopted scores on the reference, with what the catalog says of their models; options of estimate_density."""
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
                "give scores measured that way: --scores TABLE alone, or --catalog TABLE to add to ours"
            )
    scores = target_scores(adopted, reference.evaluator, reference.benchmarks)
    scores = scores.merge(_protocols(adopted, scores, reference), on="model", how="left")
    # Rows that stand in for the reference's evaluator were measured by somebody else.
    stands_in = adopted.scores.get("measured_by", pd.Series(None, adopted.scores.index)).notna()
    read = adopted.scores.assign(own=own_figures(adopted) & ~stands_in)
    read = read[read["benchmark"].isin(reference.benchmarks)].merge(scores[["model", "evaluator"]])
    own = scores["model"].map(read.groupby("model")["own"].all()).eq(True)
    scores = scores.assign(own=own)
    of_user = set(catalog.scores.loc[_from_user(catalog.scores), "model"])
    measured = catalog.scores[catalog.scores["evaluator"].eq(reference.evaluator)]
    of_user -= set(measured.loc[~_from_user(measured), "model"])
    scores = scores.assign(evaluator=scores["evaluator"].where(~scores["model"].isin(of_user), USER))
    models = catalog.models[["model", *_CARRIED]].assign(
        **{f"params_{name}": catalog.models[f"params_{name}_b"].astype(float) * 1e9 for name in DENOMINATORS},
        verified=verified_dates(catalog.models),
    )
    models = models.join(sizes_of(catalog.models, options["denominator"]))
    models = models.merge(strata(catalog, selection)[["model", "stratum"]], on="model")
    rows = scores.merge(models, on="model", how="inner")
    rows["verified"] &= rows["evaluator"].ne(USER)
    if selection is None or not selection.vendors:
        rows["stratum"] = rows["stratum"].mask(rows["own"] & rows["stratum"].eq(HEADLINE), MAKERS_OWN)
    if rows.empty:
        raise InputError(
            f"no model has every score that reference {reference.name} on {reference.benchmark!r} needs "
            f"({', '.join(reference.benchmarks)})"
        )
    rows = rows.sort_values(["released", "model"], ignore_index=True)
    result = estimate_density(rows, reference.without_protocol_notes(), **options)
    notes = [*notes, *protocol_notes(result.table, reference)]
    # The user's models that have a score the reference wants, and yet no density.
    own = _from_user(catalog.scores) & catalog.scores["benchmark"].isin(reference.benchmarks)
    if unread := sorted(set(catalog.scores.loc[own, "model"]) - set(rows["model"])):
        message = (
            f"of your models are left out: {formatting.listed(unread, 20)}; the reference needs a score on each of "
            f"{', '.join(reference.benchmarks)}, measured by 'user'"
        )
        notes.append(Note("not-read", "warning", message, {"models": unread}))
    other = catalog.scores.loc[_from_user(catalog.scores) & ~catalog.scores["benchmark"].isin(reference.benchmarks)]
    if len(other):
        unused = {str(name): int(count) for name, count in other["benchmark"].value_counts().items()}
        shown = formatting.listed(
            (f"{name} ({formatting.plural(count, 'score')})" for name, count in unused.items()), 20
        )
        message = (
            f"of your scores are not used, because this reference reads {', '.join(reference.benchmarks)}: {shown}"
        )
        notes.append(Note("scores-not-used", "info", message, {"benchmarks": unused}))
    return dataclasses.replace(result, notes=(*result.notes, *notes, *catalog.notes))


def _from_user(scores: pd.DataFrame) -> pd.Series:
    """Return which scores stand in a table of the user's own."""
    sources = scores["source"]
    return sources.isin([source for source in sources.unique() if source.startswith("user:")])


def _protocols(adopted: Catalog, chosen: pd.DataFrame, reference: Reference) -> pd.DataFrame:
    """Return per model how its scores were measured beside the reference: ``model, protocol, protocol_detail``."""
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
    verdicts: dict[tuple[Any, ...], tuple[str, str]] = {}
    is_ladder = "tokens" in reference.given
    for key in dict.fromkeys(keys):
        # Many rows share a protocol: each is compared once.
        evaluator, benchmark, metric, shots, form = key
        document = known_protocol(evaluator, benchmark)
        own = stated(metric or "", shots=shots, form=form or document.form, cot=document.cot)
        expected = reference.protocol(benchmark)
        parts = compare_protocols(own, expected)
        # What neither of two values of one evaluator's series states is the same for both.
        same_series = evaluator == reference.evaluator != USER and not is_ladder and DIFFERS not in parts.values()
        verdicts[key] = (SAME, "") if same_series else (verdict(parts), explain(own, expected))
    protocols = [verdicts[key] for key in keys]
    several = len(reference.benchmarks) > 1
    table = pd.DataFrame(
        {
            "model": rows["model"].to_numpy(),
            "protocol": [protocol for protocol, _ in protocols],
            "protocol_detail": [
                f"{key[1]}: {text}" if several and text else text
                for key, (_, text) in zip(keys, protocols, strict=True)
            ],
        }
    )
    return joined_protocols(table)


def joined_protocols(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model: the worst verdict on its protocols, and every detail once.

    Parameters
    ----------
    table : pandas.DataFrame
        ``model, protocol, protocol_detail``.
    """
    rows = table.assign(protocol=table["protocol"].fillna(UNKNOWN), protocol_detail=table["protocol_detail"].fillna(""))
    # Most models have one value: only the others are joined.
    groups = rows.drop_duplicates().groupby("model", sort=False)
    joined = groups.agg(
        protocol=("protocol", worst),
        protocol_detail=("protocol_detail", lambda texts: "; ".join(dict.fromkeys(filter(None, texts)))),
    )
    return joined.reset_index()


def protocol_notes(table: pd.DataFrame, reference: Reference) -> list[Note]:
    """Return what a table of densities says of protocols: an error where they differ, a warning where unknown.

    Parameters
    ----------
    table : pandas.DataFrame
        ``model, benchmark, protocol, protocol_detail``.
    reference : Reference
        The reference that they were read on.
    """
    texts = {
        DIFFERS: (
            "error",
            "{scores} measured differently from reference {name}: {examples}. Do not compare these densities; measure "
            "as the reference was",
        ),
        UNKNOWN: (
            "warning",
            "{scores} measured in a way that is not fully stated: {examples}. They may not be comparable with "
            "reference {name}: add columns shots, metric and form",
        ),
    }
    notes = []
    for protocol, (severity, text) in texts.items():
        rows = table[table["protocol"].eq(protocol)].drop_duplicates(["model", "benchmark", "protocol_detail"])
        if rows.empty:
            continue
        examples = formatting.listed(
            (f"{row['model']}, {row['benchmark']} ({row['protocol_detail']})" for row in rows.to_dict("records")), 2
        )
        scores = f"{formatting.plural(len(rows), 'score')} {'was' if len(rows) == 1 else 'were'}"
        message = text.format(scores=scores, name=reference.name, examples=examples)
        models = sorted(set(rows["model"].astype(str)))
        notes.append(Note(f"protocol-{protocol}", severity, message, {"models": models}))  # type: ignore[arg-type]
    return notes


def _adopt(catalog: Catalog, reference: Reference, every: bool) -> tuple[Catalog, list[Note]]:
    """Let a user's rows stand in the reference's series, where its own evaluator has no value.

    With ``every``, all rows are the user's, whatever evaluator they name.
    """
    scores = catalog.scores
    on_reference = scores["benchmark"].isin(reference.benchmarks)
    foreign = scores["evaluator"].ne(reference.evaluator) if every else scores["evaluator"].eq(USER)
    if not (on_reference & foreign).any():
        return catalog, []
    rank = scores["evaluator"].map({reference.evaluator: 0, USER: 1}).fillna(2)
    ordered = scores.assign(_rank=rank)[on_reference & (foreign | rank.eq(0))]
    first = ordered.sort_values(["_rank", "evaluator"]).drop_duplicates(["model", "benchmark"])
    known = scores[on_reference & rank.eq(0)]
    series = dict(zip(known["benchmark"], known["series"], strict=True))
    adopted = first.assign(
        evaluator=reference.evaluator,
        series=[series.get(name, f"{name}:{reference.evaluator}") for name in first["benchmark"]],
        measured_by=first["evaluator"].where(first["_rank"].gt(0)),
    ).drop(columns="_rank")
    notes = []
    if every and len(ordered) > len(first):
        notes.append(_second_evaluators(first, ordered.drop(index=first.index)))
    if not every and not (second := ordered[ordered["evaluator"].eq(USER) & ~ordered.index.isin(first.index)]).empty:
        notes.append(_measured_already(first, second, reference))
    joined = pd.concat([scores.drop(index=ordered.index), adopted], ignore_index=True)
    return dataclasses.replace(catalog, scores=joined), notes


def _measured_already(used: pd.DataFrame, own: pd.DataFrame, reference: Reference) -> Note:
    """Say which scores of a user stand beside one of the reference's own evaluator, so that a model counts once."""
    cell = ["model", "benchmark"]
    pairs = own.merge(used[[*cell, "score"]], on=cell, suffixes=("", "_used"))
    pairs = pairs.assign(gap=pairs["score"] - pairs["score_used"])
    pairs = pairs.sort_values("gap", key=lambda gap: -gap.abs(), kind="stable")
    shown = formatting.listed(
        (f"{row.model} on {row.benchmark} ({row.score:g}, there {row.score_used:g})" for row in pairs.itertuples()),
        NAMED,
    )
    message = (
        f"your {formatting.plural(len(pairs), 'score')} of models that the reference's own evaluator measured "
        f"({reference.evaluator}) {'is' if len(pairs) == 1 else 'are'} not read, so that none counts twice: {shown}; "
        "--scores gives the densities of yours"
    )
    details = pairs[[*cell, "score", "score_used", "gap"]].to_dict("records")
    return Note("measured-already", "info", message, {"rows": details})


def _second_evaluators(used: pd.DataFrame, spare: pd.DataFrame) -> Note:
    """Say by how much scores differ that several evaluators gave one model, the widest gap first."""
    cell = ["model", "benchmark"]
    pairs = spare.merge(used[[*cell, "evaluator", "score"]], on=cell, suffixes=("", "_used"))
    pairs = pairs.assign(gap=pairs["score"] - pairs["score_used"])
    pairs = pairs.sort_values("gap", key=lambda gap: -gap.abs(), ignore_index=True)
    examples = "; ".join(
        f"{row.model} on {row.benchmark}: {row.score_used:g} ({row.evaluator_used}) is used, {row.score:g} "
        f"({row.evaluator}) is not, {row.gap:+.3g}"
        for row in pairs.head(NAMED).itertuples()
    )
    more = f"; and {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
    message = f"several evaluators scored one model: {examples}{more}. Keep the rows of one evaluator in the table"
    details = pairs[[*cell, "evaluator_used", "score_used", "evaluator", "score", "gap"]].to_dict("records")
    return Note("second-evaluator", "warning", message, {"rows": len(pairs), "gaps": details})


def _namesakes(models: pd.DataFrame, names: Mapping[str, str]) -> list[Note]:
    """Name the models of a table of its own that the embedded catalog knows with another family, size or date."""
    known = load_catalog().models.set_index("model")
    differing = []
    for row in models[models["model"].isin(names)].itertuples():
        entry = known.loc[names[row.model]]
        size, catalog_size = float(row.params_total_b), float(entry["params_total_b"])
        facts = []
        if isinstance(row.family, str) and isinstance(entry["family"], str) and row.family != entry["family"]:
            facts.append(f"family {row.family} instead of {entry['family']}")
        if size > 0 and catalog_size > 0 and not same_size(size, catalog_size):
            facts.append(f"{size:g} B parameters instead of {catalog_size:g} B")
        if pd.notna(row.released) and pd.notna(entry["released"]) and row.released != entry["released"]:
            facts.append(f"released {row.released.date()} instead of {entry['released'].date()}")
        if facts:
            differing.append(f"{row.model} ({', '.join(facts)})")
    if not differing:
        return []
    message = (
        f"your table replaces what the catalog says of {formatting.listed(differing, NAMED)}; rename the row if it is "
        "another model"
    )
    return [Note("replaces-catalog", "warning", message, {"models": differing})]


def _pool(catalog: Catalog, reference: Reference) -> tuple[Catalog, list[Note]]:
    """Let other evaluators' scores of the same shots into the reference's series; the series' own values come first."""
    if len(reference.benchmarks) != 1:
        raise InputError(f"pooling evaluators works on one benchmark, not on {reference.benchmark!r}; name one")
    scores = catalog.scores
    on_reference = scores["benchmark"].eq(reference.benchmarks[0])
    measured = scores[on_reference & scores["evaluator"].eq(reference.evaluator)]
    if measured.empty:
        raise InputError(
            f"pooling: the catalog has no {reference.benchmark} score by {reference.evaluator!r} to pool with"
        )
    own = measured.iloc[0]
    usable = ~(has_flag(scores["flags"], WRONG) | has_flag(scores["flags"], OTHER_PROTOCOL))
    pooled = on_reference & usable & scores["shots"].eq(own["shots"]) & scores["series"].ne(own["series"])
    message = f"{int(pooled.sum())} {reference.benchmarks[0]} scores of other evaluators are read on the same reference"
    notes = [Note("pooled-evaluators", "warning", message, {"rows": int(pooled.sum())})]
    joined = scores.assign(series=scores["series"].where(~pooled, own["series"]))
    return dataclasses.replace(catalog, scores=joined), notes
