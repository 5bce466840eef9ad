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

from typing import Any

import torch

from densing.efficiency.parallel import Synchronous, Threshold, TopK


class DCT(Synchronous):
    """Dynamic communication thresholding: of every tensor's gradient what reaches a threshold, renewed now and then.

    Source: Gupta et al., "Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism",
    arXiv 2010.08899: the abstract, and a third-party implementation (error feedback, tensors below 256 elements whole).

    Parameters
    ----------
    model, optimizer, **options
        See :class:`~densing.training.Synchronous`.
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
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, Threshold(eta, refresh), **options)


class TopKGradients(Synchronous):
    """The largest entries of every tensor's gradient, chosen anew in every step.

    Source: Lin et al., "Deep Gradient Compression", arXiv 1712.01887 (recalled); without momentum correction and
    warm-up.

    Parameters
    ----------
    model, optimizer, **options
        See :class:`~densing.training.Synchronous`.
    share : float
        Of a tensor's entries.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        share: float = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, TopK(share), **options)
