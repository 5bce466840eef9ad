"""Scores that an evaluator got wrong, found by rule: whole models on one evaluator, and single cells.

A prompt that a model's tokenizer breaks, weights that were not loaded as trained, an answer that no parser recognised:
such faults put a model far below what the rest of the table says of it. Two rules find them; both only compare values
of one evaluator, on the scale of log odds above chance,

``y = ln(q / (1 - q))``, ``q = (score - chance) / (1 - chance)`` kept within [0.05, 0.95],

so that the noise at chance and at the ceiling weighs little. Neither asks for a form of a scaling curve: both compare
with models that ought to be *weaker*, because an honestly weak model is weak among its equals too.

**Models** (flag ``erratic_model``). A larger model does not lose to its smaller, not later relatives. Relatives are
the models of the same line (organisation and leading letters of the family: Gemma, Gemma-2, Gemma-3n are one line) and
domain, measured with the same software of the same people, that came out no later and are smaller by a fifth, or came
out earlier and are no larger; for the comparison, size is the geometric mean of total and active parameters. With
``d_m`` the median over benchmarks of ``y_m`` minus the *highest* of its relatives,

``z_m = (d_m - median(d)) / s``, ``s = 1.4826 median(|d - median(d)|)`` over the models with ``d`` below the median,

over all evaluators' models together. A model is erratic where ``z_m < -3`` and ``d_m < -0.5`` (odds lower by two
fifths than those of a relative that should be weaker; where a line makes no progress at all, ``z`` alone would flag
what chance puts last), and so are all models of a family on that evaluator where half of those that can be judged, and
two at least, are: a fault of loading strikes a whole generation. First generations and lines of one model have no
relatives, hence no verdict.

**Cells** (flag ``erratic_cell``). A model does not fall far below the models that are weaker than it elsewhere. Model
``n`` is weaker than ``m`` where the median over other benchmarks of ``y_m - y_n`` is not negative (two models at the
floor, or at the ceiling, are not known to be equal); expected is the median ``y`` of the five nearest weaker ones. It
is taken twice: by the benchmarks of the same skill and kind of answer (options or free), or of the same kind alone
where fewer than three are known; and by all others, or, where an evaluator asks in several languages, by those of the
same language. The lower expectation counts, so both must agree: who is weak in mathematics, or in Latvian, is no
fault. With the residual ``r = y - expected``, its median ``r_0`` over the evaluator, and ``s`` the larger of the
benchmark's and the evaluator's ``1.4826 median(|r - r_0|)`` over the residuals below ``r_0``, a cell is erratic where
``r < r_0 - 4 s`` and ``q`` is below a third of what is expected, unless another evaluator measured the model at less
than half of the expected ``q`` as well: then the model is weak there, and nobody erred. Cells as far *above* what
stronger models reach are listed as remarks and stay in: leaving out what is low removes errors of the instrument,
leaving out what is high would remove findings (and contamination, which is the model's and not the instrument's).

The limits are those at which clean data are nearly never flagged (one cell in some thousands, one in seven hundred
where skills or noise are twice as wide; the tests simulate it with skills, languages, floors and heavy tails). Where
fewer than three weaker models, or too few benchmarks, are there, the status says ``too few`` and nothing is flagged.

Source: own choice of statistics; median absolute deviations and their factor 1.4826 as in Rousseeuw and Croux 1993
(doi:10.1080/01621459.1993.10476408).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from densing.core import InputError, read_text, write_text
from densing.scores.catalog.catalog import Catalog
from densing.scores.catalog.scores import WRONG, has_flag

ERRATIC_MODEL, ERRATIC_CELL = "erratic_model", "erratic_cell"
OWN_FLAGS = frozenset({ERRATIC_MODEL, ERRATIC_CELL})
# Shares are kept within [FLOOR, 1 - FLOOR], log odds within plus and minus LIMIT.
FLOOR = 0.05
LIMIT = float(np.log((1 - FLOOR) / FLOOR)) - 1e-9
MODEL_LIMIT = 3.0
MODEL_DIFFERENCE = 0.5
CELL_LIMIT = 4.0
# Below a third of the expected share a cell is near the floor, whatever the noise says.
NEAR_FLOOR = 1 / 3
# Smaller by a fifth at least, so that two names of one size are not relatives in this sense.
SMALLER = 0.8
FEWEST_BENCHMARKS = 5
FEWEST_JUDGED = 20
NEIGHBOURS = 5
FEWEST_NEIGHBOURS = 3
FEWEST_MATES = 3
FEWEST_IN_LANGUAGE = 2
MODEL_COLUMNS = ["evaluator", "model", "relatives", "benchmarks", "difference", "z", "status"]
CELL_COLUMNS = ["evaluator", "model", "benchmark", "score", "expected", "residual", "z", "elsewhere", "status"]


def erratic_models(catalog: Catalog) -> pd.DataFrame:
    """Return the verdict on every model of every evaluator: whether it loses to its smaller, not later relatives.

    The rule stands in the description of this module.

    Returns
    -------
    pandas.DataFrame
        Sorted by z, lowest first; columns evaluator, model, relatives (compared with), benchmarks (in common),
        difference (median log odds against the best relative), z, status: ``ok``, ``erratic``, ``erratic family``
        (with its generation) or ``too few``.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> table = erratic_models(load_catalog())
    >>> table[table["status"] == "erratic"][["evaluator", "model"]].drop_duplicates().iloc[0].tolist()
    ['euroeval_val', 'Gemma-4-E4B']

    See Also
    --------
    erratic_cells
    """
    return _models(catalog).copy()


@lru_cache(maxsize=2)
def _models(catalog: Catalog) -> pd.DataFrame:
    scores = _log_odds(catalog)
    models = catalog.models.set_index("model")
    scores = scores[scores["scale"]]
    people = catalog.evaluators.set_index("id")[["role", "organisation", "harness"]]
    rows: list[tuple[object, ...]] = []
    tables = {name: _table_of(name, people) for name in scores["evaluator"].unique()}
    for _, group in scores.groupby(scores["evaluator"].map(tables), sort=True):
        wide = group.pivot_table(index=["evaluator", "model"], columns="benchmark", values="y")
        rows += _against_relatives(wide, models)
    table = pd.DataFrame(rows, columns=MODEL_COLUMNS[:5])
    table["z"] = np.nan
    judged = table["difference"].notna()
    if judged.sum() >= FEWEST_JUDGED:
        differences = table.loc[judged, "difference"]
        centre = differences.median()
        spread = _lower_spread((differences - centre).to_numpy())
        table.loc[judged, "z"] = (differences - centre) / spread if spread > 0 else np.nan
    table["status"] = np.where(table["z"].isna(), "too few", "ok")
    table.loc[(table["z"] < -MODEL_LIMIT) & (table["difference"] < -MODEL_DIFFERENCE), "status"] = "erratic"
    family = table["model"].map(models["family"])
    for _, members in table[table["z"].notna()].groupby(["evaluator", family], sort=True):
        erratic = (members["status"] == "erratic").sum()
        if erratic >= 2 and 2 * erratic >= len(members):
            siblings = table["evaluator"].eq(members["evaluator"].iloc[0]) & family.eq(family[members.index[0]])
            table.loc[siblings & (table["status"] != "erratic"), "status"] = "erratic family"
    return table.sort_values(["z", "evaluator", "model"], ignore_index=True)[MODEL_COLUMNS]


def _table_of(evaluator: str, people: pd.DataFrame) -> str:
    """Return the name of what an evaluator's values may be compared in: one harness of one team, else itself."""
    row = people.loc[evaluator]
    shared = row["role"] == "harness" and isinstance(row["organisation"], str) and isinstance(row["harness"], str)
    return f"{row['organisation']}: {row['harness']}" if shared else evaluator


def _against_relatives(wide: pd.DataFrame, models: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    evaluators, names = (wide.index.get_level_values(level).to_numpy() for level in ("evaluator", "model"))
    rows = models.loc[names]
    y = wide.to_numpy()
    total = rows["params_total_b"].to_numpy(dtype=float)
    sizes = np.sqrt(total * rows["params_active_b"].fillna(rows["params_total_b"]).to_numpy(dtype=float))
    dates = rows["released"].to_numpy()
    lines = np.array(
        [
            f"{row.organisation} {_stem(row.family)} {row.domain}" if isinstance(row.organisation, str) else ""
            for row in rows.itertuples()
        ]
    )
    for i, name in enumerate(names):
        with np.errstate(invalid="ignore"):
            # Without a date nobody knows who came first: both comparisons are false then.
            smaller = (sizes <= SMALLER * sizes[i]) & (dates <= dates[i])
            older = (sizes <= sizes[i]) & (dates < dates[i])
        relatives = (lines == lines[i]) & (lines != "") & (names != name) & (smaller | older)
        best = np.nanmax(y[relatives], axis=0, initial=-np.inf) if relatives.any() else np.full(y.shape[1], -np.inf)
        differences = (y[i] - best)[np.isfinite(best) & ~np.isnan(y[i])]
        enough = len(differences) >= FEWEST_BENCHMARKS
        difference = float(np.median(differences)) if enough else np.nan
        yield evaluators[i], name, int(relatives.sum()), len(differences), difference


def _stem(family: object) -> str:
    letters = re.match(r"[^\W\d_]+", str(family))
    return letters[0].lower() if letters else str(family)


def erratic_cells(catalog: Catalog) -> pd.DataFrame:
    """Return the verdict on every score: whether it stands far below what weaker models reach.

    The rule stands in the description of this module. Models that :func:`erratic_models` refuses are left out, both
    as cells and as neighbours.

    Returns
    -------
    pandas.DataFrame
        Sorted by z, lowest first; columns evaluator, model, benchmark, score, expected (the score that the nearest
        weaker models reach), residual (log odds), z, elsewhere (lowest score of the model on the benchmark by other
        evaluators), status: ``ok``, ``erratic``, ``weak elsewhere too``, ``far above`` (a remark; expected is then
        what stronger models reach) or ``too few``.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> own = catalog.scores["evaluator"] == "olmo_base_eval"
    >>> cells = erratic_cells(replace(catalog, scores=catalog.scores[own])).set_index(["model", "benchmark"])
    >>> cells.loc[("Seed-OSS-36B-Base", "olmo3_eval_math"), "status"]
    'erratic'

    See Also
    --------
    erratic_models
    """
    return _cells(catalog).copy()


@lru_cache(maxsize=2)
def _cells(catalog: Catalog) -> pd.DataFrame:
    verdicts = _models(catalog)
    refused = set(_keys(verdicts[verdicts["status"].str.startswith("erratic")], ["evaluator", "model"]))
    scores = _log_odds(catalog)
    usable = [key not in refused for key in _keys(scores, ["evaluator", "model"])]
    scores = scores[np.array(usable, dtype=bool)]
    parts = [_cells_of(group) for _, group in scores.groupby("evaluator", sort=True)]
    if not parts:
        return pd.DataFrame(columns=CELL_COLUMNS)
    table = pd.concat(parts, ignore_index=True)
    # The lowest score by somebody else: the lowest of all, or the second where that is one's own.
    groups = table.sort_values(["score", "evaluator"]).groupby(["model", "benchmark"])["score"]
    table["elsewhere"] = groups.transform("first").where(groups.cumcount() > 0, groups.shift(-1))
    chance = table["chance"]
    share = (table["expected"] - chance) / (1 - chance)
    weak = table["status"].eq("erratic") & ((table["elsewhere"] - chance) / (1 - chance) < share / 2)
    table.loc[weak, "status"] = "weak elsewhere too"
    return table.sort_values(["z", "evaluator", "model", "benchmark"], ignore_index=True)[CELL_COLUMNS]


def _cells_of(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of one evaluator with what weaker models reach, and those far above what stronger ones do."""
    wide = scores.pivot_table(index="model", columns="benchmark", values="y")
    y, facts = wide.to_numpy(), scores.drop_duplicates("benchmark").set_index("benchmark").loc[wide.columns]
    below = _expected(y, facts)
    above = -_expected(-y, facts)
    expected, z, status = below.copy(), np.full(y.shape, np.nan), np.full(y.shape, "too few", dtype=object)
    residual = y - below
    for side, name in ((y - below, "erratic"), (above - y, "far above")):
        known = ~np.isnan(side)
        if not known.any():
            continue
        centre = np.median(side[known])
        pooled = _lower_spread(side[known] - centre)
        scale = np.array([max(pooled, _lower_spread(column[~np.isnan(column)] - centre)) for column in side.T])
        depth = (side - centre) / np.where(scale > 0, scale, np.inf)
        if name == "erratic":
            z, status[known] = depth, "ok"
            odd = (depth < -CELL_LIMIT) & (_share(y) < NEAR_FLOOR * _share(below))
        else:
            odd = (depth < -CELL_LIMIT) & ~(status == "erratic")
            expected, z = np.where(odd, above, expected), np.where(odd, -depth, z)
            residual = np.where(odd, y - above, residual)
        status[odd] = name
    rows, columns = np.nonzero(~np.isnan(y))
    chance = facts["chance"].to_numpy(dtype=float)[columns]
    table = pd.DataFrame(
        {
            "evaluator": scores["evaluator"].iloc[0],
            "model": wide.index[rows],
            "benchmark": wide.columns[columns],
            "expected": chance + (1 - chance) * _share(expected[rows, columns]),
            "residual": residual[rows, columns],
            "z": z[rows, columns],
            "status": status[rows, columns],
            "chance": chance,
        }
    )
    return table.merge(scores[["model", "benchmark", "score"]], on=["model", "benchmark"])


def _expected(y: np.ndarray, facts: pd.DataFrame) -> np.ndarray:
    """Return what the nearest weaker models reach: the lower of two views, by alike benchmarks and by the others."""
    skill, language = facts["skill"].to_numpy(), facts["language"].to_numpy()
    free, scale = facts["chance"].to_numpy() == 0, facts["scale"].to_numpy(dtype=bool)
    result = np.full(y.shape, np.nan)
    others = np.arange(y.shape[1])
    several = len(set(language)) > 1
    for j in range(y.shape[1]):
        kind = (others != j) & scale & (free == free[j])
        alike = kind & (skill == skill[j])
        views = [(alike if alike.sum() >= FEWEST_MATES else kind, FEWEST_MATES)]
        if several:
            views.append(((others != j) & scale & (language == language[j]), FEWEST_IN_LANGUAGE))
        else:
            views.append(((others != j) & scale, FEWEST_MATES))
        # One view without enough models leaves the cell undecided.
        result[:, j] = np.min([_nearest_weaker(y, mates, j, fewest) for mates, fewest in views], axis=0)
    return result


def _nearest_weaker(y: np.ndarray, mates: np.ndarray, j: int, fewest: int) -> np.ndarray:
    result = np.full(len(y), np.nan)
    known = np.flatnonzero(~np.isnan(y[:, j]))
    lead = _median_lead(y[np.ix_(known, mates)], fewest)
    np.fill_diagonal(lead, np.nan)
    lead = np.where(lead >= 0, lead, np.inf)
    nearest = np.argsort(lead, axis=1, kind="stable")[:, :NEIGHBOURS]
    weaker = np.isfinite(np.take_along_axis(lead, nearest, 1))
    result[known] = _medians(np.where(weaker, y[known, j][nearest], np.inf), FEWEST_NEIGHBOURS)
    return result


def _median_lead(y: np.ndarray, fewest: int) -> np.ndarray:
    """Return the median of ``y_m - y_n`` over the columns that both rows have; NaN where they are fewer than asked."""
    differences = y[:, None] - y
    # Two models at the floor are not known to be equal: that pair says nothing.
    silent = np.isnan(differences) | ((np.abs(y) >= LIMIT)[:, None] & (differences == 0))
    return _medians(np.where(silent, np.inf, differences), fewest)


def _medians(values: np.ndarray, fewest: int) -> np.ndarray:
    """Return medians along the last axis, infinity standing for what is missing; numpy's nanmedian is far slower."""
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    ordered = np.sort(values, axis=-1)
    counts = np.isfinite(ordered).sum(axis=-1)
    enough = counts >= max(fewest, 1)
    upper = np.where(enough, counts // 2, 0)[..., None]
    lower = np.where(enough, (counts - 1) // 2, 0)[..., None]
    middle = (np.take_along_axis(ordered, lower, -1) + np.take_along_axis(ordered, upper, -1))[..., 0] / 2
    return np.where(enough, middle, np.nan)


def erratic_flags(catalog: Catalog) -> pd.Series:
    """Return for every score ``erratic_model``, ``erratic_cell`` or nothing: what the two rules say of it.

    Returns
    -------
    pandas.Series of str
        Aligned with ``catalog.scores``.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> scores = catalog.scores[catalog.scores["evaluator"] == "olmo_base_eval"]
    >>> sorted(set(erratic_flags(replace(catalog, scores=scores))))
    ['', 'erratic_cell']
    """
    models, cells = _models(catalog), _cells(catalog)
    refused = set(_keys(models[models["status"].str.startswith("erratic")], ["evaluator", "model"]))
    faults = set(_keys(cells[cells["status"] == "erratic"], ["evaluator", "model", "benchmark"]))
    keys = _keys(catalog.scores, ["evaluator", "model", "benchmark"])
    flags = [ERRATIC_MODEL if key[:2] in refused else ERRATIC_CELL if key in faults else "" for key in keys]
    return pd.Series(flags, index=catalog.scores.index, dtype=object)


def write_flags(catalog: Catalog, path: Path | str) -> int:
    """Put the rules' flags into a table of scores, and take away those that the rules no longer give.

    Every other cell stays as it is.

    Parameters
    ----------
    catalog : Catalog
        The scores that are compared, those of the table among them.
    path : path
        A CSV file with columns model, benchmark, evaluator and flags.

    Returns
    -------
    int
        Rows that changed.

    Raises
    ------
    InputError
        When the file is empty, one of the columns is missing, or a row has not as many cells as the header.
    """
    lines = list(csv.reader(io.StringIO(read_text(path, str(path)), newline="")))
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    missing = [name for name in ("model", "benchmark", "evaluator", "flags") if name not in header]
    if missing:
        raise InputError(
            f"{path}: column {missing[0]} is missing; a table of scores needs model, benchmark, evaluator, flags"
        )
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(
                f"{path}: row {number} has {len(row)} cells, but the header has {len(header)}; correct the row"
            )
    at = {name: header.index(name) for name in header}
    flags = dict(zip(_keys(catalog.scores, ["evaluator", "model", "benchmark"]), erratic_flags(catalog), strict=True))
    changed = 0
    for row in rows:
        key = (row[at["evaluator"]], row[at["model"]], row[at["benchmark"]])
        others = [flag for flag in row[at["flags"]].split(";") if flag and flag not in OWN_FLAGS]
        cell = ";".join([*others, *filter(None, [flags.get(key, "")])])
        changed += cell != row[at["flags"]]
        row[at["flags"]] = cell
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    if changed:
        write_text(Path(path), text.getvalue())
    return changed


def _log_odds(catalog: Catalog) -> pd.DataFrame:
    """Return the usable scores with log odds above chance and the facts of their benchmarks."""
    scores = catalog.scores[~has_flag(catalog.scores["flags"], WRONG - OWN_FLAGS)]
    facts = catalog.benchmarks.set_index("id")[["chance", "skill", "language", "scale"]]
    scores = scores[["evaluator", "model", "benchmark", "score"]].join(facts, on="benchmark")
    share = (scores["score"] - scores["chance"]) / (1 - scores["chance"].clip(upper=1 - 1e-9))
    share = share.clip(FLOOR, 1 - FLOOR)
    return scores.assign(y=np.log(share / (1 - share)).astype(float), scale=scores["scale"].astype(bool))


def _share(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


def _lower_spread(deviations: np.ndarray) -> float:
    """Return the robust standard deviation of what lies below the centre; what lies far above does not widen it."""
    lower = deviations[deviations < 0]
    return float(1.4826 * np.median(-lower)) if len(lower) else 0.0


def _keys(frame: pd.DataFrame, columns: list[str]) -> list[tuple[str, ...]]:
    return list(zip(*(frame[column] for column in columns), strict=True))
