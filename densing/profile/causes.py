"""The worst causes of lost time in words, with what each costs per step and what usually helps.

Costs are ceilings: exposed time need not lie on the critical path, and removing one cause may expose the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from densing.profile.rank import RankProfile
from densing.profile.summary import per_step, pooled
from densing.records import Record
from densing.timeline.collective_summary import CollectiveSummary
from densing.timeline.transfers import Copies

if TYPE_CHECKING:
    # A single trace must not pay for loading what compares ranks.
    from densing.profile.waiting import Waiting

SHOWN = 3
SMALL_MESSAGE = 1_000_000
_COPY_REMEDIES = {
    "host_to_device": "pin host memory, copy with non_blocking=True on a stream of its own, prefetch the next batch",
    "device_to_host": "log and checkpoint less often, or copy with non_blocking=True into pinned memory",
    "device_to_device": "avoid copies between layouts (contiguous, channels_last, concatenation)",
}


class Cause(Record, frozen=True):
    """A cause of lost time.

    Attributes
    ----------
    code : str
        Stable short name.
    ms_per_step : float
        What it costs per step and rank (per window where no step is marked).
    share_pct : float
        The same as a share of the windows.
    message, remedy : str
        In words.
    """

    code: str
    ms_per_step: float
    share_pct: float
    message: str
    remedy: str


class _Lost(Record, frozen=True):
    """A cause before it is divided by steps: nanoseconds over all ranks."""

    code: str
    ns: int
    message: str
    remedy: str


def find_causes(
    ranks: Sequence[RankProfile],
    collectives: Sequence[CollectiveSummary],
    waiting: Mapping[tuple[str, str], Waiting],
    straggler: str = "",
) -> tuple[Cause, ...]:
    """Rank what cost time, the worst first.

    Parameters
    ----------
    ranks : sequence of RankProfile
    collectives : sequence of CollectiveSummary
        Of the whole run.
    waiting : mapping of (op, group) to Waiting
        How much of the communication was waiting for other ranks, where it could be measured.
    straggler : str
        A sentence on who arrives last, empty if unknown.
    """
    whole, steps = pooled([rank.partition for rank in ranks]), per_step(ranks)
    lost = [*_communication(collectives, whole.exposed_comm_ns, waiting, straggler), *_idle(ranks)]
    lost += _copies(ranks, whole.exposed_memcpy_ns)
    found = [
        Cause(one.code, one.ns / steps / 1e6, 100 * one.ns / whole.window_ns, one.message, one.remedy)
        for one in lost
        if one.ns > 0
    ]
    return tuple(sorted(found, key=lambda cause: -cause.ms_per_step))


def _scale(rows: Sequence[CollectiveSummary | Copies], exposed: int) -> float:
    """Return what of its claim each part costs: parts at the same time together cost no more than their union."""
    claimed = sum(row.exposed_ns for row in rows)
    return min(1.0, exposed / claimed) if claimed else 0.0


def _communication(
    rows: Sequence[CollectiveSummary], exposed: int, waiting: Mapping[tuple[str, str], Waiting], straggler: str
) -> Iterator[_Lost]:
    """Exposed communication by operation and group, split into waiting and transfer where that is known."""
    scale = _scale(rows, exposed)
    for row in rows:
        cost = row.exposed_ns * scale
        known = waiting.get((row.op, row.group))
        waited = known.exposed_ns * scale if known else 0.0
        name = f"{row.op or 'communication'}{f' in group {row.group}' if row.group else ''}"
        if waited:
            yield _Lost(
                "waiting-for-ranks",
                round(waited),
                f"{name}: ranks arrive at different times and wait for the last{f' ({straggler})' * bool(straggler)}",
                "balance the work of the ranks (sequence lengths, stages, data loading); look at the slow rank's host",
            )
        yield _Lost(
            "exposed-communication",
            round(cost - waited),
            f"{name}: {_size(row)}, {_hidden(row)}",
            _remedy(row),
        )


def _size(row: CollectiveSummary) -> str:
    calls = f"{row.count} call{'s' * (row.count != 1)}"
    if not row.count_sized:
        return f"{calls} of unknown size"
    speed = f" at {row.busbw_gbps:.3g} GB/s bus bandwidth" if row.busbw_gbps else ""
    return f"{calls} of {row.bytes / row.count_sized / 1e6:.3g} MB on average{speed}"


def _hidden(row: CollectiveSummary) -> str:
    return "nothing hidden" if not row.hidden_pct else f"{row.hidden_pct:.0f} % hidden behind compute"


def _remedy(row: CollectiveSummary) -> str:
    if row.op == "barrier":
        return "remove the barrier, or replace it by the collective that follows"
    if row.count_sized and row.bytes / row.count_sized < SMALL_MESSAGE:
        return "send fewer, larger messages (gradient buckets, fused or coalesced collectives)"
    if not row.hidden_pct:
        return "start it earlier and wait later (async_op=True, bucketed gradients, prefetched parameters)"
    return (
        "hide more of it (smaller buckets started earlier), or move fewer bytes (lower precision, accumulation, "
        "local steps)"
    )


_IDLE = {
    "host_bound": (
        "the host launches work too late{names}",
        "fewer and larger kernels (torch.compile, CUDA graphs, larger batches), no synchronising calls in the loop",
    ),
    "communication": (
        "the device stands still until a communication is waited for{names}",
        "wait later, or on a stream (work.wait() in stream order) instead of on the host",
    ),
    "kernel_wait": (
        "launched work does not start at once (dependencies between streams, launch latency)",
        "fuse small kernels; look at what the streams wait for",
    ),
    "no_launch_record": (
        "idle before work whose launch the trace does not hold",
        "record more steps, and the host's activity too (ProfilerActivity.CPU)",
    ),
    "before_first": (
        "idle at the start of the window, before any recorded work",
        "warm up before the recorded steps",
    ),
    "after_last": ("idle at the end of the window, after the last work", "look at what the host does between steps"),
    "unknown": (
        "neither computing nor communicating; the trace does not say why",
        "record waits (densing.timeline.record marks them) or Python stacks",
    ),
}


def _idle(ranks: Sequence[RankProfile]) -> Iterator[_Lost]:
    for code, (message, remedy) in _IDLE.items():
        total = sum(rank.idle.causes.get(code, 0) for rank in ranks)
        taken = sum(_loading(rank, code) for rank in ranks)
        names = _meanwhile(ranks) if "{names}" in message else ""
        yield _Lost(f"idle-{code.replace('_', '-')}", total - taken, message.format(names=names), remedy)
        if taken:
            text = "compute waits for the next batch (DataLoader)"
            yield _Lost("data-loading", taken, text, "more workers, prefetch_factor, cheaper transforms, pinned memory")


def _loading(rank: RankProfile, code: str) -> int:
    """Return how much of a rank's idle time of one cause is the fetching of a batch: the host's part of it."""
    if rank.transfers.loading is None or code != ("unknown" if rank.on_host else "host_bound"):
        return 0
    return min(rank.transfers.loading.idle_ns, rank.idle.causes.get(code, 0))


def _meanwhile(ranks: Sequence[RankProfile]) -> str:
    """Name what the host did most while the device waited."""
    total: dict[str, int] = {}
    for rank in ranks:
        for row in rank.idle.meanwhile:
            if row.name:
                total[row.name] = total.get(row.name, 0) + row.ns
    best = sorted(total, key=lambda name: -total[name])[:2]
    return f"; meanwhile it is in {', '.join(best)}" if best else ""


def _copies(ranks: Sequence[RankProfile], exposed: int) -> Iterator[_Lost]:
    """Exposed copies by direction."""
    rows = [row for rank in ranks for row in rank.transfers.copies]
    scale = _scale(rows, exposed)
    for direction in dict.fromkeys(row.direction for row in rows):
        same = [row for row in rows if row.direction == direction]
        pageable = sum(row.pageable or 0 for row in same)
        text = f"copies {direction.replace('_', ' ')}: {sum(row.count for row in same)}"
        text += f", {pageable} of them from pageable memory" if pageable else ""
        remedy = _COPY_REMEDIES.get(direction, "see which operator issues them")
        yield _Lost("exposed-copies", round(scale * sum(row.exposed_ns for row in same)), text, remedy)
