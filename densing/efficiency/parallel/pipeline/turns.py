"""The turns of a pipeline's stages; plans and runs take the same."""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """A pass of one micro-batch."""

    phase: str
    micro: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Turn]:
    """Return a stage's turns: forward passes until the pipeline is full, then in turn, then the backward passes left.

    With one stage this is gradient accumulation. Source: Narayanan et al., SC 2021, arXiv 2104.04473, section 2.2
    (PipeDream-Flush; recalled).

    Examples
    --------
    >>> [f"{turn.phase[0]}{turn.micro}" for turn in one_forward_one_backward(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = min(stages - 1 - stage, micro_batches)
    turns = [Turn("forward", micro) for micro in range(ahead)]
    for micro in range(micro_batches - ahead):
        turns += [Turn("forward", micro + ahead), Turn("backward", micro)]
    return turns + [Turn("backward", micro) for micro in range(micro_batches - ahead, micro_batches)]


def forward_only(micro_batches: int) -> list[Turn]:
    """Return the turns of inference.

    Examples
    --------
    >>> forward_only(2)
    [Turn(phase='forward', micro=0), Turn(phase='forward', micro=1)]
    """
    return [Turn("forward", micro) for micro in range(micro_batches)]
