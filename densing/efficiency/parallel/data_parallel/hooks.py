"""Communication hooks of ``DistributedDataParallel``: compressed gradients, exchanged behind the backward pass.

.. code-block:: python

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    hook = densing.training.ddp_hook("top-k", ddp, share=0.01)
    for batch in loader:
        optimizer.zero_grad()
        loss(ddp, batch).backward()  # buckets travel as soon as their gradients are there
        optimizer.step()
"""

# Without the usual import of annotations: DDP compares those of a hook as objects, and would find texts.
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from densing.core import InputError, UnknownNameError
from densing.efficiency.parallel.codecs import (
    Bucket,
    Codec,
    Dense,
    Int8,
    Threshold,
    TopK,
    codec_states,
    load_codecs,
)
from densing.efficiency.parallel.data_parallel.link import Link
from densing.efficiency.parallel.data_parallel.options import whole
from densing.efficiency.parallel.data_parallel.state import check_label, label
from densing.efficiency.parallel.distributed import comm
from densing.efficiency.simulation import ring_terms, sizes

TINY = 1e-30
"""Added to norms of PowerSGD's columns: changes none that a gradient has, and of no gradient at all makes no NaN."""


class GradientHook(ABC):
    """Replaces the gradients of a bucket by the mean over ranks of what was sent; the rest waits for the next step.

    A bucket is encoded, sent and decoded on a thread of its own while the backward pass goes on with earlier layers;
    DDP waits for what is still under way at its end. Buckets are handled one after the other, so that all ranks start
    the same operations in the same order. What was kept back is stored by parameter: it does not matter that DDP cuts
    its buckets anew after the first step, or in a resumed run.

    With gradient accumulation, call all but the last backward pass under ``ddp.no_sync()``, as ever.

    Parameters
    ----------
    name : str
        Of the codec, for messages and states.
    ddp : DistributedDataParallel
        With gradients in float32, float16 or bfloat16; residuals are float32.
    scaler : GradScaler, optional
        Of the loss: residuals are of gradients without its scale. Where a rank's gradient overflows, gradients are NaN
        on all ranks, so that all scalers skip the step, and residuals stay as they are.

    Attributes
    ----------
    residual : Tensor
        What this rank kept back, parameter after parameter; with what the running step will keep two vectors as long
        as all parameters.
    steps, sent : int
        Backward passes with an exchange, and bytes of this rank's packets in them.
    wire : float
        Bytes this rank sent in rings of all ranks.

    Raises
    ------
    InputError
        When the model is not wrapped by DDP. In a backward pass, on all ranks: where any has a gradient that is inf or
        NaN, without a scaler.
    """

    def __init__(self, name: str, ddp: DistributedDataParallel, scaler: torch.amp.GradScaler | None = None) -> None:
        if not isinstance(ddp, DistributedDataParallel):
            raise InputError(
                f"ddp_hook({name!r}): the model is no DistributedDataParallel but a {type(ddp).__name__}; wrap it first"
            )
        self.name, self.scaler = name, scaler
        self.link = Link(ddp.process_group)
        named = [(each, p) for each, p in ddp.module.named_parameters() if p.requires_grad]
        self._names = [each for each, _ in named]
        self._number = {id(parameter): at for at, (_, parameter) in enumerate(named)}
        self.shapes = [tuple(parameter.shape) for _, parameter in named]
        self._lengths = [math.prod(shape) for shape in self.shapes]
        device = next(ddp.module.parameters()).device
        self.residual = torch.zeros(sum(self._lengths), device=device)
        self._pending = torch.zeros_like(self.residual)
        self.steps, self.sent, self.wire = 0, 0, 0.0
        self._spoilt = ""
        self._error: Exception | None = None
        self._worker = ThreadPoolExecutor(1, f"ddp-hook-{name}")
        ddp.register_comm_hook(None, self._start)

    def figures(self) -> Mapping[str, float]:
        """Return the bytes of this rank's packets, their share of dense float32 gradients, and its bytes in a ring."""
        dense = 4 * len(self.residual) * self.steps
        share = {"sent_share": self.sent / dense} if dense else {}
        return {"packet_bytes": float(self.sent), "ring_bytes": self.wire, **share}

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept back, and what the next packet depends on; every rank has its own."""
        own = {"hook": self.name, "residual": self.residual, "steps": self.steps, "sent": self.sent, "wire": self.wire}
        return {**label(self, self.link), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; load model and optimizer as well.

        Raises
        ------
        InputError
            On all ranks, when the state is another hook's, rank's or model's.
        """
        check_label(self, self.link, state)
        problem, stored = "", state.get("residual")
        if state.get("hook") != self.name:
            problem = f"ddp_hook({self.name!r}): the state was saved by ddp_hook({state.get('hook')!r})"
        elif not isinstance(stored, torch.Tensor) or stored.shape != self.residual.shape:
            problem = f"ddp_hook({self.name!r}): the state is of another model; its residual does not fit this one's"
        problem = self.link.agree(problem)
        if problem:
            raise InputError(problem)
        self.residual.copy_(state["residual"])
        self.steps, self.sent, self.wire = int(state["steps"]), int(state["sent"]), float(state["wire"])

    @abstractmethod
    def exchange(self, bucket: dist.GradBucket, numbers: Sequence[int]) -> str:
        """Replace a bucket's gradients by the mean of what was sent, and put the rest into :meth:`parts` of pending.

        Returns
        -------
        str
            Which gradient is not finite; empty where all are, on all ranks.
        """

    @abstractmethod
    def settle(self, keep: bool) -> None:
        """End a step: keep what it changed in the codecs, or go back to what was before it."""

    def parts(self, vector: torch.Tensor, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Return views of residual or pending, one for each numbered parameter."""
        views = vector.split(self._lengths)
        return [views[at] for at in numbers]

    def scale(self) -> float:
        """Return the scale that is in the gradients."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def _start(self, state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        del state
        buffer = bucket.buffer()
        future: Future[torch.Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else [])
        ready = torch.cuda.Event() if buffer.is_cuda else None
        if ready is not None:
            ready.record()

        def work() -> None:
            try:
                if ready is not None:
                    ready.wait()
                # After an error nothing more is waited for in this pass: who is gone does not answer a second time.
                if self._error is None:
                    self._handle(bucket)
            except Exception as error:
                self._error = error
            if self._error is not None:
                buffer.fill_(math.nan)
            future.set_result(buffer)

        self._worker.submit(work)
        if bucket.is_last():
            # A callback of a callback comes after DDP's own, which waits for all buckets.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._end))
        return future

    def _end(self) -> None:
        """End the backward pass: what went wrong on the thread is raised here, where the caller sees it."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _handle(self, bucket: dist.GradBucket) -> None:
        buffer, last = bucket.buffer(), bucket.is_last()
        with torch.no_grad():
            spoilt = self.exchange(bucket, [self._number[id(parameter)] for parameter in bucket.parameters()])
        if spoilt:
            buffer.fill_(math.nan)
        self._spoilt = self._spoilt or spoilt
        if not last:
            return
        spoilt, self._spoilt = self._spoilt, ""
        self.settle(not spoilt)
        if not spoilt:
            self.residual, self._pending = self._pending, self.residual
        elif self.scaler is None or not self.scaler.is_enabled():
            raise InputError(
                f"step {self.steps}: {spoilt} holds inf or NaN; lower the learning rate (or clip the loss), and go "
                "on from a checkpoint; of a scaled loss give ddp_hook the scaler, which skips the step"
            )
        self.steps += not spoilt


class PacketHook(GradientHook):
    """Sends gradients as packets that all ranks gather and decode: int8, or some entries of every tensor.

    Parameters
    ----------
    name, ddp, scaler
        See :class:`GradientHook`.
    codec : callable
        Makes the codec of a tensor; those below :data:`~densing.efficiency.simulation.sizes.DENSE_BELOW` elements
        are sent as they are.
    """

    def __init__(
        self,
        name: str,
        ddp: DistributedDataParallel,
        codec: Callable[[], Codec],
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        codec()  # its options are checked before the hook is registered
        super().__init__(name, ddp, scaler)
        self.codecs = [Dense() if length < sizes.DENSE_BELOW else codec() for length in self._lengths]
        self._buckets: dict[tuple[int, ...], Bucket] = {}
        self._before: dict[str, dict[str, Any]] | None = None

    def exchange(self, bucket: dist.GradBucket, numbers: Sequence[int]) -> str:
        """Send one row of bytes: which gradient is not finite, if any, then all of them."""
        if self._before is None:
            self._before = codec_states(self.codecs)
        scale, buffer = self.scale(), bucket.buffer()
        tensors, bad = self.parts(self._pending, numbers), -1
        for at, (part, kept, gradient) in enumerate(
            zip(tensors, self.parts(self.residual, numbers), bucket.gradients(), strict=True)
        ):
            part.copy_(gradient.reshape(-1)).div_(scale).add_(kept)
            if bad < 0 and not bool(part.isfinite().all()):
                bad = at
        mark = torch.tensor([-1 if bad < 0 else numbers[bad]], dtype=torch.int32, device=buffer.device)
        key = tuple(numbers)
        if key not in self._buckets:
            self._buckets[key] = Bucket([self.codecs[at] for at in numbers], [self._lengths[at] for at in numbers])
        # A rank that cannot go on still takes part: all others learn of it from its mark.
        row = mark.view(torch.uint8)
        if bad < 0:
            row = torch.cat([row, self._buckets[key].take(tensors)])
        rows, _ = self.link.rows(row)
        self.sent += len(row)
        self.wire += ring_terms("all_gather", self.link.size).volume * self.link.size * (8 + rows.shape[1])
        marks = rows[:, :4].contiguous().view(torch.int32).flatten()
        first = int(marks.max())
        if first >= 0:
            return f"a rank's gradient of {self._names[first]}"
        mean = self._buckets[key].sum(rows[:, 4:]).div_(self.link.size).mul_(scale)
        for part, gradient in zip(mean.split([each.numel() for each in tensors]), bucket.gradients(), strict=True):
            gradient.copy_(part.view(gradient.shape))
        return ""

    def settle(self, keep: bool) -> None:
        """Keep the codecs' new states, or take them back."""
        if not keep:
            load_codecs(self.codecs, self._before or {})
        self._before = None

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept back, and what the codecs remember."""
        return {**super().state_dict(), "codecs": codec_states(self.codecs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; load model and optimizer as well."""
        super().load_state_dict(state)
        load_codecs(self.codecs, state.get("codecs", {}))


class PowerSGDHook(GradientHook):
    """torch's PowerSGD hook, one bucket after the other, with what it remembers stored by parameter.

    The algorithm is torch's. Registered as it is, it waits for one collective within the callback of another, on a
    thread of gloo's two, so that two buckets wait for each other for ever; it remembers by the number of a bucket,
    which a resumed run cuts otherwise at first; and an overflow stays in its residuals. Here none of this.

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    arXiv 1905.13727, algorithm 1; ``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook``.

    Parameters
    ----------
    name, ddp, scaler
        See :class:`GradientHook`.
    rank : int
        Columns of the factors.
    start : int
        Steps that are averaged in full before; 2 or more, as torch demands.
    """

    def __init__(
        self,
        name: str,
        ddp: DistributedDataParallel,
        *,
        rank: int = 1,
        start: int = 2,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs

        if comm.emulated():
            raise InputError("powersgd: torch's hook bypasses an emulated link; use a shaped one, or none")
        self.rank = whole("rank", rank, 1)
        self.memory: Any = torchs.PowerSGDState(
            ddp.process_group if isinstance(ddp, DistributedDataParallel) else None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=whole("start", start, 2),
            orthogonalization_epsilon=TINY,
        )
        super().__init__(name, ddp, scaler)
        self.factors: dict[int, torch.Tensor] = {}
        self._new: dict[int, torch.Tensor] = {}

    def exchange(self, bucket: dist.GradBucket, numbers: Sequence[int]) -> str:
        """Run torch's hook on one bucket, with what is remembered of its parameters laid out as it expects."""
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs

        memory, at, buffer = self.memory, bucket.index(), bucket.buffer()
        scale, thin = self.scale(), self._thin(numbers)
        full = memory.iter < memory.start_powerSGD_iter
        memory.error_dict = {at: torch.cat(self.parts(self.residual, numbers)).to(buffer.dtype)}
        memory.p_memory_dict, memory.q_memory_dict = {}, {}
        if thin and all(each in self.factors for each in thin):
            memory.q_memory_dict[at] = torch.cat([self.factors[each] for each in thin]).to(buffer)
            rows = sum(self._matrix(each)[0] * self._columns(each) for each in thin)
            # Written before it is read: only its size is remembered.
            memory.p_memory_dict[at] = buffer.new_empty(rows)
        buffer.div_(scale)
        torchs.powerSGD_hook(memory, bucket).wait()
        left = memory.error_dict[at]
        for part, kept in zip(
            self.parts(self._pending, numbers), left.split([self._lengths[each] for each in numbers]), strict=True
        ):
            part.copy_(kept)
        if thin and at in memory.q_memory_dict:
            widths = [self._columns(each) * self._matrix(each)[1] for each in thin]
            self._new.update(zip(thin, memory.q_memory_dict[at].clone().split(widths), strict=True))
        count = sum(self._lengths[each] if full else sizes.factors(self.shapes[each], self.rank) for each in numbers)
        self.sent += count * buffer.element_size()
        self.wire += ring_terms("all_reduce", self.link.size).volume * count * buffer.element_size()
        # Sums over all ranks: what one rank spoils is not finite on any.
        if not bool(buffer.isfinite().all()):
            return f"a rank's gradient of {self._names[numbers[0]]} or {len(numbers) - 1} others of its bucket"
        buffer.mul_(scale)
        return ""

    def settle(self, keep: bool) -> None:
        """Keep the new factors, or leave those of before the step."""
        if keep:
            self.factors.update(self._new)
        self._new = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept back, the factors by parameter, and the generator of the first factors."""
        kind, keys, position, filled, cached = self.memory.rng.get_state()
        random = [kind, keys.tolist(), int(position), int(filled), float(cached)]
        factors = {str(at): factor for at, factor in self.factors.items()}
        return {**super().state_dict(), "rank_of_factors": self.rank, "passes": self.memory.iter, "random": random,
                **({"factors": factors} if factors else {})}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; load model and optimizer as well."""
        import numpy as np

        saved = state.get("rank_of_factors", self.rank)
        problem = (
            "" if saved == self.rank else f"ddp_hook('powersgd'): the state has rank={saved}, and this hook {self.rank}"
        )
        problem = self.link.agree(problem)
        if problem:
            raise InputError(problem)
        super().load_state_dict(state)
        kind, keys, position, filled, cached = state["random"]
        self.memory.rng.set_state((kind, np.array(keys, dtype=np.uint32), position, filled, cached))
        self.memory.iter = int(state["passes"])
        self.factors = {int(at): factor.to(self.residual.device) for at, factor in state.get("factors", {}).items()}

    def _matrix(self, at: int) -> tuple[int, int]:
        shape = self.shapes[at]
        return (shape[0], math.prod(shape[1:])) if shape else (1, 1)

    def _columns(self, at: int) -> int:
        """Return a tensor's columns of factors; 0 where torch's hook sends it whole."""
        whole_size = self._lengths[at]
        return min(*self._matrix(at), self.rank) if sizes.factors(self.shapes[at], self.rank) < whole_size else 0

    def _thin(self, numbers: Sequence[int]) -> list[int]:
        """Return which tensors have factors, in the order of torch's hook: those of a shape together."""
        shapes: dict[tuple[int, int], list[int]] = {}
        for at in numbers:
            if self._columns(at):
                shapes.setdefault(self._matrix(at), []).append(at)
        return [at for those in shapes.values() for at in those]


_CODECS: Mapping[str, tuple[Callable[..., Codec], Mapping[str, Any]]] = {
    "int8": (Int8, {"block": None}),
    "top-k": (TopK, {"share": 0.01}),
    "dct": (Threshold, {"eta": 0.99, "refresh": 1000}),
}
_POWERSGD: Mapping[str, Any] = {"rank": 1, "start": 2}
HOOKS = (*_CODECS, "powersgd")


def ddp_hook(
    name: str, ddp: DistributedDataParallel, *, scaler: torch.amp.GradScaler | None = None, **options: Any
) -> GradientHook:
    """Compress the gradients of a ``DistributedDataParallel`` model, behind its backward pass; keep what it returns.

    ``int8`` sends a byte an element (``block`` elements share a spacing, by default those of a tensor), ``top-k`` the
    largest entries of every tensor (``share``, 0.01), ``dct`` those that reach a threshold (``eta`` 0.99, ``refresh``
    1000), ``powersgd`` two thin factors of every matrix (``rank`` 1, ``start`` 2). After the backward pass
    :class:`~densing.training.Synchronous` with such codecs, :class:`~densing.training.DCT` and
    :class:`~densing.training.PowerSGD` do the same. All keep what was not sent for the next step. Tensors below 256
    elements are sent whole.

    Parameters
    ----------
    name : {"int8", "top-k", "dct", "powersgd"}
    ddp : DistributedDataParallel
        Before its first backward pass; one hook for each.
    scaler : GradScaler, optional
        Of the loss, where it is scaled.
    **options
        Of the codec.

    Returns
    -------
    GradientHook
        Has ``figures()``, ``state_dict()`` and ``load_state_dict()``; for shared checkpoints
        ``RankState(hook, model=ddp, optimizer=optimizer)``.

    Raises
    ------
    UnknownNameError
        When there is no such hook.
    InputError
        When an option is unknown or out of range, or the model is not wrapped by DDP.

    Examples
    --------
    >>> # ddp = torch.nn.parallel.DistributedDataParallel(model)
    >>> # hook = ddp_hook("top-k", ddp, share=0.05)
    >>> ddp_hook("top-k", torch.nn.Linear(2, 1), shares=0.05)
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: ddp_hook('top-k'): no option shares; share
    """
    if name not in HOOKS:
        raise UnknownNameError("hook", str(name), HOOKS)
    known = _POWERSGD if name == "powersgd" else _CODECS[name][1]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"ddp_hook({name!r}): no option {unknown[0]}; {', '.join(known)}")
    if name == "powersgd":
        return PowerSGDHook(name, ddp, **options, scaler=scaler)
    make, defaults = _CODECS[name]
    chosen = {**defaults, **options}
    return PacketHook(name, ddp, lambda: make(**chosen), scaler)
