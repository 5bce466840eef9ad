"""Waiting between the ranks of a run: how long each waits, in which communications, and for whom.

With clocks that can be compared, a rank's wait in a collective is (over its ranks s):

.. math:: wait_r = \\max_s start_s - start_r

Source: what-if analysis of stragglers (OSDI'25, arXiv 2505.05713): transfer is counted from the latest start.

A clock offset is the same in every step, so more steps do not reduce it. Arrivals are therefore evaluated twice: as
recorded, and with every clock shifted by its error bound against the leading rank. A rank is named only if it leads
both times; the number of steps it leads and the probability are those of the second evaluation. For equal ranks with
clock errors within their bounds, that probability is too large rather than too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from densing.core import Note
from densing.efficiency.profile.alignment import Clocks, Matched
from densing.efficiency.profile.rank import WAIT_COLUMNS
from densing.efficiency.timeline import OPS, Collectives, Int

_LATEST, _EARLIEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class Arrivals:
    """First and last arrival at each matched communication, on the common clock; rows as in ``Matched``.

    Attributes
    ----------
    first_start_ns, last_start_ns, last_end_ns : int64 (n,)
    second_start_ns : int64 (n,)
        Latest start but one.
    last_rank : int64 (n,)
        Rank of the latest start.
    """

    first_start_ns: Int
    second_start_ns: Int
    last_start_ns: Int
    last_end_ns: Int
    last_rank: Int


@dataclass(frozen=True, eq=False)
class Waits:
    """Waits of one rank, one row per matched communication.

    Attributes
    ----------
    rank : int
    matched, row : int64 (m,)
        Row in ``Matched`` and in the rank's own table.
    wait_ns : int64 (m,)
        By durations: own duration − smallest over ranks. Needs no common clock.
    wait_by_start_ns : int64 (m,)
        By starts: latest start − own start. Zeros where clocks cannot be compared, like the next two.
    start_after_first_ns, end_before_last_ns : int64 (m,)
        Distance to the earliest start, and to the latest end.
    """

    rank: int
    matched: Int
    row: Int
    wait_ns: Int
    wait_by_start_ns: Int
    start_after_first_ns: Int
    end_before_last_ns: Int


def arrivals_of(matched: Matched, clocks: Clocks) -> Arrivals | None:
    """Find the first and the last to arrive at each communication, in one pass over the ranks.

    Returns
    -------
    Arrivals or None
        None where clocks cannot be compared.
    """
    if not clocks.comparable:
        return None
    n = len(matched)
    first, end = np.full(n, _LATEST), np.full(n, _EARLIEST)
    second, last, last_rank = np.full(n, _EARLIEST), np.full(n, _EARLIEST), np.full(n, -1, np.int64)
    for rank, collectives in matched.per_rank.items():
        own, rows = matched.rows_of(collectives)
        start = collectives.start_ns[own] - clocks.offset_ns[rank]
        first[rows] = np.minimum(first[rows], start)
        end[rows] = np.maximum(end[rows], collectives.end_ns[own] - clocks.offset_ns[rank])
        before, later = last[rows], start > last[rows]
        last_rank[rows] = np.where(later, rank, last_rank[rows])
        second[rows] = np.where(later, before, np.maximum(second[rows], start))
        last[rows] = np.maximum(before, start)
    return Arrivals(first, second, last, end, last_rank)


def waits_of(matched: Matched, collectives: Collectives, clocks: Clocks, arrivals: Arrivals | None) -> Waits:
    """Return how long one rank waited in each matched communication.

    Parameters
    ----------
    matched : Matched
    collectives : Collectives
        Of the rank.
    clocks : Clocks
    arrivals : Arrivals or None
        From :func:`arrivals_of`.
    """
    own, rows = matched.rows_of(collectives)
    wait = collectives.duration_ns[own] - matched.transfer_ns[rows]
    if arrivals is None:
        unknown = np.zeros(len(rows), np.int64)
        return Waits(collectives.rank, rows, own, wait, unknown, unknown, unknown)
    start = collectives.start_ns[own] - clocks.offset_ns[collectives.rank]
    end = collectives.end_ns[own] - clocks.offset_ns[collectives.rank]
    return Waits(
        collectives.rank,
        rows,
        own,
        wait,
        arrivals.last_start_ns[rows] - start,
        start - arrivals.first_start_ns[rows],
        arrivals.last_end_ns[rows] - end,
    )


@dataclass(frozen=True)
class Waiting:
    """Waiting in the matched communications of one operation and group, over all ranks, by durations.

    Attributes
    ----------
    lasted_ns, waited_ns : int
        Sum of the parts inside the window, and of the waiting in them: a span waits first, then transfers.
    exposed_ns : int
        Exposed waiting, Σ max(0, exposed − transfer): a lower bound, exact where compute covers the beginning, since
        waiting behind compute costs nothing.
    """

    lasted_ns: int
    waited_ns: int
    exposed_ns: int

    @property
    def share(self) -> float:
        """Σ wait / Σ inside the window, 0 to 1."""
        return self.waited_ns / self.lasted_ns

    def to_dict(self) -> dict[str, int]:
        """Return the sums as plain data: matched time inside the window is transfer plus wait.

        Examples
        --------
        >>> Waiting(lasted_ns=500, waited_ns=100, exposed_ns=60).to_dict()
        {'matched_ns': 500, 'transfer_ns': 400, 'wait_ns': 100, 'exposed_wait_ns': 60}
        """
        values = (self.lasted_ns, self.lasted_ns - self.waited_ns, self.waited_ns, self.exposed_ns)
        return dict(zip(WAIT_COLUMNS, values, strict=True))


def waiting_of(matched: Matched) -> dict[tuple[str, str], Waiting]:
    """Sum the waiting of all ranks (no common clock needed), where anything was matched and took time.

    The keys are those of :func:`run_collectives`: operation and name of the group.

    Examples
    --------
    >>> from densing.efficiency.profile.alignment import match_collectives
    >>> waiting_of(match_collectives({}))
    {}
    """
    total: dict[tuple[str, str], list[int]] = {}
    for collectives in matched.per_rank.values() if len(matched) else ():
        own, rows = matched.rows_of(collectives)
        inside, transfer = collectives.inside_ns[own], matched.transfer_ns[rows]
        # The wait ends where the transfer begins; parts outside the window do not count.
        waited_until = np.minimum(collectives.end_ns[own] - transfer, collectives.window_end_ns)
        waited = np.maximum(waited_until - np.maximum(collectives.start_ns[own], collectives.window_start_ns), 0)
        transferred = inside - waited
        exposed = np.maximum(collectives.exposed_ns[own] - transferred, 0)
        table = np.stack((inside, waited, exposed))
        pairs = np.stack((collectives.op[own], collectives.group[own]), axis=1)
        kinds, kind = np.unique(pairs, axis=0, return_inverse=True)
        for number, (op, group) in enumerate(kinds.tolist()):
            key = (OPS[op], collectives.groups[group].name)
            own_sums = table[:, kind.reshape(-1) == number].sum(axis=1).tolist()
            total[key] = [a + b for a, b in zip(total.get(key, (0, 0, 0)), own_sums, strict=True)]
    return {key: Waiting(*sums) for key, sums in total.items() if sums[0]}


@dataclass(frozen=True)
class RankWaits:
    """How long others waited for a rank, and how long it waited itself.

    Attributes
    ----------
    rank : int
    matched : int
        Matched communications it takes part in.
    times_last : int
        How often it arrived last.
    caused_ns : int
        Σ of the others' waits in those.
    alone_ns : int
        Sum of (its start − second-latest start) in those: the cost of its own lateness.
    suffered_ns : int
        Σ of its own waits, by durations.
    suffered_by_start_ns : int or None
        The same by starts; None where clocks cannot be compared.
    steps_led : int
        In how many steps it caused more waiting than any other rank.
    """

    rank: int
    matched: int
    times_last: int
    caused_ns: int
    alone_ns: int
    suffered_ns: int
    suffered_by_start_ns: int | None
    steps_led: int


@dataclass(frozen=True, slots=True)
class Late:
    """One communication and the rank that arrived last.

    Attributes
    ----------
    matched : int
        Row in ``Matched``.
    op, group : str
    step, order : int
    rank : int
        The last to arrive.
    alone_ns : int
        How much later than the last but one.
    waited_ns : int
        Σ of the others' waits.
    clear : bool
        Whether it was later than the next by more than the clock error; True for durations.
    """

    matched: int
    op: str
    group: str
    step: int
    order: int
    rank: int
    alone_ns: int
    waited_ns: int
    clear: bool


@dataclass(frozen=True)
class Stragglers:
    """Waiting between the ranks of a run.

    Attributes
    ----------
    method : {"starts", "durations", "none"}
        How arrivals were determined: by starts on comparable clocks; by durations (the shortest arrived last).
    ranks : tuple of RankWaits
        Most waiting caused first.
    late : tuple of Late
        Every matched communication, in order.
    worst : int or None
        Rank that caused most waiting, even under the clocks' error; None where it cannot be determined.
    within_clock_error : int or None
        Rank that caused most waiting as recorded, where the clocks' error may account for that; then ``worst`` and
        ``chance`` are None and a note gives the figures.
    led, of : int
        Steps (or, without steps, communications) in which the rank that leads caused most with the clocks' error
        against it, and their number.
    chance : float or None
        Probability that some rank leads as often by chance, if every rank were equally likely and steps independent:
        min(1, n·P(Binomial(of, 1/n) ≥ led)).
    steps : tuple of int
        Numbers of the steps; (-1,) where none are known.
    wait_by_step_ns : mapping of int to tuple of int
        Rank to its waits per step: the heat map.
    notes : tuple of Note
    """

    method: Literal["starts", "durations", "none"]
    ranks: tuple[RankWaits, ...]
    late: tuple[Late, ...]
    worst: int | None
    within_clock_error: int | None
    led: int
    of: int
    chance: float | None
    steps: tuple[int, ...]
    wait_by_step_ns: Mapping[int, tuple[int, ...]]
    notes: tuple[Note, ...] = ()

    @property
    def often(self) -> str:
        """How often the worst rank leads, in words; empty if it leads in no single step."""
        unit = "steps" if len(self.steps) > 1 else "communications"
        return f"in {self.led} of {self.of} {unit}" if self.led else ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ranks of the heat map as text, as JSON has it."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Stragglers:
        """Rebuild what :meth:`to_dict` wrote."""
        return msgspec.convert(data, cls, str_keys=True)


@dataclass(frozen=True, eq=False)
class _Blame:
    """Per matched communication: who came last, how much later than the next, and what the others waited.

    ``heat`` and ``sums`` are of the waiting ranks: each one's waits per step; its communications, and its waits in all
    by durations and by starts.
    """

    rank: Int
    alone: Int
    waited: Int
    heat: Mapping[int, Int]
    sums: Mapping[int, tuple[int, int, int]]


def find_stragglers(matched: Matched, clocks: Clocks) -> Stragglers:
    """Find the rank everybody waits for, per communication and in total, in four passes over the ranks.

    Parameters
    ----------
    matched : Matched
    clocks : Clocks
        From :func:`align_clocks`; decides how arrivals are determined, and their error.

    Returns
    -------
    Stragglers
        Method ``none`` with a note for a single rank, or where nothing matched.
    """
    if len(matched) == 0:
        reason = "one rank was recorded" if len(matched.ranks) < 2 else "no communication could be matched over ranks"
        note = Note(
            "no-stragglers", "info", f"waiting between ranks is unknown, because {reason}; profile all ranks of the run"
        )
        return Stragglers("none", (), (), None, None, 0, 0, None, (), {}, (note,))
    steps, step = np.unique(matched.step, return_inverse=True)
    step = step.reshape(-1)
    # Without marked steps, or with only one, ranks lead communications instead of steps.
    unit = step if len(steps) > 1 else np.arange(len(matched))
    blame = _blame(matched, clocks, step, len(steps))
    led = _led(blame, unit)
    rows = _rank_rows(blame, led, clocks.comparable)
    leader, notes = (rows[0].rank if rows[0].caused_ns > 0 else None), clocks.notes
    within = None
    if clocks.comparable and leader is not None:
        against = _blame(matched, clocks.against(leader), step, len(steps))
        led = _led(against, unit)
        first = _rank_rows(against, led, True)[0].rank
        if first != leader:
            within = leader
            late_ns = int(np.median(blame.alone[blame.rank == leader]))
            [reach] = _reach(clocks, np.array([leader])).tolist()
            message = (
                f"the rank waited for most is within clock error: as recorded, rank {leader} arrives "
                f"{_us(late_ns)} after the next (median), but clocks are known only to "
                f"{_us(reach)}, and with such an offset it would be rank {first}; a clock offset "
                "is the same in every step, so recording more steps "
                "will not resolve this"
            )
            details = {"rank": leader, "late_ns": late_ns, "clock_error_ns": reach, "other": first}
            notes = (*notes, Note("stragglers-within-clock-error", "info", message, details))
    counts = (led.get(rows[0].rank, 0), sum(led.values()))
    clear = blame.alone > _reach(clocks, blame.rank) if clocks.comparable else np.ones(len(matched), bool)
    columns = (matched.op, matched.group, matched.step, matched.order, blame.rank, blame.alone, blame.waited, clear)
    late = tuple(
        Late(row, OPS[op], matched.groups[group].name or matched.groups[group].label, *values)
        for row, (op, group, *values) in enumerate(zip(*(column.tolist() for column in columns), strict=True))
    )
    return Stragglers(
        "starts" if clocks.comparable else "durations",
        rows,
        late,
        None if within is not None else leader,
        within,
        *counts,
        None if within is not None else _chance(*counts, len(rows)),
        tuple(steps.tolist()),
        {rank: tuple(row.tolist()) for rank, row in blame.heat.items()},
        notes,
    )


def _blame(matched: Matched, clocks: Clocks, step: Int, steps: int) -> _Blame:
    """Determine arrivals and each rank's waits: per communication, per step and in total."""
    arrivals = arrivals_of(matched, clocks)
    waited = np.zeros(len(matched), np.int64)
    heat: dict[int, Int] = {}
    sums: dict[int, tuple[int, int, int]] = {}
    for rank, collectives in matched.per_rank.items():
        waits = waits_of(matched, collectives, clocks, arrivals)
        wait = waits.wait_ns if arrivals is None else waits.wait_by_start_ns
        waited[waits.matched] += wait
        heat[rank] = _summed(step[waits.matched], wait, steps)
        sums[rank] = (len(wait), int(waits.wait_ns.sum()), int(waits.wait_by_start_ns.sum()))
    if arrivals is None:
        return _Blame(matched.shortest_rank, matched.second_ns - matched.transfer_ns, waited, heat, sums)
    return _Blame(arrivals.last_rank, arrivals.last_start_ns - arrivals.second_start_ns, waited, heat, sums)


def _reach(clocks: Clocks, rank: Int) -> Int:
    """Return the largest possible clock error between each given rank and any other, ns."""
    widest = np.array(sorted(clocks.bound_ns.items(), key=lambda item: -item[1])[:2] or [(-1, 0)], np.int64)
    own = np.array([clocks.bound_ns.get(key, 0) for key in rank.tolist()], np.int64)
    return own + np.where(rank == widest[0, 0], widest[-1, 1], widest[0, 1])


def _us(ns: int) -> str:
    return f"{ns / 1000:.3g} µs" if ns < 1_000_000 else f"{ns / 1e6:.3g} ms"


def _summed(index: Int, values: Int, size: int) -> Int:
    """Sum values by index, in integers."""
    total = np.zeros(size, np.int64)
    np.add.at(total, index, values)
    return total


def _led(blame: _Blame, unit: Int) -> dict[int, int]:
    """In how many steps (or communications) each rank caused most; ties go to the lowest rank."""
    ranks, position = np.unique(blame.rank, return_inverse=True)
    units = int(unit.max()) + 1
    caused = _summed(unit * len(ranks) + position.reshape(-1), blame.waited, units * len(ranks)).reshape(
        units, len(ranks)
    )
    leaders, counts = np.unique(ranks[caused.argmax(axis=1)[caused.max(axis=1) > 0]], return_counts=True)
    return dict(zip(leaders.tolist(), counts.tolist(), strict=True))


def _rank_rows(blame: _Blame, led: Mapping[int, int], by_start: bool) -> tuple[RankWaits, ...]:
    rows = []
    for rank, (matched, by_duration, started) in blame.sums.items():
        last = blame.rank == rank
        rows.append(
            RankWaits(
                rank,
                matched,
                int(last.sum()),
                int(blame.waited[last].sum()),
                int(blame.alone[last].sum()),
                by_duration,
                started if by_start else None,
                led.get(rank, 0),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.caused_ns, row.rank)))


def _chance(led: int, of: int, ranks: int) -> float | None:
    """Bonferroni bound of leading ``led`` times of ``of`` by chance."""
    if of == 0 or ranks < 2:
        return None
    p = 1 / ranks
    log_terms = [
        math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * math.log(p) + (of - k) * math.log1p(-p)
        for k in range(led, of + 1)
    ]
    return min(1.0, ranks * math.fsum(math.exp(term) for term in log_terms))
