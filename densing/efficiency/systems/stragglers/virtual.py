"""A server and its workers in one process: every rank holds a partition, and a scheme says whose gradients count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from densing.core import InputError
from densing.efficiency.parallel import Backward, Flat, Replica
from densing.efficiency.simulation import Delay
from densing.efficiency.systems.stragglers.problems import weighted_sum
from densing.efficiency.systems.stragglers.schemes import Scheme

LATE = Delay("shifted-exp", mu=1.0, lasts="task")
"""Order in which messages arrive; only the order matters here, not the time."""


class VirtualServer:
    """A scheme's steps without a wire: coded sums in float32, decoded from the messages that would come first.

    A rank's gradient is a partition's; its messages are made of the partitions that the scheme gives it, so the work
    that redundancy costs is not done again here.

    Parameters
    ----------
    replicas : sequence of Replica
        One per worker, in the order of the partitions.
    scheme : Scheme
        Of as many workers and partitions.
    late : Delay
        Draws the order in which messages come.

    Attributes
    ----------
    sent : float
        Bytes of the messages that came in time, mean over the workers.

    Raises
    ------
    InputError
        When the scheme has another number of workers, or encodes data.

    Examples
    --------
    >>> from contextlib import nullcontext
    >>> from functools import partial
    >>> from densing.efficiency.systems.stragglers.schemes import backup
    >>> sgd = partial(torch.optim.SGD, lr=1.0)
    >>> models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    >>> server = VirtualServer([Replica(model, sgd, nullcontext, torch.sum) for model in models], backup(2, 0))
    >>> begun = models[0].weight.item()
    >>> server.backward([model(torch.tensor([[x]])).sum() for model, x in zip(models, (1.0, 3.0))])
    >>> server.step()
    >>> [round(begun - model.weight.item(), 6) for model in models]
    [2.0, 2.0]
    """

    personal = False
    passing: Callable[[torch.Tensor, int], torch.Tensor] | None = None

    def __init__(self, replicas: Sequence[Replica], scheme: Scheme, late: Delay = LATE) -> None:
        if scheme.workers != len(replicas) or scheme.encoding is not None:
            raise InputError(
                f"{scheme.name}: {scheme.workers} workers{'' if scheme.encoding is None else ' on encoded data'} for "
                f"{len(replicas)} ranks; each rank needs a partition, as it is"
            )
        self.scheme, self.late = scheme, late
        self.optimizers = [replica.optimizer(replica.model.parameters()) for replica in replicas]
        self.flats = [Flat(replica.model) for replica in replicas]
        first = self.flats[0].read()
        for flat in self.flats[1:]:
            flat.write(first)
        self.steps, self.used, self.sent = 0, 0, 0.0
        self._rows = [flat.zeros() for flat in self.flats]

    def backward(self, losses: Sequence[Backward]) -> None:
        """Run every rank's backward pass, and put what the server makes of the messages into all gradients.

        Parameters
        ----------
        losses : sequence
            One per rank; anything whose ``backward()`` leaves gradients.
        """
        for loss in losses:
            loss.backward()
        for flat, row in zip(self.flats, self._rows, strict=True):
            flat.read_gradients(row)
        arrived = self._arrived()
        weights = self.scheme.weights(arrived)
        total = weighted_sum((weight, self._message(message)) for message, weight in weights.items())
        total.div_(self.scheme.partitions)
        for flat in self.flats:
            flat.write_gradients(total)
        self.sent += 4.0 * len(total) * len(arrived) / self.scheme.workers
        self.used += len(arrived)

    def step(self) -> None:
        """Let every rank take the server's step: all have the same gradients."""
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps += 1

    def finish(self) -> None:
        """Do nothing: all ranks are equal after every step."""

    def figures(self) -> Mapping[str, float]:
        """Return the messages that came in time, per step, and by how much decoding may multiply rounding errors."""
        per_step = {"messages": self.used / self.steps} if self.steps else {}
        return {**per_step, "condition": self.scheme.condition()}

    def state_dict(self) -> dict[str, Any]:
        """Return steps taken, messages and bytes; draws depend on the step alone."""
        return {"steps": self.steps, "sent": self.sent, "used": self.used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self.steps, self.sent, self.used = int(state["steps"]), float(state["sent"]), int(state["used"])

    def _arrived(self) -> list[int]:
        """Return the messages that come until they suffice, in the order in which they come."""
        scheme = self.scheme
        turns = range(max(map(len, scheme.tasks)))
        done = np.cumsum([self.late.draw(scheme.workers, self.steps, turn) for turn in turns], axis=0)
        came = [done[after - 1, worker] for worker, after in scheme.messages]
        arrived: list[int] = []
        for message in np.argsort(came, kind="stable").tolist():
            arrived.append(message)
            if scheme.satisfied(arrived):
                break
        return arrived

    def _message(self, number: int) -> torch.Tensor:
        """Return a worker's coded sum, as it would send it."""
        coefficients = self.scheme.coefficients[number]
        parts = np.flatnonzero(coefficients).tolist()
        if len(parts) == 1 and coefficients[parts[0]] == 1.0:
            return self._rows[parts[0]]
        total = self._rows[parts[0]] * coefficients[parts[0]].item()
        for part in parts[1:]:
            total.add_(self._rows[part], alpha=coefficients[part].item())
        return total
