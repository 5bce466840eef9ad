"""Base classes of the techniques that go through the planner, and how their two hooks become the plan of some steps.

:class:`Planned` asks a technique for a tensor schedule and an exchange; :func:`plan_steps` lays steps out of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from densing.core import InputError, Note
from densing.efficiency.parallel import forward_only, interleaved
from densing.efficiency.simulation import Block, Cluster, Graph, Module, Operation, Workload, held_modules, memory
from densing.efficiency.simulation import stages as stage_modules
from densing.efficiency.systems.plan import Plan
from densing.efficiency.systems.planner.collectives import CostModel, Maker
from densing.efficiency.systems.planner.exchange import Blocking, Buckets, Exchange, ExchangeMaker, Pass, TensorSchedule
from densing.efficiency.systems.planner.stage import NOTHING, Edge, Event, Layout, Program, Stage, tokens
from densing.efficiency.systems.registry import BuiltIn, Knob, above_zero, choice, optional, settle, whole
from densing.efficiency.timeline import Kind

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica, RunEnv, RunRecord, Schedule


BUCKET = Knob(
    "bucket_mb",
    None,
    "bucket size, MiB of gradients; none: torch's defaults (25, the first bucket 1)",
    optional(above_zero),
)

MODE = Knob(
    "mode", "train", "mode of a real run: train, or prefill (forward passes only)", choice(("train", "prefill"))
)

NEEDS: Mapping[str, str] = {
    "dp": "data-parallel replicas that communicate: dp >= 2",
    "tp": "a tensor-parallel group: tp >= 2",
    "pp": "several pipeline stages: pp >= 2",
}


class Planned(BuiltIn):
    """A technique made of a schedule of tensor-parallel sums and an exchange between replicas."""

    knobs: tuple[Knob, ...] = (BUCKET,)

    needs: ClassVar[tuple[str, ...]] = ()
    modes: ClassVar[tuple[str, ...]] = ("train", "prefill", "decode")
    zero: ClassVar[int] = 0
    """ZeRO stage of its memory."""
    plain: ClassVar[bool] = False
    """Whether it exchanges gradients in every step and leaves modules unchanged, as context and expert
    parallelism require."""
    asynchronous: ClassVar[bool] = False
    """Whether communication overlaps a whole round of steps: then there is a smallest ``tau`` that hides all of it."""

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
            edges=self.edges(workload, cluster, settings),
        )

    def check(self, workload: Workload) -> None:
        """Refuse a workload that the technique does not apply to."""
        if not isinstance(workload, Workload):
            kind = type(workload).__name__
            raise InputError(f"{self.name}: plans steps of a transformer, but the workload is {kind}; give a Workload")
        if workload.mode not in self.modes:
            raise InputError(
                f"{self.name}: the workload's mode is {workload.mode}; it works in {', '.join(self.modes)} only"
            )
        dealt = [name for name in ("cp", "ep") if getattr(workload.split, name) > 1]
        if dealt and not self.plain:
            raise InputError(
                f"{self.name}: plans no split of sequences or experts; leave {' and '.join(dealt)} out (ddp, zero1 to "
                "zero3, tensor-parallel and pipeline plan it)"
            )
        for axis in self.needs:
            if (workload.split.copies if axis == "dp" else getattr(workload.split, axis)) < 2:
                raise InputError(
                    f"{self.name} needs {NEEDS[axis]}; the workload has {axis} = {getattr(workload.split, axis)}"
                )

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return how the tensor-parallel sums are placed."""
        return Blocking()

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return the exchange between replicas."""
        return partial(Buckets, bucket_mb=knobs["bucket_mb"]) if "bucket_mb" in knobs else Exchange

    def collectives(self, knobs: Mapping[str, Any]) -> Maker:
        """Return the provider of collectives, which turns them into tasks."""
        return CostModel

    def edges(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> Sequence[Edge]:
        """Return the compression of activations and gradients between stages; none when empty."""
        return ()

    def window(self, knobs: Mapping[str, Any]) -> tuple[int, int]:
        """Return the steps of warm-up and of the steady state."""
        return 1, 2

    def memory(self, workload: Workload, knobs: Mapping[str, Any]) -> dict[str, float]:
        """Return bytes per rank by purpose."""
        purposes = {purpose: float(count) for purpose, count in memory(workload, zero=self.zero).items()}
        return {**purposes, "technique": self.extra_bytes(workload, knobs)}

    def remarks(self, workload: Workload, cluster: Cluster, **knobs: Any) -> tuple[Note, ...]:
        """Return what the technique chose itself for this workload on this cluster, in words and figures."""
        return ()

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


class DataParallelRun(ABC):
    """Runs for real: :meth:`method` is made around each rank's copy of the model."""

    axis: ClassVar[str] = "dp"
    """What the ranks of a run are."""
    name: str
    knobs: tuple[Knob, ...]
    stand_in: str = ""
    plan_only: ClassVar[tuple[str, ...]] = ()
    """Knobs that a run does not take."""

    @abstractmethod
    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the data-parallel method around this rank's replica."""

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""
        from densing.efficiency.parallel import train_data_parallel

        return train_data_parallel(env, self.method, **run_knobs(self.name, self.knobs, self.plan_only, knobs))


class TensorParallelRun(ABC):
    """Runs for real: every rank holds a part of each matrix, and works in the order of :meth:`schedule`."""

    axis: ClassVar[str] = "tp"
    """What the ranks of a run are."""
    name: str
    knobs: tuple[Knob, ...]
    stand_in: str = ""
    plan_only: ClassVar[tuple[str, ...]] = ("bucket_mb",)

    @abstractmethod
    def schedule(self, **knobs: Any) -> Schedule:
        """Return the order in which a rank runs its modules and adds up their outputs."""

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""
        from densing.efficiency.parallel import train_tensor_parallel

        options = run_knobs(self.name, self.knobs, self.plan_only, knobs)
        mode = options.pop("mode")
        return train_tensor_parallel(env, self.schedule(**options), mode=mode, stand_in=self.stand_in)


def run_knobs(
    name: str, knobs: tuple[Knob, ...], plan_only: tuple[str, ...], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that a run takes: those given, and the defaults of the others."""
    return {knob: value for knob, value in settle(name, knobs, values).items() if knob not in plan_only}


def parameters_of(workload: Workload) -> float:
    """Return the parameters of the rank that holds most."""
    return float(max(sum(module.parameters for module in held) for held in held_modules(workload)))


STATE = 6
"""Four-byte numbers sent with an average: a run sends three of eight bytes that tell what a rank is about to do."""
TAU = Knob("tau", 48, "steps per round (48: outer_frequency of CO2's released class)", whole(1))
PIECE = Knob("bucket_mb", 25.0, "bucket size, MiB, where tensor-parallel groups use the same link", above_zero)


class Rounds(Exchange):
    """Replicas synchronise every ``tau`` steps.

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


def plan_steps(
    workload: Workload,
    cluster: Cluster,
    tensor: TensorSchedule,
    exchange: ExchangeMaker = Exchange,
    *,
    collectives: Maker = CostModel,
    warmup: int = 1,
    steps: int = 2,
    inner: int = 1,
    memory: Mapping[str, float] | None = None,
    modules: Sequence[Sequence[Module]] | None = None,
    edges: Sequence[Edge] = (),
) -> Plan:
    """Plan some steps of training or inference.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    tensor : TensorSchedule
        Places the sums of the tensor-parallel group.
    exchange : ExchangeMaker
        Makes what keeps a stage's replicas together; inference has none.
    collectives : Maker
        Of the provider of collectives.
    warmup, steps : int
        Steps before and in the steady state.
    inner : int
        Data-parallel ranks per inner group.
    memory : mapping of str to float, optional
        Bytes per rank by purpose.
    modules : sequence of sequences of Module, optional
        Per stage; :func:`densing.efficiency.simulation.workload.stages` of the workload when left out.
    edges : sequence of Edge
        Between stage i and the next one; everything is sent as it is when empty.

    Raises
    ------
    InputError
        When the split does not fit the cluster, or the batch its micro-batches.
    """
    tokens(workload)
    program = Program(workload, cluster, Layout(workload.split, cluster, inner), collectives)
    train = workload.mode == "train"
    stages = [Stage(program, index, own) for index, own in enumerate(modules or stage_modules(workload))]
    exchanges = [exchange(stage) if train else Exchange(stage) for stage in stages]
    builder = _Builder(stages, exchanges, tensor, edges or [Edge()] * (len(stages) - 1))
    step = 0
    while step < warmup + steps:
        program.graph.step = step
        if all(each.repeats for each in exchanges):
            builder.repeat()
        else:
            builder.step()
        if not step:
            # All steps are of about one size: better refused now than after minutes of planning.
            program.graph.room(len(merged(program.graph)) * (warmup + steps - 1))
            if cluster.delay is not None:
                steps *= periods(steps, len(program.graph))
        step += 1
    layout = program.layout
    return Plan(merged(program.graph), layout.simulated, warmup, steps, dict(memory or {}), layout.stands_for)


DRAWN_STEPS = 32
"""Steps simulated when delays are drawn, unless that gives too many tasks."""
DRAWN_TASKS = 400_000


def periods(steps: int, tasks: int) -> int:
    """Return how many times the steps of the steady state are planned, so that drawn delays show their mean.

    Parameters
    ----------
    steps : int
        Of one period.
    tasks : int
        Of a step.

    Examples
    --------
    >>> periods(2, 1000), periods(48, 1000), periods(2, 100_000)
    (16, 1, 2)
    """
    return max(1, min(DRAWN_STEPS // steps, DRAWN_TASKS // (steps * max(tasks, 1))))


class _Laid(NamedTuple):
    """A pass that was laid: tasks by their number in it, those of its input by their number from the end, from -1."""

    block: Block
    done: Event


class _Builder:
    """Adds one step after the other."""

    def __init__(
        self, stages: Sequence[Stage], exchanges: Sequence[Exchange], tensor: TensorSchedule, edges: Sequence[Edge]
    ) -> None:
        self.stages, self.exchanges, self.tensor, self.edges = stages, exchanges, tensor, edges
        self.workload, self.graph = stages[0].workload, stages[0].graph
        self.began, self.slim = 0, False
        self.delay = stages[0].program.cluster.delay
        self.outputs: dict[int, Event] = {}
        """Last tasks of the previous step's micro-batches: a decoding step depends on them."""
        program = stages[0].program
        # A collective whose latency passes beside the bytes of another waits for earlier ones of other passes.
        self.alike = program.maker is CostModel and not program.cluster.pipelined
        self.laid: dict[tuple[int, str, tuple[tuple[int, ...], ...]], list[_Laid]] = {}
        """The first two of equal passes; once these are equal, the others are copies."""

    def step(self) -> None:
        """Add a step: stages take turns as what they wait for has been added."""
        self.began, self.slim = len(self.graph), False
        for rank, seconds in enumerate(self._delays()):
            self.graph.add("delay", Kind.ANNOTATION, (rank,), "compute", seconds)
        micro_batches, train = self.workload.micro_batches, self.workload.mode == "train"
        split = self.workload.split
        turns = [
            interleaved(place, split.pp, split.virtual, micro_batches) if train else forward_only(micro_batches)
            for place in range(split.pp)
        ]
        # A decoding step begins with the tokens that the step before left.
        outputs = self.outputs if self.workload.mode == "decode" else {}
        # Inputs that are there, by phase, micro-batch and stage.
        arrived = {("forward", micro, 0): outputs.get(micro, NOTHING) for micro in range(micro_batches)}
        # A stage goes on as far as its inputs have come, then the next one has its turn: so a task is added after all
        # that it waits for.
        while any(turns):
            for place, mine in enumerate(turns):
                while mine:
                    stage = self.stages[mine[0].chunk * split.pp + place]
                    if (mine[0].phase, mine[0].micro, stage.index) not in arrived:
                        break
                    turn = mine.pop(0)
                    run = Pass(stage, self.exchanges[stage.index], turn.phase, turn.micro == micro_batches - 1)
                    run.exchange.begin(run)
                    forward = turn.phase == "forward"
                    what, way = ("activations", 1) if forward else ("gradients", -1)
                    came = arrived.pop((turn.phase, turn.micro, stage.index))
                    # Unpacked in the receiver's own turn: its stream works in the order in which tasks are added.
                    if 0 <= stage.index - way < len(self.stages):
                        came = self._code(stage, f"decode {what}", self._edge(stage.index - way, way).decode_s, came)
                    done = self._lay(run, came)
                    target = stage.index + way
                    if 0 <= target < len(self.stages):
                        last, edge = run.modules[-1], self._edge(stage.index, way)
                        count = edge.share * last.activation / (split.tp if split.sequence else 1)
                        packed = self._code(stage, f"encode {what}", edge.encode_s, done)
                        if edge.ahead:
                            stage.hand_on(self.stages[target], "send length", edge.ahead, packed)
                        arrived[turn.phase, turn.micro, target] = stage.hand_on(
                            self.stages[target], f"send {what}", count, packed
                        )
                    elif forward:
                        # The last stage turns round: what its forward pass left is its backward pass's input.
                        self.outputs[turn.micro] = done
                        arrived["backward", turn.micro, stage.index] = done
                    if train and not mine:
                        for each in self.stages[place :: split.pp]:
                            self.exchanges[each.index].finish(done)

    def _lay(self, run: Pass, came: Event) -> Event:
        """Add a pass, and return when its output is there: a copy of an equal one, which is much quicker."""
        if not (self.alike and run.exchange.absent(run)):
            return self.tensor.lay(run, came)
        graph = self.graph
        inputs = list(dict.fromkeys(chain.from_iterable(came)))
        at = {task: -1 - position for position, task in enumerate(inputs)}
        key = (run.stage.index, run.phase, tuple(tuple(at[task] for task in tasks) for tasks in came))
        known, first = self.laid.setdefault(key, []), len(graph)
        if len(known) == 2:
            # The pass's tasks follow one another; counted from the end, before them stand those that it waits for.
            number = np.concatenate((np.arange(first, first + len(known[0].block.seconds)), inputs[::-1])).astype(
                np.int32
            )
            graph.again(known[0].block, number[known[0].block.awaited])
            return tuple(tuple(int(number[task]) for task in tasks) for tasks in known[0].done)
        done = self.tensor.lay(run, came)
        block = graph.block(first)
        at.update((task, task - first) for task in range(first, len(graph)))
        if all(task in at for task in block.awaited.tolist()):
            block = block._replace(awaited=np.array([at[task] for task in block.awaited.tolist()], np.int32))
            known.append(_Laid(block, tuple(tuple(at[task] for task in tasks) for tasks in done)))
            # Their steps may differ: a copy has that of the graph.
            columns = ("operation", "seconds", "waits", "awaited")
            alike = all(np.array_equal(getattr(known[0].block, name), getattr(block, name)) for name in columns)
            self.alike = alike and known[0].done == known[-1].done
        else:
            # It waits for more than its input: the schedule remembers passes before.
            self.alike = False
        return done

    def _edge(self, stage: int, way: int) -> Edge:
        """What is sent by a stage to the one after it (way 1) or before it (-1)."""
        edge = self.edges[min(stage, stage + way)]
        return edge if way > 0 or edge.back is None else edge.back

    def _code(self, stage: Stage, name: str, seconds: float, after: Event) -> Event:
        return stage.compute(name, seconds, after) if seconds else after

    def repeat(self) -> None:
        """Add the step before once more, much quicker than planning it anew."""
        # Tasks wait for earlier ones by number, so a shift by the step's length is all that differs.
        graph, began = self.graph, self.began
        template = graph.block(began)
        if not self.slim and template.awaited.min(initial=began) >= began:
            # A step that waits for nothing before it is copied as it will be in the end.
            template = _joined(graph, template, began)
        self.slim = True
        seconds = template.seconds
        if late := self._delays():
            seconds = np.concatenate((late, seconds[len(late) :]))
        self.began = len(graph)
        graph.extend(template.operation, seconds, template.waits, template.awaited + (self.began - began))

    def _delays(self) -> list[float]:
        """How late each rank begins its step; a delay is no work, and holds up all of the rank's computation."""
        ranks = self.stages[0].program.layout.simulated
        return [] if self.delay is None else self.delay.draw(ranks, self.graph.step).tolist()


def merged(graph: Graph) -> Graph:
    """Return the graph with neighbouring computations of a rank joined, where no other task waits between them.

    When anything begins and ends stays as it was, contention included; a phase of a step keeps its name, its modules
    lose theirs. A graph with rules for late tasks stays whole: half a computation may be given up.

    Examples
    --------
    >>> graph = Graph()
    >>> first = graph.add("forward mlp 0", Kind.COMPUTE, (0,), "compute", 1.0)
    >>> second = graph.add("forward mlp 1", Kind.COMPUTE, (0,), "compute", 2.0, after=[first])
    >>> [(task.name, task.seconds) for task in merged(graph).tasks]
    [('forward', 3.0)]
    """
    if graph.need or graph.until:
        return graph
    block = graph.block()
    slim = _joined(graph, block)
    if len(slim.seconds) == len(block.seconds):
        return graph
    # Operations in the order of their first tasks, without those that no task has any more.
    first = np.full(len(graph.operations), -1)
    first[slim.operation[::-1]] = np.arange(len(slim.operation))[::-1]
    used = [operation for operation in np.argsort(first, kind="stable").tolist() if first[operation] >= 0]
    new, number = Graph(), np.empty(len(first), np.int32)
    for operation in used:
        number[operation] = new.operation(graph.operations[operation])
    new.extend(number[slim.operation], slim.seconds, slim.waits, slim.awaited, slim.step)
    new.step = graph.step
    return new


def _joined(graph: Graph, block: Block, began: int = 0) -> Block:
    """Return a graph's tasks from one on, which wait for none before it, as they are once they are joined."""
    count, operations = len(block.seconds), graph.operations
    waiter, awaited = np.repeat(np.arange(count, dtype=np.int32), block.waits), block.awaited - began
    alone = [one.kind is Kind.COMPUTE and len(one.ranks) == 1 for one in operations]
    rank = np.array([one.ranks[0] if single else -1 for one, single in zip(operations, alone, strict=True)], np.int64)
    rank = rank[block.operation]
    # The computation before each one on its rank, -1 none.
    order = np.flatnonzero(rank >= 0)
    order = order[np.argsort(rank[order], kind="stable")]
    follows = rank[order[1:]] == rank[order[:-1]]
    previous = np.full(count, -1, np.int32)
    previous[order[1:][follows]] = order[:-1][follows]
    # What is alike has the same number; what needs links has none.
    kinds: dict[tuple[str, str], int] = {}
    alike = np.array(
        [-1 if one.resources else kinds.setdefault((one.stream, _phase(one)), len(kinds)) for one in operations],
        np.int64,
    )[block.operation]
    continues = (previous >= 0) & (alike >= 0) & (alike == alike[previous]) & (block.step == block.step[previous])
    continues[waiter[awaited != previous[waiter]]] = False
    # Another task that waits between two keeps them apart.
    waited = np.zeros(count, bool)
    waited[awaited[~continues[waiter]]] = True
    continues &= ~waited[previous]
    if not continues.any():
        return block._replace(awaited=awaited + began)
    head = np.maximum.accumulate(np.where(continues[order], 0, np.arange(len(order))))
    root = np.arange(count)
    root[order] = order[head]
    number = (np.cumsum(~continues) - 1)[root].astype(np.int32)
    phases = {}
    operation = block.operation.copy()
    for grown in np.unique(root[continues]).tolist():
        code = int(operation[grown])
        if code not in phases:
            one = operations[code]
            phases[code] = graph.operation(one._replace(name=_phase(one)))
        operation[grown] = phases[code]
    # Of the waits of those that stay, without what is waited for twice in a row.
    stays = ~continues[waiter]
    waiter, awaited = waiter[stays], number[awaited[stays]]
    new = np.ones(len(waiter), bool)
    new[1:] = (waiter[1:] != waiter[:-1]) | (awaited[1:] != awaited[:-1])
    return Block(
        operation[~continues],
        # Added up one after the other.
        np.bincount(number, block.seconds).astype(np.float64, copy=False),
        block.step[~continues],
        np.bincount(number[waiter[new]], minlength=int(number.max()) + 1).astype(np.int32),
        awaited[new] + began,
    )


def _phase(operation: Operation) -> str:
    return operation.name.partition(" ")[0]
