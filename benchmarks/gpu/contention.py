"""Stage 4: what a product pays beside a copy (kappa), and how much of CO2's exchange hides behind a step's compute."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.gpu.record import Session
from benchmarks.gpu.timing import Marks, on, seconds, stream, synchronize

WIDTHS = (2048, 4096, 8192)
ROUNDS = 12
PARAMETERS = (10_000_000, 100_000_000, 1_000_000_000)
STEPS_S = (0.02, 0.1, 0.5)
"""Compute of a round that hides an exchange, by size."""


def run(session: Session) -> None:
    """Measure both."""
    for width in session.size((128,), WIDTHS):
        beside_copy(session, width)
    for parameters, compute_s in zip(session.size((1000,), PARAMETERS), session.size((1e-3,), STEPS_S), strict=True):
        exchange(session, parameters, compute_s)


def together(session: Session, first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float, float]:
    """Return the median seconds of two works begun at once on streams of their own, and of both."""
    device = session.torch_device
    streams = stream(device), stream(device)
    rounds = []
    for _ in range(session.size(2, ROUNDS)):
        synchronize(device)
        marks = Marks(device)
        for work, name, one in ((first, "first", streams[0]), (second, "second", streams[1])):
            with on(one), marks.piece(name, one):
                work()
        (_, begin, end), (_, begin_2, end_2) = marks.intervals()
        rounds.append((end - begin, end_2 - begin_2, max(end, end_2) - min(begin, begin_2)))
    one, two, both = (statistics.median(column) / 1e9 for column in zip(*rounds, strict=True))
    return one, two, both


def beside_copy(session: Session, width: int) -> None:
    """A product beside a copy within the device, which takes at least as long: both lose."""
    device, dtype = session.torch_device, session.size(torch.float32, torch.bfloat16)
    left = torch.randn(width, width, device=device, dtype=dtype)
    source = torch.empty(session.size(1 << 16, 1 << 28), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    many = 8

    def products() -> None:
        for _ in range(many):
            left @ left

    product_s = seconds(products, device, session.size(2, 20)) / many
    copy_s = seconds(lambda: target.copy_(source), device, session.size(2, 20))
    # Enough to lie beside all products, however slow these become.
    copies = max(1, round(2 * many * product_s / copy_s))

    def moves() -> None:
        for _ in range(copies):
            target.copy_(source)

    product_beside, moves_beside, both = together(session, products, moves)
    session.add(
        "kappa", width=width, product_us=1e6 * product_s, beside_us=1e6 * product_beside / many,
        kappa=product_beside / many / product_s - 1, copy_gb_s=2 * source.numel() / copy_s / 1e9,
        kappa_comm=moves_beside / copies / copy_s - 1, both_us=1e6 * both,
    )  # fmt: skip


def exchange(session: Session, parameters: int, compute_s: float) -> None:
    """CO2's exchange as a device has it: a model's change to the host and the mean back, beside the next round."""
    device = session.torch_device
    change = torch.empty(parameters, device=device)
    host = torch.empty(parameters, pin_memory=device != "cpu")
    n = session.size(64, 4096)
    left = torch.randn(n, n, device=device, dtype=session.size(torch.float32, torch.bfloat16))
    times = max(1, round(compute_s / seconds(lambda: left @ left, device, session.size(2, 20))))

    def compute() -> None:
        for _ in range(times):
            left @ left

    def move() -> None:
        host.copy_(change, non_blocking=True)
        change.copy_(host, non_blocking=True)

    alone, moved = seconds(compute, device, session.size(2, 5)), seconds(move, device, session.size(2, 5))
    # The few calls of the exchange first: a queue full of products would hold them back.
    _, _, both = together(session, move, compute)
    session.add(
        "exchange", parameters=parameters, compute_ms=1e3 * alone, exchange_ms=1e3 * moved, both_ms=1e3 * both,
        hidden=(alone + moved - both) / min(alone, moved), gb_s=8 * parameters / moved / 1e9,
    )  # fmt: skip
