"""What was claimed of aggregation rules, and what we find: twenty workers behind a free link, tasks of .01 s + Exp(10).

The paper's figures could not be read. Completion times of ours stand in three programs: the simulator's graph, order
statistics of the same draws in an array (:func:`shortest`), and closed forms where there are some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from densing.efficiency.simulation import Delay
from densing.efficiency.systems.claims import PHYSICS, Answer, Claim, Evidence, Grade, Physics
from densing.efficiency.systems.stragglers.plan import Costs, completion, exact_mean, serve
from densing.efficiency.systems.stragglers.schemes import Scheme, backup, gradient_code, lagrange, uncoded

WORKERS, A, MU = 20, 0.01, 10.0
SETUP = "20 workers, 20 partitions, a task takes .01 s + Exp(10), messages take no time"
OURS = "our Monte Carlo, checked by a second program"
ABSTRACT = "abstract of arXiv 2004.04948"

SCHEMES: Mapping[str, Callable[[int], Scheme]] = {
    "uncoded": lambda r: backup(WORKERS, 0),
    "gradient-coding": lambda r: gradient_code(WORKERS, r),
    "pcr": lambda r: lagrange(WORKERS, r, several=False),
    "lcc": lambda r: lagrange(WORKERS, r),
    "uc-mmc": lambda r: uncoded(WORKERS, r),
}

TABLE: Mapping[str, tuple[float, ...]] = {
    "uncoded": (0.372, 0.372, 0.368, 0.371, 0.370),
    "gradient-coding": (0.446, 0.614, 1.09, 0.743, 0.862),
    "pcr": (0.446, 0.374, 0.761, 0.271, 0.257),
    "lcc": (0.464, 0.227, 0.223, 0.168, 0.127),
    "uc-mmc": (0.251, 0.217, 0.215, 0.181, 0.143),
}
"""Mean completion times, seconds, from an earlier program of ours; see :data:`CELLS`."""
CELLS: tuple[tuple[int, str], ...] = ((2, "task"), (4, "task"), (10, "task"), (4, "step"), (10, "step"))
"""Computations per worker, and how long a worker keeps its delay."""


class Completion(NamedTuple):
    """Of one rule under one kind of delays.

    Attributes
    ----------
    seconds : float
        Mean of a step: many draws in arrays, and what the simulator finds beside them on the same draws.
    messages : float
        That came before a step was complete.
    """

    seconds: float
    messages: float


STEPS, DRAWS = 100, 200_000


@cache
def completes(kind: str, r: int, lasts: str, physics: Physics = PHYSICS) -> Completion:
    """Return how long a rule takes."""
    scheme = SCHEMES[kind](r)
    delay = Delay("shifted-exp", a=A, mu=MU, lasts=lasts)
    plan = serve(scheme, Costs((0.0,) * WORKERS), delay, warmup=0, steps=STEPS)
    simulated, messages = completion(plan, physics.simulate(plan.graph))
    assert plan.control is not None
    return Completion(_exactly(kind, r, lasts) + simulated - float(plan.control.seconds.mean()), messages)


@cache
def _exactly(kind: str, r: int, lasts: str) -> float:
    """Mean completion of many draws in arrays, which no law of the simulator touches."""
    delay = Delay("shifted-exp", a=A, mu=MU, lasts=lasts)
    return exact_mean(SCHEMES[kind](r), (0.0,) * WORKERS, delay, (1, WORKERS, 1), DRAWS)[0]


def closed_form(kind: str, r: int, lasts: str) -> float | None:
    """Return the exact mean completion, where it is known; None elsewhere.

    All workers: ``a + H_N / mu``. N - r + 1 coded messages of workers that keep their delay:
    ``r (a + (H_N - H_(r-1)) / mu)``. With delays of each task, the (N - r + 1)-th of N shifted Erlang(r) times, by
    quadrature.

    Examples
    --------
    >>> round(closed_form("uncoded", 1, "task"), 4), round(closed_form("gradient-coding", 4, "step"), 4)
    (0.3698, 0.7458)
    """

    def harmonic(n: int) -> float:
        return math.fsum(1 / each for each in range(1, n + 1))

    if kind == "uncoded":
        return A + harmonic(WORKERS) / MU
    if kind != "gradient-coding":
        return None
    if lasts == "step":
        return r * (A + (harmonic(WORKERS) - harmonic(r - 1)) / MU)
    from scipy.integrate import quad
    from scipy.stats import binom, gamma

    def later(t: float) -> float:
        # Fewer than N - r + 1 of the N have come by then.
        return float(binom.cdf(WORKERS - r, WORKERS, gamma.cdf(t, r, scale=1 / MU)))

    return r * A + quad(later, 0, 20 * r / MU, limit=400)[0]


def _cells(kind: str, physics: Physics) -> Answer:
    """Compare every cell of a column with its closed form, or with the earlier program."""
    words, parts = [], []
    for (r, lasts), earlier in zip(CELLS, TABLE[kind], strict=True):
        ours, exact = completes(kind, r, lasts, physics), closed_form(kind, r, lasts)
        published = earlier if exact is None else exact
        words.append(abs(ours.seconds / published - 1) <= 0.01)
        against = f"{published:.4f} exactly" if exact is not None else f"{published:g}"
        parts.append(
            f"r {r}, {'each task its own' if lasts == 'task' else 'a step long'}: {ours.seconds:.4f} ({against})"
        )
    note = f"{'; '.join(parts)}; {STEPS} steps simulated, {DRAWS:,} in arrays"
    return Answer(WITHIN if all(words) else f"not: {WITHIN}", note)


WITHIN = "every cell within 1 %"
MESSAGES = "shorter, but more messages"


def _messages(physics: Physics) -> Answer:
    parts, holds = [], True
    for r, lasts in CELLS:
        several, single = completes("uc-mmc", r, lasts, physics), completes("gradient-coding", r, lasts, physics)
        ratio = several.messages / single.messages
        holds &= several.seconds < single.seconds and ratio > 1
        parts.append(f"r {r}, {lasts}: {several.seconds:.3f} s and {single.seconds:.3f} s, {ratio:.1f} times")
    return Answer(MESSAGES if holds else f"not: {MESSAGES}", "; ".join(parts))


OVER = "completion grows with r"


def _over(physics: Physics) -> Answer:
    seconds = [completes("gradient-coding", r, "task", physics).seconds for r in (2, 4, 10)]
    holds = seconds == sorted(seconds)
    note = ", ".join(f"{each:.3f} s at r = {r}" for r, each in zip((2, 4, 10), seconds, strict=True))
    plain = completes("uncoded", 1, "task", physics).seconds
    return Answer(OVER if holds else f"not: {OVER}", f"{note}; {plain:.3f} s without any code")


WINNERS = "coded if delays last, uncoded if each task has its own"


def _winners(physics: Physics) -> Answer:
    parts, holds = [], True
    for r, lasts in CELLS[1:]:
        coded, plain = (completes(kind, r, lasts, physics).seconds for kind in ("lcc", "uc-mmc"))
        holds &= (coded < plain) == (lasts == "step")
        parts.append(f"r {r}, {lasts}: coded {coded:.3f} s, uncoded {plain:.3f} s")
    return Answer(WINNERS if holds else f"not: {WINNERS}", "; ".join([*parts, _crossover(physics)]))


def _crossover(physics: Physics) -> str:
    """Say from which length of a message on partial messages lose to one coded message, in seconds of a mean task."""
    delay = Delay("shifted-exp", a=A, mu=MU)

    def seconds(scheme: Scheme, message_s: float) -> float:
        plan = serve(scheme, Costs((0.0,) * WORKERS, message_s), delay, warmup=0, steps=40)
        return completion(plan, physics.simulate(plan.graph))[0]

    lengths = [0.001 * 2**power for power in range(8)]
    lost = [each for each in lengths if seconds(uncoded(WORKERS, 2), each) > seconds(backup(WORKERS, 0), each)]
    if not lost:
        return f"partial messages (r = 2) pay up to messages of {lengths[-1] / delay.mean:.2f} of a mean task"
    return (
        f"partial messages (r = 2) stop paying where a message takes {min(lost) / delay.mean:.2f} of a mean task's time"
    )


def _claim(
    name: str,
    what: str,
    published: str,
    source: str,
    check: Callable[[Physics], Answer],
    *,
    ours: bool = False,
) -> Claim:
    # With free messages all follows from the delays that go in.
    grade: Grade = "own measurement" if ours else "algebraic"
    evidence: Evidence = "measured" if ours else "first-hand"
    return Claim(name, what, SETUP, published, "", evidence, source, check, grade=grade)


def _column(kind: str) -> Callable[[Physics], Answer]:
    return lambda physics: _cells(kind, physics)


COLUMNS: Sequence[tuple[str, str, str]] = (
    ("STR-1a", "mean completion, one partition each, waiting for all", "uncoded"),
    ("STR-1b", "mean completion, gradient coding", "gradient-coding"),
    ("STR-1c", "mean completion, polynomial codes with one message a worker", "pcr"),
    ("STR-1d", "mean completion, Lagrange codes with a message after every task", "lcc"),
    ("STR-1e", "mean completion, partial gradients one by one", "uc-mmc"),
)

CLAIMS: tuple[Claim, ...] = (
    *(_claim(name, what, WITHIN, OURS, _column(kind), ours=True) for name, what, kind in COLUMNS),
    _claim(
        "STR-2", "several messages per worker against one: time and number of messages", MESSAGES, ABSTRACT, _messages
    ),
    _claim("STR-3", "one message for more partitions", OVER, ABSTRACT, _over),
    _claim("STR-4", "Lagrange codes against partial gradients", WINNERS, OURS, _winners, ours=True),
)
