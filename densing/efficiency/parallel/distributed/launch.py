"""Start the ranks of a run, joined by the link it asks for, and see it to its end.

Nothing of a run outlives this process: ranks and namespaces end with it, however it ends. A run that fails is explained
from outside, by who has gone and what records say. Ranks are started without torchrun: it would load torch once more
for each namespace, to watch over one process.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from densing.core import DensingError, InputError, OtherWork, UnavailableError, install_command, processes
from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.network import INTERFACE, Net, Rate, parse_rates, slowest
from densing.efficiency.parallel.distributed.rank import LAUNCHER, SERVER, SPARE_BYTES
from densing.efficiency.parallel.distributed.results import Run, RunLink, gather
from densing.efficiency.parallel.distributed.spec import RunSpec, first_difference, identity
from densing.efficiency.simulation import parse_delay

WORKER = "densing.efficiency.systems.worker"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TICK_S = 0.05
# How long ranks that lost another may take to say why.
_GRACE_S = 0.5
# How long a worker may take to write its trace and leave after its server has.
_LEAVE_S = 20.0


class RunFailedError(DensingError):
    """A run that failed; the message names the rank, the reason, its log and how to continue."""


def launch(
    spec: RunSpec,
    *,
    resume: bool = False,
    module: str = WORKER,
    server: bool = False,
    on_step: Callable[[int], None] = lambda step: None,
) -> Run:
    """Run a technique for real, and return its results, which ``OUT/run.json`` holds too.

    A finished run of the same specification is read, not repeated.

    Parameters
    ----------
    spec : RunSpec
        With ``out``. A shaped link that cannot be made here is emulated, and the record says so.
    resume : bool
        Go on from the newest checkpoint that every rank has; from the start if there is none.
    module : str
        What each rank runs (``python -m``), with ``OUT/spec.json`` as its argument.
    server : bool
        Rank 0 is a server, and decides without how many of the others it can go on. Otherwise all ranks end with the
        first that dies.
    on_step : callable
        Told now and then how many steps are done.

    Raises
    ------
    InputError
        When the specification makes no sense, or ``out`` holds something else.
    UnavailableError
        When torch is missing.
    RunFailedError
        When a rank died; by then all others have ended.
    """
    rates = check(spec)
    spec = replace(spec, out=str(Path(spec.out).resolve()))
    out = Path(spec.out)
    with _locked(out):
        if (out / folder.RUN).exists():
            before = RunSpec.from_dict(folder.read_json(out / folder.SPEC))
            if _same(before) == _same(spec):
                return Run.from_dict(folder.read_json(out / folder.RUN))
        _prepare(spec, resume)
        others = OtherWork()
        with _link(spec.link, rates) as (net, link):
            used = replace(spec, link=f"emulated:{link.rate}" if link.reason else spec.link)
            folder.write_json(out / folder.SPEC, used.to_dict())
            _run_ranks(used, net, module, server, on_step)
        run = replace(gather(spec, link, server=server), others=others.cores())
        folder.write_json(out / folder.RUN, run.to_dict())
        return run


def check(spec: RunSpec) -> tuple[Rate, ...]:
    """Return every rank's link of a specification that can be run.

    Raises
    ------
    InputError, UnavailableError
        When it cannot.
    """
    if find_spec("torch") is None:
        raise UnavailableError(f"real runs need PyTorch; {install_command('train')}")
    if not spec.out:
        raise InputError("a run needs an output folder; give one with --out")
    for name, value, minimum in (
        ("nproc", spec.nproc, 1),
        ("steps", spec.steps, 1),
        ("batch", spec.batch, 1),
        ("sequence", spec.sequence, 1),
        ("trace_steps", spec.trace_steps, 0),
        ("checkpoint_every", spec.checkpoint_every, 0),
    ):
        if value < minimum:
            raise InputError(f"{name}={value}: must be a whole number from {minimum} up")
    for name, number in (("timeout_s", spec.timeout_s), ("lr", spec.lr)):
        if not 0 < number < float("inf"):
            raise InputError(f"{name}={number}: must be a positive number")
    if spec.delay:
        parse_delay(spec.delay)
    rates = parse_rates(spec.link, spec.nproc)
    if rates[0].kind == "shaped" and spec.nproc < 2:
        raise InputError(
            f"link {spec.link}: a link needs several ranks, but nproc is 1; add ranks or leave the link out"
        )
    return rates


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the folder against another run."""
    import fcntl

    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise InputError(f"{out}: cannot write ({error.strerror}); choose another --out") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{out}: another run is using it; choose another --out") from None
        yield


def _same(spec: RunSpec) -> RunSpec:
    """Return the part of a specification that identifies the run: not its folder, nor whether its link is emulated."""
    return replace(spec, out="", link=spec.link.removeprefix("emulated:"))


def _prepare(spec: RunSpec, resume: bool) -> None:
    """Refuse a folder in use; remove an earlier attempt's final files."""
    out = Path(spec.out)
    entries = sorted(entry.name for entry in out.iterdir() if entry.name != ".lock")
    if entries and not resume:
        content = "an unfinished or other run" if folder.SPEC in entries else f"other files ({', '.join(entries[:3])})"
        raise InputError(f"{out}: contains {content}; choose another --out, or continue with --resume")
    if entries and folder.SPEC not in entries:
        raise InputError(f"{out}: contains no run to resume; choose another --out")
    if entries:
        # Another run is refused before anything of the one that lies here is lost.
        path = out / folder.SPEC
        before, now = identity(RunSpec.from_dict(folder.read_json(path))), identity(spec)
        field = first_difference(before, now)
        if field is not None:
            raise InputError(
                f"{path}: {field} was {before[field]!r} and is now {now[field]!r}; resume with the same options, or "
                "choose another --out"
            )
    shutil.rmtree(out / "ranks", ignore_errors=True)
    with suppress(FileNotFoundError):
        (out / folder.RUN).unlink()
    for name in ("ranks", "logs"):
        (out / name).mkdir(exist_ok=True)


@contextmanager
def _link(text: str, rates: Sequence[Rate]) -> Iterator[tuple[Net | None, RunLink]]:
    """Give the namespaces of a shaped link, if that is what is asked for and possible, and what to say of the link."""
    rate = slowest(rates)
    bandwidth = 0.0 if rate.kind == "none" else rate.bytes_per_s
    plain = text.strip().lower().removeprefix("emulated:") or "none"
    link = RunLink(plain, rate.kind, bandwidth, rate.latency_s)
    with ExitStack() as stack:
        net = None
        if rate.kind == "shaped":
            try:
                net = stack.enter_context(Net(rates))
            except UnavailableError as error:
                link = replace(link, kind="emulated", reason=str(error))
        yield net, link


def _run_ranks(spec: RunSpec, net: Net | None, module: str, server: bool, on_step: Callable[[int], None]) -> None:
    """Start the ranks, wait for their end, and clean up."""
    out = Path(spec.out)
    environment = {
        **os.environ,
        **dict.fromkeys(_THREADS, "1"),
        LAUNCHER: str(os.getpid()),
        "WORLD_SIZE": str(spec.nproc),
        "GLOO_SOCKET_IFNAME": INTERFACE if net is not None else "lo0" if sys.platform == "darwin" else "lo",
        "PYTHONUNBUFFERED": "1",
    }
    if server:
        environment[SERVER] = "1"
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(spec.nproc):
            inside = [] if net is None else net.inside(rank)
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [*inside, sys.executable, "-m", module, str(out / folder.SPEC)]
            # A resumed run adds to its logs.
            with folder.rank_log(out, rank).open("ab") as log:
                ranks.append(processes.start(command, stdout=log, env=environment | own))
        supervisor = Supervisor(out, ranks, server=server, halt_s=spec.timeout_s)
        succeeded = supervisor.wait(on_step)
    finally:
        processes.stop(ranks)
    if not succeeded:
        raise supervisor.diagnose()


class Supervisor:
    """Watches the ranks of a run.

    Parameters
    ----------
    out : Path
    ranks : sequence of subprocess.Popen
    server : bool
        Only the first must come to its end.
    halt_s : float
        How long a rank may be stopped (SIGSTOP) before the run is given up.

    Attributes
    ----------
    codes : list of int or None
        Of the ranks, when last looked at; negative: killed by that signal.
    dead : list of int
        Ranks that have gone without a record, in the order in which that was seen.
    halted : str
        What was stopped for too long; empty while nothing was.
    """

    def __init__(
        self, out: Path, ranks: Sequence[subprocess.Popen[bytes]], *, server: bool = False, halt_s: float = math.inf
    ) -> None:
        self.out, self.server, self.halt_s = out, server, halt_s
        self.halted = ""
        self.codes: list[int | None] = [None] * len(ranks)
        self.dead: list[int] = []
        self._ranks = ranks
        self._stopped_at: dict[int, float] = {}

    def wait(self, on_step: Callable[[int], None] = lambda step: None) -> bool:
        """Return True once all ranks have ended well, or False soon after something has gone wrong.

        Where there is a server it is what counts; its workers have a moment to end after it.
        """
        failed_at = ended_at = None
        while True:
            self._look()
            on_step(folder.read_progress(self.out))
            if all(code == 0 for code in self.codes):
                return True
            if self.halted:
                return False
            if self.server and self.codes[0] == 0:
                ended_at = ended_at or time.monotonic()
                if None not in self.codes or time.monotonic() - ended_at > _LEAVE_S:
                    return True
            elif failed_at is None and (self._hopeless() if self.server else any(self.codes)):
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() - failed_at > _GRACE_S:
                return False
            time.sleep(_TICK_S)

    def _hopeless(self) -> bool:
        """Whether a server is gone, or waits for a worker that ended before all had found each other."""
        return bool(self.codes[0] or (any(self.codes) and not folder.met_file(self.out).exists()))

    def _look(self) -> None:
        """Note which ranks have ended, and which stand still, since the last look."""
        self.codes = [rank.poll() for rank in self._ranks]
        self.dead += [rank for rank, code in enumerate(self.codes) if code and rank not in self.dead]
        # A server goes on without a worker that stands still.
        for rank, process in enumerate(self._ranks[:1] if self.server else self._ranks):
            if not processes.stopped(process.pid):
                self._stopped_at.pop(rank, None)
            elif time.monotonic() - self._stopped_at.setdefault(rank, time.monotonic()) > self.halt_s:
                self.halted = self.halted or f"rank {rank}"

    def diagnose(self) -> DensingError:
        """Return the error to raise, once every process of the run has ended.

        What a rank says itself comes before how it ended; a rank that only lost its peers comes last.
        """
        errors: dict[int, dict[str, Any]] = {}
        for rank in range(len(self.codes)):
            with suppress(DensingError):
                errors[rank] = folder.read_json(folder.error_file(self.out, rank))
        for error in errors.values():
            if error["fault"] == "input":
                return InputError(str(error["message"]))
        halted = f"{self.halted} was stopped (SIGSTOP), and did not go on for {self.halt_s:g} s" if self.halted else ""
        cause = halted or next(self._causes(errors))
        step = folder.newest_checkpoint(self.out, 1 if self.server else len(self.codes))
        if step >= 0:
            remedy = f"The same command with --resume continues from step {step}"
        else:
            remedy = (
                "The same command with --resume starts over; with --checkpoint-every N it could continue from a step"
            )
        return RunFailedError(f"{cause}; all ranks were stopped. {remedy}")

    def _causes(self, errors: dict[int, dict[str, Any]]) -> Iterator[str]:
        """Yield explanations, the most certain first."""
        silent = {rank: self.codes[rank] or 0 for rank in self.dead if rank not in errors}
        for rank, error in errors.items():
            if error["fault"] == "lost":
                # Why they died, where they could say it.
                yield "; ".join([f"{error['message']}{self._log(rank)}", *self._spoken(errors, "own", "failed")])
        free = shutil.disk_usage(self.out).free
        if free < (1 + len(self.codes)) * SPARE_BYTES and 1 in silent.values():
            yield f"{self.out}: no space left on this disk ({free:,} bytes free), not even for the ranks' reasons"
        yield from (f"rank {rank} {_ended(code)}{self._log(rank)}" for rank, code in silent.items())
        yield from self._spoken(errors, "own", "failed")
        yield from self._spoken(errors, "timeout", "timed out waiting for another rank, which hangs or is stopped")
        yield from self._spoken(errors, "peer", "lost another rank")

    def _spoken(self, errors: dict[int, dict[str, Any]], fault: str, verb: str) -> Iterator[str]:
        for rank, error in errors.items():
            if error["fault"] == fault:
                yield f"rank {rank} {verb}: {error['message']}{self._log(rank)}"

    def _log(self, rank: int) -> str:
        return f" (log: {folder.rank_log(self.out, rank)})"


def _ended(code: int) -> str:
    """Say how a process ended.

    Examples
    --------
    >>> _ended(-9), _ended(3)
    ('was killed (SIGKILL)', 'ended with code 3')
    """
    return f"ended with code {code}" if code >= 0 else f"was killed ({processes.signal_name(code)})"
