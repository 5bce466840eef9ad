"""The causes of lost time: what each costs, and the usual remedy.

A cause costs what the replay of the run gains without it (:mod:`densing.efficiency.profile.replay`), one cause at a
time. Removing one may expose the next, or two may hide each other: what all of them together gain beyond the sum is
their interaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from densing.core import Record, formatting
from densing.efficiency.profile.joint import JointProfile
from densing.efficiency.profile.rank import RankProfile, cut_short, run_collectives
from densing.efficiency.profile.replay import Change, Replay
from densing.efficiency.timeline import CLASSES, CollectiveSummary

SHOWN = 3
SMALL_MESSAGE = 1_000_000
WAITING = "waiting-for-ranks"
LEAST_PCT = 0.1
"""Least gain of a cause, % of the run's time."""
SLOW_PCT = 1.0
"""Least gain of usual transfers, % of the run's time: they are a part of what communication costs."""
MOST_OPERATIONS = 12
"""Most kinds of communication that are removed one by one: those most exposed."""
_COPY_REMEDIES = {
    "host_to_device": "pin host memory, copy with non_blocking=True on a separate stream, prefetch the next batch",
    "device_to_host": "log and checkpoint less often, or copy with non_blocking=True into pinned memory",
    "device_to_device": "avoid copies between layouts (contiguous, channels_last, concatenation)",
}


class Cause(Record, frozen=True):
    """A cause of lost time.

    Attributes
    ----------
    code : str
        Stable short name.
    gain_ms_per_step : float
        What the replay gains per step without it (per window where no step is marked).
    gain_pct : float
        The same as a share of the run's time.
    rank : int or None
        The rank that loses most by it; for waiting, the rank that the others wait for. None for a single rank, where
        ranks are alike (within a tenth), and where the rank waited for is unknown.
    title, message, remedy : str
        A short title, a sentence, and what usually helps.
    """

    code: str
    gain_ms_per_step: float
    gain_pct: float
    rank: int | None
    title: str
    message: str
    remedy: str


class Causes(Record, frozen=True):
    """All causes of a run.

    Attributes
    ----------
    causes : tuple of Cause
        The worst first.
    together_ms_per_step : float
        What the replay gains without all of them.
    """

    causes: tuple[Cause, ...]
    together_ms_per_step: float

    @property
    def interaction_ms_per_step(self) -> float:
        """What all together gain beyond the sum of the single gains; negative where they claim the same time."""
        return self.together_ms_per_step - sum(cause.gain_ms_per_step for cause in self.causes)


@dataclass(frozen=True)
class _Suspect:
    """What may cost time: the change that removes it, its share of each rank's loss, and words."""

    code: str
    change: Change
    of_rank: Mapping[int, float]
    title: str
    message: str
    remedy: str


def find_causes(
    ranks: Sequence[RankProfile],
    parts: Sequence[Sequence[CollectiveSummary]],
    replay: Replay,
    joint: JointProfile | None = None,
) -> Causes:
    """Rank the causes of lost time by what the replay gains without each.

    Parameters
    ----------
    ranks : sequence of RankProfile
    parts : sequence of sequence of CollectiveSummary
        Of each rank.
    replay : Replay
        Of the same ranks.
    joint : JointProfile, optional
        Results that need several ranks.

    Returns
    -------
    Causes
        None of a run whose replay is off.
    """
    if not len(replay) or not replay.run_ns() or replay.fidelity.status == "off":
        return Causes((), 0.0)
    whole, steps = replay.run_ns(), replay.steps or 1
    suspects = [*_waiting(replay, joint), *_communication(ranks, parts, replay), *_host(ranks, replay)]
    causes, removed = [], []
    for suspect in suspects:
        gain = whole - replay.run_ns(suspect.change)
        least = SLOW_PCT if suspect.code == "slow-transfers" else LEAST_PCT
        if 100 * gain < least * whole:
            continue
        removed.append(suspect.change)
        rank = _stands_out(suspect.of_rank)
        # For waiting, the message itself names the rank.
        suffix = "" if rank is None or suspect.code == WAITING else f"; most on rank {rank}"
        words = (suspect.title, suspect.message + suffix, suspect.remedy)
        causes.append(Cause(suspect.code, gain / steps / 1e6, 100 * gain / whole, rank, *words))
    together = (whole - replay.run_ns(_all_of(removed))) / steps / 1e6 if removed else 0.0
    return Causes(tuple(sorted(causes, key=lambda cause: -cause.gain_ms_per_step)), together)


def _all_of(changes: Sequence[Change]) -> Change:
    """All changes in one."""
    transfers = [change.transfer for change in changes if change.transfer is not None]
    return Change(
        tuple(dict.fromkeys(name for change in changes for name in change.without)),
        next((change.even for change in changes if change.even is not None), None),
        np.minimum.reduce(transfers) if transfers else None,
        unblocked=any(change.unblocked for change in changes),
    )


def _stands_out(of_rank: Mapping[int, float]) -> int | None:
    """Return the rank that loses most, if it loses at least a tenth more than the mean."""
    if len(of_rank) < 2:
        return None
    rank = max(of_rank, key=lambda key: (of_rank[key], -key))
    return rank if of_rank[rank] * len(of_rank) > 1.1 * sum(of_rank.values()) else None


def _waiting(replay: Replay, joint: JointProfile | None) -> Iterator[_Suspect]:
    """Ranks that wait for each other because their own work is uneven."""
    if joint is None or not replay.joins.any():
        return
    last = joint.stragglers.worst
    latecomer = "the last" if last is None else joint.worst
    # Where most of the waiting is seen.
    (op, group), _ = max(joint.waiting.items(), key=lambda item: item[1].waited_ns, default=(("", ""), None))
    where = f"{op or 'communication'}{f' in group {group}' if group else ''}"
    yield _Suspect(
        WAITING,
        Change(even=np.ones(len(replay.ranks), bool)),
        # The rank that is waited for; the second entry, which loses nothing, makes it stand out.
        {} if last is None else {last: 1.0, -1: 0.0},
        f"ranks wait for {'each other' if last is None else f'rank {last}'} in {where}",
        f"stragglers: ranks enter {where} at different times and wait for {latecomer}",
        "balance the ranks' work (sequence lengths, stages, data loading); check the slow rank's host",
    )


def _communication(
    ranks: Sequence[RankProfile], parts: Sequence[Sequence[CollectiveSummary]], replay: Replay
) -> Iterator[_Suspect]:
    """Transfers by operation and group, and those slower than others of their size."""
    cut = cut_short(ranks)
    for row in run_collectives(parts)[:MOST_OPERATIONS]:
        key = (row.op, row.group or row.group_label)
        if key not in replay.operations:
            continue
        name = f"{row.op or 'communication'}{f' in group {row.group}' if row.group else ''}"
        calls, size = formatting.plural(row.count, "call"), "unknown size"
        if row.count_sized:
            speed = f" at {row.busbw_gbps:.3g} GB/s bus bandwidth" if row.busbw_gbps else ""
            size = f"{row.bytes / row.count_sized / 1e6:.3g} MB on average{speed}"
        hidden = f", {row.hidden_pct:.0f} % hidden behind compute" if row.hidden_pct else ", nothing hidden"
        yield _Suspect(
            "exposed-communication",
            Change(transfer=np.where(replay.operation == replay.operations.index(key), 0.0, replay.transfer)),
            {
                rank.rank: sum(own.exposed_ns for own in part if (own.op, own.group or own.group_label) == key)
                for rank, part in zip(ranks, parts, strict=True)
            },
            f"{name} is not hidden",
            f"{name}: {calls} of {size}{'' if cut else hidden}",
            _remedy(row),
        )
    slow = replay.slow_transfers
    if slow is not None:
        factor = float(1 / slow[slow < 1].mean()) if np.any(slow < 1) else 1.0
        yield _Suspect(
            "slow-transfers",
            Change(transfer=replay.transfer * slow),
            {},
            "some transfers are slower than others of their size",
            f"transfers of one operation and size differ: the slower ones take {factor:.2f} times as long as the "
            "quickest quarter",
            "look at when they slow down (other jobs on the network, a failing link, throttling)",
        )


def _remedy(row: CollectiveSummary) -> str:
    if row.op == "barrier":
        return "remove the barrier, or replace it by the collective that follows"
    if row.count_sized and row.bytes / row.count_sized < SMALL_MESSAGE:
        return "send fewer, larger messages (gradient buckets, fused or coalesced collectives)"
    if not row.hidden_pct:
        return "start it earlier and wait later (async_op=True, bucketed gradients, prefetched parameters)"
    return "hide more of it (smaller, earlier buckets), or send less (local steps)"


_PAUSES = {
    "kernel_wait": (
        "launched work does not start immediately (dependencies between streams, launch latency)",
        "fuse small kernels; look at what the streams wait for",
    ),
    "no_launch_record": (
        "idle before work whose launch is not in the trace",
        "record more steps, including host activity (ProfilerActivity.CPU)",
    ),
    "before_first": ("idle at the start of the window, before any recorded work", "warm up before the recorded steps"),
    "after_last": ("idle at the end of the window, after the last work", "look at what the host does between steps"),
    "unknown": (
        "the device neither computes nor communicates, for an unknown reason",
        "record waits (densing.timeline.record marks them) or Python stacks",
    ),
}
"""Idle time that neither the host nor a communication explains: a sentence, and what usually helps."""
_RECORDED = (
    "record Python stacks (stacks=True) or more ranges (torch.profiler.record_function) to see what the host did"
)
"""Used instead of the advice to mark waits, which a trace of :func:`densing.timeline.record` already does."""


def _host(ranks: Sequence[RankProfile], replay: Replay) -> Iterator[_Suspect]:
    """What the host, copies and pauses of the device cost."""
    meanwhile = Counter[str]()
    idle = Counter[str]()
    for rank in ranks:
        for row in rank.idle.meanwhile:
            meanwhile[row.name] += row.ns if row.name else 0
        idle.update(rank.idle.causes)
    longest = sorted((name for name in meanwhile if name), key=lambda name: -meanwhile[name])[:2]
    names = f"; meanwhile it is in {', '.join(longest)}" if longest else ""
    pause = max(_PAUSES, key=lambda code: idle[code])
    sentence, remedy = _PAUSES[pause]
    if pause == "unknown" and all(rank.recorder for rank in ranks):
        remedy = _RECORDED
    largest = max((gap for rank in ranks for gap in rank.idle.longest if gap.cause == pause), default=None,
                  key=lambda gap: gap.end_ns - gap.start_ns)  # fmt: skip
    if largest is not None and pause == "kernel_wait" and 2 * (largest.end_ns - largest.start_ns) > idle[pause]:
        length = formatting.duration(largest.end_ns - largest.start_ns)
        before = f" before {formatting.middle_cut(largest.next_name, 60)}" if largest.next_name else ""
        sentence = f"most of the idle time is one gap of {length}{before}; {sentence}"
        remedy = "look at what happened around it (--slice FILE)"
    times = dict(zip(CLASSES, replay.class_times().tolist(), strict=True))
    stall = replay.longest_stall_ns
    copies = Counter[str]()
    counts, pageable = Counter[str](), 0
    for copied in (row for rank in ranks for row in rank.transfers.copies):
        copies[copied.direction] += copied.exposed_ns
        counts[copied.direction] += copied.count
        pageable += copied.pageable or 0
    listed = ", ".join(f"{counts[key]} {key.replace('_', ' ')}" for key, _ in copies.most_common(3))
    slow_memory = f", {pageable} of them from pageable memory" if pageable else ""
    direction = copies.most_common(1)[0][0] if copies else ""
    rows: tuple[tuple[str, tuple[str, ...], str, str, str], ...] = (
        (
            "host-stall",
            ("stall",),
            "the host pauses",
            f"the host launches nothing for up to {formatting.duration(stall)} at a time{names}",
            "look at what it does there (checkpoints, logging, evaluation, garbage collection, data)",
        ),
        (
            "data-loading",
            ("loading",),
            "compute waits for the next batch (DataLoader)",
            "compute waits for the next batch (DataLoader)",
            "more workers, prefetch_factor, cheaper transforms, pinned memory",
        ),
        (
            "host-bound",
            ("host", "launch"),
            "devices wait for the host",
            f"the host launches work too late{names}",
            "fewer and larger kernels (torch.compile, CUDA graphs, larger batches), no synchronising calls in the loop",
        ),
        ("idle", ("idle",), "devices pause between kernels", sentence, remedy),
        (
            "exposed-copies",
            ("memcpy",),
            "copies are not hidden",
            f"copies: {listed}{slow_memory}",
            _COPY_REMEDIES.get(direction, "find the operator that issues them"),
        ),
    )
    for code, classes, title, message, advice in rows:
        of_rank = np.sum([times[name] for name in classes], axis=0)
        if np.any(of_rank):
            shares = dict(zip(replay.ranks, of_rank, strict=True))
            yield _Suspect(code, Change(without=classes), shares, title, message, advice)
    if replay.awaits_communication.any():
        yield _Suspect(
            "blocking-wait",
            Change(unblocked=True),
            {},
            "the host waits for communications",
            "the host waits for a communication before it launches more work",
            "wait later, or on a stream (work.wait() in stream order) instead of on the host",
        )
