"""Gradients averaged from packets: every rank encodes its own, all gather all packets, and decode the same mean.

.. code-block:: python

    dct = densing.training.DCT(model, optimizer, eta=0.99, refresh=1000)
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        dct.step()  # instead of optimizer.step()
    dct.finish()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from densing.core import InputError
from densing.efficiency.parallel import (
    FINE,
    Codec,
    Dense,
    Link,
    Packet,
    Reader,
    Threshold,
    TopK,
    Waiting,
    check_label,
    codec_states,
    floating_buffers,
    label,
    load_codecs,
    pack,
    sizes,
    start_alike,
)


class Compressed:
    """Sends each tensor's gradient through a codec; what was not sent is added to the next step's gradient.

    Every rank chooses what it sends by itself. Packets are gathered, not summed on the way, so that all ranks add up
    the same numbers in the same order: after a step their parameters are equal to the last bit, as with DDP.

    Parameters
    ----------
    model, optimizer
        The user's own. At construction every rank gets parameters and buffers of the group's first rank.
    codec : callable
        Makes the codec of a tensor; those below :data:`~densing.efficiency.parallel.codecs.sizes.DENSE_BELOW` elements
        are sent as they are.
    group : ProcessGroup, optional
    waiting : callable
        Gives a context put around every wait.
    link : Link, optional
        Instead of the group's: the end of a virtual rank.

    Attributes
    ----------
    residual : Tensor
        What this rank kept back, for the next step; with a scratch for the mean the second vector as long as all
        parameters.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        codec: Callable[[], Codec],
        *,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.link = Link(group, waiting) if link is None else link
        self.flat = start_alike(type(self).__name__, model, optimizer, [self.link])
        self._scratch, self.residual = self.flat.zeros(), self.flat.zeros()
        shapes = self.flat.tensors(self.residual)
        self.codecs = [Dense() if part.numel() < sizes.DENSE_BELOW else codec() for part in shapes]
        self.steps, self.sent = 0, 0
        self._exchanged = False

    def backward(self, loss: torch.Tensor, scaler: torch.amp.GradScaler | None = None) -> None:
        """Run the backward pass and exchange gradients: for what needs the mean before the step, such as clipping.

        Parameters
        ----------
        loss : Tensor
            Scaled, where there is a scaler; the mean that is left is not.
        scaler : GradScaler, optional
            See :meth:`step`.
        """
        loss.backward()
        self.exchange(scaler)

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Exchange gradients, unless :meth:`backward` has, and take a step of the optimizer.

        Parameters
        ----------
        scaler : GradScaler, optional
            Of a loss in half precision; call its ``update`` afterwards, as ever. Where any rank's gradient overflows
            the step is skipped on all of them, residuals stay as they are, and all scales fall alike.

        Raises
        ------
        InputError
            On all ranks, where any has a gradient that is inf or NaN, without a scaler; residuals stay as they are.
        """
        if not self._exchanged:
            self.exchange(scaler)
        self._exchanged = False
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)

    def exchange(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Replace the gradients by the mean of what all ranks sent; where any is not finite, change nothing on any."""
        self.flat.check()
        scaled = scaler is not None and scaler.is_enabled()
        if scaler is not None and scaled:
            try:
                # Residuals are of gradients without a scale, which changes from step to step.
                scaler.unscale_(self.optimizer)
            except RuntimeError as error:
                if "already been called" not in str(error):
                    raise
        self.flat.read_gradients(self._scratch)
        self._scratch.add_(self.residual)
        before = codec_states(self.codecs)
        data = self._encode()
        mean = self.link.gathered(data, self._decode)
        self._exchanged = True
        if not mean.is_floating_point():
            load_codecs(self.codecs, before)
            if scaler is None or not scaled:
                self._exchanged = False
                raise InputError(
                    f"step {self.steps}: a rank's gradient of {self.flat.tensor_name(int(mean))} holds inf or NaN; "
                    "lower the learning rate (or clip the loss), and go on from a checkpoint; of a scaled loss give "
                    "step() the scaler, which skips the step"
                )
            # What a scaler has found is this rank's alone; all ranks must skip the step, or none.
            for found in scaler._found_inf_per_device(self.optimizer).values():
                found.fill_(1.0)
            return
        self.flat.write_gradients(mean)
        # What is left of the sum is the new residual, and where the mean was is free.
        self._scratch, self.residual = self.residual, self._scratch
        self.sent += data.numel()
        self.steps += 1

    def finish(self) -> None:
        """Average the buffers; parameters are equal after every step."""
        for buffer in floating_buffers(self.model):
            self.link.mean(buffer)

    def figures(self) -> Mapping[str, float]:
        """Return the bytes of this rank's packets, and what share they are of the dense gradients: counted."""
        dense = 4 * self.flat.numel * self.steps
        return {"packet_bytes": float(self.sent), **({"sent_share": self.sent / dense} if dense else {})}

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept back, and what the codecs remember; every rank has its own."""
        own = {"residual": self.residual, "steps": self.steps, "sent": self.sent}
        return {**label(self, self.link), **own, "codecs": codec_states(self.codecs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, in mid-period too; load model and optimizer as well.

        Raises
        ------
        InputError
            When the state is another method's or rank's (on all ranks), or of another model.
        """
        check_label(self, self.link, state)
        stored = state.get("residual")
        if not isinstance(stored, torch.Tensor) or stored.shape != self.residual.shape:
            raise InputError(
                f"residual of the state is not a vector of {len(self.residual)} elements; it belongs to another model "
                "or method"
            )
        self.residual.copy_(stored)
        load_codecs(self.codecs, state.get("codecs", {}))
        self.steps, self.sent = int(state["steps"]), int(state["sent"])

    def _encode(self) -> torch.Tensor:
        """Return this rank's packets, taken out of the scratch: which gradient is not finite, if any, then all."""
        parts, bad = self.flat.tensors(self._scratch), self.flat.first_not_finite(self._scratch)
        mark = Packet((torch.tensor([bad], dtype=torch.int32, device=self.flat.device),))
        # A rank that cannot go on still takes part: all others learn of it from its mark.
        packets = [codec.take(part) for codec, part in zip(self.codecs, parts, strict=True)] if bad == FINE else []
        return pack([mark, *packets])

    def _decode(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean of what all ranks sent, added up in their order, in place of the old residual.

        Where a rank's gradient is not finite the tensor's number, int32, is all there is, and nothing is overwritten.
        """
        readers = [Reader(row.cpu()) for row in rows]
        bad = next((mark for mark in (reader.take(1, torch.int32) for reader in readers) if int(mark) != FINE), None)
        if bad is not None:
            return bad
        parts = self.flat.tensors(self.residual.zero_())
        for reader in readers:
            for codec, part in zip(self.codecs, parts, strict=True):
                part.add_(codec.decode(reader, part))
        return self.residual.div_(len(rows))


class DCT(Compressed):
    """Dynamic communication thresholding: of every tensor's gradient what reaches a threshold, renewed now and then.

    Source: Gupta et al., "Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism",
    arXiv 2010.08899: the abstract, and a third-party implementation (error feedback, tensors below 256 elements whole).

    Parameters
    ----------
    model, optimizer, group, waiting, link
        See :class:`Compressed`.
    eta : float
        Share of a tensor that is kept back when the threshold is renewed, from 0 to below 1.
    refresh : int
        Steps between two renewals.

    Examples
    --------
    >>> model = torch.nn.Linear(64, 8)
    >>> dct = DCT(model, torch.optim.SGD(model.parameters(), lr=0.1), eta=0.9, refresh=10)
    >>> for _ in range(2):
    ...     model(torch.ones(1, 64)).square().sum().backward()
    ...     dct.step()
    >>> dct.finish()
    >>> dct.steps
    2
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        eta: float = 0.99,
        refresh: int = 1000,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        super().__init__(model, optimizer, lambda: Threshold(eta, refresh), group=group, waiting=waiting, link=link)


class TopKGradients(Compressed):
    """The largest entries of every tensor's gradient, chosen anew in every step.

    Source: Lin et al., "Deep Gradient Compression", arXiv 1712.01887 (recalled); without momentum correction and
    warm-up.

    Parameters
    ----------
    model, optimizer, group, waiting, link
        See :class:`Compressed`.
    share : float
        Of a tensor's entries.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        share: float = 0.01,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        super().__init__(model, optimizer, lambda: TopK(share), group=group, waiting=waiting, link=link)
