"""Specification of a run (model, technique, options), and a rank's environment and record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from densing.core import InputError, Record, UnknownNameError
from densing.efficiency.simulation import Split, Transformer, Workload


class LmShape(Record, frozen=True):
    """The small Llama-style language model of real runs; bytes are its tokens."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    ffn: int = 704
    vocabulary: int = 256


SHAPES: Mapping[str, LmShape] = {
    "tiny": LmShape(layers=2, hidden=64, heads=2, ffn=176),
    "small": LmShape(),
    "medium": LmShape(layers=6, hidden=512, heads=8, ffn=1408),
}


def named_shape(name: str, **changes: int | None) -> LmShape:
    """Return a model by name, with what the user changes of it.

    Raises
    ------
    UnknownNameError
        When there is none of that name.
    InputError
        When heads of even width cannot share its width.

    Examples
    --------
    >>> named_shape("tiny", layers=3).layers
    3
    """
    if name not in SHAPES:
        raise UnknownNameError("model", name, SHAPES)
    shape = replace(SHAPES[name], **{field: value for field, value in changes.items() if value is not None})
    if shape.hidden % (2 * shape.heads):
        raise InputError(
            f"--hidden {shape.hidden} --heads {shape.heads}: hidden must be a multiple of twice the heads; change one"
        )
    return shape


def workload_of(
    shape: LmShape,
    batch: int,
    sequence: int,
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    cuts: Sequence[int] = (),
    micro_batches: int = 1,
    mode: str = "train",
) -> Workload:
    """Return the workload of a real run: float32, embedding and head whole on every rank that has them.

    Of a pipeline the first stage has the embedding and the last one the head; their weights are not shared.
    """
    model = Transformer(
        "small LM",
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.heads,
        shape.hidden // shape.heads,
        shape.ffn,
        shape.vocabulary,
        source="densing.efficiency.parallel.distributed.lm",
        evidence="first-hand",
    )
    split = Split(dp=dp, tp=tp, pp=pp, vocabulary=False, cuts=tuple(cuts))
    return Workload(model, mode, batch, sequence, split, micro_batches, dtype_bytes=4)


class RunSpec(Record, frozen=True):
    """One run of one technique, as ``spec.json`` beside its results.

    Parameters
    ----------
    technique : str
    knobs : mapping
        Of the technique, parsed.
    nproc, steps, seed : int
    model : LmShape
    batch, sequence : int
        Sequences per rank and step (in tensor-parallel runs and pipelines: of all ranks together), tokens per sequence.
    lr : float
    corpus : str
        Text file or folder; empty: text that every Python has.
    link : str
        ``none``, ``200mbit`` over shaped interfaces, or ``emulated:200mbit``.
    out : str
        Folder: ``traces/``, ``checkpoints/``, ``ranks/rank0000N.record``, ``run.json``.
    trace_steps : int
        Steps recorded by the profiler (the last ones of the run); 0 none.
    checkpoint_every : int
        Steps; 0 never.
    timeout_s : float
        After which a rank that waits for a dead one gives up.
    device : str
    delay : str
        Injected delays (:func:`densing.efficiency.simulation.parse_delay`): ranks sleep them before they compute.
    """

    technique: str
    knobs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    nproc: int = 2
    steps: int = 48
    seed: int = 0
    model: LmShape = LmShape()
    batch: int = 4
    sequence: int = 128
    lr: float = 1e-3
    corpus: str = ""
    link: str = "none"
    out: str = ""
    trace_steps: int = 8
    checkpoint_every: int = 0
    timeout_s: float = 60.0
    device: str = "cpu"
    delay: str = ""


INJECTED = "injected delay"
"""Name of injected delays in a trace."""

FREE = ("steps", "out", "trace_steps", "checkpoint_every", "timeout_s", "link", "delay")
"""Fields of a spec that may differ when a run is resumed, because they change no weights."""


def identity(spec: RunSpec) -> dict[str, Any]:
    """Return the part of a spec that determines the weights.

    Examples
    --------
    >>> sorted(identity(RunSpec("ddp")))
    ['batch', 'corpus', 'device', 'knobs', 'lr', 'model', 'nproc', 'seed', 'sequence', 'technique']
    """
    plain = msgspec.to_builtins(spec)
    return {name: value for name, value in plain.items() if name not in FREE}


def first_difference(stored: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """Return the name of the first field in which a stored identity differs from one's own, or None.

    Examples
    --------
    >>> first_difference({"seed": 0, "steps": 4}, {"seed": 3})
    'seed'
    """
    return next((name for name in own if stored.get(name) != own[name]), None)


class RunEnv(Record, frozen=True):
    """What one rank knows: the process group is initialised (gloo, or NCCL on devices)."""

    spec: RunSpec
    rank: int
    world_size: int


class RunRecord(Record, frozen=True):
    """What one rank reports.

    Parameters
    ----------
    technique : str
    rank, world_size : int
    losses : tuple of float
        Training loss per step, mean of the ranks' (nats per token); none of a server's workers, whose server has them.
    step_s : tuple of float
        Seconds per step, from its start to the next one's.
    wait_s : tuple of float
        Of these, seconds in which the training thread stood still for communication.
    tokens : int
        Per step, all ranks.
    final_loss : float
        On held-out text, of the averaged model.
    parameters : int
    resumed_from : int
        Step of the checkpoint it began with; -1 none.
    stand_in : str
    extra : mapping
        Figures of the technique (all-reduce seconds per round, say).
    """

    technique: str
    rank: int
    world_size: int
    losses: tuple[float, ...]
    step_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    tokens: int
    final_loss: float
    parameters: int
    resumed_from: int = -1
    stand_in: str = ""
    extra: Mapping[str, float] = msgspec.field(default_factory=dict)
