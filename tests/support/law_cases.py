"""One realistic parameter vector and table per law, shared by the tests of laws and fits."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.scores.laws import Law, get_law, law_names
from densing.scores.laws.registry import law_class
from tests.support import folders


@dataclass(frozen=True)
class Case:
    """A law with plausible parameters."""

    name: str
    theta: tuple[float, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def law(self) -> Law:
        return get_law(self.name, **self.options)

    def table(self, n: int = 60, seed: int = 0) -> dict[str, NDArray[np.float64]]:
        rng = np.random.default_rng(seed)
        params = np.exp(rng.uniform(np.log(2e7), np.log(2e11), n))
        everything = {
            "params": params,
            "tokens": params * np.exp(rng.uniform(np.log(5), np.log(400), n)),
            "loss": rng.uniform(0.15, 1.2, n),
        }
        return {name: everything[name] for name in self.law.inputs}

    def __str__(self) -> str:
        return self.name + "".join(f",{key}={value}" for key, value in self.options.items())


def _typical(output: str) -> list[Case]:
    """Each registered law with its default options, but for those that need options of their own below."""
    laws = {name: law_class(name) for name in law_names()}
    return [
        Case(name, law.typical)
        for name, law in laws.items()
        if law.output == output and name not in ("sigmoid-fixed", "logistic", "two-step")
    ]


LOSS_CASES = _typical("loss")
SCORE_CASES = [
    *_typical("score"),
    Case("sigmoid-fixed", (-9.0, 0.6), {"floor": 0.25, "ceiling": 0.95}),
    Case("sigmoid-fixed", (0.5, -9.0, 0.6), {"floor": 0.25, "ceiling": None}),
    Case("logistic", (0.55, 0.9, 22.5), {"floor": 0.25}),
    Case("logistic", (0.9, 22.5), {"floor": 0.25, "ceiling": 0.9}),
    Case("logistic", (0.55, 0.9, 22.5, 0.25), {"floor": None}),
]
TWO_STEP_CASES = [
    Case("two-step", law_class("two-step").typical),
    Case("two-step", (0.2, 90.0, 200.0, 0.3, 0.3, 0.6, -9.0, 0.7), {"loss": "chinchilla", "floor": 0.25}),
]
ABILITY_CASES = _typical("ability")
CASES = LOSS_CASES + SCORE_CASES + TWO_STEP_CASES + ABILITY_CASES


def noisy(case: Case, seed: int, noise: float) -> tuple[Law, dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """A table of 60 rows that follows a case's law but for noise: log-normal on losses, normal on scores."""
    law, x = case.law, case.table(60, seed)
    rng = np.random.default_rng(seed + 100)
    y = law.predict(case.theta, x)
    if law.output == "loss":
        return law, x, y * np.exp(noise * rng.standard_normal(60))
    y = y + noise * rng.standard_normal(60)
    return law, x, np.clip(y, 0.0, 1.0) if law.output == "score" else y


def open_lm_runs(corpus: str) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Inputs and losses of the published runs on a corpus (``c4``, ``redpajama``, ``refinedweb``)."""
    lines = (folders.DATA / "open_lm_runs.csv").read_text(encoding="utf-8").splitlines()
    rows = [
        row for row in csv.DictReader(line for line in lines if not line.startswith("#")) if row["corpus"] == corpus
    ]
    columns = {name: np.array([float(row[name]) for row in rows]) for name in ("params", "tokens", "loss")}
    return {"params": columns["params"], "tokens": columns["tokens"]}, columns["loss"]
