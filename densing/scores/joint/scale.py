r"""The joint scale: abilities of all models on any basket of benchmarks, as draws, and how evaluators differ.

An ability is what an average evaluator would measure: the mean, over a basket of benchmarks, of the logit of a model's
share of what lies between floor and ceiling. Free factors have no names and no orientation; baskets have both.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from densing.core import (
    Array,
    Card,
    DensingError,
    InputError,
    Note,
    Readable,
    UnknownNameError,
    cache_folder,
    formatting,
    listing_of,
    named_seed,
    one_at_a_time,
    processes,
    replacing,
)
from densing.jobs import Tell, in_processes, in_turn
from densing.scores.catalog import Catalog
from densing.scores.joint import packing, posterior, sampler
from densing.scores.joint.cells import ENGLISH, Cells, catalog_cells
from densing.scores.joint.convergence import bulk_ess, r_hat
from densing.scores.joint.packing import pack, unpack
from densing.scores.joint.posterior import CEILING, FREEDOM, Posterior, index_cells
from densing.scores.joint.sampler import Pilot, pilot, sample

GENERAL, MULTILINGUAL = "general", "multilingual"
SKILLS = ("knowledge", "reasoning", "mathematics", "code")
"""What the general ability is the mean of."""
BASKET_SHARE = 0.1
"""A basket takes benchmarks that a tenth of the models were measured on: others are known from few models."""
CHAINS, SWEEPS, DRAWS = 4, 500, 500
PILOT_SHARE, BURN_SHARE = 0.8, 0.1
"""The pilot's length in sweeps of a chain; what each chain throws away, in sweeps of the pilot."""
USUAL = {"chains": CHAINS, "sweeps": SWEEPS, "burn": round(PILOT_SHARE * SWEEPS), "draws": DRAWS, "seed": 0}
SMALL = 300_000
"""Cells times sweeps of a chain up to which new processes would cost more than they save: a second or two."""
SHIPPED_SCALES = Path(__file__).with_name("data")
"""Where the scale of the embedded catalog lies; ``make shipped`` puts it there."""
KEPT_SCALES = 16
"""A back-test with three origins reads four."""
AT_END = 0.01
"""Share of what lies between floor and 1 up to which a score is at the floor."""
R_HAT_NOTED, R_HAT_WRONG = 1.05, 1.2
"""R-hat of an ability above which a scale says so, and of one in use above which that is an error (Vehtari et al. 2021
want 1.01, Gelman and Rubin 1992 1.2)."""
SHORTEST = 8
"""Draws of a chain below which its halves, of fewer than four, tell nothing."""


@dataclass(frozen=True)
class Basket:
    """What an ability is the mean over.

    Parameters
    ----------
    name : str
    weights : mapping of str to float
        Weight of each benchmark; they sum to 1.
    traits : mapping of str to float
        Weight of each trait's own effect; they sum to 1.
    """

    name: str
    weights: Mapping[str, float]
    traits: Mapping[str, float]


@dataclass(frozen=True)
class JointDraws:
    """Draws of the joint model, R of them, in single precision.

    Parameters
    ----------
    abilities : array, shape (R, models, traits + F)
        By trait, then free factors.
    own : array, shape (R, traits)
        Standard deviation of what models have on a trait beyond their general ability, which has one of 1.
    tests, benchmarks : array, shape (R, tests, 2 + F) and (R, benchmarks, 2 + F)
        Ease (minus difficulty), loading on the trait, pulls of the free factors.
    evaluators : array, shape (R, pairs)
        Effects of the (model, evaluator) pairs that occur.
    floor, ceiling, scatter : array, shape (R, tests)
        Ends of the curve; psi, the variance of a model's own on the scale of logits.
    model_scatter : array, shape (R, models)
        Factor kappa on psi, of order 1.
    evaluator_variance : array, shape (R,)
    test_variance : array, shape (R, 2 + F)
        Of eases, log loadings and pulls of tests around their benchmark's.
    typical_scatter : array, shape (R,)
        Median of psi over tests.
    """

    abilities: Array
    own: Array
    tests: Array
    benchmarks: Array
    evaluators: Array
    floor: Array
    ceiling: Array
    scatter: Array
    model_scatter: Array
    evaluator_variance: Array
    test_variance: Array
    typical_scatter: Array


@dataclass(frozen=True, repr=False)
class JointScale(Readable):
    """All cells of a catalog on one scale.

    Parameters
    ----------
    cells : Cells
        What was fitted.
    models, tests, benchmarks, traits : array of str
        Names in the order of the draws.
    pairs : array
        (model code, evaluator) of the effects of evaluators.
    draws : JointDraws
    options : mapping
        Chains, sweeps, burn, draws, seed. Draw r is of chain r modulo chains.
    notes : tuple of Note
        What to keep in mind.
    convergence : pandas.DataFrame
        Whether the chains agree: one row per ability, general and of every skill, the worst R-hat first. Columns
        ``basket, model, r_hat, ess``: rank-normalised split R-hat and bulk effective sample size (Vehtari et al. 2021)
        of all sweeps; none where a chain made fewer than :data:`SHORTEST`.
    placed : tuple of str
        Models that were placed on the scale afterwards, and had no part in it.

    See Also
    --------
    fit_joint, densing.scores.joint.place

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> scale = fit_joint(toy_cells(), draws=20, sweeps=20, burn=10)
    >>> scale.ability("general").shape == (20, len(scale.models))
    True
    """

    cells: Cells
    models: Array
    tests: Array
    benchmarks: Array
    traits: Array
    pairs: Array
    draws: JointDraws
    options: Mapping[str, Any]
    convergence: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())
    placed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.models)

    @cached_property
    def baskets(self) -> Mapping[str, Basket]:
        """Baskets by name: ``general``, every skill, ``multilingual``, and every language but English by its code."""
        return joint_baskets(replace(self.cells, table=self.cells.table[~self.cells.table["model"].isin(self.placed)]))

    def basket(self, name: str) -> Basket:
        """Return a basket.

        Raises
        ------
        UnknownNameError
            When the cells have no such skill or language.
        """
        if name not in self.baskets:
            raise UnknownNameError("basket of the joint scale", name, self.baskets)
        return self.baskets[name]

    def ability(self, basket: str | Basket = GENERAL, vectors: Array | None = None) -> Array:
        r"""Return the abilities of all models on a basket, by its name or one's own, shape (R, models), in logits.

        .. math:: \theta_m = \sum_b w_b (D_b + e^{L_b} x_{m,t(b)} + \Gamma_b^T y_m)

        Effects of evaluators are left out: an average evaluator has none. A basket may be that of another scale whose
        benchmarks this one has, too; ``vectors`` (R, m, traits + F) stand for other models than those of the scale.
        """
        weights = (basket if isinstance(basket, Basket) else self.basket(basket)).weights
        chosen = [b for b, name in enumerate(self.benchmarks) if name in weights]
        weight = np.array([weights[str(self.benchmarks[b])] for b in chosen])
        loadings = weight[:, None] * self.draws.benchmarks[:, chosen].astype(float)
        traits = len(self.traits)
        columns = np.zeros((len(loadings), self.draws.abilities.shape[2]))
        for position, b in enumerate(chosen):
            columns[:, self._trait_of[b]] += loadings[:, position, 1]
        columns[:, traits:] = loadings[:, :, 2:].sum(axis=1)
        ease = loadings[:, :, 0].sum(axis=1)
        vectors = self.draws.abilities if vectors is None else vectors
        return np.asarray(ease[:, None] + np.einsum("rk,rmk->rm", columns, vectors.astype(float)))

    @cached_property
    def _trait_of(self) -> Array:
        """Trait of each benchmark."""
        first = self.cells.table.drop_duplicates("benchmark").set_index("benchmark")["trait"]
        return np.searchsorted(self.traits, first.loc[self.benchmarks].to_numpy(dtype=str))

    def abilities(self, basket: str = GENERAL, level: float = 0.95) -> pd.DataFrame:
        """Return one row per model: ``model, ability, lo, hi, sd, cells, traits`` (measured of the basket's)."""
        draws = self.ability(basket)
        tail = (1 - level) / 2
        low, middle, high = np.quantile(draws, [tail, 0.5, 1 - tail], axis=0)
        table = self.cells.table
        traits = self.basket(basket).traits
        within = table[table["trait"].isin(list(traits))].groupby("model")["trait"].nunique()
        return pd.DataFrame(
            {
                "model": self.models,
                "ability": middle,
                "lo": low,
                "hi": high,
                "sd": draws.std(axis=0),
                "cells": table["model"].value_counts().reindex(self.models).to_numpy(),
                "traits": within.reindex(self.models).fillna(0).to_numpy(dtype=int),
            }
        )

    def predict(self, cells: pd.DataFrame, seed: int = 0, *, new: Mapping[str, Array] | None = None) -> Array:
        """Return draws of scores as they would be measured, shape (R, n): all noise and scatter included.

        Parameters
        ----------
        cells : pandas.DataFrame
            ``model, test, trait, evaluator, se``; models and tests of the scale.
        seed : int
        new : mapping of str to array (R, traits + F), optional
            Abilities of models that the scale has not seen, by name: all models of ``cells`` are then taken from here.
            How much such a model scatters is that of a model of the scale, drawn at random.

        Raises
        ------
        UnknownNameError
            For a model or a test that the scale has not seen.
        """
        rng = np.random.default_rng(named_seed(seed, "predict"))
        d = self.draws
        models, abilities, model_scatter = self.models, d.abilities, d.model_scatter
        if new is not None:
            models, abilities = np.array(list(new)), np.stack(list(new.values()), axis=1)
            picks = rng.integers(len(self.models), size=(len(abilities), len(models)))
            model_scatter = np.take_along_axis(model_scatter, picks, axis=1)
        codes = {}
        for column, names in (("model", models), ("test", self.tests)):
            positions = pd.Index(names).get_indexer(cells[column].to_numpy(dtype=str))
            if (positions < 0).any():
                raise UnknownNameError(
                    f"{column} of the joint scale", str(cells[column].iloc[positions.argmin()]), names
                )
            codes[column] = positions
        model, test = codes["model"], codes["test"]
        z = self._logits(d.tests[:, test], self._trait_of[self._benchmark_of[test]], abilities[:, model])
        pairs = () if new is not None else self.pairs
        known = {(int(m), str(name)): position for position, (m, name) in enumerate(pairs)}
        pair, labels = pd.MultiIndex.from_arrays([model, cells["evaluator"].to_numpy(dtype=str)]).factorize()
        drawn = rng.standard_normal((len(z), len(labels))) * np.sqrt(d.evaluator_variance)[:, None]
        for position, label in enumerate(labels):
            if label in known:
                drawn[:, position] = d.evaluators[:, known[label]]
        z = z + drawn[:, pair]
        floor, width, share = d.floor[:, test], (d.ceiling - d.floor)[:, test], expit(z)
        spread = d.scatter[:, test] * model_scatter[:, model] * (width * share * (1 - share)) ** 2
        noise = np.sqrt(cells["se"].to_numpy(dtype=float) ** 2 + spread)
        return np.asarray(floor + width * share + noise * rng.standard_t(FREEDOM, size=z.shape))

    @cached_property
    def _benchmark_of(self) -> Array:
        """Benchmark of each test."""
        first = self.cells.table.drop_duplicates("test").set_index("test")["benchmark"]
        return np.searchsorted(self.benchmarks, first.loc[self.tests].to_numpy(dtype=str))

    def _logits(self, loadings: Array, trait: Array, abilities: Array) -> Array:
        """Logits of abilities (R, n, traits + F) on tests (R, n, 2 + F) of traits (n,)."""
        own = np.take_along_axis(abilities, np.broadcast_to(trait, abilities.shape[:2])[..., None], axis=2)[..., 0]
        free = (loadings[:, :, 2:] * abilities[:, :, len(self.traits) :]).sum(axis=2)
        return np.asarray(loadings[:, :, 0] + loadings[:, :, 1] * own + free, dtype=float)

    def offsets(self, level: float = 0.95) -> pd.DataFrame:
        """Return how far each evaluator's test of a benchmark lies from an average one, in score.

        Returns
        -------
        pandas.DataFrame
            One row per test of a benchmark that has several: ``benchmark, evaluator, models, offset, lo, hi``; read at
            the mean of the models that the test measured. Sorted by benchmark, then offset.
        """
        d, tail = self.draws, (1 - level) / 2
        table = self.cells.table
        by_test = {str(test): rows for test, rows in table.groupby("test")}
        several = table.groupby("benchmark")["test"].nunique()
        benchmark_of = table.drop_duplicates("test").set_index("test")[["benchmark", "evaluator", "floor"]]
        positions = pd.Index(self.models)
        rows = []
        for j, test in enumerate(map(str, self.tests)):
            benchmark, evaluator, chance = benchmark_of.loc[test]
            if several[benchmark] < 2:
                continue
            b = int(np.searchsorted(self.benchmarks, benchmark))
            members = positions.get_indexer(by_test[test]["model"].to_numpy(dtype=str))
            typical = d.abilities[:, members].mean(axis=1, keepdims=True)
            trait = self._trait_of[[b]]
            here, usual = (
                expit(self._logits(loadings, trait, typical)[:, 0])
                for loadings in (d.tests[:, [j]], d.benchmarks[:, [b]])
            )
            gap = d.floor[:, j] + (d.ceiling - d.floor)[:, j] * here - chance - (CEILING - chance) * usual
            low, middle, high = np.quantile(gap, [tail, 0.5, 1 - tail])
            rows.append((benchmark, evaluator, len(members), middle, low, high))
        columns = ["benchmark", "evaluator", "models", "offset", "lo", "hi"]
        return pd.DataFrame(rows, columns=columns).sort_values(["benchmark", "offset"], ignore_index=True)

    @property
    def agreement(self) -> str:
        """How well the chains agree, in a sentence."""
        r_hats, draws = self.convergence["r_hat"], self.convergence["ess"]
        return (
            f"Over all abilities: worst R-hat {r_hats.max():.2f}, below {r_hats.quantile(0.95):.2f} for 95 % of them; "
            f"fewest effective draws {draws.min():.0f}, in the middle {draws.median():.0f}, of "
            f"{self.options['chains'] * self.options['sweeps']} sweeps"
        )

    def not_mixed(self, basket: str = GENERAL) -> Note | None:
        """Return what is to be said where chains disagree: an error where R-hat of a basket in use is above 1.2.

        Parameters
        ----------
        basket : str
            What is read off the scale; of the others a warning is enough.

        Returns
        -------
        Note or None
            None where no ability's R-hat is above 1.05.
        """
        table = self.convergence
        doubtful = int((table["r_hat"] > R_HAT_NOTED).sum())
        if not doubtful:
            return None
        worst = table.iloc[0]
        of_all = formatting.plural(len(table), "ability", "abilities")
        message = (
            f"the chains of the joint scale disagree on {doubtful} of {of_all}: "
            f"R-hat is {worst['r_hat']:.2f} for {worst['basket']} of {formatting.clean(worst['model'])}, and "
            f"{R_HAT_NOTED:g} is wanted; run longer chains"
        )
        used = table.loc[table["basket"].eq(basket), "r_hat"].max()
        details = {"r_hat": float(worst["r_hat"]), "ess": float(table["ess"].min()), "doubtful": doubtful}
        return Note("not-mixed", "error" if used > R_HAT_WRONG else "warning", message, details)

    def card(self) -> Card:
        """Return what is shown: how much is on the scale, and the ablest models."""
        facts = {
            "cells": str(len(self.cells)),
            "benchmarks": str(len(self.benchmarks)),
            "evaluators": str(self.cells.table["evaluator"].nunique()),
            "worst R-hat": f"{self.convergence['r_hat'].iloc[0]:.2f}",
            "fewest effective draws": f"{self.convergence['ess'].min():.0f}",
        }
        best = self.abilities().sort_values("ability", ascending=False, ignore_index=True)
        title = f"Joint scale of {formatting.plural(len(self), 'model')}"
        return Card(title, facts, listing_of(title, best), self.notes)


def joint_baskets(cells: Cells) -> Mapping[str, Basket]:
    """Return the baskets of a joint scale of some cells by name; nothing is fitted.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> from densing.scores.joint import catalog_cells
    >>> list(joint_baskets(catalog_cells(load_catalog(), "none")))[:3]
    ['general', 'code', 'knowledge']
    """
    table = cells.table
    facts = table.drop_duplicates("benchmark").set_index("benchmark")
    measured = table.groupby("benchmark")["model"].nunique()
    usual = set(measured.index[measured >= BASKET_SHARE * table["model"].nunique()])
    english = facts["language"].eq(ENGLISH)

    def basket(name: str, members: pd.Index) -> Basket:
        # A small skill keeps all it has: better known from few models than not at all.
        chosen = [benchmark for benchmark in members if benchmark in usual] or list(members)
        traits = facts.loc[chosen, "trait"].value_counts(normalize=True)
        return Basket(name, dict.fromkeys(chosen, 1 / len(chosen)), {str(t): float(w) for t, w in traits.items()})

    made = {
        str(skill): basket(str(skill), facts.index[english & facts["skill"].eq(skill)])
        for skill in sorted(set(facts.loc[english, "skill"]))
    }
    parts = [made[skill] for skill in SKILLS if skill in made] or list(made.values())
    abroad = facts.index[~english]
    if len(abroad):
        made[MULTILINGUAL] = basket(MULTILINGUAL, abroad)
        codes = facts.loc[abroad, "language"]
        made |= {str(code): basket(str(code), codes.index[codes == code]) for code in sorted(set(codes))}
        parts = parts or [made[MULTILINGUAL]]
    weights: dict[str, float] = {}
    traits: dict[str, float] = {}
    for part in parts:
        for target, source in ((weights, part.weights), (traits, part.traits)):
            for name, weight in source.items():
                target[name] = target.get(name, 0.0) + weight / len(parts)
    return {GENERAL: Basket(GENERAL, weights, traits), **made}


def fit_joint(
    cells: Cells,
    *,
    chains: int = CHAINS,
    sweeps: int = SWEEPS,
    burn: int | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    step: Callable[[str, float], None] = lambda label, share: None,
) -> JointScale:
    """Put all cells on one scale.

    Parameters
    ----------
    cells : Cells
        What to fit.
    chains : int
        Chains from one pilot, whose states are put together. Long ones run beside each other, each in a process.
    sweeps, burn : int
        Length of each chain and of the pilot, four fifths as much by default; a chain throws away a tenth of the
        pilot's length before it counts.
    draws : int
        States kept of all chains together, spread evenly over each.
    seed : int
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    JointScale
        With a warning where an ability's R-hat is above 1.05, an error where that of a general ability is above 1.2.
        The same for a seed on any number of processors.

    Raises
    ------
    InputError
        For options that make no chain, fewer than two models, scores that all lie at one end of their tests, or a chain
        whose process was killed.

    Notes
    -----
    Source: own model, see :mod:`densing.scores.joint.posterior`; the form without floors, evaluators and traits is that
    of the Epoch Capabilities Index (Epoch AI 2025).

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> scale = fit_joint(toy_cells(), draws=20, sweeps=20, burn=10)
    >>> order = scale.abilities().sort_values("ability")["model"].tolist()
    >>> order[0], order[-1]
    ('m0', 'm9')
    """
    burn = round(PILOT_SHARE * sweeps) if burn is None else burn
    if not (1 <= chains <= draws <= chains * sweeps and burn >= 0):
        raise InputError(
            f"joint scale: {draws} draws of {formatting.plural(chains, 'chain')} of {sweeps} sweeps after {burn}; "
            "draws lie between one per chain and all sweeps, the others are 0 or more"
        )
    index, names = index_cells(cells.table)
    if len(names["model"]) < 2:
        raise InputError(
            f"joint scale: {formatting.plural(len(names['model']), 'model')} cannot be compared; two are needed"
        )
    share = (index.score - index.chance[index.test]) / (1 - index.chance[index.test])
    for end, mask in (("floor", share <= AT_END), ("ceiling", share >= CEILING)):
        if mask.all():
            raise InputError(
                f"joint scale: all {len(share)} scores are at the {end} of their tests, so they cannot distinguish "
                "models"
            )
    options = {
        "chains": chains,
        "sweeps": sweeps,
        "burn": burn,
        "draws": draws,
        "seed": seed,
    }
    model = Posterior(index)
    length = round(BURN_SHARE * burn) + sweeps
    made = [0] * (chains + 1)

    def at(chain: int, sweep: int) -> None:
        made[chain] = sweep
        step("joint scale", sum(made) / (burn + chains * length))

    known = pilot(model, burn, named_seed(seed, "joint", "pilot"), partial(at, chains))
    work, numbers = partial(_chain, model=model, known=known, options=options), range(chains)
    if chains == 1 or len(index.score) * length <= SMALL:
        ended = in_turn(work, numbers, at)
    else:
        # Also on one processor: what a matrix product rounds to may depend on the threads, and here each has one.
        ended = in_processes(work, numbers, min(chains, processes.processors()), at)
    parts: list[Mapping[str, Array]] = [{}] * chains
    for done in ended:
        if done.row is None:
            raise InputError(f"joint scale: chain {done.item + 1} of {chains} has no draws: {done.reason}")
        parts[done.item] = done.row
    order = np.argsort(np.concatenate([np.arange(chain, draws, chains) for chain in numbers]))
    names_of = [item.name for item in fields(JointDraws)]
    pooled = JointDraws(**{name: np.concatenate([part[name] for part in parts])[order] for name in names_of})
    every = {name: np.concatenate([part[f"every_{name}"] for part in parts]) for name in EVERY}
    agreement = _convergence(_scale(cells, names, replace(pooled, **every), options, pd.DataFrame()), chains)
    return _noted(_scale(cells, names, pooled, options, agreement))


# Columns of convergence, as they are stored.
AGREEMENT = {"basket": str, "model": str, "r_hat": float, "ess": float}
# What abilities are read off, for which every sweep is kept to tell whether chains agree.
EVERY = ("abilities", "benchmarks")


def _chain(number: int, tell: Tell, *, model: Posterior, known: Pilot, options: Mapping[str, int]) -> dict[str, Array]:
    """Run one chain, and return every array of its draws."""
    burn, sweeps, chains = round(BURN_SHARE * options["burn"]), options["sweeps"], options["chains"]
    count = len(range(number, options["draws"], chains))
    turns = set(np.linspace(0, sweeps - 1, count).round().astype(int).tolist())
    seed = named_seed(options["seed"], "joint", str(number))
    rng = np.random.default_rng(named_seed(seed, "draws"))
    states = sample(model, known, sweeps, burn, seed, tell)
    drawn = [{name: np.float32(values) for name, values in model.draws(state, rng).items()} for state in states]
    kept = [drawn[turn] for turn in sorted(turns)]
    arrays = {name: np.stack([np.asarray(part[name]) for part in kept]) for name in kept[0]}
    return arrays | {f"every_{name}": np.stack([np.asarray(part[name]) for part in drawn]) for name in EVERY}


def _convergence(scale: JointScale, chains: int) -> pd.DataFrame:
    """Return R-hat and effective sample size of abilities: draws chain by chain, one after another."""
    parts = []
    for basket in (GENERAL, *(skill for skill in SKILLS if skill in scale.baskets)):
        draws = scale.ability(basket)
        by_chain = draws.reshape(chains, -1, draws.shape[1])
        enough = by_chain.shape[1] >= SHORTEST
        columns = {
            "model": scale.models,
            "r_hat": r_hat(by_chain) if enough else np.nan,
            "ess": bulk_ess(by_chain) if enough else np.nan,
        }
        parts.append(pd.DataFrame({"basket": basket, **columns}))
    return pd.concat(parts).sort_values("r_hat", ascending=False, ignore_index=True)


def _scale(
    cells: Cells,
    names: Mapping[str, Array],
    draws: JointDraws,
    options: Mapping[str, Any],
    convergence: pd.DataFrame,
) -> JointScale:
    """Put draws under the names of their cells."""
    return JointScale(
        cells=cells,
        models=names["model"],
        tests=names["test"],
        benchmarks=names["benchmark"],
        traits=names["trait"],
        pairs=names["pair"],
        draws=draws,
        options=options,
        convergence=convergence,
        notes=cells.notes,
    )


def _noted(scale: JointScale) -> JointScale:
    """Add a note where the chains have not converged."""
    note = scale.not_mixed()
    return scale if note is None else replace(scale, notes=(*scale.notes, note))


def catalog_scale(
    catalog: Catalog, *, own: str = "none", step: Callable[[str, float], None] = lambda label, share: None
) -> JointScale:
    """Return the joint scale of a catalog with the usual options; see :func:`usual_scale`.

    Parameters
    ----------
    catalog : Catalog
        Embedded, or with a user's rows.
    own, step
        As in :func:`joint_cells` and :func:`fit_joint`.

    See Also
    --------
    fit_joint
    """
    return usual_scale(catalog_cells(catalog, own), step=step)


def scale_name(cells: Cells) -> str:
    """Return the name of the file that keeps the usual scale of some cells: it tells cells, options and sampler."""
    sources = "".join(Path(str(module.__file__)).read_text("utf-8") for module in (posterior, sampler, packing))
    return f"joint-{hashlib.sha256(f'{cells.digest}{USUAL}{sources}'.encode()).hexdigest()[:24]}.npz"


def usual_scale(cells: Cells, *, step: Callable[[str, float], None] = lambda label, share: None) -> JointScale:
    """Return the joint scale of some cells with the usual options, fitted once and then kept on disk.

    That of the embedded catalog is shipped. The draws of another are stored in ``$DENSING_CACHE`` (by default
    ``densing`` in the user's cache folder) under a name that tells cells, options and sampler; nothing is stored where
    that folder cannot be written, and a damaged file is fitted anew. All are rounded as they are stored
    (:mod:`densing.scores.joint.packing`), so that what is read and what is fitted are one.

    Parameters
    ----------
    cells : Cells
    step : callable
        As in :func:`fit_joint`.

    See Also
    --------
    catalog_scale
    """
    name = scale_name(cells)
    if name in _FITTED:
        return _FITTED[name]
    path = cache_folder() / name
    scale = _read(SHIPPED_SCALES / name, cells) or _read(path, cells)
    if scale is None:
        # Of processes side by side one fits, and the others read what it stored.
        with one_at_a_time(path.with_suffix(".lock")):
            scale = _read(path, cells)
            if scale is None:
                fitted = fit_joint(cells, step=step)
                packed = _packed(fitted)
                _write(path, packed)
                scale = _unpacked(packed, cells)
    _FITTED.clear()
    _FITTED[name] = scale
    return scale


# The last scale of this process: commands and studies read the same one many times.
_FITTED: dict[str, JointScale] = {}


def _write(path: Path, packed: Mapping[str, Any]) -> None:
    with suppress(OSError, DensingError):
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **packed)
        # Every table of a user's own leaves a scale behind: the latest few are enough.
        stored = sorted(path.parent.glob("joint-*.npz"), key=lambda file: file.stat().st_mtime)
        for file in stored[:-KEPT_SCALES]:
            file.unlink(missing_ok=True)


def _read(path: Path, cells: Cells) -> JointScale | None:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return _unpacked(stored, cells)
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
        return None


def _packed(scale: JointScale) -> dict[str, Array]:
    """Return draws in few bytes, and how well the chains agree: that was told of every sweep, and draws are fewer."""
    packed = pack({item.name: getattr(scale.draws, item.name) for item in fields(JointDraws)})
    agreement = scale.convergence
    packed |= {f"convergence_{name}": agreement[name].to_numpy(dtype=kind) for name, kind in AGREEMENT.items()}
    return packed


def _unpacked(packed: Mapping[str, Array], cells: Cells) -> JointScale:
    arrays, (_, names) = unpack(packed), index_cells(cells.table)
    draws = JointDraws(**{item.name: arrays[item.name] for item in fields(JointDraws)})
    if draws.abilities.shape[:2] != (DRAWS, len(names["model"])):
        raise ValueError(f"draws {draws.abilities.shape} of other cells")
    agreement = pd.DataFrame({name: packed[f"convergence_{name}"] for name in AGREEMENT})
    return _noted(_scale(cells, names, draws, USUAL, agreement))
