"""What Slurm is asked for: sbatch of our own writes down the scripts it is given, and no cluster is needed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from densing.core.errors import InputError
from densing.jobs import Job, get_executor, slurm
from densing.scores.evals.plan import ModelSpec
from densing.scores.evals.runner import devices_of

pytest.importorskip("submitit", reason="needs the extra slurm: pip install 'densing[slurm]'")


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the scripts that were submitted; a queue that knows none of the jobs."""
    sent = tmp_path / "sent"
    sent.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    answers = {
        "sbatch": f'cp "$1" {sent}/$$.sh\n'
        f'[ -e {tmp_path}/refuse ] && echo "sbatch: error: too many GPUs" >&2 && exit 1\n'
        'echo "Submitted batch job $$"',
        "srun": "exit 0",
        "squeue": "echo Invalid job id specified >&2; exit 1",
        "scancel": f'echo "$@" >> {tmp_path}/cancelled',
    }
    for name, lines in answers.items():
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "LOST_SECONDS", 0.0)
    return sent


def jobs_of(folder: Path, *models: ModelSpec) -> list[Job]:
    return [
        Job((sys.executable, "-V"), model.name, devices=devices_of(model, "cuda"), memory_gb=4.0, workdir=folder)
        for model in models
    ]


def asked(scripts: Path) -> dict[str, str]:
    """Options by script, keyed by the GPUs per node."""
    texts = [path.read_text() for path in scripts.iterdir()]
    gpus = [re.findall(r"--gpus-per-node=(\d+)", text) for text in texts]
    return {found[0] if found else "": text for found, text in zip(gpus, texts, strict=True)}


def test_each_model_is_given_its_own_number_of_gpus(scripts: Path, tmp_path: Path) -> None:
    models = [
        ModelSpec.of("vllm", {"pretrained": "large", "tensor_parallel_size": 8}),
        ModelSpec.of("hf", {"pretrained": "small"}),
        ModelSpec.of("vllm", {"pretrained": "wide", "tensor_parallel_size": 4, "data_parallel_size": 2}),
        ModelSpec.of("sglang", {"pretrained": "other", "tp_size": 2}),
    ]
    jobs = jobs_of(tmp_path, *models)
    results = get_executor("slurm", poll=0.01, time=90, partition="gpu").run(jobs)
    assert [result.job for result in results] == jobs
    assert all("left the queue without a result" in result.reason for result in results)
    options = asked(scripts)
    assert sorted(options) == ["1", "2", "8"], "a small model does not wait for the GPUs of the largest"
    assert "--array=0-1%2" in options["8"] and "--array" not in options["1"]
    for text in options.values():
        said = [line for line in text.splitlines() if line.startswith("#SBATCH")]
        assert {"#SBATCH --partition=gpu", "#SBATCH --time=90", "#SBATCH --cpus-per-task=1", "#SBATCH --requeue",
                "#SBATCH --mem=3815M"} <= set(said)  # fmt: skip


def test_jobs_without_gpus_ask_for_none(scripts: Path, tmp_path: Path) -> None:
    job = Job((sys.executable, "-V"), "cpu", workdir=tmp_path)
    get_executor("slurm", poll=0.01).run([job])
    assert list(asked(scripts)) == [""]


def test_what_was_queued_is_cancelled_when_the_rest_is_refused(scripts: Path, tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, ModelSpec.of("hf", {"pretrained": "small"}))
    late = Job((sys.executable, "-V"), "large", devices=8, workdir=tmp_path, env={})
    executor = get_executor("slurm", poll=0.01)
    submit = executor._submit

    def refusing(some: list[Job], folder: Path) -> list[object]:
        if some == [late]:
            (tmp_path / "refuse").touch()
        return submit(some, folder)

    executor._submit = refusing
    with pytest.raises(InputError, match="too many GPUs; check --executor-arg"):
        executor.run([*jobs, late])
    assert (tmp_path / "cancelled").read_text().strip() in {path.stem for path in scripts.iterdir()}
