"""Executors by name: back-ends of other packages, and what is said when one cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from densing.core.errors import InputError, UnavailableError, UnknownNameError
from densing.jobs import Executor, Job, executor_names, get_executor


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that registers executors, as an installer would leave it."""
    info = tmp_path / "densing_other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: densing-other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[densing.executors]\nthread = densing_other:Threads\n"
        "odd = densing_other:odd\nbroken = densing_other_missing:X\n"
    )
    (tmp_path / "densing_other.py").write_text(
        "import subprocess\n"
        "from densing.jobs import JobResult\n"
        "class Threads:\n"
        "    name = 'thread'\n"
        "    def __init__(self, size='1'):\n        self.size = int(size)\n"
        "    def run(self, jobs, *, on_event=print):\n"
        "        return [JobResult(job, subprocess.run(job.argv).returncode) for job in jobs]\n"
        "def odd():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_executor_of_another_package(other_package: Path) -> None:
    assert {"local", "slurm", "thread"} <= set(executor_names())
    executor = get_executor("thread", size="4")
    assert isinstance(executor, Executor)
    [result] = executor.run([Job((sys.executable, "-c", "pass"), "job")])
    assert result.ok
    with pytest.raises(InputError, match="unexpected keyword argument 'colour'"):
        get_executor("thread", colour="red")
    with pytest.raises(UnavailableError, match="densing_other_missing"):
        get_executor("broken")
    with pytest.raises(InputError, match="not an executor"):
        get_executor("odd")


def test_unknown_executor_and_option() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'slurm'"):
        get_executor("slrum")
    with pytest.raises(InputError, match=r"--executor local: .*'wrokers'.*--executor-arg"):
        get_executor("local", wrokers=2)


def test_slurm_needs_its_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="sbatch, srun, squeue, scancel not found"):
        get_executor("slurm")


def test_slurm_needs_submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[slurm\]"):
        get_executor("slurm")
