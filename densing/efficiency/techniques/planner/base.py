"""What techniques that go through the planner have in common."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from densing.core import InputError
from densing.efficiency.simulation import Cluster, Workload, memory, stages
from densing.efficiency.techniques.claims import Claim
from densing.efficiency.techniques.knobs import Knob, above_zero, choice, optional, settle, whole
from densing.efficiency.techniques.plan import Plan
from densing.efficiency.techniques.planner.collectives import CostModel, Maker
from densing.efficiency.techniques.planner.exchange import Blocking, Buckets, Exchange, ExchangeMaker, TensorSchedule
from densing.efficiency.techniques.planner.stage import Stage
from densing.efficiency.techniques.planner.steps import plan_steps

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica, RunEnv, RunRecord, Schedule

BUCKET = Knob(
    "bucket_mb", None, "mebibytes of gradients sent together; none: torch's 25, the first 1", optional(above_zero)
)

MODE = Knob("mode", "train", "of a real run: train, or prefill (forward passes only)", choice(("train", "prefill")))

NEEDS: Mapping[str, str] = {
    "dp": "data-parallel replicas that exchange: dp >= 2",
    "tp": "a tensor-parallel group: tp >= 2",
    "pp": "several pipeline stages: pp >= 2",
}


class Planned:
    """A technique made of a schedule of tensor-parallel sums and an exchange between replicas."""

    name: str = ""
    role: str = "exchange"
    paper: str = ""
    summary: str = ""
    knobs: tuple[Knob, ...] = (BUCKET,)

    needs: ClassVar[tuple[str, ...]] = ()
    modes: ClassVar[tuple[str, ...]] = ("train", "prefill", "decode")
    zero: ClassVar[int] = 0
    """Stage of ZeRO that its memory is split by."""
    changes_loss: ClassVar[str] = ""
    """How what is learned per step differs from plain synchronous training; empty where it does not."""
    asynchronous: ClassVar[bool] = False
    """Whether communication hides under a whole round of steps: then there is a least ``tau`` that hides all of it."""
    not_available: ClassVar[tuple[str, ...]] = ()
    """What was looked for about it and found in no readable source; never filled in."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check; () for a baseline."""
        return ()

    def plan(self, workload: Workload, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps.

        Parameters
        ----------
        workload : Workload
        cluster : Cluster
        **knobs
            Those of :attr:`knobs`; the defaults of the others.

        Raises
        ------
        InputError
            When it cannot work on this workload, or a knob makes no sense; the message says what it needs.
        """
        settings = settle(self.name, self.knobs, knobs)
        self.check(workload)
        warmup, steps = self.window(settings)
        return plan_steps(
            workload,
            cluster,
            self.tensor(workload, cluster, settings),
            self.exchange(settings),
            collectives=self.collectives(settings),
            warmup=warmup,
            steps=steps,
            inner=int(settings.get("inner", 1)),
            memory=self.memory(workload, settings),
        )

    def check(self, workload: Workload) -> None:
        """Refuse a workload that it has nothing to do with."""
        if workload.mode not in self.modes:
            raise InputError(
                f"{self.name}: the workload's mode is {workload.mode}; it works in {', '.join(self.modes)} only"
            )
        for axis in self.needs:
            if getattr(workload.split, axis) < 2:
                raise InputError(
                    f"{self.name} needs {NEEDS[axis]}; the workload has {axis} = {getattr(workload.split, axis)}"
                )

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return how the tensor-parallel sums are placed."""
        return Blocking()

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return how the replicas come to agree."""
        return partial(Buckets, bucket_mb=knobs["bucket_mb"]) if "bucket_mb" in knobs else Exchange

    def collectives(self, knobs: Mapping[str, Any]) -> Maker:
        """Return who turns collectives into tasks."""
        return CostModel

    def window(self, knobs: Mapping[str, Any]) -> tuple[int, int]:
        """Return the steps of warm-up and of the steady state."""
        return 1, 2

    def memory(self, workload: Workload, knobs: Mapping[str, Any]) -> dict[str, float]:
        """Return bytes per rank by purpose."""
        needs = {purpose: float(count) for purpose, count in memory(workload, zero=self.zero).items()}
        return {**needs, "technique": self.extra_bytes(workload, knobs)}

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return the bytes per rank that only this technique needs."""
        return 0.0


class Replicated(Planned):
    """A way of exchanging between data-parallel replicas."""

    needs = ("dp",)
    modes = ("train",)


class Sliced(Planned):
    """A schedule of the sums of a tensor-parallel group; replicas, if any, exchange as in DDP."""

    role = "schedule"
    needs = ("tp",)
    knobs: tuple[Knob, ...] = (BUCKET, MODE)


class DataParallelRun:
    """Runs for real: :meth:`method` is made around each rank's copy of the model."""

    axis: ClassVar[str] = "dp"
    """What the ranks of a run are."""
    name: str
    knobs: tuple[Knob, ...]
    stand_in: str = ""
    plan_only: ClassVar[tuple[str, ...]] = ()
    """Knobs that a run does not take."""

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the data-parallel method around this rank's replica."""
        raise NotImplementedError

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""
        from densing.efficiency.parallel import train_data_parallel

        return train_data_parallel(env, self.method, **run_knobs(self.name, self.knobs, self.plan_only, knobs))


class TensorParallelRun:
    """Runs for real: every rank holds a part of each matrix, and works in the order of :meth:`schedule`."""

    axis: ClassVar[str] = "tp"
    """What the ranks of a run are."""
    name: str
    knobs: tuple[Knob, ...]
    stand_in: str = ""
    plan_only: ClassVar[tuple[str, ...]] = ("bucket_mb",)

    def schedule(self, **knobs: Any) -> Schedule:
        """Return the order in which a rank runs its modules and adds up their outputs."""
        raise NotImplementedError

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""
        from densing.efficiency.parallel import train_tensor_parallel

        options = run_knobs(self.name, self.knobs, self.plan_only, knobs)
        mode = options.pop("mode")
        return train_tensor_parallel(env, self.schedule(**options), mode=mode, stand_in=self.stand_in)


def run_knobs(
    name: str, knobs: tuple[Knob, ...], plan_only: tuple[str, ...], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that a run takes: those given, and the defaults of the others."""
    return {knob: value for knob, value in settle(name, knobs, given).items() if knob not in plan_only}


def parameters_of(workload: Workload) -> float:
    """Return the parameters of the rank that holds most."""
    return float(max(sum(module.parameters for module in stage) for stage in stages(workload)))


STATE = 6
"""Numbers of four bytes beside an average: in a run, three of eight tell the others what a rank is about to do."""
TAU = Knob("tau", 48, "steps per round (48: outer_frequency of CO2's released class)", whole(1))
PIECE = Knob("bucket_mb", 25.0, "mebibytes sent together where tensor-parallel groups use the same link", above_zero)


class Rounds(Exchange):
    """Every ``tau`` steps the replicas agree.

    Parameters
    ----------
    stage : Stage
    tau : int
    bucket_mb : float
        Pieces of the average, where another group needs the link too.
    """

    def __init__(self, stage: Stage, tau: int, bucket_mb: float = 25.0) -> None:
        super().__init__(stage)
        self.tau, self.bucket_mb = tau, bucket_mb

    @property
    def ends(self) -> bool:
        """Whether the step being planned is a round's last."""
        return self._ends(self.stage.graph.step)

    @property
    def repeats(self) -> bool:
        """Whether neither this step nor the two before are a round's last."""
        step = self.stage.graph.step
        return not any(self._ends(each) for each in (step, step - 1, step - 2))

    def _ends(self, step: int) -> bool:
        return (step + 1) % self.tau == 0


class Local(DataParallelRun, Replicated):
    """A technique of rounds."""

    def window(self, knobs: Mapping[str, Any]) -> tuple[int, int]:
        """Return one round of warm-up and one measured."""
        return knobs["tau"], knobs["tau"]
