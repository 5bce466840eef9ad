"""Seconds that each module of the small language model takes on this processor, forward and backward."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn import functional

from densing.efficiency.parallel.distributed.lm import Decoder, initialise, sublayers
from densing.efficiency.parallel.distributed.probed import Timed, Whole
from densing.efficiency.parallel.distributed.spec import LmShape
from densing.efficiency.parallel.distributed.workload import workload_of
from densing.efficiency.simulation import Workload, modules


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
    whole = _Step(shape, batch, cuts[0][1])
    for repeat in range(repeats):
        counts = repeat >= repeats // 4
        for row in rows:
            row.run(counts)
        whole.run(counts)
    return tuple(timed for row in rows for timed in row.result()), whole.result()


class _Cut:
    """Modules of one cut of the model, timed one by one."""

    def __init__(self, shape: LmShape, batch: int, parts: int, tokens: int, train: bool) -> None:
        self.parts, self.tokens, self.train = parts, tokens, train
        self.model = _model(shape, tokens, parts)
        self.input = _tokens(shape, batch, tokens)
        self.workload = workload_of(shape, batch, tokens, tp=parts)
        self.seen: dict[tuple[str, str], list[float]] = defaultdict(list)

    def run(self, counts: bool) -> None:
        """Take a step."""
        for key, values in _step(self.model, self.input, self.train).items():
            if counts:
                self.seen[key].append(statistics.fmean(values))

    def result(self) -> list[Timed]:
        """Return the medians."""
        counted = _counted(self.workload)
        return [
            Timed(name, phase, self.parts, self.tokens, *counted[name, phase], statistics.median(values))
            for (name, phase), values in self.seen.items()
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
        functional.cross_entropy(logits.flatten(0, 1), self.input[:, 1:].flatten()).backward()
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


def _counted(workload: Workload) -> dict[tuple[str, str], tuple[float, float]]:
    found = {}
    for module in modules(workload):
        found[module.name, "forward"] = (module.flops, module.moved)
        found[module.name, "backward"] = (module.backward_flops, module.backward_moved)
    return found


Taken = dict[tuple[str, str], list[float]]


def _step(model: Decoder, tokens: torch.Tensor, train: bool) -> Taken:
    """Run one step module by module, each with its own graph, as the tensor-parallel runs do."""
    taken: Taken = defaultdict(list)
    model.zero_grad()
    with torch.set_grad_enabled(train):
        residual, graphs = model.embed(tokens[:, :-1]).detach(), []
        for name, norm, module in _modules(model):
            read = residual.detach().requires_grad_(train)
            began = time.perf_counter()
            residual = read + module(norm(read))
            taken[name, "forward"].append(time.perf_counter() - began)
            graphs.append((name, read, residual))
        read = residual.detach().requires_grad_(train)
        began = time.perf_counter()
        loss = functional.cross_entropy(model.predict(read).flatten(0, 1), tokens[:, 1:].flatten())
        taken["head", "forward"].append(time.perf_counter() - began)
    if train:
        _backward(taken, loss, read, graphs)
    return taken


def _modules(model: Decoder) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    for block in model.blocks:
        for name, (norm, module) in zip(("attention", "mlp"), sublayers(block), strict=True):
            yield name, norm, module


def _backward(
    taken: Taken, loss: torch.Tensor, read: torch.Tensor, graphs: Sequence[tuple[str, torch.Tensor, torch.Tensor]]
) -> None:
    began = time.perf_counter()
    loss.backward()
    taken["head", "backward"].append(time.perf_counter() - began)
    gradient = read.grad
    for name, entered, left in reversed(graphs):
        began = time.perf_counter()
        torch.autograd.backward(left, gradient)
        taken[name, "backward"].append(time.perf_counter() - began)
        gradient = entered.grad
