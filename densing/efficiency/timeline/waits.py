"""Marks on what gloo leaves unmarked: the time a thread stands in ``work.wait()``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MARK = "densing::wait"
"""Name of the annotation around a wait."""


@contextmanager
def waits_marked() -> Iterator[None]:
    """Put an annotation around every ``work.wait()`` called from Python while a profiler records.

    Only where ``torch.distributed`` runs over gloo: other back-ends' waits do not hold the processor. Waits inside
    C++ (DistributedDataParallel's) stay unmarked. A blocking call, ``all_reduce(x)``, waits from Python too.
    """
    work = _gloo_work()
    if work is None:
        yield
        return
    import torch

    original = work.wait

    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        if not torch.autograd._profiler_enabled():
            return original(self, *arguments, **options)
        with torch.profiler.record_function(MARK):
            return original(self, *arguments, **options)

    work.wait = wait
    try:
        yield
    finally:
        work.wait = original


def _gloo_work() -> Any | None:
    """Return the class of pending collectives if gloo carries them."""
    try:
        import torch.distributed as dist
    except ImportError:
        return None
    if not dist.is_available() or not dist.is_initialized() or "gloo" not in str(dist.get_backend()):
        return None
    return getattr(dist, "Work", None)
