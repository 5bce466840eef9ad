"""The turns of a pipeline's stages; plans and runs take the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Turn(NamedTuple):
    """A pass of one micro-batch through the stage of a device, or through one of its interleaved stages."""

    phase: str
    micro: int
    chunk: int = 0


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Turn]:
    """Return a stage's turns: forward passes until the pipeline is full, then in turn, then the backward passes left.

    With one stage this is gradient accumulation. Source: Narayanan et al., SC 2021, arXiv 2104.04473, section 2.2
    (PipeDream-Flush; recalled).

    Examples
    --------
    >>> [f"{turn.phase[0]}{turn.micro}" for turn in one_forward_one_backward(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    return _ahead(Turn, stages - 1 - stage, micro_batches)


def _ahead(turn: Callable[[str, int], Turn], ahead: int, total: int) -> list[Turn]:
    """Return forward passes until there are so many ahead, then both in turn, then the backward passes left."""
    ahead = min(ahead, total)
    turns = [turn("forward", number) for number in range(ahead)]
    for number in range(total - ahead):
        turns += [turn("forward", number + ahead), turn("backward", number)]
    return turns + [turn("backward", number) for number in range(total - ahead, total)]


def interleaved(device: int, devices: int, chunks: int, micro_batches: int) -> list[Turn]:
    """Return a device's turns where it holds several stages, ``chunks`` of them: micro-batches pass in groups.

    Of each group of ``devices`` micro-batches all go through a device's first stage, then all through its next one.
    The pipeline is full after ``2 (devices - device - 1) + (chunks - 1) devices`` turns. Source: Narayanan et al., SC
    2021, arXiv 2104.04473, section 2.2; Megatron-LM's ``forward_backward_pipelining_with_interleaving`` (recalled).

    Parameters
    ----------
    device, devices, chunks, micro_batches : int
        Micro-batches are a multiple of the devices.

    Examples
    --------
    >>> [f"{turn.phase[0]}{turn.micro}.{turn.chunk}" for turn in interleaved(1, 2, 2, 2)]
    ['f0.0', 'f1.0', 'f0.1', 'b0.1', 'f1.1', 'b1.1', 'b0.0', 'b1.0']
    """
    if chunks == 1:
        return one_forward_one_backward(device, devices, micro_batches)

    def turn(phase: str, number: int) -> Turn:
        group, place = divmod(number, devices * chunks)
        chunk, micro = divmod(place, devices)
        return Turn(phase, group * devices + micro, chunk if phase == "forward" else chunks - 1 - chunk)

    return _ahead(turn, 2 * (devices - device - 1) + (chunks - 1) * devices, micro_batches * chunks)


def forward_only(micro_batches: int) -> list[Turn]:
    """Return the turns of inference.

    Examples
    --------
    >>> forward_only(2)
    [Turn(phase='forward', micro=0, chunk=0), Turn(phase='forward', micro=1, chunk=0)]
    """
    return [Turn("forward", micro) for micro in range(micro_batches)]
