"""What a probe leaves, and the processor it describes."""

from __future__ import annotations

from densing.core import Record
from densing.efficiency.simulation import Computation, Device, Observation

FILE = "probe.json"
UPDATE_BYTES = 24
"""Moved per parameter by the update as the planner counts it: gradient, weight, and two float32 moments twice."""


class Timed(Record, frozen=True):
    """A pass over a module.

    Parameters
    ----------
    name : {"attention", "mlp", "head"}
    phase : {"forward", "backward"}
    parts : int
        Tensor-parallel ranks that share it.
    tokens : int
        Of each sequence.
    flops, moved : float
        Operations and bytes as :mod:`densing.efficiency.simulation.workload.modules` counts them.
    seconds : float
    """

    name: str
    phase: str
    parts: int
    tokens: int
    flops: float
    moved: float
    seconds: float


class Whole(Record, frozen=True):
    """A whole step without communication: forward and backward with all that belongs to them, and the update."""

    passes_s: float
    update_s: float
    parameters: int


class Probed(Record, frozen=True):
    """What a probe measured, as ``OUT/probe.json``.

    Parameters
    ----------
    collectives : tuple of Observation
        Shortest of the ranks: what it took once all had come.
    computations : tuple of Computation
        Of every rank.
    modules : tuple of Timed
        Mean of the ranks.
    whole : Whole
        Mean of the ranks.
    module_sum_s : float
        A forward and backward pass as the sum of its modules.
    mode : str
    pipelined : float
        See :class:`densing.efficiency.simulation.cluster.cluster.Cluster`; mean of the ranks.
    """

    collectives: tuple[Observation, ...]
    computations: tuple[Computation, ...]
    modules: tuple[Timed, ...]
    whole: Whole
    module_sum_s: float
    mode: str = "train"
    pipelined: float = 0.0

    def device(self) -> Device:
        """Return this processor, with the modules' times as measured.

        Where the passes take longer as a whole than module by module (gradients added up, batches made), every module
        takes its share of the difference.
        """
        share = self.whole.passes_s / self.module_sum_s if self.mode == "train" else 1.0
        pieces = {(one.flops, one.moved): one.seconds * share for one in reversed(self.modules)}
        measured = tuple((flops, moved, took) for (flops, moved), took in sorted(pieces.items()))
        return Device(
            "processor core, measured",
            flops=max(flops / took for flops, _, took in measured),
            mem_bw=self.whole.parameters * UPDATE_BYTES / self.whole.update_s,
            measured=measured,
        )
