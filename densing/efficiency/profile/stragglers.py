"""Which rank the others wait for, how much it costs, and how consistently it is the same one.

A constant error of a clock repeats in every step, so steps are no evidence against it. Arrivals told by clocks are
therefore told twice: as recorded, and with every clock in error as far as it may be, against the rank that leads. Only
a rank that leads both times is named, and what it is said to lead in, and its probability, are of the second time. For
ranks that are alike, with clocks in error within their bounds, that probability is too large rather than too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from densing.core import Note
from densing.efficiency.profile.arrivals import arrivals_of, waits_of
from densing.efficiency.profile.clocks import Clocks
from densing.efficiency.profile.matching import Matched
from densing.efficiency.timeline import OPS, Int


@dataclass(frozen=True)
class RankWaits:
    """One rank as the one waited for, and as the one waiting.

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
        Σ of (its start − latest start but one) in those: what its lateness alone cost, were it as early as the next.
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
        Whether it was later than the next by more than the clocks may be off; True where durations tell.
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
        How arrivals were told: by starts on comparable clocks; by durations (the shortest arrived last).
    ranks : tuple of RankWaits
        Most waiting caused first.
    late : tuple of Late
        Every matched communication, in order.
    worst : int or None
        Rank that caused most waiting, whatever the clocks' error; None where nothing can be told.
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
        """How often the worst rank leads, in words; empty where the most in all is the most in no single step."""
        unit = "steps" if len(self.steps) > 1 else "communications"
        return f"in {self.led} of {self.of} {unit}" if self.led else ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ranks of the heat map as text, as JSON has it."""
        heat = {str(rank): list(row) for rank, row in self.wait_by_step_ns.items()}
        notes = [note.to_dict() for note in self.notes]
        return {**asdict(self), "wait_by_step_ns": heat, "steps": list(self.steps), "notes": notes,
                "ranks": [asdict(row) for row in self.ranks], "late": [asdict(row) for row in self.late]}  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Stragglers:
        """Rebuild what :meth:`to_dict` wrote."""
        return cls(
            **{key: data[key] for key in ("method", "worst", "within_clock_error", "led", "of", "chance")},
            ranks=tuple(RankWaits(**row) for row in data["ranks"]),
            late=tuple(Late(**row) for row in data["late"]),
            steps=tuple(data["steps"]),
            wait_by_step_ns={int(rank): tuple(row) for rank, row in data["wait_by_step_ns"].items()},
            notes=tuple(Note.from_dict(note) for note in data["notes"]),
        )


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
        From :func:`~densing.efficiency.profile.clocks.align_clocks`; decides how arrivals are told, and within what
        error.

    Returns
    -------
    Stragglers
        Method ``none`` with a note where nothing can be told: one rank, or nothing matched.
    """
    if len(matched) == 0:
        why = "one rank was recorded" if len(matched.ranks) < 2 else "no communication could be matched over ranks"
        note = Note("no-stragglers", "info", f"nothing tells who waits for whom: {why}; profile all ranks of the run")
        return Stragglers("none", (), (), None, None, 0, 0, None, (), {}, (note,))
    steps, place = np.unique(matched.step, return_inverse=True)
    place = place.reshape(-1)
    unit = place if len(steps) > 1 else np.arange(len(matched))
    blame = _blame(matched, clocks, place, len(steps))
    led = _led(blame, unit)
    rows = _rank_rows(blame, led, clocks.comparable)
    leader, notes = (rows[0].rank if rows[0].caused_ns > 0 else None), clocks.notes
    within = None
    if clocks.comparable and leader is not None:
        against = _blame(matched, clocks.against(leader), place, len(steps))
        led = _led(against, unit)
        first = _rank_rows(against, led, True)[0].rank
        if first != leader:
            within, notes = leader, (*notes, _within(blame, clocks, leader, first))
    counts = (led.get(rows[0].rank, 0), sum(led.values()))
    return Stragglers(
        "starts" if clocks.comparable else "durations",
        rows,
        _late(matched, blame, clocks),
        None if within is not None else leader,
        within,
        *counts,
        None if within is not None else _chance(*counts, len(rows)),
        tuple(steps.tolist()),
        {rank: tuple(row.tolist()) for rank, row in blame.heat.items()},
        notes,
    )


def _blame(matched: Matched, clocks: Clocks, place: Int, steps: int) -> _Blame:
    """Tell arrivals, and what each rank waited: per communication, per step and in all."""
    arrivals = arrivals_of(matched, clocks)
    waited = np.zeros(len(matched), np.int64)
    heat: dict[int, Int] = {}
    sums: dict[int, tuple[int, int, int]] = {}
    for rank, collectives in matched.per_rank.items():
        waits = waits_of(matched, collectives, clocks, arrivals)
        told = waits.wait_ns if arrivals is None else waits.wait_by_start_ns
        waited[waits.matched] += told
        heat[rank] = _summed(place[waits.matched], told, steps)
        sums[rank] = (len(told), int(waits.wait_ns.sum()), int(waits.wait_by_start_ns.sum()))
    if arrivals is None:
        return _Blame(matched.shortest_rank, matched.second_ns - matched.transfer_ns, waited, heat, sums)
    return _Blame(arrivals.last_rank, arrivals.last_start_ns - arrivals.second_start_ns, waited, heat, sums)


def _reach(clocks: Clocks, rank: Int) -> Int:
    """How far each of some ranks' clocks and another's may be off together, ns."""
    others = np.array(sorted(clocks.bound_ns.items(), key=lambda item: -item[1])[:2] or [(-1, 0)], np.int64)
    own = np.array([clocks.bound_ns.get(key, 0) for key in rank.tolist()], np.int64)
    return own + np.where(rank == others[0, 0], others[-1, 1], others[0, 1])


def _within(blame: _Blame, clocks: Clocks, leader: int, other: int) -> Note:
    late = int(np.median(blame.alone[blame.rank == leader]))
    [reach] = _reach(clocks, np.array([leader])).tolist()
    message = (
        f"who is waited for most is within clock error: as recorded rank {leader}, which comes {_us(late)} after the "
        f"next (median), but clocks are known to {_us(reach)} only, and off by as much it would be rank {other}; a "
        "constant error repeats, so more steps do not tell"
    )
    details = {"rank": leader, "late_ns": late, "clock_error_ns": reach, "other": other}
    return Note("stragglers-within-clock-error", "info", message, details)


def _us(ns: int) -> str:
    return f"{ns / 1000:.3g} µs" if ns < 1_000_000 else f"{ns / 1e6:.3g} ms"


def _summed(place: Int, values: Int, size: int) -> Int:
    """Sum values by place, in integers."""
    total = np.zeros(size, np.int64)
    np.add.at(total, place, values)
    return total


def _led(blame: _Blame, unit: Int) -> dict[int, int]:
    """In how many steps (or communications) each rank caused most; ties go to the lowest rank."""
    ranks, who = np.unique(blame.rank, return_inverse=True)
    units = int(unit.max()) + 1
    caused = _summed(unit * len(ranks) + who.reshape(-1), blame.waited, units * len(ranks)).reshape(units, len(ranks))
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


def _late(matched: Matched, blame: _Blame, clocks: Clocks) -> tuple[Late, ...]:
    clear = blame.alone > _reach(clocks, blame.rank) if clocks.comparable else np.ones(len(matched), bool)
    columns = (matched.op, matched.group, matched.step, matched.order, blame.rank, blame.alone, blame.waited, clear)
    return tuple(
        Late(at, OPS[op], matched.groups[group].name or matched.groups[group].label, *rest)
        for at, (op, group, *rest) in enumerate(zip(*(column.tolist() for column in columns), strict=True))
    )


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
