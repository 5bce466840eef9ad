r"""Draws from the joint model: Hamiltonian moves of models, of tests, and along what holds all of them together.

One sweep makes five moves, each of which leaves the posterior as it is:

1. abilities, factors, effects and scatter of every model, tests as they are: models are then independent, and each
   accepts or rejects for itself;
2. the means over benchmarks;
3. the slow directions: along the least certain abilities and effects, tests following so that no score changes to first
   order. Alternating between models and tests would creep along these: if all abilities were higher and all tests
   harder, every score would be the same;
4. what the tests of a benchmark share, models as they are: all its tests become easier together;
5. every test, models as they are, given draws of the benchmarks.

Moves are scaled by the expected curvature, and their steps tuned to four acceptances in five, in a pilot chain. The
pilot estimates some scales of groups, too (:data:`KNOWN`): what models have of their own, how loadings differ, how much
scores scatter. They mix more slowly than all else and hardly widen an interval, so chains take them as known (empirical
Bayes). How eases differ between and within benchmarks is drawn: of few benchmarks it is known badly.

Source: Neal (2011), MCMC using Hamiltonian dynamics; Hoffman and Gelman (2014) for the acceptance aimed at; own for the
moves along slow directions, which are partly collapsed and ancillary in the sense of Yu and Meng (2011).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from densing.core import Array
from densing.scores.joint.posterior import FREEDOM, MEANS, SCALES, Point, Posterior

ACCEPTED = 0.8
LONGEST = 1.2
JITTER = 0.2
# Steps of a move of models, means, slow directions, tests.
STEPS = {"models": 3, "means": 2, "slow": 5, "tests": 5, "benchmarks": 3}
SLOW = 100
# Shares of the pilot with the first metric, with the second, with the last scales free, and with them fixed.
PILOT = (0.15, 0.15, 0.55, 0.15)
NARROW = 0.05
# The scales that the pilot finds and chains keep.
KNOWN = ("own", "evaluator", "loading_within", "loading_between", "pull_within", "pull_between", "typical")


class Move:
    """Hamiltonian dynamics in some coordinates, in blocks that are independent of each other given all else.

    Parameters
    ----------
    basis : sparse matrix or array, shape (parameters, coordinates)
        What a coordinate moves.
    of_coordinate, of_parameter, of_cell : array of int
        Block of each; -1 for parameters that stay.
    steps : int
    of_priors : bool
        Whether the move changes priors alone, and no cell's logit.
    """

    def __init__(
        self,
        basis: sparse.csr_matrix | Array,
        of_coordinate: Array,
        of_parameter: Array,
        of_cell: Array,
        steps: int,
        *,
        of_priors: bool = False,
    ) -> None:
        self.basis = basis
        self.back = basis.T.tocsr() if isinstance(basis, sparse.csr_matrix) else np.ascontiguousarray(basis.T)
        self.block, self.of_cell, self.steps, self.of_priors = of_coordinate, of_cell, steps, of_priors
        self.blocks = int(of_coordinate.max()) + 1
        self.moved = np.flatnonzero(of_parameter >= 0)
        self.of_moved = of_parameter[self.moved]
        self.log_step = np.full(self.blocks, np.log(0.3))
        self.tuned = 0

    def energies(self, point: Point) -> Array:
        """Return the log density of each block."""
        cells = np.bincount(self.of_cell, point.cells, self.blocks)
        return cells + np.bincount(self.of_moved, point.priors[self.moved], self.blocks)

    def begin(self, vector: Array) -> None:
        """Remember what must not change along the way."""

    def shift(self, vector: Array, by: Array) -> Array:
        """Return the vector moved by some coordinates."""
        return np.asarray(vector + self.basis @ by)

    def slope(self, vector: Array, gradient: Array) -> Array:
        """Return the gradient in the coordinates."""
        return np.asarray(self.back @ gradient)

    def __call__(
        self,
        posterior: Posterior,
        vector: Array,
        point: Point,
        rng: np.random.Generator,
        *,
        tune: bool,
        benchmarks: Array | None = None,
    ) -> tuple[Array, Point]:
        """Return where the move ends, and the point there, with benchmarks integrated out again."""
        # A path that leaves all bounds ends at no density, and is refused.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            there, at, chance = self._path(posterior, vector, point, rng, benchmarks)
        accepted = rng.random(self.blocks) < chance
        if tune:
            self.tuned += 1
            self.log_step = np.minimum(
                self.log_step + (chance - ACCEPTED) * min(1.0, 3 / np.sqrt(self.tuned)), np.log(LONGEST)
            )
        if self.blocks == 1:
            return (there, at) if accepted[0] else (vector, point)
        taken = np.zeros(len(vector), dtype=bool)
        taken[self.moved] = accepted[self.of_moved]
        vector = np.where(taken, there, vector)
        return vector, posterior.point(vector)

    def _path(
        self, posterior: Posterior, vector: Array, point: Point, rng: np.random.Generator, benchmarks: Array | None
    ) -> tuple[Array, Point, Array]:
        """Follow the dynamics from one point: where they end, and each block's chance to go there."""
        step = np.exp(self.log_step + JITTER * (rng.random(self.blocks) - 0.5))[self.block]
        momentum = rng.standard_normal(len(self.block))
        before = self.energies(point) - np.bincount(self.block, momentum**2, self.blocks) / 2
        self.begin(vector)
        there, at = vector, point
        momentum = momentum + 0.5 * step * self.slope(there, at.gradient)
        last = int(rng.integers(max(1, self.steps - 1), self.steps + 2)) - 1
        for turn in range(last + 1):
            there = self.shift(there, step * momentum)
            at = posterior.point(there, benchmarks, point if self.of_priors else None)
            momentum = momentum + (step if turn < last else 0.5 * step) * self.slope(there, at.gradient)
        gain = self.energies(at) - np.bincount(self.block, momentum**2, self.blocks) / 2 - before
        chance = np.exp(np.minimum(np.where(np.isfinite(gain), gain, -np.inf), 0.0))
        return there, at, chance


class Slow(Move):
    r"""All models at once, along the directions in which they are least certain; tests follow.

    Of every test the logit at the weighted mean of its models' abilities and the slope there are kept:

    .. math:: \alpha_j = d_j + e^{l_j} \bar x_j + \bar h_j, \quad \beta_j = l_j + \ln s_j

    with :math:`\bar x_j`, :math:`\bar h_j` means and :math:`s_j` a contrast of the abilities, all linear with weights
    from the cells' information at a reference point. (x, h, d, l) to (x, h, alpha, beta) has determinant 1. Coordinates
    move alpha and beta beside the models.

    Parameters
    ----------
    posterior : Posterior
    reference : array
    information : sparse matrix
        As :meth:`Posterior.information` gives it at the reference.
    of_cells : int
        Its rows that are cells'.
    count : int
        Directions.
    scales : bool
        Whether scales of models' own abilities and effects move, too.
    """

    def __init__(
        self,
        posterior: Posterior,
        reference: Array,
        information: sparse.csr_matrix,
        of_cells: int,
        count: int,
        scales: bool,
    ) -> None:
        q, slope, variance, _ = posterior.slopes(reference)
        test, tests, size = posterior.index.test, posterior.tests, posterior.size
        ability, loading = q["ability"][posterior.slot], np.exp(q["loading"])
        weight = slope**2 / variance * (FREEDOM + 1) / (FREEDOM + 3) + 1e-6
        share = weight / np.bincount(test, weight)[test]
        mean = np.bincount(test, share * ability)
        away = ability - mean[test]
        held = np.bincount(test, weight * away**2) * loading**2 + np.exp(-2 * q["loading_within"][0])
        contrast = weight * away * (loading**2 / held)[test]

        def functional(values: Array, column: Array, columns: int) -> sparse.csr_matrix:
            return sparse.csr_matrix((values, (test, column)), (tests, columns))

        self.at, self.posterior = posterior.at, posterior
        self.mean = functional(share, posterior.slot, len(posterior.owner))
        self.contrast = functional(contrast, posterior.slot, len(posterior.owner))
        self.effects = functional(share, posterior.index.pair, posterior.pairs)
        self.models = functional(share, posterior.index.model, posterior.models)
        self.usual = self.contrast @ q["ability"]
        self.turned = tuple(matrix.T.tocsr() for matrix in (self.mean, self.contrast, self.effects, self.models))
        self.kept = (np.empty(0), np.empty(0))

        # How all parameters move with those of the models, at the reference.
        own = posterior.places("ability", "effect", *posterior.factors)

        def placed(matrix: sparse.csr_matrix, row: str, column: str) -> sparse.csr_matrix:
            entries = matrix.tocoo()
            where = (entries.row + self.at[row].start, entries.col + self.at[column].start)
            return sparse.csr_matrix((entries.data, where), (size, size))

        scale = posterior.effect_scale(q)
        by_ability = -sparse.diags(loading) @ self.mean + sparse.diags(loading * mean) @ self.contrast
        following = (
            sparse.identity(size)
            + placed(by_ability.tocsr(), "ease", "ability")
            + placed(-(self.effects @ sparse.diags(scale)).tocsr(), "ease", "effect")
            + placed(-self.contrast, "loading", "ability")
        )
        for pull, factor in zip(posterior.pulls, posterior.factors, strict=True):
            following = following + placed(-(sparse.diags(q[pull]) @ self.models).tocsr(), "ease", factor)
        # Whitened by what tells a model's parameters from each other while tests stay, the least certain directions are
        # those along which moves of models alone and of tests alone would creep.
        each = [np.arange(posterior.models)] * len(posterior.factors)
        members = np.full(size, -1)
        members[own] = np.concatenate([posterior.owner, posterior.of_pair, *each])
        root, _ = roots((information.T @ information).tocsr(), members)
        following = following.tocsr()
        forward = (root, following, information)
        backward = tuple(matrix.T.tocsr() for matrix in reversed(forward))

        def product(values: Array) -> Array:
            for matrix in (*forward, *backward):
                values = matrix @ values
            return values

        count = min(count, len(own) - 1)
        operator = LinearOperator((len(own), len(own)), matvec=product, dtype=float)
        start = np.random.default_rng(0).standard_normal(len(own))
        basket = min(len(own), 2 * count + 20)
        curvatures, directions = eigsh(operator, k=count, which="SA", tol=1e-2, ncv=basket, v0=start)
        basis = (root @ directions) / np.sqrt(np.maximum(curvatures, 1e-9))

        def column(name: str, at: int = 0, **others: Array) -> Array:
            made = np.zeros(size)
            made[self.at[name].start + at] = 1.0
            for kind, values in others.items():
                made[self.at[kind]] = values
            return made

        extra = [column(name) for name in MEANS]
        if scales:
            rest = q["ability"] - posterior.general(q)[0][posterior.owner]
            extra += [column("own", t, ability=rest * (posterior.kind == t)) for t in range(posterior.traits)]
            extra.append(column("evaluator", effect=np.where(posterior.alone, 0.0, q["effect"])))
        wide: Array = np.column_stack([basis, *extra])
        seen = np.asarray(information @ (following @ wide))
        # A scale that takes along what it scales leaves the priors as they are.
        seen[of_cells:, count + len(MEANS) :] = 0.0
        half = np.linalg.cholesky(seen.T @ seen + 1e-3 * np.eye(wide.shape[1]))
        wide = np.linalg.solve(half, wide.T).T
        one = np.zeros(wide.shape[1], dtype=int)
        super().__init__(wide, one, np.zeros(size, dtype=int), np.zeros_like(test), STEPS["slow"])

    def _means(self, vector: Array) -> tuple[Array, Array, Array]:
        """Return mean ability, contrast, and what effects and factors add on average, of each test."""
        ability = vector[self.at["ability"]]
        effect = vector[self.at["effect"]]
        scale = np.where(self.posterior.alone, np.exp(vector[self.at["evaluator"]][0]), 1.0)
        contrast = 1 + self.contrast @ ability - self.usual
        other = self.effects @ (effect * scale)
        for pull, factor in zip(self.posterior.pulls, self.posterior.factors, strict=True):
            other = other + vector[self.at[pull]] * (self.models @ vector[self.at[factor]])
        return self.mean @ ability, np.maximum(contrast, NARROW), other

    def begin(self, vector: Array) -> None:
        """Remember the tests' logits and slopes at their models' means."""
        mean, contrast, effect = self._means(vector)
        loading = vector[self.at["loading"]]
        self.kept = (vector[self.at["ease"]] + np.exp(loading) * mean + effect, loading + np.log(contrast))

    def shift(self, vector: Array, by: Array) -> Array:
        """Return the vector moved by some coordinates, tests following."""
        move = self.basis @ by
        there = np.asarray(vector + move)
        mean, contrast, effect = self._means(there)
        self.kept = (self.kept[0] + move[self.at["ease"]], self.kept[1] + move[self.at["loading"]])
        loading = self.kept[1] - np.log(contrast)
        there[self.at["loading"]] = loading
        there[self.at["ease"]] = self.kept[0] - np.exp(loading) * mean - effect
        return there

    def slope(self, vector: Array, gradient: Array) -> Array:
        """Return the gradient in the coordinates, by what tests do."""
        at, alone = self.at, self.posterior.alone
        mean, contrast, _ = self._means(vector)
        loading = np.exp(vector[at["loading"]])
        ease = gradient[at["ease"]]
        whole = gradient.copy()
        turned = gradient[at["loading"]] - loading * mean * ease
        whole[at["loading"]] = turned
        by_mean, by_contrast, by_effect, by_model = self.turned
        for pull, factor in zip(self.posterior.pulls, self.posterior.factors, strict=True):
            whole[at[factor]] -= by_model @ (vector[at[pull]] * ease)
        whole[at["ability"]] -= by_mean @ (loading * ease) + by_contrast @ (turned / contrast)
        scale = np.where(alone, np.exp(vector[at["evaluator"]][0]), 1.0)
        through = -(by_effect @ ease) * scale
        whole[at["effect"]] += through
        whole[at["evaluator"]] += (through * vector[at["effect"]])[alone].sum()
        return np.asarray(self.back @ whole)


def roots(matrix: sparse.csr_matrix, blocks: Array) -> tuple[sparse.csr_matrix, Array]:
    """Return R, block by block, with R R^T the inverse of each block of a matrix, and the block of each column.

    Parameters
    ----------
    matrix : sparse matrix, shape (n, n)
    blocks : array of int, shape (n,)
        Block of each row; rows of -1 have none.
    """
    chosen = np.flatnonzero(blocks >= 0)
    order = chosen[np.argsort(blocks[chosen], kind="stable")]
    begins = np.flatnonzero(np.diff(blocks[order], prepend=-1))
    sizes = np.diff(begins, append=len(order))
    # Rows and columns by their place in that order, and where the block of each place begins.
    place, begin = np.full(len(blocks), -1), np.repeat(begins, sizes)
    place[order] = np.arange(len(order))
    entries = matrix.tocoo()
    row, column = place[entries.row], place[entries.col]
    inside = (row >= 0) & (column >= 0) & (begin[row] == begin[column])
    row, column, value = row[inside], column[inside], entries.data[inside]
    rows, columns, values = [], [], []
    for size in np.unique(sizes):
        # All blocks of a size are one stack.
        first = begins[sizes == size]
        own = np.isin(begin[row], first)
        at = begin[row[own]]
        stack = np.zeros((len(first), size, size))
        stack[np.searchsorted(first, at), row[own] - at, column[own] - at] = value[own]
        root = np.swapaxes(np.linalg.inv(np.linalg.cholesky(stack)), 1, 2)
        block, down, across = np.nonzero(root)
        rows.append(order[first[block] + down])
        columns.append(first[block] + across)
        values.append(root[block, down, across])
    parts = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return sparse.csr_matrix(parts, (len(blocks), len(order))), blocks[order]


@dataclass
class Moves:
    """The moves of a sweep.

    Parameters
    ----------
    models, means, benchmarks, tests : Move
    slow : Slow, optional
        Left out in the first part of a pilot, whose reference is far from anything typical.
    """

    models: Move
    means: Move
    benchmarks: Move
    tests: Move
    slow: Slow | None

    def all(self) -> list[Move]:
        """Return those that there are, in their order."""
        every = (self.models, self.means, self.slow, self.benchmarks, self.tests)
        return [move for move in every if move is not None]


def moves(posterior: Posterior, reference: Array, *, slow: int, scales: bool, before: Moves | None = None) -> Moves:
    """Return moves scaled by the expected curvature at a point.

    Parameters
    ----------
    posterior : Posterior
    reference : array
    slow : int
        Slow directions; 0 for none.
    scales : bool
        Whether all scales of groups move, and not only those of eases.
    before : Moves, optional
        Whose steps to go on with.
    """
    information, of_cells = posterior.information(reference)
    curvature = (information.T @ information).tocsr()
    index, size = posterior.index, posterior.size

    def blocks(**codes: Array) -> Array:
        made = np.full(size, -1)
        for name, code in codes.items():
            made[posterior.at[name]] = code
        return made

    own = np.arange(posterior.models)
    of_model = blocks(
        ability=posterior.owner, effect=posterior.of_pair, model_scatter=own, **dict.fromkeys(posterior.factors, own)
    )
    of_tests = ("ease", "loading", "floor", "ceiling", "scatter", *posterior.pulls)
    of_test = blocks(**dict.fromkeys(of_tests, np.arange(posterior.tests)))
    # All tests of a benchmark move together in what they share.
    benchmarks, shared = np.arange(len(posterior.per_benchmark)), tuple(posterior.kinds())
    of_benchmark = blocks(**dict.fromkeys(shared, index.benchmark))
    ones, shape = np.ones(posterior.tests), (size, len(benchmarks))
    together = sparse.hstack(
        [sparse.csr_matrix((ones, (posterior.places(kind), index.benchmark)), shape) for kind in shared], "csr"
    )
    turned, of_shared = roots((together.T @ curvature @ together).tocsr(), np.tile(benchmarks, len(shared)))
    free = posterior.places(*MEANS, *(name for name in SCALES if scales or name not in KNOWN))
    of_mean = np.full(size, -1)
    of_mean[free] = np.arange(len(free))
    root, _ = roots(curvature, of_mean)
    # Each for itself, but accepted together: what they share is every prior.
    means = Move(
        root,
        np.zeros(len(free), dtype=int),
        np.zeros(size, dtype=int),
        np.zeros_like(index.model),
        STEPS["means"],
        # The scale of effects is in the logits of models that one evaluator measured.
        of_priors=not scales,
    )
    made = Moves(
        Move(*roots(curvature, of_model), of_model, index.model, STEPS["models"]),
        means,
        Move((together @ turned).tocsr(), of_shared, of_benchmark, index.benchmark[index.test], STEPS["benchmarks"]),
        Move(*roots(curvature, of_test), of_test, index.test, STEPS["tests"]),
        Slow(posterior, reference, information, of_cells, slow, scales) if slow else None,
    )
    for name in ("models", "means", "tests", "benchmarks", "slow"):
        here, there = getattr(made, name), getattr(before, name, None)
        if here is not None and there is not None:
            here.log_step = there.log_step.copy()
    return made


def sweep(
    posterior: Posterior, made: Moves, vector: Array, point: Point, rng: np.random.Generator, *, tune: bool = False
) -> tuple[Array, Point]:
    """Return the state after one sweep."""
    *others, tests = made.all()
    for move in others:
        vector, point = move(posterior, vector, point, rng, tune=tune)
    benchmarks = posterior.draw_benchmarks(vector, rng)
    given = posterior.point(vector, benchmarks, point)
    return tests(posterior, vector, given, rng, tune=tune, benchmarks=benchmarks)


@dataclass(frozen=True)
class Pilot:
    """What chains begin with.

    Parameters
    ----------
    moves : Moves
    states : array, shape (m, parameters)
        Late states of the pilot chain, all with the scales that chains take as known.
    """

    moves: Moves
    states: Array


def pilot(posterior: Posterior, sweeps: int, seed: int, tell: Callable[[int], object]) -> Pilot:
    """Run a chain that finds the scales of groups, where the posterior is, and steps for the moves.

    Parameters
    ----------
    posterior : Posterior
    sweeps : int
        At least one for each of its four parts is made.
    seed : int
    tell : callable
        Called now and then with the number of sweeps done.
    """
    rng = np.random.default_rng(seed)
    vector = posterior.start()
    reference, made, done = vector, None, 0
    known = posterior.places(*KNOWN)
    late = np.array([vector])
    for part, share in enumerate(PILOT):
        last = part == len(PILOT) - 1
        if last:
            vector = vector.copy()
            vector[known] = reference[known]
        slow = 0 if part == 0 else SLOW if last else SLOW // 2
        made = moves(posterior, reference, slow=slow, scales=not last, before=made)
        point, states = posterior.point(vector), []
        for _ in range(max(1, round(share * sweeps))):
            vector, point = sweep(posterior, made, vector, point, rng, tune=True)
            states.append(vector)
            done += 1
            if done % 20 == 0:
                tell(done)
        late = np.array(states[len(states) // 2 :])
        reference = late.mean(axis=0)
    assert made is not None
    return Pilot(made, late)


def sample(
    posterior: Posterior, known: Pilot, sweeps: int, burn: int, seed: int, tell: Callable[[int], object]
) -> Iterator[Array]:
    """Yield the states of one chain after ``burn`` sweeps.

    Parameters
    ----------
    posterior : Posterior
    known : Pilot
    sweeps, burn : int
        States yielded, and thrown away before them.
    seed : int
    tell : callable
        Called now and then with the number of sweeps done.
    """
    rng = np.random.default_rng(seed)
    vector = known.states[rng.integers(len(known.states))]
    point = posterior.point(vector)
    for number in range(burn + sweeps):
        vector, point = sweep(posterior, known.moves, vector, point, rng)
        if number % 20 == 0:
            tell(number)
        if number >= burn:
            yield vector
