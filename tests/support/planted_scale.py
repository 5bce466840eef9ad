"""A world whose joint scale is known: an anchor, families beside it, and small models far below the anchor's sizes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from densing.scores.catalog import Catalog, load_catalog
from densing.scores.joint import JointScale, joint_cells
from densing.scores.trend import DAYS_PER_MONTH

SLOPE = 0.5
BENCHMARKS = ("mmlu", "arc_challenge", "bbh")
PACE = np.log(2) / (6 * DAYS_PER_MONTH)
KNEE = np.log(0.494e9 / 3)
"""Where the anchor's guard ends."""
SINGLES = 30


def planted() -> pd.DataFrame:
    """An anchor of 0.5 to 72 B, eleven families beside it, one of them small, and single tiny models, mostly early."""
    dates = pd.date_range("2023-03-01", "2025-12-01", periods=10).strftime("%Y-%m-%d")
    families = {"Qwen2.5": ("2024-09-19", (0.494e9, 1.54e9, 3.09e9, 7.61e9, 14.8e9, 32.8e9, 72.7e9))}
    families |= {f"Line {number}": (day, (0.6e9, 2e9, 8e9, 30e9)) for number, day in enumerate(dates)}
    families["Small"] = ("2025-11-01", (0.07e9, 0.16e9, 0.41e9, 1.4e9))
    rng = np.random.default_rng(8)
    singles = pd.Timestamp("2023-03-01") + pd.to_timedelta(rng.uniform(0, 400, SINGLES).round(), unit="D")
    for number, (day, size) in enumerate(zip(singles, rng.uniform(0.05e9, 0.2e9, SINGLES), strict=True)):
        families[f"Single {number}"] = (str(day.date()), (size,))
    rows = [
        {"model": f"{family}-{size / 1e9:.3g}B", "family": family, "organisation": family, "params": size}
        | {"released": day, "benchmark": benchmark, "score": 0.5}
        for family, (day, sizes) in families.items()
        for size in sizes
        for benchmark in BENCHMARKS
    ]
    return pd.DataFrame(rows)


class KnownScale:
    """A joint scale whose abilities are given: what a fit would say of them, with its noise."""

    notes, placed = (), ()

    def __init__(self, catalog: Catalog, ability: pd.Series, noise: float, rng: np.random.Generator) -> None:
        self.cells = joint_cells(catalog)
        self.benchmarks = sorted(set(self.cells.table["benchmark"]))
        self.models = ability.index.tolist()
        seen = ability.to_numpy() + noise * rng.standard_normal(len(ability))
        self.draws = seen + noise * rng.standard_normal((200, len(ability)))

    def __len__(self) -> int:
        return len(self.models)

    def ability(self, basket: str) -> np.ndarray:
        return self.draws

    def abilities(self, basket: str, level: float = 0.95) -> pd.DataFrame:
        middle, sd = np.median(self.draws, axis=0), self.draws.std(axis=0)
        table = {"model": self.models, "ability": middle, "sd": sd, "lo": middle - 2 * sd, "hi": middle + 2 * sd}
        traits = [3 if name.startswith("Single") else 4 for name in self.models]
        return pd.DataFrame(table).assign(cells=3, traits=traits)


@lru_cache(maxsize=1)
def planted_catalog() -> Catalog:
    return load_catalog(planted(), embedded=False)


@lru_cache(maxsize=8)
def planted_scale(seed: int, steeper: float = 1.0) -> tuple[JointScale, pd.Series]:
    """A scale on which ability grows by SLOPE per ln N down to the anchor's guard, and by a multiple of it below.

    Densities follow the pace, with families and models around it; the true ln densities come with the scale.
    """
    catalog, rng = planted_catalog(), np.random.default_rng(seed)
    models = catalog.models.set_index("model").sort_index()
    days = (models["released"] - pd.Timestamp("2024-09-19")).dt.days
    family = models["family"].map({name: 0.3 * rng.standard_normal() for name in sorted(set(models["family"]))})
    density = PACE * days + family.mask(models["family"].eq("Qwen2.5"), 0.0)
    density += 0.15 * rng.standard_normal(len(models))
    effective = np.log(models["params_total_b"].astype(float) * 1e9) + density
    ability = SLOPE * (np.maximum(effective, KNEE) - np.log(8e9) + steeper * np.minimum(effective - KNEE, 0.0))
    return KnownScale(catalog, ability, 0.06, rng), density  # type: ignore[return-value]
