"""T3: the reduce-scatter of a matrix product's output begins while the product is still being computed.

The product writes its output in stages; a tracker in the memory controller sees a stage complete and triggers its
transfer, which is reduced near memory. The all-gather that makes it an all-reduce stays where it was.

Source: Pati et al., ASPLOS 2024, arXiv 2401.16677, through a reading note (second-hand).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from densing.core import InputError
from densing.efficiency.simulation import Graph, Module
from densing.efficiency.techniques.planner import (
    BLOCK,
    BUCKET,
    MODE,
    Event,
    Pass,
    Sliced,
    TensorParallelRun,
    TensorSchedule,
    flag,
    number,
    tokens,
    whole,
)
from densing.efficiency.techniques.protocol import Claim, Knob
from densing.efficiency.timeline import Kind

if TYPE_CHECKING:
    from densing.efficiency.parallel import Schedule
    from densing.efficiency.simulation import Cluster, Workload


class Hardware(NamedTuple):
    """What T3's hardware does.

    Attributes
    ----------
    stages : int
        In which the product writes its output; 0: one per rank of the group, the ring's chunks.
    nmc : float
        Share of the reduce-scatter that near-memory reduction saves.
    kappa : float
        The product takes ``1 + kappa`` times as long beside its reduce-scatter.
    """

    stages: int = 0
    nmc: float = 0.0
    kappa: float = 0.0


class Triggered:
    """Reduce-scatters that follow a product's stages; the all-gather blocks.

    Parameters
    ----------
    hardware : Hardware
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        for module in run.modules:
            if run.reduces(module) and module.name in BLOCK:
                after = self._module(run, module, after)
            else:
                after = run.compute(module, after)
                if run.reduces(module):
                    after = run.reduce(module, after)
        return after

    def _module(self, run: Pass, module: Module, after: Event) -> Event:
        """The module up to its last product, the product in stages with their transfers, the all-gather."""
        whole_s, share = run.seconds(module), product_share(run.stage.workload, module, run.phase)
        stages = self.hardware.stages or run.stage.size("tp")
        each = whole_s * share * (1 + self.hardware.kappa) / stages
        done = run.compute(module, after, whole_s * (1 - share), closes=False)
        for stage in range(stages):
            done = run.compute(module, done, each, opens=False, closes=stage == stages - 1, label=" stage")
            sent = run.stage.part(
                f"reduce_scatter {module.name}",
                "reduce_scatter",
                module.activation,
                1 / stages,
                done,
                saved=self.hardware.nmc,
            )
        return run.stage.collective(f"all_gather {module.name}", "all_gather", module.activation, "tp", sent)


class T3(TensorParallelRun, Sliced):
    """Sums that begin while the product still computes."""

    name = "t3"
    paper = "Pati et al., ASPLOS 2024, arXiv 2401.16677"
    summary = "hardware that starts a product's reduce-scatter as its stages complete, reducing near memory (simulated)"
    stand_in = "tile-wise software decomposition, not T3"
    knobs: tuple[Knob, ...] = (
        Knob("n_stages", 0, "stages of a product's output; 0: one per rank of the group", whole(0, 4096)),
        Knob("nmc", 0.0, "share of the reduce-scatter that near-memory reduction saves", number(0, 0.99)),
        Knob("kappa", 0.0, "the product takes 1 + kappa times as long beside its reduce-scatter", number(0)),
        Knob("mca", False, "memory-controller arbitration: kappa_mca in place of kappa", flag),
        Knob("kappa_mca", 0.0, "contention that is left with arbitration", number(0)),
        Knob("tiles", 4, "tiles of a product in a real run, which is a software stand-in", whole(1, 4096)),
        BUCKET,
        MODE,
    )
    plan_only = ("bucket_mb", "n_stages", "nmc", "kappa", "mca", "kappa_mca")

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check."""
        from densing.efficiency.techniques.claims.t3 import CLAIMS

        return CLAIMS

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return sums that follow the product's stages."""
        kappa = knobs["kappa_mca"] if knobs["mca"] else knobs["kappa"]
        return Triggered(Hardware(knobs["n_stages"], knobs["nmc"], kappa))

    def schedule(self, **knobs: Any) -> Schedule:
        """Return tiles whose sums begin while the next tile is computed."""
        from densing.efficiency import parallel

        return parallel.Tiled(**knobs)


def product_share(workload: Workload, module: Module, phase: str) -> float:
    """Return the share of a module's operations in the product whose output is summed.

    Forward the output projection and the MLP's second matrix; backward the gradient of the input, of the projections
    to queries, keys and values and of the MLP's first matrices.
    """
    model, tp = workload.model, workload.split.tp
    if module.name == "attention":
        last = model.hidden * model.heads * model.head_dim / tp
    else:
        last = module.parameters / (3 if model.gated else 2)
    matrix = last if phase == "forward" else module.parameters - last
    flops = module.flops if phase == "forward" else module.backward_flops
    return min(1.0, 2 * tokens(workload) * matrix / flops) if flops else 0.0


def sublayer(gemm_s: float, scatter_s: float, gather_s: float, hardware: Hardware | None = None) -> Graph:
    """Return a single matrix product, its reduce-scatter and its all-gather on one rank: what T3's paper times.

    Parameters
    ----------
    gemm_s, scatter_s, gather_s : float
        Seconds of each alone.
    hardware : Hardware, optional
        T3 with so many stages (at least 1); left out: one after the other.

    Raises
    ------
    InputError
        For hardware without stages.

    Examples
    --------
    >>> [task.name for task in sublayer(1.0, 1.0, 1.0).tasks]
    ['gemm', 'reduce_scatter', 'all_gather']
    """
    here = hardware or Hardware(1)
    if here.stages < 1:
        raise InputError("t3: a single product needs its stages said; give 1 or more")
    graph = Graph()
    graph.step = 0
    for _ in range(here.stages):
        done = graph.add("gemm", Kind.COMPUTE, (0,), "compute", gemm_s * (1 + here.kappa) / here.stages)
        seconds = scatter_s * (1 - here.nmc) / here.stages
        sent = graph.add("reduce_scatter", Kind.COMM, (0,), "comm", seconds, after=[done])
    graph.add("all_gather", Kind.COMM, (0,), "comm", gather_s, after=[sent])
    return graph


T3_TECHNIQUE = T3()
