"""Operation traces of pipeline-parallel training in the published format of the what-if analysis.

A job is a Parquet file of operations (one row each) and a YAML file of group sizes.

Source: ByteDance-Seed/StragglerAnalysis (Apache-2.0), folder ``data``; OSDI'25, arXiv 2505.05713.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError

Float = NDArray[np.float64]
COMPUTE = ("forward-compute", "backward-compute", "optimizer", "gc")
PAIRS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
# Runs on its own rank as compute does; its usual time is a median, as that of communication is.
ALONE = ("layernorm-grads-all-reduce",)
OVER_DP = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
OVER_STAGES = ("embedding-grads-all-reduce", "optimizer-clip-main-grad")
OP_TYPES = (*COMPUTE, *PAIRS, *ALONE, "params-all-gather", "grads-reduce-scatter", "embedding-grads-all-reduce",
            "optimizer-clip-main-grad")  # fmt: skip
_NEEDED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mc")


class Op(NamedTuple):
    """One operation of the step workers repeat: stage, type, n-th of its type there, model chunk, recorded start."""

    stage: int
    optype: str
    seq: int
    chunk: int
    start: float


@dataclass(frozen=True, eq=False)
class OpTrace:
    """Operations of a job: the same ops on every data-parallel rank and step.

    Attributes
    ----------
    job : str
    sizes : mapping of str to int
        Sizes of the parallel groups.
    ops : tuple of Op
        Operations of the first data-parallel rank in the first step: the plan of all.
    dp_ranks, stages, steps : tuple of int
    start, duration : float64 (ops, dp_ranks, steps)
        Seconds; each step starts at 0.
    left_out : int
        Rows of steps that lack an operation somewhere.
    """

    job: str
    sizes: Mapping[str, int]
    ops: tuple[Op, ...]
    dp_ranks: tuple[int, ...]
    stages: tuple[int, ...]
    steps: tuple[int, ...]
    start: Float
    duration: Float
    left_out: int = 0


def read_ops(trace: Path, meta: Path | None = None) -> OpTrace:
    """Read a job's operations.

    Parameters
    ----------
    trace : Path
        ``trace-*.parquet``: dp_rank, stage, step, optype, start_ts and duration (seconds), seq_id, mc.
    meta : Path, optional
        ``meta-*.yaml``; beside the trace by default.

    Raises
    ------
    InputError
        A file that cannot be read, a missing column, an unknown operation, or no step that is whole.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = pq.read_table(trace, columns=list(_NEEDED))
        table = {name: columns[name].to_numpy() for name in _NEEDED if name != "optype"}
        types = columns["optype"].combine_chunks().dictionary_encode()
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        needed = ", ".join(_NEEDED)
        raise InputError(f"{trace}: no trace of operations ({error}); it needs columns {needed}") from error
    table["optype"] = _type_codes(types.dictionary.to_pylist(), types.indices.to_numpy(), trace)
    sizes = _sizes(meta or trace.with_name(trace.name.replace("trace-", "meta-")).with_suffix(".yaml"))
    return arrange(table, trace.stem.removeprefix("trace-"), sizes)


def _type_codes(names: list[Any], index: NDArray[Any], trace: Path) -> NDArray[np.int64]:
    """Numbers of the operation types; a dictionary may hold types that no row uses."""
    unknown = sorted({str(names[used]) for used in np.unique(index).tolist()} - set(OP_TYPES))
    if unknown:
        raise InputError(f"{trace}: unknown operation {unknown[0]!r}; known: {', '.join(OP_TYPES)}")
    codes = np.array([OP_TYPES.index(name) if name in OP_TYPES else -1 for name in names], np.int64)
    return codes[index]


def _sizes(meta: Path) -> dict[str, int]:
    """Whole numbers of a flat ``key: value`` file; no file, no sizes."""
    if not meta.exists():
        return {}
    pairs = (line.partition(":") for line in meta.read_text(encoding="utf-8").splitlines())
    return {key.strip(): int(value) for key, _, value in pairs if value.strip().isdecimal()}


def arrange(table: Mapping[str, NDArray[Any]], job: str, sizes: Mapping[str, int]) -> OpTrace:
    """Arrange rows (``optype`` as index into :data:`OP_TYPES`) by operation, data-parallel rank and step.

    Raises
    ------
    InputError
        When no step holds every operation on every data-parallel rank.
    """
    dp, dp_at = np.unique(table["dp_rank"], return_inverse=True)
    step, step_at = np.unique(table["step"], return_inverse=True)
    if len(step) == 0:
        raise InputError(f"{job}: the trace holds no operations")
    times = np.stack((table["start_ts"], table["duration"]))
    if not np.all(np.isfinite(times)) or times[1].min() < 0:
        raise InputError(f"{job}: start_ts and duration must be finite, and no duration negative")
    key = np.stack([np.asarray(table[name], np.int64) for name in ("stage", "optype", "seq_id")])
    plan = np.flatnonzero((dp_at == 0) & (step_at == 0))
    plan = plan[np.lexsort((*key[::-1, plan], table["start_ts"][plan]))]
    position = {tuple(key[:, row].tolist()): number for number, row in enumerate(plan)}
    distinct, kind = np.unique(key, axis=1, return_inverse=True)
    number = np.array([position.get(tuple(column), -1) for column in distinct.T.tolist()])[kind.reshape(-1)]
    known = number >= 0
    shape = (len(position), len(dp), len(step))
    filled, start, duration = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    cell = (number[known], dp_at[known], step_at[known])
    np.add.at(filled, cell, 1)
    start[cell], duration[cell] = table["start_ts"][known], table["duration"][known]
    complete = np.all(filled == 1, axis=(0, 1)) & ~np.isin(np.arange(len(step)), step_at[~known])
    if not complete.any():
        raise InputError(f"{job}: no step holds every operation of the first one on every data-parallel rank")
    ops = tuple(
        Op(
            int(key[0, row]),
            OP_TYPES[key[1, row]],
            int(key[2, row]),
            int(table["mc"][row]),
            float(table["start_ts"][row]),
        )
        for row in plan
    )
    left_out = int((~complete[step_at]).sum())
    stages = tuple(sorted({op.stage for op in ops}))
    steps = tuple(step[complete].tolist())
    return OpTrace(
        job, sizes, ops, tuple(dp.tolist()), stages, steps, start[:, :, complete], duration[:, :, complete], left_out
    )
