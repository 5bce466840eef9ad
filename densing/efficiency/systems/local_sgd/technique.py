"""The plans of local SGD and SlowMo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from densing.efficiency.systems.planner import CODEC, PIECE, TAU, OuterLocal
from densing.efficiency.systems.registry import Knob, above_zero, number

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method


class LocalSgd(OuterLocal):
    """Blocking parameter averages."""

    name = "local-sgd"
    paper = "Stich, ICLR 2019, arXiv 1805.09767"
    role = "baseline"
    summary = "replicas train independently for tau steps, then average their parameters and wait for it"
    knobs: tuple[Knob, ...] = (TAU, *CODEC, PIECE)
    changes_loss = "replicas drift apart between averages"

    def options(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return that averages replace parameters."""
        return {"steps": False}

    def wrapper(self) -> Callable[..., Method]:
        """Return the optimizer that averages every ``tau`` steps."""
        from densing.efficiency.systems.local_sgd.run import LocalSGD

        return LocalSGD


LOCAL_SGD = LocalSgd()


class SlowMo(OuterLocal):
    """Blocking averages with outer momentum."""

    name = "slowmo"
    paper = "Wang et al., ICLR 2020, arXiv 1910.00643"
    role = "baseline"
    summary = "tau local steps, a blocking average of the parameters, then an outer momentum step on the change"
    knobs: tuple[Knob, ...] = (
        TAU,
        Knob("slow_lr", 1.0, "step size of the outer update", above_zero, (0.25, 2.0)),
        Knob("slow_momentum", 0.5, "momentum of the outer update, below 1", number(0, 0.9999), (0.0, 0.95)),
        *CODEC,
        PIECE,
    )
    changes_loss = "replicas drift apart between averages, each followed by an outer momentum step"

    def remembered(self, knobs: Mapping[str, Any]) -> float:
        """Return old parameters and momentum."""
        return 2

    def wrapper(self) -> Callable[..., Method]:
        """Return the optimizer with slow momentum."""
        from densing.efficiency.systems.local_sgd.run import SlowMo

        return SlowMo


SLOWMO = SlowMo()
