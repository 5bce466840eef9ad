"""Measure the link and the processor of real runs: what ``densing calibrate --link`` starts on every rank."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from densing.efficiency.parallel.distributed import comm, folder
from densing.efficiency.parallel.distributed.lm import Decoder, initialise
from densing.efficiency.parallel.distributed.probe_modules import time_steps
from densing.efficiency.parallel.distributed.probed import FILE, Probed, Timed, Whole
from densing.efficiency.parallel.distributed.spec import RunEnv, RunRecord
from densing.efficiency.parallel.distributed.workload import workload_of
from densing.efficiency.simulation import Computation, Observation, modules

SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
MOST_S = 1.0
"""Once a message takes longer, no larger one is sent."""
RUN_S = 0.1
"""Short messages are repeated for about so long."""


def run(env: RunEnv) -> RunRecord:
    """Measure on this rank; rank 0 leaves ``OUT/probe.json``.

    ``spec.steps`` is how often each module is timed; ``spec.knobs["mode"]`` may be ``prefill``.
    """
    torch.manual_seed(env.rank)
    mode, repeats = str(env.spec.knobs.get("mode", "train")), max(env.spec.steps, 4)
    timed, whole = time_steps(env.spec.model, env.spec.batch, _cuts(env), mode, repeats)
    collectives = list(_collectives(env)) if env.world_size > 1 else []
    beside = list(_beside(env, collectives)) if env.world_size > 1 else []
    mine = {
        "collectives": collectives + [one for one in beside if isinstance(one, Observation)],
        "computations": [one for one in beside if isinstance(one, Computation)],
        "modules": timed,
        "whole": whole,
        "pipelined": _pipelined(env) if env.world_size > 1 else 0.0,
    }
    ranks: list[Any] = [mine]
    if env.world_size > 1:
        ranks = [None] * env.world_size
        dist.all_gather_object(ranks, mine)
    if env.rank == 0:
        folder.write_json(Path(env.spec.out) / FILE, _merged(env, ranks, mode).to_dict())
    step_s = whole.passes_s + whole.update_s
    return RunRecord("probe", env.rank, env.world_size, (), (step_s,), (0.0,), 0, 0.0, whole.parameters)


def _cuts(env: RunEnv) -> list[tuple[int, int]]:
    """Whole modules and their tensor-parallel parts, of whole and of half sequences."""
    shape, sequence = env.spec.model, env.spec.sequence
    shared = env.world_size > 1 and not shape.heads % env.world_size and not shape.ffn % env.world_size
    lengths = (sequence, sequence // 2) if sequence > 1 else (sequence,)
    return [(parts, tokens) for parts in ((1, env.world_size) if shared else (1,)) for tokens in lengths]


def _collectives(env: RunEnv) -> Iterator[Observation]:
    """All-reduces of rising size, one right after the other, until the next would take too long."""
    spec = env.spec
    activation = 4 * spec.batch * spec.sequence * spec.model.hidden
    weights = 4 * sum(module.parameters for module in modules(workload_of(spec.model, spec.batch, spec.sequence)))
    for size in sorted({*SIZES, activation // 2, activation, weights}):
        first = _agreed(_run_of(1, size))
        if first > MOST_S:
            return
        # A rank that comes to a short one late finds it done: only a run of them tells what one takes.
        many = min(max(int(RUN_S / first), 1), 32)
        took = [_run_of(many, size) for _ in range(3 if first * many > RUN_S else 5)]
        yield from (Observation("all_reduce", 4 * (size // 4), env.world_size, seconds) for seconds in took)


def _run_of(many: int, size: int, at_once: int = 1) -> float:
    """Seconds of each of so many all-reduces in a row, or of so many that are started together."""
    tensors = [torch.ones(size // 4) for _ in range(at_once)]
    dist.barrier()
    began = time.perf_counter()
    for _ in range(many):
        handles = [comm.all_reduce(tensor) for tensor in tensors]
        for handle, tensor in zip(handles, tensors, strict=True):
            handle.wait()
            tensor.fill_(1.0)
    return (time.perf_counter() - began) / many


def _pipelined(env: RunEnv) -> float:
    """Share of a short all-reduce in which a second one passes: 1 where two started together take no longer than one.

    Alone and together take turns, so that a machine that slows down slows both.
    """
    size = SIZES[0]
    many = min(max(int(RUN_S / _agreed(_run_of(1, size))), 1), 32)
    took = [(_run_of(many, size), _run_of(many, size, at_once=2)) for _ in range(7)]
    return min(max(2 - statistics.median(both / alone for alone, both in took), 0.0), 1.0)


def _all_reduce(size: int) -> comm.Handle:
    tensor = torch.ones(size // 4)
    dist.barrier()
    return comm.all_reduce(tensor)


def _agreed(seconds: float) -> float:
    view = torch.tensor([seconds], dtype=torch.float64)
    comm.broadcast(view).wait()
    return float(view)


def _beside(env: RunEnv, alone: list[Observation]) -> Iterator[Observation | Computation]:
    """The same work alone and beside an all-reduce; all-reduces beside work that goes on until they have ended."""
    model = Decoder(env.spec.model, env.spec.sequence)
    initialise(model, 0)
    tokens = torch.zeros(env.spec.batch, env.spec.sequence, dtype=torch.int64)
    size = max(one.count for one in alone)
    longest = min(one.seconds for one in alone if one.count == size)
    work = _piece_of(lambda: model(tokens).sum().backward(), _agreed(longest) / 2)
    for repeat in range(8):
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        if repeat:
            yield Computation(f"rank {env.rank}", took)
    for _ in range(6):
        handle = _all_reduce(int(size))
        began, pieces = time.perf_counter(), 0
        # From its beginning to its end: how much of a core a communication takes is not the same throughout.
        while not handle.done() or not pieces:
            work()
            pieces += 1
        took = time.perf_counter() - began
        handle.wait()
        seconds = handle.seconds or 0.0
        share = min(1.0, (handle.started + seconds - began) / took)
        yield Computation(f"rank {env.rank}", took / pieces, share)
        yield Observation("all_reduce", size, env.world_size, seconds, 1.0)


def _piece_of(step: Callable[[], Any], seconds: float) -> Callable[[], None]:
    """Return work that takes about so long: whole steps, or products of matrices where one step takes longer."""
    matrix = torch.rand(256, 256)
    pieces: list[Callable[[], Any]] = [step, lambda: torch.mm(matrix, matrix)]
    for piece in pieces:
        piece()
        began = time.perf_counter()
        piece()
        took = _agreed(time.perf_counter() - began)
        if took < seconds:
            break
    times = max(1, int(seconds / took))

    def work() -> None:
        for _ in range(times):
            piece()

    return work


def _merged(env: RunEnv, ranks: list[Any], mode: str) -> Probed:
    collectives = [
        min(same, key=lambda one: one.seconds) for same in zip(*(rank["collectives"] for rank in ranks), strict=True)
    ]
    means = []
    for same in zip(*(rank["modules"] for rank in ranks), strict=True):
        fields = same[0].to_dict() | {"seconds": statistics.fmean(one.seconds for one in same)}
        means.append(Timed.from_dict(fields))
    wholes = [rank["whole"] for rank in ranks]
    passes_s, update_s = (statistics.fmean(getattr(one, key) for one in wholes) for key in ("passes_s", "update_s"))
    whole = Whole(passes_s, update_s, wholes[0].parameters)
    own = [one for one in means if one.parts == 1 and one.tokens == env.spec.sequence]
    times = {"attention": env.spec.model.layers, "mlp": env.spec.model.layers}
    total = sum(one.seconds * times.get(one.name, 1) for one in own)
    computations = tuple(one for rank in ranks for one in rank["computations"])
    pipelined = statistics.fmean(rank["pipelined"] for rank in ranks)
    return Probed(tuple(collectives), computations, tuple(means), whole, total, mode, pipelined)
