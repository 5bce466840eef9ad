r"""Draws from the joint model: Hamiltonian moves of models, of tests, and along what holds all of them together.

One sweep makes four moves, each of which leaves the posterior as it is:

1. abilities, effects and scatter of every model, tests as they are: models are then independent, and each accepts or
   rejects for itself;
2. the means over benchmarks;
3. the slow directions: along the least certain abilities and effects, tests following so that no score changes to first
   order. Alternating between models and tests would creep along these: if all abilities were higher and all tests
   harder, every score would be the same;
4. every test, models as they are, given draws of the benchmarks.

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
    """

    def __init__(
        self,
        basis: sparse.csr_matrix | Array,
        of_coordinate: Array,
        of_parameter: Array,
        of_cell: Array,
        steps: int,
    ) -> None:
        self.basis = basis
        self.back = basis.T.tocsr() if isinstance(basis, sparse.csr_matrix) else np.ascontiguousarray(basis.T)
        self.block, self.of_cell, self.steps = of_coordinate, of_cell, steps
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
        """Return where the move ends, and the point there."""
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
        return vector, posterior.point(vector, benchmarks)

    def _path(
        self, posterior: Posterior, vector: Array, point: Point, rng: np.random.Generator, benchmarks: Array | None
    ) -> tuple[Array, Point, Array]:
        """Follow the dynamics from one point: where they end, and each block's chance to go there."""
        step = np.exp(self.log_step + JITTER * (rng.random(self.blocks) - 0.5))[self.block]
        momentum = rng.standard_normal(len(self.block))
        self.begin(vector)
        before = self.energies(point) - np.bincount(self.block, momentum**2, self.blocks) / 2
        there, at = vector, point
        momentum = momentum + 0.5 * step * self.slope(there, at.gradient)
        last = int(rng.integers(max(1, self.steps - 1), self.steps + 2)) - 1
        for turn in range(last + 1):
            there = self.shift(there, step * momentum)
            at = posterior.point(there, benchmarks)
            momentum = momentum + (step if turn < last else 0.5 * step) * self.slope(there, at.gradient)
        gain = self.energies(at) - np.bincount(self.block, momentum**2, self.blocks) / 2 - before
        chance = np.exp(np.minimum(np.where(np.isfinite(gain), gain, -np.inf), 0.0))
        return there, at, chance


class Slow(Move):
    r"""All models at once, along the directions in which they are least certain; tests follow.

    With X the abilities and factors of a test's models and b the test's loading and pulls, its logits are
    :math:`d + X b + h`. Of every test their weighted mean and their weighted regression on X at a reference point are
    kept:

    .. math:: \alpha_j = d_j + \bar X_j b_j + \bar h_j, \quad \beta_j = M_j b_j, \quad
        M_j = I + C_j^T (X - X_{ref})

    where C are the weights of that regression, shrunk by the priors of b, from the cells' information. (X, h, d, l,
    pulls) to (X, h, alpha, beta) has determinant :math:`\prod_j e^{l_j} \det M_j`.

    Parameters
    ----------
    posterior : Posterior
    reference : array
    information : sparse matrix
        As :meth:`Posterior.information` gives it at the reference.
    curvature : sparse matrix
        Its square.
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
        curvature: sparse.csr_matrix,
        of_cells: int,
        count: int,
        scales: bool,
    ) -> None:
        q, slope, variance, _ = posterior.slopes(reference)
        index, at, size = posterior.index, posterior.at, posterior.size
        test, tests, cells = index.test, posterior.tests, np.arange(len(index.test))
        self.at, self.posterior = at, posterior
        self.tests = ("loading", *posterior.pulls)
        self.models = (("ability", posterior.slot), *((name, index.model) for name in posterior.factors))
        kinds = len(self.models)
        regressors, slopes = self._regressors(reference), self._slopes(reference)
        weight = slope**2 / variance * (FREEDOM + 1) / (FREEDOM + 3) + 1e-6
        self.share = weight / np.bincount(test, weight)[test]
        self.mean = sparse.csr_matrix((self.share, (test, cells)), (tests, len(cells)))
        mean = self.mean @ regressors
        away = regressors - mean[test]

        # Whitened by what tells a model's parameters from each other while tests stay, the least certain directions are
        # those along which moves of models alone and of tests alone would creep.
        own = posterior.places("ability", "effect", *posterior.factors)
        each = [np.arange(posterior.models)] * len(posterior.factors)
        members = np.full(size, -1)
        members[own] = np.concatenate([posterior.owner, posterior.of_pair, *each])
        root, _ = roots(curvature, members)
        error = np.asarray(root.multiply(root).sum(axis=1)).ravel()

        # The regression of a benchmark's cells on what their models have, which is itself known with an error.
        self.group, benchmarks = index.benchmark[test], len(posterior.per_benchmark)
        gathered = sparse.csr_matrix((weight, (self.group, cells)), (benchmarks, len(cells)))
        square = (gathered @ (away[:, :, None] * away[:, None, :]).reshape(-1, kinds**2)).reshape(-1, kinds, kinds)
        unsure = gathered @ self._regressors(error)
        between = np.exp(-2 * np.repeat([q["loading_between"][0], q["pull_between"][0]], [1, kinds - 1]))
        typical = np.ones((benchmarks, kinds))
        typical[:, 0] = np.bincount(index.benchmark, slopes[:, 0]) / posterior.per_benchmark
        square[:, range(kinds), range(kinds)] += unsure + between / typical**2
        self.weights = weight[:, None] * np.linalg.solve(square[self.group], away[:, :, None])[:, :, 0]
        # The anchor's second pull stays nothing.
        self.weights[self.group == index.benchmark[posterior.anchor], 2:] = 0.0
        self.contrasts = [
            sparse.csr_matrix((self.weights[:, kind], (self.group, cells)), (benchmarks, len(cells)))
            for kind in range(kinds)
        ]
        self.usual = np.zeros((kinds, kinds))
        self.usual = np.eye(kinds) - self._turned(regressors)
        self.kept, self.volume = (np.empty(0), np.empty(0)), 0.0

        # How all parameters move with those of the models, at the reference.
        def placed(matrix: sparse.csr_matrix, row: str, column: str) -> sparse.csr_matrix:
            entries = matrix.tocoo()
            where = (entries.row + at[row].start, entries.col + at[column].start)
            return sparse.csr_matrix((entries.data, where), (size, size))

        def chosen(code: Array, count: int) -> sparse.csr_matrix:
            return sparse.csr_matrix((np.ones(len(cells)), (cells, code)), (len(cells), count))

        through = self.mean @ chosen(index.pair, posterior.pairs) @ sparse.diags(posterior.effect_scale(q))
        following = sparse.identity(size) - placed(through, "ease", "effect")
        for kind, (name, code) in enumerate(self.models):
            of_cell = chosen(code, at[name].stop - at[name].start)
            turn = sparse.diags(slopes[:, kind])
            ease = turn @ self.mean @ of_cell
            for other, contrast in enumerate(self.contrasts):
                moved = turn @ contrast[index.benchmark] @ of_cell
                ease = ease - sparse.diags(mean[:, other]) @ moved
                scale = 1 / slopes[:, 0] if other == 0 else np.ones(tests)
                following = following - placed(sparse.diags(scale) @ moved, self.tests[other], name)
            following = following - placed(ease, "ease", name)
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
        factor = np.linalg.cholesky(seen.T @ seen + 1e-3 * np.eye(wide.shape[1]))
        wide = np.linalg.solve(factor, wide.T).T
        one = np.zeros(wide.shape[1], dtype=int)
        super().__init__(wide, one, np.zeros(size, dtype=int), np.zeros_like(test), STEPS["slow"])

    def _regressors(self, vector: Array) -> Array:
        """Return abilities and factors of each cell's model."""
        return np.column_stack([vector[self.at[name]][code] for name, code in self.models])

    def _slopes(self, vector: Array) -> Array:
        """Return loadings and pulls of the tests."""
        values = np.column_stack([vector[self.at[name]] for name in self.tests])
        values[:, 0] = np.exp(values[:, 0])
        return values

    def _turned(self, regressors: Array) -> Array:
        """Return M of each benchmark, shape (benchmarks, kinds, kinds)."""
        return self.usual + np.stack([contrast @ regressors for contrast in self.contrasts], axis=1)

    def _levels(self, vector: Array, regressors: Array, slopes: Array) -> Array:
        """Return what abilities, factors and effects add to each test's logits on average."""
        effect = vector[self.at["effect"]] * self.posterior.effect_scale(self.posterior.split(vector))
        mean = self.mean @ np.column_stack([regressors, effect[self.posterior.index.pair]])
        return np.asarray((mean[:, :-1] * slopes).sum(axis=1) + mean[:, -1])

    def energies(self, point: Point) -> Array:
        """Return the log density in the coordinates in which tests are kept."""
        return super().energies(point) + self.volume

    def begin(self, vector: Array) -> None:
        """Remember the tests' mean logits and regressions."""
        regressors, slopes = self._regressors(vector), self._slopes(vector)
        turned = self._turned(regressors)[self.posterior.index.benchmark]
        self.kept = (
            vector[self.at["ease"]] + self._levels(vector, regressors, slopes),
            np.einsum("tkl,tl->tk", turned, slopes),
        )
        self.volume = -float(np.log(np.linalg.det(turned)).sum() + vector[self.at["loading"]].sum())

    def shift(self, vector: Array, by: Array) -> Array:
        """Return the vector moved by some coordinates, tests following."""
        there = np.asarray(vector + self.basis @ by)
        regressors = self._regressors(there)
        turned = self._turned(regressors)[self.posterior.index.benchmark]
        slopes = np.linalg.solve(turned, self.kept[1][:, :, None])[:, :, 0]
        there[self.at["loading"]] = np.log(slopes[:, 0])
        for kind, name in enumerate(self.tests[1:], start=1):
            there[self.at[name]] = slopes[:, kind]
        there[self.at["ease"]] = self.kept[0] - self._levels(there, regressors, slopes)
        # Where a determinant or a loading is no longer positive there is no way back.
        self.volume = -float(np.log(np.linalg.det(turned)).sum() + there[self.at["loading"]].sum())
        return there

    def slope(self, vector: Array, gradient: Array) -> Array:
        """Return the gradient in the coordinates, by what tests do."""
        at, alone, index = self.at, self.posterior.alone, self.posterior.index
        regressors, slopes = self._regressors(vector), self._slopes(vector)
        inverse = np.linalg.inv(self._turned(regressors))[index.benchmark]
        ease = gradient[at["ease"]]
        of_slopes = np.column_stack([gradient[at[name]] for name in self.tests])
        of_slopes[:, 0] = (of_slopes[:, 0] - 1) / slopes[:, 0]
        of_slopes -= (self.mean @ regressors) * ease[:, None]
        # A regressor moves the regression by its weight, and that the slopes and the determinant.
        turning = np.einsum("tlk,tl->tk", inverse, of_slopes)[:, :, None] * slopes[:, None, :] + inverse.swapaxes(1, 2)
        level = self.share * ease[index.test]
        kinds = slopes.shape[1]
        turning = np.stack(
            [np.bincount(index.benchmark, turning[:, k, n]) for k in range(kinds) for n in range(kinds)], axis=-1
        ).reshape(-1, kinds, kinds)
        by_cell = np.einsum("nk,nkl->nl", self.weights, turning[self.group]) + level[:, None] * slopes[index.test]
        whole = gradient.copy()
        for kind, (name, code) in enumerate(self.models):
            whole[at[name]] -= np.bincount(code, by_cell[:, kind], at[name].stop - at[name].start)
        scale = np.where(alone, np.exp(vector[at["evaluator"]][0]), 1.0)
        through = -np.bincount(index.pair, level, self.posterior.pairs) * scale
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
    rows, columns, values = [], [], []
    made = 0
    for members in np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1):
        block = matrix[members][:, members].toarray()
        root = np.linalg.inv(np.linalg.cholesky(block)).T
        row, column = np.nonzero(root)
        rows.append(members[row])
        columns.append(made + column)
        values.append(root[row, column])
        made += len(members)
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return sparse.csr_matrix(entries, (len(blocks), made)), blocks[order]


@dataclass
class Moves:
    """The moves of a sweep.

    Parameters
    ----------
    models, means, tests, benchmarks : Move
    slow : Slow, optional
        Left out in the first part of a pilot, whose reference is far from anything typical.
    """

    models: Move
    means: Move
    tests: Move
    benchmarks: Move
    slow: Slow | None


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
    second = posterior.at[posterior.pulls[1]].start + posterior.anchor
    of_test[second] = -1
    # All tests of a benchmark move together in what they share.
    shared = tuple(posterior.kinds())
    of_benchmark = blocks(**dict.fromkeys(shared, index.benchmark))
    of_benchmark[second] = -1
    places = [kind * len(posterior.per_benchmark) + index.benchmark for kind in range(len(shared))]
    places_of = np.concatenate([np.arange(posterior.at[kind].start, posterior.at[kind].stop) for kind in shared])
    together = sparse.csr_matrix(
        (1.0 * (of_benchmark[places_of] >= 0), (places_of, np.concatenate(places))),
        (size, len(shared) * len(posterior.per_benchmark)),
    )
    codes = np.tile(np.arange(len(posterior.per_benchmark)), len(shared))
    turned, of_shared = roots((together.T @ curvature @ together).tocsr(), codes)
    free = posterior.places(*MEANS, *(name for name in SCALES if scales or name not in KNOWN))
    of_mean = np.full(size, -1)
    of_mean[free] = np.arange(len(free))
    root, _ = roots(curvature, of_mean)
    # Each for itself, but accepted together: what they share is every prior.
    means = Move(
        root, np.zeros(len(free), dtype=int), np.zeros(size, dtype=int), np.zeros_like(index.model), STEPS["means"]
    )
    made = Moves(
        Move(*roots(curvature, of_model), of_model, index.model, STEPS["models"]),
        means,
        Move(*roots(curvature, of_test), of_test, index.test, STEPS["tests"]),
        Move((together @ turned).tocsr(), of_shared, of_benchmark, index.benchmark[index.test], STEPS["benchmarks"]),
        Slow(posterior, reference, information, curvature, of_cells, slow, scales) if slow else None,
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
    for move in (made.models, made.means, made.slow, made.benchmarks):
        if move is not None:
            vector, point = move(posterior, vector, point, rng, tune=tune)
    benchmarks = posterior.draw_benchmarks(vector, rng)
    given = posterior.point(vector, benchmarks)
    vector, _ = made.tests(posterior, vector, given, rng, tune=tune, benchmarks=benchmarks)
    return vector, posterior.point(vector)


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
