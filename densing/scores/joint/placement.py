r"""Models on a scale that was fitted without them: what the scale says of its tests stays as it is, draw by draw.

For every draw of the scale (difficulties and loadings of tests, floors, ceilings, scatter, how abilities go together)
the new models' abilities, their effects with evaluators and their scatter are drawn given it and their scores:

.. math:: p(x_{new} \mid s_{new}, s_{old}) \approx \int p(x_{new} \mid s_{new}, \phi)\, p(\phi \mid s_{old})\, d\phi

New scores do not change the tests, so back-tests stay strict and user models do not move the scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import expit

from densing.core import Array, InputError, Note, formatting, named_seed
from densing.scores.catalog import Catalog, own_figures
from densing.scores.joint.cells import COLUMNS, Cells, catalog_cells
from densing.scores.joint.posterior import (
    CEILING,
    CEILING_SD,
    FLOOR_SD,
    FREEDOM,
    MODEL_SD,
    SCATTER_SD,
    ends,
    index_cells,
    student,
    truncated,
)
from densing.scores.joint.sampler import ACCEPTED, JITTER, LONGEST, roots
from densing.scores.joint.scale import JointDraws, JointScale

SWEEPS, STEPS = 40, 5
"""Hamiltonian moves of each draw's models, of so many steps. The first half are tuned."""
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
    >>> scale = fit_joint(replace(cells, table=cells.table[~mine]), draws=20, sweeps=20, burn=10)
    >>> placed = place(scale, replace(cells, table=cells.table[mine]))
    >>> order = placed.abilities().sort_values("ability")["model"].tolist()
    >>> order.index("m5") < order.index("m7") < order.index("m9"), placed.placed
    (True, ('m7',))
    """
    twice = sorted(set(cells.table["model"]) & set(scale.models))
    if twice:
        raise InputError(
            f"{formatting.listed(twice)}: already on the joint scale; fit it without them, or use its values"
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
            f"{formatting.listed(new)}: evaluator unknown to the joint scale; treated as a typical evaluator of "
            "the same benchmark, so intervals are wider"
        )
        notes.append(Note("tests-not-on-scale", "info", message, {"tests": new}))
    index, names_of = index_cells(table)
    tests = pd.Index(wide.tests).get_indexer(names_of["test"])[index.test]
    trait = np.searchsorted(scale.traits, names_of["trait"])[index.trait][index.test]
    per_draw = len(table) * 4
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
    reach, lowest = ends(chance)
    floor = np.where(reach > 0, truncated(chance, np.full(size, FLOOR_SD), chance - reach, chance + reach, rng), chance)
    away = rng.standard_normal(centre.shape) * np.sqrt(d.test_variance)[:, None]
    drawn = {
        "tests": np.where(np.arange(centre.shape[2]) == 1, centre * np.exp(away), centre + away),
        "floor": floor,
        "ceiling": truncated(np.full(size, CEILING), np.full(size, CEILING_SD), lowest, 1.0, rng),
        "scatter": d.typical_scatter[:, None] * np.exp(SCATTER_SD * rng.standard_normal(size)),
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
    """Run the chains of some draws side by side: abilities (R, models, traits), effects (R, pairs), scatter."""
    d = JointDraws(**{item.name: getattr(draws, item.name)[portion].astype(float) for item in fields(draws)})
    new = _New(d, codes, table)
    many, models = len(portion), new.models
    at = new.start()
    step = np.full(models, np.log(0.3))
    for sweep in range(sweeps):
        if sweep in (0, sweeps // 4):
            root, block = roots(new.curvature(at.mean(axis=0)), new.block)
            density, gradient = new.density(at)
        length = np.exp(step + JITTER * (rng.random((many, models)) - 0.5))[:, block]
        momentum = rng.standard_normal((many, len(block)))
        before = density - new.per_model(momentum**2, block) / 2
        there, slope = at, gradient
        momentum = momentum + 0.5 * length * (slope @ root)
        for turn in range(STEPS):
            there = there + (length * momentum) @ root.T
            ahead, slope = new.density(there)
            momentum = momentum + (length if turn < STEPS - 1 else 0.5 * length) * (slope @ root)
        gain = ahead - new.per_model(momentum**2, block) / 2 - before
        chance = np.exp(np.minimum(np.where(np.isfinite(gain), gain, -np.inf), 0.0))
        if sweep < sweeps // 2:
            step = np.minimum(
                step + (chance.mean(axis=0) - ACCEPTED) * min(1.0, 3 / np.sqrt(sweep + 1)), np.log(LONGEST)
            )
        accepted = rng.random((many, models)) < chance
        at = np.where(accepted[:, new.block], there, at)
        density = np.where(accepted, ahead, density)
        gradient = np.where(accepted[:, new.block], slope, gradient)
    ability, effects, scatter, factors = np.split(at, [new.first, new.second, new.third], axis=1)
    mean, _, total = new.general(ability)
    general = mean + rng.standard_normal((many, models)) / np.sqrt(total)
    abilities = general[:, :, None] + d.own[:, None] * rng.standard_normal((many, models, d.own.shape[1]))
    abilities[:, new.owner, new.kind] = ability
    free = factors.reshape(many, -1, models).swapaxes(1, 2)
    return np.concatenate([abilities, free], axis=2), effects, np.exp(scatter)


class _New:
    """What the scores of new models say of them, draw by draw of the scale: abilities, effects, scatter in one row."""

    def __init__(self, draws: JointDraws, codes: tuple[Array, Array, Array, Array], table: pd.DataFrame) -> None:
        self.model, test, self.pair, trait = codes
        self.own, self.effect_variance = draws.own, draws.evaluator_variance[:, None]
        known, self.slot = np.unique(self.model * self.own.shape[1] + trait, return_inverse=True)
        self.owner, self.kind = known // self.own.shape[1], known % self.own.shape[1]
        self.models = int(self.model.max()) + 1
        of_pair = np.empty(int(self.pair.max()) + 1, dtype=int)
        of_pair[self.pair] = self.model
        self.pulls = draws.tests[:, test, 2:]
        every = [np.arange(self.models)] * (1 + self.pulls.shape[2])
        self.block = np.concatenate([self.owner, of_pair, *every])
        # Where effects, scatter and free factors begin.
        self.first, self.second = len(known), len(known) + len(of_pair)
        self.third = self.second + self.models
        self.score, self.variance = table["score"].to_numpy(dtype=float), table["se"].to_numpy(dtype=float) ** 2
        self.ease, self.loading = draws.tests[:, test, 0], draws.tests[:, test, 1]
        self.curve = draws.floor[:, test], (draws.ceiling - draws.floor)[:, test]
        self.scatter = draws.scatter[:, test]

    def start(self) -> Array:
        """Return abilities by least squares on logits that are pulled off the ends, the same for every draw."""
        floor, width = (values.mean(axis=0) for values in self.curve)
        share = np.clip((self.score - floor) / width, 0.03, 0.97)
        loading = self.loading.mean(axis=0)
        ability = np.bincount(self.slot, np.log(share / (1 - share)) - self.ease.mean(axis=0))
        at = np.zeros((len(self.own), len(self.block)))
        at[:, : self.first] = np.clip(ability / np.bincount(self.slot, loading), -3, 3)
        return at

    def per_model(self, values: Array, code: Array) -> Array:
        """Sums over what is of one model, per draw."""
        return _summed(values, code, self.models)

    def general(self, ability: Array) -> tuple[Array, Array, Array]:
        """Return the mean of each model's general ability, the precisions of its abilities, and that of the mean."""
        precision = self.own[:, self.kind] ** -2
        total = _summed(precision, self.owner, self.models) + 1
        return _summed(precision * ability, self.owner, self.models) / total, precision, total

    def density(self, at: Array) -> tuple[Array, Array]:
        """Return the log density of each model, less a constant (R, models), and its gradient (R, parameters)."""
        ability, effect, spread, factors = np.split(at, [self.first, self.second, self.third], axis=1)
        logit = self.ease + self.loading * ability[:, self.slot] + effect[:, self.pair]
        of_factor = np.split(factors, self.pulls.shape[2], axis=1) if self.pulls.shape[2] else []
        for f, factor in enumerate(of_factor):
            logit = logit + self.pulls[:, :, f] * factor[:, self.model]
        scatter = self.scatter * np.exp(spread[:, self.model])
        cells, at_logit, _, _, at_spread = student(self.score, self.variance, logit, self.curve, scatter)
        mean, precision, _ = self.general(ability)
        away = ability - mean[:, self.owner]
        own = effect / self.effect_variance
        density = self.per_model(cells, self.model) - 0.5 * (spread / MODEL_SD) ** 2
        density -= 0.5 * sum(factor**2 for factor in of_factor)
        density -= 0.5 * self.per_model(
            np.hstack([precision * ability * away, effect * own]), self.block[: self.second]
        )
        gradient = [
            _summed(at_logit * self.loading, self.slot, self.first) - precision * away,
            _summed(at_logit, self.pair, self.second - self.first) - own,
            self.per_model(at_spread, self.model) - spread / MODEL_SD**2,
            *(
                self.per_model(at_logit * self.pulls[:, :, f], self.model) - factor
                for f, factor in enumerate(of_factor)
            ),
        ]
        return density, np.hstack(gradient)

    def curvature(self, at: Array) -> sparse.csr_matrix:
        """Return the expected curvature (parameters, parameters) at a point, for tests as they are on average."""
        ease, loading, scatter = (values.mean(axis=0) for values in (self.ease, self.loading, self.scatter))
        width = self.curve[1].mean(axis=0)
        effect = self.first + self.pair
        share = expit(ease + loading * at[self.slot] + at[effect])
        slope = width * share * (1 - share)
        spread = scatter * np.exp(at[self.second + self.model]) * slope**2
        weight = slope * np.sqrt((FREEDOM + 1) / (FREEDOM + 3) / (self.variance + spread))
        seen = np.sqrt(FREEDOM / (2 * (FREEDOM + 3))) * spread / (self.variance + spread)
        cell = np.arange(len(self.model))
        # Chains turn free factors as they like, so that only the size of a pull has a mean.
        pulls = np.sqrt((self.pulls**2).mean(axis=0)).T
        entries = [weight * loading, weight, seen, *(weight * pull for pull in pulls)]
        row = [cell, cell, *(len(cell) * (1 + extra) + cell for extra in range(1 + len(pulls)))]
        column = [self.slot, effect, self.second + self.model]
        column += [self.third + f * self.models + self.model for f in range(len(pulls))]
        where = (np.concatenate(row), np.concatenate(column))
        shape = (len(cell) * (2 + len(pulls)), len(self.block))
        rows = sparse.csr_matrix((np.concatenate(entries), where), shape)
        precision = self.own.mean(axis=0)[self.kind] ** -2
        total = np.bincount(self.owner, precision, self.models) + 1
        member = sparse.csr_matrix((precision, (self.owner, np.arange(self.first))), (self.models, len(self.block)))
        held = np.full(len(self.block), MODEL_SD**-2)
        held[: self.first] = precision
        held[self.third :] = 1.0
        held[self.first : self.second] = 1 / self.effect_variance.mean()
        return (rows.T @ rows + sparse.diags(held) - member.T @ sparse.diags(1 / total) @ member).tocsr()


def _summed(values: Array, code: Array, count: int) -> Array:
    """Sums over what has one code, per draw: (R, n) to (R, count)."""
    lines = np.arange(len(values))[:, None]
    return np.bincount((lines * count + code).ravel(), values.ravel(), len(values) * count).reshape(-1, count)
