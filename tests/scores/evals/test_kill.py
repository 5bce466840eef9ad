"""Kill drills: SIGKILL at random moments, then the same results as a run that was never broken, and nothing twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support import folders

pytest.importorskip("lm_eval")
pytest.importorskip("torch")

from densing.scores.evals.store import RunStore

pytestmark = pytest.mark.slow

BATCH = 4
UNITS = 6
KILLS = 10
VOLATILE = ["date", "file"]


class Drill:
    """The process that forks runs, and the folder they work in."""

    def __init__(self, folder: Path) -> None:
        from tests.support.evals_toys import write_models, write_tasks

        write_models(folder)
        write_tasks(folder / "tasks")
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(folders.SUPPORT / "evals_drill.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def __call__(
        self, store: Path, how: str, kill_at: int | None = None, wait: float = 0.0, processes: int = 1
    ) -> dict[str, Any]:
        asked = {"store": str(store), "how": how, "kill_at": kill_at, "wait": wait, "processes": processes}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    made = Drill(tmp_path_factory.mktemp("drill"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def unbroken(drill: Drill) -> tuple[Path, dict[str, Any]]:
    store = drill.folder / "unbroken"
    done = drill(store, "runner")
    assert done["codes"] == [0]
    assert len(RunStore(store).units()) == UNITS
    return store, done


def same_results(store: Path, expected: Path) -> None:
    ours, theirs = RunStore(store), RunStore(expected)
    assert [unit.digest for unit in ours.units()] == [unit.digest for unit in theirs.units()]
    pd.testing.assert_frame_equal(
        ours.measurements().drop(columns=VOLATILE), theirs.measurements().drop(columns=VOLATILE), check_exact=True
    )
    pd.testing.assert_frame_equal(ours.items(), theirs.items(), check_exact=True)
    for unit, other in zip(ours.units(), theirs.units(), strict=True):
        (mine,), (its,) = list(unit.folder.glob("samples_*")), list(other.folder.glob("samples_*"))
        assert mine.read_bytes() == its.read_bytes(), unit.folder.name
        assert not list(unit.folder.glob("journal*"))


def moment(rng: np.random.Generator, rows: int, end: int) -> tuple[int, float]:
    """Return when to kill: after how many rows, and how long after; now and then before the first."""
    if rng.random() < 0.1:
        return 0, float(rng.uniform(0, 0.5))
    return int(rng.integers(rows + 1, end + 1)), float(rng.uniform(0, 0.1))


@pytest.mark.parametrize("kind", ["runner", "worker"])
def test_killed_at_random_moments(drill: Drill, unbroken: tuple[Path, dict[str, Any]], kind: str) -> None:
    expected, whole = unbroken
    rng = np.random.default_rng(2412 if kind == "runner" else 4315)
    parts = ["runner"] if kind == "runner" else ["worker-0", "worker-1"]
    kills = stores = partial = 0
    while kills < KILLS:
        store = drill.folder / f"{kind}-{stores}"
        stores += 1
        broken = rows = 0
        for n, how in enumerate(parts, start=1):
            end = whole["rows"] * n // len(parts)
            for _ in range(5 * KILLS):
                kill_at, wait = moment(rng, rows, max(end, rows + 1)) if kills < KILLS else (None, 0.0)
                done = drill(store, how, kill_at, wait)
                rows = done["rows"]
                assert done["codes"][0] in (0, -9)
                if done["codes"] == [0]:
                    break
                kills += 1
                broken += 1
                partial += bool(RunStore(store).partial())
        same_results(store, expected)
        assert whole["rows"] <= rows <= whole["rows"] + broken * BATCH
    assert partial > KILLS // 2, "too few kills fell in the middle of a unit: the drill drilled nothing"


def test_two_runners_share_the_work(drill: Drill, unbroken: tuple[Path, dict[str, Any]]) -> None:
    expected, whole = unbroken
    store = drill.folder / "shared"
    done = drill(store, "runner", processes=2)
    assert done["codes"] == [0, 0]
    assert done["rows"] == whole["rows"]
    same_results(store, expected)


def test_again_does_nothing(drill: Drill, unbroken: tuple[Path, dict[str, Any]]) -> None:
    store, whole = unbroken
    stamps = {path: path.stat().st_mtime_ns for path in store.rglob("unit.json")}
    assert drill(store, "runner")["rows"] == whole["rows"]
    assert stamps == {path: path.stat().st_mtime_ns for path in store.rglob("unit.json")}
