"""Ladders as files without models, for what only reads their descriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from densing.scores.ladder import get_preset

SIZES = {float(shape.non_embedding): shape for shape in get_preset("cpu").shapes}


def write_ladder(
    folder: Path,
    losses: pd.DataFrame,
    arms: Mapping[str, str],
    cost: bool = True,
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write a ladder's descriptions without models; ``arms`` names the simulated ones, ``more`` adds to an arm's."""
    folder.mkdir()
    (folder / "ladder.json").write_text(json.dumps({"schema": 1, "preset": "cpu", "corpus_hash": "c"}))
    for row in losses.to_dict("records"):
        arm, shape = arms[row["arm"]], SIZES[row["params_non_embedding"]]
        steps = round(row["tokens"] / 512)
        name = f"{arm.replace(':', '-')}-{shape.name}-s{row['seed']}-{row['tokens']:.0f}"
        method, _, knobs = arm.partition(":")
        about: dict[str, Any] = {
            "schema": 1, "name": name, "run": name.rpartition("-")[0], "preset": "cpu", "size": shape.name,
            "seed": row["seed"], "target": "", "params_total": shape.total(703),
            "params_non_embedding": shape.non_embedding, "tokens": int(row["tokens"]), "arm": arm, "ranks": 4,
            "method": method, "knobs": dict(pair.split("=") for pair in knobs.split(",") if pair), "weight_bits": 32,
            "loss": {"validation_nats_per_token": row["loss"]},
            "schedule": {"steps": steps, "decay_from": round(0.8 * steps), "batch": 8, "block": 64},
        }  # fmt: skip
        if cost:
            about["cost"] = {"bytes": 1000.0 * steps, "seconds": 0.01 * steps, "joules": None}
        for key, value in (more or {}).get(arm, {}).items():
            about[key] = {**about[key], **value} if isinstance(value, Mapping) else value
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "densing.json").write_text(json.dumps(about))
    return folder
