"""What is claimed of SAC-d, and what we find: policies on the ways to serve a small model, whose quality was measured.

The abstract says in words that it outperforms fixed schemes; the other claims are ours. Ways, qualities and layers'
times were recorded by ``benchmarks/deploy.py``; the link is made up. The tokens stay on the device: the paper's frames
are far larger than what a layer hands over, while tokens are smaller than any state, and sending them leaves nothing to
choose.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from densing.core import UnavailableError, read_json
from densing.efficiency.simulation import Served
from densing.efficiency.systems.claims import Answer, Claim, Physics
from densing.efficiency.systems.offload.actions import Actions, list_actions, whole_bits
from densing.efficiency.systems.offload.channel import Markov
from densing.efficiency.systems.offload.contest import Contest, Difference, hold_contest
from densing.efficiency.systems.offload.requests import Service

if TYPE_CHECKING:
    from collections.abc import Callable

PAPER = "Niu et al., arXiv 2201.02968, abstract"
SETUP = (
    "SmolLM2-135M-Instruct, 4 bits; tokens stay on the device, deadline 3/4 of the time on a busy "
    "device, 10 traces, "
    "5 seeds"
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


@cache
def contest() -> Contest:
    """Return the policies beside each other."""
    times, actions = recorded_actions()
    link = Markov()
    deadline = SHARE * link.busy * times.split(times.layers, None)[0]
    return hold_contest(actions, Service(deadline, deadline, 0.01), link)


def _asked(answer: Callable[[Contest], Answer]) -> Callable[[Physics], Answer]:
    def check(_: Physics) -> Answer:
        try:
            return answer(contest())
        except UnavailableError as error:
            return Answer(None, str(error))

    return check


def _said(each: Difference) -> str:
    return f"{each.rival} {each.mean:+.3f} ({each.lo:+.3f} to {each.hi:+.3f})"


def _beside_fixed(found: Contest) -> Answer:
    chosen = [each for each in found.differences if each.rival in FIXED]
    ahead = all(each.lo > 0 for each in chosen)
    behind = any(each.hi < 0 for each in chosen)
    value = "sac-d > fixed schemes" if ahead else "a fixed scheme > sac-d" if behind else "no difference shown"
    return Answer(value, "mean reward of sac-d beyond " + ", ".join(map(_said, chosen)))


def _regret(found: Contest) -> Answer:
    ours, best = (float(np.mean(found.rewards[name])) for name in ("sac-d", "oracle"))
    return Answer("below 5 %" if 1 - ours / best < 0.05 else "5 % or more",
                  f"{100 * (1 - ours / best):.1f} % of the oracle's mean reward")  # fmt: skip


def _beside(rival: str) -> Callable[[Contest], Answer]:
    def compared(found: Contest) -> Answer:
        each = next(each for each in found.differences if each.rival == rival)
        words = "better" if each.lo > 0 else "worse" if each.hi < 0 else "no difference shown"
        return Answer(words, f"{_said(each)}; {found.recommended} recommended: {found.reason}")

    return compared


def _latency(_: Physics) -> Answer:
    tried = record().get("tried", [])
    if not tried:
        return Answer(None, "nothing was really served")
    off = float(np.median([abs(way["measured_ms"] / way["predicted_ms"] - 1) for way in tried]))
    return Answer("within 20 %" if off <= 0.2 else "further off",
                  f"median {100 * off:.1f} % over {len(tried)} ways, {record()['link']}")  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    Claim("SAC-1", "reward against fixed schemes", SETUP, "sac-d > fixed schemes", "", "first-hand", PAPER,
          _asked(_beside_fixed), slow=True, grade="measured",
          inputs="our own qualities and times; a made-up link"),
    Claim("SAC-2", "regret against the oracle", SETUP, "below 5 %", "", "measured", "ours", _asked(_regret), slow=True,
          grade="own measurement"),
    Claim("SAC-3a", "reward against enumeration at the last bandwidth", SETUP, "better", "", "measured", "ours",
          _asked(_beside("last")), slow=True, grade="own measurement"),
    Claim("SAC-3b", "reward against enumeration over past successors of the last bandwidth", SETUP, "better",
          "", "measured", "ours", _asked(_beside("expected")), slow=True, grade="own measurement"),
    Claim("SAC-4", "predicted latency of real requests", "SmolLM2-135M-Instruct over a shaped link, two processes",
          "within 20 %", "", "measured", "ours", _latency, grade="own measurement"),
)  # fmt: skip
