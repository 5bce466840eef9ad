"""A store of served variants whose numbers are made by the tests themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from densing.scores.evals.identity import UnitKey
from densing.scores.evals.served import Variant
from densing.scores.evals.store import RunStore
from tests.support.eval_files import choice_sample, write_results

LAYERS = 4
LOSSES = ((-4.0, -9.0), (-6.0, -5.5), (-8.0, -11.0))
"""Log-likelihoods of two answers of three documents; the first is right, and " answer 0" has 9 bytes."""


def write_variant(
    folder: Path, variant: Variant, more: tuple[float, float, float], tasks: tuple[str, ...] = ("hellaswag",),
    settings: Mapping[str, Any] | None = None, weights: str = "abc",
) -> None:  # fmt: skip
    """Store a variant of the model ``m`` that needs so many nats more per document than :data:`LOSSES`."""
    options = {name: value for name, value in vars(variant).items() if value is not None}
    rows = [choice_sample(n, [right - more[n], wrong], 0, acc=float(right - more[n] > wrong))
            for n, (right, wrong) in enumerate(LOSSES)]  # fmt: skip
    label = f"m@{variant.label}" if variant.label else "m"
    for task in tasks:
        model = {"type": "hf-served", "args": {"pretrained": weights, **options}, "revision": weights, "dtype": ""}
        unit = RunStore(folder).unit(UnitKey(model, {"name": task}, dict(settings or {}), label))
        last = variant.exit or LAYERS
        served = {**vars(variant), "exit": last, "layers": LAYERS, "weight_bytes": 200 * last, "bytes_per_token": 7}
        facts = {"params_total": 1000 * last, "params_non_embedding": 900 * last, "served": served}
        with unit.stage() as staged:
            write_results(staged, {task: rows})
            unit.finish(staged, {"model": facts})
