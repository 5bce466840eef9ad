"""A sparse classifier over forked ranks: what each finds, for tests/efficiency/systems/prox_csl/test_run.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from tests.support.gloo_ranks import fork_ranks

CASES = ((0, 0.0, "naive"), (0, 0.0, "owa"), (2, 0.0, "naive"), (2, 0.01, "naive"), (2, "guarded", "zeros"))
"""Updates, strength of the proximal term, start."""
PARTITIONS, LAM = 5, 0.003


def made(one_class: bool = False) -> tuple[sparse.csr_array, np.ndarray]:
    """Return items that five features tell apart, with noise; those of the first partition of one class, if asked."""
    rng = np.random.default_rng(3)
    features = sparse.random_array((400, 60), density=0.15, rng=rng, format="csr")
    labels = (features @ np.r_[[4.0, -4.0, 3.0, -3.0, 2.0], np.zeros(55)] + 0.3 * rng.logistic(size=400) > 0).astype(
        int
    )
    if one_class:
        labels[: 400 // PARTITIONS] = 1
    return features, labels


def found(holders: Any, penalty: np.ndarray) -> list[dict[str, Any]]:
    """Return what every case comes to."""
    from densing.efficiency.systems.prox_csl.surrogate import train_csl

    results = []
    for updates, alpha, start in CASES:
        before = holders.bytes
        trained = train_csl(holders, penalty, updates=updates, alpha=alpha, start=start)  # type: ignore[arg-type]
        results.append(
            {"weights": trained.weights.tolist(), "history": trained.history, "bytes": trained.bytes - before}
        )
    return results


def work(rank: int, ranks: int) -> dict[str, Any]:
    """Answer rank 0, or be it."""
    from densing.efficiency.parallel.distributed import Clock
    from densing.efficiency.systems.prox_csl.parts import Part
    from densing.efficiency.systems.prox_csl.run import Spread

    out: dict[str, Any] = {}
    for name in ("both", "one class"):
        features, labels = made(name == "one class")
        # In order, so that the one class lies in one partition.
        rows = np.array_split(np.arange(len(labels)), PARTITIONS)
        mine = np.array_split(np.arange(PARTITIONS), ranks)[rank]
        penalty = np.full(features.shape[1], LAM)
        parts = [Part(features[rows[number]], labels[rows[number]]) for number in mine]
        holders = Spread(parts, rank, ranks, penalty, Clock())
        if rank:
            holders.answer()
            continue
        out[name] = {"found": found(holders, penalty), "items": holders.items, "skipped": holders.skipped}
        holders.end()
    return out


if __name__ == "__main__":
    fork_ranks(work)
