"""Densities from a few items of a planted bank, for docs/results/items.md: do intervals hold, and what do they take.

The world has the benchmarks of the OLMo ladder, with guessing. A model of N parameters has the mean score that a draw
of the reference's law gives it, spread over the benchmarks as their own laws are; an item is solved with probability
g + (1 - g) logistic(a (theta - b)), theta such that the benchmark's items have its score. The bank is calibrated, as
2PL or 1PL, on models of other sizes.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.special import expit

from densing.core import Array
from densing.report import markdown
from densing.scores.catalog import load_catalog
from densing.scores.density import bank_measurements, choose_items, run_densities
from densing.scores.evals import measurement_frame
from densing.scores.items import AnswerTable, ItemBank, calibrate_items
from densing.scores.references import available_benchmarks, ladder_reference, load_reference

ITEMS, KNOWN = 400, 80
"""Items of a benchmark, and models that the bank is calibrated on."""
COUNTS = (200, 800)
NAMES = tuple(name for name in available_benchmarks("olmo-ladder") if name != "mean")
NORMAL = (0.6745, 1.96)
"""Of a standard normal: the median of its size, and the end of its 95 %."""
ACROSS = np.linspace(-6, 6, 241)


class World:
    """Items of all benchmarks, and models that answer them."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.whole = ladder_reference("olmo-ladder", NAMES)
        self.parts = [load_reference("olmo-ladder", name) for name in NAMES]
        floors = load_catalog().benchmarks.set_index("id")["chance"].reindex(NAMES).fillna(0.25).to_numpy(float)
        shape = (len(NAMES), ITEMS)
        slope, difficulty = rng.lognormal(0.2, 0.4, shape), rng.normal(0, 1.5, shape)
        self.curves = floors[:, None, None] + (1 - floors[:, None, None]) * expit(
            slope[..., None] * (ACROSS - difficulty[..., None])
        )
        task = np.repeat([f"olmo_ladder_{name}" for name in NAMES], ITEMS)
        self.items = pd.DataFrame({"task": task, "text_hash": ""}, [f"{name}/{at % ITEMS}" for at, name in
                                                                   enumerate(task)])  # fmt: skip

    def answers(self, size: float, theta: Array) -> Array:
        """Return the answers of a model of a size, whose mean score a law with these parameters gives."""

        def predict(reference: object, parameters: Array) -> float:
            given = {name: np.array([value]) for name, value in reference.given.items()}  # type: ignore[attr-defined]
            law = reference.fit.law  # type: ignore[attr-defined]
            return float(law.predict(parameters, {"params": np.array([size]), **given})[0])

        own = np.array([predict(each, each.fit.theta) for each in self.parts])
        own += predict(self.whole, theta) - own.mean()
        found = []
        for score, curves in zip(own, self.curves, strict=True):
            at = np.interp(score, curves.mean(0), np.arange(len(ACROSS)))
            low = min(int(at), len(ACROSS) - 2)
            p = curves[:, low] + (at - low) * (curves[:, low + 1] - curves[:, low])
            found.append(self.rng.random(ITEMS) < p)
        return np.concatenate(found).astype(float)

    def size(self) -> float:
        """Return a size within the reference's range."""
        low, high = np.log(self.whole.fit.domain["params"])
        return float(np.exp(self.rng.uniform(low, high)))

    def bank(self) -> ItemBank:
        """Return the bank of models whose scores scatter around the reference's curve."""
        theta = self.whole.fit.theta
        answers = np.stack([self.answers(self.size() * self.rng.lognormal(0, 0.3), theta) for _ in range(KNOWN)])
        table = pd.DataFrame(answers, [f"m{at}" for at in range(KNOWN)], self.items.index)
        return calibrate_items(AnswerTable(table, pd.Series(pd.NaT, table.index), self.items), name="planted")


def plain(world: World, row: pd.Series, chosen: list[str]) -> pd.DataFrame:
    """Return measurements by plain means of items, as a full evaluation has them."""
    answers = row[chosen].groupby(world.items["task"][chosen], sort=False)
    mean, count = answers.mean(), answers.size()
    frame = pd.DataFrame({"task": mean.index, "value": mean.to_numpy(), "n_items": count.to_numpy()})
    frame["stderr"] = np.sqrt(frame["value"] * (1 - frame["value"]) / (frame["n_items"] - 1))
    about = {"model": "model", "metric": "accuracy", "filter": "none", "unit": "share", "higher_is_better": True,
             "file": "", "is_group": False, "definition": ""}  # fmt: skip
    frame = frame.assign(benchmark=frame["task"].str.removeprefix("olmo_ladder_"), **about)
    return measurement_frame(frame.to_dict("records"))


def tries(models: int, seed: int) -> pd.DataFrame:
    """Return ln of effective over true size, and whether the interval of density holds 1, by design and items."""
    world = World(seed)
    bank, rows = world.bank(), []
    for model in range(models):
        size = world.size()
        theta = world.whole.fit.draws[world.rng.integers(len(world.whole.fit.draws))]
        row = pd.Series(world.answers(size, theta), world.items.index)
        sizes = pd.DataFrame([{"model": "model", "params_total": size, "params_non_embedding": size}])
        every = run_densities(plain(world, row, list(row.index)), sizes).table.iloc[-1]
        for count in COUNTS:
            stratified = choose_items(bank, count, seed=seed + model)
            some = pd.Series(row.index).groupby(world.items["task"].to_numpy()).sample(
                count // len(NAMES), random_state=seed + model
            )  # fmt: skip
            for design, measured in (
                ("random, mean", plain(world, row, list(some))),
                ("stratified, control variate", bank_measurements(bank, row[stratified]).measurements),
            ):
                read = run_densities(measured, sizes).table.iloc[-1]
                held = read["density_lo"] <= 1 <= read["density_hi"]
                miss = math.log(read["n_eff"] / every["n_eff"])
                width = math.log(read["density_hi"] / read["density_lo"]) / 2 if read["density_lo"] > 0 else math.inf
                rows.append((design, count, miss, held, width))
    return pd.DataFrame(rows, columns=["design", "items", "miss", "held", "half"])


def needed(found: pd.DataFrame, target: float) -> pd.Series:
    """Return how many items a design takes until they leave ln density within +- target of that of all items.

    From the median of the misses at the largest count, as errors of a normal: misses near the floor have long tails.
    """
    last = found[found["items"].eq(max(COUNTS))].groupby("design", sort=False)["miss"]
    spread, every = last.agg(lambda miss: miss.abs().median()) / NORMAL[0], len(NAMES) * ITEMS
    return 1 / (1 / every + (target / NORMAL[1] / spread) ** 2 * (1 / max(COUNTS) - 1 / every))


def table(models: int, seed: int) -> dict[str, str]:
    """Return what the page says of densities."""
    found = tries(models, seed)
    groups = found.groupby(["design", "items"], sort=False)
    shown = groups.agg(
        miss=("miss", lambda miss: miss.abs().median()), held=("held", "mean"), half=("half", "median")
    )  # fmt: skip
    rows = []
    for design in dict.fromkeys(found["design"]):
        cells = [shown.loc[(design, count)] for count in COUNTS]
        rows.append((design, *(f"{at['miss']:.2f} (± {at['half']:.2f} holds {at['held']:.2f})" for at in cells)))
    tenth = needed(found, 0.1)
    share = tenth.iloc[1] / tenth.iloc[0]
    return {
        "densities": markdown.table(("design", *(f"{count} items" for count in COUNTS)), rows),
        "planted_models": str(models), "planted_known": str(KNOWN), "planted_items": str(len(NAMES) * ITEMS),
        "tenth_random": f"{tenth.iloc[0]:.0f}", "tenth_bank": f"{tenth.iloc[1]:.0f}", "tenth_share": f"{share:.2f}",
        "fifth": "reached" if share <= 0.2 else "not reached",
    }  # fmt: skip
