"""Real ranks over gloo at the price of one import of torch: a script forks them, a test reads what each found."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def fork_ranks(work: Callable[[int, int], dict[str, Any]]) -> None:
    """Run ``work(rank, ranks)`` on ``argv[-2]`` forked ranks; each one's result goes into the folder ``argv[-1]``."""
    import torch
    import torch._dynamo  # by optimizers: once, not in every rank

    torch.set_num_threads(1)
    # What torch's import leaves is for good: no rank looks through it again.
    gc.freeze()
    size, out = int(sys.argv[-2]), Path(sys.argv[-1])
    children = []
    for rank in range(size):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            store = f"file://{out / f'store{size}'}"
            torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
            (out / f"rank{rank}.json").write_text(json.dumps(work(rank, size)))
            torch.distributed.barrier()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


def ranks_of(script: str, ranks: int, out: Path, *arguments: str) -> list[dict[str, Any]]:
    """Start a script that calls :func:`fork_ranks`; return every rank's result."""
    done = subprocess.run(
        [sys.executable, script, *arguments, str(ranks), str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(ranks)]
