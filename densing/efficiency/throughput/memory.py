"""Memory of a layout per device, and whether it fits.

Counted are parameters, gradients, optimizer and activations (:func:`densing.efficiency.simulation.memory`), and the
buckets of software that has them. What temporaries and fragments of an eager program add are a factor on its states,
one on its activations and a reserve, fitted once to measured peaks (``constants.json``); programs with fused operations
were seen to run with what is counted and little more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from math import isfinite

import msgspec
import numpy as np

from densing.core import Array, InputError
from densing.efficiency.simulation import LOGIT_BYTES, Split, Transformer, Workload, memory
from densing.efficiency.throughput.table import Runs

RECOMPUTE = ("none", "selective", "full")
WEIGHT_BYTES = 2
BUCKETS = 2
"""One bucket is being reduced and one filled, or gathered."""
_FIELDS = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocabulary", "tied", "experts", "expert_ffn", "sequence",
    "micro_batch", "parts", "dp", "tp", "pp", "cp", "ep", "split_sequence", "zero", "recompute", "written",
    "gradient_bytes", "logit_bytes", "virtual", "kept_gradient_bytes", "bucket_numbers",
)  # fmt: skip


def counted_bytes(runs: Runs) -> Array:
    """Return the least bytes that a device must hold; NaN where the split cannot divide the model.

    A context-parallel group divides the sequence, and shards as replicas do. A mixture's experts count as an MLP as
    wide as those of a device are together; of their activations only those of the experts that a token visits would
    be kept, so that theirs are too many.
    """
    return summed(memory_parts(runs))


def summed(parts: Sequence[Mapping[str, float]]) -> Array:
    """Return the bytes of all purposes of each device, as :func:`memory_parts` gives them; NaN where there are none."""
    return np.array([sum(each.values()) if each else np.nan for each in parts])


def memory_parts(runs: Runs) -> list[dict[str, float]]:
    """Return the bytes that a device must hold by purpose, per step; nothing where the split cannot divide the model.

    Purposes are those of :func:`densing.efficiency.simulation.memory`, and ``buckets``.
    """
    assert {field.name for field in fields(runs)} >= set(_FIELDS)
    rows = zip(*(getattr(runs, name) for name in _FIELDS), strict=True)
    return [_counted(*row) if all(map(isfinite, row)) else {} for row in rows]


def workload_of(runs: Runs) -> Workload | None:
    """Return the first of some runs as a workload; None where its split cannot divide the model.

    Its ``recompute`` is none where single operations are computed again.
    """
    row = [float(getattr(runs, name)[0]) for name in _FIELDS]
    return _workload(*row) if np.all(np.isfinite(row)) else None


@cache
def _workload(*row: float) -> Workload | None:
    run = dict(zip(_FIELDS, row, strict=True))
    whole = {name: int(value) for name, value in run.items()}
    if any(run[name] < 1 or run[name] != whole[name] for name in ("micro_batch", "parts", "dp")):
        return None
    ffn = whole["experts"] * whole["expert_ffn"] // whole["ep"] if run["experts"] else whole["ffn"]
    model = Transformer(
        "row", whole["layers"], whole["hidden"], whole["heads"], whole["kv_heads"], whole["hidden"] // whole["heads"],
        ffn, whole["vocabulary"], gated=run["gated"] > 0, tied=run["tied"] > 0,
    )  # fmt: skip
    sequence = max(whole["sequence"] // whole["cp"], 1) * whole["cp"]
    split = Split(
        whole["dp"], whole["tp"], whole["pp"], run["split_sequence"] > 0, virtual=whole["virtual"], cp=whole["cp"]
    )
    return Workload(
        model,
        "train",
        whole["micro_batch"] * whole["parts"],
        sequence,
        split,
        whole["parts"],
        recompute="none" if whole["recompute"] == len(RECOMPUTE) else RECOMPUTE[whole["recompute"]],
        fused_attention=not run["written"],
        dropout=bool(run["written"]),
        gradient_bytes=whole["gradient_bytes"],
    )


@cache
def _counted(*row: float) -> dict[str, float]:
    step = _workload(*row)
    if step is None:
        return {}
    whole = {name: int(value) for name, value in zip(_FIELDS, row, strict=True)}
    # Half of what layers compute is kept: between nothing computed again and all of it.
    again = ("none", "full") if whole["recompute"] == len(RECOMPUTE) else (RECOMPUTE[whole["recompute"]],)
    logits = step.sequence // whole["cp"] * whole["micro_batch"] * -(-whole["vocabulary"] // whole["tp"])
    try:
        kept = [
            memory(
                msgspec.structs.replace(step, recompute=each),
                whole["zero"],
                gradient_bytes=whole["kept_gradient_bytes"],
            )
            for each in again
        ]
    except InputError:
        return {}
    mean = {purpose: sum(each[purpose] for each in kept) / len(kept) for purpose in kept[0]}
    mean["activations"] += (whole["logit_bytes"] - LOGIT_BYTES) * logits
    if step.split.copies > 1:
        held = mean["parameters"] / WEIGHT_BYTES
        mean["buckets"] = BUCKETS * WEIGHT_BYTES * min(held, whole["bucket_numbers"])
    return {purpose: count for purpose, count in mean.items() if count}
