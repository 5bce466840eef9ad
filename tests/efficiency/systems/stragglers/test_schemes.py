"""What suffices gives the whole gradient: every set of messages of every scheme, against sums written out here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core import InputError
from densing.efficiency.systems.stragglers.schemes import (
    WORST_CONDITION,
    Scheme,
    backup,
    clustered_code,
    gradient_code,
    lagrange,
    lagrange_basis,
    lagrange_points,
    uncoded,
)

RNG = np.random.default_rng(0)
LARGEST = 8


def sent(scheme: Scheme, pieces: np.ndarray, message: int) -> np.ndarray:
    """Return what a worker sends, in float32 as it does: the sum over the tasks that it has done."""
    worker, after = scheme.messages[message]
    total = np.zeros_like(pieces[0])
    for task in scheme.tasks[worker][:after]:
        weight = scheme.coefficients[message, task]
        if weight:
            total = total + pieces.dtype.type(weight) * pieces[task]
    # Of what it has not computed it can send nothing.
    rest = np.delete(scheme.coefficients[message], scheme.tasks[worker][:after])
    assert not rest.any()
    return total


def decoded(scheme: Scheme, pieces: np.ndarray, arrived: Sequence[int]) -> np.ndarray:
    """Return the server's sum."""
    total = np.zeros_like(pieces[0])
    for message, weight in scheme.weights(arrived).items():
        total = total + pieces.dtype.type(weight) * sent(scheme, pieces, message)
    return total


def off(found: np.ndarray, whole: np.ndarray) -> float:
    return float(np.linalg.norm(found - whole) / np.linalg.norm(whole))


@pytest.mark.parametrize(("workers", "r"), [(n, r) for n in range(2, LARGEST + 1) for r in range(2, n + 1)])
def test_every_set_of_enough_workers_decodes_a_gradient_code(workers: int, r: int) -> None:
    scheme, gradients = gradient_code(workers, r), RNG.standard_normal((workers, 50)).astype(np.float32)
    worst = max(
        off(decoded(scheme, gradients, some), gradients.sum(axis=0))
        for some in combinations(range(workers), workers - r + 1)
    )
    assert worst < 1e-5, f"condition number {scheme.condition():.3g}"
    for some in combinations(range(workers), workers - r):
        missing = sorted(set(range(workers)) - set(some))
        with pytest.raises(InputError, match=f"more messages from workers {', '.join(map(str, missing))} are needed"):
            scheme.weights(some)


@pytest.mark.parametrize(("workers", "r"), [(4, 2), (8, 3), (8, 5)])
def test_the_condition_number_is_the_worst_of_all_sets(workers: int, r: int) -> None:
    scheme = gradient_code(workers, r)
    sets = [list(some) for some in combinations(range(workers), workers - r + 1)]
    # By the definition: the norm times the norm of the pseudo-inverse.
    numbers = [
        np.linalg.norm(scheme.coefficients[some], 2) * np.linalg.norm(np.linalg.pinv(scheme.coefficients[some]), 2)
        for some in sets
    ]
    assert scheme.condition() == pytest.approx(max(numbers))
    assert scheme.condition() < 250
    assert uncoded(workers, r).condition() == 1.0


@pytest.mark.parametrize("workers", range(1, LARGEST + 1))
def test_uncoded_messages_give_the_plain_sum_to_the_bit_whoever_sends_them(workers: int) -> None:
    for r in range(1, workers + 1):
        scheme, gradients = uncoded(workers, r), RNG.standard_normal((workers, 50)).astype(np.float32)
        plain = gradients[0]
        for each in gradients[1:]:
            plain = plain + each
        holders = [
            [at for at, (worker, after) in enumerate(scheme.messages) if scheme.tasks[worker][after - 1] == partition]
            for partition in range(workers)
        ]
        assert all(len(own) == r for own in holders)
        for partition, holder in product(range(workers), range(r)):
            arrived = [own[holder if at == partition else 0] for at, own in enumerate(holders)]
            for order in (arrived, arrived[::-1], RNG.permutation(len(scheme.messages)).tolist()):
                assert (decoded(scheme, gradients, order) == plain).all()


@pytest.mark.parametrize(
    ("workers", "r", "clusters"),
    [(4, 2, 2), (6, 2, 2), (6, 3, 2), (6, 2, 3), (8, 3, 2), (8, 4, 2), (8, 2, 4), (5, 3, 1)],
)
def test_every_set_of_enough_workers_of_every_cluster_decodes(workers: int, r: int, clusters: int) -> None:
    scheme, gradients = clustered_code(workers, r, clusters), RNG.standard_normal((workers, 50)).astype(np.float32)
    size = workers // clusters
    for turn in range(1, r + 1):
        own = [at for at, message in enumerate(scheme.messages) if message.after == turn]
        others = [at for at in own if scheme.messages[at].worker >= size]
        for some in combinations([at for at in own if at not in others], size - turn + 1):
            assert off(decoded(scheme, gradients, [*some, *others]), gradients.sum(axis=0)) < 1e-5
            with pytest.raises(InputError, match="are needed"):
                scheme.weights([*some[1:], *others])


def first_ones(workers: int, sends: int, need: int) -> Iterator[list[int]]:
    """Yield which messages may be the first so many, a worker's one after the other."""
    for counts in product(range(sends + 1), repeat=workers):
        if sum(counts) == need:
            yield [worker * sends + turn for worker, count in enumerate(counts) for turn in range(count)]


@pytest.mark.parametrize(
    ("workers", "r", "several"),
    [(n, 2, True) for n in range(2, LARGEST + 1)]
    + [(3, 3, True), (4, 3, True), (4, 4, True)]
    + [(n, r, False) for n in (4, 6, 8) for r in (2, 3, 4)],
)
def test_every_set_of_enough_evaluations_gives_the_gradient_of_least_squares(
    workers: int, r: int, several: bool
) -> None:
    scheme = lagrange(workers, r, several=several)
    groups, encoding = scheme.partitions, scheme.encoding
    assert encoding is not None
    rows = 3 * r
    data, target, weights = (RNG.standard_normal(shape) for shape in ((groups, rows, 4), (groups, rows, 1), (4, 1)))
    plain = sum(x.T @ (x @ weights - y) for x, y in zip(data, target, strict=True)).ravel()
    # A worker has encoded rows only; its tasks are these, whole or a share of them after the other.
    shares = sum(map(len, scheme.tasks)) // len(encoding.data)
    pieces = []
    for mixture in encoding.data:
        x, y = np.tensordot(mixture, data, 1), np.tensordot(mixture, target, 1)
        for part, of in zip(np.split(x, shares), np.split(y, shares), strict=True):
            pieces.append((part.T @ (part @ weights - of)).ravel())
    every, need = np.array(pieces), scheme.enough[0][0].need
    sets = list(first_ones(workers, len(scheme.messages) // workers, need))
    worst = max(off(decoded(scheme, every, some), plain) for some in sets)
    assert worst < 1e-15 * scheme.condition() * 100, f"condition number {scheme.condition():.3g}"
    # The weights once more, by Lagrange's formula; encoded nodes are the points, where there are two or more.
    if groups > 1:
        nodes, some = lagrange_points(groups, len(encoding.data))[0], sets[len(sets) // 2]
        formula = lagrange_basis((encoding.data @ nodes)[some], nodes).sum(axis=0)
        assert list(scheme.weights(some).values()) == pytest.approx(formula.tolist(), rel=1e-9)
    with pytest.raises(InputError, match="are needed"):
        scheme.weights(sets[0][:-1])


class Residue:
    """A number of a prime field, made for this test."""

    P = 10_007

    def __init__(self, value: int) -> None:
        self.value = value % self.P

    # numpy multiplies an array by it once it says that it cannot.
    def __add__(self, other: Residue) -> Residue:
        return Residue(self.value + other.value) if isinstance(other, Residue) else NotImplemented

    def __sub__(self, other: Residue) -> Residue:
        return Residue(self.value - other.value) if isinstance(other, Residue) else NotImplemented

    def __mul__(self, other: Residue) -> Residue:
        return Residue(self.value * other.value) if isinstance(other, Residue) else NotImplemented

    def __truediv__(self, other: Residue) -> Residue:
        return Residue(self.value * pow(other.value, -1, self.P)) if isinstance(other, Residue) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Residue) and self.value == other.value

    def __hash__(self) -> int:
        return self.value


def residues(values: np.ndarray) -> np.ndarray:
    return np.vectorize(Residue, otypes=[object])(values)


@pytest.mark.parametrize(("partitions", "evaluations"), [(2, 4), (3, 6), (4, 8)])
def test_lagrange_codes_are_exact_over_a_prime_field(partitions: int, evaluations: int) -> None:
    nodes = residues(np.arange(1, partitions + 1))
    points = residues(np.arange(partitions + 1, partitions + evaluations + 1))
    data, target = (residues(RNG.integers(0, Residue.P, shape)) for shape in ((partitions, 5, 2), (partitions, 5, 1)))
    weights = residues(RNG.integers(0, Residue.P, (2, 1)))

    def gradient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x.T @ (x @ weights - y)

    plain = sum((gradient(x, y) for x, y in zip(data[1:], target[1:], strict=True)), gradient(data[0], target[0]))
    mixtures = lagrange_basis(nodes, points)
    sums = np.array(
        [
            gradient(
                *(sum((mixture[k] * of[k] for k in range(1, partitions)), mixture[0] * of[0]) for of in (data, target))
            )
            for mixture in mixtures
        ]
    )

    def decode(some: Sequence[int]) -> np.ndarray:
        basis = lagrange_basis(points[list(some)], nodes)
        columns = [sum(column[1:], column[0]) for column in basis.T]
        return sum((w * sums[at] for w, at in zip(columns[1:], some[1:], strict=True)), columns[0] * sums[some[0]])

    need = 2 * partitions - 1
    assert all((decode(some) == plain).all() for some in combinations(range(evaluations), need))
    assert not all((decode(some) == plain).all() for some in combinations(range(evaluations), need - 1))


def test_backup_workers_without_any_drop_are_the_plain_sum_and_with_some_the_mean_of_the_others() -> None:
    gradients = RNG.standard_normal((4, 50)).astype(np.float32)
    for order in permutations(range(4)):
        assert (
            decoded(backup(4, 0), gradients, order) == gradients[0] + gradients[1] + gradients[2] + gradients[3]
        ).all()
        scheme = backup(4, 1)
        assert not scheme.exact
        assert off(decoded(scheme, gradients, order), 4 * gradients[list(order[:3])].mean(axis=0)) < 1e-6
    with pytest.raises(InputError, match="more messages from workers 0, 1 are needed"):
        backup(4, 1).weights([2, 3])


@given(st.data())
def test_the_server_is_satisfied_exactly_when_nobody_is_lacking(data: st.DataObject) -> None:
    workers = data.draw(st.sampled_from([4, 6]))
    r = data.draw(st.integers(2, 3))
    scheme = data.draw(
        st.sampled_from([uncoded(workers, r), gradient_code(workers, r), lagrange(workers, r), backup(workers, 1)])
    )
    arrived = data.draw(st.sets(st.sampled_from(range(len(scheme.messages)))))
    lacking = scheme.lacking(arrived)
    assert scheme.satisfied(arrived) == (not lacking)
    if lacking:
        assert all(any(m not in arrived for m, sent in enumerate(scheme.messages) if sent.worker == w) for w in lacking)
    # More never hurts.
    if not lacking:
        assert scheme.satisfied(arrived | {0})


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: uncoded(4, 5), "r = 5"),
        (lambda: uncoded(0, 1), "0 workers"),
        (lambda: gradient_code(4, 1), "each partition twice"),
        (lambda: gradient_code(4, 5), "there are 4 partitions"),
        (lambda: clustered_code(6, 2, 4), "do not divide 6 workers evenly"),
        (lambda: clustered_code(6, 4, 2), "r = 4"),
        (lambda: clustered_code(4, 2, 1, (2, 1)), "increasing numbers"),
        (lambda: lagrange(4, 1), "give r = 2 or more"),
        (lambda: lagrange(4, 5), "r = 5"),
        (lambda: backup(4, 4), "drop = 4"),
    ],
)
def test_what_is_no_scheme_is_refused(make: object, what: str) -> None:
    with pytest.raises(InputError, match=what):
        make()  # type: ignore[operator]


def test_a_system_that_rounding_would_drown_is_refused() -> None:
    scheme = lagrange(LARGEST, LARGEST)
    assert scheme.condition(most=200) > WORST_CONDITION
    # The first workers have sent all, the last ones nothing.
    with pytest.raises(InputError, match="condition number"):
        scheme.weights(range(scheme.enough[0][0].need))
