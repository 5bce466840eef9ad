"""Two ranks over gloo whose overlap is known by construction; started with torchrun.

``overlapped``: an all-reduce runs on gloo's thread while this thread multiplies matrices until it has ended.
``blocking``: matrices first, then an all-reduce this thread waits for, so that nothing is computed meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from densing.efficiency.traces.recording import record

STEPS = 3
ELEMENTS = 1 << 21
# Products long beside what a busy machine takes between two of them.
WIDTH = 768


def overlapped(gradient: torch.Tensor, matrix: torch.Tensor) -> None:
    """Communicate and compute at the same time."""
    work = dist.all_reduce(gradient, async_op=True)
    while not work.is_completed():
        torch.mm(matrix, matrix)
    work.wait()


def blocking(gradient: torch.Tensor, matrix: torch.Tensor) -> None:
    """Compute, then communicate."""
    for _ in range(4):
        torch.mm(matrix, matrix)
    dist.all_reduce(gradient)


def main(out: Path) -> None:
    """Record both kinds of step, each into a folder of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gradient, matrix = torch.ones(ELEMENTS), torch.rand(WIDTH, WIDTH)
    for work in (overlapped, blocking):
        dist.barrier()
        with record(out / work.__name__, wait=1, warmup=1, active=STEPS) as step:
            for _ in range(STEPS + 2):
                work(gradient, matrix)
                step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
