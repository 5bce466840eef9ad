"""Comparison of policies on the same requests, and a recommendation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import t

from densing.core import Array, InputError, UnknownNameError, named_seed
from densing.efficiency.systems.offload.actions import Actions
from densing.efficiency.systems.offload.channel import Channel
from densing.efficiency.systems.offload.policies import (
    POLICIES,
    Expected,
    Policy,
    always,
    best_fixed,
    chance,
    greedy,
    kinds_of_choice,
    last,
    oracle,
    play,
    train_actor,
)
from densing.efficiency.systems.offload.requests import Requests, Service

TRAIN_EPISODES, STEPS = 64, 200
"""Training episodes; each is this many requests long."""
TRACES = 40
"""Episodes that are tried: what they cost is little beside the actor's training."""
SIMPLEST_FIRST = ("device-only", "edge-only", "fixed", "last", "greedy", "expected", "sac-d", "random")
CANNOT = ("oracle",)
"""Policies that cannot be deployed, because they know the future bandwidth."""


class Difference(NamedTuple):
    """Mean reward of the actor less that of a rival, over the same requests, with its interval."""

    rival: str
    mean: float
    lo: float
    hi: float


class Ranking(NamedTuple):
    """What the rewards of policies on the same requests amount to.

    Attributes
    ----------
    differences : tuple of Difference
        Of the actor to every other policy; () where it did not take part.
    recommended : str
        The simplest of the tie.
    tied : tuple of str
        The others that the best does not beat by more than chance, the best first.
    reason : str
    """

    differences: tuple[Difference, ...]
    recommended: str
    tied: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Contest:
    """Results of each policy.

    Parameters
    ----------
    rewards : mapping of str to float (seeds, traces)
        Mean reward of each policy; of one that draws nothing all rows are the same.
    latencies : mapping of str to float
        95 % quantile of the latency.
    late : mapping of str to float
        Share of requests that missed the deadline.
    shares : mapping of str to float (n,)
        How often each choice was taken.
    ranking : Ranking
    policies : mapping of str to Policy
        Each as it decided; of several seeds the first's.
    level : float
    """

    rewards: dict[str, Array]
    latencies: dict[str, float]
    late: dict[str, float]
    shares: dict[str, Array]
    ranking: Ranking
    policies: dict[str, Policy]
    level: float


def hold_contest(
    actions: Actions, service: Service, channel: Channel, *, policies: Sequence[str] = tuple(POLICIES),
    traces: int = TRACES, seeds: int = 5, updates: int = 3000, level: float = 0.95, seed: int = 0,
    progress: Callable[[str, float], None] = lambda _label, _share: None,
) -> Contest:  # fmt: skip
    """Compare policies on the same requests.

    Those that learn (``sac-d``, ``expected``, the fixed ones) learn from 64 episodes of 200 requests; all are then
    tried on other ones. What is fixed is the same for every seed, the actor is trained once for each.

    Parameters
    ----------
    actions : Actions
    service : Service
    channel : Channel
    policies : sequence of str
        Of :data:`POLICIES`.
    traces, seeds : int
        Episodes that are tried, and trainings of the actor.
    updates : int
        Of the actor.
    level : float
        Of intervals.
    seed : int
    progress : callable
        Called with a label and the share done.

    Raises
    ------
    UnknownNameError
        For a policy that does not exist.
    InputError
        Without one that can be taken, or fewer than two traces.
    """
    for name in policies:
        if name not in POLICIES:
            raise UnknownNameError("policy", name, POLICIES)
    if traces < 2 or seeds < 1:
        raise InputError(f"traces={traces}, seeds={seeds}: an interval needs at least two traces and one seed")
    train = Requests(actions, service, channel.draw(TRAIN_EPISODES, STEPS, named_seed(seed, "train")))
    test = Requests(actions, service, channel.draw(traces, STEPS, named_seed(seed, "test")))
    entered = _entered(policies, train, seeds, updates, seed, progress)
    played = {name: [play(policy, test) for policy in own] for name, own in entered.items()}
    rewards = {
        name: np.array([each.reward.mean(1) for each in (every * seeds if len(every) == 1 else every)])
        for name, every in played.items()
    }
    number = len(actions.labels)
    return Contest(
        rewards=rewards,
        latencies={n: float(np.quantile([each.latency for each in every], 0.95)) for n, every in played.items()},
        late={n: float(np.mean([each.latency > service.deadline_s for each in every])) for n, every in played.items()},
        shares={n: np.bincount(np.ravel([each.chosen for each in every]), minlength=number)
                / sum(each.chosen.size for each in every) for n, every in played.items()},
        ranking=rank(rewards, level),
        policies={name: own[0] for name, own in entered.items()}, level=level,
    )  # fmt: skip


def _entered(
    names: Sequence[str], train: Requests, seeds: int, updates: int, seed: int, progress: Callable[[str, float], None]
) -> dict[str, list[Policy]]:
    """Return the policies of each name, those that learn have learned: one for each seed where something is drawn.

    A name without a choice of its kind is left out.
    """
    kinds = kinds_of_choice(train)
    plain: dict[str, Policy] = {"oracle": oracle, "last": last, "greedy": greedy}
    entered: dict[str, list[Policy]] = {}
    for name in names:
        if name in plain:
            entered[name] = [plain[name]]
        elif name in kinds:
            if (choice := best_fixed(train, kinds[name])) is not None:
                entered[name] = [always(choice)]
        elif name == "expected":
            entered[name] = [Expected(train.conditions.bandwidth, seed)]
        elif name == "random":
            entered[name] = [chance(named_seed(seed, f"random {number}")) for number in range(seeds)]
        else:
            entered[name] = []
            for number in range(seeds):

                def told(share: float, number: int = number) -> None:
                    progress("sac-d", (number + share) / seeds)

                own = named_seed(seed, f"actor {number}") % 2**31
                entered[name].append(train_actor(train, steps=updates, seed=own, progress=told))
    return entered


def rank(rewards: Mapping[str, Array], level: float) -> Ranking:
    """Return the actor beside the others, what to take, what is as good, and why.

    To take is the simplest that the best does not beat by more than chance.

    Parameters
    ----------
    rewards : mapping of str to float (seeds, traces)
        Mean reward of each policy on the same requests.
    level : float

    Raises
    ------
    InputError
        Where nothing can be deployed.
    """
    differences = tuple(
        _difference(name, rewards["sac-d"] - own, level)
        for name, own in rewards.items() if name != "sac-d" and "sac-d" in rewards
    )  # fmt: skip
    usable = {name: float(own.mean()) for name, own in rewards.items() if name not in CANNOT}
    if not usable:
        raise InputError("policies: the oracle cannot be deployed; name at least one other policy")
    best = max(usable, key=lambda name: usable[name])
    level_with = [
        name
        for name in sorted(usable, key=lambda name: -usable[name])
        if name == best or _difference(name, rewards[best] - rewards[name], level).lo <= 0
    ]
    if len(level_with) == 1:
        return Ranking(differences, best, (), "it is significantly better than all others")
    # A name that the order does not know is as simple as the last in it.
    simplest = min(level_with, key=lambda name: (*SIMPLEST_FIRST, name).index(name))
    tied = tuple(name for name in level_with if name != simplest)
    reason = f"a tie with {', '.join(tied)}, none of them significantly better, and {simplest} is the simplest"
    return Ranking(differences, simplest, tied, reason)


def _difference(rival: str, cells: Array, level: float) -> Difference:
    """Return the mean over seeds and traces; its variance is that of the seeds' means and of the traces' means.

    Degrees of freedom are Satterthwaite's: where no seed makes a difference, those of the traces alone.
    """
    counts = np.array(cells.shape)
    parts = np.array([cells.mean(1 - axis).var(ddof=1) / n if n > 1 else 0.0 for axis, n in enumerate(counts)])
    variance = float(parts.sum())
    freedom = variance**2 / float((parts**2 / np.maximum(counts - 1, 1)).sum()) if variance else float(counts[1] - 1)
    half = float(t.ppf(0.5 + level / 2, freedom)) * math.sqrt(variance)
    mean = float(cells.mean())
    return Difference(rival, mean, mean - half, mean + half)
