"""CO2 a second time, from its published pseudo-code, and the small problem on which both are run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def co2_by_hand(
    starts: np.ndarray,
    gradients: list[Any],
    steps: int,
    lr: float,
    tau: int,
    alpha: float,
    beta: float,
    phi: float | None,
    gap: str = "constant",
    penalty: float = 1.0,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Run CO2's published pseudo-code for all workers at once, in float64.

    Returns the live parameters (workers, d) and the anchor at the start of every round.
    """
    workers = len(gradients)
    x = np.tile(np.asarray(starts, float), (workers, 1))
    anchors, means, norms = [x[0].copy()], [], []
    m = np.zeros_like(x[0])
    for step in range(steps):
        for i in range(workers):
            x[i] -= lr * gradients[i](x[i])
        if (step + 1) % tau:
            continue
        t = (step + 1) // tau - 1
        means.append(x.mean(0))
        following = anchors[t].copy()
        if t > 0:
            norm = np.linalg.norm(anchors[t] - anchors[t - 1])
            earlier = [n for n in norms if n > 0]
            factor = penalty
            if gap == "aware":
                factor = 1 + norm / np.mean(earlier) if earlier else 1.0
            norms.append(norm)
            m = beta * m + (anchors[t - 1] - means[t - 1]) / factor
            m = m if phi is None else np.clip(m, -phi, phi)
            following = anchors[t] - alpha * m
        anchors.append(following)
        x[:] = following
    return x, anchors


class Bowl(torch.nn.Module):  # type: ignore[misc]
    """Half the squared length of ``a x - b``."""

    def __init__(self, a: np.ndarray, b: np.ndarray, start: np.ndarray) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(start, dtype=torch.float32))
        self.register_buffer("a", torch.tensor(a, dtype=torch.float32))
        self.register_buffer("b", torch.tensor(b, dtype=torch.float32))

    def forward(self) -> Any:
        return 0.5 * (self.a @ self.x - self.b).square().sum()


def bowl(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4, 3)), rng.normal(size=4)


def slope(a: np.ndarray, b: np.ndarray) -> Any:
    return lambda x: a.T @ (a @ x - b)


def steps_of(co2: Any, model: Any, count: int) -> None:
    for _ in range(count):
        model.zero_grad()
        model().backward()
        co2.step()
