"""ISO: two parts of each sequence take turns, so that the sum of one runs beneath the compute of the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from densing.core import InputError
from densing.efficiency.simulation import Module
from densing.efficiency.techniques.planner import (
    BLOCK,
    BUCKET,
    MODE,
    Event,
    Pass,
    Piece,
    Sliced,
    TensorParallelRun,
    TensorSchedule,
    join,
    number,
)
from densing.efficiency.techniques.protocol import Claim, Knob

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord, Schedule
    from densing.efficiency.simulation import Cluster, Workload

AUTO = "auto"
SHARES = tuple(share / 100 for share in range(30, 75, 5))
"""Tried where the split is adaptive."""


class Halves:
    """Parts A and B of the tokens, module by module in turn; backward B goes first.

    Parameters
    ----------
    share : float
        Of the tokens in A, between 0 and 1.
    """

    def __init__(self, share: float = 0.5) -> None:
        self.parts = {" A": Piece(0.0, share), " B": Piece(share, 1.0)}

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        ready = dict.fromkeys(self.parts, after)
        for module in run.modules:
            if module.name in BLOCK:
                self._turns(run, module, ready)
            else:
                done = run.compute(module, join(*ready.values()))
                whole = run.reduce(module, done) if run.reduces(module) else done
                ready = dict.fromkeys(self.parts, whole)
        return join(*ready.values())

    def _turns(self, run: Pass, module: Module, ready: dict[str, Event]) -> None:
        # Forward, B attends to the keys and values of A; backward, A's gradients need B's. The parts follow one
        # another on the same stream, which sees to it.
        order = list(self.parts) if run.phase == "forward" else list(self.parts)[::-1]
        for part in order:
            piece = self.parts[part]
            flags = {"opens": part == order[0], "closes": part == order[-1]}
            done = run.compute(module, ready[part], run.seconds(module, piece), label=part, **flags)
            ready[part] = run.reduce(module, done, piece.share, part) if run.reduces(module) else done


class Iso(TensorParallelRun, Sliced):
    """Sums of one half of a sequence under the compute of the other.

    Source: Xiao and Su, arXiv 2409.11155.
    """

    name = "iso"
    paper = "Xiao and Su 2024, arXiv 2409.11155"
    summary = (
        "the sequence in two parts whose modules alternate: each part's all-reduce runs beneath the other's compute"
    )
    modes = ("train", "prefill")

    @staticmethod
    def _share(text: str) -> float | str:
        if text == AUTO:
            return AUTO
        return number(0.05, 0.95)(text)

    knobs: tuple[Knob, ...] = (
        Knob("split", 0.5, "share of the tokens in the first part; auto: the best of some (a plan's only)", _share),
        BUCKET,
        MODE,
    )

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check."""
        from densing.efficiency.techniques.claims.iso import CLAIMS

        return CLAIMS

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return two parts of the tokens."""
        share = knobs["split"]
        return Halves(best_share(workload, cluster) if share == AUTO else share)

    def schedule(self, **knobs: Any) -> Schedule:
        """Return parts of the sequence in turns."""
        from densing.efficiency import parallel

        return parallel.Interleaved(**knobs)

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""
        if knobs.get("split") == AUTO:
            raise InputError("iso: split = auto is for plans; give a real run a share, such as 0.5")
        return super().run(env, **knobs)


def best_share(workload: Workload, cluster: Cluster) -> float:
    """Return the share of the first part with which two layers take least.

    Raises
    ------
    InputError
        As a plan does.
    """
    from msgspec.structs import replace

    from densing.efficiency.simulation import simulate
    from densing.efficiency.techniques.planner import plan_steps

    short = replace(workload, model=replace(workload.model, layers=2), split=replace(workload.split, pp=1, dp=1))
    few = cluster.change(speed=())

    def seconds(share: float) -> float:
        plan = plan_steps(short, few, Halves(share), warmup=0, steps=1)
        return simulate(plan.graph, plan.ranks, kappa=cluster.kappa, kappa_comm=cluster.kappa_comm).makespan

    return min(SHARES, key=seconds)


ISO = Iso()
