"""LocalSGD: steps on one's own, then the mean of all ranks' parameters, waited for."""

from __future__ import annotations

from densing.efficiency.parallel.data_parallel.rounds import Rounds


class LocalSGD(Rounds):
    """Average parameters after every ``tau`` steps, and wait for it.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", arXiv 1805.09767, algorithm 1.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> local = LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     local.step()
    >>> local.round
    2
    """

    def _end_round(self) -> None:
        self.flat.write(self._average())
