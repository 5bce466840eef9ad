"""The plans of DCT and Top-K, and their claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from densing.efficiency.simulation import sizes, tensor_shapes
from densing.efficiency.systems.claims import Answer, Claim, recorded
from densing.efficiency.systems.planner import (
    FULL_BYTES,
    STREAM,
    DataParallelRun,
    Event,
    Exchange,
    ExchangeMaker,
    Replicated,
    Stage,
    parameters_of,
)
from densing.efficiency.systems.registry import Knob, number, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica
    from densing.efficiency.simulation import Workload


class Gathered(Exchange):
    """Sparse packets of all gradients, gathered by every replica once the backward pass is done.

    A ring would have to add sparse packets up, and what two ranks chose is not the same: so each gets all packets, and
    decodes as many as there are ranks.

    Parameters
    ----------
    stage : Stage
    share : float
        Of the entries, sent in a step.
    refresh : int
        Steps from one choice of the largest to the next.
    """

    def __init__(self, stage: Stage, share: float, refresh: int = 1) -> None:
        super().__init__(stage)
        self.share, self.refresh = share, refresh

    def finish(self, done: Event) -> None:
        """Encode, gather lengths and packets, decode, update."""
        stage, ranks = self.stage, self.stage.size("dp")
        moved = float(stage.workload.dtype_bytes * stage.parameters)
        done = self._move("encode", moved * sizes.encode_passes(self.share, self.refresh), done)
        for name, count in (("lengths", sizes.LENGTH_BYTES), ("packets", self.packet_bytes())):
            done = stage.collective(f"all_gather {name}", "all_gather", float(ranks * count), "dp", done, STREAM)
        self.update(self._move("decode", moved * ranks * (sizes.decode_passes(self.share) + sizes.ADD_PASSES), done))

    def packet_bytes(self) -> int:
        """Return what a rank sends in a step: of small tensors everything, in full precision."""
        workload, total = self.stage.workload, sizes.COUNT_BYTES
        for shape in chain.from_iterable(tensor_shapes(workload, module) for module in self.stage.modules):
            count = prod(shape)
            small = count < sizes.DENSE_BELOW
            total += FULL_BYTES * count if small else sizes.sparse_bytes(count, sizes.kept(count, self.share))
        return total


class Dct(DataParallelRun, Replicated):
    """Thresholds renewed now and then, with error feedback."""

    name = "dct"
    paper = "Gupta et al., KDD 2021, arXiv 2010.08899"
    summary = "sends gradient entries above a threshold renewed every few steps; the rest accumulates for later steps"
    knobs: tuple[Knob, ...] = (
        Knob("eta", 0.99, "share of the gradient held back each time the threshold is renewed", number(0, 0.99999)),
        Knob("refresh", 200, "steps between renewals of the threshold", whole(1)),
    )
    changes_loss = "most of a gradient is applied in later steps"
    not_available: ClassVar[tuple[str, ...]] = (
        "eta, the steps between renewals, and the tables of quality",
        "the rule that chooses activations of a sample between stages",
    )
    claims_in = __name__

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return gathered packets of the share that eta leaves; between renewals a run's own share drifts."""
        return partial(Gathered, share=1 - knobs["eta"], refresh=knobs["refresh"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer whose gradients travel above a threshold."""
        from densing.efficiency.systems.dct.run import DCT

        return replica.wrap(DCT, **knobs)

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return the residuals and the mean of what was sent, in full precision."""
        return 2 * parameters_of(workload) * FULL_BYTES


class TopK(Dct):
    """The largest entries, chosen anew in every step."""

    name = "topk"
    role = "baseline"
    paper = "Lin et al., ICLR 2018, arXiv 1712.01887"
    summary = "sends the largest gradient entries, chosen anew in every step; the rest accumulates for later steps"
    knobs: tuple[Knob, ...] = (
        Knob("share", 0.01, "share of the gradient that is sent", number(1e-6, 1)),
    )  # fmt: skip
    not_available = ()
    claims_in = ""

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return gathered packets of the share."""
        return partial(Gathered, share=knobs["share"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer whose gradients travel as their largest entries."""
        from densing.efficiency.systems.dct.run import TopKGradients

        return replica.wrap(TopKGradients, **knobs)


DCT, TOPK = Dct(), TopK()

ABSTRACT = "abstract of arXiv 2010.08899"
SETUP = "a production recommender"
FOLDS = (0.9, 0.97, 0.99, 0.995, 0.999)


def of_ladder(eta: float) -> str:
    """Return what a ladder of ours says of an eta between replicas."""
    found = recorded("less-to-send", f"dct:eta={eta:g}")
    return f"{found.value} on our ladder ({found.note})" if found.value else found.note


def least_eta(
    fold: float, share_of: Callable[[float], float], quality: Callable[[float], str] = lambda _: "not measured"
) -> Answer:
    """Return how many times fewer bytes the least eta of some leaves that reaches a fold."""
    for eta in FOLDS:
        reached = 1 / share_of(1 - eta)
        if reached >= fold * (1 - 1e-9):
            return Answer(reached, f"counted at eta = {eta:g}; quality there: {quality(eta)}")
    return Answer(None, f"no eta up to {FOLDS[-1]:g} saves as much")


def row_share(share: float) -> float:
    """Return the bytes both ways over those of dense activations: there with indices, back values alone."""
    return (sizes.sparse_share(share) + share) / 2


OTHER = (
    "we have neither the recommender nor its tables; compression only shortens exposed "
    "communication, so that was at least 37 % of their step"
)

CLAIMS: tuple[Claim, ...] = (
    Claim("DCT-1", "fewer bytes between replicas", SETUP, 100.0, "times", "first-hand", ABSTRACT,
          lambda _: least_eta(100, sizes.sparse_share, of_ladder), 0.01, grade="counted"),
    Claim("DCT-2", "fewer bytes between stages", SETUP, 20.0, "times", "first-hand", ABSTRACT,
          lambda _: least_eta(20, row_share), 0.25, grade="counted"),
    Claim("DCT-3", "renewing the threshold seldom, against choosing anew in every step", SETUP, "no loss", "",
          "first-hand", ABSTRACT, lambda _: recorded("dct-refresh", "dct:eta=0.99"), grade="measured",
          assumptions={
              f"renewed every {steps} steps": partial(recorded, "dct-refresh", f"dct:eta=0.99,refresh={steps}")
              for steps in (10, 100, 1000)
          }),
    Claim("DCT-4", "end-to-end time saved", SETUP, 0.37, "of a run", "first-hand", ABSTRACT,
          lambda _: Answer(None, OTHER)),
)  # fmt: skip
