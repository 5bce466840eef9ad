"""docs/results/worth.md: whether verdicts on techniques are right in worlds whose truth is known, and what they are.

    python benchmarks/worth.py --page docs/results/worth.md [--worlds 400] [--gain GAIN.json ...]

In a world devices, links, the token ratio and its trend are off by what the answer believes of them (or by more, or
otherwise); `densing.worth` is given the cluster's figures and a record with the noise, and is held to the truth. The
verdicts below are those of the shipped records, and of records that ``--gain`` adds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from overlap import densing

from densing.core import formatting
from densing.efficiency.simulation import Cluster, Device, Link, Split, Transformer, Workload
from densing.efficiency.systems import compare
from densing.report import markdown
from densing.tradeoff import GainRecord, worth

MODEL = Transformer("toy", layers=4, hidden=256, heads=8, kv_heads=8, head_dim=32, ffn=1024, vocabulary=512)
STEP = Workload(MODEL, "train", batch=4, sequence=128, split=Split(dp=4))
PARAMS = 4 * (4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256) + 256
CLUSTER = Cluster(
    "toy", 4, 1, Device("toy", 1e12, 1e12), intra=Link(1e-6, 1e-10), inter=Link(1e-5, 1e-9), host=Link(0.0, 1e-10)
)
ARM, TOKENS, WIDTH = "co2:tau=8", 1e6, 2 * math.log(2)
"""The record's middle, and how far its budgets reach (in ln); the run is an e-fold beyond the middle."""
SPREAD, SD, SLOPE_SD = 0.2, 0.1, 0.05
"""Of ln step, ln ratio and the trend: what the answer is told."""
GRID = 0.02
Z = NormalDist().inv_cdf(0.975)
MIDDLE, WIDE = math.log(0.6), 0.5
"""Of the true ln ratios."""
BINS = (0.0, 0.5, 0.8, 1.0, 1.25, 2.0, math.inf)


Draw = Callable[[np.random.Generator], float]


def normal(scale: float) -> Draw:
    """Return draws of a normal about 0."""
    return lambda rng: float(rng.normal(0, scale))


def heavy(scale: float) -> Draw:
    """Return draws of Student's t with three degrees of freedom, of a normal's quartiles."""
    return lambda rng: float(scale * rng.standard_t(3) * 0.6745 / 0.7649)


BELIEVED = {"network": normal(SPREAD), "compute": normal(SPREAD), "noise": normal(SD), "bend": normal(1)}


@dataclass(frozen=True)
class World:
    """How a world differs from what is said of it: functions that draw, given a generator.

    ``network``, ``compute``: ln of the true speed over the cluster's; ``noise``: of the measured ln ratio; ``bend``:
    of the trend over a further width of the ladder, as a share of the trend.
    """

    name: str
    network: Draw = BELIEVED["network"]
    compute: Draw = BELIEVED["compute"]
    noise: Draw = BELIEVED["noise"]
    bend: Draw = BELIEVED["bend"]
    even: bool = False
    """Whether the true gain is 1: the ratio is what the step's speed asks for."""


WORLDS = (
    World("as believed"),
    World("devices as said, trends that do not bend", compute=normal(0), bend=normal(0)),
    World("heavy tails (t, 3 degrees of freedom)", heavy(SPREAD), heavy(SPREAD), heavy(SD), heavy(1)),
    World("devices and links twice as far off", normal(2 * SPREAD), normal(2 * SPREAD)),
    World("as believed, nothing gained or lost", even=True),
)


@cache
def speedup(network: float, compute: float) -> float:
    """Return how many times as fast the arm's step truly is."""
    there = CLUSTER.change(
        inter=CLUSTER.inter.faster(network), intra=CLUSTER.intra.faster(network),
        device=Device("toy", 1e12 * compute, 1e12 * compute),
    )  # fmt: skip
    name, _, tau = ARM.partition(":tau=")
    return float(compare(STEP, there, ["ddp", name], knobs={name: {"tau": int(tau)}}).rows[1].speedup or math.nan)


def lived(world: World, rng: np.random.Generator) -> tuple[float, Any]:
    """Return the true gain of a world, and the verdict on it."""
    network, compute = (math.exp(round(each(rng) / GRID) * GRID) for each in (world.network, world.compute))
    speed = math.log(speedup(network, compute))
    slope = float(rng.normal(-0.2, 0.1))
    moved = slope + world.bend(rng) * slope / (2 * WIDTH)
    ratio = -speed - moved if world.even else float(rng.normal(MIDDLE, WIDE))
    told, seen = slope + float(rng.normal(0, SLOPE_SD)), ratio + world.noise(rng)
    ends = [math.exp(seen + side * Z * SD) for side in (-1, 1)]
    figures = {
        "arm": ARM, "density_ratio": 0.5, "density_lo": 0.4, "density_hi": 0.6, "token_ratio": math.exp(seen),
        "token_lo": ends[0], "token_hi": ends[1], "bytes": 1e6, "seconds": 1.0, "joules": 1.0, "pairs": 8,
        "status": "ok",
    }  # fmt: skip
    trends = [{"arm": ARM, "ratio": "token", "trend": told, "trend_lo": told - Z * SLOPE_SD,
               "trend_hi": told + Z * SLOPE_SD}]  # fmt: skip
    spec = {"baseline": "plain", "baseline_cost": {"bytes": 8e6}, "params": (PARAMS / 2, PARAMS * 2),
            "tokens": (TOKENS / 2, TOKENS * 2)}  # fmt: skip
    record = GainRecord(spec, "0", {}, [figures], trends=trends)
    return math.exp(speed + ratio + moved), worth([ARM], STEP, CLUSTER, TOKENS * math.e, gains=[record]).verdicts[0]


def worlds_tables(count: int) -> tuple[str, str]:
    """Return what the interval holds in each world, and what is said by the true gain in the first."""
    held_rows, said = [], []
    for world in WORLDS:
        rng = np.random.default_rng(0)
        truths, verdicts = zip(*(lived(world, rng) for _ in range(count)), strict=True)
        truth = np.array(truths)
        held = np.mean([each.gain.low <= true <= each.gain.high for true, each in zip(truth, verdicts, strict=True)])
        status = np.array([each.status for each in verdicts])
        losing = truth <= 1 + 1e-9
        wrong = np.mean(status[losing] == "pays") if losing.any() else math.nan
        other = np.mean(status[~losing] == "does not pay") if not world.even else np.mean(status == "does not pay")
        held_rows.append((world.name, share(held), share(wrong), share(other), share(np.mean(status == "not decided"))))
        if world is WORLDS[0]:
            for low, high in pairwise(BINS):
                which = (truth > low) & (truth <= high)
                counts = [np.mean(status[which] == name) if which.any() else math.nan
                          for name in ("pays", "not decided", "does not pay")]  # fmt: skip
                said.append((f"{low:g} to {high:g}", str(int(which.sum())), *map(share, counts)))
    header = ("world", "95 % interval holds", "“pays” where it does not", "“does not pay” where it does", "not decided")
    return (
        markdown.table(header, held_rows),
        markdown.table(("true gain", "worlds", "pays", "not decided", "does not pay"), said),
    )


def share(value: float) -> str:
    """Return a share in percent."""
    return formatting.MISSING if math.isnan(value) else formatting.percent(100 * float(value))


CASES = (
    ("llama-8b", "a100x8-tcp", "2e10"), ("llama-8b", "a100x8-rdma", "2e10"), ("llama-8b", "a100x8-tcp", "1e12"),
)  # fmt: skip
TECHNIQUES = "co2:tau=8,local-sgd:tau=8,slowmo:tau=8,dct:eta=.99,zero1"


def verdicts_table(records: list[Path]) -> str:
    """Return what is said of the shipped records' techniques, and of those of records that are given."""
    rows = []
    for model, cluster, tokens in CASES:
        run = f"{model}, {cluster}, {float(tokens):.0e} tokens"
        for gain in (None, *records):
            asked = ("worth", TECHNIQUES, "--model", model, "--cluster", cluster, "--tokens", tokens, "--json")
            found = densing(*asked, *([] if gain is None else ["--gain", str(gain)]))
            rows += [
                (run, "shipped" if gain is None else gain.stem, each["technique"], span(each["speedup"]),
                 span(each["token_ratio"]), span(each["gain"]),
                 formatting.number(each["break_even_ratio"]), each["status"])
                for each in found["verdicts"]
            ]  # fmt: skip
    return markdown.table(
        ("run", "record", "technique", "step", "a token is worth", "gain", "breaks even at", "verdict"), rows
    )


def span(value: dict[str, float] | None) -> str:
    """Return a figure with its ends."""
    if value is None:
        return formatting.MISSING
    return "{} ({} to {})".format(*(formatting.number(value[name]) for name in ("value", "low", "high")))


def main() -> None:
    """Live through the worlds, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--worlds", type=int, default=400)
    parser.add_argument("--gain", type=Path, action="append", default=[], help="a further record of gains")
    given = parser.parse_args()
    held, said = worlds_tables(given.worlds)
    text = "\n\n".join([
        "# Is it worth it? The verdicts, and how far to trust them",
        "Written by `python benchmarks/worth.py --page PAGE`. How the answer is made: "
        "[worth](../how-to/worth.md); where token ratios come from: [gain](gain.md).",
        "## Worlds whose truth is known",
        f"{given.worlds} worlds each: a toy model on four devices over a slow link, a technique with the plan of CO2, "
        f"and a record of its token ratio an e-fold from the run's tokens. Believed are errors of {SPREAD} of ln step, "
        f"{SD} of ln ratio and {SLOPE_SD} of its trend, and a trend that changes by as much as itself over a further "
        "width of the ladder. “As believed” draws just that; the others draw less, more, or otherwise. In the last "
        "nothing is gained or lost: whatever is decided there is wrong.",
        held,
        "What is said in the first of them, by the true gain:",
        said,
        "## Verdicts of the records",
        "Steps are predicted, ratios measured on small models and widened with the distance to the run; without a "
        "ratio the answer is one of time alone, with the ratio at which it would break even: the shipped ladders have "
        "some 5,500 parameters, and say nothing of runs a million times as large.",
        verdicts_table(given.gain),
    ])  # fmt: skip
    given.page.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
