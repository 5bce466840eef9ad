"""Coverage of 95 % intervals of fitted delays, and how often the true model is chosen.

    python benchmarks/delays.py --worlds 2000           # intervals, half an hour
    python benchmarks/delays.py --worlds 100 --choice    # the choice of a model

Ranks take 0.4 s of work for each of 30 steps, and a delay: exponential of mean 0.1 s, or Lomax of scale 0.1 s and shape
2.5; those that last are blurred by Gaussian jitter. Every figure follows from the seeds.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from densing.efficiency.simulation import fit_delays
from densing.efficiency.simulation.delay_fit import _iid, _persistent

STEPS = 30
JITTER_S = 0.005
CASES = (
    *(("shifted-exp", "step", ranks, 0.0) for ranks in (4, 8, 32)),
    *(("shifted-exp", "run", ranks, JITTER_S) for ranks in (4, 8, 32)),
    *(("shifted-exp", "run", ranks, jitter) for ranks, jitter in ((8, 0.1), (32, 0.1), (32, 0.3))),
    *(("pareto", "step", ranks, 0.0) for ranks in (4, 8, 32)),
    *(("pareto", "run", ranks, jitter) for ranks, jitter in ((8, JITTER_S), (32, JITTER_S), (32, 0.1))),
)
TRUTH = {"mu": 10.0, "scale": 0.1, "shape": 2.5, "work": 0.4}


def world(kind: str, lasts: str, ranks: int, jitter: float, random: np.random.Generator) -> np.ndarray:
    """Seconds by rank and step."""
    shape = (ranks, STEPS if lasts == "step" else 1)
    late = random.exponential(0.1, shape) if kind == "shifted-exp" else 0.1 * random.pareto(2.5, shape)
    own = 0.4 + late + np.zeros((ranks, STEPS))
    return own + random.normal(0, jitter, own.shape) if jitter else own


def coverage(worlds: int) -> None:
    """Print, per case and figure, how often of 100 the interval of the true model holds the truth."""
    print("| delays | last a | ranks | jitter, ms | mu | scale | shape | work |\n|---|---|---|---|---|---|---|---|")
    for kind, lasts, ranks, jitter in CASES:
        random = np.random.default_rng([ranks, int(1000 * jitter), len(kind), len(lasts)])
        hits: Counter[str] = Counter()
        for _ in range(worlds):
            own = world(kind, lasts, ranks, jitter, random)
            unit = float((own - own.min()).mean())
            model = (_iid if lasts == "step" else _persistent)((own - own.min()) / unit, kind)
            for name, truth in TRUTH.items():
                one = getattr(model, name)
                if one is not None:
                    at = {"mu": truth * unit, "shape": truth, "work": (truth - own.min()) / unit}.get(
                        name, truth / unit
                    )
                    hits[name] += one.low <= at <= one.high
        cells = [f"{100 * hits[name] / worlds:.1f}" if name in hits else "–" for name in TRUTH]
        print("|", " | ".join((kind, lasts, str(ranks), f"{1000 * jitter:g}", *cells)), "|", flush=True)


def choices(worlds: int) -> None:
    """Print which model is chosen, and with which status, in percent of the worlds."""
    print("| delays | last a | ranks | chosen, % | status, % |\n|---|---|---|---|---|")
    for kind, lasts, ranks, jitter in CASES:
        if jitter > JITTER_S:
            continue
        random = np.random.default_rng([ranks, len(kind), len(lasts)])
        fits = [fit_delays(world(kind, lasts, ranks, jitter, random)) for _ in range(worlds)]
        names, states = (Counter(each) for each in ((fit.models[0].name for fit in fits), (fit.status for fit in fits)))
        cells = ["; ".join(f"{key} {100 * n / worlds:g}" for key, n in one.most_common()) for one in (names, states)]
        print("|", " | ".join((kind, lasts, str(ranks), *cells)), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--choice", action="store_true")
    options = parser.parse_args()
    (choices if options.choice else coverage)(options.worlds)


if __name__ == "__main__":
    main()
