"""Every command of README runs as written, in a copy of what a clone has; links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import folders

README = folders.ROOT / "README.md"
ELSEWHERE = {
    "git clone https://github.com/densing/densing && cd densing": "the clone that runs this test",
    "make run": ".ci/run",
    "make test": ".ci/run",
    "pip install .": "tests/test_package.py installs the wheel in a clean environment",
    "pip install '.[evals]'": "`make .venv/.installed`, by the extra dev",
    "pip install '.[train]'": "`make .venv/.installed`, by the extra dev",
    "pip install '.[explain,tune,slurm,notebook,png]'": "`make .venv/.installed`, by dev; png asks for a browser",
    "pip install --no-deps -r requirements-data.txt": "`make .venv/.installed`",
}
"""Lines that are not run here, and what runs them."""


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [text for found, text in fences if found == language]


def lines() -> list[str]:
    """Return the lines that are for a shell, without what they say of themselves."""
    stripped = (re.sub(r"\s{2,}#.*", "", line).strip() for text in blocks("") for line in text.splitlines())
    return [line for line in stripped if re.match(r"(densing|make|pip|git) [^/]", line)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone")
    for name in ("examples", "reference_fits"):
        shutil.copytree(folders.ROOT / name, folder / name)
    return folder


def environment() -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([programs, os.environ["PATH"]]), "COLUMNS": "100"}


def test_what_is_not_run_here_is_named() -> None:
    others = {line for line in lines() if not line.startswith("densing ")}
    assert others == set(ELSEWHERE)
    assert len(lines()) - len(others) >= 15


@pytest.mark.slow
def test_every_command_runs_as_written(clone: Path) -> None:
    failed = []
    # In turn: some read what those before them wrote.
    for line in (line for line in lines() if line.startswith("densing ")):
        done = subprocess.run(line, shell=True, cwd=clone, env=environment(), capture_output=True, text=True)
        # 3: done, and a note says not to use the number as it stands.
        if done.returncode not in (0, 3) or not done.stdout.strip():
            failed.append(f"{line}: {done.returncode}\n{done.stderr}")
    assert not failed, "\n".join(failed)
    for written in ("mine/report.html", "ruler.json", "profile.html", "runs/co2-seed0"):
        assert (clone / "results" / written).exists(), written


@pytest.mark.slow
def test_the_notebook_block_runs_as_written(clone: Path) -> None:
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "DCLM-Baseline-7B" in done.stdout


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    file = folders.ROOT / page
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)#]+)", file.read_text("utf-8"))
    assert [target for target in targets if not (file.parent / target).exists()] == []


def test_examples_are_what_they_say() -> None:
    import pandas as pd

    runs = pd.read_csv(folders.ROOT / "examples" / "runs.csv").set_index(["run", "tokens"])
    measured = pd.read_csv(folders.ROOT / "densing" / "scores" / "references" / "data" / "densing_cpu.csv")
    # The tasks that the ruler `densing-cpu` uses.
    means = measured[measured.task != "table"].groupby(["run", "tokens"])[["bits_per_byte", "accuracy"]].mean()
    assert len(runs) == 84
    assert runs.loss.to_numpy() == pytest.approx(means.bits_per_byte.reindex(runs.index).to_numpy(), abs=1e-5)
    assert runs.score.to_numpy() == pytest.approx(means.accuracy.reindex(runs.index).to_numpy(), abs=1e-9)
