"""How a run divides its work where the user does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from densing.core import InputError

if TYPE_CHECKING:
    from densing.efficiency.simulation import Cluster, Workload


def split_over(
    workload: Workload, cluster: Cluster, *, tp: int | None = None, dp: int | None = None, pp: int | None = None
) -> Workload:
    """Return the workload split over a cluster.

    Tensor parallelism takes what a node has, at most eight devices and as the model's heads allow, but leaves at
    least two replicas; data parallelism takes the rest. So techniques of both kinds have something to work on where
    the cluster has four devices or more.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    tp, dp, pp : int, optional
        What is fixed.

    Raises
    ------
    InputError
        When the split needs more devices than there are, or cannot divide the model.
    """
    from densing.efficiency.simulation import modules

    stages = pp or 1
    _check(tp=tp, dp=dp, pp=pp)
    room = cluster.n // stages
    width = tp or _width(workload, cluster.per_node, room // max(dp or 2, 1))
    split = replace(workload.split, dp=dp or max(room // width, 1), tp=width, pp=stages)
    if split.ranks > cluster.n:
        raise InputError(
            f"dp {split.dp} × tp {split.tp} × pp {split.pp} needs {split.ranks} devices; "
            f"cluster {cluster.name} has {cluster.n}; split less or give more nodes"
        )
    divided = replace(workload, split=split)
    modules(divided)
    return divided


def _check(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise InputError(f"{name} {size} is no number of devices; give 1 or more")


def _width(workload: Workload, per_node: int, most: int) -> int:
    """Return the widest tensor-parallel group that fits a node (or two devices) and divides the model."""
    fits = [width for width in (8, 4, 2) if width <= most and _within(width, per_node)]
    return next((width for width in fits if _divides(workload, width)), 1)


def _within(width: int, per_node: int) -> bool:
    return width == 2 if per_node == 1 else per_node % width == 0


def _divides(workload: Workload, width: int) -> bool:
    from densing.efficiency.simulation import modules

    try:
        modules(replace(workload, split=replace(workload.split, dp=1, tp=width, pp=1)))
    except InputError:
        return False
    return True
