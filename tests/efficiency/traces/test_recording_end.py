"""The end of a recording while gloo has work: torch 2.13 would write where the profiler's memory was.

Golden: valgrind 3.19 under this file's loop with the wait taken out (`_settle` empty) reported two invalid writes of 8
bytes in `onFunctionExit`, called by gloo's thread, into a block freed by `disableProfiler`.
"""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from densing.efficiency.traces import recording
from tests.support.gloo_ranks import fork_ranks, ranks_of

torch = pytest.importorskip("torch", reason="recording needs PyTorch")
import torch.distributed as dist  # noqa: E402

pytestmark = pytest.mark.slow


def recorded(out: Path, rank: int, *, late: bool) -> dict[str, Any]:
    """Record one step that leaves an all-reduce to which rank 1 comes late, or after the recording of rank 0."""
    store = dist.distributed_c10d._get_default_store()
    name = f"recorded {late}"
    tensor = torch.ones(8)
    if rank == 1:
        if late:
            store.wait([name], timedelta(seconds=100))
        else:
            time.sleep(0.5)
        dist.all_reduce(tensor)
        return {}
    before = vars(dist.ProcessGroup)["allreduce"]
    with warnings.catch_warnings(record=True) as told, recording.record(out, wait=0, warmup=0, active=1) as step:
        warnings.simplefilter("always")
        work = dist.all_reduce(tensor, async_op=True)
        step()
        done = work.is_completed()
        store.set(name, "1")
        work.wait()
    return {
        "done": done,
        "sum": tensor.tolist(),
        "notes": [note.code for note in step.notes],
        "told": [str(warning.message) for warning in told if warning.category is RuntimeWarning],
        "as it was": vars(dist.ProcessGroup)["allreduce"] is before,
    }


def both(rank: int, _: int) -> dict[str, Any]:
    """Record with a peer that comes in time, and with one that never would."""
    out = Path(sys.argv[-1])
    waited = recorded(out / "waited", rank, late=False)
    recording.SETTLE_S = 0.2
    return {"waited": waited, "given up": recorded(out / "given-up", rank, late=True)}


def test_a_recording_ends_after_what_was_begun_in_it(tmp_path: Path) -> None:
    found, _ = ranks_of(__file__, 2, tmp_path)
    waited, given_up = found["waited"], found["given up"]
    assert waited == {"done": True, "sum": [2.0] * 8, "notes": ["trace-written"], "told": [], "as it was": True}
    # Rank 1 waits for the end of the recording: one that waited for rank 1 would never end.
    assert given_up["done"] is False and given_up["as it was"] and given_up["sum"] == [2.0] * 8
    assert given_up["notes"] == ["outlives-recording", "trace-written"]
    (message,) = given_up["told"]
    assert (
        "1 operation(s) of gloo were in flight" in message
        and "wait for them before the last recorded step()" in message
    )


if __name__ == "__main__":
    fork_ranks(both)
