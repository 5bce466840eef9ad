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
    Flat,
    Link,
    Packet,
    Reader,
    Threshold,
    TopK,
    Waiting,
    floating_buffers,
    pack,
    sizes,
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
        What this rank kept back, for the next step; with the mean the second vector as long as all parameters.
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
        self.flat = Flat(model)
        self.flat.check_optimizer(optimizer)
        self.link = Link(group, waiting) if link is None else link
        everything = [*(p.detach() for p in model.parameters()), *(b for b in model.buffers() if b.numel())]
        self.link.copy_first(everything)
        self._mean, self.residual = self.flat.zeros(), self.flat.zeros()
        shapes = self.flat.tensors(self.residual)
        self.codecs = [Dense() if part.numel() < sizes.DENSE_BELOW else codec() for part in shapes]
        self.steps, self.sent = 0, 0
        self._exchanged = False

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass and exchange gradients: for what needs the mean before the step, such as clipping."""
        loss.backward()
        self.exchange()

    def step(self) -> None:
        """Exchange gradients, unless :meth:`backward` has, and take a step of the optimizer.

        Raises
        ------
        InputError
            On all ranks, where any has a gradient that is inf or NaN.
        """
        if not self._exchanged:
            self.exchange()
        self._exchanged = False
        self.optimizer.step()

    def exchange(self) -> None:
        """Replace the gradients by the mean of what all ranks sent."""
        self.flat.check()
        self.flat.read_gradients(self._mean)
        self.residual.add_(self._mean)
        data = self._encode()
        self.sent += data.numel()
        self.flat.write_gradients(self.link.gathered(data, self._decode))
        self.steps += 1
        self._exchanged = True

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
        codecs = [codec.state_dict() for codec in self.codecs]
        return {"residual": self.residual, "codecs": codecs, "steps": self.steps, "sent": self.sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, in mid-period too; load model and optimizer as well.

        Raises
        ------
        InputError
            When the state is of another model.
        """
        stored = state.get("residual")
        if not isinstance(stored, torch.Tensor) or stored.shape != self.residual.shape:
            raise InputError(
                f"residual of the state is not a vector of {len(self.residual)} elements; it belongs to another model "
                "or method"
            )
        self.residual.copy_(stored)
        for codec, own in zip(self.codecs, state["codecs"], strict=True):
            codec.load_state_dict(own)
        self.steps, self.sent = int(state["steps"]), int(state["sent"])

    def _encode(self) -> torch.Tensor:
        """Return this rank's packets, taken out of the residual: which gradient is not finite, if any, then all."""
        parts, bad = self.flat.tensors(self.residual), self.flat.first_not_finite(self.residual)
        mark = Packet((torch.tensor([bad], dtype=torch.int32, device=self.flat.device),))
        # A rank that cannot go on still takes part: all others learn of it from its mark.
        packets = [codec.take(part) for codec, part in zip(self.codecs, parts, strict=True)] if bad == FINE else []
        return pack([mark, *packets])

    def _decode(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean of what all ranks sent, added up in their order."""
        parts = self.flat.tensors(self._mean.zero_())
        for row in rows:
            reader = Reader(row.cpu())
            self._refuse(int(reader.take(1, torch.int32)))
            for codec, part in zip(self.codecs, parts, strict=True):
                part.add_(codec.decode(reader, part))
        return self._mean.div_(len(rows))

    def _refuse(self, bad: int) -> None:
        if bad != FINE:
            raise InputError(
                f"step {self.steps}: a rank's gradient of {self.flat.tensor_name(bad)} holds inf or NaN; lower the "
                "learning rate (or clip the loss), and go on from a checkpoint"
            )


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
