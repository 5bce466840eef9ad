"""The plans of the three stages of ZeRO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from densing.efficiency.simulation import Module
from densing.efficiency.systems.planner import (
    MEBIBYTE,
    NOTHING,
    STREAM,
    Buckets,
    DataParallelRun,
    Event,
    Exchange,
    ExchangeMaker,
    Pass,
    Replicated,
    Stage,
    cut,
    join,
    parameters_of,
)
from densing.efficiency.systems.registry import Knob, above_zero, flag, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica
    from densing.efficiency.simulation import Workload

BUCKET = Knob("bucket_mb", 25.0, "bucket size, MiB of gradients", above_zero)
PAPER = "Rajbhandari et al., SC 2020, arXiv 1910.02054"


class Shards(Buckets):
    """Gradients reduce-scattered in buckets, a shard updated, and the parameters gathered before the next step.

    Parameters
    ----------
    stage : Stage
    bucket_mb : float
        Mebibytes of every bucket, from the first step on.
    each : bool
        After every micro-batch, not only after the last one.
    """

    def __init__(self, stage: Stage, bucket_mb: float, *, each: bool = False) -> None:
        super().__init__(stage, bucket_mb, op="reduce_scatter", each=each)
        self.size = bucket_mb * MEBIBYTE

    def limits(self) -> Iterator[float]:
        """Return buckets of one size."""
        return repeat(self.size)

    def finish(self, done: Event) -> None:
        """Send the rest, update the shard, gather the parameters."""
        stage = self.stage
        updated = self.synchronise(done, stage.size("dp"))
        apart = stage.experts if stage.size("ep") > 1 else 0
        for held, kind in ((stage.parameters - apart, "dp"), (apart, "expert")):
            for count in cut(float(held * stage.workload.dtype_bytes), self.size):
                self.gate = stage.collective("all_gather parameters", "all_gather", count, kind, updated, STREAM)


class _Layer(NamedTuple):
    """First and last module of a layer in a pass, its parameters, and those of experts that are dealt out."""

    first: Module
    last: Module
    held: int
    apart: int


class FullShards(Exchange):
    """Parameters gathered layer by layer before either pass, and dropped after it; gradients reduce-scattered.

    Parameters
    ----------
    stage : Stage
    prefetch : int
        Layers gathered ahead of the one that computes.
    reshard : bool
        Drop parameters after every pass; otherwise what the first forward pass gathered is kept until the update.
    """

    def __init__(self, stage: Stage, prefetch: int = 1, *, reshard: bool = True) -> None:
        super().__init__(stage)
        self.prefetch, self.reshard, self.kept = prefetch, reshard, False
        self.units: list[_Layer] = []
        self.gathered: list[Event] = []
        self.at, self.done, self.scattered = -1, NOTHING, NOTHING

    def absent(self, run: Pass) -> bool:
        """Return False: every pass gathers its layers."""
        return False

    def begin(self, run: Pass) -> None:
        """List the layers of a pass and what they hold."""
        layers = [list(layer) for _, layer in groupby(run.modules, key=lambda module: module.layer)]
        dealt = self.stage.size("ep") > 1
        self.units = []
        for layer in layers:
            apart = sum(module.experts for module in layer) if dealt else 0
            held = sum(module.parameters for module in layer) - apart
            self.units.append(_Layer(layer[0], layer[-1], held, apart))
        self.gathered, self.at = [NOTHING] * len(self.units) if self.kept else [], -1
        self.kept = not self.reshard

    def before(self, run: Pass, module: Module) -> Event:
        """Gather the layers up to the one ahead, and return when this one's parameters are there."""
        if self.at + 1 == len(self.units) or module is not self.units[self.at + 1].first:
            return NOTHING
        self.at += 1
        # The gathers share a stream: they come one after the other, and the layer waits for its own only.
        while len(self.gathered) <= min(self.at + self.prefetch, len(self.units) - 1):
            layer = self.units[len(self.gathered)]
            self.gathered.append(self._collective("all_gather", "parameters", layer, self.done))
        return self.gathered[self.at]

    def after(self, run: Pass, module: Module, done: Event) -> None:
        """Free a layer, and in the backward pass send its gradients to whoever keeps them."""
        self.done = done
        layer = self.units[self.at]
        if run.phase == "backward" and module is layer.last:
            self.scattered = self._collective("reduce_scatter", "gradients", layer, done)

    def _collective(self, op: str, what: str, layer: _Layer, done: Event) -> Event:
        name, work = f"{op} {what}", self.stage.workload
        size = work.gradient_size if what == "gradients" else work.dtype_bytes
        done = self.stage.collective(name, op, float(layer.held * size), "dp", done, STREAM)
        return self.stage.collective(name, op, float(layer.apart * size), "expert", done, STREAM)

    def finish(self, done: Event) -> None:
        """Update the shard."""
        self.kept = False
        self.done = self.update(join(done, self.scattered), self.stage.size("dp"))


def _sharded(replica: Replica, stage: int, knobs: Mapping[str, Any]) -> Method:
    from densing.efficiency.systems.zero.run import Sharded

    return Sharded(replica.model, replica.optimizer, stage=stage, waiting=replica.waiting, **knobs)


class Zero1(DataParallelRun, Replicated):
    """Optimizer state split; gradients exchanged after the last micro-batch."""

    name = "zero1"
    role = "baseline"
    plain = True
    paper = PAPER
    summary = (
        "optimizer state is sharded over the replicas: gradients are reduce-scattered, updated parameters all-gathered"
    )
    zero = 1
    knobs: tuple[Knob, ...] = (BUCKET,)

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return shards of the optimizer state."""
        return partial(Shards, bucket_mb=knobs["bucket_mb"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the sharded optimizer of this stage."""
        return _sharded(replica, self.zero, knobs)


class Zero2(DataParallelRun, Replicated):
    """Gradients split too: they are exchanged after every micro-batch."""

    name = "zero2"
    role = "baseline"
    plain = True
    paper = PAPER
    summary = (
        "as zero1, with gradients sharded too: they are reduce-scattered after every "
        "micro-batch, so no rank keeps all of them"
    )
    zero = 2
    knobs: tuple[Knob, ...] = (BUCKET,)

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return shards of optimizer state and gradients."""
        return partial(Shards, bucket_mb=knobs["bucket_mb"], each=True)

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the sharded optimizer of this stage."""
        return _sharded(replica, self.zero, knobs)


class Zero3(Replicated):
    """Parameters split too (fully sharded data parallel)."""

    name = "zero3"
    role = "baseline"
    plain = True
    paper = f"{PAPER}; Zhao et al., VLDB 2023, arXiv 2304.11277"
    summary = (
        "as zero2, with parameters sharded too (FSDP): each layer is all-gathered before "
        "forward and backward, one ahead"
    )
    zero = 3
    knobs: tuple[Knob, ...] = (
        Knob("prefetch", 1, "layers gathered ahead of the one being computed", whole(0, 1000)),
        Knob("reshard", True, "free gathered parameters after every pass; false: keep them until the update", flag),
    )

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return full shards."""
        return partial(FullShards, prefetch=knobs["prefetch"], reshard=knobs["reshard"])

    def memory(self, workload: Workload, knobs: Mapping[str, Any]) -> dict[str, float]:
        """Return bytes per rank by purpose; parameters that are kept are whole."""
        purposes = super().memory(workload, knobs)
        if not knobs["reshard"]:
            purposes["parameters"] = parameters_of(workload) * workload.dtype_bytes
        return purposes


ZERO1, ZERO2, ZERO3 = Zero1(), Zero2(), Zero3()
