"""The Slurm executor on a real cluster of one node (`.ci/slurm` starts one): array, requeue, node failure."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.jobs import NO_RETRY, Job, JobEvent, get_executor
from tests.support.waiting import until

pytest.importorskip("submitit", reason="needs the extra slurm: pip install 'densing[slurm]'")

CLUSTER = "densing"
"""Name of the cluster that `.ci/slurm` makes: no other is ever disturbed."""


def ask(*command: str) -> str:
    """Run one of Slurm's programs and return what it says."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


def _why_not() -> str:
    if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
        return "no Slurm here (sbatch, sinfo); run .ci/slurm as root"
    states = ask("sinfo", "--noheader", "--format", "%T").split()
    if not any(state in ("idle", "mixed", "allocated") for state in states):
        return f"no node of the cluster is up (sinfo says {states or 'nothing'}); run .ci/slurm as root"
    return ""


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def cluster() -> None:
    if reason := _why_not():
        pytest.skip(reason)


def python(code: str, name: str, folder: Path, *arguments: str, **options: Any) -> Job:
    """A job that runs Python code in a folder and logs there."""
    return Job((sys.executable, "-c", code, *arguments), name, workdir=folder, logs=folder / "logs", **options)


# A job in steps, each of them kept: what the run store does for units.
STEPS = """
import sys, time
from pathlib import Path
folder = Path(sys.argv[1]); folder.mkdir(exist_ok=True)
with open(folder / "starts", "a") as log: log.write("start\\n")
for step in range(int(sys.argv[2])):
    file = folder / f"step{step}"
    if not file.exists():
        time.sleep(0.4)
        file.write_text(str(step * step))
        with open(folder / "work", "a") as log: log.write(f"{step}\\n")
print("sum", sum(int(f.read_text()) for f in folder.glob("step*")))
"""


class Running:
    """An executor at work in a thread, so that the test can disturb it."""

    def __init__(self, jobs: list[Job], **options: Any) -> None:
        self.events: list[JobEvent] = []
        self.executor = get_executor("slurm", poll=0.3, **options)
        self.results: list[Any] = []
        self.thread = threading.Thread(
            target=lambda: self.results.extend(self.executor.run(jobs, on_event=self.events.append)), daemon=True
        )
        self.thread.start()

    def number(self) -> str:
        """Slurm's number of the job, once it is known."""
        assert until(lambda: self.events)
        number = re.search(r"Slurm job (\d+)", self.events[0].message)
        assert number is not None
        return number[1]

    def wait(self, seconds: float = 80.0) -> list[Any]:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), [event.message for event in self.events]
        return self.results


def test_array_runs_every_job_and_keeps_secrets_off_the_disk(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv[1], os.environ['WHO'], os.environ['API_KEY'])"
    jobs = [
        python(code, f"job {n}", tmp_path, str(n), env={"WHO": f"me{n}", "API_KEY": f"q8w7e6r5t{n}"}) for n in range(3)
    ]
    results = Running(jobs).wait()
    assert [result.job for result in results] == jobs
    assert [result.lines for result in results] == [(f"{n} me{n} ***",) for n in range(3)]
    assert all(result.ok and result.attempts == 1 for result in results)
    logs = [file for file in (tmp_path / "logs").rglob("*") if file.is_file()]
    assert any(file.name.endswith("submission.sh") for file in logs)
    assert not any(b"q8w7e6r5t" in file.read_bytes() for file in logs)
    assert "API_KEY" not in os.environ and "DENSING_JOB_0_WHO" not in os.environ


def test_crash_is_restarted_and_a_refusal_is_not(tmp_path: Path) -> None:
    crash = (
        "import os, sys; from pathlib import Path; p = Path(sys.argv[1]); first = not p.exists(); p.touch();"
        "first and os.kill(os.getpid(), 9); print('second time')"
    )
    jobs = [
        python(crash, "crash", tmp_path, str(tmp_path / "seen")),
        python(f"import sys; print('no such task'); sys.exit({NO_RETRY})", "refusal", tmp_path),
    ]
    crashed, refused = Running(jobs).wait()
    assert crashed.ok and crashed.attempts == 2 and crashed.reason.startswith("attempt 1: killed by SIGKILL")
    assert (refused.returncode, refused.attempts, refused.lines) == (NO_RETRY, 1, ("no such task",))


def test_what_slurm_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--executor slurm: .*invalid partition.*--executor-arg"):
        get_executor("slurm", partition="nowhere").run([python("", "x", tmp_path)])
    with pytest.raises(InputError, match="written to disk"):
        get_executor("slurm").run([Job(("x", "--api_key", "abc"), "x", workdir=tmp_path)])
    assert get_executor("slurm").run([]) == []


def test_cancelled_job_is_a_failure_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("densing.jobs.slurm.LOST_SECONDS", 2.0)
    running = Running([python(STEPS, "long", tmp_path, str(tmp_path / "s"), "400")])
    assert until(lambda: (tmp_path / "s" / "step0").exists())
    ask("scancel", running.number())
    [result] = running.wait()
    assert result.returncode is None and "left the queue without a result" in result.reason


def test_time_out_and_preemption_requeue_the_job(tmp_path: Path) -> None:
    """Slurm's warning signal, sent by hand: submitit puts the task back, and it goes on where it was."""
    running = Running([python(STEPS, "long", tmp_path, str(tmp_path / "s"), "8")])
    assert until(lambda: (tmp_path / "s" / "step1").exists())
    ask("scancel", "--signal", "USR2", running.number())
    [result] = running.wait()
    assert result.ok and result.lines == ("sum 140",)
    assert result.reason.startswith("requeued by Slurm 1 time")
    _each_step_once(tmp_path / "s", steps=8, starts=2)


def _each_step_once(folder: Path, *, steps: int, starts: int) -> None:
    work = (folder / "work").read_text().split()
    # Between a step and its line in the log a kill may fall.
    assert len(work) == len(set(work)) and len(work) >= steps - (starts - 1)
    assert len((folder / "starts").read_text().split()) == starts


def test_ctrl_c_cancels_the_array(tmp_path: Path) -> None:
    def listen(event: JobEvent) -> None:
        if event.kind == "started":
            raise KeyboardInterrupt

    jobs = [python("import time; time.sleep(300)", str(n), tmp_path) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        get_executor("slurm", poll=0.3).run(jobs, on_event=listen)
    assert until(lambda: not ask("squeue", "--noheader", "--name", "densing").strip())


# -- node failure ------------------------------------------------------------------------------------------------------


def _our_cluster() -> bool:
    return (
        os.geteuid() == 0
        and re.search(rf"ClusterName\s*=\s*{CLUSTER}\b", ask("scontrol", "show", "config")) is not None
    )


def _crash_node(number: str) -> None:
    """Kill the node's daemon and every process of the job, as a power cut would."""
    steps = [int(line.split()[0]) for line in ask("scontrol", "listpids", number).splitlines()[1:] if line.split()]
    keepers = [
        int(place.name)
        for place in Path("/proc").iterdir()
        if place.name.isdigit() and _command(place).startswith(f"slurmstepd: [{number}.")
    ]
    daemon = int(Path("/run/slurmd.pid").read_text())
    for pid in [daemon, *keepers, *(pid for pid in steps if pid > 0)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _command(place: Path) -> str:
    try:
        return (place / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


@pytest.fixture
def node() -> Iterator[str]:
    """The name of our node, which is up again afterwards."""
    if not _our_cluster():
        pytest.skip(f"node failure is only played on the cluster {CLUSTER!r} of .ci/slurm, by root")
    name = ask("sinfo", "--noheader", "--format", "%n").strip()
    yield name
    _bring_back(name)


def _bring_back(name: str) -> None:
    if not _command(Path("/proc") / Path("/run/slurmd.pid").read_text().strip()):
        subprocess.run(["slurmd"], capture_output=True, timeout=30, check=True, env={**os.environ, "PATH": _PATH})
    assert until(lambda: "idle" in ask("sinfo", "--noheader", "--format", "%T") or _resumed(name))


def _resumed(name: str) -> bool:
    ask("scontrol", "update", f"nodename={name}", "state=resume")
    return "idle" in ask("sinfo", "--noheader", "--format", "%T")


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _plan(folder: Path) -> Any:
    from densing.scores.evals.plan import Loading, ModelSpec, Plan, TaskSpec
    from tests.support.evals_toys import write_models, write_tasks

    models = tuple(ModelSpec.of("hf", {"pretrained": str(place)}) for place in write_models(folder))
    tasks = (TaskSpec("toy_choice"), TaskSpec("toy_long"))
    return Plan(
        models, tasks, loading=Loading("1", device="cpu"), include_path=(str(write_tasks(folder / "tasks", 25)),)
    )


@pytest.mark.filterwarnings("ignore")
def test_node_failure_in_the_middle_of_a_plan(node: str, tmp_path: Path) -> None:
    """Two workers lose their node while they evaluate; Slurm starts them again and the tables are the unbroken ones."""
    pytest.importorskip("lm_eval", reason="needs the extra evals: pip install 'densing[evals]'")
    import pandas as pd

    from densing.scores.evals.runner import run_plan
    from densing.scores.evals.store import RunStore

    plan = _plan(tmp_path)
    store, unbroken = RunStore(tmp_path / "store"), RunStore(tmp_path / "unbroken")
    done: list[Any] = []
    executor = get_executor("slurm", poll=0.3, logs=tmp_path / "logs")
    thread = threading.Thread(target=lambda: done.append(run_plan(plan, store.folder, executor=executor)), daemon=True)
    thread.start()
    assert until(store.partial, 180)
    ids = re.findall(r"\bJobId=(\d+)", ask("scontrol", "show", "job"))
    _crash_node_of(ids)
    # Slurm finds out by itself within a minute (its ping interval); a health check says so at once.
    ask("scontrol", "update", f"nodename={node}", "state=down", "reason=crashed")
    assert until(lambda: "REQUEUE" in _states() or "PENDING" in _states()), _states()
    assert not done
    _bring_back(node)
    # Meanwhile the same plan without Slurm.
    assert not run_plan(plan, unbroken.folder).failed
    thread.join(240)
    assert done and not done[0].failed, done
    assert len(store.units()) == len(plan.models) * len(plan.tasks)
    for table in ("measurements", "items"):
        ours, theirs = (getattr(one, table)() for one in (store, unbroken))
        varying = [name for name in ("date", "file") if name in ours]
        pd.testing.assert_frame_equal(ours.drop(columns=varying), theirs.drop(columns=varying))


def _states() -> str:
    return ask("squeue", "--noheader", "--array", "--states", "all", "--format", "%T %r")


def _crash_node_of(ids: list[str]) -> None:
    for number in ids:
        _crash_node(number)
