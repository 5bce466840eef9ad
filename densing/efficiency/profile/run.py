"""The profile of a run: its ranks together, what they waited for, and what cost the most.

Ranks are merged one by one: of many only what a run shows of them is held, their single communications are read again
from the store (:class:`HeldRanks`). :func:`run_notes` says what of the run was not profiled and where ranks differ.
"""

from __future__ import annotations

from collections.abc import Callable, Container, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from densing.core import (
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    UnknownNameError,
    column,
    formatting,
    numeric,
    once,
    shares,
    times,
)
from densing.efficiency.profile.causes import Cause, find_causes
from densing.efficiency.profile.joint import JointProfile, join_ranks
from densing.efficiency.profile.layout import KINDS, Dimension, find_layout
from densing.efficiency.profile.rank import (
    WAIT_COLUMNS,
    Figures,
    ProfileOptions,
    RankProfile,
    all_step_times,
    cut_short,
    figures,
    fused,
    per_step,
    profile_timeline,
    read_ranks,
    run_collectives,
)
from densing.efficiency.profile.replay import Replay
from densing.efficiency.timeline import (
    CAUSES,
    COLUMNS,
    Collectives,
    CollectiveSummary,
    Gap,
    Group,
    Lookup,
    ModuleTime,
    NameTotal,
    Partition,
    RankTimeline,
    StepSpread,
    Timeline,
    WindowName,
    dtype_bytes,
    find_peak,
    longest,
    step_spread,
    summary,
    summed,
)
from densing.efficiency.traces import find_traces

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.profile.changes import Planned
    from densing.efficiency.traces import Detail

Stores = Path | str | Sequence[Path | str]
HELD_RANKS = 64
"""Most ranks whose details are held in memory; beyond it details are read again from the store."""
HELD_ROWS = 300_000
"""Most single communications held in memory, 50 MB; if many ranks have more, each pass reads the store again."""
REPLAYED_ROWS = 1_000_000
"""Most rows of all ranks that are replayed, some 500 MB and 10 CPU seconds: of larger runs, the first steps."""
DRAWN_RANKS = 16
"""Most ranks whose step is kept for drawing: the lowest ones."""
LISTED_LATE = 20
"""Most single communications in a run's document: those waited for longest."""
NAMED_RANKS = 3
NAMED_GAPS = 8
"""Most runs of missing ranks that are named; beyond it only their number is given."""

# Columns of the tables, those of an empty one too.
_PARTITION = tuple(Partition(*[0] * len(Partition.__struct_fields__)).to_dict())
_RATIOS = tuple(name for name in _PARTITION if name.endswith("_pct"))
_IDLE = tuple(f"idle_{cause}_ns" for cause in CAUSES)
_ORIGIN = ("world_size", "backend", "host", "devices", "on_host", "events", "repaired_events", "rank_from")
_RANK = ("rank", "window", *_PARTITION, *_IDLE, "bound_by", "steps", "skipped_events", "source", *_ORIGIN)
_STEP = ("rank", "step", "start_ns", *_PARTITION)
_COLLECTIVE = (*CollectiveSummary.__struct_fields__, "hidden_pct", *WAIT_COLUMNS)
_RATES = ("algbw_gbps", "busbw_gbps", "hidden_pct")


MOST_STEPS = 2**20
MOST_ROWS, MOST_RANKS, MOST_GAPS = 40, 256, 12
"""Of a table that is shown."""
NAME_WIDTH = 120
GAP_CAUSES = {
    "host_bound": "nothing was launched",
    "communication": "the host waited for communication",
    "kernel_wait": "launched, not begun",
    "no_launch_record": "launch not recorded",
    "before_first": "before the first work",
    "after_last": "after the last work",
}
"""Why a device did nothing, in words."""


def _long(value: Any) -> str:
    return formatting.clean(value, 400)


def _named(value: Any) -> str:
    """Return a name, or that there is none."""
    return formatting.clean(value, 60) if value else "not named"


class RunProfile(Readable, msgspec.Struct, frozen=True, eq=False, dict=True):
    """What a run spent, over all its ranks.

    Attributes
    ----------
    ranks : tuple of RankProfile
        By rank. Beyond :data:`HELD_RANKS` their tables of single communications and their own paths' segments are
        empty.
    window : str
        Of all ranks.
    figures : mapping
        The keys of :data:`densing.efficiency.profile.METRICS`, and ``slowdown`` where it could be measured.
    collectives : tuple of CollectiveSummary
        Over all ranks, by operation and group.
    together : JointProfile or None
        What several ranks tell of each other; None for a single rank.
    spread : tuple of StepSpread
    causes : tuple of Cause
        The worst first.
    interaction_ms_per_step : float
        What removing all causes gains beyond the sum of removing each; negative where they claim the same time.
    layout : tuple of Dimension
        The dimensions of the grid of ranks, read off the process groups, most exposed first.
    replay : Replay
        Of the recorded run; all figures of causes, even ranks and the path across ranks come from it.
    notes : tuple of Note
    options : mapping

    See Also
    --------
    profile_run, read_timeline

    Examples
    --------
    >>> import densing
    >>> from densing.timeline import Kind, RankTimeline, Spans, Timeline
    >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 100, "kind": Kind.COMM, "name": "all_reduce"}])
    >>> run = densing.profile_run(Timeline((RankTimeline(0, work, Spans.empty()),)))
    >>> run.table()["exposed_comm_ns"].item()
    40
    """

    ranks: tuple[RankProfile, ...]
    window: str
    figures: Figures
    collectives: tuple[CollectiveSummary, ...]
    together: JointProfile | None
    spread: tuple[StepSpread, ...]
    causes: tuple[Cause, ...]
    interaction_ms_per_step: float
    replay: Replay
    layout: tuple[Dimension, ...] = ()
    notes: tuple[Note, ...] = ()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def card(self) -> Card:
        """Return what is shown: the shares of the window, then a row per rank."""
        shares = {"exposed communication": "exposed_pct", "communication hidden": "overlap_pct", "idle": "idle_pct"}
        known = {label: self.figures.get(key) for label, key in shares.items()}
        facts = {label: f"{value:.3g} %" for label, value in known.items() if isinstance(value, float)}
        if self.causes:
            facts["worst cause"] = self.causes[0].code
        title = f"Profile of {self.counted}, window {self.window}"
        return Card(title, facts, self.ranks_listing(), self.notes)

    @property
    def per(self) -> str:
        """What times are given per: a step, or a rank's window where no step is marked."""
        return "per step" if self.figures["steps"] else "per rank"

    def causes_listing(self) -> Listing:
        """Return every cause of lost time, that of which most can be won first."""
        fields = (
            Field("Cause", column("message", _long)),
            numeric(
                "Gain per step" if self.figures["steps"] else "Gain",
                "gain_ms_per_step",
                formatting.milliseconds,
                hint="How much sooner the replay of the run is done without this cause alone",
            ),
            shares("Share of the time", "gain_pct"),
            Field(
                "Most on",
                lambda row: formatting.MISSING if formatting.is_missing(row["rank"]) else f"rank {row['rank']}",
                "rank",
            ),
            Field("What usually helps", column("remedy", _long)),
            Field("Code", column("code"), minor=True),
        )
        title = "Every cause that was found, by what the replay of the run gains without it alone."
        if self.causes[1:]:
            total = sum(cause.gain_ms_per_step for cause in self.causes) + self.interaction_ms_per_step
            title += (
                f" Without all of them it gains {formatting.milliseconds(total)} {self.per}; what is missing from the "
                f"sum, or beyond it ({formatting.milliseconds(self.interaction_ms_per_step)}), is their interaction."
            )
        return Listing(title, self.causes[:MOST_ROWS], fields)

    def collectives_listing(self) -> Listing:
        """Return the communications by operation and process group, most exposed first."""
        steps = per_step(self.ranks)
        waits = {} if self.together is None else self.together.waits
        rows = [
            {
                **row.to_dict(),
                "hidden_pct": None if self.figures["overlap_pct"] is None else row.hidden_pct,
                "name": row.op or "not named",
                # A group is often called twice by one name.
                "who": formatting.clean(
                    " · ".join(dict.fromkeys(filter(None, (row.group, row.group_label)))) or "not named", 60
                ),
                "size": row.group_size if row.group_size > 0 else None,
                "exposed_each": row.exposed_ns / steps,
                "sum_each": row.sum_ns / steps,
                # Calls without a size do not count as empty ones.
                "each": row.bytes / row.count_sized if row.count_sized else None,
                "waiting": None if (row.op, row.group) not in waits else 100 * waits[row.op, row.group],
            }
            for row in self.collectives
        ]
        unit = self.per
        fields = (
            Field("Operation", column("name")),
            Field("Group", column("who")),
            numeric("Ranks", "size", formatting.count, hint="Size of the process group"),
            numeric("Calls", "count", formatting.count),
            times(f"Exposed {unit}", "exposed_each", "Of the union of the calls: simultaneous ones count once"),
            times(f"Sum {unit}", "sum_each", hint="Durations of the calls added up, hidden or not", minor=True),
            shares("Hidden", "hidden_pct", hint="Share behind compute"),
            shares("Waiting", "waiting", hint="Share of the time spent waiting for other ranks"),
            numeric("Size, mean", "each", formatting.volume, hint="Output bytes for all-gather, input bytes otherwise"),
            numeric(
                "algbw GB/s", "algbw_gbps", formatting.digits, hint="Bytes over time, waiting included", minor=True
            ),
            numeric("busbw GB/s", "busbw_gbps", formatting.digits, hint="algbw × factor of nccl-tests (recalled)"),
        )
        title = (
            "Over all ranks; most exposed first. Rates are lower bounds, since the time holds the wait for other "
            "ranks; factors of busbw are recalled from nccl-tests. Hidden and exposed are of unions, as in the "
            "partition; kinds of communication at the same time count each, so the rows may add up to more than the "
            "run's."
        )
        return Listing(title, rows[:MOST_ROWS], fields)

    def layout_listing(self) -> Listing:
        """Return the dimensions of the grid of ranks, and what each cost; empty for fewer than two."""
        steps, total = per_step(self.ranks), sum(one.exposed_ns for one in self.layout)
        rows = [
            {
                **one.to_dict(),
                "kind": one.kind or formatting.MISSING,
                "told": {"name": "name", "members": "members, traffic"}.get(one.known_by, formatting.MISSING),
                "size": one.size if one.size > 0 else None,
                "stride": one.stride if one.stride > 0 else None,
                "ops": ", ".join(filter(None, one.ops)) or "not named",
                "calls": round(one.count / steps),
                "exposed_each": one.exposed_ns / steps,
                "share": 100 * one.exposed_ns / total if total else None,
                "names": formatting.clean(", ".join(one.names), 60),
            }
            for one in self.layout
        ]
        fields = (
            Field("Parallelism", column("kind"), hint=", ".join(f"{kind}: {word}" for kind, word in KINDS.items())),
            numeric("Ranks", "size", formatting.count, hint="Size of a group"),
            numeric("Groups", "groups", formatting.count),
            numeric("Stride", "stride", formatting.count, hint="From one member's rank to the next"),
            Field("Operations", column("ops")),
            numeric(f"Calls {self.per}", "calls", formatting.count),
            times(f"Exposed {self.per}", "exposed_each"),
            shares("Share", "share", hint="Of what all groups expose"),
            Field("Told by", column("told")),
            Field("Names", column("names"), minor=True),
        )
        return Listing("The grid of ranks, by its process groups.", rows if len(rows) > 1 else [], fields)

    def ranks_listing(self, most: int = MOST_RANKS) -> Listing:
        """Return the ranks with their shares; of very many, those with most exposed communication."""
        # Those with most exposed communication are kept, and stand in order of rank.
        chosen = sorted(self.ranks, key=lambda rank: -(rank.partition.exposed_pct or 0))[:most]
        rows = []
        for rank in sorted(chosen, key=lambda rank: rank.rank):
            part = rank.partition
            parts = {
                "compute": part.compute_ns,
                "exposed": part.exposed_comm_ns,
                "copies": part.exposed_memcpy_ns,
                "idle": part.idle_ns,
            }
            rows.append(
                {
                    "name": f"rank {rank.rank}",
                    **{name: 100 * ns / part.window_ns if part.window_ns else None for name, ns in parts.items()},
                    "hidden": None if cut_short([rank]) else part.overlap_pct,
                    "window_ns": part.window_ns,
                    "bound": rank.path.bound_by or formatting.MISSING,
                    "skipped": rank.skipped,
                    "host": rank.host,
                    "source": rank.source,
                }
            )
        fields = (
            Field("Rank", column("name")),
            shares("Compute", "compute"),
            shares("Exposed", "exposed", hint="Exposed communication, share of the window"),
            shares("Copies", "copies", hint="Exposed copies"),
            shares("Idle", "idle"),
            shares("Hidden", "hidden", hint="Share of the communication behind compute"),
            times("Window", "window_ns"),
            Field("Bound by", column("bound")),
            numeric("Skipped", "skipped", formatting.count, hint="Damaged events left out", minor=True),
            Field("Host", column("host", _named), minor=True),
            Field("Trace", column("source", lambda value: formatting.clean(value, 120)), minor=True),
        )
        left_out = f" {len(self.ranks) - len(rows)} ranks with less exposed communication are left out." * (
            len(self.ranks) > len(rows)
        )
        return Listing(f"Rank by rank.{left_out}", rows, fields)

    @property
    def gaps(self) -> list[tuple[RankProfile, Gap]]:
        """The longest idle stretches of all ranks, each with its rank, the longest first."""
        found = [(rank, gap) for rank in self.ranks for gap in rank.idle.longest]
        return sorted(found, key=lambda pair: pair[1].start_ns - pair[1].end_ns)[:MOST_GAPS]

    def gaps_listing(self) -> Listing:
        """Return the longest stretches in which a device did nothing."""
        rows = []
        for rank, gap in self.gaps:
            step = next((one.number for one in rank.steps if one.start_ns <= gap.start_ns < one.end_ns), None)
            rows.append(
                {
                    "rank": f"rank {rank.rank}",
                    "length": gap.end_ns - gap.start_ns,
                    "at": gap.start_ns - rank.start_ns,
                    "step": step,
                    "cause": GAP_CAUSES.get(gap.cause, gap.cause),
                    "next": gap.next_name or formatting.MISSING,
                }
            )
        fields = (
            Field("Gap", column("rank")),
            times("Length", "length"),
            times("After the start", "at", "Of the rank's window"),
            numeric("Step", "step", formatting.count),
            Field("Cause", column("cause")),
            Field("Ended by", column("next", lambda value: formatting.middle_cut(formatting.clean(value, 120), 40))),
        )
        return Listing("The longest stretches in which a device did nothing.", rows, fields)

    def names_listing(self, attribute: str, title: str, width: int = NAME_WIDTH) -> Listing:
        """Return what took longest by name, summed over the ranks.

        Parameters
        ----------
        attribute : {"names", "unrecognised"}
        title : str
        width : int
            Names are cut to it, in their middle.
        """
        rows = self.names if attribute == "names" else self.name_totals(attribute)
        every = sum(row.total_ns for row in rows)
        shown = [
            {
                **row.to_dict(),
                "name": row.name or f"{formatting.count(row.names)} other names",
                "share": 100 * row.total_ns / every if every else None,
                "each": row.total_ns / row.count,
                "tflops": row.flops / row.flop_ns / 1e3 if row.flop_ns else None,
                "of_peak": self.peak_share(row),
                "gbps": row.moved_bytes / row.moved_ns if row.moved_ns else None,
                "intensity": row.flops / row.least_bytes if row.least_bytes else None,
            }
            for row in longest(rows, MOST_ROWS)
        ]
        fields = (
            Field("Name", column("name", lambda value: formatting.middle_cut(formatting.clean(value, 200), width))),
            Field("Counts as", column("kind")),
            numeric("Calls", "count", formatting.count),
            times("Time in all", "total_ns", hint="Sum of durations over all ranks, not of their union"),
            shares("Share", "share", hint="Of the sum of all rows, those that are not shown too"),
            *(self._rate_fields() if attribute == "names" else ()),
            times("Mean", "each", hint="Of one call"),
        )
        return Listing(title, shown, fields)

    def _rate_fields(self) -> tuple[Field, ...]:
        """Return the columns of what products and attention compute per second, and copies move."""
        return (
            numeric("TFLOP/s", "tflops", formatting.digits, "Of products and attention whose shapes were recorded"),
            numeric("Of peak", "of_peak", formatting.percent, "Share of the device's dense peak", optional=True),
            numeric("GB/s", "gbps", formatting.digits, "Of copies and fills", optional=True),
            numeric(
                "FLOP/byte", "intensity", formatting.digits, "Bytes: operands and result, each moved once", minor=True
            ),
        )

    def peak_share(self, row: NameTotal) -> float | None:
        """Return what a name's products and attention reach of the device's peak, percent.

        None where it is not known: no shapes, no device or several, no peak in the table, or a rate above the peak.
        """
        peak = self.peak_of(row).peak
        share = 1e11 * row.flops / row.flop_ns / peak.flops if row.flop_ns and peak else None
        return None if share is None or share > 100 else share

    def peak_of(self, row: NameTotal) -> Lookup:
        """Return the dense peak for the arithmetic of a name, or why it is not known."""
        if not row.dtype or len(self.devices) != 1:
            return Lookup(None)
        # Products of 32-bit numbers may be done in TensorFloat-32; then the kernel's name says so.
        dtype = "tf32" if dtype_bytes(row.dtype) == 4 and "tf32" in row.name.lower() else row.dtype
        try:
            return find_peak(self.devices[0], dtype)
        except UnknownNameError:
            return Lookup(None)

    @property
    def rate_words(self) -> str:
        """What is to be known of the rates in the table of names: whence they are, or why there are none."""
        rows = [row for row in self.names if row.flop_ns]
        if not rows:
            return (
                "No TFLOP/s: no shapes of products were recorded; record them with "
                "torch.profiler.profile(record_shapes=True)"
            )
        text = "TFLOP/s: of products and attention by recorded shapes, each call's on the longest of its kernels"
        lookups = [self.peak_of(row) for row in rows]
        known = {(one.peak.dtype, one.peak.flops, one.peak.recalled) for one in lookups if one.peak}
        for dtype, flops, recalled in sorted(known):
            text += f"; peak in {dtype}{', recalled,' * recalled} {flops / 1e12:g} TFLOP/s"
        without = next((one.note.message for one in lookups if one.note), "")
        if without:
            text += f"; {without}"
        elif len(self.devices) > 1:
            text += "; no share of the peak, as the ranks' devices differ"
        above = [row.name for row, one in zip(rows, lookups, strict=True) if one.peak and self.peak_share(row) is None]
        if above:
            text += f"; {formatting.cut(above[0], 40)} is above it: its arithmetic is not its operands' type"
        return text

    @cached_property
    def modules(self) -> tuple[ModuleTime, ...]:
        """Time by module and named range over all ranks, each before those within it; empty where none was recorded."""
        return summed(row for rank in self.ranks for row in rank.modules)

    def modules_listing(self) -> Listing:
        """Return the time by module and named range, of those launched in it and of those within it."""
        rows = self.modules
        every = sum(row.own_ns for row in rows)
        shown = [
            {
                "name": f"{'· ' * (len(row.path) - 1)}{row.path[-1]}",
                "count": row.count,
                "own": row.own_ns,
                "total": row.total_ns,
                "share": 100 * row.total_ns / every if every else None,
            }
            for row in rows
        ]
        fields = (
            Field(
                "Module", column("name", lambda value: formatting.middle_cut(formatting.clean(value, 200), NAME_WIDTH))
            ),
            times("Total", "total", "Durations of the work launched in it and in those within it, over all ranks"),
            shares("Share", "share", "Of the work of all modules and of none"),
            times("Own", "own", "Of the work that it launched itself"),
            numeric("Launched", "count", formatting.count, "Kernels, copies and collectives that it launched itself"),
        )
        title = (
            "Work by the module, or named range, in which it was launched; durations add up over ranks and streams. "
            "What autograd launches backwards is in no module."
        )
        return Listing(title, shown, fields)

    @cached_property
    def names(self) -> list[NameTotal]:
        """The sums over all ranks by name and kind, the longest first."""
        return self.name_totals("names")

    def name_totals(self, attribute: str) -> list[NameTotal]:
        """Return the sums over all ranks by name and kind, the longest first; rows without a name are all others.

        How many names the others are is counted on the rank with most: ranks share most names.
        """
        total: dict[tuple[str, str], NameTotal] = {}
        for rank in self.ranks:
            for row in getattr(rank, attribute):
                sums = total.get((row.name, row.kind), NameTotal(row.name, row.kind, 0, 0, 0))
                total[row.name, row.kind] = sums.plus(row, max(sums.names, row.names))
        return sorted(total.values(), key=lambda row: (not row.name, -row.total_ns, row.name))

    @property
    def counted(self) -> str:
        """How many steps of how many ranks were measured, in words."""
        ranks = formatting.plural(len(self.ranks), "rank")
        # A trace may begin or end within a step, so ranks of one run need not have as many.
        each = {len(rank.steps) for rank in self.ranks}
        if each == {0}:
            return ranks
        if len(each) == 1:
            steps = formatting.plural(each.pop(), "step")
            return f"{steps} on each of {ranks}" if len(self.ranks) > 1 else f"{steps} of one rank"
        return f"{min(each)} to {max(each)} steps on each of {ranks}"

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the accelerators that the ranks' traces list, each once; empty if unknown."""
        return tuple(dict.fromkeys(name for rank in self.ranks for name in rank.devices))

    @property
    def world_size(self) -> int:
        """Number of ranks of the run: as the traces say, at least those profiled."""
        return max(len(self.ranks), *(rank.world_size for rank in self.ranks))

    def table(self) -> pd.DataFrame:
        """Return a row per rank.

        Columns: its window, the partition in nanoseconds, ratios in percent, idle time by cause, what bounds its
        critical path, counts of steps and events, and what its trace says of itself (``world_size`` -1 and empty texts
        if unknown; ``devices`` are joined by commas).
        """
        rows = [
            {
                "rank": rank.rank,
                "window": rank.window,
                **rank.partition.to_dict(),
                **{f"idle_{cause}_ns": ns for cause, ns in rank.idle.causes.items()},
                "bound_by": rank.path.bound_by,
                "steps": len(rank.steps),
                "skipped_events": rank.skipped,
                "source": rank.source,
                "world_size": rank.world_size,
                "backend": rank.backend,
                "host": rank.host,
                "devices": ", ".join(dict.fromkeys(rank.devices)),
                "on_host": rank.on_host,
                "events": rank.events,
                "repaired_events": rank.repaired,
                "rank_from": rank.rank_from,
            }
            for rank in self.ranks
        ]
        return _frame(rows, _RANK, _RATIOS)

    def step_table(self) -> pd.DataFrame:
        """Return a row per rank and step: its start, and the step's own partition in nanoseconds and percent."""
        rows = [
            {"rank": rank.rank, "step": step.number, "start_ns": step.start_ns, **step.partition.to_dict()}
            for rank in self.ranks
            for step in rank.steps
        ]
        return _frame(rows, _STEP, _RATIOS)

    def what_if(self, change: str) -> Planned:
        """Return the recorded step beside the same with something changed, by the replay of the run.

        Parameters
        ----------
        change : str
            Comma-separated: ``link=2x`` (transfers twice as fast), ``link=300mbit`` (a link of this rate, with the
            recorded latency), ``hide=all_reduce`` (its transfers cost nothing), ``drop-rank=5`` (the others do not
            wait for it), ``overlap=perfect`` (only communication waits for communication), ``fuse=elementwise``
            (adjacent kernels whose names hold the text become one launch), ``local-sgd:tau=8`` and ``co2:tau=8``
            (averages every 8 steps instead of the all-reduces), ``dct:eta=0.99`` (1 % of the gradients sent) and
            ``ladder`` (tensor-parallel sums one module late); see :mod:`densing.efficiency.profile.changes`.

        Raises
        ------
        densing.core.InputError
            When the change means nothing in this run.

        Examples
        --------
        >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans, Timeline
        >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
        ...                     {"start": 60, "end": 100, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
        >>> run = profile_run(Timeline((RankTimeline(0, work, Spans.empty()),)))
        >>> round(run.what_if("link=2x").gain_pct), run.what_if("link=2x").bound_after.kind
        (20, 'compute')
        """
        from densing.efficiency.profile.changes import plan

        return plan(self.replay, change)

    def what_if_timeline(self, change: str) -> Timeline:
        """Return the run with something changed as a timeline, as if it had been recorded.

        It can be profiled (:func:`densing.profile_run`), drawn, and written as a trace.

        Parameters
        ----------
        change : str
            As in :meth:`what_if`.

        Raises
        ------
        densing.core.InputError
            When the change means nothing in this run.
        """
        from densing.efficiency.profile.changes import changed_timeline

        return changed_timeline(self.replay, change)

    def collective_table(self) -> pd.DataFrame:
        """Return a row per operation and process group, with transfer and wait where ranks could be matched."""
        return _frame(self._collective_rows(), _COLLECTIVE, _RATES).astype(dict.fromkeys(WAIT_COLUMNS, "Int64"))

    def _collective_rows(self) -> list[dict[str, Any]]:
        """Sums over all ranks, and how much was waiting for other ranks; the latter None where nothing was matched."""
        unknown: dict[str, Any] = dict.fromkeys(WAIT_COLUMNS)
        waiting = {key: part.to_dict() for key, part in self.together.waiting.items()} if self.together else {}
        return [{**row.to_dict(), **waiting.get((row.op, row.group), unknown)} for row in self.collectives]

    def to_dict(self) -> dict[str, Any]:
        """Return all but single communications as plain data: what ``densing profile --json`` prints of a run."""
        from densing import __version__

        joint = self.together
        stragglers: dict[str, Any] | None = None
        if joint is not None:
            stragglers = joint.stragglers.to_dict()
            stragglers["late"] = sorted(stragglers["late"], key=lambda row: -row["waited_ns"])[:LISTED_LATE]
        ranks = []
        for rank in self.ranks:
            row = rank.to_dict()
            # Single communications and drawings are left to the store.
            for heavy in ("collectives", "dependencies", "picture"):
                del row[heavy]
            row["path"].pop("segments", None)
            ranks.append(row)
        return {
            "version": __version__,
            "window": self.window,
            "options": dict(self.options),
            "figures": dict(self.figures),
            "ranks": ranks,
            "skipped_events": self.figures["skipped_events"],
            "repaired_events": self.figures["repaired_events"],
            "collectives": self._collective_rows(),
            "layout": [one.to_dict() for one in self.layout],
            "clocks": joint and joint.clocks.to_dict(),
            "stragglers": stragglers,
            "what_if": joint and joint.what_if.to_dict(),
            "critical_path": joint and joint.path and joint.path.to_dict(),
            "step_times": all_step_times(self.ranks).to_dict(),
            "step_spread": [row.to_dict() for row in self.spread],
            "replay": {**self.replay.fidelity.to_dict(), "interaction_ms_per_step": self.interaction_ms_per_step},
            "causes": [cause.to_dict() for cause in self.causes],
            "notes": [note.to_dict() for note in self.notes],
        }


def _frame(rows: Sequence[dict[str, Any]], columns: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    # A ratio that is undefined in every row is a number all the same.
    return pd.DataFrame(rows, columns=list(columns)).astype(dict.fromkeys(numbers, "float64"))


def profile_run(
    source: Path | str | Sequence[Path | str] | Timeline,
    *,
    window: WindowName | None = None,
    comm_patterns: Sequence[str] = (),
    detail: Detail = "auto",
    ranks: Mapping[str, int] | None = None,
) -> RunProfile:
    """Profile a run: the traces of its ranks, or a timeline that was read or simulated.

    Parameters
    ----------
    source : path, sequence of path, or Timeline
        Trace files, folders and zip archives.
    window : {"steps", "all", "hta"}, optional
        ``steps`` where the traces mark steps, else ``all``.
    comm_patterns : sequence of str
        Regular expressions; names they match are communication. Timelines are classified already.
    detail : {"auto", "device", "host"}
        ``host`` reads operators too.
    ranks : mapping of str to int, optional
        Rank by file name, where the traces do not tell it.

    Returns
    -------
    RunProfile
        ``table()``, ``step_table()`` and ``collective_table()`` are DataFrames.

    Raises
    ------
    densing.core.InputError
        When nothing is found, a file is unreadable, or two files claim one rank.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> run = profile_run(Timeline((RankTimeline(0, work, Spans.empty()),)))
    >>> run.table()[["rank", "window_ns", "exposed_comm_ns", "overlap_pct"]]
       rank  window_ns  exposed_comm_ns  overlap_pct
    0     0         70               20         50.0

    See Also
    --------
    read_timeline
    """
    options = ProfileOptions(window, tuple(comm_patterns), detail)
    if isinstance(source, Timeline):
        rows = [profile_timeline(rank, options) for rank in source.ranks]
        return merge_run(rows, options=options.to_dict(), again=lambda _: source.ranks)
    paths = [source] if isinstance(source, Path | str) else list(source)
    traces = find_traces(paths, ranks)
    return merge_run(
        (profile_timeline(rank, options) for rank in read_ranks(traces, options)),
        notes=traces.notes,
        options=options.to_dict(),
        again=lambda sources: read_ranks((trace for trace in traces if trace.label in sources), options),
    )


def merge_run(
    rows: Iterable[Mapping[str, Any] | RankProfile],
    *,
    store: Stores | None = None,
    notes: Sequence[Note] = (),
    options: Mapping[str, Any] | None = None,
    again: Callable[[Container[str]], Iterable[RankTimeline]] | None = None,
) -> RunProfile:
    """Join the profiles of a run's ranks.

    Parameters
    ----------
    rows : iterable of RankProfile or of what ``RankProfile.to_dict`` gave
        Read one by one; beyond :data:`HELD_RANKS` ranks details are dropped, and read again from ``store``.
    store : path, optional
        Where the rows are stored; needed for more than :data:`HELD_RANKS` ranks.
    notes : sequence of Note
        What is known already, such as files that could not be read.
    options : mapping, optional
    again : callable, optional
        Reads the ranks of some sources again: changes of single kernels (``fuse``) need more than a profile keeps.

    Raises
    ------
    InputError
        When there are no rows, two files claim one rank, or ranks were cut to different windows.

    Examples
    --------
    >>> from densing.efficiency.profile.rank import profile_timeline
    >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans
    >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> merge_run([profile_timeline(RankTimeline(0, work, Spans.empty()))]).figures["compute_pct"]
    100.0
    """
    held_ranks = HeldRanks(HELD_RANKS if store is not None else None)
    for row in rows:
        held_ranks.add(row)
    ranks = held_ranks.ranks()
    if not ranks:
        raise InputError("no rank could be profiled; give at least one trace")
    windows = {rank.window: rank for rank in ranks}
    if len(windows) > 1:
        listed = ", ".join(f"{window} ({rank.source})" for window, rank in windows.items())
        raise InputError(
            f"some traces mark steps and others do not, so their windows differ: {listed}; use --window all"
        )
    tables = held_ranks.tables(store)
    joint = join_ranks(ranks, tables) if len(ranks) > 1 else None
    replay = joint.replay if joint else Replay({rank.rank: rank.dependencies for rank in ranks}, tables)
    if again is not None:
        reread, window, sources = again, ranks[0].window, {rank.source for rank in ranks}
        replay.fuse = lambda text: fused(reread(sources), window, text)
    parts = held_ranks.summaries()
    found = find_causes(ranks, parts, replay, joint)
    own = [note for rank in ranks for note in (*rank.notes, *(() if rank.on_host else rank.path.notes))]
    if held_ranks.steps < MOST_STEPS:
        text = (
            f"the replay covers the first {formatting.plural(held_ranks.steps, 'step')} of each rank: all are too many"
        )
        own.append(Note("replay-shortened", "info", text, {"steps": held_ranks.steps}))
    if len(ranks) > HELD_RANKS and store is not None:
        # What the replay holds already.
        ranks = [replace(rank, dependencies=rank.dependencies.head(0)) for rank in ranks]
    if replay.fidelity.status == "off":
        own.append(Note("replay-off", "warning", f"{replay.fidelity.sentence}; so no cause and no gain is given"))
    elif replay.apart:
        text = (
            f"{replay.apart}; so each rank is replayed on its own: waiting for others counts as communication, and "
            "gains are of the rank that takes longest"
        )
        own.append(Note("replay-apart", "warning", text))
    return RunProfile(
        tuple(ranks),
        ranks[0].window,
        figures(ranks) | {"slowdown": joint.what_if.slowdown if joint else None},
        run_collectives(parts),
        joint,
        step_spread({rank.rank: [(s.number, s.end_ns - s.start_ns) for s in rank.steps] for rank in ranks}),
        found.causes,
        found.interaction_ms_per_step,
        replay,
        held_ranks.layout(),
        tuple(once([*notes, *own, *run_notes(ranks), *(joint.notes if joint else ())])),
        dict(options or {}),
    )


class HeldRanks:
    """What is kept of the ranks read so far, so that memory does not grow with their details.

    It is the same in whatever order they come.

    Parameters
    ----------
    limit : int or None
        Ranks whose own paths are kept, and whose single communications are kept however many they are. With more
        ranks no path is kept, and communications up to :data:`HELD_ROWS`: they can be read again.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._ranks: dict[int, RankProfile] = {}
        self._summaries: dict[int, tuple[CollectiveSummary, ...]] = {}
        self._tables: dict[int, Collectives] = {}
        self._rows = self._replayed = 0
        self.steps = MOST_STEPS
        """Steps of each rank that are kept to be replayed."""
        self._detailed: list[int] = []
        self._drawn: set[int] = set()
        self._texts: dict[str, str] = {}
        self._groups: dict[Group, Group] = {}
        self._members: dict[int, tuple[Group, ...]] = {}

    def add(self, row: Mapping[str, Any] | RankProfile) -> None:
        """Take in one rank, or what its ``to_dict`` gave.

        Raises
        ------
        InputError
            When it was there before.
        """
        profile = row if isinstance(row, RankProfile) else RankProfile.from_dict(row)
        number, table = profile.rank, profile.collectives
        if number in self._ranks:
            raise InputError(
                f"{self._ranks[number].source} and {profile.source}: both claim to be rank {number}; resolve it with "
                "--rank FILE=NUMBER"
            )
        self._summaries[number] = summary(table)
        # Every rank has the same groups, each a list of its members.
        self._members[number] = tuple(self._groups.setdefault(group, group) for group in table.groups)
        self._ranks[number] = replace(profile, dependencies=profile.dependencies.head(self.steps))
        self._replayed += len(self._ranks[number].dependencies)
        while self._replayed > REPLAYED_ROWS and self.steps > 1:
            self.steps //= 2
            for key, held in self._ranks.items():
                self._ranks[key] = replace(held, dependencies=held.dependencies.head(self.steps))
            self._replayed = sum(len(held.dependencies) for held in self._ranks.values())
        self._tables[number] = replace(table, groups=self._members[number])
        self._rows += len(table)
        self._detailed.append(number)
        self._drawn.add(number)
        if len(self._drawn) > DRAWN_RANKS:
            last = max(self._drawn)
            self._drawn.remove(last)
            self._ranks[last] = replace(self._ranks[last], picture=replace(self._ranks[last].picture, boxes=()))
        if self._limit is not None and len(self._ranks) > self._limit:
            for rank in self._detailed:
                self._ranks[rank] = self._slim(self._ranks[rank])
            self._detailed.clear()
            if self._rows > HELD_ROWS:
                self._tables.clear()

    def ranks(self) -> list[RankProfile]:
        """Return the ranks by number."""
        return [self._ranks[key] for key in sorted(self._ranks)]

    def summaries(self) -> list[tuple[CollectiveSummary, ...]]:
        """Return each rank's communications by operation and group, by rank."""
        return [self._summaries[key] for key in sorted(self._summaries)]

    def layout(self) -> tuple[Dimension, ...]:
        """Return the dimensions of the grid of ranks."""
        return find_layout((key, self._members[key], self._summaries[key]) for key in sorted(self._members))

    def tables(self, store: Stores | None) -> Mapping[int, Collectives]:
        """Return each rank's communications, by rank; from the store where they were not kept."""
        if store is None or len(self._tables) == len(self._ranks):
            return {key: self._tables[key] for key in sorted(self._tables)}
        return StoredCollectives(store, list(self._ranks))

    def _slim(self, rank: RankProfile) -> RankProfile:
        """Leave out what only a few ranks are shown with; texts that ranks share are held once."""
        empty: dict[str, Any] = dict.fromkeys(COLUMNS, np.empty(0, np.int64))
        empty |= dict.fromkeys(("groups", "names", "lanes", "dtypes"), ())
        # Copies: a view would hold the whole column.
        path = {key: getattr(rank.path, key)[:0].copy() for key in ("start", "end", "kind", "lane", "name")}
        return replace(
            rank,
            collectives=replace(rank.collectives, **empty),
            path=replace(rank.path, **path, lanes=(), names=()),
            names=tuple(replace(row, name=self._texts.setdefault(row.name, row.name)) for row in rank.names),
        )


class StoredCollectives(Mapping[int, Collectives]):
    """The ranks' communications, read from a store one rank at a time whenever they are walked through."""

    def __init__(self, store: Stores, ranks: Sequence[int]) -> None:
        self._store, self._ranks = store, frozenset(ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._ranks))

    def __getitem__(self, rank: int) -> Collectives:
        return next(table for key, table in self._pairs() if key == rank)

    def items(self) -> ItemsView[int, Collectives]:
        """Walk through ranks and tables; one table is in memory at a time."""
        return cast("ItemsView[int, Collectives]", self._pairs())

    def values(self) -> ValuesView[Collectives]:
        """Walk through the tables; one is in memory at a time."""
        return cast("ValuesView[Collectives]", (table for _, table in self._pairs()))

    def _pairs(self) -> Iterator[tuple[int, Collectives]]:
        from densing.efficiency.profile.store import read_profiles

        for row in read_profiles(self._store, ("rank", "collectives")):
            if row["rank"] in self._ranks:
                yield row["rank"], Collectives.from_dict(row["collectives"])


def run_notes(ranks: Sequence[RankProfile]) -> Iterator[Note]:
    """Say what of a run was not profiled, and where its ranks are not alike.

    Parameters
    ----------
    ranks : sequence of RankProfile
        At least one.
    """
    world = max(rank.world_size for rank in ranks)
    if world > len(ranks):
        gaps = list(_gaps([rank.rank for rank in ranks], world))
        missing = f"; missing: {formatting.listed(gaps, NAMED_GAPS)}"
        single = "; a single rank cannot show waiting for others" if len(ranks) == 1 else ""
        text = f"{len(ranks)} of the run's {world} ranks were profiled{missing}{single}"
        yield Note("ranks-missing", "info", text, {"profiled": len(ranks), "world_size": world})
    # Traces of different runs in one folder.
    known = [rank for rank in ranks if rank.world_size > 0]
    yield from _unlike(known, "mixed-world-sizes", "world sizes", lambda rank: str(rank.world_size))
    beyond = [rank for rank in known if rank.rank >= rank.world_size]
    if beyond:
        first = beyond[0]
        text = f"{first.source}: is rank {first.rank}, but its header says that the run has {first.world_size} ranks"
        yield Note("rank-beyond-world", "warning", f"{text}; check which run it belongs to", {"ranks": len(beyond)})
    # Ranks without steps beside ranks with steps, as a window of everything allows.
    working = [rank for rank in ranks if rank.end_ns > rank.start_ns]
    without = [rank for rank in working if not rank.steps]
    if 0 < len(without) < len(working):
        text = (
            f"{len(without)} of {len(working)} ranks have no step marks ({without[0].source}); "
            "figures per step divide the time of all ranks by the steps of the remaining ranks"
        )
        yield Note("mixed-steps", "warning", text, {"ranks": [rank.rank for rank in without[:NAMED_RANKS]]})
    if cut := cut_short(ranks):
        inside, whole_ns = cut
        text = (
            f"{100 * (whole_ns - inside) / whole_ns:.0f} % of communication time lies outside the "
            "window, so the hidden share is unknown; record until it ends (one step more than the "
            "round of a late all-reduce)"
        )
        yield Note("communication-cut", "warning", text, {"inside_ns": inside, "whole_ns": whole_ns})
    yield from _unlike(ranks, "mixed-devices", "devices", lambda rank: ", ".join(dict.fromkeys(rank.devices)))
    yield from _unlike(ranks, "mixed-work", "kinds of run", lambda rank: "processor" if rank.on_host else "accelerator")


def _gaps(known: Sequence[int], world: int) -> Iterator[str]:
    """Yield the ranks below ``world`` that are not known, a run at a time: a header may claim any number of them."""
    bounds = [-1, *sorted(rank for rank in known if rank < world), world]
    for before, after in pairwise(bounds):
        first, last = before + 1, after - 1
        if first == last:
            yield str(first)
        elif first < last:
            yield f"{first}, {last}" if first + 1 == last else f"{first} to {last}"


def _unlike(
    ranks: Sequence[RankProfile], code: str, differing: str, value_of: Callable[[RankProfile], str]
) -> Iterator[Note]:
    """Say which ranks differ in something; ranks of which it is unknown do not count."""
    values: dict[str, list[RankProfile]] = {}
    for rank in ranks:
        if value := value_of(rank):
            values.setdefault(value, []).append(rank)
    if len(values) < 2:
        return
    groups = [f"{value} ({len(same)} rank(s), {same[0].source})" for value, same in values.items()]
    listed = formatting.listed(groups, NAMED_RANKS, "; ")
    text = f"ranks have different {differing}: {listed}; figures over all ranks mix them"
    yield Note(code, "warning", text, {value: len(same) for value, same in values.items()})
