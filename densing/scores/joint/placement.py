r"""Models on a scale that was fitted without them: what the scale says of its tests stays as it is, draw by draw.

For every draw of the scale (difficulties and loadings of tests, floors, ceilings, noise, the covariance of abilities)
the new models' abilities, their effects with evaluators and their scatter are drawn given it and their scores:

.. math:: p(x_{new} \mid s_{new}, s_{old}) \approx \int p(x_{new} \mid s_{new}, \phi)\, p(\phi \mid s_{old})\, d\phi

New scores tell nothing of the tests, which is what keeps a back-test strict and a user's model from moving the ruler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, formatting, named_seed
from densing.scores.catalog import Catalog, own_figures
from densing.scores.joint.cells import COLUMNS, Cells, catalog_cells
from densing.scores.joint.sampler import (
    CEILING,
    CEILING_SD,
    FLOOR_SD,
    FREEDOM,
    MODEL_SHAPE,
    NARROWEST,
    SCATTER_SHAPE,
    draw_logits,
    gaussian,
    index_cells,
    truncated,
)
from densing.scores.joint.scale import JointDraws, JointScale

SWEEPS = 100
"""Sweeps of each draw's chain. The slowest to settle are models whose scores are all close to a floor: their abilities
walk down a slope in steps of the scatter."""
AT_ONCE = 2_000_000
"""Numbers in one array: draws go in portions, so that a large table fits in memory."""


def place(
    scale: JointScale,
    cells: Cells,
    *,
    seed: int = 0,
    sweeps: int = SWEEPS,
    step: Callable[[str, float], None] = lambda label, share: None,
) -> JointScale:
    """Put new models on a scale without fitting it again.

    Parameters
    ----------
    scale : JointScale
        Fitted without these models.
    cells : Cells
        Their scores. A test that the scale has not seen, of a benchmark that it has, is taken to be drawn like that
        benchmark's other tests; benchmarks that it has not seen say nothing and are left out, with a note.
    seed : int
    sweeps : int
        Sweeps of each draw's chain.
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    JointScale
        The same scale with the models added: abilities, predictions and cards hold them. Their names are in
        ``placed``; baskets stay as they were.

    Raises
    ------
    InputError
        When a model is on the scale already, or no score is on a benchmark that the scale knows.

    See Also
    --------
    fit_joint, validate

    Notes
    -----
    Source: own; parameters known from elsewhere and not updated are the "cut" of Plummer (2015).

    Examples
    --------
    >>> from dataclasses import replace
    >>> from densing.scores.joint.cells import toy_cells
    >>> from densing.scores.joint.scale import fit_joint
    >>> cells = toy_cells()
    >>> mine = cells.table["model"].eq("m7")
    >>> scale = fit_joint(replace(cells, table=cells.table[~mine]), draws=40, sweeps=40, burn=20)
    >>> placed = place(scale, replace(cells, table=cells.table[mine]))
    >>> order = placed.abilities().sort_values("ability")["model"].tolist()
    >>> order.index("m5") < order.index("m7") < order.index("m9"), placed.placed
    (True, ('m7',))
    """
    twice = sorted(set(cells.table["model"]) & set(scale.models))
    if twice:
        raise InputError(
            f"{formatting.listed(twice)}: on the joint scale already; fit it without them, or use what it says"
        )
    known = cells.table["benchmark"].isin(scale.benchmarks)
    table = cells.table[known].reset_index(drop=True)
    if table.empty:
        raise InputError(f"no score of {len(known)} is on a benchmark of the joint scale")
    # A benchmark's skill is the scale's, whatever the new table calls it.
    traits = scale.cells.table.drop_duplicates("benchmark").set_index("benchmark")
    table = table.assign(**{name: table["benchmark"].map(traits[name]) for name in ("skill", "language", "trait")})
    notes = list(scale.notes)
    if not known.all():
        names = sorted(set(cells.table.loc[~known, "benchmark"]))
        message = (
            f"{formatting.plural(int((~known).sum()), 'score')} on {formatting.listed(names)}: not on the "
            "joint scale, left out"
        )
        notes.append(Note("benchmarks-not-on-scale", "info", message, {"benchmarks": names}))
    rng = np.random.default_rng(named_seed(seed, "place"))
    wide = _with_tests(scale, table, rng)
    new = [name for name in sorted(set(table["test"])) if name not in set(scale.tests)]
    if new:
        message = (
            f"{formatting.listed(new)}: not on the joint scale; taken for drawn like other tests of the same "
            "benchmark, which widens intervals"
        )
        notes.append(Note("tests-not-on-scale", "info", message, {"tests": new}))
    index, names_of = index_cells(table)
    tests = pd.Index(wide.tests).get_indexer(names_of["test"])[index.test]
    trait = np.searchsorted(scale.traits, names_of["trait"])[index.trait][index.test]
    per_draw = max(len(table) * 4, len(names_of["model"]) * wide.draws.abilities.shape[2] ** 2)
    portions = np.array_split(np.arange(len(wide.draws.floor)), -(-len(wide.draws.floor) * per_draw // AT_ONCE))
    parts = []
    for position, portion in enumerate(portions):
        step("placing models", position / len(portions))
        parts.append(_abilities(wide.draws, portion, (index.model, tests, index.pair, trait), table, sweeps, rng))
    abilities, evaluators, scatter = (np.concatenate(part) for part in zip(*parts, strict=True))

    models = np.concatenate([scale.models, names_of["model"]])
    order = np.argsort(models)
    code = np.argsort(order)
    pairs = [(int(code[m]), name) for m, name in scale.pairs]
    pairs += [(int(code[len(scale.models) + m]), name) for m, name in names_of["pair"]]
    draws = replace(
        wide.draws,
        abilities=np.concatenate([wide.draws.abilities, abilities], axis=1)[:, order].astype(np.float32),
        evaluators=np.concatenate([wide.draws.evaluators, evaluators], axis=1).astype(np.float32),
        model_scatter=np.concatenate([wide.draws.model_scatter, scatter], axis=1)[:, order].astype(np.float32),
    )
    together = pd.concat([scale.cells.table, table[COLUMNS]], ignore_index=True)
    merged = replace(
        scale.cells,
        table=together.sort_values(["model", "test"], ignore_index=True),
        dropped=pd.concat([scale.cells.dropped, cells.dropped], ignore_index=True),
    )
    return replace(
        wide,
        cells=merged,
        models=models[order],
        pairs=np.array(pairs, dtype=object),
        draws=draws,
        notes=tuple(notes),
        placed=(*scale.placed, *map(str, names_of["model"])),
    )


def place_makers_own(scale: JointScale, catalog: Catalog, *, seed: int = 0) -> JointScale:
    """Put the models that nobody but their maker measured on a scale that was fitted without such scores.

    A maker's figures of its own models move neither the tests nor anybody else's ability: the models are read off the
    scale (:func:`place`), as a user's are. Harnesses alone count, because other makers' models tie their tests to
    the scale; nothing ties those of a vendor's own table.

    Parameters
    ----------
    scale : JointScale
    catalog : Catalog
    seed : int
        As in :func:`place`.

    Returns
    -------
    JointScale
        With these models among the ``placed``; the scale itself where there are none, or where somebody's models were
        placed on it before.

    See Also
    --------
    place, joint_cells
    """
    if scale.placed:
        return scale
    table, dropped = _makers_alone(catalog)
    # A test of a benchmark that the scale does not have says nothing there.
    there = ~table["model"].isin(scale.models) & table["benchmark"].isin(scale.benchmarks)
    table = table[there].reset_index(drop=True)
    if table.empty:
        return scale
    made = f"{scale.cells.digest}{dict(scale.options)}{seed}".encode() + table.to_csv().encode()
    if made not in _PLACED:
        _PLACED.clear()
        _PLACED[made] = place(scale, Cells(table, dropped), seed=seed)
    return _PLACED[made]


@lru_cache(maxsize=4)
def _makers_alone(catalog: Catalog) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cells of models that nobody but their maker measured, and an empty table of dropped ones."""
    cells = catalog_cells(catalog, "harness")
    key = ["model", "benchmark", "evaluator"]
    own = cells.table.merge(catalog.scores[key].assign(own=own_figures(catalog)), on=key, how="left")["own"]
    return cells.table[own.groupby(cells.table["model"]).transform("all")], cells.dropped.head(0)


# The last of this process: every basket of a page reads the same one.
_PLACED: dict[bytes, JointScale] = {}


def _with_tests(scale: JointScale, table: pd.DataFrame, rng: np.random.Generator) -> JointScale:
    """Add tests that the scale has not seen, drawn from what it knows of tests of their benchmarks."""
    first = table[~table["test"].isin(scale.tests)].drop_duplicates("test")
    if first.empty:
        return scale
    d, count = scale.draws, len(first)
    benchmark = np.searchsorted(scale.benchmarks, first["benchmark"].to_numpy(dtype=str))
    centre = d.benchmarks[:, benchmark]
    size = (len(centre), count)
    chance = np.tile(first["floor"].to_numpy(dtype=float), (len(centre), 1))
    floor = truncated(chance, np.full(size, FLOOR_SD), 0.0, 1 - 2 * NARROWEST, rng)
    floor = np.where(chance > 0, floor, 0.0)
    ceiling = truncated(np.full(size, CEILING), np.full(size, CEILING_SD), floor + NARROWEST, 1.0, rng)
    middle, width = d.typical_noise.T[:, :, None]
    scatter = SCATTER_SHAPE * d.typical_scatter[:, None] / rng.gamma(SCATTER_SHAPE, size=size)
    drawn = {
        "tests": centre + rng.standard_normal(centre.shape) * np.sqrt(d.test_variance)[:, None],
        "floor": floor,
        "ceiling": ceiling,
        "noise": np.exp(middle + width * rng.standard_normal(size)),
        "scatter": scatter,
    }
    tests = np.concatenate([scale.tests, first["test"].to_numpy(dtype=str)])
    order = np.argsort(tests)
    wider = {
        name: np.concatenate([getattr(d, name), values], axis=1)[:, order].astype(np.float32)
        for name, values in drawn.items()
    }
    return replace(scale, tests=tests[order], draws=replace(d, **wider))


def _abilities(
    draws: JointDraws,
    portion: Array,
    codes: tuple[Array, Array, Array, Array],
    table: pd.DataFrame,
    sweeps: int,
    rng: np.random.Generator,
) -> tuple[Array, Array, Array]:
    """Run the chains of some draws side by side: abilities (R, models, K), effects (R, pairs), scatter (R, models)."""
    model, test, pair, trait = codes
    d = JointDraws(**{item.name: getattr(draws, item.name)[portion].astype(float) for item in fields(draws)})
    score, se = table["score"].to_numpy(dtype=float), table["se"].to_numpy(dtype=float)
    many, traits, width = len(portion), d.covariance.shape[1], d.abilities.shape[2]
    models, pairs = int(model.max()) + 1, int(pair.max()) + 1
    curve = d.floor[:, test], d.ceiling[:, test], se**2 + d.noise[:, test]
    ease, loading = d.tests[:, test, 0], d.tests[:, test, 1:]
    # Each cell touches its own trait and the free factors, out of all dimensions.
    slots = np.column_stack([trait, np.tile(np.arange(traits, width), (len(trait), 1))])
    lines = np.arange(many)[:, None]

    def summed(values: Array, code: Array, count: int) -> Array:
        """Sums over the cells of one code, per draw."""
        at = (lines * count + code).ravel()
        return np.bincount(at, values.ravel(), many * count).reshape(many, count)

    prior = np.tile(np.eye(width), (many, 1, 1))
    prior[:, :traits, :traits] = np.linalg.inv(d.covariance)
    effects, scatter = np.zeros((many, pairs)), np.ones((many, models))
    weights = np.ones((many, len(model)))
    share = np.clip((score - curve[0]) / (curve[1] - curve[0]), 0.03, 0.97)
    z = np.log(share / (1 - share))
    abilities = np.zeros((many, models, width))
    halves = np.bincount(model) / 2
    for _ in range(sweeps):
        spread = d.scatter[:, test] * scatter[:, model]
        precision = weights / spread
        value = precision * (z - ease - effects[:, pair])
        matrix = np.zeros((many, models * width * width))
        vector = np.zeros((many, models * width))
        for a in range(slots.shape[1]):
            vector += summed(value * loading[:, :, a], model * width + slots[:, a], models * width)
            for b in range(slots.shape[1]):
                at = (model * width + slots[:, a]) * width + slots[:, b]
                matrix += summed(precision * loading[:, :, a] * loading[:, :, b], at, models * width**2)
        shape = (many, models, width)
        abilities = gaussian(matrix.reshape(*shape, width) + prior[:, None], vector.reshape(shape), rng)
        own = abilities[:, model[:, None], slots]
        fitted = ease + (loading * own).sum(axis=2)
        known = summed(precision, pair, pairs) + 1 / d.evaluator_variance[:, None]
        effects = summed(precision * (z - fitted), pair, pairs) / known
        effects += rng.standard_normal(known.shape) / np.sqrt(known)
        residual = z - fitted - effects[:, pair]
        weights = rng.gamma((FREEDOM + 1) / 2, 2 / (FREEDOM + residual**2 / spread))
        squares = summed(weights * residual**2 / d.scatter[:, test], model, models)
        scatter = 1 / rng.gamma(MODEL_SHAPE + halves, 1 / (MODEL_SHAPE + squares / 2))
        variance = d.scatter[:, test] * scatter[:, model] / weights
        z = draw_logits(z, fitted + effects[:, pair], variance, curve, score, rng)
    return abilities, effects, scatter
