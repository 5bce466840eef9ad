"""How data-parallel replicas come to agree: hooks around the modules of a pass and at the end of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from math import inf

from densing.efficiency.simulation import Module
from densing.efficiency.techniques.planner.events import NOTHING, Event, join
from densing.efficiency.techniques.planner.passes import Pass
from densing.efficiency.techniques.planner.stage import Stage
from densing.efficiency.techniques.planner.work import FULL_BYTES, copy_seconds, outer_seconds, update_seconds

MEBIBYTE = 1024.0**2
FIRST_BUCKET, BUCKET = MEBIBYTE, 25 * MEBIBYTE
"""Bytes of torch's first bucket and of its others where nothing is said."""
STREAM = "comm.dp"


class Exchange:
    """Replicas that never exchange anything: each updates its own parameters. Base of the others.

    Parameters
    ----------
    stage : Stage
        Whose parameters it keeps; one exchange per stage and plan.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.gate: Event = NOTHING
        """What the next step's first module waits for."""

    @property
    def repeats(self) -> bool:
        """Whether the step being planned is the same as the one before, and neither waits for an earlier one."""
        return False

    def begin(self, run: Pass) -> None:
        """Take notice of a pass."""

    def before(self, run: Pass, module: Module) -> Event:
        """Return what a module must wait for."""
        gate, self.gate = self.gate, NOTHING
        return gate

    def after(self, run: Pass, module: Module, done: Event) -> None:
        """Take notice of a module that is done."""

    def finish(self, done: Event) -> None:
        """Add what comes after the last backward pass of a step, the update included."""
        self.update(done)

    def update(self, done: Event, shards: int = 1) -> Event:
        """Add the optimizer's update of this rank's share of the parameters."""
        stage = self.stage
        seconds = update_seconds(stage.device, stage.parameters / shards, stage.workload.dtype_bytes)
        return stage.compute("update", seconds, done)

    def outer_update(self, done: Event) -> Event:
        """Add a momentum step on the average of the replicas."""
        stage = self.stage
        return stage.compute(
            "outer update", outer_seconds(stage.device, stage.parameters, stage.workload.dtype_bytes), done
        )

    def copy(self, done: Event) -> Event:
        """Add a copy of the parameters to or from a buffer of their own, which is in full precision."""
        stage = self.stage
        return stage.compute("copy", copy_seconds(stage.device, stage.parameters, stage.workload.dtype_bytes), done)

    def average(self, done: Event, bucket_mb: float, beside: int = 0, size: int = FULL_BYTES) -> Event:
        """Add the average of all parameters over the replicas, of ``size`` bytes each, and of some numbers beside them.

        In one piece, or bucket by bucket where a tensor-parallel group needs the same link meanwhile. With inner
        groups, whose members are equal, one of each takes part; :meth:`hand_on` follows.
        """
        stage = self.stage
        total = float(size * stage.parameters + FULL_BYTES * beside)
        shared = stage.program.use("outer").exclusive
        for count in cut(total, bucket_mb * MEBIBYTE if shared else total):
            done = stage.collective("all_reduce parameters", "all_reduce", count, "outer", done, STREAM)
        return done

    def hand_on(self, done: Event, beside: int = 0, size: int = FULL_BYTES) -> Event:
        """Add what those who took part in an average tell the others of their inner groups."""
        count = float(size * self.stage.parameters + FULL_BYTES * beside)
        return self.stage.collective("broadcast parameters", "broadcast", count, "inner", done, STREAM)


ExchangeMaker = Callable[[Stage], Exchange]


class Buckets(Exchange):
    """Gradients averaged bucket by bucket, in the order in which the last backward pass leaves them.

    A bucket leaves once the module that fills it is done. The first step has a single one: torch cuts buckets once it
    has seen in which order gradients come. Source: Li et al., VLDB 2020, arXiv 2006.15704 (recalled); torch's
    ``DistributedDataParallel`` (``_BucketCapacityConfig``, first-hand).

    Parameters
    ----------
    stage : Stage
    bucket_mb : float, optional
        Mebibytes; None as torch: 25, and 1 for the first bucket, which so leaves early.
    op : {"all_reduce", "reduce_scatter"}
    kind : str
        Groups that agree.
    early : bool
        Start in mid-backward; otherwise when all of it is done.
    each : bool
        After every micro-batch, not only after the last one.
    """

    def __init__(
        self,
        stage: Stage,
        bucket_mb: float | None = None,
        *,
        op: str = "all_reduce",
        kind: str = "dp",
        early: bool = True,
        each: bool = False,
    ) -> None:
        super().__init__(stage)
        self.bucket = None if bucket_mb is None else bucket_mb * MEBIBYTE
        self.op, self.kind, self.early, self.each = op, kind, early, each
        self.pending = 0.0
        self.sent: Event = NOTHING

    def limits(self) -> Iterator[float]:
        """Return the bytes at which the buckets of a pass are full, one after the other."""
        if not self.stage.graph.step:
            return repeat(inf)
        return chain([FIRST_BUCKET], repeat(BUCKET)) if self.bucket is None else repeat(self.bucket)

    def begin(self, run: Pass) -> None:
        """Begin with the first bucket."""
        if run.phase == "backward":
            self._limits = self.limits()
            self._limit = next(self._limits)

    def after(self, run: Pass, module: Module, done: Event) -> None:
        """Put a module's gradients into the bucket, and send what is full."""
        if run.phase == "forward" or not (self.each or run.last):
            return
        self.pending += module.parameters * self.stage.workload.dtype_bytes
        if self.early:
            while self.pending >= self._limit:
                self._fill(self._limit, done)
            if self.each and module is run.modules[-1]:
                self._flush(done)

    def finish(self, done: Event) -> None:
        """Send the rest, wait for all, update."""
        self.synchronise(done)

    def synchronise(self, done: Event, shards: int = 1) -> Event:
        """Send the rest, wait for all and update."""
        self._flush(done)
        ready, self.sent = join(done, self.sent), NOTHING
        return self.update(ready, shards)

    def _flush(self, done: Event) -> None:
        while self.pending > 0:
            self._fill(min(self._limit, self.pending), done)

    def _fill(self, count: float, done: Event) -> None:
        self.pending -= count
        self._limit = next(self._limits)
        if self.stage.size(self.kind) > 1:
            self.sent = self.send(count, done)

    def send(self, count: float, done: Event) -> Event:
        """Add what a full bucket of ``count`` bytes puts on the wire, and return when it has come.

        For subclasses that send something else: fewer bytes, several collectives, work before and after them.
        """
        return self.stage.collective(f"{self.op} gradients", self.op, count, self.kind, done, STREAM)


def cut(total: float, bucket: float) -> list[float]:
    """Return the sizes of the buckets that hold so much.

    Examples
    --------
    >>> cut(10.0, 4.0)
    [4.0, 4.0, 2.0]
    """
    if total <= 0:
        return []
    whole = int(total // bucket)
    rest = total - whole * bucket
    return [bucket] * whole + ([rest] if rest > 0 else [])
