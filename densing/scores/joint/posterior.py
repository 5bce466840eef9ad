r"""The joint model of all cells: its log density with the gradient, and how much the cells say of each parameter.

A cell is one score s of model m on test j (benchmark b, run by evaluator e), which asks for trait t:

.. math::
    s &\sim t_\nu(c_j + (u_j - c_j)\,\sigma(z),\; se^2 + \psi_j \kappa_m\, s'(z)^2), \quad
    z = d_j + e^{l_j} x_{mt} + \gamma_j^T y_m + h_{me} \\
    (d_j, l_j) &\sim N((D_b, L_b), \mathrm{diag}(w_d^2, w_l^2)), \quad
    (D_b, L_b) \sim N((\mu, \ell), \mathrm{diag}(v_d^2, v_l^2)) \\
    \gamma_j &\sim N(\Gamma_b, w_y^2 I), \quad \Gamma_b \sim N(0, v_y^2 I) \\
    x_{mt} &\sim N(g_m, s_t^2), \quad g_m \sim N(0, 1), \quad y_m \sim N(0, I), \quad h_{me} \sim N(0, s_h^2) \\
    \ln \psi_j &\sim N(p, 0.8^2), \quad \ln \kappa_m \sim N(0, 0.63^2)

Floors c lie near chance and ceilings u below 1 (label noise). A model has one general ability g and, by trait, what it
has of its own; where no test of a trait measured it, it has what the others let expect, and the error of that. The free
factors y are what tests of different traits share beyond that (a form of question, a prompt). h is what a model has of
its own with an evaluator, and the scatter psi kappa is what it has of its own on a test: on the scale of logits, so
that it vanishes at floor and ceiling, where s' (the curve's slope) does. Loadings are positive.

What is Gaussian and nobody asks for is integrated out in closed form: g, D, L and Gamma. Scales are logarithms, floors
and ceilings tanh of a number, so that every number is possible and moves are of one size.

Source: own; the parts are the two-parameter logistic model (Birnbaum 1968) with correlated dimensions, partial pooling
of tests (Gelman and Hill 2006, ch. 12-14) and Student errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit, ndtr, ndtri

from densing.core import Array

# A floor lies this near to chance (standard deviation), and no further than four of them; generated answers have none.
FLOOR_SD, FLOOR_REACH = 0.02, 4.0
# Benchmarks have wrong labels: a perfect model scores about 3 % less than all.
CEILING, CEILING_SD, LOWEST_CEILING = 0.97, 0.03, 0.8
# Between them there is at least this much.
NARROWEST = 0.1
FREEDOM = 4.0
# Standard deviations of ln psi over tests and of ln kappa over models.
SCATTER_SD, MODEL_SD = 0.8, 0.63
# Inverse-gamma prior of the variances, as (shape, scale): weak, on the scale of logits.
VARIANCE_PRIOR = (2.0, 0.02)
# Means and standard deviations of what is common to all tests, proper so that few tests suffice.
EASE, LOADING, OWN, SCATTER = (0.0, 3.0), (0.7, 1.0), (-1.5, 1.0), (-4.0, 3.0)
LN4 = float(np.log(4.0))

# What all cells share. The first two are means, the others logarithms of standard deviations, and the typical ln psi.
MEANS = ("ease_mean", "loading_mean")
SCALES = (
    "own",
    "evaluator",
    "ease_within",
    "loading_within",
    "pull_within",
    "ease_between",
    "loading_between",
    "pull_between",
    "typical",
)
FACTORS = 2


@dataclass(frozen=True)
class Index:
    """Integer codes of the cells: who, on what, by whom.

    Parameters
    ----------
    model, test, pair : array of int, shape (n,)
        Code of each cell; ``pair`` numbers the (model, evaluator) pairs that occur.
    benchmark, trait : array of int, shape (tests,)
        Benchmark and trait of each test.
    score, se : array, shape (n,)
    chance : array, shape (tests,)
    """

    model: Array
    test: Array
    pair: Array
    benchmark: Array
    trait: Array
    score: Array
    se: Array
    chance: Array


def index_cells(table: pd.DataFrame) -> tuple[Index, dict[str, Array]]:
    """Number what occurs in a table of cells.

    Returns
    -------
    Index
    dict of str to array
        Names in the order of the codes: ``model, test, benchmark, trait``, and ``pair`` as (model code, evaluator).
    """
    models, model = np.unique(table["model"].to_numpy(dtype=str), return_inverse=True)
    tests, test = np.unique(table["test"].to_numpy(dtype=str), return_inverse=True)
    first = table.drop_duplicates("test").set_index("test").loc[tests]
    benchmarks, benchmark = np.unique(first["benchmark"].to_numpy(dtype=str), return_inverse=True)
    traits, trait = np.unique(first["trait"].to_numpy(dtype=str), return_inverse=True)
    pair, pairs = pd.MultiIndex.from_arrays([model, table["evaluator"].to_numpy(dtype=str)]).factorize()
    index = Index(
        model=model,
        test=test,
        pair=pair,
        benchmark=benchmark,
        trait=trait,
        score=table["score"].to_numpy(dtype=float),
        se=table["se"].to_numpy(dtype=float),
        chance=first["floor"].to_numpy(dtype=float),
    )
    names = {"model": models, "test": tests, "benchmark": benchmarks, "trait": traits}
    return index, {**names, "pair": np.array(list(pairs), dtype=object)}


def ends(chance: Array) -> tuple[Array, Array]:
    """Return how far floors may lie from chance, and the lowest ceilings."""
    room = np.clip(0.7 - chance, 0, None)
    return np.minimum(np.minimum(FLOOR_REACH * FLOOR_SD, chance), room), np.maximum(LOWEST_CEILING, (1 + chance) / 2)


def student(
    score: Array, variance: Array, logit: Array, curve: tuple[Array, Array], scatter: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Return the log density of scores, less its constant, and its slopes.

    Parameters
    ----------
    score, variance : array
        Measured, and the variance of sampling the items.
    logit : array
        Of the share between floor and ceiling.
    curve : tuple of array
        Floor, and ceiling less floor.
    scatter : array
        Variance on the scale of logits, psi kappa.

    Returns
    -------
    tuple of array
        Log density; slopes in the logit, the floor, the ceiling and ln scatter.
    """
    floor, width = curve
    share = expit(logit)
    both = share * (1 - share)
    slope = width * both
    spread = scatter * slope**2
    total = variance + spread
    miss = score - floor - width * share
    squared = miss**2 / total
    # One logarithm, the dearest step of all, for both terms; the second is of the power FREEDOM + 1.
    grown = 1 + squared / FREEDOM
    fourth = (grown * grown) ** 2
    density = -0.5 * np.log(total * fourth * grown)
    weight = (FREEDOM + 1) / (FREEDOM + squared)
    at_curve = weight * miss / total
    at_spread = 0.5 / total * (weight * squared - 1) * spread
    at_logit = at_curve * slope + 2 * at_spread * (1 - 2 * share)
    # Ceiling less floor moves curve and slope: the floor's slope is what the curve's has beyond that.
    at_ceiling = at_curve * share + 2 * at_spread / width
    return density, at_logit, at_curve - at_ceiling, at_ceiling, at_spread


@dataclass(frozen=True)
class Point:
    """The log density at one point, in the parts that moves need.

    Parameters
    ----------
    cells : array, shape (n,)
    priors : array, shape (parameters,)
        What a parameter's prior gives; of means and scales that were integrated over, with the first mean.
    gradient : array, shape (parameters,)
    slopes : tuple of array
        Of the cells, as :func:`student` gives them.
    """

    cells: Array
    priors: Array
    gradient: Array
    slopes: tuple[Array, Array, Array, Array]

    @property
    def density(self) -> float:
        """Log density of scores and parameters, less a constant."""
        return float(self.cells.sum() + self.priors.sum())


class Posterior:
    """Log density of all parameters in one vector, given the cells.

    Parameters
    ----------
    index : Index

    Attributes
    ----------
    at : dict of str to slice
        Where in the vector a kind of parameter stands: the means and scales (:data:`MEANS`, :data:`SCALES`, ``own`` one
        per trait); ``ability``, one for each trait on which a model was measured (``owner``, ``kind``); ``effect``, one
        per pair of model and evaluator; ``ease, loading, floor, ceiling, scatter`` of each test (loading a logarithm);
        ``model_scatter``; ``pull_0`` and so on, what a free factor pulls on each test, and ``factor_0`` and so on, how
        much of it a model has.
    size : int
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.models, self.tests = int(index.model.max()) + 1, len(index.benchmark)
        self.pairs, self.traits = int(index.pair.max()) + 1, int(index.trait.max()) + 1
        self.per_benchmark = np.bincount(index.benchmark)
        known, self.slot = np.unique(index.model * self.traits + index.trait[index.test], return_inverse=True)
        self.owner, self.kind = known // self.traits, known % self.traits
        self.of_pair = np.empty(self.pairs, dtype=int)
        self.of_pair[index.pair] = index.model
        # Of a model that one evaluator measured nothing tells its effect from its ability: its prior alone holds it,
        # and it is written as a multiple of its scale, which may then move without it.
        self.alone = np.bincount(self.of_pair)[self.of_pair] == 1
        self.reach, self.lowest = ends(index.chance)
        self.variance = index.se**2
        sizes = dict.fromkeys((*MEANS, *SCALES), 1) | {"own": self.traits, "ability": len(known), "effect": self.pairs}
        sizes |= dict.fromkeys(("ease", "loading", "floor", "ceiling", "scatter"), self.tests)
        sizes["model_scatter"] = self.models
        # Free factors: what each pulls on a test, and how much of it a model has.
        self.pulls, self.factors = ([f"{kind}_{f}" for f in range(FACTORS)] for kind in ("pull", "factor"))
        sizes |= dict.fromkeys(self.pulls, self.tests) | dict.fromkeys(self.factors, self.models)
        last = np.cumsum(list(sizes.values()))
        self.at = {
            name: slice(int(end) - size, int(end)) for (name, size), end in zip(sizes.items(), last, strict=True)
        }
        self.size = int(last[-1])

    def places(self, *names: str) -> Array:
        """Return the positions of some kinds of parameters."""
        return np.concatenate([np.arange(self.at[name].start, self.at[name].stop) for name in names])

    def split(self, vector: Array) -> dict[str, Array]:
        """Return the parameters by kind."""
        return {name: vector[where] for name, where in self.at.items()}

    def effect_scale(self, q: dict[str, Array]) -> Array:
        """Return what turns the entries of ``effect`` into logits."""
        return np.where(self.alone, np.exp(q["evaluator"][0]), 1.0)

    def logit(self, q: dict[str, Array], effect: Array) -> Array:
        """Return the logits of the cells; effects as logits, too."""
        test = self.index.test
        z = q["ease"][test] + np.exp(q["loading"])[test] * q["ability"][self.slot] + effect[self.index.pair]
        for pull, factor in zip(self.pulls, self.factors, strict=True):
            z = z + q[pull][test] * q[factor][self.index.model]
        return np.asarray(z)

    def curve(self, q: dict[str, Array]) -> tuple[Array, Array, Array, Array]:
        """Return floors and ceilings, and what they move by with their parameters."""
        floor, ceiling = np.tanh(q["floor"]), np.tanh(q["ceiling"])
        half = (1 - self.lowest) / 2
        return (
            self.index.chance + self.reach * floor,
            self.lowest + half * (1 + ceiling),
            self.reach * (1 - floor**2),
            half * (1 - ceiling**2),
        )

    def general(self, q: dict[str, Array]) -> tuple[Array, Array, Array]:
        """Return the mean of each model's general ability given the others, their precisions, and its own."""
        precision = np.exp(-2 * q["own"])[self.kind]
        total = np.bincount(self.owner, precision, self.models) + 1
        return np.bincount(self.owner, precision * q["ability"], self.models) / total, precision, total

    def kinds(self) -> dict[str, tuple[str, str | None]]:
        """Return which parameters of tests are shrunk to their benchmark's: name of the scales, and of the mean."""
        named: dict[str, tuple[str, str | None]] = {name: (name, f"{name}_mean") for name in ("ease", "loading")}
        return named | dict.fromkeys(self.pulls, ("pull", None))

    def of_benchmarks(self, q: dict[str, Array], kind: str) -> tuple[Array, Array, float, float, Array]:
        """Return tests' values less the mean of all, the benchmarks' means of those, and precisions.

        The mean of a benchmark is that given its tests'; precisions are within, between, and of that mean.
        """
        scale, mean = self.kinds()[kind]
        within, between = np.exp(-2 * q[f"{scale}_within"][0]), np.exp(-2 * q[f"{scale}_between"][0])
        total = between + self.per_benchmark * within
        away = q[kind] - (q[mean][0] if mean else 0.0)
        return away, within * np.bincount(self.index.benchmark, away) / total, within, between, total

    def draw_benchmarks(self, vector: Array, rng: np.random.Generator) -> Array:
        """Draw eases, log loadings and pulls of the benchmarks given those of their tests: (2 + F, benchmarks)."""
        q = self.split(vector)
        drawn = []
        for kind, (_, name) in self.kinds().items():
            _, mean, _, _, total = self.of_benchmarks(q, kind)
            drawn.append((q[name][0] if name else 0.0) + mean + rng.standard_normal(len(mean)) / np.sqrt(total))
        return np.array(drawn)

    def draw_abilities(self, vector: Array, rng: np.random.Generator) -> Array:
        """Return the abilities on all traits, drawn where none was measured, and the factors: (models, traits + F)."""
        q = self.split(vector)
        mean, _, total = self.general(q)
        general = mean + rng.standard_normal(self.models) / np.sqrt(total)
        abilities = general[:, None] + np.exp(q["own"]) * rng.standard_normal((self.models, self.traits))
        abilities[self.owner, self.kind] = q["ability"]
        return np.column_stack([abilities, *(q[name] for name in self.factors)])

    def draws(self, vector: Array, rng: np.random.Generator) -> dict[str, Array]:
        """Return what a state says of models, tests and benchmarks, with what was integrated out drawn.

        The names are those of :class:`~densing.scores.joint.scale.JointDraws`.
        """
        q = self.split(vector)
        floor, ceiling, _, _ = self.curve(q)
        ease, loading, *pulls = self.draw_benchmarks(vector, rng)
        return {
            "abilities": self.draw_abilities(vector, rng),
            "own": np.exp(q["own"]),
            "tests": np.column_stack([q["ease"], np.exp(q["loading"]), *(q[name] for name in self.pulls)]),
            "benchmarks": np.column_stack([ease, np.exp(loading), *pulls]),
            "evaluators": q["effect"] * self.effect_scale(q),
            "floor": floor,
            "ceiling": ceiling,
            "scatter": np.exp(q["scatter"]),
            "model_scatter": np.exp(q["model_scatter"]),
            "evaluator_variance": np.exp(2 * q["evaluator"][0]),
            "test_variance": np.exp(2 * np.concatenate([q[f"{scale}_within"] for scale, _ in self.kinds().values()])),
            "typical_scatter": np.exp(q["typical"][0]),
        }

    def point(self, vector: Array, benchmarks: Array | None = None, near: Point | None = None) -> Point:
        """Return the log density and its gradient.

        Parameters
        ----------
        vector : array, shape (parameters,)
        benchmarks : array, shape (2, benchmarks), optional
            Eases and log loadings of the benchmarks, as :meth:`draw_benchmarks` draws them: tests are then independent
            of each other. The gradient in means and scales is not given.
        near : Point, optional
            One at which every cell's logit, curve and scatter are the same.
        """
        index, at = self.index, self.at
        q = self.split(vector)
        priors, gradient = np.zeros(self.size), np.zeros(self.size)
        test, model, tests = index.test, index.model, self.tests
        effect_scale = self.effect_scale(q)
        effect, loading, ability = q["effect"] * effect_scale, np.exp(q["loading"]), q["ability"][self.slot]
        floor, ceiling, by_floor, by_ceiling = self.curve(q)
        if near is None:
            cells, *slopes_of = student(
                index.score,
                self.variance,
                self.logit(q, effect),
                (floor[test], (ceiling - floor)[test]),
                np.exp(q["scatter"])[test] * np.exp(q["model_scatter"])[model],
            )
            at_cells = (slopes_of[0], slopes_of[1], slopes_of[2], slopes_of[3])
        else:
            cells, at_cells = near.cells, near.slopes
        at_logit, at_floor, at_ceiling, at_spread = at_cells

        mean, precision, total = self.general(q)
        away = q["ability"] - mean[self.owner]
        # A model's share of the determinant stands with its abilities.
        share = np.log(total) / np.maximum(np.bincount(self.owner, minlength=self.models), 1)
        priors[at["ability"]] = -0.5 * (precision * q["ability"] * away + share[self.owner]) - q["own"][self.kind]
        gradient[at["ability"]] = np.bincount(self.slot, at_logit * loading[test]) - precision * away
        known = precision * away**2 - 1 + precision / total[self.owner]
        gradient[at["own"]] = np.bincount(self.kind, known, self.traits)

        spread = np.exp(q["evaluator"][0])
        scaled = np.where(self.alone, q["effect"], q["effect"] / spread)
        per_pair = np.bincount(index.pair, at_logit)
        priors[at["effect"]] = -0.5 * scaled**2 - np.where(self.alone, 0.0, q["evaluator"][0])
        gradient[at["effect"]] = per_pair * effect_scale - np.where(self.alone, scaled, scaled / spread)
        gradient[at["evaluator"]] = np.where(self.alone, per_pair * effect, scaled**2 - 1).sum()

        slopes = {"ease": at_logit, "loading": at_logit * ability}
        for pull, factor in zip(self.pulls, self.factors, strict=True):
            slopes[pull] = at_logit * q[factor][model]
            gradient[at[factor]] = np.bincount(model, at_logit * q[pull][test], self.models) - q[factor]
            priors[at[factor]] = -0.5 * q[factor] ** 2
        for row, (kind, (scale, name)) in enumerate(self.kinds().items()):
            here = np.bincount(test, slopes[kind], tests) * (loading if kind == "loading" else 1.0)
            over, middle, within, between, whole = self.of_benchmarks(q, kind)
            if benchmarks is not None:
                rest = q[kind] - benchmarks[row][index.benchmark]
                priors[at[kind]] = -0.5 * within * rest**2
                gradient[at[kind]] = here - within * rest
                continue
            rest = over - middle[index.benchmark]
            priors[at[kind]] = -0.5 * within * over * rest - q[f"{scale}_within"]
            priors[at["ease_mean"]] -= 0.5 * np.log(whole).sum() + len(middle) * q[f"{scale}_between"]
            gradient[at[kind]] = here - within * rest
            gradient[at[f"{scale}_within"]] += (
                within * rest @ rest - tests + (self.per_benchmark * within / whole).sum()
            )
            gradient[at[f"{scale}_between"]] += between * middle @ middle + (between / whole - 1).sum()
            if name:
                gradient[at[name]] = between * middle.sum()

        for name, slope, moved, (centre, sd), value in (
            ("floor", at_floor, by_floor, (index.chance, FLOOR_SD), floor),
            ("ceiling", at_ceiling, by_ceiling, (CEILING, CEILING_SD), ceiling),
        ):
            # The determinant of tanh is sech^2; where nothing can move, that alone is the prior.
            far, size = (value - centre) / sd, np.abs(q[name])
            priors[at[name]] = np.where(moved > 0, -0.5 * far**2, 0.0) + LN4 - 2 * (size + np.log1p(np.exp(-2 * size)))
            gradient[at[name]] = (np.bincount(test, slope, tests) - far / sd) * moved - 2 * np.tanh(q[name])

        rest = (q["scatter"] - q["typical"]) / SCATTER_SD
        priors[at["scatter"]] = -0.5 * rest**2
        gradient[at["scatter"]] = np.bincount(test, at_spread, tests) - rest / SCATTER_SD
        gradient[at["typical"]] = rest.sum() / SCATTER_SD
        rest = q["model_scatter"] / MODEL_SD
        priors[at["model_scatter"]] = -0.5 * rest**2
        gradient[at["model_scatter"]] = np.bincount(model, at_spread, self.models) - rest / MODEL_SD

        for name, (centre, sd) in zip((*MEANS, "own", "typical"), (EASE, LOADING, OWN, SCATTER), strict=True):
            rest = (q[name] - centre) / sd
            priors[at[name]] -= 0.5 * rest**2
            gradient[at[name]] -= rest / sd
        shape, rate = VARIANCE_PRIOR
        for name in (
            "evaluator",
            *(f"{kind}_{way}" for kind in ("ease", "loading", "pull") for way in ("within", "between")),
        ):
            inverse = rate * np.exp(-2 * q[name])
            priors[at[name]] -= 2 * shape * q[name] + inverse
            gradient[at[name]] -= 2 * shape - 2 * inverse
        return Point(cells, priors, gradient, at_cells)

    def slopes(self, vector: Array) -> tuple[dict[str, Array], Array, Array, Array]:
        """Return the parameters by kind, each cell's slope in its logit, variance, and scatter's part of that."""
        q, index = self.split(vector), self.index
        effect = q["effect"] * self.effect_scale(q)
        logit = self.logit(q, effect)
        floor, ceiling, _, _ = self.curve(q)
        share = expit(logit)
        slope = (ceiling - floor)[index.test] * share * (1 - share)
        spread = np.exp(q["scatter"][index.test] + q["model_scatter"][index.model]) * slope**2
        return q, slope, self.variance + spread, spread / (self.variance + spread)

    def information(self, vector: Array) -> tuple[sparse.csr_matrix, int]:
        r"""Return F with :math:`F^T F` the expected curvature at a point, and how many of its rows are the cells'.

        Fisher information of Student errors [Lange, Little and Taylor 1989, eq. 5] plus the priors' precisions.
        """
        index, at = self.index, self.at
        q, slope, variance, part = self.slopes(vector)
        _, _, by_floor, by_ceiling = self.curve(q)
        test, model = index.test, index.model
        loading, ability = np.exp(q["loading"])[test], q["ability"][self.slot]
        # The share from the slope would have two values.
        share = expit(self.logit(q, q["effect"] * self.effect_scale(q)))
        weight = np.sqrt((FREEDOM + 1) / (FREEDOM + 3) / variance)
        rows: list[Array] = []
        columns: list[Array] = []
        values: list[Array] = []
        made = 0

        def add(*terms: tuple[Array | int, Array | float]) -> None:
            nonlocal made
            count = max(max(np.size(where), np.size(value)) for where, value in terms)
            for where, value in terms:
                rows.append(np.arange(made, made + count))
                columns.append(np.broadcast_to(where, count))
                values.append(np.broadcast_to(value, count))
            made += count

        steep = slope * weight
        add(
            (at["ease"].start + test, steep),
            (at["loading"].start + test, steep * ability * loading),
            (at["ability"].start + self.slot, steep * loading),
            (at["effect"].start + index.pair, steep * self.effect_scale(q)[index.pair]),
            (at["floor"].start + test, (1 - share) * by_floor[test] * weight),
            (at["ceiling"].start + test, share * by_ceiling[test] * weight),
            *(
                (at[name].start + test, steep * q[other][model])
                for name, other in zip(self.pulls, self.factors, strict=True)
            ),
            *(
                (at[name].start + model, steep * q[other][test])
                for name, other in zip(self.factors, self.pulls, strict=True)
            ),
        )
        seen = np.sqrt(FREEDOM / (2 * (FREEDOM + 3))) * part
        add((at["scatter"].start + test, seen), (at["model_scatter"].start + model, seen))
        of_cells = made

        # Roots of precisions of the form D - D 1 1' D / total, D diagonal.
        _, precision, total = self.general(q)
        root = np.sqrt(precision)
        shrink = (1 - 1 / np.sqrt(total)) / np.maximum(total - 1, 1e-12)
        member = sparse.csr_matrix((root, (self.owner, np.arange(len(root)))), (self.models, len(root)))
        common = (member.T @ sparse.diags(shrink) @ member).tocoo()
        add((self.places("ability"), root))
        rows.append(of_cells + common.row)
        columns.append(at["ability"].start + common.col)
        values.append(-common.data * root[common.col])
        add((self.places("effect"), np.where(self.alone, 1.0, np.exp(-q["evaluator"][0]))))
        for kind, (_, name) in self.kinds().items():
            _, _, within, between, _ = self.of_benchmarks(q, kind)
            count = self.per_benchmark.astype(float)
            shrink = (1 - 1 / np.sqrt(1 + count * within / between)) / count
            member = sparse.csr_matrix(
                (np.ones(self.tests), (index.benchmark, np.arange(self.tests))), (len(count), self.tests)
            )
            root_of = (sparse.identity(self.tests) - member.T @ sparse.diags(shrink) @ member).tocoo() * np.sqrt(within)
            rows.append(made + root_of.row)
            columns.append(at[kind].start + root_of.col)
            values.append(root_of.data)
            made += self.tests if name is None else 0
            if name:
                add((at[name].start, -np.sqrt(within) * (1 - (shrink * count)[index.benchmark])))
        for name, moved, sd in (("floor", by_floor, FLOOR_SD), ("ceiling", by_ceiling, CEILING_SD)):
            add((self.places(name), np.sqrt((moved / sd) ** 2 + 2 * (1 - np.tanh(q[name]) ** 2))))
        add((self.places("scatter"), 1 / SCATTER_SD), (at["typical"].start, -1 / SCATTER_SD))
        add((self.places("model_scatter"), 1 / MODEL_SD))
        add((self.places(*self.factors), 1.0))
        for name, (_, sd) in zip((*MEANS, "typical"), (EASE, LOADING, SCATTER), strict=True):
            add((self.places(name), 1 / sd))
        benchmarks = len(self.per_benchmark)
        counts = {"evaluator": self.pairs}
        for kind, times in (("ease", 1), ("loading", 1), ("pull", FACTORS)):
            within_count = max(self.tests - benchmarks, 1)
            counts |= {f"{kind}_within": times * within_count, f"{kind}_between": times * benchmarks}
        for name, number in counts.items():
            add((self.places(name), np.sqrt(2.0 * number)))
        known = np.bincount(self.kind, 1 - precision / total[self.owner], self.traits)
        add((self.places("own"), np.sqrt(2 * known + OWN[1] ** -2)))
        matrix = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return sparse.csr_matrix(matrix, (made, self.size)), of_cells

    def start(self, turns: int = 100, steps: int = 60) -> Array:
        """Return where to begin: least squares on logits pulled off the ends, then uphill with all scales fixed."""
        index = self.index
        share = np.clip((index.score - index.chance[index.test]) / (1 - index.chance[index.test]), 0.03, 0.97)
        logit = np.log(share / (1 - share))
        ability = np.zeros(self.models)
        per_test, per_model = np.bincount(index.test), np.bincount(index.model)
        for _ in range(turns):
            ease = np.bincount(index.test, logit - ability[index.model]) / per_test
            ability = np.bincount(index.model, logit - ease[index.test]) / per_model
        spread = max(float(ability.std()), 0.1)
        values = {
            "loading_mean": np.log(spread),
            "own": -1.8,
            "evaluator": -1.4,
            "ease_within": -1.4,
            "loading_within": -1.9,
            "ease_between": 0.5,
            "loading_between": -0.7,
            "pull_within": -1.8,
            "pull_between": -1.2,
            "typical": -4.0,
            "ability": ((ability - ability.mean()) / spread)[self.owner],
            "ease": ease + ability.mean(),
            "ease_mean": float((ease + ability.mean()).mean()),
            "loading": np.log(spread),
            "ceiling": 0.8,
            "scatter": -4.0,
        }
        vector = np.zeros(self.size)
        for name, value in values.items():
            vector[self.at[name]] = value
        # Free factors have no sign, so that none would ever move from nothing.
        some = np.random.default_rng(0)
        for name in (*self.pulls, *self.factors):
            vector[self.at[name]] = 0.2 * some.standard_normal(self.at[name].stop - self.at[name].start)
        free = np.ones(self.size, dtype=bool)
        free[self.places("loading_mean", *SCALES)] = False

        def uphill(values: Array) -> tuple[float, Array]:
            moved = vector.copy()
            moved[free] = values
            point = self.point(moved)
            return -point.density, -point.gradient[free]

        vector[free] = minimize(uphill, vector[free], jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
        return vector


def truncated(mean: Array, sd: Array, lowest: Array | float, highest: Array | float, rng: np.random.Generator) -> Array:
    """Draw from normal distributions between two limits."""
    low, high = (lowest - mean) / sd, (highest - mean) / sd
    # The distribution function resolves its left tail only, so an interval on the right is mirrored.
    mirrored = low + high > 0
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    below = ndtr(np.maximum(low, -37.0))
    drawn = ndtri(below + rng.random(np.shape(mean)) * (ndtr(np.maximum(high, -37.0)) - below))
    drawn = np.clip(np.where(mirrored, -drawn, drawn), np.where(mirrored, -high, low), np.where(mirrored, -low, high))
    return np.asarray(mean + sd * drawn)
