"""The result store when processes die or write at the same time."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from densing.core import files
from densing.core.errors import InputError
from densing.scores.evals import store
from densing.scores.evals.disk import BusyError
from densing.scores.evals.store import RunStore, Unit
from tests.support.eval_files import finish, finish_many, key

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")


def _finish_until(folder: str, step: int) -> None:
    """Die without clean-up at the given rename (child process)."""
    left = [step]

    def deadly(*arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        original(*arguments)  # type: ignore[arg-type]

    original = files.move
    files.move = store.move = deadly
    finish(Path(folder), key())
    os._exit(0)


def test_crash_at_every_step_leaves_old_or_new(tmp_path: Path) -> None:
    whole = finish(tmp_path / "whole", key()).items()
    exits = []
    # Renames of one finish: owner file, items, two files and items into place, manifest.
    for step in range(8):
        place = tmp_path / f"run{step}"
        child = SPAWN.Process(target=_finish_until, args=(str(place), step))
        child.start()
        child.join(60)
        exits.append(child.exitcode)
        unit = RunStore(place).unit(key())
        assert unit.status == ("done" if child.exitcode == 0 else "partial" if step > 0 else "absent")
        again = finish(place, key())
        assert again.status == "done"
        pd.testing.assert_frame_equal(again.items(), whole)
        assert not list(again.folder.glob(".*"))
        assert not again.journal_path.exists()
    assert exits[0] == 9
    assert exits[-1] == 0


def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    tasks = [f"t{i}" for i in range(12)]
    finish_many(str(tmp_path / "whole"), tasks)
    rng = random.Random(7)
    for _ in range(6):
        child = SPAWN.Process(target=finish_many, args=(str(tmp_path / "run"), tasks))
        child.start()
        deadline = time.monotonic() + rng.uniform(0.3, 3.0)
        while time.monotonic() < deadline and child.is_alive():
            # Whatever is read in between is whole.
            assert all(status in ("done", "partial") for _, status in RunStore(tmp_path / "run").all_units())
            time.sleep(0.02)
        if child.is_alive() and child.pid:
            os.kill(child.pid, signal.SIGKILL)
        child.join(60)
    finish_many(str(tmp_path / "run"), tasks)
    left, right = RunStore(tmp_path / "run"), RunStore(tmp_path / "whole")
    pd.testing.assert_frame_equal(left.items(), right.items())
    pd.testing.assert_frame_equal(left.measurements().drop(columns="file"), right.measurements().drop(columns="file"))


# ---- several processes ---------------------------------------------------------------------------------------


def test_writers_of_the_same_and_of_other_units(tmp_path: Path) -> None:
    tasks = [f"t{i}" for i in range(6)]
    orders = [random.Random(seed).sample(tasks, len(tasks)) for seed in range(4)]
    with ProcessPoolExecutor(4, mp_context=SPAWN) as pool:
        list(pool.map(finish_many, [str(tmp_path)] * 4, orders))
    store = RunStore(tmp_path)
    assert [status for _, status in store.all_units()] == ["done"] * len(tasks)
    assert sorted(store.measurements()["task"].unique()) == tasks
    assert not list(tmp_path.rglob(".staging-*"))


def _record(store: str, number: int) -> None:
    RunStore(Path(store)).record_plan({"number": number})
    RunStore(Path(store)).record_plan({"number": -1})


def test_plans_are_recorded_once_each(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=SPAWN) as pool:
        list(pool.map(_record, [str(tmp_path)] * 9, range(9)))
    plans = [entry["plan"]["number"] for entry in RunStore(tmp_path).run["plans"]]
    assert sorted(plans) == list(range(-1, 9))


def _hold(unit_folder: str, ready: object, release: object) -> None:
    with Unit(Path(unit_folder)).lock():
        ready.set()  # type: ignore[attr-defined]
        release.wait(60)  # type: ignore[attr-defined]


def test_busy_names_the_other_process(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    ready, release = SPAWN.Event(), SPAWN.Event()
    child = SPAWN.Process(target=_hold, args=(str(unit.folder), ready, release))
    child.start()
    assert ready.wait(60)
    with pytest.raises(BusyError, match=rf"process {child.pid} on .* holds it since"), unit.lock(timeout=0):
        pass
    release.set()
    child.join(60)
    with unit.lock(timeout=0), unit.lock(timeout=0):
        assert json.loads((unit.folder / "unit.owner").read_text())["pid"] == os.getpid()
    assert not (unit.folder / "unit.owner").exists()


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "units").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="cannot write"), RunStore(tmp_path).unit(key()).lock(timeout=0):
        pass
