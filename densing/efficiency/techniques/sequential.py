"""Nothing overlaps: the yardstick that every technique should beat."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from densing.efficiency.techniques.planner import Buckets, ExchangeMaker, Planned


class Sequential(Planned):
    """Blocking tensor-parallel sums; gradients exchanged in buckets once the whole backward pass is done."""

    name = "sequential"
    role = "baseline"
    summary = "every communication blocks: tensor-parallel sums after each module, gradients after the backward pass"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return buckets that wait for the end of the backward pass."""
        return partial(Buckets, bucket_mb=knobs["bucket_mb"], early=False)


SEQUENTIAL = Sequential()
