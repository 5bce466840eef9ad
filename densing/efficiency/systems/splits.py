"""Splits of a run: defaults, and changes with which a step fits a device's memory.

Candidate changes are tried one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import check, modules
from densing.efficiency.systems.planner import Planned, Replicated
from densing.efficiency.systems.registry import get_technique, settle

if TYPE_CHECKING:
    from densing.efficiency.simulation import Cluster, Split, Workload
    from densing.efficiency.systems.registry import Technique


def split_over(
    workload: Workload,
    cluster: Cluster,
    *,
    tp: int | None = None,
    dp: int | None = None,
    pp: int | None = None,
    techniques: Sequence[str] = (),
) -> Workload:
    """Return the workload split over a cluster.

    Tensor parallelism takes what a node has, at most eight devices and as the model's heads allow, but leaves at
    least two replicas; data parallelism takes the rest. So techniques of both kinds have something to work on where
    the cluster has four devices or more. Where all of some techniques need a pipeline, stages take whole nodes (devices
    where there is one node), as many as leave a stage two layers, and replicas the rest.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    tp, dp, pp : int, optional
        Degrees that are fixed.
    techniques : sequence of str
        Techniques to be compared.

    Raises
    ------
    InputError
        When the split needs more devices than there are, or cannot divide the model.
    """
    piped = [name for name in techniques if "pp" in getattr(get_technique(name), "needs", ())]
    if pp is None and piped and len(piped) == len(techniques):
        pp, tp = _stages(workload.model.layers, cluster), tp or 1
    stages = pp or 1
    for name, size in (("tp", tp), ("dp", dp), ("pp", pp)):
        if size is not None and size < 1:
            raise InputError(f"{name} {size} is not a number of devices; give 1 or more")
    room = cluster.n // (stages * workload.split.cp)
    width = tp or _width(workload, cluster.per_node, room // max(dp or 2, 1))
    split = replace(workload.split, dp=dp or max(room // width, 1), tp=width, pp=stages)
    if split.ranks > cluster.n:
        parts = f" × cp {split.cp}" if split.cp > 1 else ""
        raise InputError(
            f"dp {split.dp} × tp {split.tp} × pp {split.pp}{parts} needs {split.ranks} devices; "
            f"cluster {cluster.name} has {cluster.n}; split less or give more nodes"
        )
    divided = replace(workload, split=split)
    modules(divided)
    return divided


def _stages(layers: int, cluster: Cluster) -> int:
    """Return as many stages of whole nodes as leave each two layers, or, of few layers, one."""
    units = -(-cluster.n // cluster.per_node) if cluster.n > cluster.per_node else cluster.n
    divisors = [count for count in range(1, units + 1) if units % count == 0 and count <= layers]
    return max([count for count in divisors if 2 * count <= layers and count > 1] or divisors[:2])


def _width(workload: Workload, per_node: int, limit: int) -> int:
    """Return the widest tensor-parallel group that fits a node (or two devices) and divides the model."""
    # On nodes of one device groups of two span the network: the least that a tensor-parallel technique can work on.
    for width in (8, 4, 2):
        if width <= limit and (width == 2 if per_node == 1 else per_node % width == 0):
            with suppress(InputError):
                modules(replace(workload, split=replace(workload.split, dp=1, tp=width, pp=1, ep=1, virtual=1)))
                return width
    return 1


TIMES = (1, 2, 4, 8, 16, 32, 64)
"""Multiples of the cluster's devices to try."""
WIDTHS = (1, 2, 4, 8)
STAGES = (1, 2, 4, 8, 16)


class Change(NamedTuple):
    """One way to run the step with less memory per device: the options that differ, as the command line takes them."""

    options: tuple[str, ...]
    technique: str
    workload: Workload
    devices: int


def remedy(technique: Technique, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> str:
    """Return the smallest change tried with which a step fits: fewest devices, then fewest options that differ.

    Tried are recomputation, the sequence split over the tensor-parallel group, micro-batches of one sequence, every
    split of the devices into tensor-parallel groups within a node, pipeline stages and replicas, where the technique is
    a plain way of exchanging gradients also the stages of ZeRO, and 2 to 64 times the devices.

    Returns
    -------
    str
        ``fits with --recompute full``; the changes tried where none fits; empty where a technique of another package
        does not report its memory.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster, load_workload
    >>> step = load_workload("llama-8b", dp=2, tp=8, batch=64, sequence=8192)
    >>> remedy(get_technique("ddp"), step, load_cluster("a100x8-tcp"), {})
    'fits with --micro-batches 64'
    """
    if not isinstance(technique, Planned):
        return ""
    # Which devices more there would be, and how fast, a cluster of unequal ones does not say.
    tried = TIMES[:1] if cluster.speed else TIMES
    for times in tried:
        change = _smallest(technique, workload, cluster, times * cluster.n, knobs)
        if change is not None:
            more = f"needs {(times - 1) * cluster.n} more devices: " if times > 1 else ""
            stage = f" as {change.technique}" if change.technique != technique.name else ""
            options = f" with {' '.join(change.options)}" if change.options else ""
            return f"{more}fits{stage}{options}"
    return f"nothing tried makes it fit, on up to {tried[-1] * cluster.n} devices"


def _smallest(
    technique: Planned, workload: Workload, cluster: Cluster, devices: int, knobs: Mapping[str, Any]
) -> Change | None:
    """The change with fewest options that fits so many devices."""
    room = cluster.device.memory
    # With every saving on: where that does not fit, nothing does.
    if not any(_fits(change, knobs, room) for change in _changes(technique, workload, cluster, devices, all_on=True)):
        return None

    def size(change: Change) -> int:
        # How many replicas there are follows from the rest, and a width that stays is not a change.
        free = ("--dp ", f"--tp {workload.split.tp}")
        return sum(not option.startswith(free) for option in change.options) + (change.technique != technique.name)

    # A stable sort: among changes of as many options the first tried stays first, so the answer is reproducible.
    changes = sorted(_changes(technique, workload, cluster, devices), key=size)
    return next((change for change in changes if _fits(change, knobs, room)), None)


def _fits(change: Change, knobs: Mapping[str, Any], room: float) -> bool:
    technique = get_technique(change.technique)
    assert isinstance(technique, Planned)
    known = {knob.name for knob in technique.knobs}
    try:
        check(change.workload)
        technique.check(change.workload)
        settings = settle(technique.name, technique.knobs, {key: value for key, value in knobs.items() if key in known})
        return sum(technique.memory(change.workload, settings).values()) <= room
    except InputError:
        return False


def _changes(
    technique: Planned, workload: Workload, cluster: Cluster, devices: int, *, all_on: bool = False
) -> Iterator[Change]:
    train = workload.mode == "train"
    savings = ("full",) if workload.fused_attention else ("selective", "full")
    recompute = savings[-1:] if all_on and train else dict.fromkeys((workload.recompute, *(savings if train else ())))
    micro = dict.fromkeys((workload.micro_batches, *((workload.batch,) if train else ())))
    names = [technique.name]
    if isinstance(technique, Replicated) and technique.role == "baseline" and not technique.changes_loss:
        names += [name for name in ("zero1", "zero2", "zero3") if int(name[-1]) > technique.zero]
    if all_on:
        micro, names = dict.fromkeys(list(micro)[-1:]), names[-1:] + names[:1]
    splits = list(_splits(workload.split, cluster, devices))
    for name, split, recomputing, parts, along in product(names, splits, recompute, micro, (False, True)):
        along = along and split.tp > 1 and train
        if all_on and split.tp > 1 and train and not along:
            continue
        sequence = along or workload.split.sequence
        nodes = devices // cluster.per_node
        # Left unsaid, the width of the groups follows from the devices and the stages.
        moved = devices != cluster.n or split.pp != workload.split.pp
        options = [
            *_option("--nodes", nodes, devices != cluster.n),
            *(f"--{axis} {getattr(split, axis)}" for axis in ("dp", "tp", "pp")
              if getattr(split, axis) != getattr(workload.split, axis) or (moved and axis == "tp")),
            *_option("--recompute", recomputing, recomputing != workload.recompute),
            *(["--sequence-parallel"] if sequence and not workload.split.sequence else []),
            *_option("--micro-batches", parts, parts != workload.micro_batches),
        ]  # fmt: skip
        changed = replace(workload, split=replace(split, sequence=sequence), recompute=recomputing, micro_batches=parts)
        yield Change(tuple(options), name, changed, devices)


def _option(name: str, value: object, differs: bool) -> list[str]:
    return [f"{name} {value}"] if differs else []


def _splits(split: Split, cluster: Cluster, devices: int) -> Iterator[Split]:
    """The split as it is, and all others of so many devices whose tensor-parallel groups stay within a node."""
    if devices == cluster.n:
        yield split
    for tp, pp in product(dict.fromkeys((split.tp, *WIDTHS)), dict.fromkeys((split.pp, *STAGES))):
        each = tp * pp * split.cp
        dp = devices // each
        if tp <= max(cluster.per_node, split.tp) and dp * each == devices and dp >= 1:
            same = pp == split.pp
            yield replace(
                split, dp=dp, tp=tp, pp=pp, cuts=split.cuts if same else (), order=split.order if same else ()
            )
