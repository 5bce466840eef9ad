"""A pass over a stage's modules, and the two hooks that techniques are made of.

A :class:`TensorSchedule` places the sums of a tensor-parallel group among the modules; an :class:`Exchange` brings the
data-parallel replicas to agree, around the modules of a pass and at the end of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from math import inf
from typing import Protocol

from densing.efficiency.simulation import Module, adam_bytes
from densing.efficiency.systems.planner.stage import (
    BLOCK,
    FULL_BYTES,
    NOTHING,
    WHOLE,
    Event,
    Piece,
    Stage,
    join,
    module_seconds,
    product_share,
    tokens,
)


class Pass:
    """A pass, as a schedule lays it.

    Parameters
    ----------
    stage : Stage
    exchange : Exchange
        Told of every module as it begins and ends.
    phase : {"forward", "backward"}
    last : bool
        Of the step's micro-batches.
    """

    def __init__(self, stage: Stage, exchange: Exchange, phase: str, last: bool) -> None:
        self.stage, self.exchange, self.phase, self.last = stage, exchange, phase, last
        self.modules = stage.modules if phase == "forward" else stage.modules[::-1]

    def seconds(self, module: Module, piece: Piece = WHOLE) -> float:
        """Return the seconds of this pass over a module, or over a piece of its tokens."""
        return module_seconds(self.stage.workload, self.stage.device, module, self.phase, piece)

    def compute(
        self,
        module: Module,
        after: Event,
        seconds: float | None = None,
        *,
        opens: bool = True,
        closes: bool = True,
        label: str = "",
    ) -> Event:
        """Add a module's computation, or a part of it: its first part ``opens`` it, its last one ``closes`` it."""
        gate = self.exchange.before(self, module) if opens else NOTHING
        name = f"{self.phase} {module.name}{label}" + ("" if module.name not in BLOCK else f" {module.layer}")
        # The exchange sees a module once, however many parts it comes in.
        cost = self.seconds(module) if seconds is None else seconds
        apart = module.name == "attention" and self.stage.size("cp") > 1
        if apart and opens:
            after = self.stage.collective("all_gather keys", "all_gather", self.keys, "cp", after)
        if opens:
            after = self._route(f"all_to_all {module.name}", module, after)
        done = self.stage.compute(name, cost, join(after, gate))
        if closes:
            self.exchange.after(self, module, done)
            if apart and self.phase == "backward":
                done = self.stage.collective("reduce_scatter keys", "reduce_scatter", self.keys, "cp", done)
            done = self._route(f"all_to_all {module.name} back", module, done)
        return done

    def _route(self, name: str, module: Module, after: Event) -> Event:
        """Add the all-to-all of tokens to their experts, or back; recomputation repeats both."""
        for _ in range(2 if self.recomputes(module) else 1):
            after = self.stage.collective(name, "all_to_all", module.routed, "ep", after)
        return after

    @property
    def keys(self) -> float:
        """Bytes of a micro-batch's keys and values, of all parts of a sequence: each part's queries attend to them."""
        workload = self.stage.workload
        columns = max(workload.model.kv_heads // workload.split.tp, 1) * workload.model.head_dim
        return 2.0 * tokens(workload) * workload.split.cp * columns * workload.dtype_bytes

    def recomputes(self, module: Module) -> bool:
        """Return whether this pass runs the module forward once more before it runs it backward."""
        return self.phase == "backward" and self.stage.workload.recompute == "full" and module.name in BLOCK

    def reduces(self, module: Module) -> bool:
        """Return whether the tensor-parallel group must sum up what this module leaves.

        Attention and MLP in both directions; in training, if embedding and head are split over the vocabulary, the
        embedding's output and the gradient of the head's input too. Source: Shoeybi et al. 2019, section 3 (recalled).
        """
        if self.stage.size("tp") == 1:
            return False
        edge = "embedding" if self.phase == "forward" else "head"
        return module.name in BLOCK or (module.name == edge and self.stage.workload.mode == "train")

    def reduce(self, module: Module, after: Event, share: float = 1.0, label: str = "", exposed: float = 1.0) -> Event:
        """Add the sum over the tensor-parallel group of a module's output, or of its input's gradient.

        Where the sequence is split between such sums, a reduce-scatter and, before the next module, an all-gather.
        A layer that is recomputed sums up what it leaves once more. Of a sum that runs in pieces beside the products,
        the ``exposed`` share of its time is waited for, and all that is longer than the module.
        """
        count, name = module.activation * share, f"{module.name}{label}"
        ops = ("reduce_scatter", "all_gather") if self.stage.workload.split.sequence else ("all_reduce",)
        if exposed < 1:
            whole = sum(self.stage.sum_seconds(op, count) for op in ops)
            exposed = max(exposed, 1 - self.seconds(module) / whole) if whole else exposed
        for op in ops * (2 if self.recomputes(module) else 1):
            if exposed < 1:
                after = self.stage.part(f"{op} {name}", op, count, 1.0, after, saved=1 - exposed)
            else:
                after = self.stage.collective(f"{op} {name}", op, count, "tp", after)
        return after


class TensorSchedule(Protocol):
    """Lays out one pass of one micro-batch over a stage."""

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""


class Blocking:
    """Each module's sum before the next module; without a tensor-parallel group, just the modules.

    Where the workload says so, the sum of an input's gradient runs beside the gradient of the matrices that read it:
    they take as many operations as the input's gradient does.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; beside the weights' gradients: Megatron-LM's
    ``LinearWithGradAccumulationAndAsyncCommunication``, its usual choice since 2022, not in that paper (recalled).
    """

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        work = run.stage.workload
        beside = run.phase == "backward" and work.overlap_weight_gradients and work.exposed_sums == 1
        for module in run.modules:
            if not run.reduces(module):
                after = run.compute(module, after)
            elif beside:
                weights = product_share(work, module, run.phase) * run.seconds(module)
                ready = run.compute(module, after, run.seconds(module) - weights, closes=False, label=" input")
                summed = run.reduce(module, ready)
                done = run.compute(module, ready, weights, opens=False, label=" weights")
                after = join(summed, done)
            else:
                after = run.reduce(module, run.compute(module, after), exposed=work.exposed_sums)
        return after


MEBIBYTE = 1024.0**2
FIRST_BUCKET_BYTES, BUCKET_BYTES = MEBIBYTE, 25 * MEBIBYTE
"""Bytes of torch's first bucket and of its others by default."""
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

    def absent(self, run: Pass) -> bool:
        """Whether a pass is laid as if there were no exchange: nothing of it falls into the pass or waits for it.

        A schedule lays all such passes of a stage and phase alike, so that one is a copy of another.
        """
        return not self.gate

    def begin(self, run: Pass) -> None:
        """Take notice of a pass."""

    def before(self, run: Pass, module: Module) -> Event:
        """Return the events that a module waits for."""
        gate, self.gate = self.gate, NOTHING
        return gate

    def after(self, run: Pass, module: Module, done: Event) -> None:
        """Take notice of a module that is done."""

    def finish(self, done: Event) -> None:
        """Add what comes after the last backward pass of a step, the update included."""
        self.update(done)

    def update(self, done: Event, shards: int = 1) -> Event:
        """Add the optimizer's update of this rank's share of the parameters.

        Adam moves gradient and weight, and momentum, variance and any master copy twice.
        """
        size = self.stage.workload.dtype_bytes
        gradient = self.stage.workload.gradient_size
        held = self.stage.parameters
        if shards > 1:
            # Experts that are dealt out have fewer copies to be divided among.
            held += (self.stage.workload.split.ep - 1) * self.stage.experts
        moved = held / shards * (gradient + size + 2 * adam_bytes(size))
        # What no size changes comes once per step, however many stages a device has.
        once = self.stage.device.step_s if self.stage.index == self.stage.place else 0.0
        return self.stage.compute("update", self.stage.device.seconds(0.0, moved) + once, done)

    def outer_update(self, done: Event, share: float = 1.0) -> Event:
        """Add a momentum step on the average of the replicas: average and weight move, anchor and momentum twice.

        ``share``: of the parameters.
        """
        size = self.stage.workload.dtype_bytes
        moved = self.stage.parameters * share * (FULL_BYTES + size + 2 * 2 * FULL_BYTES)
        return self._move("outer update", moved, done)

    def copy(self, done: Event, share: float = 1.0) -> Event:
        """Add a copy of a share of the parameters to or from a buffer of their own, which is in full precision."""
        return self._move("copy", self.stage.parameters * share * (self.stage.workload.dtype_bytes + FULL_BYTES), done)

    def _move(self, name: str, count: float, done: Event) -> Event:
        """Add work on every parameter that is a matter of so many bytes to and from memory."""
        return self.stage.compute(name, self.stage.device.seconds(0.0, count), done)

    def average(self, done: Event, bucket_mb: float, beside: int = 0, size: float = FULL_BYTES) -> Event:
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
        self.newest: Event = NOTHING

    def limits(self) -> Iterator[float]:
        """Return the bytes at which the buckets of a pass are full, one after the other."""
        if not self.stage.graph.step:
            return repeat(inf)
        return chain([FIRST_BUCKET_BYTES], repeat(BUCKET_BYTES)) if self.bucket is None else repeat(self.bucket)

    def absent(self, run: Pass) -> bool:
        """Whether a pass leaves its gradients where they are."""
        return super().absent(run) and (run.phase == "forward" or not (self.each or run.last))

    def begin(self, run: Pass) -> None:
        """Begin with the first bucket."""
        if run.phase == "backward":
            self._limits = self.limits()
            self._limit = next(self._limits)

    def after(self, run: Pass, module: Module, done: Event) -> None:
        """Put a module's gradients into the bucket, and send what is full."""
        if run.phase == "forward" or not (self.each or run.last):
            return
        size = self.stage.workload.gradient_size
        apart = module.experts if self.stage.size("ep") > 1 else 0
        self.pending += (module.parameters - apart) * size
        if apart and self.stage.size("expert") > 1:
            # Only those who hold the same experts have gradients of them to add up.
            name = f"{self.op} gradients of experts"
            self.newest = self.stage.collective(name, self.op, apart * size, "expert", done, STREAM)
        # A module may fill several buckets; what is left over begins the next one.
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
        ready, self.newest = join(done, self.newest), NOTHING
        return self.update(ready, shards)

    def _flush(self, done: Event) -> None:
        while self.pending > 0:
            self._fill(min(self._limit, self.pending), done)

    def _fill(self, count: float, done: Event) -> None:
        # The next bucket's limit is drawn even where nobody is there to send to: buckets are cut either way.
        self.pending -= count
        self._limit = next(self._limits)
        if self.stage.size(self.kind) > 1:
            self.newest = self.send(count, done)

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
