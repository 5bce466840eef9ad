"""Stored evaluations of two models, of which one fails where a word stands; made by the tests themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from densing.scores.evals.identity import UnitKey
from densing.scores.evals.store import RunStore
from tests.support.eval_files import choice_sample, write_results

WORDS = ("boat", "river", "stone", "market", "lamp", "winter", "paper", "garden", "engine", "letter")


def explained_run(
    folder: Path,
    *,
    task: str = "toy",
    items: int = 240,
    first: int = 0,
    models: tuple[str, ...] = ("weak", "strong"),
    word: str = "river",
    seed: int = 0,
) -> Path:
    """Write a run: the weak model fails mostly where ``word`` stands, the strong one at random on a tenth."""
    for model in models:
        unit = RunStore(folder).unit(UnitKey({"type": "hf", "name": model}, {"name": task}, {}, model))
        rows = []
        for number in range(first, first + items):
            # An item is the same whichever model answers.
            rng = np.random.default_rng([seed, number])
            text = " ".join(rng.choice(WORDS, size=6, replace=False))
            text = text.replace("river", word)
            failing = 0.8 if word in text else 0.1
            own = np.random.default_rng([seed, number, len(model)])
            solved = own.random() > (failing if model == "weak" else 0.1)
            logs = [-1.0, -2.0] if solved else [-2.0, -1.0]
            sample = choice_sample(number, logs, 0, acc=float(solved))
            sample["doc"] = {"question": f"Tell of {text}.", "subject": ("law", "art")[number % 2], "id": f"n{number}"}
            rows.append(sample)
        with unit.stage() as staged:
            write_results(staged, {task: rows})
            unit.finish(staged, {"model": {"params_total": 134515008, "params_non_embedding": 1e8}, "caveats": []})
    return folder
