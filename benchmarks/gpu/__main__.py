"""Run stages on the GPU of this machine, or each in seconds on a processor.

python -m benchmarks.gpu                       # install, then stages 1 to 7, at most nine minutes each
python -m benchmarks.gpu constants traces      # these alone
python -m benchmarks.gpu --dry                 # all, in their small size
python -m benchmarks.gpu --page docs/results/gpu.md --records FOLDER
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import record
from benchmarks.gpu.record import ROOT, UNDER_WAY, OutOfTime, Record, Session

LIMIT_S = 540.0


class Stage(NamedTuple):
    """A stage: its module, the free memory of a device that it takes, whether it wants a whole device, what it is."""

    module: str
    memory_gb: float
    whole: bool
    about: str


STAGES = {
    "install": Stage("install", 0, False, "packages: the machine's, or from wheels brought along"),
    "tests": Stage("checks", 4, False, "the tests marked gpu"),
    "traces": Stage("traces", 60, True, "profiles beside the device's own events"),
    "constants": Stage("constants", 20, True, "what the cost model takes of a device"),
    "contention": Stage("contention", 12, True, "products beside copies, an exchange beside a step"),
    "host-memory": Stage("host_memory", 16, True, "rows of a table in the host's memory"),
    "evaluation": Stage("evaluation", 8, False, "SmolLM2 over the suite, device beside processor"),
    "yardstick": Stage("yardstick", 70, False, "arms of training at 5 to 106 million parameters"),
}


def run_here(name: str, session: Session, *options: object) -> Record:
    """Run a stage in this process; whatever happens, its record says so."""
    try:
        importlib.import_module(f"benchmarks.gpu.{STAGES[name].module}").run(session, *options)
    except OutOfTime:
        return session.end("partial", "its time was over; the same command goes on where it was")
    except KeyboardInterrupt:
        session.end("partial", "interrupted")
        raise
    except BaseException as error:
        with (session.out / session.record.log).open("a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        first = str(error).strip().splitlines() or [""]
        return session.end("failed", f"{type(error).__name__}: {first[0]}")
    return session.end("ok")


def supervise(command: Sequence[str], name: str, out: Path, limit_s: float) -> Record:
    """Run a stage's process until it ends or its time is over; its record is kept in any case.

    Returns
    -------
    Record
        ``partial`` where the process was killed at the limit or by somebody else, with all that it had measured.
    """
    out.mkdir(parents=True, exist_ok=True)
    # What an earlier call left is not this one's.
    (out / f"{name}.json").unlink(missing_ok=True)
    began, why = time.monotonic(), ""
    with (out / f"{name}.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            why = f"killed at its limit of {limit_s:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = record.read(out, name) or Record(name, limit_s=limit_s, log=f"{name}.log")
    if found.reason == UNDER_WAY:
        found.status = "partial" if why or code < 0 or found.figures else "failed"
        found.reason = why or (f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}")
        found.seconds = time.monotonic() - began
        found.write(out)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says, and return its exit code: 1 where a stage failed or could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:<12} {stage.about}" for name, stage in STAGES.items()),
    )  # fmt: skip
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="all when left out")
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="folder of records and logs")
    parser.add_argument("--work", type=Path, default=Path("results/gpu-work"), help="what a later call goes on with")
    parser.add_argument("--wheels", type=Path, help="folder of wheels for the stage install")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of each stage")
    parser.add_argument("--dry", action="store_true", help="small sizes, on a processor, in this process")
    parser.add_argument("--page", type=Path, help="write the page of the records and run nothing")
    parser.add_argument("--records", type=Path, help="records of the page; default: the committed ones")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.stages if name not in STAGES]:
        parser.error(f"no stage {unknown[0]!r}; stages: {', '.join(STAGES)}")
    out, work, names = chosen.out.absolute(), chosen.work.absolute(), chosen.stages or list(STAGES)
    if chosen.page is not None:
        from benchmarks.gpu.page import write_page

        print(f"wrote {write_page(chosen.page, chosen.records)}")
        return 0
    if chosen.child or chosen.dry:
        device = small() if chosen.dry else known_device()
        ends = []
        for name in names:
            session = Session(name, out, work, dry=chosen.dry, limit_s=chosen.limit, device=device)
            ends.append(said(run_here(name, session, *([chosen.wheels] if name == "install" else []))))
        return int(any(end.status in ("failed", "not run") for end in ends))
    return on_device(names, out, work, chosen.wheels, chosen.limit)


def on_device(names: Sequence[str], out: Path, work: Path, wheels: Path | None, limit_s: float) -> int:
    """Run each stage in a process of its own, as far as the device lets it."""
    options = ["--child", "--out", str(out), "--work", str(work), "--limit", str(limit_s)]
    options += ["--wheels", str(wheels.absolute())] if wheels else []
    ends = []
    for name in names:
        stage = STAGES[name]
        if name != "install":
            # After the installation: it may have brought what the query needs.
            from benchmarks.gpu import device

            found = device.query()
            if reason := device.no_device(found):
                print(f"error: {reason}", file=sys.stderr)
                return 1
            if reason := device.refusal(found, name, stage.memory_gb, stage.whole):
                refused = Record(name, "not run", reason, device=asdict(found), versions=record.versions(),
                                 commit=record.commit())  # fmt: skip
                refused.write(out)
                ends.append(said(refused))
                continue
        ends.append(said(supervise([sys.executable, "-m", "benchmarks.gpu", name, *options], name, out, limit_s)))
    return int(any(end.status in ("failed", "not run") for end in ends))


def small() -> dict[str, object]:
    """Prepare this process for small sizes, whose work is too little for several threads; return what it runs on."""
    with suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    return {"name": "", "processor": os.uname().machine}


def known_device() -> dict[str, object]:
    """Return the device as a record has it; empty before the installation."""
    try:
        from benchmarks.gpu.device import query

        return asdict(query())
    except ImportError:
        return {}


def said(end: Record) -> Record:
    """Print how a stage ended, in a line."""
    print(f"{end.stage}: {end.status}{f', {end.reason}' if end.reason else ''} ({end.seconds:.0f} s)", flush=True)
    return end


if __name__ == "__main__":
    sys.exit(main())
