"""The small language model of real runs, as a workload."""

from __future__ import annotations

from densing.efficiency.parallel.distributed.spec import LmShape
from densing.efficiency.simulation import Split, Transformer, Workload


def workload_of(
    shape: LmShape, batch: int, sequence: int, *, dp: int = 1, tp: int = 1, mode: str = "train"
) -> Workload:
    """Return the workload of a real run: float32, embedding and head whole on every rank."""
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
    return Workload(model, mode, batch, sequence, Split(dp=dp, tp=tp, vocabulary=False), dtype_bytes=4)
