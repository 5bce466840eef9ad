"""Arms of a ladder, made with the methods of the techniques: where the two wings train together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from densing.core import InputError
from densing.scores.ladder import ALONE, REVERSE, Arm, Ranks, parse_arm

PLAIN_IS = "ddp"
"""The technique that plain ranks train with: gradients averaged in every step, the same as one process with all."""


def read_arms(texts: Sequence[str], ranks: int = 1) -> list[Arm]:
    """Read arms, and check their methods and these options before anything is trained.

    Parameters
    ----------
    texts : sequence of str
        ``METHOD:option=value,...``; a method is ``plain``, ``behaviour`` or a data-parallel technique of ``densing
        techniques list``.
    ranks : int
        Virtual ranks, where an arm does not say itself.

    Raises
    ------
    InputError
        When an arm is written otherwise, its technique cannot be run on virtual ranks, or a value is none of its knob.
    UnknownNameError
        When there is no such technique or knob.

    Examples
    --------
    >>> [arm.name for arm in read_arms(["plain", "co2:tau=8"], ranks=4)]
    ['plain', 'co2:tau=8']
    """
    arms = [parse_arm(text, ranks) for text in texts]
    for arm in arms:
        technique, knobs = _knobs(arm)
        if technique.axis == "pp" and arm.knobs.keys() - {"r"}:
            raise InputError(
                f"--arm {arm.name}: between virtual stages all edges are alike, and every layer is one; of "
                f"{arm.method}'s knobs give r alone"
            )
        if arm.ranks == 1 and arm.method not in (*ALONE, PLAIN_IS):
            raise InputError(f"--arm {arm.name}: {arm.method} needs ranks to share the work; give --ranks 2 or more")
        if arm.order == REVERSE and arm.ranks < 3:
            raise InputError(
                f"--arm {arm.name}: two ranks have the same sum in either order, and this arm has {arm.ranks}; give "
                "--ranks 3 or more, or order=reseed (blocks of text in the order of another seed)"
            )
        if technique.axis == "server":
            scheme = technique.scheme(arm.ranks, **knobs)
            scheme.check_condition(scheme.condition())
            if arm.order == REVERSE:
                raise InputError(f"--arm {arm.name}: a server adds messages in its scheme's order; leave order out")
    return arms


def virtual_ranks(arm: Arm, rows: Sequence[Any], optimizers: Sequence[Any]) -> Ranks:
    """Return an arm's ranks: what :func:`densing.scores.ladder.train` takes as ``maker``.

    Parameters
    ----------
    arm : Arm
    rows : sequence of torch.nn.Module
        A model per rank.
    optimizers : sequence
        One per rank.
    """
    from densing.efficiency.parallel import Coding, Replica, VirtualEdge, VirtualMethods, VirtualStages
    from densing.efficiency.simulation import sizes
    from densing.efficiency.systems import VirtualServer, get_technique, run_settings

    technique, knobs = _knobs(arm)

    def replica(row: Any, optimizer: Any) -> Replica:
        return Replica(row, lambda _: optimizer, nullcontext, lambda model: model.vector.sum())

    replicas = [replica(row, optimizer) for row, optimizer in zip(rows, optimizers, strict=True)]
    order = tuple(reversed(range(arm.ranks))) if arm.order == REVERSE else None
    if technique.axis == "pp":
        [share] = sizes.edge_shares([1.0], knobs["r"])
        averaging: Any = get_technique(PLAIN_IS)
        mean = partial(averaging.method, **run_settings([PLAIN_IS], [])[PLAIN_IS])
        return VirtualStages(replicas, mean, lambda: VirtualEdge(Coding(technique.codec, share)), order)
    if technique.axis == "server":
        return VirtualServer(replicas, technique.scheme(arm.ranks, **knobs))
    return VirtualMethods(replicas, partial(technique.method, **knobs), order)


def _knobs(arm: Arm) -> tuple[Any, dict[str, Any]]:
    """Return the technique of an arm, and every knob of a run of it."""
    from densing.efficiency.systems import get_technique, run_settings

    name = PLAIN_IS if arm.method in ALONE else arm.method
    technique = get_technique(name)
    if name not in VIRTUAL:
        raise InputError(
            f"--arm {arm.name}: {name} does not support virtual ranks; choose plain or one of {', '.join(VIRTUAL)}"
        )
    return technique, run_settings([name], [f"{key}={value}" for key, value in arm.knobs.items()])[name]


VIRTUAL = (
    "ddp",
    "local-sgd",
    "slowmo",
    "diloco",
    "co2",
    "topk",
    "dct",
    "fedavg",
    "fedprox",
    "topk-delta",
    "int8-delta",
    "fedft",
    "local-only",
    "spafl",
    "fusion",
    "uc-mmc",
    "gradient-coding",
    "gc-mmc",
    "backup-workers",
)
"""Techniques whose methods take a virtual rank's link; of a pipeline ranks are micro-batches, and layers stages; a
server's workers are the ranks."""
