"""One rank of a run: set up its process, do its part, leave a record or a reason."""

from __future__ import annotations

import errno
import faulthandler
import gc
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from densing.core import DensingError, InputError, processes
from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.network import parse_rates
from densing.efficiency.parallel.distributed.spec import RunEnv, RunRecord, RunSpec

Part = Callable[[RunEnv], RunRecord]

LAUNCHER = "DENSING_LAUNCHER"
"""Environment variable: id of the process that started the ranks."""
SERVER = "DENSING_SERVER"
"""Environment variable, set for a server and its workers: none waits for the others at the end."""

# How gloo, NCCL and the store speak when a peer is gone: the fault of another rank, not of this one.
_OF_PEERS = re.compile(r"(?i)gloo|nccl|connection|timed? ?out|broken pipe|\bpeer|tcpstore|socket")
_PLACE = re.compile(r"^\[\S+\.(?:cc|cpp|h):\d+\] ")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SPARE_BYTES = 1 << 16
"""That a rank keeps on the disk, to be able to say why it failed when that is full."""
_TIMEOUT = re.compile(r"(?i)timed? ?out")


class LostRanksError(DensingError):
    """Other ranks are gone, and this one cannot continue without them; the message names them."""


def run_rank(spec_file: str, find: Callable[[RunSpec], Part]) -> None:
    """Run this process's rank, and exit.

    Parameters
    ----------
    spec_file : str
        ``OUT/spec.json``.
    find : callable
        Gives what a rank of this spec does.
    """
    # Entering a namespace of its own, it forgot what the launcher had asked for.
    processes.die_with_parent(int(os.environ[LAUNCHER]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    out = Path(spec_file).parent
    faulthandler.enable()
    try:
        folder.pid_file(out, rank).write_text(str(os.getpid()))
        folder.spare_file(out, rank).write_bytes(bytes(SPARE_BYTES))
        spec = RunSpec.from_dict(folder.read_json(Path(spec_file)))
        if spec.device == "cpu":
            # A core of its own, and one thread on it.
            if hasattr(os, "sched_setaffinity"):
                cores = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(0, {cores[rank % len(cores)]})
            import torch

            torch.set_num_threads(1)
        _take_part(RunEnv(spec, rank, world), find)
    except BaseException as error:
        _leave_reason(out, rank, error)
        # A process group that has lost a member may wait for it when it is taken down.
        os._exit(1)


def _take_part(env: RunEnv, find: Callable[[RunSpec], Part]) -> None:
    import torch
    import torch.distributed as dist

    from densing.efficiency.parallel.distributed import comm

    part = find(env.spec)
    if env.spec.device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if env.spec.device.startswith("cuda") else "gloo"
    dist.init_process_group(
        backend,
        init_method=f"file://{folder.store_file(Path(env.spec.out))}",
        rank=env.rank,
        world_size=env.world_size,
        timeout=timedelta(seconds=env.spec.timeout_s),
    )
    if env.rank == 0:
        folder.met_file(Path(env.spec.out)).touch()
    rates = parse_rates(env.spec.link, env.world_size)
    if rates[env.rank].kind == "emulated":
        comm.emulate(rates)
    # What was imported stays: a collection amid a step that looks through it takes a tenth of a second.
    gc.freeze()
    record = part(env)
    folder.write_json(folder.record_file(Path(env.spec.out), env.rank), record.to_dict())
    folder.spare_file(Path(env.spec.out), env.rank).unlink(missing_ok=True)
    comm.emulate(None)
    # Who leaves first closes connections; nobody may still need them.
    if SERVER not in os.environ:
        dist.barrier()
    dist.destroy_process_group()


def _leave_reason(out: Path, rank: int, error: BaseException) -> None:
    if isinstance(error, OSError) and error.errno in _FULL:
        error = InputError(f"{error.filename or out}: cannot write ({error.strerror}); check free space")
    lines = [line for line in _PLACE.sub("", str(error)).strip().splitlines() if line.strip()]
    name = type(error).__name__
    reason = {
        "rank": rank,
        "type": name,
        "message": str(error) if isinstance(error, DensingError) else ": ".join([name, *lines[:1]])[:300],
        "fault": _fault(error),
    }
    # Before the traceback, for which a full disk has no room.
    with suppress(DensingError, OSError):
        folder.spare_file(out, rank).unlink(missing_ok=True)
        folder.write_json(folder.error_file(out, rank), reason)
    with suppress(OSError):
        traceback.print_exception(error)
        sys.stderr.flush()


def _fault(error: BaseException) -> str:
    """Classify an error: the user's input, a peer that hangs or is gone, or this rank's own."""
    if isinstance(error, LostRanksError):
        return "lost"
    # A PeerError is of both kinds.
    if isinstance(error, DensingError) and not isinstance(error, RuntimeError):
        return "input"
    if not _OF_PEERS.search(str(error)):
        return "own"
    return "timeout" if _TIMEOUT.search(str(error)) else "peer"
