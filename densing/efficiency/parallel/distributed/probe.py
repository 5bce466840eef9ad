"""Measure the link and the processor of real runs: what ``densing calibrate --link`` starts on every rank."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from densing.efficiency.parallel.distributed import comm, folder
from densing.efficiency.parallel.distributed.lm import Decoder, cross_entropy, initialise, sublayers
from densing.efficiency.parallel.distributed.results import PROBE_FILE, Probed, Timed, Whole
from densing.efficiency.parallel.distributed.spec import LmShape, RunEnv, RunRecord, workload_of
from densing.efficiency.simulation import Computation, Observation, modules

SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
MOST_S = 1.0
"""Time of a message, seconds, above which no larger one is sent."""
RUN_S = 0.1
"""Time, seconds, for which short messages are repeated."""


def run(env: RunEnv) -> RunRecord:
    """Measure on this rank; rank 0 leaves ``OUT/probe.json``.

    ``spec.steps`` is how often each module is timed; ``spec.knobs["mode"]`` may be ``prefill``.
    """
    torch.manual_seed(env.rank)
    mode, repeats = str(env.spec.knobs.get("mode", "train")), max(env.spec.steps, 4)
    # Whole modules and their tensor-parallel parts, of whole and of half sequences.
    shape, sequence = env.spec.model, env.spec.sequence
    shared = env.world_size > 1 and not shape.heads % env.world_size and not shape.ffn % env.world_size
    lengths = (sequence, sequence // 2) if sequence > 1 else (sequence,)
    cuts = [(parts, tokens) for parts in ((1, env.world_size) if shared else (1,)) for tokens in lengths]
    timed, whole = time_steps(shape, env.spec.batch, cuts, mode, repeats)
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
        folder.write_json(Path(env.spec.out) / PROBE_FILE, _merged(env, ranks, mode).to_dict())
    step_s = whole.passes_s + whole.update_s
    return RunRecord("probe", env.rank, env.world_size, (), (step_s,), (0.0,), 0, 0.0, whole.parameters)


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
        count = min(max(int(RUN_S / first), 1), 32)
        took = [_run_of(count, size) for _ in range(3 if first * count > RUN_S else 5)]
        yield from (Observation("all_reduce", 4 * (size // 4), env.world_size, seconds) for seconds in took)


def _run_of(count: int, size: int, at_once: int = 1) -> float:
    """Return the seconds of each of several all-reduces, in a row or started together."""
    tensors = [torch.ones(size // 4) for _ in range(at_once)]
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        handles = [comm.all_reduce(tensor) for tensor in tensors]
        for handle, tensor in zip(handles, tensors, strict=True):
            handle.wait()
            tensor.fill_(1.0)
    return (time.perf_counter() - began) / count


def _pipelined(env: RunEnv) -> float:
    """Return the overlap of two short all-reduces: 1 if two started together take no longer than one.

    Alone and together take turns, so that a machine that slows down slows both.
    """
    size = SIZES[0]
    count = min(max(int(RUN_S / _agreed(_run_of(1, size))), 1), 32)
    took = [(_run_of(count, size), _run_of(count, size, at_once=2)) for _ in range(7)]
    return min(max(2 - statistics.median(both / single for single, both in took), 0.0), 1.0)


def _agreed(seconds: float) -> float:
    view = torch.tensor([seconds], dtype=torch.float64)
    comm.broadcast(view).wait()
    return float(view)


def _beside(env: RunEnv, alone: list[Observation]) -> Iterator[Observation | Computation]:
    """Time the same work alone and beside an all-reduce, and all-reduces beside continuous work."""
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
        tensor = torch.ones(int(size) // 4)
        dist.barrier()
        handle = comm.all_reduce(tensor)
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
    """Return work of about that duration: whole steps, or matrix products if one step takes longer."""
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
    step = Whole(passes_s, update_s, wholes[0].parameters)
    own = [one for one in means if one.parts == 1 and one.tokens == env.spec.sequence]
    times = {"attention": env.spec.model.layers, "mlp": env.spec.model.layers}
    total = sum(one.seconds * times.get(one.name, 1) for one in own)
    computations = tuple(one for rank in ranks for one in rank["computations"])
    pipelined = statistics.fmean(rank["pipelined"] for rank in ranks)
    return Probed(tuple(collectives), computations, tuple(means), step, total, mode, pipelined)


def time_steps(
    shape: LmShape, batch: int, cuts: Sequence[tuple[int, int]], mode: str, repeats: int
) -> tuple[tuple[Timed, ...], Whole]:
    """Time every kind of module in its place in a step, and the whole step; the median over the repeats.

    All take turns, so that a machine that slows down slows all of them.

    Parameters
    ----------
    shape, batch
        Of the run.
    cuts : sequence of (int, int)
        Tensor-parallel ranks, and tokens of a sequence; the first is the run's own.
    mode : {"train", "prefill"}
        ``prefill``: forward only, without gradients.
    repeats : int
        The first quarter does not count.
    """
    rows = [_Cut(shape, batch, parts, tokens, mode == "train") for parts, tokens in cuts]
    step = _Step(shape, batch, cuts[0][1])
    for repeat in range(repeats):
        counts = repeat >= repeats // 4
        for row in rows:
            row.run(counts)
        step.run(counts)
    return tuple(timed for row in rows for timed in row.result()), step.result()


class _Cut:
    """Modules of one cut of the model, timed one by one."""

    def __init__(self, shape: LmShape, batch: int, parts: int, tokens: int, train: bool) -> None:
        self.parts, self.tokens, self.train = parts, tokens, train
        self.model = _model(shape, tokens, parts)
        self.input = _tokens(shape, batch, tokens)
        self.workload = workload_of(shape, batch, tokens, tp=parts)
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)

    def run(self, counts: bool) -> None:
        """Take a step."""
        for key, values in time_modules(self.model, self.input, self.train).items():
            if counts:
                self.seconds[key].append(statistics.fmean(values))

    def result(self) -> list[Timed]:
        """Return the medians."""
        counted: dict[tuple[str, str], tuple[float, float]] = {}
        for module in modules(self.workload):
            counted[module.name, "forward"] = (module.flops, module.moved)
            counted[module.name, "backward"] = (module.backward_flops, module.backward_moved)
        return [
            Timed(name, phase, self.parts, self.tokens, *counted[name, phase], statistics.median(values))
            for (name, phase), values in self.seconds.items()
        ]


class _Step:
    """Whole steps of training."""

    def __init__(self, shape: LmShape, batch: int, tokens: int) -> None:
        self.model, self.input = _model(shape, tokens), _tokens(shape, batch, tokens)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.passes: list[float] = []
        self.updates: list[float] = []

    def run(self, counts: bool) -> None:
        """Take a step."""
        began = time.perf_counter()
        logits = self.model(self.input[:, :-1])
        cross_entropy(logits, self.input[:, 1:]).backward()
        between = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if counts:
            self.passes.append(between - began)
            self.updates.append(time.perf_counter() - between)

    def result(self) -> Whole:
        """Return the medians."""
        count = sum(weight.numel() for weight in self.model.parameters())
        return Whole(statistics.median(self.passes), statistics.median(self.updates), count)


def _model(shape: LmShape, tokens: int, parts: int = 1) -> Decoder:
    model = Decoder(shape, tokens, parts=parts)
    initialise(model, 0)
    return model


def _tokens(shape: LmShape, batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(shape.vocabulary, (batch, tokens + 1), generator=torch.Generator().manual_seed(0))


def time_modules(model: Decoder, tokens: torch.Tensor, train: bool) -> dict[tuple[str, str], list[float]]:
    """Run one step module by module, each with its own graph, as the tensor-parallel runs do.

    Returns
    -------
    dict of (name, phase) to list of float
        Seconds of every module of that kind.
    """
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    model.zero_grad()
    with torch.set_grad_enabled(train):
        residual, graphs = model.embed(tokens[:, :-1]).detach(), []
        for block in model.blocks:
            for name, (norm, module) in zip(("attention", "mlp"), sublayers(block), strict=True):
                entered = residual.detach().requires_grad_(train)
                began = time.perf_counter()
                residual = entered + module(norm(entered))
                seconds[name, "forward"].append(time.perf_counter() - began)
                graphs.append((name, entered, residual))
        last = residual.detach().requires_grad_(train)
        began = time.perf_counter()
        loss = cross_entropy(model.predict(last), tokens[:, 1:])
        seconds["head", "forward"].append(time.perf_counter() - began)
    if not train:
        return seconds
    began = time.perf_counter()
    loss.backward()
    seconds["head", "backward"].append(time.perf_counter() - began)
    gradient = last.grad
    for name, entered, output in reversed(graphs):
        began = time.perf_counter()
        torch.autograd.backward(output, gradient)
        seconds[name, "backward"].append(time.perf_counter() - began)
        gradient = entered.grad
    return seconds
