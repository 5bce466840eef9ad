"""Ranks whose speed varies: does a delay fitted to recorded steps explain what predictions of short rounds miss?

    python benchmarks/varying.py [--out DIR] [--link 200mbit] [--steps 48] [--page PAGE]

`densing calibrate --link` measures link and modules. Then LocalSGD runs with rounds of 1, 2, 4 and 8 steps, the last
half of the steps recorded. `densing calibrate TRACES --delays` fits how late ranks are to the run of tau = 8 alone; all
are predicted without and with that delay. Once as the machine is (its load average is printed), and once beside two
processes of ours that compute and pause, for times drawn from a seed: there ranks' speeds really vary. Link and modules
are measured before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overlap import densing

from densing.core import formatting
from densing.efficiency.parallel import RunSpec
from densing.efficiency.simulation import load_cluster
from densing.efficiency.systems.prediction import predict
from densing.report import markdown

FITTED, TAUS = 8, (1, 2, 4, 8)
HEAD = ("steps per round", "measured, ms", "predicted, ms", "error", "with delays, ms", "error")


def run(tau: int, link: str, steps: int, out: Path) -> dict[str, Any]:
    """Run LocalSGD, half of its steps recorded."""
    return densing(
        "train", "-t", "local-sgd", "--tau", str(tau), "--link", link, "--steps", str(steps), "--trace-steps",
        str(steps // 2), "--out", str(out), "--json",
    )  # fmt: skip


BUSY = """
import random, time
draw = random.Random({seed})
while True:
    end = time.perf_counter() + draw.expovariate(4.0)
    while time.perf_counter() < end:
        pass
    time.sleep(draw.expovariate(2.0))
"""
"""A process that computes a quarter of a second and pauses half a second, in the mean."""


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Let so many processes compute and pause meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY.format(seed=seed)]) for seed in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def compared(base: Path, out: Path, link: str, steps: int) -> tuple[str, list[tuple[str, ...]]]:
    """Return what was fitted, and a row per length of the rounds."""
    late = out / "late.toml"
    runs = {tau: run(tau, link, steps, out / f"tau{tau}") for tau in TAUS}
    densing("calibrate", str(out / f"tau{FITTED}"), "--delays", "--base", str(base), "--out", str(late), "--json")
    plain = load_cluster(base)
    delay = load_cluster(late).delay
    rows: list[tuple[str, ...]] = []
    for tau, one in runs.items():
        spec = RunSpec("local-sgd", {"tau": tau}, nproc=2, link=link)
        step = one["step_s"]
        cells = [formatting.milliseconds_of(1e3 * step)]
        for cluster in (plain, plain.change(delay=delay)):
            predicted = predict(spec, cluster).step_s
            cells += [formatting.milliseconds_of(1e3 * predicted), formatting.percentage(predicted / step - 1)]
        rows.append((str(tau), *cells))
    return str(delay), rows


def main() -> None:
    """Print the table, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--link", default="200mbit")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    sections = []
    with tempfile.TemporaryDirectory() as temporary:
        out = given.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        load = os.getloadavg()[0]
        densing("calibrate", "--link", given.link, "--out", str(out / "link.toml"), "--json")
        for name, count in (("As the machine is", 0), ("Beside two processes that compute and pause", 2)):
            with beside(count):
                fitted, rows = compared(out / "link.toml", out / f"beside{count}", given.link, given.steps)
            sections += [f"## {name}", f"Delays fitted: {fitted}.", markdown.table(HEAD, rows)]
    text = "\n\n".join([
        "# Ranks whose speed varies",
        f"Written by `python benchmarks/varying.py --link {given.link} --steps {given.steps} "
        "--page docs/results/varying.md`.",
        f"LocalSGD on two ranks of this machine over {given.link}, load average {load:.1f} before. Delays are fitted "
        f"to the run with rounds of {FITTED} steps. A round waits for the slower sum of its steps, so what varies "
        "costs the more the shorter rounds are.",
        *sections,
    ])  # fmt: skip
    if given.page:
        given.page.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
