"""In which order a rank runs its modules and adds their outputs: the schedules of tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from densing.efficiency.parallel.distributed import Block, Wiring, sublayers
from densing.efficiency.parallel.tensor_parallel.tape import (
    Call,
    Residual,
    Start,
    Tape,
    undivided,
)


class Schedule:
    """Every sum over the group is waited for where it is started, as in Megatron-LM; the others are subclasses of it.

    Attributes
    ----------
    wiring : Wiring
        What the model's modules read.
    ladder_layers : int or None
        Of the wiring ``ladder``: the last so many layers; None: all.
    """

    wiring: Wiring = "standard"
    ladder_layers: int | None = None

    def parts(self, tokens: int) -> list[int]:
        """Return the tokens of each part of the sequence.

        Raises
        ------
        InputError
            When the sequence cannot be split.

        Examples
        --------
        >>> Schedule().parts(8)
        [8]
        """
        return [tokens]

    def start(self, module: Any) -> Start:
        """Return what starts a module, its sum with it."""
        return undivided(module)

    def run(self, tape: Tape, blocks: Iterable[Block], streams: list[Residual]) -> list[Residual]:
        """Run all blocks on the streams' beginnings (one per part of the sequence), and return the streams' ends."""
        return [in_order(tape, blocks, streams[0], self.start)]


def in_order(tape: Tape, blocks: Iterable[Block], residual: Residual, start: Callable[[Any], Start]) -> Residual:
    """Run module after module; a ladder's output is added only after the module that follows it was started.

    Source: Zhang et al., arXiv 2501.06589, algorithm of the ladder block.
    """
    late: list[Call] = []
    for block in blocks:
        for norm, module in sublayers(block):
            if len(late) > 1:
                residual = tape.add(residual, late.pop(0))
            call = tape.call(norm, start(module), residual)
            if block.wiring == "ladder":
                late.append(call)
            else:
                residual = tape.add(residual, call)
    for call in late:
        residual = tape.add(residual, call)
    return residual
