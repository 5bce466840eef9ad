"""How long a rank computes: a module, a part of one, the optimizer's update."""

from __future__ import annotations

from typing import NamedTuple

from densing.core import InputError
from densing.efficiency.simulation import Device, Module, Workload, adam_bytes

FULL_BYTES = 4
"""Of a parameter in full precision: master copy, momentum, variance, anchor."""


class Piece(NamedTuple):
    """Part of the tokens of every sequence, from a share of it to a share."""

    start: float = 0.0
    stop: float = 1.0

    @property
    def share(self) -> float:
        """Of the tokens."""
        return self.stop - self.start


WHOLE = Piece()


def tokens(workload: Workload) -> float:
    """Return the tokens of one micro-batch.

    Raises
    ------
    InputError
        When the batch cannot be divided so.

    Examples
    --------
    >>> from densing.efficiency.simulation.workload.workload import Transformer
    >>> toy = Transformer("toy", 2, 8, 2, 2, 4, 16, 64)
    >>> tokens(Workload(toy, batch=4, sequence=16, micro_batches=2)), tokens(Workload(toy, "decode", batch=4))
    (32.0, 4.0)
    """
    if workload.micro_batches < 1 or workload.batch < 1 or workload.batch % workload.micro_batches:
        raise InputError(
            f"batch {workload.batch} in {workload.micro_batches} micro-batches: they must be whole sequences; choose a "
            "divisor of the batch"
        )
    per_sequence = 1 if workload.mode == "decode" else workload.sequence
    return workload.batch / workload.micro_batches * per_sequence


def module_seconds(workload: Workload, device: Device, module: Module, phase: str, piece: Piece = WHOLE) -> float:
    """Return what a pass over a module takes on one rank.

    A piece of the tokens moves all weights, and of the scores of causal attention it computes the square's difference:
    later tokens attend to more.
    """
    backward = phase == "backward"
    flops = module.backward_flops if backward else module.flops
    moved = module.backward_moved if backward else module.moved
    if piece == WHOLE:
        return device.seconds(flops, moved)
    square = _square_share(workload, module)
    squares = piece.stop**2 - piece.start**2
    # Backward, weights are read for the gradient of the input, and their own gradient is written.
    weights = min(moved, module.parameters * workload.dtype_bytes * (2 if backward else 1))
    return device.seconds(
        flops * ((1 - square) * piece.share + square * squares), weights + (moved - weights) * piece.share
    )


def _square_share(workload: Workload, module: Module) -> float:
    """Share of an attention's operations that grows with the square of the sequence."""
    if module.name != "attention" or workload.model.linear_attention or not module.flops:
        return 0.0
    projections = 2 * tokens(workload) * module.parameters
    return max(0.0, 1 - projections / module.flops)


def update_seconds(device: Device, parameters: float, dtype_bytes: int) -> float:
    """Return what Adam's update takes: gradient and weight are moved, momentum, variance and any master copy twice."""
    return device.seconds(0.0, parameters * (2 * dtype_bytes + 2 * adam_bytes(dtype_bytes)))


def outer_seconds(device: Device, parameters: float, dtype_bytes: int) -> float:
    """Return what an outer momentum step takes: average and weight, and anchor and momentum twice."""
    return device.seconds(0.0, parameters * (FULL_BYTES + dtype_bytes + 2 * 2 * FULL_BYTES))


def copy_seconds(device: Device, parameters: float, dtype_bytes: int) -> float:
    """Return what a copy of all parameters to or from full precision takes."""
    return device.seconds(0.0, parameters * (dtype_bytes + FULL_BYTES))
