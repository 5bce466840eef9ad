"""Policies: enumeration at the present, last or expected bandwidth, fixed choices, a random choice, an actor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from densing.core import Array, named_stream
from densing.efficiency.simulation import EDGE
from densing.efficiency.systems.offload.requests import Requests, View

if TYPE_CHECKING:
    from densing.efficiency.systems.offload.sac import DiscreteSac

Policy = Callable[[Requests, View], np.ndarray]
"""Returns the index of the choice for each episode."""

POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "oracle": "the best choice at this request's actual bandwidth, which cannot be known in "
        "advance; looks no further ahead",
        "last": "the best choice at the bandwidth of the last request",
        "expected": "the best mean over the bandwidths that followed a similar one in training",
        "fixed": "the single choice that is best over all training requests",
        "greedy": "the fastest choice of the highest quality, at the last bandwidth (Neurosurgeon's rule)",
        "device-only": "the best fixed choice that sends nothing",
        "edge-only": "the best fixed choice that computes nothing on the device",
        "random": "any choice",
        "sac-d": "discrete soft actor-critic, trained on the training episodes",
    }
)
BINS, FOLLOWERS = 12, 64
"""Number of bins of the last bandwidth, and of successors considered per bin."""


class Played(NamedTuple):
    """Results of a policy: rewards, latencies and choices, each (episodes, steps)."""

    reward: Array
    latency: Array
    chosen: np.ndarray


def play(policy: Policy, requests: Requests) -> Played:
    """Serve all requests as a policy decides."""
    view = requests.reset()
    rewards, latencies, chosen = [], [], []
    while not requests.done:
        choice = policy(requests, view)
        reward, latency, view = requests.take(choice)
        rewards.append(reward)
        latencies.append(latency)
        chosen.append(choice)
    return Played(*(np.stack(each, axis=1) for each in (rewards, latencies, chosen)))


def oracle(requests: Requests, view: View) -> np.ndarray:
    """Choose the highest reward at the bandwidth that the request will find."""
    return requests.worth(view, view.bandwidth).argmax(1)


def last(requests: Requests, view: View) -> np.ndarray:
    """Choose the highest reward at the last bandwidth."""
    return requests.worth(view, view.history[:, -1]).argmax(1)


def greedy(requests: Requests, view: View) -> np.ndarray:
    """Choose the fastest of those of the highest quality, at the last bandwidth."""
    best = requests.actions.quality >= requests.actions.quality.max() - 1e-12
    latency = requests.latencies(view, view.history[:, -1])
    return np.where(best, latency, np.inf).argmin(1)


def always(choice: int) -> Policy:
    """Return the policy that never changes its choice."""
    return lambda requests, _view: np.full(requests.episodes, choice)


def chance(seed: int) -> Policy:
    """Return the policy that draws."""
    stream = named_stream(seed, "random policy")

    def draw(requests: Requests, _view: View) -> np.ndarray:
        return np.asarray(stream.integers(0, len(requests.actions.labels), requests.episodes))

    return draw


class Expected:
    """Enumeration over what followed a bandwidth before: the mean worth, not the worth at the last one.

    Parameters
    ----------
    bandwidth : float (episodes, steps)
        Of training episodes.
    seed : int
        Of which followers are looked at, where there are many.

    Attributes
    ----------
    edges : float (BINS - 1,)
        Between kinds of last bandwidths.
    followers : float (BINS, FOLLOWERS)
    """

    def __init__(self, bandwidth: Array, seed: int = 0) -> None:
        before, after = bandwidth[:, :-1].ravel(), bandwidth[:, 1:].ravel()
        self.edges = np.quantile(before, np.linspace(0, 1, BINS + 1)[1:-1])
        kinds = np.searchsorted(self.edges, before)
        stream = named_stream(seed, "followers")
        self.followers = np.array(
            [stream.choice(own if len(own := after[kinds == kind]) else after, FOLLOWERS) for kind in range(BINS)]
        )

    def __call__(self, requests: Requests, view: View) -> np.ndarray:
        """Choose what is worth most on average."""
        next_ones = self.followers[np.searchsorted(self.edges, view.history[:, -1])]
        total = np.zeros((requests.episodes, len(requests.actions.labels)))
        for column in next_ones.T:
            total += requests.worth(view, column)
        return total.argmax(1)


def best_fixed(requests: Requests, among: np.ndarray) -> int | None:
    """Return the choice among some that is worth most when it is always taken; None where there is none."""
    means = {int(each): float(play(always(int(each)), requests).reward.mean()) for each in np.flatnonzero(among)}
    return max(means, key=lambda each: means[each]) if means else None


def kinds_of_choice(requests: Requests) -> dict[str, np.ndarray]:
    """Return which choices the fixed policies may take."""
    actions = requests.actions
    every = np.ones(len(actions.labels), bool)
    return {"fixed": every, "device-only": actions.bytes == 0, "edge-only": actions.cuts == EDGE}


def features(requests: Requests, view: View) -> Array:
    """Return what a network sees of each episode: logarithms of bandwidths, load, and backlogs in deadlines."""
    scale = requests.service.deadline_s
    bandwidth = np.log(np.maximum(view.history, 1e-9)) - np.log(1e6)
    backlog = np.minimum(view.backlog / scale, 3.0)
    seen: Array = np.concatenate([bandwidth, np.log(view.load)[:, None], backlog], axis=1)
    return seen


class Actor:
    """A trained network as a policy: its likeliest choice."""

    def __init__(self, learner: DiscreteSac) -> None:
        self.learner = learner

    def __call__(self, requests: Requests, view: View) -> np.ndarray:
        """Choose the likeliest."""
        return self.learner.likeliest(features(requests, view))


class Surroundings:
    """Requests as a learner meets them: features and rewards, episode after episode of the training conditions."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.state = features(requests, requests.reset())

    @property
    def inputs(self) -> int:
        """Numbers of a state."""
        return self.state.shape[1]

    @property
    def choices(self) -> int:
        """Ways to serve a request."""
        return len(self.requests.actions.labels)

    def take(self, chosen: np.ndarray) -> tuple[Array, Array, Array]:
        """Return rewards, the states they led to, and the states from which to go on."""
        reward, _, view = self.requests.take(chosen)
        reached = features(self.requests, view)
        # An episode's end is not an end of the service: time runs out, nothing more.
        self.state = features(self.requests, self.requests.reset()) if self.requests.done else reached
        return reward, reached, self.state


def train_actor(requests: Requests, *, steps: int = 3000, gamma: float = 0.9, seed: int = 0,
                progress: Callable[[float], None] = lambda _share: None) -> Actor:  # fmt: skip
    """Train the actor on episodes of requests.

    Parameters
    ----------
    requests : Requests
    steps : int
        Requests of each episode that runs beside the others, and updates.
    gamma : float
        What the next request's worth counts.
    seed : int
    progress : callable
        Told the share that is done.

    Raises
    ------
    UnavailableError
        Without torch.
    """
    from densing.efficiency.systems.offload.sac import DiscreteSac

    # That module says what is missing without torch.
    from densing.efficiency.parallel import one_thread  # isort: skip

    around = Surroundings(requests)
    learner = DiscreteSac(around.inputs, around.choices, gamma=gamma, seed=seed)
    with one_thread():
        learner.learn(around, steps, progress)
    return Actor(learner)
