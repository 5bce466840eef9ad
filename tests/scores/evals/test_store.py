"""The result store: damage, merging, processes that die or write at the same time."""

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
from densing.core.errors import ArtefactError, InputError
from densing.scores.evals import store
from densing.scores.evals.identity import UnitKey
from densing.scores.evals.store import BusyError, RunStore, Unit, merge, read_run
from tests.support.eval_files import finish, finish_many, key, samples_of, write_results

# ---- one unit ------------------------------------------------------------------------------------------------


def test_files_stay_as_lm_eval_wrote_them(tmp_path: Path) -> None:
    source = write_results(tmp_path / "own", {"toy": samples_of("toy")})
    unit = finish(tmp_path / "run", key())
    assert (unit.folder / source.name).read_bytes() == source.read_bytes()
    assert {p.name for p in unit.folder.iterdir()} == {*unit.manifest["files"], "unit.json", "unit.lock"}
    assert unit.status == "done"
    items = unit.items()
    assert items is not None
    assert items["nll"].tolist() == [5.1875, 6.4375, 7.6875, 8.9375]


def test_second_result_does_not_replace_the_first(tmp_path: Path) -> None:
    first = finish(tmp_path / "run", key())
    before = {p.name: p.read_bytes() for p in first.folder.iterdir() if p.suffix != ".lock"}
    finish(tmp_path / "run", key(), n=3)
    assert before == {p.name: p.read_bytes() for p in first.folder.iterdir() if p.name in before}


def test_opening_has_no_side_effects(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "none")
    assert store.units() == store.partial() == store.all_units() == []
    assert store.measurements().empty
    assert store.unit(key()).status == "absent"
    assert not (tmp_path / "none").exists()


def test_an_overview_counts_units_and_bytes(tmp_path: Path) -> None:
    run = tmp_path / "a"
    finish(run, key("t1"))
    finish(run, key("t2", "models/other"))
    broken = finish(run, key("t3"))
    broken.results_path.write_text("{}")
    store = RunStore(run)
    (begun := store.unit(key("t4"))).folder.mkdir()
    begun.journal_path.write_bytes(b"journal")
    overview = store.overview()
    assert (overview.run, overview.done, overview.partial, overview.damaged) == ("a", 2, 1, 1)
    assert (overview.models, overview.tasks) == (["models/other", "models/tiny"], ["t1", "t2"])
    total = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert overview.megabytes == round(total / 1e6, 3) and overview.date == ""
    store.record_plan({"models": []})
    assert store.overview("b/a").run == "b/a" and len(store.overview().date) == 10
    (run / "run.json").write_text("{")
    assert store.overview().date == "damaged"


def test_partial_is_not_done(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    unit.folder.mkdir(parents=True)
    unit.journal_path.write_bytes(b"")
    assert (unit.status, unit.done) == ("partial", False)
    assert [found.folder for found in RunStore(tmp_path).partial()] == [unit.folder]
    assert [note.code for note in read_run(RunStore(tmp_path)).notes] == ["unit-partial"]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda u: u.results_path.unlink(), "missing"),
        (lambda u: (u.folder / "items.parquet").write_bytes(b"PAR1"), "bytes where the manifest says"),
        (lambda u: _flip(u.folder / "items.parquet"), "content does not match"),
        (lambda u: (u.folder / "unit.json").write_text('{"schema": 1, "key": '), "not JSON"),
        (lambda u: (u.folder / "unit.json").write_text('{"schema": 99}'), "schema 99, expected 1"),
        (lambda u: (u.folder / "unit.json").write_text("[]"), "schema 'list'"),
        (lambda u: (u.folder / "unit.json").write_text('{"schema": 1, "key": {}, "files": {}}'), "needs mappings"),
        (lambda u: (u.folder / "unit.json").write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda u: _edit(u, "digest", "0" * 64), "does not belong to this key"),
        (lambda u: _edit(u, "files", {"../../run.json": {"bytes": 1}}), "not in the folder"),
        (lambda u: _edit(u, "files", {"x": 3}), "not in the folder"),
    ],
)
def test_damage_is_a_status(tmp_path: Path, harm: object, message: str) -> None:
    finish(tmp_path, key("other"))
    unit = finish(tmp_path, key())
    harm(unit)  # type: ignore[operator]
    again = Unit(unit.folder)
    assert again.status == "damaged"
    assert message in again.problems()[0]
    read = read_run(RunStore(tmp_path))
    assert [note.code for note in read.notes if note.severity == "error"] == ["unit-damaged"]
    assert set(read.measurements["task"]) == {"other"}
    # Evaluating it again heals it.
    assert finish(tmp_path, key()).status == "done"
    assert set(RunStore(tmp_path).measurements()["task"]) == {"other", "toy"}


def _edit(unit: Unit, name: str, value: object) -> None:
    path = unit.folder / "unit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def test_finish_wants_one_results_file(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    with unit.stage() as staged, pytest.raises(InputError, match=r"expected one results_\*\.json .* found none"):
        unit.finish(staged, {})
    assert not list(unit.folder.glob(".staging-*"))


def test_samples_that_cannot_be_read_do_not_lose_the_results(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    with unit.stage() as staged:
        write_results(staged, {"toy": samples_of("toy")})
        next(staged.glob("samples_*")).write_text('{"doc_id": "x"}\n')
        unit.finish(staged, {})
    assert unit.status == "done"
    assert "doc_id is 'x'" in unit.manifest["caveats"][0]
    assert set(RunStore(tmp_path).measurements()["metric"]) == {"acc"}


def test_two_models_of_one_label_are_told_apart(tmp_path: Path) -> None:
    finish(tmp_path, key())
    other = UnitKey({"type": "hf", "revision": "def"}, {"name": "toy"}, {}, "models/tiny")
    finish(tmp_path, other)
    store = RunStore(tmp_path)
    names = set(store.measurements()["model"])
    assert len(names) == 2
    assert all(name.startswith("models/tiny@") for name in names)
    assert names == set(store.models()["model"]) == set(store.items()["model"])


# ---- merging -------------------------------------------------------------------------------------------------


def test_merge_copies_each_unit_once(tmp_path: Path) -> None:
    finish_many(str(tmp_path / "a"), ["t0", "t1"])
    finish_many(str(tmp_path / "b"), ["t1", "t2"])
    RunStore(tmp_path / "a").record_plan({"n": 1})
    RunStore(tmp_path / "b").record_plan({"n": 2})
    (tmp_path / "b" / "units" / "x__y__12345678").mkdir()
    (tmp_path / "b" / "units" / "x__y__12345678" / "journal.sqlite").write_bytes(b"")
    stores = [RunStore(tmp_path / name) for name in "ab"]
    for _ in range(2):
        merged = merge(stores, tmp_path / "ab")
        assert [unit.key.task_name for unit in merged.units() if unit.key] == ["t0", "t1", "t2"]
        assert [entry["plan"]["n"] for entry in merged.run["plans"]] == [1, 2]
    one = stores[0].measurements().drop(columns="file")
    both = merged.measurements().drop(columns="file")
    pd.testing.assert_frame_equal(both[both["task"].isin(["t0", "t1"])].reset_index(drop=True), one)


def test_merge_refuses_a_clash_and_damage(tmp_path: Path) -> None:
    finish(tmp_path / "a", key(), n=4)
    other = finish(tmp_path / "b", key(), n=3)
    with pytest.raises(ArtefactError, match="one key, different results; delete the wrong one"):
        merge([RunStore(tmp_path / "a"), RunStore(tmp_path / "b")], tmp_path / "out")
    other.results_path.unlink()
    with pytest.raises(ArtefactError, match="missing"):
        merge([RunStore(tmp_path / "b")], tmp_path / "out")
    with pytest.raises(InputError, match="no such run"):
        merge([RunStore(tmp_path / "nowhere")], tmp_path / "out")


def test_same_numbers_at_another_time_are_no_clash(tmp_path: Path) -> None:
    finish(tmp_path / "a", key())
    unit = RunStore(tmp_path / "b").unit(key())
    with unit.stage() as staged:
        write_results(staged, {"toy": samples_of("toy")}, stamp="2026-11-22T01-02-03.000004", date=1.0)
        unit.finish(staged, {})
    merged = merge([RunStore(tmp_path / "a"), RunStore(tmp_path / "b")], tmp_path / "out")
    assert len(merged.units()) == 1


def test_damaged_run_file(tmp_path: Path) -> None:
    finish(tmp_path, key())
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"run\.json"):
        RunStore(tmp_path).record_plan({})
    assert len(RunStore(tmp_path).units()) == 1


# ---- processes that die or write at the same time -------------------------------------------------------------


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_plans_are_recorded_once_each(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=SPAWN) as pool:
        list(pool.map(_record, [str(tmp_path)] * 9, range(9)))
    plans = [entry["plan"]["number"] for entry in RunStore(tmp_path).run["plans"]]
    assert sorted(plans) == list(range(-1, 9))


def _hold(unit_folder: str, ready: object, release: object) -> None:
    with Unit(Path(unit_folder)).lock():
        ready.set()  # type: ignore[attr-defined]
        release.wait(60)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_busy_names_the_other_process(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    ready, release = SPAWN.Event(), SPAWN.Event()
    child = SPAWN.Process(target=_hold, args=(str(unit.folder), ready, release))
    child.start()
    assert ready.wait(60)
    with pytest.raises(BusyError, match=rf"process {child.pid} on .* has locked it since"), unit.lock(timeout=0):
        pass
    release.set()
    child.join(60)
    with unit.lock(timeout=0), unit.lock(timeout=0):
        assert json.loads((unit.folder / "unit.owner").read_text())["pid"] == os.getpid()
    assert not (unit.folder / "unit.owner").exists()


@pytest.mark.slow
def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "units").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="cannot write"), RunStore(tmp_path).unit(key()).lock(timeout=0):
        pass
