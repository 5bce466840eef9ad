"""Requests that queue for device, link and server, and their rewards.

Source: for exits, cuts and bits chosen by discrete soft actor-critic, Niu, Teng, Han and Zou, arXiv 2201.02968 (its
abstract; state, reward and network sizes are in no readable source: these are ours).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from densing.core import Array, InputError
from densing.efficiency.systems.offload.actions import Actions
from densing.efficiency.systems.offload.channel import Conditions

HISTORY = 4
"""Number of past bandwidths that a policy sees."""
LONGEST = 10.0
"""Multiple of the deadline beyond which a delay costs no more."""


@dataclass(frozen=True)
class Service:
    """Service level of a request, and its reward.

    Parameters
    ----------
    deadline_s : float
    interval_s : float
        Between requests.
    latency_s : float
        Of the link, to the server and back.
    quality_weight, latency_weight, penalty : float
        Reward: ``quality_weight quality - latency_weight latency/deadline - penalty [latency > deadline]``; the ratio
        counts up to :data:`LONGEST`.

    Raises
    ------
    InputError
    """

    deadline_s: float
    interval_s: float
    latency_s: float = 0.0
    quality_weight: float = 1.0
    latency_weight: float = 0.1
    penalty: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what nobody can promise."""
        for field, least in (("deadline_s", 1e-6), ("interval_s", 1e-6)):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) >= least):
                raise InputError(f"{field}={getattr(self, field)}: give seconds above 0")
        for field in ("latency_s", "quality_weight", "latency_weight", "penalty"):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) >= 0):
                raise InputError(f"{field}={getattr(self, field)}: give a number of 0 or more")

    def reward(self, quality: Array, latency: Array) -> Array:
        """Return what requests are worth.

        Examples
        --------
        >>> Service(1.0, 1.0).reward(np.array([1.0, 1.5]), np.array([0.5, 2.5])).tolist()
        [0.95, 0.25]
        """
        ratio = np.minimum(latency / self.deadline_s, LONGEST)
        worth: Array = (
            self.quality_weight * quality - self.latency_weight * ratio - self.penalty * (latency > self.deadline_s)
        )
        return worth


class View(NamedTuple):
    """State known when a request arrives: bandwidths and loads of (episodes,) requests.

    Attributes
    ----------
    history : float (episodes, HISTORY)
        Bandwidths that the last requests found, the newest last.
    load : float (episodes,)
        Of the device now.
    backlog : float (episodes, 3)
        Seconds until device, link and server are free.
    bandwidth : float (episodes,)
        What this request will find: for the oracle alone.
    """

    history: Array
    load: Array
    backlog: Array
    bandwidth: Array


class Requests:
    """Episodes of requests, side by side; a choice affects later requests.

    Device, link and server each serve one request at a time, in their order; a request goes through all three, and
    holds what its answer's tokens still need until the last of them.

    Parameters
    ----------
    actions : Actions
    service : Service
    conditions : Conditions
    """

    def __init__(self, actions: Actions, service: Service, conditions: Conditions) -> None:
        self.actions, self.service, self.conditions = actions, service, conditions
        self.episodes, self.steps = conditions.bandwidth.shape
        self.reset()

    def reset(self) -> View:
        """Begin anew; the first request knows the first bandwidth, as if it had been probed."""
        self.step_number = 0
        self.backlog = np.zeros((self.episodes, 3))
        self.history = np.repeat(self.conditions.bandwidth[:, :1], HISTORY, axis=1)
        return self.view()

    @property
    def done(self) -> bool:
        """Whether all requests were served."""
        return self.step_number >= self.steps

    def view(self) -> View:
        """Return what is known of the request that comes now."""
        at = min(self.step_number, self.steps - 1)
        return View(self.history, self.conditions.load[:, at], self.backlog, self.conditions.bandwidth[:, at])

    def latencies(self, view: View, bandwidth: Array) -> Array:
        """Return what each choice would take, (episodes, n), at these bandwidths."""
        ends = _ends(self.actions, slice(None), self.service, view, bandwidth)
        latency: Array = ends[..., 3]
        return latency

    def worth(self, view: View, bandwidth: Array) -> Array:
        """Return what each choice would be worth, (episodes, n), at these bandwidths."""
        return self.service.reward(self.actions.quality, self.latencies(view, bandwidth))

    def take(self, chosen: np.ndarray) -> tuple[Array, Array, View]:
        """Serve a request of each episode; return rewards, latencies and what the next ones know."""
        view = self.view()
        ends = _ends(self.actions, chosen[:, None], self.service, view, view.bandwidth)[:, 0]
        latency = ends[:, 3]
        reward = self.service.reward(self.actions.quality[chosen], latency)
        # What a request does not pass stays as free as it was.
        self.backlog = np.maximum(ends[:, :3] - self.service.interval_s, 0.0)
        self.history = np.concatenate([self.history[:, 1:], view.bandwidth[:, None]], axis=1)
        self.step_number += 1
        return reward, latency, self.view()


def _ends(actions: Actions, chosen: np.ndarray | slice, service: Service, view: View, bandwidth: Array) -> Array:
    """Return when device, link and server are free again and the answer is there: (episodes, choices, 4)."""
    device_s, edge_s, sent = (column[chosen] for column in (actions.device_s, actions.edge_s, actions.bytes))
    device_free, link_free, edge_free = (view.backlog[:, part, None] for part in range(3))
    busy = view.load[:, None] * device_s
    on_device = np.where(busy > 0, np.maximum(device_free, 0.0) + busy, 0.0)
    wire = sent / np.maximum(bandwidth[:, None], 1e-9)
    on_link = np.where(sent > 0, np.maximum(on_device, link_free) + wire, on_device)
    on_edge = np.where(sent > 0, np.maximum(on_link + service.latency_s / 2, edge_free) + edge_s, on_link)
    back = np.where(sent > 0, service.latency_s / 2, 0.0)
    if (turns := actions.turns) is not None:
        turn_device, turn_edge, turn_bytes = (column[chosen] for column in (turns.device_s, turns.edge_s, turns.bytes))
        turn_busy, crosses = view.load[:, None] * turn_device, turn_bytes > 0
        turn_wire = turn_bytes / np.maximum(bandwidth[:, None], 1e-9)
        way = np.where(crosses, service.latency_s / 2, 0.0)
        # Each token but the first goes round; device and link are free once they have passed on the last one.
        on_edge = on_edge + turns.number * (way + turn_busy + turn_wire + way + turn_edge)
        on_link = np.where(crosses, on_edge - turn_edge - way, on_link)
        on_device = np.where(crosses, on_link - turn_wire, np.where(sent > 0, on_device, on_edge))
    latency = on_edge + back
    return np.stack(
        np.broadcast_arrays(
            np.where(busy > 0, on_device, device_free),
            np.where(sent > 0, on_link, link_free),
            np.where(sent > 0, on_edge, edge_free),
            latency,
        ),
        axis=-1,
    )
