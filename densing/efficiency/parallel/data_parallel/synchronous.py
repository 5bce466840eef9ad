"""Gradients averaged in every step through a codec, with error feedback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from densing.core import InputError
from densing.efficiency.parallel.codecs import Codec, Dense, codec_states, load_codecs
from densing.efficiency.parallel.data_parallel.coded import CodedMean, NotFiniteError
from densing.efficiency.parallel.data_parallel.flat import floating_buffers
from densing.efficiency.parallel.data_parallel.link import Link, Waiting, start_alike
from densing.efficiency.parallel.data_parallel.state import check_label, label


class Synchronous:
    """Sends each tensor's gradient through a codec; what was not sent is added to the next step's gradient.

    Every rank chooses what it sends by itself. Packets that do not add up are gathered, so that all ranks add up the
    same numbers in the same order: after a step their parameters are equal to the last bit, as with DDP.

    Parameters
    ----------
    model, optimizer
        The user's own. At construction every rank gets parameters and buffers of the group's first rank.
    codec : Codec, or callable that makes one
        ``Int8()`` or ``TopK(0.01)``, say; every tensor gets its own, and those below
        :data:`~densing.efficiency.simulation.sizes.DENSE_BELOW` elements are sent as they are.
    group : ProcessGroup, optional
    waiting : callable
        Gives a context put around every wait.
    link : Link, optional
        Instead of the group's: the end of a virtual rank.

    It holds two float32 vectors as long as all parameters: what was kept back, and a scratch.

    Examples
    --------
    >>> from densing.efficiency.parallel.codecs import Int8
    >>> model = torch.nn.Linear(64, 8)
    >>> method = Synchronous(model, torch.optim.SGD(model.parameters(), lr=0.1), Int8())
    >>> model(torch.ones(1, 64)).square().sum().backward()
    >>> method.step()
    >>> round(method.figures()["sent_share"], 2)
    0.27
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        codec: Codec | Callable[[], Codec] = Dense,
        *,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.link = Link(group, waiting) if link is None else link
        self.flat = start_alike(type(self).__name__, model, optimizer, [self.link])
        whole = [slice(0, self.flat.numel)]
        self.coded = CodedMean(self.link, self.flat, codec, whole, error_feedback=True)
        self.steps = self.sent = 0
        self._exchanged = False

    @property
    def residual(self) -> torch.Tensor:
        """What this rank kept back, for the next step."""
        return self.coded.residual

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
        coded = self.coded
        self.flat.read_gradients(coded.work)
        before = codec_states(coded.all_codecs)
        data = coded.encode()
        if coded.op is not None:
            self.link.arrive(self.link.start(data, coded.op), data)
        self._exchanged = True
        try:
            # In place of the old residual: what is left of the sum is the new one.
            mean = coded.decode(data, 0, coded.residual)
        except NotFiniteError as error:
            load_codecs(coded.all_codecs, before)
            if scaler is None or not scaled:
                self._exchanged = False
                raise InputError(
                    f"step {self.steps}: a rank's gradient of {self.flat.tensor_name(error.tensor)} holds inf or NaN; "
                    "lower the learning rate (or clip the loss), and go on from a checkpoint; of a scaled loss give "
                    "step() the scaler, which skips the step"
                ) from None
            # What a scaler has found is this rank's alone; all ranks must skip the step, or none.
            for found in scaler._found_inf_per_device(self.optimizer).values():
                found.fill_(1.0)
            return
        self.flat.write_gradients(mean)
        coded.work, coded.residual = coded.residual, coded.work
        self.sent += data.numel() * data.element_size()
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
        return {**label(self, self.link), **own, "codecs": codec_states(self.coded.all_codecs)}

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
        load_codecs(self.coded.all_codecs, state.get("codecs", {}))
        self.steps, self.sent = int(state["steps"]), int(state["sent"])
