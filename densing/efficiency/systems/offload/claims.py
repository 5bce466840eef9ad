"""What is claimed of SAC-d, and what we find: policies on the ways to serve a small model, whose quality was measured.

The abstract says in words that it outperforms fixed schemes; the other claims are ours. Ways, qualities and layers'
times were recorded by ``benchmarks/deploy.py``; the link is made up. The tokens stay on the device: the paper's frames
are far larger than what a layer hands over, while tokens are smaller than any state, and sending them leaves nothing to
choose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from densing.core import read_json
from densing.efficiency.simulation import Served
from densing.efficiency.systems.claims import Answer, Claim, Physics, unless_unavailable
from densing.efficiency.systems.experiments import experiment
from densing.efficiency.systems.offload.actions import Actions, list_actions, whole_bits
from densing.efficiency.systems.offload.channel import Markov
from densing.efficiency.systems.offload.contest import TRACES, Difference, Ranking, hold_contest, rank
from densing.efficiency.systems.offload.requests import Service

PAPER = "Niu et al., arXiv 2201.02968, abstract"
SETUP = (
    "SmolLM2-135M-Instruct, 4 bits; tokens stay on the device, deadline 3/4 of the time on a busy "
    f"device, {TRACES} traces, 5 seeds"
)
RECORD = Path(__file__).with_name("recorded.json")
FIXED = ("fixed", "device-only", "random")
SHARE = 0.75
"""Deadline as a share of the whole model's time on a busy device; chosen so that the device alone is sometimes late."""


@cache
def record() -> dict[str, Any]:
    """Return the recorded ways to serve and times."""
    found: dict[str, Any] = read_json(RECORD)
    return found


def recorded_actions() -> tuple[Served, Actions]:
    """Return the times, and the recorded ways to serve."""
    stored = record()
    times = Served.from_dict(stored["times"])
    whole = whole_bits((way["exit"], way["cut"], way["bits_per_byte"]) for way in stored["ways"])
    return times, list_actions(
        times, [(way["exit"], way["cut"], way["cut_bits"], whole / way["bits_per_byte"]) for way in stored["ways"]]
    )


def ways() -> str:
    """Return the hash of the record."""
    return hashlib.sha256(RECORD.read_bytes()).hexdigest()[:12]


@experiment(dict[str, list[list[float]]])
def rewards(recorded: str, stay: float, often: float, traces: int, seeds: int, updates: int) -> dict[str, Any]:
    """Return every policy's mean reward, (seeds, traces), on the recorded ways to serve.

    Parameters
    ----------
    recorded : str
        Hash of the record, see :func:`ways`.
    stay : float
        Chance that the link stays as it is for another request.
    often : float
        Requests per deadline.
    traces, seeds, updates : int
        See :func:`densing.efficiency.systems.offload.hold_contest`.
    """
    times, actions = recorded_actions()
    link = Markov(stay=stay)
    deadline = SHARE * link.busy * times.split(times.layers, None)[0]
    service = Service(deadline, deadline / often, 0.01)
    held = hold_contest(actions, service, link, traces=traces, seeds=seeds, updates=updates)
    return {name: own.tolist() for name, own in held.rewards.items()}


def _ranked(stay: float = Markov.stay, often: float = 1.0) -> tuple[Ranking, dict[str, float]]:
    """Return how the policies stand to each other, and every policy's mean reward."""
    held = {name: np.array(own) for name, own in rewards(ways(), stay, often, TRACES, 5, 3000).items()}
    return rank(held, 0.95), {name: float(own.mean()) for name, own in held.items()}


def _said(each: Difference) -> str:
    return f"{each.rival} {each.mean:+.3f} ({each.lo:+.3f} to {each.hi:+.3f})"


def _beside_fixed() -> Answer:
    chosen = [each for each in _ranked()[0].differences if each.rival in FIXED]
    ahead = all(each.lo > 0 for each in chosen)
    behind = any(each.hi < 0 for each in chosen)
    value = "sac-d > fixed schemes" if ahead else "a fixed scheme > sac-d" if behind else "no difference shown"
    return Answer(value, "mean reward of sac-d beyond " + ", ".join(map(_said, chosen)))


def _regret(**link: float) -> Answer:
    means = _ranked(**link)[1]
    short = 1 - means["sac-d"] / means["oracle"]
    return Answer("below 5 %" if short < 0.05 else "5 % or more", f"{100 * short:.1f} % of the oracle's mean reward")


def _beside(rival: str, **link: float) -> Answer:
    ranking, _ = _ranked(**link)
    each = next(each for each in ranking.differences if each.rival == rival)
    words = "better" if each.lo > 0 else "worse" if each.hi < 0 else "no difference shown"
    return Answer(words, f"{_said(each)}; {ranking.recommended} recommended: {ranking.reason}")


def _latency(_: Physics) -> Answer:
    tried = record().get("tried", [])
    if not tried:
        return Answer(None, "nothing was really served")
    off = float(np.median([abs(way["measured_ms"] / way["predicted_ms"] - 1) for way in tried]))
    return Answer("within 20 %" if off <= 0.2 else "further off",
                  f"median {100 * off:.1f} % over {len(tried)} ways, {record()['link']}")  # fmt: skip


def _ours(name: str, what: str, words: str, check: Callable[..., Answer]) -> Claim:
    return Claim(
        name, what, SETUP, words, "", "measured", "ours", unless_unavailable(check), grade="own measurement",
        assumptions={
            "a link that changes at once (stay 0.2, not 0.9)": partial(check, stay=0.2),
            "requests twice as often": partial(check, often=2.0),
        },
    )  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    Claim("SAC-1", "reward against fixed schemes", SETUP, "sac-d > fixed schemes", "", "first-hand", PAPER,
          unless_unavailable(_beside_fixed), grade="measured",
          inputs="our own qualities and times; a made-up link"),
    _ours("SAC-2", "regret against the oracle", "below 5 %", _regret),
    _ours("SAC-3a", "reward against enumeration at the last bandwidth", "better", partial(_beside, "last")),
    _ours("SAC-3b", "reward against enumeration over past successors of the last bandwidth", "better",
          partial(_beside, "expected")),
    Claim("SAC-4", "predicted latency of real requests", "SmolLM2-135M-Instruct over a shaped link, two processes",
          "within 20 %", "", "measured", "ours", _latency, grade="own measurement"),
)  # fmt: skip
