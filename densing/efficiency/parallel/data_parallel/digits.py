"""Handwritten digits among ten clients: an experiment of seconds, for directions that are claimed about clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from densing.core import UnavailableError
from densing.efficiency.parallel.data_parallel.options import Outcome
from densing.efficiency.parallel.data_parallel.train import Method, Replica
from densing.efficiency.parallel.data_parallel.virtual import VirtualMethods
from densing.efficiency.parallel.distributed import one_thread

CLIENTS, ROUNDS, TAU, BATCH, HIDDEN = 10, 30, 10, 32, 32
RATE = 0.2
TESTED, LEAST = 5, 25
"""One in this many of a client's images is for testing; and the fewest images of a client."""


class Digits(NamedTuple):
    """One client's images, (n, 64) from 0 to 1, and their labels."""

    images: torch.Tensor
    labels: torch.Tensor


@cache
def shared_out(alpha: float, seed: int) -> tuple[tuple[Digits, Digits], ...]:
    """Return every client's images for training and for testing; how often a client has a digit is Dirichlet(alpha).

    Raises
    ------
    UnavailableError
        Without scikit-learn, whose wheel has the images.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise UnavailableError("the digits need scikit-learn; pip install scikit-learn") from error
    data = load_digits()
    rng = np.random.default_rng([seed, len(data.target)])
    owners: list[list[int]] = []
    # Drawn again until nobody has too few images to test on.
    while not owners or min(map(len, owners)) < LEAST:
        owners = [[] for _ in range(CLIENTS)]
        for digit in range(10):
            own = rng.permutation(np.flatnonzero(data.target == digit))
            cuts = (np.cumsum(rng.dirichlet([alpha] * CLIENTS))[:-1] * len(own)).astype(int)
            for client, part in enumerate(np.split(own, cuts)):
                owners[client] += part.tolist()
    result = []
    for owned in owners:
        shuffled = rng.permutation(owned)
        images = torch.from_numpy((data.data[shuffled] / 16).astype(np.float32))
        labels, cut = torch.from_numpy(data.target[shuffled].astype(np.int64)), len(shuffled) // TESTED
        result.append((Digits(images[cut:], labels[cut:]), Digits(images[:cut], labels[:cut])))
    return tuple(result)


@one_thread()
def digits_experiment(
    make: Callable[[Replica], Method], *, alpha: float = 0.5, seed: int = 0, rounds: int = ROUNDS, common: bool = False
) -> tuple[Outcome, VirtualMethods]:
    """Train a network of one hidden layer on ten virtual clients, and return how it ends.

    Parameters
    ----------
    make : callable
        Makes the method from a client's replica.
    alpha : float
        Concentration of the clients' mixtures; the smaller, the less clients have in common.
    seed : int
        Of mixtures, initialisation and batches.
    rounds : int
        Of :data:`TAU` steps each.
    common : bool
        Test on all clients' test images, where all have one model.
    """
    data = shared_out(alpha, seed)

    def replica() -> Replica:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
        return Replica(model, partial(torch.optim.SGD, lr=RATE), nullcontext, lambda trial: trial(data[0][0].images))

    team = VirtualMethods([replica() for _ in data], make)
    draws = [np.random.default_rng([seed, client, 7]) for client in range(CLIENTS)]
    for _ in range(rounds * TAU):
        losses: list[Any] = []
        for method, (train, _), rng in zip(team.methods, data, draws, strict=True):
            method.optimizer.zero_grad()
            rows = torch.from_numpy(rng.integers(len(train.labels), size=BATCH))
            losses.append(functional.cross_entropy(method.model(train.images[rows]), train.labels[rows]))
        team.backward(losses)
        team.step()
    team.finish()
    tests = [test for _, test in data]
    if common:
        tests = [Digits(torch.cat([test.images for test in tests]), torch.cat([test.labels for test in tests]))]
    accuracies, means = [], []
    with torch.no_grad():
        for method, test in zip(team.methods, tests, strict=False):
            logits = method.model(test.images)
            accuracies.append(float((logits.argmax(1) == test.labels).float().mean()))
            means.append(float(functional.cross_entropy(logits, test.labels)))
    figures = [method.figures() for method in team.methods]
    sent = math.fsum(each.get("packet_bytes", 0.0) for each in figures) / CLIENTS / rounds
    left = math.fsum(each.get("kept_share", 1.0) for each in figures) / CLIENTS
    return Outcome(float(np.mean(accuracies)), float(np.mean(means)), sent, left), team
