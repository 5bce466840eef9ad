"""The timeline of a run: one span table per rank, the same whether recorded or simulated."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import SHOWN_ROWS, Card, Note, Readable, words
from densing.efficiency.timeline.spans import Kind, Spans

if TYPE_CHECKING:
    import pandas as pd


RECORDER = "densing_recorder"
"""Key of a trace's header that :func:`densing.timeline.record` writes: its version."""

MARK = "densing::wait"
"""Name of the annotation that :func:`densing.timeline.record` puts around a wait which leaves no event of its own."""

NO_DEVICE_WORK = "no-device-work"
"""Code of the note on a trace of a device that holds none of its kernels."""


class Step(NamedTuple):
    """One training step as the host marked it (``ProfilerStep#number``), nanoseconds."""

    number: int
    start: int
    end: int


class Marks(NamedTuple):
    """All marks of steps together, those of every thread and nested ones too; the windows are cut by them.

    Attributes
    ----------
    start, end : int
        From the first start to the last end, ns.
    last : int
        Where the mark begins that begins last, ns.
    names : int
        How many different names the marks bear.
    """

    start: int
    end: int
    last: int
    names: int

    @classmethod
    def of(cls, steps: Sequence[Step], names: Iterable[Hashable]) -> Marks | None:
        """Take together what one thread or many marked; None where that is nothing."""
        if not steps:
            return None
        starts, ends = [step.start for step in steps], [step.end for step in steps]
        return cls(min(starts), max(ends), max(starts), len(set(names)))


class Origin(msgspec.Struct, frozen=True):
    """Where a rank's timeline came from and what its header says.

    Parameters
    ----------
    source : str
        File, or file and member of an archive; ``simulated`` for a simulation.
    rank_from : {"distributedInfo", "file name", "option", "default"}
        How the rank was known.
    world_size : int
        -1 unknown.
    backend : str
        ``nccl``, ``gloo``, ...; empty if unknown.
    devices : tuple of str
        Names of the accelerators the header lists.
    host : str
        Machine name; empty if unknown.
    groups : mapping of str to tuple of int
        Process groups by name, with their members.
    simulated : bool
    recorder : str
        Version of :func:`densing.timeline.record` that made it; empty if something else did.
    """

    source: str = "simulated"
    rank_from: str = "default"
    world_size: int = -1
    backend: str = ""
    devices: tuple[str, ...] = ()
    host: str = ""
    groups: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    simulated: bool = False
    recorder: str = ""


class RankTimeline(msgspec.Struct, frozen=True, eq=False):
    """What one rank did.

    Parameters
    ----------
    rank : int
    work : Spans
        What occupies the device (kinds COMPUTE, COMM, MEMCPY, MEMSET, SYNC, UNKNOWN), or the processor in a run
        without one (COMPUTE, COMM, CALL).
    host : Spans
        Launches, annotations and, where they were asked for or needed, operators and frames.
    steps : tuple of Step
        In order of time, each step once; empty where the trace marks none.
    origin : Origin
    on_host : bool
        True if ``work`` is the processor's (a run over gloo without accelerator).
    detail : {"device", "host"}
        ``host`` if operators were read too.
    events, skipped, repaired : int
        Events of the file; left out because damaged; kept after repair.
    notes : tuple of Note
    marks : Marks or None
        What the steps were taken from; None where every mark is a step (see :attr:`marked`).
    self_launched : Spans
        Device spans whose own record counts as their launch in window ``hta`` (MTIA's).
    """

    rank: int
    work: Spans
    host: Spans
    steps: tuple[Step, ...] = ()
    origin: Origin = msgspec.field(default_factory=Origin)
    on_host: bool = False
    detail: str = "device"
    events: int = 0
    skipped: int = 0
    repaired: int = 0
    notes: tuple[Note, ...] = ()
    marks: Marks | None = None
    self_launched: Spans = msgspec.field(default_factory=Spans.empty)

    @property
    def blind(self) -> bool:
        """Whether nothing tells what the device did: its windows have no length, and no figure counts them."""
        return any(note.code == NO_DEVICE_WORK for note in self.notes)

    @property
    def marked(self) -> Marks | None:
        """All marks of steps together; None where the trace marks none."""
        return self.marks or Marks.of(self.steps, (step.number for step in self.steps))

    def table(self) -> pd.DataFrame:
        """Return work and host spans: rank, kind, process, stream, name, start_ns, end_ns, bytes, group."""
        import pandas as pd

        return pd.concat([_frame(self.rank, part) for part in (self.work, self.host)], ignore_index=True)


class Timeline(Readable, msgspec.Struct, frozen=True, eq=False):
    """The ranks of one run, by rank.

    Examples
    --------
    >>> from densing.efficiency.timeline.spans import Kind, Spans
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> Timeline((RankTimeline(0, work, Spans.empty()),)).table()[["rank", "kind", "name", "start_ns", "end_ns"]]
       rank     kind  name  start_ns  end_ns
    0     0  compute  gemm         0       5

    See Also
    --------
    read_timeline, profile_run
    """

    ranks: tuple[RankTimeline, ...]

    def card(self) -> Card:
        """Return what is shown: how many spans each rank has."""
        spans = {f"rank {rank.rank}": f"{len(rank.work)} spans" for rank in self.ranks[:SHOWN_ROWS]}
        if len(self.ranks) > len(spans):
            spans["..."] = f"{len(self.ranks) - len(spans)} more ranks"
        return Card(f"Timeline of {words.plural(len(self.ranks), 'rank')}", spans)

    def table(self) -> pd.DataFrame:
        """Return every span of every rank as one table."""
        import pandas as pd

        return pd.concat([rank.table() for rank in self.ranks], ignore_index=True)


def _frame(rank: int, spans: Spans) -> pd.DataFrame:
    import pandas as pd

    lanes = np.array([lane.thread for lane in spans.lanes], dtype=object)
    processes = np.array([lane.process for lane in spans.lanes], dtype=object)
    names = np.array(spans.names, dtype=object)
    groups = np.array([*(comm.group for comm in spans.comms), ""], dtype=object)
    kinds = np.array([kind.name.lower() for kind in Kind], dtype=object)
    columns: dict[str, NDArray[np.int64] | NDArray[np.object_] | int] = {
        "rank": rank,
        "kind": kinds[spans.kind],
        "process": processes[spans.lane],
        "stream": lanes[spans.lane],
        "name": names[spans.name] if len(spans) else np.empty(0, object),
        "start_ns": spans.start,
        "end_ns": spans.end,
        "bytes": spans.bytes,
        "group": groups[spans.comm],
    }
    return pd.DataFrame(columns)
