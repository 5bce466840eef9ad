"""What a user asks of a recorded run: its step on another link, without a rank, with fused kernels, with CO2.

Every answer is a replay of the recorded run (:mod:`densing.efficiency.profile.replay`) with the change made.

*A link of another rate.* What each transfer takes beyond its latency is in proportion to the time of a byte (a rate is
of the line; over TCP 94 % of it are payload). Latency and time of a byte as recorded are fitted to the run's own sizes
and transfers (:func:`densing.efficiency.simulation.calibrate`); the latency stays:

.. math:: t' = m\\alpha + (t - m\\alpha)\\,\\beta'/\\beta

with m the messages of a ring. Where all sizes are alike, latency is unknown and counts as none.

*Averages every tau steps* (``local-sgd``, ``co2``). The recorded all-reduces are not made, nor are broadcasts in their
groups (buffers of the replicas), and what the all-reduces took alone on their link, E a step, is sent once a round:
parameters have as many bytes as gradients. With s the step of the replay without them

.. math:: s' = s + E/\\tau \\quad (\\text{local-sgd, which waits}), \\qquad
          s' = \\max(s, E/\\tau) \\quad (\\text{co2, one round late})

so that what the optimizer of averages computes, and the slower computing beside a transfer, are left out.

*Sparse gradients* (``dct``). In place of a step's last all-reduce of gradients every replica gathers the packets of all
n, with the share 1 - eta of V bytes of gradients (values and indices of four bytes), and their lengths of 8 bytes; the
others are not made. Encoding and decoding are left out.

.. math:: E' = 2 (n-1)\\alpha + (n-1) (8 + V\\,p(1-\\eta))\\,\\beta

with p the bytes of a sparse packet over those of all values
(:func:`densing.efficiency.simulation.sizes.sparse_share`).

*Sums one module late* (``ladder``). An all-reduce is a tensor-parallel sum where computation waits for it before the
next one of its group and step is made; that computation waits for the sum before instead, and the sum overlaps it. The
last sum of a step is waited for as recorded. It is another architecture, whose loss differs.

*Fused kernels* (``fuse``): :func:`densing.efficiency.timeline.fuse`.
"""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from densing.core import InputError, Record, UnknownNameError, formatting
from densing.efficiency.profile.alignment import FITTED, Matched, observations
from densing.efficiency.profile.critical import RunPath, walk
from densing.efficiency.profile.replay import Change, Float, Replay, Times
from densing.efficiency.timeline import OPS, Comm, Int, Kind, Lane, RankTimeline, Row, Spans, Spent, Step, Timeline

CHANGES = ("link", "hide", "drop-rank", "overlap", "fuse", "co2:tau", "local-sgd:tau", "dct:eta", "ladder")
"""What can be changed: transfers K times as fast or a link's rate, transfers of one operation at no cost, a rank that
takes no part, communication that nothing but communication waits for, adjacent kernels of a name launched at once,
averages every tau steps, gradients of which a share is sent, and sums one module late."""
_REDUCE, _BROADCAST = OPS.index("all_reduce"), OPS.index("broadcast")
_ROUNDS = ("co2:tau", "local-sgd:tau")
_TECHNIQUES = (*_ROUNDS, "dct:eta", "ladder")
_SHARE = re.compile(r"0?\.\d+|0")
_FACTOR = re.compile(r"\d+(\.\d+)?x")
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt])bit")
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
MOST_FITTED = 2_000
"""Most communications that a link is fitted to, evenly spread over the run."""
TCP_PAYLOAD = 1448 / 1538
"""Payload of a full Ethernet frame over TCP and IPv4 (1,500 bytes less 20 and 32) over what it takes of the line, with
header, check sum, preamble and gap (38 bytes): IEEE 802.3, RFC 791, RFC 7323."""
SMALL_SHARE = 0.01
"""All-reduces below this share of the largest (a loss, a flag) are no exchange of gradients, and stay."""


class Bound(Record, frozen=True):
    """What the critical path of a replay consists of most: a rank, a kind of time, and its share of the path."""

    rank: int
    kind: str
    share_pct: float

    def __str__(self) -> str:
        return f"{self.kind} on rank {self.rank} ({formatting.percent(self.share_pct)})"


class Planned(Record, frozen=True):
    """A recorded step, and the same with something changed.

    Attributes
    ----------
    change : str
        As given.
    before_ms, after_ms : float
        The run's time over its steps (the window, where no step is marked).
    low_ms, high_ms : float or None
        Shortest and longest single step of the changed replay; None where steps are not marked or end before the
        device's work.
    gain_pct : float
        Of the time before.
    bound_before, bound_after : Bound
        What the critical path led through most, and what it leads through then: the next bottleneck.
    model : str
        What was fitted to the trace for the answer; empty where nothing was.
    """

    change: str
    before_ms: float
    after_ms: float
    low_ms: float | None
    high_ms: float | None
    gain_pct: float
    bound_before: Bound
    bound_after: Bound
    model: str = ""

    @property
    def sentence(self) -> str:
        """The result in words."""
        spread = ""
        if self.low_ms is not None and self.high_ms is not None and self.high_ms > self.low_ms:
            spread = f" (steps {formatting.milliseconds(self.low_ms)} to {formatting.milliseconds(self.high_ms)})"
        gained = f"{abs(self.gain_pct):.1f} % {'less' if self.gain_pct >= 0 else 'more'}"
        return (
            f"{self.change}: {formatting.milliseconds(self.before_ms)} per step become "
            f"{formatting.milliseconds(self.after_ms)}{spread}, {gained}; bound by {self.bound_before} before, "
            f"by {self.bound_after} then"
        )


class Changed(NamedTuple):
    """A change of a run, with averages left out; what they add to a step, ns, and whether the step waits for them.

    What was fitted or assumed stands in ``model``; ``shown`` has the averages in it; ``gathered`` are the ends of
    exchanges that are no longer sums.
    """

    change: Change
    exchange: float
    waits: bool
    model: str
    shown: Change
    gathered: NDArray[np.bool_] | None = None


def parse_changes(text: str) -> list[tuple[str, str]]:
    """Return the parts of a text such as ``link=2x,drop-rank=5``, checked as far as no run is needed.

    Raises
    ------
    InputError
        When a part is unknown or cannot be read; the message says what could.

    Examples
    --------
    >>> parse_changes("link=2x, overlap=perfect")
    [('link', '2x'), ('overlap', 'perfect')]
    """
    parts = []
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key not in CHANGES:
            raise UnknownNameError("change of --what-if", key, CHANGES)
        number = _FACTOR.fullmatch(value) or _RATE.fullmatch(value)
        if key == "link" and not (number and float(number[0].rstrip("xkmgtbi")) > 0):
            raise InputError(
                f"--what-if {part}: a link is faster by a factor, e.g. link=2x (link=0.5x is slower), or has a rate, "
                "e.g. link=300mbit (kbit, mbit, gbit or tbit per second)"
            )
        if key in _ROUNDS and not (value.isdecimal() and int(value) > 0):
            raise InputError(f"--what-if {part}: tau is a number of steps from 1 up, e.g. {key}=8")
        if key == "dct:eta" and not _SHARE.fullmatch(value):
            raise InputError(f"--what-if {part}: eta is the share of the gradient held back, e.g. dct:eta=0.99")
        if key == "ladder" and "=" in part:
            raise InputError(f"--what-if {part}: all layers become ladder layers; write ladder alone")
        if key == "fuse" and not value:
            raise InputError(
                f"--what-if {part}: needs a part of the kernels' names without commas, e.g. fuse=elementwise"
            )
        if key == "overlap" and value != "perfect":
            raise InputError(f"--what-if {part}: the only overlap that can be assumed is overlap=perfect")
        if key == "drop-rank" and not value.isdecimal():
            raise InputError(f"--what-if {part}: a rank is a number, e.g. drop-rank=5")
        parts.append((key, value))
    return parts


def changed(replay: Replay, text: str) -> Changed:
    """Return what a text changes of a run.

    Raises
    ------
    InputError
        When a part cannot be read or means nothing in this run (the message says what would), or the run has nothing
        to replay.
    """
    parts = parse_changes(text)
    if not len(replay) or not replay.run_ns():
        raise InputError(f"--what-if {text}: nothing was recorded that could be replayed; check the window")
    if replay.fidelity.status == "off":
        raise InputError(
            f"--what-if {text}: {replay.fidelity.sentence}, so a changed run would mean nothing; profile one rank"
        )
    transfer, overlapped, dropped, models = replay.transfer, False, list[int](), list[str]()
    own: Times | None = None
    operations = sorted({op for op, _ in replay.operations if op})
    for key, value in parts:
        if key == "link" and value.endswith("x"):
            transfer = transfer / float(value[:-1])
        elif key == "link":
            transfer, model = _paced(replay, transfer, value)
            models.append(model)
        elif key == "hide":
            if value not in operations:
                listed = ", ".join(operations) or "none that the trace names"
                raise InputError(f"--what-if hide={value}: the run has no such communication; it has {listed}")
            codes = [code for code, (op, _) in enumerate(replay.operations) if op == value]
            transfer = np.where(np.isin(replay.operation, codes), 0.0, transfer)
        elif key == "drop-rank":
            if int(value) not in replay.ranks:
                known = formatting.ranks_of(replay.ranks)
                raise InputError(f"--what-if drop-rank={value}: no such rank was profiled; known are {known}")
            dropped.append(replay.ranks.index(int(value)))
            if len(set(dropped)) == len(replay.ranks):
                raise InputError(f"--what-if {text}: without its last rank there is no run; drop fewer")
        elif key == "fuse":
            if own is not None:
                raise InputError(f"--what-if {text}: one fuse at a time; name a part that the kernels' names share")
            own, model = _fused(replay, value)
            models.append(model)
        elif key == "overlap":
            overlapped = True
    techniques = [(key, value) for key, value in parts if key in _TECHNIQUES]
    if len(techniques) > 1:
        raise InputError(f"--what-if {text}: one technique at a time; name one")
    change, gathered = Change(own=own, transfer=transfer, overlapped=overlapped, dropped=tuple(dropped)), None
    for key, value in techniques:
        if key == "ladder":
            late = _sums(replay)
            change = dataclasses.replace(change, late=late)
            sums = round(late.sum() / len(replay.ranks) / (replay.steps or 1))
            models.append(
                f"{formatting.count(sums)} sums a step go one module late; another architecture, whose loss differs"
            )
        elif key == "dct:eta":
            change, gathered, model = _sparse(replay, change, value)
            models.append(model)
        else:
            return _averages(replay, change, key, int(value), models)
    return Changed(change, 0.0, False, "; ".join(models), change, gathered)


def plan(replay: Replay, text: str) -> Planned:
    """Replay a run with a change made.

    Raises
    ------
    InputError
        As :func:`changed`.
    """
    change, exchange, waits, model, *_ = changed(replay, text)
    steps = replay.steps or 1

    def with_exchange(ns: float) -> float:
        return ns + exchange if waits else max(ns, exchange)

    before, after = replay.run_ns() / steps, with_exchange(replay.run_ns(change) / steps)
    spread = replay.step_range_ns(change)
    low, high = (None, None) if spread is None else tuple(with_exchange(ns) / 1e6 for ns in spread)
    bound = _bound(walk(replay, change))
    # A step's part on the path that the exchange must exceed to be the next bottleneck.
    if exchange and exchange > (bound.share_pct / 100 * (after - exchange) if waits else after - 1e-6 * after):
        bound = Bound(bound.rank, "communication", 100 * exchange / after)
    return Planned(
        text,
        before / 1e6,
        after / 1e6,
        low,
        high,
        100 * (1 - after / before),
        _bound(walk(replay)),
        bound,
        model,
    )


def changed_timeline(replay: Replay, text: str) -> Timeline:
    """Return the run with a change made, as if it had been recorded: to be profiled, drawn or written as a trace.

    Stretches of a stream are one span each, a communication lasts from a rank's arrival to its end. Averages stand in
    place of the last all-reduce of each round that ends within the window.

    Raises
    ------
    InputError
        As :func:`changed`.

    Examples
    --------
    >>> from densing.efficiency.profile.run import profile_run
    >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans, Timeline
    >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 60, "end": 100, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> replay = profile_run(Timeline((RankTimeline(0, work, Spans.empty()),))).replay
    >>> changed_timeline(replay, "link=2x").ranks[0].work.end.tolist()
    [60, 80]
    """
    *_, change, gathered = changed(replay, text)
    moments = np.round(np.maximum(replay.times(change), 0)).astype(np.int64)
    at, arrival = moments[replay.head :], moments[replay.before]
    busy = replay.own.spent[:, [Spent.COMPUTE, Spent.MEMCPY]]
    left_out = np.zeros(len(replay), bool) if change.apart is None else change.apart
    sent = (replay.kind == Row.END) & ~left_out
    begin = np.where(sent, arrival, at - busy.sum(axis=1))
    shown = (sent | ((replay.kind == Row.WORK) & (busy.sum(axis=1) > 0))) & ~np.isin(replay.rank, change.dropped)
    kinds = np.where(sent, Kind.COMM, np.where(busy[:, 1] > busy[:, 0], Kind.MEMCPY, Kind.COMPUTE))
    ranks = []
    for place, number in enumerate(replay.ranks):
        rows = np.flatnonzero(shown & (replay.rank == place))
        rows = rows[np.lexsort((at[rows], begin[rows]))]
        table, free = [], dict[tuple[int, int], int]()
        for row, kind, start, end in zip(
            rows.tolist(), *(each[rows].tolist() for each in (kinds, begin, at)), strict=True
        ):
            # The first lane of its kind that is free.
            lane = next(n for n in range(len(rows)) if free.get((kind, n), start) <= start)
            free[kind, lane] = end
            title = Kind(kind).name.lower()
            entry = {"start": start, "end": end, "kind": Kind(kind), "name": title, "lane": Lane("", f"{title} {lane}")}
            if kind == Kind.COMM:
                op, group = replay.operations[code] if (code := replay.operation[row]) >= 0 else ("", "")
                op = "all_gather" if gathered is not None and gathered[row] else op
                entry |= {"name": op or title, "comm": Comm(op, group, seq=int(replay.communication[row]))}
            table.append(entry)
        marks = at[(replay.kind == Row.STEP) & (replay.rank == place)] if place not in change.dropped else at[:0]
        first = round(replay.starts[place])
        steps = (Step(step, begun, end) for step, (begun, end) in enumerate(pairwise([first, *sorted(marks.tolist())])))
        ranks.append(RankTimeline(number, Spans.build(table), Spans.empty(), tuple(steps)))
    return Timeline(tuple(rank for place, rank in enumerate(ranks) if place not in change.dropped))


class _Link(NamedTuple):
    """A recorded link: seconds of latency a message and of a byte, and how they were found."""

    latency: float
    pace: float
    about: str


def _link(replay: Replay, asked: str, instead: str) -> _Link:
    """Fit the link to the run's own matched communications."""
    from densing.efficiency.simulation import calibrate, ring_terms

    matched = replay.matched
    seen = () if matched is None else observations(matched, replay.alone_share)
    if not seen:
        raise InputError(
            f"--what-if {asked}: {replay.apart or 'no communication of known size was matched over ranks'}, so the "
            f"recorded rate is unknown{instead}"
        )
    # Transfers stay as slow beside compute as they were, so the rate is the one that was seen there, too.
    seen = tuple(replace(one, overlapped=0.0) for one in seen[:: -(-len(seen) // MOST_FITTED)])
    fitted = calibrate(seen)
    if fitted.beta_s_per_byte is not None and fitted.beta_s_per_byte.value > 0 and fitted.alpha_s is not None:
        latency, pace = fitted.alpha_s.value, fitted.beta_s_per_byte.value
        about = f"{formatting.duration(round(1e9 * latency))} of latency a message, which stays"
    else:
        latency = 0.0
        pace = float(np.median([one.seconds / (ring_terms(one.op, one.n).volume * one.count) for one in seen]))
        about = "latency unknown (messages of one size, or too few), taken for none"
    return _Link(latency, pace, f"recorded link: {8 / pace / 1e6:.4g} Mbit/s as seen, {about}")


def _paced(replay: Replay, transfer: Float, rate: str) -> tuple[Float, str]:
    """Transfers over a link of another rate, and what of the recorded link was fitted."""
    from densing.efficiency.simulation import ring_terms

    number, unit = _RATE.fullmatch(rate).groups()  # type: ignore[union-attr]
    payload = TCP_PAYLOAD if replay.over_tcp else 1.0
    seconds_per_byte = 8 / (float(number) * _BITS[unit] * payload)
    link, matched = _link(replay, f"link={rate}", "; use a factor, e.g. link=2x"), replay.matched
    assert matched is not None, "a link was fitted to communications that were not matched"
    messages = np.zeros(len(matched) + 1)
    size = _group_sizes(matched)
    for op, n in {(op, n) for op, n in zip(matched.op.tolist(), size.tolist(), strict=True)}:
        if (name := FITTED.get(OPS[op])) is not None:
            messages[:-1][(matched.op == op) & (size == n)] = ring_terms(name, n).messages
    stays = np.minimum(1e9 * link.latency * messages[replay.communication], transfer)
    framed = "" if payload == 1 else f"; {100 * payload:.0f} % of a link's rate is payload of TCP frames"
    ends = replay.kind == Row.END
    return np.where(ends, stays + (transfer - stays) * seconds_per_byte / link.pace, transfer), link.about + framed


def _group_sizes(matched: Matched) -> Int:
    """Ranks in the group of each communication."""
    groups = np.array([group.size for group in matched.groups] or [0])
    return np.maximum(groups[matched.group], matched.n_ranks)


class _Exchange(NamedTuple):
    """The exchange of gradients: rows of its ends, and all rows of it and of what goes beside it."""

    rows: Int
    apart: NDArray[np.bool_]


def _exchanges(replay: Replay, dropped: tuple[int, ...], technique: str) -> _Exchange:
    """Find the all-reduces of gradients, which a technique leaves out."""
    matched = replay.matched
    size = np.zeros(1) if matched is None else np.append(np.where(matched.op == _REDUCE, matched.bytes, -1), -1)
    exchanged = (size > 0) & (size >= SMALL_SHARE * size.max())
    sent = exchanged[replay.communication] & (replay.role < 0) & ~np.isin(replay.rank, dropped)
    if not sent.any():
        raise InputError(
            f"--what-if {technique}: {replay.apart or 'no all_reduce of known size was matched over ranks'}, so the "
            "run exchanges no gradients that could be averaged less often"
        )
    # What keeps the replicas' buffers alike before each forward goes with the gradients' exchange.
    beside = np.zeros(len(size), bool)
    if matched is not None:
        beside[:-1] = (matched.op == _BROADCAST) & np.isin(matched.group, matched.group[exchanged[:-1]])
    return _Exchange(np.flatnonzero(sent), (exchanged | beside)[replay.communication])


def _in_place(replay: Replay, change: Change, exchange: _Exchange, ns: float, every: int = 1) -> Change:
    """Put exchanges of a length in place of the last all-reduce of every so many steps; the others are not made."""
    assert change.transfer is not None, "a change of transfers without them"
    rows = exchange.rows
    rows = rows[np.lexsort((replay.recorded[rows], replay.step[rows], replay.rank[rows]))]
    cell = replay.rank[rows] * (int(replay.step.max()) + 1) + replay.step[rows]
    last = rows[np.append(cell[1:] != cell[:-1], True)]
    kept = np.zeros(replay.count + 1, bool)
    kept[replay.communication[last[(replay.step[last] + 1) % every == 0]]] = True
    stays = kept[replay.communication] & (replay.communication >= 0)
    ends = stays & (replay.kind == Row.END)
    transfer = np.where(ends, ns, np.where(exchange.apart, 0.0, change.transfer))
    return dataclasses.replace(change, transfer=transfer, apart=exchange.apart & ~stays, late=ends)


def _averages(replay: Replay, change: Change, key: str, tau: int, models: list[str]) -> Changed:
    """Averages every tau steps, in place of the exchange of gradients."""
    exchange, waits = _exchanges(replay, change.dropped, key), key == "local-sgd:tau"
    assert change.transfer is not None, "a change of transfers without them"
    took = np.bincount(replay.rank[exchange.rows], change.transfer[exchange.rows]).max() / (replay.steps or 1)
    models.append(f"an average takes what a step's gradients took, {formatting.milliseconds(took / 1e6)}")
    shown = _in_place(replay, change, exchange, took, tau)
    free = dataclasses.replace(change, transfer=np.where(exchange.apart, 0.0, change.transfer), apart=exchange.apart)
    shown = dataclasses.replace(shown, late=None) if waits else shown
    return Changed(free, took / tau, waits, "; ".join(models), shown)


def _sparse(replay: Replay, change: Change, eta: str) -> tuple[Change, NDArray[np.bool_] | None, str]:
    """Packets of the largest gradients, gathered after the backward pass; the ends of gathers, and what was assumed."""
    from densing.efficiency.simulation import ring_terms, sizes

    exchange, matched = _exchanges(replay, change.dropped, "dct:eta"), replay.matched
    assert matched is not None, "an exchange of communications that were not matched"
    link = _link(replay, f"dct:eta={eta}", "")
    rows = exchange.rows
    number = replay.communication[rows]
    volume = float(np.bincount(replay.rank[rows], matched.bytes[number]).max()) / (replay.steps or 1)
    packet = volume * sizes.sparse_share(1 - float(eta))
    # A link that the change makes faster is faster for packets, too.
    assert change.transfer is not None, "a change of transfers without them"
    faster = float(np.sum(change.transfer[rows]) / max(np.sum(replay.transfer[rows]), 1.0))
    ranks = int(_group_sizes(matched)[number].max())
    gather = ring_terms("all_gather", ranks)
    count = ranks * (sizes.LENGTH_BYTES + packet)
    seconds = 2 * gather.messages * link.latency + gather.volume * count * link.pace * faster
    placed = _in_place(replay, change, exchange, 1e9 * seconds)
    model = (
        f"packets of {formatting.volume(packet)} a rank in place of {formatting.volume(volume)} of gradients, gathered "
        f"in {formatting.milliseconds(1e3 * seconds)}; {link.about}; encoding and decoding left out"
    )
    return dataclasses.replace(placed, late=None), placed.late, model


def _sums(replay: Replay) -> NDArray[np.bool_]:
    """Which rows end a sum that computation waits for before the next one of the group is made."""
    head = replay.head
    codes = [code for code, (op, _) in enumerate(replay.operations) if op == "all_reduce"]
    ends = np.flatnonzero(np.isin(replay.operation, codes))
    ends = ends[np.lexsort((ends, replay.operation[ends], replay.rank[ends]))]
    # When something other than a communication first waited for each.
    waited = np.full(head + len(replay), np.inf)
    others = np.flatnonzero(~np.isin(replay.kind, (Row.ARRIVAL, Row.END)))
    for column in (replay.before, replay.other):
        np.minimum.at(waited, column[others], replay.recorded[others])
    arrival = replay.before[ends] - head
    following = np.roll(arrival, -1)
    late = waited[head + ends] <= replay.recorded[following]
    late &= replay.operation[ends] == np.roll(replay.operation[ends], -1)
    for column in (replay.rank, replay.step):
        late &= column[following] == column[arrival]
    late &= np.arange(len(ends)) < len(ends) - 1
    if not late.any():
        raise InputError(
            "--what-if ladder: no all_reduce of the run is waited for by computation before the next one of its group "
            "and step, as a tensor-parallel sum is; nothing can go one module late"
        )
    found = np.zeros(len(replay), bool)
    found[ends[late]] = True
    return found


def _fused(replay: Replay, text: str) -> tuple[Times, str]:
    """Rows with adjacent kernels of a name launched at once, and how many launches that saves."""
    own, kernels, launches = replay.fused(text)
    if not kernels:
        raise InputError(
            f"--what-if fuse={text}: no computation's name holds it; densing profile lists the longest, and upper and "
            "lower case differ"
        )
    ranks, steps = len(replay.ranks), replay.steps or 1
    kernels, launches = (round(one / ranks / steps) for one in (kernels, launches))
    return own, (
        f"{formatting.plural(kernels, 'kernel')} a rank and step become "
        f"{formatting.plural(launches, 'launch', 'launches')}; saved are pauses between them and the host's launches, "
        "kernels keep their length"
    )


def _bound(path: RunPath) -> Bound:
    rank, kind = path.bound_by or (-1, "idle")
    ns = path.totals.get(rank, {}).get(kind, 0)
    return Bound(rank, kind, 100 * ns / max(path.end_ns - path.start_ns, 1))
