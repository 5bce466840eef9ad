"""From a workload, a cluster and the two hooks to the plan of some steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from densing.efficiency.simulation import Cluster, Module, Workload
from densing.efficiency.techniques.plan import Plan
from densing.efficiency.techniques.planner.collectives import CostModel, Maker
from densing.efficiency.techniques.planner.events import NOTHING, Event
from densing.efficiency.techniques.planner.exchange import Exchange, ExchangeMaker
from densing.efficiency.techniques.planner.layout import Layout
from densing.efficiency.techniques.planner.merge import merged
from densing.efficiency.techniques.planner.order import Turn, forward_only, one_forward_one_backward
from densing.efficiency.techniques.planner.passes import Pass
from densing.efficiency.techniques.planner.stage import Program, Stage
from densing.efficiency.techniques.planner.tensor import TensorSchedule
from densing.efficiency.techniques.planner.work import tokens


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
        Per stage; :func:`densing.efficiency.simulation.workload.modules.stages` of the workload when left out.

    Raises
    ------
    InputError
        When the split does not fit the cluster, or the batch its micro-batches.
    """
    tokens(workload)
    program = Program(workload, cluster, Layout(workload.split, cluster, inner), collectives)
    train = workload.mode == "train"
    stages = [Stage(program, index, found) for index, found in enumerate(modules or _stages(workload))]
    exchanges = [exchange(stage) if train else Exchange(stage) for stage in stages]
    builder = _Builder(stages, exchanges, tensor)
    for step in range(warmup + steps):
        program.graph.step = step
        if all(each.repeats for each in exchanges):
            builder.repeat()
        else:
            builder.step()
        if not step:
            # All steps are of about one size: better refused now than after minutes of planning.
            program.graph.room(len(program.graph) * (warmup + steps - 1))
    layout = program.layout
    return Plan(merged(program.graph), layout.simulated, warmup, steps, dict(memory or {}), layout.stands_for)


class _Builder:
    """Adds one step after the other."""

    def __init__(self, stages: Sequence[Stage], exchanges: Sequence[Exchange], tensor: TensorSchedule) -> None:
        self.stages, self.exchanges, self.tensor = stages, exchanges, tensor
        self.workload, self.graph = stages[0].workload, stages[0].graph
        self.began = 0
        self.outputs: dict[int, Event] = {}
        """What the last step's micro-batches ended with: a decoding step's input."""

    def step(self) -> None:
        """Add a step: stages take turns as what they wait for has been added."""
        self.began = len(self.graph)
        turns = [self._turns(stage.index) for stage in self.stages]
        arrived: dict[tuple[str, int, int], Event] = self._inputs()
        while any(turns):
            for stage in self.stages:
                mine = turns[stage.index]
                while mine and (mine[0].phase, mine[0].micro, stage.index) in arrived:
                    turn = mine.pop(0)
                    done = self._pass(stage, turn, arrived.pop((turn.phase, turn.micro, stage.index)))
                    self._hand_on(stage, turn, done, arrived)
                    if not mine:
                        self._finish(stage, done)

    def repeat(self) -> None:
        """Add the step before once more, much quicker than planning it anew."""
        tasks, step = self.graph.tasks, self.graph.step
        size = len(tasks) - self.began
        again = [
            task._replace(step=step, after=tuple([each + size for each in task.after])) for task in tasks[self.began :]
        ]
        tasks += again
        self.began += size

    def _turns(self, stage: int) -> list[Turn]:
        if self.workload.mode != "train":
            return forward_only(self.workload.micro_batches)
        return one_forward_one_backward(stage, len(self.stages), self.workload.micro_batches)

    def _inputs(self) -> dict[tuple[str, int, int], Event]:
        decode = self.workload.mode == "decode"
        micros = range(self.workload.micro_batches)
        return {("forward", micro, 0): self.outputs.get(micro, NOTHING) if decode else NOTHING for micro in micros}

    def _pass(self, stage: Stage, turn: Turn, after: Event) -> Event:
        last = turn.micro == self.workload.micro_batches - 1
        run = Pass(stage, self.exchanges[stage.index], turn.phase, last)
        run.exchange.begin(run)
        return self.tensor.lay(run, after)

    def _hand_on(self, stage: Stage, turn: Turn, done: Event, arrived: dict[tuple[str, int, int], Event]) -> None:
        forward = turn.phase == "forward"
        target = stage.index + (1 if forward else -1)
        if 0 <= target < len(self.stages):
            edge = stage.modules[-1] if forward else stage.modules[0]
            split = self.workload.split
            count = edge.activation / (split.tp if split.sequence else 1)
            name = "send activations" if forward else "send gradients"
            arrived[turn.phase, turn.micro, target] = stage.hand_on(self.stages[target], name, count, done)
        elif forward:
            self.outputs[turn.micro] = done
            arrived["backward", turn.micro, stage.index] = done

    def _finish(self, stage: Stage, done: Event) -> None:
        if self.workload.mode == "train":
            self.exchanges[stage.index].finish(done)


def _stages(workload: Workload) -> Sequence[Sequence[Module]]:
    from densing.efficiency.simulation import stages

    return stages(workload)
