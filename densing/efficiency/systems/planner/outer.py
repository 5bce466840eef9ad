"""The plan of rounds: what is exchanged at their end, when it arrives, and what is done with it then."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from densing.efficiency.simulation import Module, Workload, held_modules, sizes, tensor_shapes
from densing.efficiency.systems.planner.base import STATE, Local, Rounds, parameters_of
from densing.efficiency.systems.planner.exchange import STREAM, ExchangeMaker
from densing.efficiency.systems.planner.stage import FULL_BYTES, NOTHING, Event, Stage, join
from densing.efficiency.systems.registry import Kind, Knob, above_zero, choice, number

if TYPE_CHECKING:
    from densing.efficiency.parallel import Codec, Method, Replica

SHARE = Kind(
    lambda text: number(0, 1).check(above_zero.parse(text)),
    lambda value: number(0, 1).check(above_zero.check(value)),
)
"""Kind of a share: above 0, at most 1."""
CODEC: tuple[Knob, ...] = (
    Knob(
        "codec",
        "none",
        "what a replica sends of its change in a round: half (16 bits), int8 (a byte an element), topk (the largest "
        "entries), the rest being added to the next; none: all parameters in full precision",
        choice(("none", "half", "int8", "topk")),
    ),
    Knob("share", 0.1, "of codec topk: share of a tensor's entries that is sent, above 0", SHARE),
)
FLOPS = 5.0
"""Of a fast transform, times n log2 n. Source: Cooley and Tukey's radix-2 count (recalled)."""


class Wire(NamedTuple):
    """What a codec makes of differences, as a plan needs it.

    Attributes
    ----------
    weigh : callable
        Bytes of a tensor's packet by its elements.
    adds : bool
        Whether packets are summed on the way; otherwise all are gathered.
    encode, decode : float
        Passes over memory, of encoding and of decoding a packet.
    transform : bool
        Whether each way goes through a cosine transform.
    """

    weigh: Callable[[int], int]
    adds: bool = False
    encode: float = 0.0
    decode: float = 0.0
    transform: bool = False

    def packet_bytes(self, workload: Workload, modules: Sequence[Module]) -> int:
        """Return the bytes of a replica's packets; small tensors are sent as they are."""
        shapes = chain.from_iterable(tensor_shapes(workload, module) for module in modules)
        counts = [math.prod(shape) for shape in shapes]
        return sum(FULL_BYTES * n if n < sizes.DENSE_BELOW else self.weigh(n) for n in counts)

    def held(self, workload: Workload) -> int:
        """Return the bytes of packets that a replica holds: its own, and of gathered ones all, and their padding."""
        packets = max(self.packet_bytes(workload, modules) for modules in held_modules(workload))
        return packets if self.adds else packets * (2 + workload.split.dp)


def wire_of(codec: str, share: float = 1.0) -> Wire:
    """Return what a codec of :data:`CODEC` makes of differences."""
    if codec == "topk":
        passes = sizes.encode_passes(share), sizes.decode_passes(share)
        return Wire(lambda count: sizes.sparse_bytes(count, sizes.kept(count, share)), False, *passes)
    weigh = {"half": lambda count: 2 * count, "int8": lambda count: FULL_BYTES + count}[codec]
    return Wire(weigh, False, *sizes.WHOLE_PASSES[codec])


def codec_of(codec: str, share: float) -> Codec | None:
    """Return a codec of :data:`CODEC`, for a real run."""
    from densing.efficiency.parallel import Half, Int8, TopK

    return {"none": None, "half": Half(), "int8": Int8(), "topk": TopK(share)}[codec]


class Outer(Rounds):
    """The exchange at the end of a round, as :class:`densing.efficiency.parallel.Outer` makes it.

    Within inner groups, if any, gradients are averaged in one piece before every update.

    Parameters
    ----------
    stage, tau, bucket_mb
        See :class:`~densing.efficiency.systems.planner.Rounds`.
    fragments : int
        Equal parts that are exchanged in turn.
    delay : int or "round"
        Steps for which a mean travels.
    steps : bool
        Whether what arrives takes an outer step; otherwise it replaces the parameters.
    wire : Wire, optional
        Of differences; None where parameters are averaged.
    by_steps : bool
        Whether a packet says how many steps it is of.
    gap : bool
        Whether a number more travels.
    size : int
        Bytes of an averaged parameter.
    """

    def __init__(
        self,
        stage: Stage,
        tau: int,
        *,
        fragments: int = 1,
        delay: int | Literal["round"] = 0,
        steps: bool = True,
        wire: Wire | None = None,
        by_steps: bool = False,
        gap: bool = False,
        bucket_mb: float = 25.0,
        size: int = FULL_BYTES,
    ) -> None:
        super().__init__(stage, tau // fragments, bucket_mb)
        self.share, self.delay, self.steps, self.wire = 1 / fragments, delay, steps, wire
        self.by_steps, self.beside, self.size = by_steps, int(gap), size
        self.flying: Event = NOTHING
        """The mean under way."""

    @property
    def repeats(self) -> bool:
        """Whether neither this step nor the two before begin or end an exchange."""
        step = self.stage.graph.step
        return not any(self._ends(each) or self._due(each) for each in (step, step - 1, step - 2))

    def _due(self, step: int) -> bool:
        return bool(self.delay) and step >= self.tau and (step + 1) % self.tau == self.delay

    def finish(self, done: Event) -> None:
        """Update; apply what arrives, and send off what is next."""
        stage = self.stage
        if stage.size("inner") > 1:
            count = float(FULL_BYTES * (stage.parameters + 1))
            summed = stage.collective("all_reduce gradients", "all_reduce", count, "inner", self.copy(done), STREAM)
            done = self.copy(summed)
        done = self.update(done)
        ends = self.ends
        # One buffer: what travelled is applied before the parameters are put into it once more.
        if self.flying and (self._due(stage.graph.step) or (ends and self.delay == "round")):
            done, self.flying = self._land(join(done, self.flying)), NOTHING
        if not ends:
            return
        sent = self._send(self.copy(done, self.share))
        if self.delay:
            self.flying = sent
        else:
            self._land(sent)

    def _send(self, done: Event) -> Event:
        stage, wire = self.stage, self.wire
        if wire is None:
            return self.average(done, self.bucket_mb, STATE + self.beside, self.size * self.share)
        ranks, packets = stage.size("outer"), wire.packet_bytes(stage.workload, stage.modules) * self.share
        done = self._coded("encode", wire.encode, 1, done)
        if wire.adds:
            count = float(packets + FULL_BYTES * (ranks + STATE))
            return stage.collective("all_reduce parameters", "all_reduce", count, "outer", done, STREAM)
        # What ends a round is said beside; then lengths, if anybody waits, and packets as long as the longest.
        done = stage.collective("all_reduce steps", "all_reduce", float(FULL_BYTES * STATE), "outer", done, STREAM)
        rows = [("packets", packets + FULL_BYTES * (1 + self.by_steps))]
        for name, each in rows if self.delay else [("lengths", sizes.LENGTH_BYTES), *rows]:
            done = stage.collective(f"all_gather {name}", "all_gather", float(ranks * each), "outer", done, STREAM)
        return done

    def _land(self, done: Event) -> Event:
        wire = self.wire
        if wire is None:
            done = self.hand_on(done, self.beside, self.size)
        elif wire.adds:
            done = self._coded("decode", wire.decode, 1, done)
        else:
            done = self._coded("decode", wire.decode + sizes.ADD_PASSES, self.stage.size("outer"), done)
        return self.outer_update(done, self.share) if self.steps else self.copy(done, self.share)

    def _coded(self, name: str, passes: float, times: int, done: Event) -> Event:
        """Add the work of a codec on so many packets."""
        count = self.stage.parameters * self.share
        moved = FULL_BYTES * count * passes * times
        transform = self.wire is not None and self.wire.transform and count > 1
        flops = times * FLOPS * count * math.log2(count) if transform else 0.0
        if not flops and not moved:
            return done
        device = self.stage.device
        # A processor's measured products say nothing of transforms: the roofline does.
        return self.stage.compute(
            name, max(flops / (device.flops * device.efficiency), device.seconds(0.0, moved)), done
        )


class OuterLocal(Local):
    """A technique of rounds whose differences may travel through a codec."""

    plan_only: ClassVar[tuple[str, ...]] = ("bucket_mb",)

    def remembered(self, knobs: Mapping[str, Any]) -> float:
        """Return the vectors, as long as all parameters, of anchors and of what the outer step remembers."""
        return 0

    def wire(self, knobs: Mapping[str, Any]) -> Wire | None:
        """Return what the codec makes of differences; None where parameters are averaged."""
        return None if knobs["codec"] == "none" else wire_of(knobs["codec"], knobs["share"])

    def options(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the plan's :class:`Outer` takes beside tau, pieces and codec."""
        return {}

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return the exchange at the end of rounds."""
        own = self.options(knobs)
        return partial(Outer, tau=knobs["tau"], bucket_mb=knobs["bucket_mb"], wire=self.wire(knobs), **own)

    def method(self, replica: Replica, *, codec: str = "none", share: float = 0.1, **knobs: Any) -> Method:
        """Return the optimizer that exchanges at the end of rounds."""
        return replica.wrap(self.wrapper(), codec=codec_of(codec, share), **knobs)

    @abstractmethod
    def wrapper(self) -> Callable[..., Method]:
        """Return the class of a real run."""

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return in full precision what is averaged; or with a codec anchor, difference and residual, and packets."""
        wire, remembered = self.wire(knobs), self.remembered(knobs)
        vectors = 1 / knobs.get("fragments", 1) + remembered if wire is None else 2 + max(remembered, 1)
        return parameters_of(workload) * vectors * FULL_BYTES + (0 if wire is None else wire.held(workload))
