"""Local SGD: replicas train alone and average their parameters now and then."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from densing.techniques.planner.events import Event
from densing.techniques.planner.exchange import ExchangeMaker
from densing.techniques.planner.rounds import PIECE, TAU, Local, Rounds
from densing.techniques.protocol import Knob


class Averaged(Rounds):
    """A blocking average of the parameters at the end of a round."""

    def finish(self, done: Event) -> None:
        """Update; at a round's end the next step waits for the average."""
        updated = self.update(done)
        if self.ends:
            self.gate = self.average(updated, self.bucket_mb)


class LocalSgd(Local):
    """Blocking parameter averages."""

    name = "local-sgd"
    paper = "Stich, ICLR 2019, arXiv 1805.09767"
    role = "baseline"
    summary = "replicas train alone for tau steps, then wait for the average of their parameters"
    knobs: tuple[Knob, ...] = (TAU, PIECE)
    plan_only = ("bucket_mb",)
    changes_loss = "replicas train apart between averages"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return blocking averages."""
        return partial(Averaged, tau=knobs["tau"], bucket_mb=knobs["bucket_mb"])


LOCAL_SGD = LocalSgd()
